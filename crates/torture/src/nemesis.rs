//! The nemesis: which worker is paused or killed next, when, and for how long. A seed decides.
//!
//! Ground rules: it acts on workers of the rig and on nothing else, and on one at a time, so that the others show
//! what the fault does to them. Pauses are shorter than a lease and longer than one in turn: the first must harm
//! nobody, the second must cost the holder its lock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

/// A kind of fault on the rig's own processes. No store is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// A worker is stopped, and continues later.
    Pause,
    /// A worker is killed, and another one starts in its place.
    Kill,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: &'static [FaultKind] = &[FaultKind::Pause, FaultKind::Kill];
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultKind::Pause => "pause",
            FaultKind::Kill => "kill",
        })
    }
}

impl FromStr for FaultKind {
    type Err = String;

    fn from_str(text: &str) -> Result<FaultKind, String> {
        let found = FaultKind::ALL.iter().find(|kind| kind.to_string() == text);
        found
            .copied()
            .ok_or_else(|| format!("unknown fault {text:?}: write pause, kill or both with a comma"))
    }
}

/// One fault of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strike {
    /// The rest before it.
    pub(crate) after: Duration,
    pub(crate) kind: FaultKind,
    pub(crate) worker: usize,
    /// The time for which the worker stays stopped or dead.
    pub(crate) lasts: Duration,
}

/// The schedule of faults, which depends on the seed, the workers, the kinds and the ttl alone.
#[derive(Debug)]
pub(crate) struct Nemesis {
    rng: Rng,
    kinds: Vec<FaultKind>,
    workers: usize,
    ttl: Duration,
    turn: usize,
}

impl Nemesis {
    pub(crate) fn new(seed: u64, kinds: Vec<FaultKind>, workers: usize, ttl: Duration) -> Nemesis {
        Nemesis { rng: Rng::with_seed(seed ^ SALT), kinds, workers, ttl, turn: 0 }
    }

    /// Returns the next fault; `None` if there are none.
    pub(crate) fn next(&mut self) -> Option<Strike> {
        let kind = self.rng.choice(&self.kinds).copied()?;
        let rng = &mut self.rng;
        self.turn += 1;
        let part = match kind {
            // Every other pause is longer than a lease.
            FaultKind::Pause if self.turn.is_multiple_of(2) => 1.25 + rng.f64(),
            FaultKind::Pause => 0.1 + 0.4 * rng.f64(),
            FaultKind::Kill => rng.f64(),
        };
        Some(Strike {
            after: self.ttl.mul_f64(0.25 + 1.25 * rng.f64()),
            kind,
            worker: rng.usize(..self.workers),
            lasts: self.ttl.mul_f64(part),
        })
    }
}

const SALT: u64 = 0x7a6e_656d_6573_6973;

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(seed: u64) -> Vec<Strike> {
        let ttl = Duration::from_secs(2);
        let mut nemesis = Nemesis::new(seed, FaultKind::ALL.to_vec(), 3, ttl);
        std::iter::from_fn(|| nemesis.next()).take(60).collect()
    }

    #[test]
    fn a_seed_decides_the_schedule() {
        assert_eq!(schedule(7), schedule(7));
        assert_ne!(schedule(7), schedule(8));
    }

    #[test]
    fn every_worker_is_hit_and_pauses_are_of_both_lengths() {
        let strikes = schedule(1);
        let ttl = Duration::from_secs(2);
        for worker in 0..3 {
            assert!(strikes.iter().any(|strike| strike.worker == worker));
        }
        let pauses = || strikes.iter().filter(|strike| strike.kind == FaultKind::Pause);
        assert!(pauses().any(|strike| strike.lasts > ttl) && pauses().any(|strike| strike.lasts < ttl));
        assert!(strikes.iter().any(|strike| strike.kind == FaultKind::Kill));
    }

    #[test]
    fn without_kinds_there_are_no_faults() {
        assert_eq!(Nemesis::new(0, Vec::new(), 3, Duration::from_secs(1)).next(), None);
    }
}
