//! The guard of a request for a claim.

use std::sync::Arc;

use leasehold_core::Claim;

use crate::engine::Engine;

/// A guard of a claim that is being requested. If the request ends abnormally, the claim is abandoned.
pub(super) struct Attempt<'a> {
    engine: &'a Arc<Engine>,
    claim: Option<&'a Claim>,
}

impl<'a> Attempt<'a> {
    pub(super) fn of(engine: &'a Arc<Engine>, claim: &'a Claim) -> Self {
        Attempt { engine, claim: Some(claim) }
    }

    /// Disarms the guard, because the request has ended normally.
    pub(super) fn over<T>(mut self, outcome: T) -> T {
        self.claim = None;
        outcome
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            self.engine.reaper.abandon(claim.clone());
        }
    }
}
