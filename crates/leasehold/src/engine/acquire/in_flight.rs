//! The claims of direct requests that are not answered yet.
//!
//! Ground rules: what takes a claim out of here decides whether it is used or released. The caller takes it with the
//! answer, the guard of the request if the caller leaves, and the client if it closes. So closing need not wait for a
//! caller that is not polled, and no claim is used that closing has released.

use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::{Claim, ClaimId};

use crate::random::IdMap;

/// The claims by their ids.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<IdMap<Claim>>);

impl InFlight {
    /// Enters a claim before its request is sent.
    pub(super) fn enter(&self, claim: Claim) {
        self.claims().insert(claim.id, claim);
    }

    /// Takes a claim out; `None` if another has done so.
    pub(super) fn take(&self, id: ClaimId) -> Option<Claim> {
        self.claims().remove(&id)
    }

    /// Takes all claims out.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Claim> {
        std::mem::take(&mut *self.claims()).into_values()
    }

    fn claims(&self) -> MutexGuard<'_, IdMap<Claim>> {
        // Each change is one call of the map, so a panic cannot leave it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
