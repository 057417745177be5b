//! The clock that ends claims, as two strategies that read the life of a claim from a text and write it.
//!
//! Ground rules: neither knows the other, and no other code calculates with what a text says of a claim's
//! end.

use std::fmt::Debug;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_core::{DamagedLedger, Entry, Ledger, Moment, Resource};

use crate::cell::cells::{Cell, ClockSource};
use crate::cell::state::observed_claims::ObservedClaims;

mod observer_time;
mod store_time;

use observer_time::ObserverTime;
use store_time::StoreTime;

/// Strategy for the life of a claim in a text.
pub(crate) trait Lifetime: Debug + Send + Sync {
    /// Reads a text, with the claims as they are in it.
    fn read_text(&self, text: &[u8]) -> Result<(Ledger, String), DamagedLedger>;

    /// Writes a text, with the claims as [`Lifetime::to_stored`] made them.
    fn write_text(&self, ledger: &Ledger, head: &str) -> String;

    /// Evaluates the claims of a text: sets the end of each by the clock that ends claims, and returns the present by
    /// that clock. `local_now` is the local clock after the cell had arrived.
    fn evaluate(
        &self,
        at: &Resource,
        cell: &Cell,
        entries: &mut [Entry],
        observed: &ObservedClaims,
        local_now: Moment,
    ) -> Moment;

    /// Makes the claim as it is to be in the text. `old` is the same claim as it was read, with its end set.
    fn to_stored(&self, entry: &Entry, old: Option<&Entry>, now: Moment) -> Entry;

    /// Calculates how long a text matters whose last claim ends at `ends`.
    fn keep(&self, ends: Moment, now: Moment) -> Duration;

    /// Returns when a claim arrived, by the wall clock, for display only. `raw` is the claim as the text had
    /// it.
    fn since(&self, entry: &Entry, raw: &Entry, now: Moment) -> Option<Duration>;

    /// Makes end and beginning in the text of a claim that is alone in its cell, from the write on.
    fn alone(&self, lease: Duration, held_for: Duration) -> (Moment, Moment);
}

impl ClockSource {
    /// Chooses the strategy of this kind.
    pub(crate) fn lifetime(self) -> &'static dyn Lifetime {
        match self {
            ClockSource::Store => &StoreTime,
            ClockSource::Observer => &ObserverTime,
        }
    }
}

fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
