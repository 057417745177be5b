//! Points on a clock, and where they come from.
//!
//! Pure code never reads the time: it gets a [`Moment`] as a value. Only the outermost layer owns a
//! [`Clock`]. A moment is meaningful on the clock that made it and nowhere else: it is never stored
//! in a shared medium and never compared over two machines.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A point on one clock, in whole nanoseconds since that clock's own beginning.
///
/// On a client that clock counts suspend (`CLOCK_BOOTTIME` on Linux), which `std::time::Instant` does not:
/// a lease continues to run out while a laptop sleeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The beginning of the clock.
    pub const START: Moment = Moment(0);
    /// Later than every other moment; the deadline of a wait or a claim that has none.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// Returns the moment `nanos` nanoseconds after the clock's beginning.
    pub const fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// Returns the moment `millis` milliseconds after the clock's beginning.
    pub const fn from_millis(millis: u64) -> Self {
        Moment(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the clock's beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns this moment moved forward; [`Moment::NEVER`] where it would pass the end.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }

    /// Returns this moment moved back, not before the clock's beginning.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_sub(nanos))
    }

    /// Returns the time since `earlier`; zero where that lies in the future.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time until `later`; zero where it has passed, [`Duration::MAX`] for [`Moment::NEVER`].
    pub fn until(self, later: Moment) -> Duration {
        if later == Moment::NEVER { Duration::MAX } else { later.since(self) }
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Moment::NEVER {
            return f.write_str("Moment(never)");
        }
        write!(f, "Moment({:?})", Duration::from_nanos(self.0))
    }
}

/// The clock of one machine. Implementations must never go back.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the present moment.
    fn now(&self) -> Moment;
}

/// A clock that moves only when it is advanced, for tests and simulation.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Creates a clock at its beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_instead_of_wrapping() {
        assert_eq!(Moment::from_nanos(u64::MAX - 1).after(Duration::from_secs(1)), Moment::NEVER);
        assert_eq!(Moment::from_nanos(5).before(Duration::from_secs(1)), Moment::START);
        assert_eq!(Moment::START.since(Moment::from_nanos(9)), Duration::ZERO);
        assert_eq!(Moment::from_millis(3).until(Moment::NEVER), Duration::MAX);
        assert_eq!(Moment::from_millis(3).until(Moment::from_millis(5)), Duration::from_millis(2));
    }

    #[test]
    fn manual_clock_moves_only_when_advanced() {
        let clock = ManualClock::new();
        let start = clock.now();
        assert_eq!(clock.now(), start);
        clock.advance(Duration::from_millis(7));
        assert_eq!(clock.now().since(start), Duration::from_millis(7));
    }
}
