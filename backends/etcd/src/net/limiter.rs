//! The number of requests of one kind that are under way at once, and the order of the others.
//!
//! A server that was sent more than it can do answers all clients too late, and clients that ask again
//! make it worse. So a request that would only wait in the server's queue waits here: its time limit
//! does not run yet, the most urgent goes first, and a request that has become needless meanwhile is
//! never sent.
//!
//! Ground rules: a permit is returned on every way out of its request, and so is one that was handed to a
//! waiter that left the queue in the same moment. The number of waiters is bounded by the calls of the
//! seam.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::Moment;
use tokio::sync::oneshot;

/// A fixed number of permits, and a queue for them.
#[derive(Debug)]
pub(crate) struct Limiter(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// The waiters, the most urgent first; of equally urgent ones, the earliest first.
    queue: BTreeMap<(Moment, u64), oneshot::Sender<()>>,
    arrivals: u64,
}

/// The right to send one request.
#[derive(Debug)]
pub(crate) struct Permit<'a>(&'a Limiter);

impl Limiter {
    pub(crate) fn new(permits: usize) -> Limiter {
        Limiter(Mutex::new(State { free: permits, queue: BTreeMap::new(), arrivals: 0 }))
    }

    /// Waits for a permit. The earlier `by` is, the sooner it is granted.
    ///
    /// # Cancel safety
    /// A waiter that is dropped leaves the queue, and loses no permit.
    pub(crate) async fn acquire(&self, by: Moment) -> Permit<'_> {
        let (number, turn) = {
            let mut state = self.state();
            if state.free > 0 {
                // Invariant: the queue is empty while a permit is free.
                debug_assert!(state.queue.is_empty(), "{} wait at a free gate", state.queue.len());
                state.free -= 1;
                return Permit(self);
            }
            state.arrivals += 1;
            let (call, turn) = oneshot::channel();
            let number = (by, state.arrivals);
            state.queue.insert(number, call);
            (number, turn)
        };
        let mut queued = QueuedRequest { limiter: self, number, turn, called: false };
        // The limiter outlives its queue, and it never drops a sender without using it.
        queued.called = (&mut queued.turn).await.is_ok();
        Permit(self)
    }

    /// Hands a permit over to the next request.
    fn pass_on(&self) {
        let mut state = self.state();
        while let Some((_, call)) = state.queue.pop_first() {
            if call.send(()).is_ok() {
                return;
            }
        }
        state.free += 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No invariant spans a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

/// A request in the queue.
struct QueuedRequest<'a> {
    limiter: &'a Limiter,
    number: (Moment, u64),
    turn: oneshot::Receiver<()>,
    called: bool,
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        if self.called {
            return;
        }
        self.limiter.state().queue.remove(&self.number);
        self.turn.close();
        if self.turn.try_recv().is_ok() {
            // It was handed a permit and dropped in the same moment.
            self.limiter.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    #[test]
    fn most_urgent_request_goes_first_and_equals_in_order() {
        let limiter = Limiter::new(1);
        let permit = limiter.acquire(at(9)).now_or_never().unwrap();
        let mut queue: Vec<_> =
            [5, 3, 3, 4].map(|by| Box::pin(limiter.acquire(at(by)))).into_iter().collect();
        assert!(queue.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        let mut permit = Some(permit);
        for expected in [1, 2, 3, 0] {
            drop(permit.take());
            let granted: Vec<_> =
                queue.iter_mut().map(|wait| wait.as_mut().now_or_never()).enumerate().collect();
            let mut granted: Vec<_> =
                granted.into_iter().filter_map(|(n, permit)| Some((n, permit?))).collect();
            assert_eq!(granted.len(), 1);
            let (number, next) = granted.remove(0);
            assert_eq!(number, expected);
            queue[number] = Box::pin(limiter.acquire(at(99)));
            permit = Some(next);
        }
    }

    #[test]
    fn cancelled_waiter_does_not_leak_a_permit() {
        let limiter = Limiter::new(1);
        let permit = limiter.acquire(at(0)).now_or_never().unwrap();
        let mut waits = [Box::pin(limiter.acquire(at(1))), Box::pin(limiter.acquire(at(2)))];
        assert!(waits.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        let [called, mut next] = waits;
        drop(permit);
        // It was called by now, and has not looked yet.
        drop(called);
        let permit = next.as_mut().now_or_never().expect("it was handed on");
        drop(limiter.acquire(at(3)).now_or_never().is_none().then_some(permit).expect("there is only one"));
        assert!(limiter.acquire(at(4)).now_or_never().is_some());
    }
}
