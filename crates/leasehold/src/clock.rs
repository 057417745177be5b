//! The clock of this machine.

use leasehold_core::{Clock, Moment};
use rustix::time::{ClockId, clock_gettime};

/// The time since this machine started, suspend included (`CLOCK_BOOTTIME`).
///
/// `std::time::Instant` stands still while a machine sleeps; a lease does not.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        #[cfg(target_os = "linux")]
        let time = clock_gettime(ClockId::Boottime);
        // Elsewhere the monotonic clock is the nearest there is; on macOS it counts suspend as well.
        #[cfg(not(target_os = "linux"))]
        let time = clock_gettime(ClockId::Monotonic);
        let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
        Moment::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_forward() {
        let before = SystemClock.now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(SystemClock.now().since(before) >= std::time::Duration::from_millis(2));
    }
}
