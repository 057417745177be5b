//! The verdict over a history, and the violations in it.

use std::fmt;

use serde::Serialize;

use crate::event::Event;

/// An invariant of the catalogue of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub enum Invariant {
    /// The register never accepts a fence below the highest that it has seen.
    I1,
    /// Fences are unique, and greater than that of every grant completed before the acquisition began.
    I2,
    /// The protected counter has as many increments as were acknowledged.
    I3,
    /// No two grants that exclude each other are locally valid at one time.
    I4,
    /// No lock stays unacquirable for longer than a bound after the last fault.
    I5,
    /// Every wait with a limit returns by its limit.
    I6,
    /// Nothing is left after everything was closed.
    I7,
    /// Reentrancy counts are exact, and an unbalanced release is an error.
    I8,
    /// A release or a renewal never touches the grant of another owner.
    I9,
    /// An acquisition that its caller drops leaves nothing behind.
    I10,
    /// A release after a loss is an error.
    I11,
    /// A loss is reported no later than the validity ends.
    I12,
    /// No loss is reported while the lease is renewed.
    I13,
    /// The fenced register is linearizable.
    Linearizable,
}

/// The kind of promise that a violation breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub enum Class {
    /// Safety: the protected resource was changed wrongly, or its fences do not protect it.
    Safety,
    /// Timing: two holders at one time. Allowed only if a fault broke a written assumption about time.
    Timing,
    /// Something came too late, too early or not at all.
    Liveness,
    /// Something was left behind, or an answer was wrong.
    Hygiene,
}

/// A violation of one invariant, with the least that shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// The kind of promise that it breaks.
    pub class: Class,
    /// The lock, if it is about one.
    pub key: Option<String>,
    /// A sentence about it.
    pub what: String,
    /// The events that show it, in order.
    pub slice: Vec<Event>,
    /// Why the store, and not the client, is to blame, if the events show that: a fault of the store was recorded.
    pub explained: Option<String>,
    /// Why the store may be to blame, if the client says so and the events show no fault of the store.
    pub doubt: Option<String>,
    /// Of two holders at one time (I4): a fault, other than the pause or the end of a process, that was at work after
    /// the store had granted the first of the two and before the last of them knew of its grant. Without one, nothing
    /// that was recorded can be the reason; so it is if the first was renewed beside the other when the fault was over.
    pub meanwhile: Option<String>,
}

/// The verdict over a history.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The violations, the worst first.
    pub violations: Vec<Violation>,
    /// The invariants that could not be judged, and why.
    pub unjudged: Vec<Unjudged>,
    /// The numbers of what was judged.
    pub counts: Counts,
    /// The seed of the history.
    pub seed: Option<u64>,
    /// The faults of the history.
    pub faults: Vec<Event>,
}

/// An invariant that a history cannot show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unjudged {
    /// The invariant.
    pub invariant: Invariant,
    /// The reason.
    pub why: String,
}

/// Numbers of what was judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// All events.
    pub events: u64,
    /// Locks.
    pub keys: u64,
    /// Logical processes.
    pub processes: u64,
    /// Grants.
    pub grants: u64,
    /// Renewals.
    pub renewals: u64,
    /// Losses that holders saw.
    pub losses: u64,
    /// Writes that the register accepted.
    pub writes: u64,
    /// Reads and writes that the register refused.
    pub refusals: u64,
    /// Operations with an unknown outcome.
    pub unknown: u64,
    /// Faults.
    pub faults: u64,
}

impl Invariant {
    /// Returns what the invariant breaks.
    pub fn class(self) -> Class {
        match self {
            Invariant::I1 | Invariant::I2 | Invariant::I3 | Invariant::Linearizable => Class::Safety,
            Invariant::I4 => Class::Timing,
            Invariant::I5 | Invariant::I6 | Invariant::I12 | Invariant::I13 => Class::Liveness,
            Invariant::I7 | Invariant::I8 | Invariant::I9 | Invariant::I10 | Invariant::I11 => Class::Hygiene,
        }
    }

    /// Returns the promise, as a sentence.
    pub fn promise(self) -> &'static str {
        match self {
            Invariant::I1 => "the register accepts no fence below the highest that it has seen",
            Invariant::I2 => "fences are unique and rise with the grants",
            Invariant::I3 => "every acknowledged increment is in the protected counter",
            Invariant::I4 => "no two holders that exclude each other are valid at one time",
            Invariant::I5 => "every lock can be acquired again after the last fault",
            Invariant::I6 => "every wait with a limit returns by its limit",
            Invariant::I7 => "nothing is left after everything was closed",
            Invariant::I8 => "reentrancy counts are exact",
            Invariant::I9 => "a release or a renewal touches its own grant only",
            Invariant::I10 => "an acquisition that is dropped leaves nothing behind",
            Invariant::I11 => "a release after a loss is an error",
            Invariant::I12 => "a loss is reported when the validity ends",
            Invariant::I13 => "no loss is reported while the lease is renewed",
            Invariant::Linearizable => "the fenced register is linearizable",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invariant::Linearizable => f.write_str("linearizability"),
            other => write!(f, "{other:?}"),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Safety => "safety",
            Class::Timing => "timing",
            Class::Liveness => "liveness",
            Class::Hygiene => "hygiene",
        })
    }
}

impl Verdict {
    /// Returns `true` if nothing was violated.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Returns the violations of one class.
    pub fn of(&self, class: Class) -> impl Iterator<Item = &Violation> {
        self.violations.iter().filter(move |violation| violation.class == class)
    }
}
