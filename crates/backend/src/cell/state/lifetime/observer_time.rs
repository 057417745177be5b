//! Each observer's clock ends claims: a text has spans, and the count of signs of life.
//!
//! Ground rules: *a claim lives iff it was seen in another state within its span, as this observer measures
//! it.* A state is made of what was granted, the count of signs of life, and the span. A client that gives a
//! sign of life counts it, no matter what it knew of the claim before: so each renewal, each repeated grant
//! and each adoption begins the span anew for all observers, also where the writer sees the claim for the
//! first time. Dates are for display only.

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

    fn set_ends(
        &self,
        at: &Resource,
        _: &Cell,
        entries: &mut [Entry],
        observed: &ObservedClaims,
        now: Moment,
    ) -> Moment {
        let first_seen = observed.observe(at, entries, now);
        for (entry, first) in entries.iter_mut().zip(first_seen) {
            entry.until = first.after(span_of(entry.until));
        }
        now
    }

    fn written(&self, entry: &Entry, old: Option<(&Entry, &Entry)>, now: Moment) -> Entry {
        match old {
            // It was silent, and it was not called: its state stays what others may have seen before.
            Some((judged, raw)) if judged == entry => raw.clone(),
            _ => {
                let began = old.is_some_and(|(judged, _)| judged.since == entry.since);
                let since = if began { entry.since } else { Moment::START.after(unix_now()) };
                Entry { until: state_of(now.until(entry.until)), since, ..entry.clone() }
            }
        }
    }

    fn keep(&self, ends: Moment, now: Moment) -> Duration {
        now.until(ends)
    }

    fn since(&self, _: &Entry, raw: &Entry, _: Moment) -> Option<Duration> {
        Some(Duration::from_nanos(raw.since.as_nanos()))
    }

    fn alone(&self, lease: Duration, _: Duration) -> (Moment, Moment) {
        (state_of(lease), Moment::START.after(unix_now()))
    }
}

/// Writes a span as a moment of a text.
fn state_of(span: Duration) -> Moment {
    Moment::START.after(span)
}

fn span_of(written: Moment) -> Duration {
    Duration::from_nanos(written.as_nanos())
}
