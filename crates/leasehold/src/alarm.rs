//! Waiting for a moment of the machine's clock, on a thread of its own.
//!
//! The signal that a lease is over must come even if nothing else of this process runs: not the runtime
//! of the client, not the task that renews. So the alarm needs no runtime at all, and wakes the
//! executor that polls it. The thread begins with the first wait and sleeps while there is none.
//!
//! Ground rules: the clock that counts suspend decides, and is read once a second at least. Wakers are
//! foreign code: they are called and dropped while nothing is locked.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold_core::{Clock, Moment};

use crate::clock::SystemClock;
use crate::panics::{contained, logged};
use crate::per_process::{CHAIN, PerProcess};

/// A future that is ready once the clock of the machine has reached a moment.
#[derive(Debug)]
pub(crate) struct Alarm {
    at: Moment,
    /// The list in which it waits, and its number in that list.
    place: Option<(&'static ProcessAlarms, u64)>,
}

impl Alarm {
    /// Creates an alarm that rings in `left`; a wait without end never rings.
    pub(crate) fn after(left: Duration) -> Alarm {
        // The least sleep: a clock that is not the machine's may say that nothing is left, and stop.
        let left = left.max(MIN_WAIT);
        Alarm { at: SystemClock.now().after(left), place: None }
    }
}

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // In a simulation the task that renews reports each loss: no time passes here.
        if cfg!(leasehold_sim) || self.at == Moment::NEVER {
            return Poll::Pending;
        }
        if self.at <= SystemClock.now() {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        let Some(alarms) = ProcessAlarms::current() else {
            // The task that renews reports losses as well.
            return Poll::Pending;
        };
        let mut queue = alarms.lock();
        let refused = queue.ensure_thread(alarms).err();
        let place = self.place.filter(|(queue, _)| queue.is_this_process());
        let (_, number) = *self.place.insert(place.unwrap_or_else(|| (alarms, queue.next_number())));
        let is_first = queue.waiting.first_key_value().is_none_or(|(first, _)| (self.at, number) < *first);
        let before = queue.waiting.insert((self.at, number), waker);
        drop(queue);
        drop(before);
        if is_first {
            alarms.changed.notify_one();
        }
        if let Some(error) = refused {
            // The task that renews reports losses as well; the next wait tries again.
            logged!(error, %error, "the operating system gives no thread that watches the ends of leases");
        }
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // In a fork of the process it waits nowhere: the thread that may have had the list does not exist.
        if let Some((alarms, number)) = self.place.filter(|(alarms, _)| alarms.is_this_process()) {
            let left = alarms.lock().waiting.remove(&(self.at, number));
            drop(left);
        }
    }
}

/// The list of one process.
#[derive(Debug)]
struct ProcessAlarms {
    queue: Mutex<AlarmQueue>,
    changed: Condvar,
}

/// All waiters, by their moments.
#[derive(Debug)]
struct AlarmQueue {
    waiting: BTreeMap<(Moment, u64), Waker>,
    next: u64,
    has_thread: bool,
}

static ALARMS: [PerProcess<ProcessAlarms>; CHAIN] = [const { PerProcess::new(ProcessAlarms::new()) }; CHAIN];

impl ProcessAlarms {
    const fn new() -> ProcessAlarms {
        let queue = AlarmQueue { waiting: BTreeMap::new(), next: 0, has_thread: false };
        ProcessAlarms { queue: Mutex::new(queue), changed: Condvar::new() }
    }

    /// Returns the list of this process; `None` if its ancestors took all.
    fn current() -> Option<&'static ProcessAlarms> {
        PerProcess::of_this(&ALARMS)
    }

    fn is_this_process(&self) -> bool {
        ProcessAlarms::current().is_some_and(|own| std::ptr::eq(own, self))
    }

    fn lock(&self) -> MutexGuard<'_, AlarmQueue> {
        // Every change is whole before anything can panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AlarmQueue {
    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn ensure_thread(&mut self, alarms: &'static ProcessAlarms) -> std::io::Result<()> {
        if !self.has_thread {
            std::thread::Builder::new()
                .name("leasehold-alarm".to_owned())
                .spawn(|| run_alarm_thread(alarms))?;
            self.has_thread = true;
        }
        Ok(())
    }
}

/// Runs the thread.
fn run_alarm_thread(alarms: &ProcessAlarms) {
    let mut queue = alarms.lock();
    loop {
        let now = SystemClock.now();
        // Behind all that are due: no number is that large.
        let later = queue.waiting.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut queue.waiting, later);
        if due.is_empty() {
            let first = queue.waiting.first_key_value().map(|((at, _), _)| *at);
            // In steps, since the wait of the operating system does not count suspend.
            queue = match first.map(|at| now.until(at).min(STEP)) {
                Some(nap) => {
                    alarms.changed.wait_timeout(queue, nap).unwrap_or_else(PoisonError::into_inner).0
                }
                None => alarms.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
            continue;
        }
        drop(queue);
        for waker in due.into_values() {
            contained(|| waker.wake());
        }
        queue = alarms.lock();
    }
}

const MIN_WAIT: Duration = Duration::from_millis(1);
const STEP: Duration = Duration::from_secs(1);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::{join_all, select};

    /// A minimal executor: no timers, no tasks.
    pub(crate) fn block_on<F: Future>(work: F) -> F::Output {
        struct Unpark(std::thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
        let mut work = std::pin::pin!(work);
        loop {
            match work.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    #[test]
    fn alarm_fires_without_a_runtime_and_not_too_early() {
        let began = SystemClock.now();
        let waits = [30, 10, 20].map(|millis| {
            let wait = Duration::from_millis(millis);
            Alarm::after(wait).map(move |()| (wait, SystemClock.now().since(began)))
        });
        for (wait, took) in block_on(join_all(waits)) {
            assert!(took >= wait, "{took:?} instead of {wait:?}");
        }
    }

    #[test]
    fn dropped_alarm_leaves_nothing_and_endless_alarm_is_not_queued() {
        let long = Duration::from_secs(86_400);
        let mut dropped = Alarm::after(long);
        assert!((&mut dropped).now_or_never().is_none());
        let (alarms, number) = dropped.place.unwrap();
        let place = (dropped.at, number);
        assert!(alarms.lock().waiting.contains_key(&place));
        drop(dropped);
        assert!(!alarms.lock().waiting.contains_key(&place));
        let mut never = Alarm::after(Duration::MAX);
        assert!((&mut never).now_or_never().is_none());
        assert!(never.place.is_none());
        let soon = block_on(select(never, Alarm::after(Duration::from_millis(1))));
        assert!(matches!(soon, futures_util::future::Either::Right(_)));
    }

    #[test]
    fn fork_gets_its_own_unlocked_alarm_list() {
        let alarms = ProcessAlarms::current().unwrap();
        let _locked = alarms.lock();
        let fork = std::process::id() + 1;
        let other = PerProcess::of(fork, &ALARMS).unwrap();
        assert!(!std::ptr::eq(alarms, other) && other.queue.try_lock().is_ok());
        assert!(std::ptr::eq(alarms, ProcessAlarms::current().unwrap()));
        // A waiter in the list of another process is left there.
        let place = Some((other, 7));
        let other = other.lock();
        drop(Alarm { at: Moment::START, place });
        drop(other);
    }

    #[test]
    fn panicking_waker_does_not_delay_other_alarms() {
        struct Spiteful;
        impl std::task::Wake for Spiteful {
            fn wake(self: std::sync::Arc<Self>) {
                panic!("not now");
            }
        }
        let waker = std::sync::Arc::new(Spiteful).into();
        let mut first = Alarm::after(Duration::from_millis(200));
        assert!(first.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
        block_on(Alarm::after(Duration::from_millis(300)));
        block_on(first);
    }
}
