//! The findings of the judges of a history, each with the least that shows it.

use std::time::Duration;

use crate::event::Event;
use crate::verdict::{Invariant, Unjudged, Violation};
use crate::view::View;

/// The findings so far.
#[derive(Debug)]
pub(crate) struct Report<'v, 'h> {
    view: &'v View<'h>,
    limit: usize,
    pub(crate) violations: Vec<Violation>,
    pub(crate) unjudged: Vec<Unjudged>,
}

/// The part of the store in a violation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Excuse {
    /// A recorded fault of the store explains it.
    pub(crate) explained: Option<String>,
    /// The client says later that the store did not know a grant; no fault of the store shows that.
    pub(crate) doubt: Option<String>,
    /// A fault was at work between two grants that overlap.
    pub(crate) meanwhile: Option<String>,
}

impl<'v, 'h> Report<'v, 'h> {
    pub(crate) fn new(view: &'v View<'h>, limit: usize) -> Report<'v, 'h> {
        Report { view, limit, violations: Vec::new(), unjudged: Vec::new() }
    }

    /// Adds a violation, shown by these events and by the faults of their time.
    pub(crate) fn violated<'e>(
        &mut self,
        invariant: Invariant,
        key: Option<&str>,
        what: String,
        shown_by: impl IntoIterator<Item = &'e Event>,
    ) {
        self.violated_because(invariant, key, what, Excuse::default(), shown_by);
    }

    /// Adds a violation for which the store may be to blame.
    pub(crate) fn violated_because<'e>(
        &mut self,
        invariant: Invariant,
        key: Option<&str>,
        what: String,
        excuse: Excuse,
        shown_by: impl IntoIterator<Item = &'e Event>,
    ) {
        let is_alike = |violation: &&Violation| {
            violation.invariant == invariant
                && violation.explained.is_some() == excuse.explained.is_some()
                && violation.doubt.is_some() == excuse.doubt.is_some()
                && violation.meanwhile.is_some() == excuse.meanwhile.is_some()
        };
        if self.violations.iter().filter(is_alike).count() >= self.limit {
            return;
        }
        let mut slice: Vec<&Event> = shown_by.into_iter().collect();
        let times = || slice.iter().map(|event| self.view.times.at(event));
        let (from, until) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
        let faults: Vec<&Event> =
            self.view.faults_in(from, until).map(|fault| fault.begun).take(FAULTS_SHOWN).collect();
        slice.extend(faults);
        slice.sort_by_key(|event| event.index);
        slice.dedup_by_key(|event| event.index);
        self.violations.push(Violation {
            invariant,
            class: invariant.class(),
            key: key.map(str::to_owned),
            what,
            slice: slice.into_iter().cloned().collect(),
            explained: excuse.explained,
            doubt: excuse.doubt,
            meanwhile: excuse.meanwhile,
        });
    }

    /// Returns `true` if a violation of this invariant was found.
    pub(crate) fn has(&self, invariant: Invariant) -> bool {
        self.violations.iter().any(|violation| violation.invariant == invariant)
    }

    /// Says that an invariant was not tried by what happened, unless it was violated all the same.
    pub(crate) fn untried(&mut self, invariant: Invariant, why: &str) {
        if !self.has(invariant) {
            self.unjudged(invariant, why);
        }
    }

    /// Says that an invariant could not be judged.
    pub(crate) fn unjudged(&mut self, invariant: Invariant, why: impl Into<String>) {
        let why = why.into();
        if !self.unjudged.iter().any(|known| known.invariant == invariant && known.why == why) {
            self.unjudged.push(Unjudged { invariant, why });
        }
    }
}

/// A slice stays short: the first faults of its time are enough.
const FAULTS_SHOWN: usize = 8;

/// Returns nanoseconds for people.
pub(crate) fn shown(nanos: u64) -> String {
    format!("{:?}", Duration::from_nanos(nanos))
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
