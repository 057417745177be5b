//! The fast checker: every invariant that a history shows.
//!
//! Ground rules: each file judges from a [`View`] and adds violations to a [`Report`]. No invariant relies on
//! another one. What the events do not show is said, and never counts as kept.

use std::time::Duration;

use crate::event::{Event, Operation, Stage};
use crate::history::History;
use crate::linear;
use crate::report::Report;
use crate::verdict::{Counts, Verdict};
use crate::view::{Stamps, View};

mod clients;
mod dropped;
mod fences;
mod handover;
mod losses;
mod overlap;
mod register;
mod releases;
mod renewed;
mod residue;
mod unreleased;
mod waits;

/// The checker of histories, with its bounds.
///
/// It reads nothing but events, and knows no library. Its fast part takes time in proportion to the events and
/// the logarithm of their number. The search for a linearization takes more only where many operations overlap.
///
/// ```
/// use leasehold_history::{Checker, History, Invariant};
///
/// let text = r#"{"i":0,"t":0,"p":1,"type":"invoke","f":"acquire","key":"job"}
/// {"i":1,"t":1,"p":1,"type":"ok","f":"acquire","key":"job","v":{"fence":[0,7,0],"valid_until":100}}
/// {"i":2,"t":2,"p":2,"type":"invoke","f":"acquire","key":"job"}
/// {"i":3,"t":50,"p":2,"type":"ok","f":"acquire","key":"job","v":{"fence":[0,8,0],"valid_until":150}}"#;
/// let verdict = Checker::new().check(&History::read(text.as_bytes())?);
/// assert_eq!(verdict.violations[0].invariant, Invariant::I4); // two holders from 50 to 100
/// # Ok::<(), leasehold_history::ReadError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Checker {
    /// The time within which a lock has to be acquirable again after a fault, its ttl included (I5).
    pub recovery: Duration,
    /// The time within which a lock that was released goes to one who waits for it (I5). Some hand-overs may take longer:
    /// a quarter of them, for machines that are busy.
    pub handover: Duration,
    /// The time by which a wait may outlast its limit (I6).
    pub overstay: Duration,
    /// The time by which a loss may be seen after the validity ended, while its process ran (I11, I12, I13).
    pub lateness: Duration,
    /// The time for which two holders may overlap, because clocks are read apart (I4).
    pub tolerance: Duration,
    /// `true` if a connection holds the grants, so that a fault of any kind may end it, and them (I13).
    pub is_held_by_connection: bool,
    /// `true` if users end grants before their time: by a `max_hold`, a transfer, a revocation, or a client that they
    /// close. Such a loss is a false one otherwise (I13).
    pub is_ended_by_users: bool,
    /// `true` if the store grants waiting requests in the order in which they came, so that nobody may be passed over for
    /// long (I6).
    pub is_ordered: bool,
    /// The logical processes of each client, where they are known: none of these may be left out (I5).
    pub clients: Vec<Vec<u64>>,
    /// The clock by which the events are compared.
    pub stamps: Stamps,
    /// The most states of one register that the search for a linearization keeps at one time.
    pub states: usize,
    /// The most violations of one invariant that are reported; the first ones are.
    pub limit: usize,
}

impl Default for Checker {
    fn default() -> Checker {
        Checker {
            recovery: Duration::from_secs(30),
            handover: Duration::from_secs(5),
            overstay: Duration::from_millis(100),
            lateness: Duration::from_millis(50),
            tolerance: Duration::ZERO,
            is_held_by_connection: false,
            is_ended_by_users: false,
            is_ordered: false,
            clients: Vec::new(),
            stamps: Stamps::Own,
            states: 100_000,
            limit: 20,
        }
    }
}

impl Checker {
    /// Returns the checker with its default bounds, which are those of the promises on a machine that is not
    /// overloaded.
    pub fn new() -> Checker {
        Checker::default()
    }

    /// Judges a history.
    pub fn check(&self, history: &History) -> Verdict {
        let view = View::of(history, self.stamps);
        let mut report = Report::new(&view, self.limit);
        register::check(&view, &mut report);
        fences::check(&view, &mut report);
        overlap::check(&view, self, &mut report);
        unreleased::check(&view, self, &mut report);
        waits::check(&view, self, &mut report);
        handover::check(&view, self, &mut report);
        clients::check(&view, self, &mut report);
        residue::check(&view, &mut report);
        releases::check(&view, self, &mut report);
        dropped::check(&view, self, &mut report);
        losses::check(&view, self, &mut report);
        linear::check(&view, self.states, &mut report);
        let mut violations = report.violations;
        violations.sort_by_key(|violation| {
            (
                violation.explained.is_some(),
                violation.doubt.is_some(),
                violation.class,
                violation.invariant,
                violation.slice.first().map(|event| event.index),
            )
        });
        Verdict {
            violations,
            unjudged: report.unjudged,
            counts: counts(&view),
            seed: history.seed(),
            faults: history.faults().cloned().collect(),
        }
    }
}

fn counts(view: &View<'_>) -> Counts {
    let count = |operation, stage| {
        let is_it = |event: &&Event| event.operation == operation && event.stage == stage;
        view.events.iter().filter(is_it).count() as u64
    };
    let of = |values: &mut dyn Iterator<Item = u64>| {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        values.dedup();
        values.len() as u64
    };
    let mut keys: Vec<&str> = view.events.iter().filter_map(|event| event.key.as_deref()).collect();
    keys.sort_unstable();
    keys.dedup();
    let served = count(Operation::ServedWrite, Stage::Ok) + count(Operation::ServedWrite, Stage::Fail);
    let accepted = match served {
        0 => count(Operation::Write, Stage::Ok),
        _ => count(Operation::ServedWrite, Stage::Ok),
    };
    Counts {
        events: view.events.len() as u64,
        keys: keys.len() as u64,
        processes: of(&mut view.events.iter().filter_map(|event| event.process)),
        grants: view.grants.len() as u64,
        renewals: count(Operation::Renew, Stage::Ok),
        losses: view.grants.iter().filter(|grant| grant.lost.is_some()).count() as u64,
        writes: accepted,
        refusals: count(Operation::ServedWrite, Stage::Fail) + count(Operation::ServedRead, Stage::Fail),
        unknown: view.calls.iter().filter(|call| call.done.is_none()).count() as u64,
        faults: view.faults.len() as u64,
    }
}
