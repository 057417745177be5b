//! The leases that are being opened.

use super::LeaseTable;
use crate::net::error::Refusal;
use crate::state::lease::Purpose;

/// The openings of leases of one purpose.
#[derive(Debug, Default)]
pub(super) struct Openings {
    /// The number of those that are under way.
    pub(super) under_way: usize,
    /// The number of those that failed so far.
    pub(super) failed: u64,
    last_refusal: Option<Refusal>,
}

impl LeaseTable {
    /// Records that an opening is over.
    pub(crate) fn opening_ended(&mut self, purpose: Purpose) {
        if let Some(openings) = self.openings.get_mut(&purpose) {
            openings.under_way = openings.under_way.saturating_sub(1);
        }
    }

    /// Records that no lease was opened, for all that wait for it.
    pub(crate) fn opening_failed(&mut self, purpose: Purpose, refusal: Refusal) {
        let openings = self.openings.entry(purpose).or_default();
        (openings.failed, openings.last_refusal) = (openings.failed + 1, Some(refusal));
    }

    /// Returns why a lease was not opened; `None` if no more than `before` openings have failed.
    pub(crate) fn opening_refusal(&self, purpose: Purpose, before: u64) -> Option<Refusal> {
        let openings = self.openings.get(&purpose).filter(|openings| openings.failed > before)?;
        openings.last_refusal.clone()
    }
}
