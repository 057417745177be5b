//! The clock by which a worker measures its leases: the library's own, until the rig lets it run apart.
//!
//! Ground rules: it reads the clock that the library reads if it is given none, and never goes back. It is a row of
//! pieces of one rate each, so every time of it has a time of the machine, whatever was changed since or before. A time
//! that a jump has passed over is that of the jump.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::{Clock, Moment, SystemClock};
use serde::{Deserialize, Serialize};

use super::{CLOSE, TRIES, nanos, now};

/// A clock of its own, which begins with the time of the monotonic clock, and counts the nanoseconds of the library's clock
/// until it is changed.
#[derive(Debug)]
pub(crate) struct WorkerClock {
    /// One more with each change, of which a recording has few.
    pieces: Mutex<Vec<Piece>>,
}

/// The times from the one at which the clock was changed: by the monotonic clock, by the library's, and by this one.
#[derive(Clone, Copy, Debug)]
struct Piece {
    machine: u64,
    read: u64,
    own: u64,
    rate: f64,
}

/// A change of a clock: a jump forward, and the rate from then on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) rate: f64,
    pub(crate) jump: Duration,
}

impl Change {
    /// Returns `true` if the clock runs on, and not for ever in an instant.
    pub(crate) fn is_possible(self) -> bool {
        (SLOWEST..=FASTEST).contains(&self.rate) && self.jump <= LONGEST_JUMP
    }
}

impl Default for WorkerClock {
    fn default() -> WorkerClock {
        let (machine, read) = both();
        WorkerClock { pieces: Mutex::new(vec![Piece { machine, read, own: machine, rate: 1.0 }]) }
    }
}

impl WorkerClock {
    fn pieces(&self) -> MutexGuard<'_, Vec<Piece>> {
        // Every change is whole before anything can panic.
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the clock from now on.
    pub(crate) fn change(&self, change: Change) {
        let mut pieces = self.pieces();
        let (machine, read) = both();
        let own = pieces.last().map_or(machine, |last| last.at(read));
        pieces.push(Piece { machine, read, own: own.saturating_add(nanos(change.jump)), rate: change.rate });
    }

    /// Returns how often it was changed.
    pub(crate) fn changes(&self) -> usize {
        self.pieces().len() - 1
    }

    /// Returns the machine's time at which this clock shows a time, as far as it is known by now; never later.
    pub(crate) fn machine_time(&self, own: u64) -> u64 {
        let pieces = self.pieces();
        let place = pieces.partition_point(|piece| piece.own <= own).saturating_sub(1);
        let end = pieces.get(place + 1).map_or(u64::MAX, |next| next.machine);
        pieces[place].machine_at(own).min(end)
    }
}

impl Clock for WorkerClock {
    fn now(&self) -> Moment {
        let pieces = self.pieces();
        // Read while nobody changes it, so that it does not go back.
        let read = SystemClock.now().as_nanos();
        Moment::from_nanos(pieces.last().map_or(read, |last| last.at(read)))
    }
}

impl Piece {
    fn at(self, read: u64) -> u64 {
        self.own.saturating_add(scaled(read.saturating_sub(self.read), self.rate))
    }

    fn machine_at(self, own: u64) -> u64 {
        self.machine.saturating_add(scaled(own.saturating_sub(self.own), self.rate.recip()))
    }
}

/// Reads the monotonic clock, and right after it the library's.
fn both() -> (u64, u64) {
    let mut times = (now(), SystemClock.now().as_nanos());
    for _ in 0..TRIES {
        // A process that was stopped in between would take its times for earlier ones of the machine.
        if now().saturating_sub(times.0) < nanos(CLOSE) {
            break;
        }
        times = (now(), SystemClock.now().as_nanos());
    }
    times
}

/// Multiplies a time by a rate, and rounds down.
fn scaled(nanos: u64, rate: f64) -> u64 {
    if rate == 1.0 { nanos } else { (nanos as f64 * rate) as u64 }
}

const SLOWEST: f64 = 0.01;
const FASTEST: f64 = 100.0;
const LONGEST_JUMP: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn clock(pieces: &[(u64, u64, f64)]) -> WorkerClock {
        let of = |(machine, own, rate): &(u64, u64, f64)| Piece {
            machine: machine * SECOND,
            read: machine * SECOND,
            own: own * SECOND,
            rate: *rate,
        };
        WorkerClock { pieces: Mutex::new(pieces.iter().map(of).collect()) }
    }

    fn machine_times(clock: &WorkerClock, own: &[u64]) -> Vec<u64> {
        own.iter().map(|own| clock.machine_time(own * SECOND) / SECOND).collect()
    }

    #[test]
    fn clock_that_nobody_changed_is_that_of_the_machine() {
        let clock = WorkerClock::default();
        let (before, own, after) = (now(), clock.now().as_nanos(), now());
        // It is behind by the time between two readings.
        assert!(before <= own + SECOND && own <= after, "{before} {own} {after}");
        assert_eq!((clock.machine_time(own), clock.changes()), (own, 0));
    }

    #[test]
    fn each_time_of_a_slow_or_fast_clock_is_one_of_the_machine() {
        // Half as fast from 100 on, and twice as fast from 120 on, when it shows 110.
        let clock = clock(&[(0, 0, 1.0), (100, 100, 0.5), (120, 110, 2.0)]);
        assert_eq!(machine_times(&clock, &[50, 100, 105, 110, 120, 130]), [50, 100, 110, 120, 125, 130]);
    }

    #[test]
    fn time_that_a_jump_passed_over_is_that_of_the_jump() {
        let clock = clock(&[(0, 0, 1.0), (100, 160, 1.0)]);
        assert_eq!(machine_times(&clock, &[99, 101, 159, 160, 170]), [99, 100, 100, 100, 110]);
    }

    #[test]
    fn change_moves_the_clock_and_never_back() {
        let clock = WorkerClock::default();
        let before = clock.now().as_nanos();
        clock.change(Change { rate: 1.0, jump: Duration::from_secs(60) });
        let after = clock.now().as_nanos();
        assert!(after >= before + 60 * SECOND);
        assert!(clock.machine_time(after) <= now());
        clock.change(Change { rate: 0.25, jump: Duration::ZERO });
        let (begun, slow) = (now(), clock.now().as_nanos());
        while now() < begun + SECOND / 100 {}
        let (passed, machine) = (clock.now().as_nanos() - slow, now() - begun);
        assert!(passed <= machine / 2, "{passed} of {machine}");
        assert_eq!(clock.changes(), 2);
        assert!(clock.now().as_nanos() >= after);
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(!Change { rate, jump: Duration::ZERO }.is_possible(), "{rate}");
        }
    }
}
