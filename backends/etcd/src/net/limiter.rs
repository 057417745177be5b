//! The number of requests of one kind that are under way at once, and the order of the others.
//!
//! A server that was sent more than it can do answers all clients too late, and clients that ask again
//! make it worse. So a request that would only wait in the server's queue waits here: its time limit
//! does not run yet, the most urgent goes first, and a request that has become needless meanwhile is
//! never sent.
//!
//! Ground rules: a pass is returned on every way out of its request, and so is one that was handed to a
//! waiter that left the queue in the same moment. The number of waiters is bounded by the calls of the
//! seam.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::Moment;
use tokio::sync::oneshot;

/// A fixed number of passes, and a queue for them.
#[derive(Debug)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// The waiters, the most urgent first; of equally urgent ones, the earliest first.
    line: BTreeMap<(Moment, u64), oneshot::Sender<()>>,
    arrivals: u64,
}

/// The right to send one request.
#[derive(Debug)]
pub(crate) struct Pass<'a>(&'a Gate);

impl Gate {
    pub(crate) fn new(passes: usize) -> Gate {
        Gate(Mutex::new(State { free: passes, line: BTreeMap::new(), arrivals: 0 }))
    }

    /// Waits for a pass. The earlier `by` is, the sooner it comes.
    ///
    /// # Cancel safety
    /// A waiter that is dropped leaves the queue, and takes no pass along.
    pub(crate) async fn pass(&self, by: Moment) -> Pass<'_> {
        let (number, turn) = {
            let mut state = self.state();
            if state.free > 0 {
                // Invariant: the queue is empty while a pass is free.
                debug_assert!(state.line.is_empty(), "{} wait at a free gate", state.line.len());
                state.free -= 1;
                return Pass(self);
            }
            state.arrivals += 1;
            let (call, turn) = oneshot::channel();
            let number = (by, state.arrivals);
            state.line.insert(number, call);
            (number, turn)
        };
        let mut place = Place { gate: self, number, turn, called: false };
        // The gate outlives its queue, and it never drops a call without making it.
        place.called = (&mut place.turn).await.is_ok();
        Pass(self)
    }

    /// Hands a pass on.
    fn hand_on(&self) {
        let mut state = self.state();
        while let Some((_, call)) = state.line.pop_first() {
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

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.hand_on();
    }
}

/// A request in the queue.
struct Place<'a> {
    gate: &'a Gate,
    number: (Moment, u64),
    turn: oneshot::Receiver<()>,
    called: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.called {
            return;
        }
        self.gate.state().line.remove(&self.number);
        self.turn.close();
        if self.turn.try_recv().is_ok() {
            // Called and gone in the same moment.
            self.gate.hand_on();
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
    fn the_most_urgent_goes_first_and_of_equals_who_came_first() {
        let gate = Gate::new(1);
        let pass = gate.pass(at(9)).now_or_never().unwrap();
        let mut line: Vec<_> = [5, 3, 3, 4].map(|by| Box::pin(gate.pass(at(by)))).into_iter().collect();
        assert!(line.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        let mut pass = Some(pass);
        for expected in [1, 2, 3, 0] {
            drop(pass.take());
            let came: Vec<_> = line.iter_mut().map(|wait| wait.as_mut().now_or_never()).enumerate().collect();
            let mut came: Vec<_> = came.into_iter().filter_map(|(n, pass)| Some((n, pass?))).collect();
            assert_eq!(came.len(), 1);
            let (number, next) = came.remove(0);
            assert_eq!(number, expected);
            line[number] = Box::pin(gate.pass(at(99)));
            pass = Some(next);
        }
    }

    #[test]
    fn who_leaves_the_line_takes_no_pass_along() {
        let gate = Gate::new(1);
        let pass = gate.pass(at(0)).now_or_never().unwrap();
        let mut waits = [Box::pin(gate.pass(at(1))), Box::pin(gate.pass(at(2)))];
        assert!(waits.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        let [called, mut next] = waits;
        drop(pass);
        // It was called by now, and has not looked yet.
        drop(called);
        let pass = next.as_mut().now_or_never().expect("it was handed on");
        drop(gate.pass(at(3)).now_or_never().is_none().then_some(pass).expect("there is only one"));
        assert!(gate.pass(at(4)).now_or_never().is_some());
    }
}
