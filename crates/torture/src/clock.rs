//! The clock of a recording, and how the validity of a grant is stated by it.
//!
//! All stamps are `CLOCK_MONOTONIC`, which all processes of one machine share, in nanoseconds. The library counts a
//! lease by `CLOCK_BOOTTIME`, which also counts suspend. Only a length of time crosses from the one to the other: the
//! time that is left. Both clocks advance alike while the machine is awake, so the end of the validity is the stamp
//! before the question plus the time that is left. That is too early by as long as the question took, and never too
//! late, so a checker finds no overlap that was none. If the machine was suspended, the two clocks have moved apart,
//! which [`Offset`] notices; such a recording cannot be judged by its times.
//!
//! A worker may measure its leases by a clock of its own, [`WorkerClock`], which the rig lets run apart from the
//! machine's. The end of a validity is one of that clock then, and is translated whenever it is recorded.
//!
//! The stamps are read from the kernel, and not by the C library: a library that moves the clocks of a worker does not
//! reach them.

use std::time::Duration;

use leasehold::{Clock, Guard};
use rustix::time::{ClockId, clock_gettime};

mod own;

pub(crate) use own::{Change, WorkerClock};

/// Returns the time of the monotonic clock in nanoseconds.
pub(crate) fn now() -> u64 {
    read(ClockId::Monotonic)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let (seconds, nanos) =
        (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The validity of a guard, by the clock of its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValidityEnd {
    /// A session keeps the lock alive.
    Session,
    /// It ends then.
    Until(u64),
    /// It has ended already, and the library no longer says when.
    Over,
}

impl ValidityEnd {
    /// Returns the time at which the validity ends, if there is one.
    pub(crate) fn end(self) -> Option<u64> {
        match self {
            ValidityEnd::Until(end) => Some(end),
            ValidityEnd::Session | ValidityEnd::Over => None,
        }
    }
}

/// Returns the validity of a guard.
pub(crate) fn validity(guard: &Guard, clock: &WorkerClock) -> ValidityEnd {
    let mut stated = ValidityEnd::Over;
    for _ in 0..TRIES {
        let (begun, before) = (now(), clock.now().as_nanos());
        let left = guard.remaining();
        stated = match left {
            Duration::MAX => return ValidityEnd::Session,
            // The time of the question is not the end: that may be long ago.
            Duration::ZERO => return ValidityEnd::Over,
            left => ValidityEnd::Until(before.saturating_add(nanos(left))),
        };
        // A process that was stopped in between would state a time that is far too early.
        if now().saturating_sub(begun) < nanos(CLOSE) {
            break;
        }
    }
    stated
}

/// The time by which the clock that counts suspend is ahead of the one that does not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offset(u64);

impl Offset {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn now() -> Offset {
        let before = read(ClockId::Monotonic);
        Offset(read(ClockId::Boottime).saturating_sub(before))
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn now() -> Offset {
        Offset(0)
    }

    /// Returns how long the machine was suspended since `self` was taken; `None` if it was not.
    pub(crate) fn suspended(self) -> Option<Duration> {
        let moved = Duration::from_nanos(Offset::now().0.abs_diff(self.0));
        (moved > NOTICEABLE).then_some(moved)
    }
}

const TRIES: usize = 16;
const CLOSE: Duration = Duration::from_millis(1);
/// Two readings one after the other are less than this apart, unless the process was stopped between them.
const NOTICEABLE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn validity_is_told_too_early_by_a_moment_and_never_too_late() {
        let locks = leasehold::Client::open("mem:").await.unwrap();
        let ttl = Duration::from_secs(30);
        let before = now();
        let guard = locks.mutex("job").ttl(ttl).lock().await.unwrap();
        let clock = WorkerClock::default();
        let until = validity(&guard, &clock).end().unwrap();
        assert!(until <= now() + nanos(ttl), "a validity longer than the ttl");
        assert!(until > before + nanos(ttl) / 2, "more than half of the ttl is gone");
        guard.release().await.unwrap();
        let short = locks.mutex("other").max_hold(Duration::from_millis(1)).lock().await.unwrap();
        short.lost().await;
        assert_eq!(validity(&short, &clock), ValidityEnd::Over, "the end is not the time of the question");
    }

    #[test]
    fn a_machine_that_was_awake_was_not_suspended() {
        assert_eq!(Offset::now().suspended(), None);
        let earlier = Offset(Offset::now().0.saturating_sub(nanos(Duration::from_secs(60))));
        if cfg!(target_os = "linux") && Offset::now().0 > nanos(Duration::from_secs(60)) {
            assert!(earlier.suspended().is_some());
        }
    }
}
