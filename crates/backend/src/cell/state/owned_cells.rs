//! Which cells this client holds alone, and in which state it left them: what lets a release, or a renewal,
//! swap without reading first.
//!
//! Ground rules: this is a guess that the condition of the swap proves or refutes. Forgetting costs one read.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use leasehold_core::{ClaimId, Fence, Moment};

/// The memory of one client.
#[derive(Debug, Default)]
pub(crate) struct OwnedCells(Mutex<HashMap<ClaimId, Alone>>);

/// A cell that has this one claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone {
    /// The state of the cell.
    pub(crate) version: u64,
    /// `true` if the claim waited for others, so that others have probably joined it meanwhile.
    pub(crate) is_contested: bool,
    /// The claim's fence.
    pub(crate) fence: Fence,
    /// The last fence of the cell, under the epoch that the store was in.
    pub(crate) last: Fence,
    /// The moment of the grant, by the local clock.
    pub(crate) since: Moment,
    /// Until when it surely lasts, by the local clock.
    pub(crate) until: Moment,
}

impl OwnedCells {
    pub(crate) fn remember(&self, id: ClaimId, alone: Alone) {
        let mut mine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if mine.len() >= MAX_CLAIMS && !mine.contains_key(&id) {
            return;
        }
        mine.insert(id, alone);
    }

    pub(crate) fn recall(&self, id: ClaimId) -> Option<Alone> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied()
    }

    /// Returns `true` if many claims are held, of which many may end together.
    pub(crate) fn are_many(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() > MANY
    }

    pub(crate) fn forget(&self, id: ClaimId) -> Option<Alone> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }
}

const MANY: usize = 64;
/// Claims that are remembered.
const MAX_CLAIMS: usize = 200_000;
