//! The clock that all processes of a machine share.
//!
//! It is read by the C library, as programs that move clocks expect it: libfaketime, or a library that is loaded before a
//! program (`LD_PRELOAD`). A test of steps of the wall clock would otherwise pass also if that clock were read here.

#![allow(unsafe_code, reason = "the safe interfaces ask the kernel, which no library that moves clocks sees")]

use std::mem::MaybeUninit;
use std::time::Duration;

/// The clock that counts suspend. The nearest equivalent elsewhere; on macOS it counts suspend as well.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// Reads the time since this machine started, suspend included.
///
/// Processes in different time namespaces read different times; see
/// [`time_namespace`](crate::time_namespace).
///
/// # Panics
/// If the system does not have this clock. Linux has it since 2.6.39.
pub fn since_boot() -> Duration {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is valid for a `timespec`, which a call that returns 0 has written.
    let time = unsafe {
        let failed = libc::clock_gettime(CLOCK, time.as_mut_ptr());
        assert_eq!(failed, 0, "this system has no clock that counts suspend");
        time.assume_init()
    };
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

    /// The kernel is asked, and not the C library. Its wall clock is decades ahead of this one.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn the_clock_is_the_one_that_counts_suspend() {
        use rustix::time::{ClockId, clock_gettime};

        let asked = || Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap();
        let (before, read, after) = (asked(), since_boot(), asked());
        assert!(before <= read && read <= after, "{before:?} {read:?} {after:?}");
    }
}
