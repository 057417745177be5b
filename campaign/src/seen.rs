//! Numbers of what histories show, as a checker judges them.

use leasehold_history::{Class, Invariant, Verdict};
use serde::{Deserialize, Serialize};

/// Numbers of what histories show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Seen {
    /// Grants.
    pub grants: u64,
    /// Losses that holders saw.
    pub losses: u64,
    /// Writes that the protected register accepted.
    pub writes: u64,
    /// Requests that the protected register refused.
    pub refusals: u64,
    /// Violations of what the fence protects (I1, I3, linearizability).
    pub safety: u64,
    /// Fences that repeat or fall (I2).
    pub fences: u64,
    /// Two holders that were valid at one time (I4).
    pub timing: u64,
    /// Waits and losses that came too late, or false ones (I5, I6, I12, I13).
    pub liveness: u64,
    /// Everything else (I7, I8, I9, I11).
    pub hygiene: u64,
}

impl Seen {
    /// Counts what a checker found.
    pub fn of(verdict: &Verdict) -> Seen {
        let counts = verdict.counts;
        let mut seen = Seen {
            grants: counts.grants,
            losses: counts.losses,
            writes: counts.writes,
            refusals: counts.refusals,
            ..Seen::default()
        };
        for violation in &verdict.violations {
            *match (violation.invariant, violation.class) {
                (Invariant::I2, _) => &mut seen.fences,
                (_, Class::Safety) => &mut seen.safety,
                (_, Class::Timing) => &mut seen.timing,
                (_, Class::Liveness) => &mut seen.liveness,
                _ => &mut seen.hygiene,
            } += 1;
        }
        seen
    }

    /// Adds the numbers of another history.
    pub fn add(&mut self, other: &Seen) {
        self.grants += other.grants;
        self.losses += other.losses;
        self.writes += other.writes;
        self.refusals += other.refusals;
        self.safety += other.safety;
        self.fences += other.fences;
        self.timing += other.timing;
        self.liveness += other.liveness;
        self.hygiene += other.hygiene;
    }
}
