//! Each observer's clock ends claims: a text has spans, and the count of signs of life.
//!
//! Ground rules: *a claim is dead once a span that was read with it is over, as this observer measures it, and no sign
//! of life was seen since.* A client that gives a sign of life counts it, no matter what it knew of the claim
//! before: so each renewal, each repeated grant and each adoption begins the span anew for all observers,
//! also where the writer sees the claim for the first time. Dates are for display only.
//!
//! Each text has for each claim what is left of its span for the writer, also for one that was silent. A text is read
//! after it was written, so the span that is left covers the claim for each reader, too. What several clients
//! have seen of a dead claim, one after the other, adds up: it is passed over though none of them stays for long.

use std::time::Duration;

use leasehold_core::{DamagedLedger, Entry, Ledger, Moment, Resource};

use super::{Lifetime, unix_now};
use crate::cell::cells::Cell;
use crate::cell::state::observed_claims::ObservedClaims;

/// Spans on the clock of each observer.
#[derive(Debug)]
pub(super) struct ObserverTime;

impl Lifetime for ObserverTime {
    fn read_text(&self, text: &[u8]) -> Result<(Ledger, String), DamagedLedger> {
        Ledger::from_span_text(text)
    }

    fn write_text(&self, ledger: &Ledger, head: &str) -> String {
        ledger.to_span_text(head)
    }

    fn evaluate(
        &self,
        at: &Resource,
        _: &Cell,
        entries: &mut [Entry],
        observed: &ObservedClaims,
        local_now: Moment,
    ) -> Moment {
        let ends = observed.observe(at, entries, local_now);
        for (entry, end) in entries.iter_mut().zip(ends) {
            entry.until = end;
        }
        local_now
    }

    fn to_stored(&self, entry: &Entry, old: Option<&Entry>, now: Moment) -> Entry {
        let began = old.is_some_and(|old| old.since == entry.since);
        let since = if began { entry.since } else { Moment::START.after(unix_now()) };
        Entry { until: span_as_moment(now.until(entry.until)), since, ..entry.clone() }
    }

    fn keep(&self, ends: Moment, now: Moment) -> Duration {
        now.until(ends)
    }

    fn since(&self, _: &Entry, raw: &Entry, _: Moment) -> Option<Duration> {
        Some(Duration::from_nanos(raw.since.as_nanos()))
    }

    fn alone(&self, lease: Duration, _: Duration) -> (Moment, Moment) {
        (span_as_moment(lease), Moment::START.after(unix_now()))
    }
}

/// Returns a span as a text has it: as the moment that follows [`Moment::START`] after it.
fn span_as_moment(span: Duration) -> Moment {
    Moment::START.after(span)
}
