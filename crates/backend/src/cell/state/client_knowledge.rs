//! The knowledge of one client of its cells, which the answers to direct requests share with the backend.

use leasehold_core::{Claim, Fence, Moment};

use crate::cell::cells::ClockSource;
use crate::cell::state::decoded;
use crate::cell::state::observed_claims::ObservedClaims;
use crate::cell::state::owned_cells::{Alone, OwnedCells};

/// The cells that this client owns, and the claims that it has seen.
#[derive(Debug, Default)]
pub(crate) struct ClientKnowledge {
    pub(crate) owned_cells: OwnedCells,
    pub(crate) observed: ObservedClaims,
}

impl ClientKnowledge {
    /// Records that a claim was put into a cell without claims, with this fence. `alone` is the state of the cell, if it
    /// is known, and `now` a moment after the answer had arrived.
    pub(crate) fn record_taken(
        &self,
        claim: &Claim,
        fence: Fence,
        alone: Option<Alone>,
        clock_source: ClockSource,
        now: Moment,
    ) {
        if clock_source == ClockSource::Observer {
            // The claim's own span begins now for this observer, too.
            let entry = decoded::alone_in_cell(claim, fence, std::time::Duration::ZERO, clock_source);
            self.observed.observe(&claim.resource, &[entry], now);
        }
        if let Some(alone) = alone {
            self.owned_cells.remember(claim.id, alone, now);
        }
    }
}
