//! The store's clock ends claims: the moments of a text are counted from the cell's origin, which is
//! [`ORIGIN`].

use std::time::Duration;

use leasehold_core::{DamagedLedger, Entry, Ledger, Moment, Resource};

use super::{Lifetime, unix_now};
use crate::cell::cells::Cell;
use crate::cell::state::observed_claims::ObservedClaims;

/// Moments of the store's clock.
#[derive(Debug)]
pub(super) struct StoreTime;

impl Lifetime for StoreTime {
    fn read_text(&self, text: &[u8]) -> Result<(Ledger, String), DamagedLedger> {
        Ledger::from_text(text)
    }

    fn write_text(&self, ledger: &Ledger, head: &str) -> String {
        ledger.to_text(head)
    }

    fn evaluate(&self, _: &Resource, cell: &Cell, _: &mut [Entry], _: &ObservedClaims, _: Moment) -> Moment {
        ORIGIN.after(cell.age.unwrap_or_default())
    }

    fn to_stored(&self, entry: &Entry, _: Option<&Entry>, _: Moment) -> Entry {
        entry.clone()
    }

    fn keep(&self, ends: Moment, _: Moment) -> Duration {
        ORIGIN.until(ends)
    }

    fn since(&self, entry: &Entry, _: &Entry, now: Moment) -> Option<Duration> {
        unix_now().checked_sub(now.since(entry.since))
    }

    fn alone(&self, lease: Duration, held_for: Duration) -> (Moment, Moment) {
        (ORIGIN.after(lease), ORIGIN.before(held_for))
    }
}

/// The origin of a cell in its text. Thirty years have room before it.
const ORIGIN: Moment = Moment::from_millis(1_000_000_000_000);
