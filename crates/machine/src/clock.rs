//! The clock that all processes of a machine share.
//!
//! It is asked of the kernel, so a library that moves the clocks of a program (`LD_PRELOAD`, libfaketime) does not move
//! the clock of leases.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Reads the time since this machine started, suspend included.
///
/// Processes in different time namespaces read different times; see
/// [`time_namespace`](crate::time_namespace).
pub fn since_boot() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let time = clock_gettime(ClockId::Boottime);
    // The nearest equivalent elsewhere. On macOS it counts suspend as well.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let time = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_forward() {
        let before = since_boot();
        std::thread::sleep(Duration::from_millis(2));
        assert!(since_boot() >= before + Duration::from_millis(2));
    }

    /// The wall clock is decades ahead. On a machine that was never suspended, the monotonic clock is the same.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn the_clock_is_that_of_the_time_since_boot() {
        let asked = || Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap();
        let (before, read, after) = (asked(), since_boot(), asked());
        assert!(before <= read && read <= after, "{before:?} {read:?} {after:?}");
    }
}
