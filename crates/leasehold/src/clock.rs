//! The clock of this machine, and what stands in for a clock that fails.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::{Clock, Moment};
use rustix::time::{ClockId, clock_gettime};

use crate::panics::{contained, logged};

/// The time since this machine started, suspend included (`CLOCK_BOOTTIME`).
///
/// `std::time::Instant` stands still while a machine sleeps; a lease does not.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let time = clock_gettime(ClockId::Boottime);
        // Elsewhere the monotonic clock is the nearest there is; on macOS it counts suspend as well.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let time = clock_gettime(ClockId::Monotonic);
        let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
        Moment::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

/// A clock of the user's that never fails: where it panics, the time goes on as the machine's does.
#[derive(Debug)]
pub(crate) struct Bridged {
    clock: Arc<dyn Clock>,
    /// What it said last, and when that was by the clock of the machine.
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
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = said {
            *last = (now, here);
            return now;
        }
        let (now, at) = *last;
        drop(last);
        logged!(error, "the clock of the client panicked; the machine's is used until it answers again");
        now.after(here.since(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::ManualClock;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    #[test]
    fn it_runs_forward() {
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
    fn a_clock_that_panics_is_bridged_and_never_stands_still() {
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
