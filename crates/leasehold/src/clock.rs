//! The clocks that measure leases, and the fallback for a clock that fails.

mod pausable;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use leasehold_core::{Clock, Moment};
use leasehold_machine::since_boot;
use tokio::time::Instant;

use crate::panics::{contained, logged};

/// The time since this machine started, suspend included (`CLOCK_BOOTTIME`).
///
/// `std::time::Instant` stops while a machine sleeps; a lease does not.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(u64::try_from(since_boot().as_nanos()).unwrap_or(0))
    }
}

/// The interval at which a wait for a time reads the clock again, so that a suspend of the machine is noticed: timers
/// stand still meanwhile.
pub(crate) const CLOCK_READ_INTERVAL: Duration = Duration::from_secs(1);

/// A clock of the user that never fails: if it panics, the time continues at the rate of the machine's clock.
#[derive(Debug)]
pub(crate) struct Bridged {
    clock: Arc<dyn Clock>,
    /// The last reading, and its time by the clock of the machine.
    last: Mutex<(Moment, Moment)>,
}

impl Bridged {
    pub(crate) fn over(clock: Arc<dyn Clock>) -> Bridged {
        Bridged { clock, last: Mutex::new((Moment::START, SystemClock.now())) }
    }
}

impl Clock for Bridged {
    fn now(&self) -> Moment {
        let said = contained(|| self.clock.now());
        let here = SystemClock.now();
        if let Some(now) = said {
            // If another thread writes its own reading at this moment, that is enough. In a fork it may never end.
            match self.last.try_lock() {
                Ok(mut last) => *last = (now, here),
                Err(TryLockError::Poisoned(last)) => *last.into_inner() = (now, here),
                Err(TryLockError::WouldBlock) => {}
            }
            return now;
        }
        let (now, at) = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        logged!(error, "the clock of the client panicked; the machine's is used until it answers again");
        now.after(here.since(at))
    }
}

/// The time of the tokio runtime, for tests that pause it and for simulations.
///
/// Under `#[tokio::test(start_paused = true)]` time stops while a task runs, and jumps to the next timer
/// when all tasks wait. A client needs no clock of its own there: unless
/// [`ClientBuilder::clock`](crate::ClientBuilder::clock) sets one, its leases follow the clock that is
/// ahead, that of the runtime or of the machine. Give this clock to a
/// [`MemoryBackend`](crate::local::MemoryBackend::with_clock), and the leases of a holder that is gone
/// end in the same time too.
///
/// ```
/// use leasehold::{Client, TokioClock, local::MemoryBackend};
/// use std::{sync::Arc, time::Duration};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
/// # runtime.block_on(async {
/// let store = Arc::new(MemoryBackend::with_clock(Arc::new(TokioClock::new())));
/// let locks = Client::builder().clock(Arc::new(TokioClock::new())).over(store)?;
/// let guard = locks.mutex("job").max_hold(Duration::from_secs(3600)).lock().await?;
/// guard.lost().await; // an hour later, by the clock of the runtime
/// # Ok::<(), leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// # Does not promise
/// Suspend is not counted: outside tests this is `std::time::Instant`, which stops while the machine
/// sleeps. Outside the runtime a paused time cannot be seen: there the clock shows the latest time that
/// was seen inside.
#[derive(Debug)]
pub struct TokioClock {
    began: Instant,
    latest: AtomicU64,
}

impl TokioClock {
    /// Creates a clock that begins now.
    #[allow(clippy::new_without_default)]
    pub fn new() -> TokioClock {
        TokioClock { began: Instant::now(), latest: AtomicU64::new(0) }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        let now = Moment::START.after(Instant::now().saturating_duration_since(self.began)).as_nanos();
        Moment::from_nanos(self.latest.fetch_max(now, Ordering::SeqCst).max(now))
    }
}

/// Returns the clock of a client that was given none.
pub(crate) fn default_clock() -> Arc<dyn Clock> {
    // Two clocks take twice the time to read, so only a program that can pause a runtime has both.
    if pausable::is_runtime_pausable() { Arc::new(LeaseClock::new()) } else { Arc::new(SystemClock) }
}

/// The default clock of a client in tests: that of the machine, or that of the runtime if a test has paused it
/// and its timers run ahead. Leases end by the later of the two, so that no timer fires after the end
/// of a lease that still counts as held.
#[derive(Debug)]
struct LeaseClock {
    began: Moment,
    runtime: Instant,
    /// The latest time that the runtime showed while it was ahead.
    ahead: AtomicU64,
}

impl LeaseClock {
    /// Creates a clock for the runtime in which this is called.
    fn new() -> LeaseClock {
        LeaseClock { began: SystemClock.now(), runtime: Instant::now(), ahead: AtomicU64::new(0) }
    }
}

impl Clock for LeaseClock {
    fn now(&self) -> Moment {
        // The runtime's clock is read first. A thread that is stopped between the two then sees the machine's
        // ahead, which is nothing to note: only a test that pauses the runtime lets that run ahead.
        let runtime = self.began.after(Instant::now().saturating_duration_since(self.runtime));
        let machine = SystemClock.now();
        let ahead = if runtime > machine.after(AHEAD) {
            self.ahead.fetch_max(runtime.as_nanos(), Ordering::SeqCst).max(runtime.as_nanos())
        } else {
            self.ahead.load(Ordering::Relaxed)
        };
        machine.max(Moment::from_nanos(ahead))
    }
}

/// The lead from which the runtime counts as paused.
const AHEAD: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::ManualClock;
    use std::sync::atomic::AtomicBool;

    #[tokio::test(start_paused = true)]
    async fn a_paused_runtime_is_followed() {
        let (lease, tokio) = (LeaseClock::new(), TokioClock::new());
        let before = (lease.now(), tokio.now());
        tokio::time::sleep(Duration::from_secs(100)).await;
        // It was the machine's until the runtime was ahead, and that had continued a little.
        assert!(lease.now().since(before.0) >= Duration::from_secs(99));
        assert_eq!(tokio.now().since(before.1), Duration::from_secs(100));
    }

    #[tokio::test(start_paused = true)]
    async fn outside_of_the_runtime_neither_goes_back() {
        let clocks = (LeaseClock::new(), TokioClock::new());
        tokio::time::sleep(Duration::from_secs(100)).await;
        let inside = (clocks.0.now(), clocks.1.now());
        let outside = std::thread::spawn(move || (clocks.0.now(), clocks.1.now())).join().unwrap();
        assert!(outside.0 >= inside.0 && outside.1 >= inside.1, "{inside:?} {outside:?}");
    }

    #[test]
    fn without_a_runtime_the_lease_clock_is_that_of_the_machine() {
        let clock = LeaseClock::new();
        let (before, now, after) = (SystemClock.now(), clock.now(), SystemClock.now());
        assert!(before <= now && now <= after);
        assert_eq!(clock.ahead.load(Ordering::Relaxed), 0);
    }

    /// So many threads that each is stopped again and again, as on a busy machine.
    #[test]
    fn stopped_thread_sees_no_paused_runtime() {
        let clock = LeaseClock::new();
        let threads = 4 * std::thread::available_parallelism().map_or(4, usize::from);
        let end = SystemClock.now().after(Duration::from_millis(300));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| while clock.now() < end {});
            }
        });
        assert_eq!(clock.ahead.load(Ordering::Relaxed), 0);
    }

    /// In a time namespace the two clocks of the kernel differ, as they do on a machine that was suspended.
    #[cfg(target_os = "linux")]
    #[test]
    fn system_clock_counts_the_time_in_which_the_machine_was_suspended() {
        let mut wrapper = ["unshare", "--time", "--boottime", "86400"].map(str::to_owned).to_vec();
        if !rustix::process::geteuid().is_root() {
            wrapper.extend(["--user", "--map-root-user"].map(str::to_owned));
        }
        let test = "clock::tests::system_clock_counts_the_time_in_which_the_machine_was_suspended";
        // Only a child of the process that leaves a time namespace is in the new one.
        wrapper.push("--fork".to_owned());
        let Some(_) = leasehold_testkit::surroundings::inside(test, &wrapper, "true") else { return };
        let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let monotonic = Moment::START.after(monotonic.try_into().unwrap());
        assert!(SystemClock.now().since(monotonic) >= Duration::from_secs(86_400));
    }

    #[test]
    fn system_clock_runs_forward() {
        let before = SystemClock.now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(SystemClock.now().since(before) >= std::time::Duration::from_millis(2));
    }

    #[derive(Debug, Default)]
    struct Moody {
        clock: ManualClock,
        panics: AtomicBool,
    }

    impl Clock for Moody {
        fn now(&self) -> Moment {
            assert!(!self.panics.load(Ordering::SeqCst), "no time for you");
            self.clock.now()
        }
    }

    #[test]
    fn panicking_clock_is_bridged_and_keeps_advancing() {
        let moody = Arc::new(Moody::default());
        let bridged = Bridged::over(moody.clone());
        moody.clock.advance(Duration::from_secs(100));
        let said = bridged.now();
        assert_eq!(said, moody.clock.now());
        moody.panics.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        assert!(bridged.now().since(said) >= Duration::from_millis(2));
        moody.panics.store(false, Ordering::SeqCst);
        assert_eq!(bridged.now(), moody.clock.now());
    }
}
