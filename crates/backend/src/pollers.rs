//! The claims that poll, and the number of requests of each.
//!
//! Ground rules: forgetting costs a few requests and nothing else, so the memory is bounded.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use leasehold_core::ClaimId;

/// The number of requests of each claim of this client that polls.
#[derive(Debug, Default)]
pub struct Pollers(Mutex<HashMap<ClaimId, u32>>);

impl Pollers {
    /// Returns how often the claim had asked before.
    pub fn count(&self, id: ClaimId) -> u32 {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MAX_POLLERS && !counts.contains_key(&id) {
            // A claim that is not remembered asks as seldom as one that has waited long.
            return u32::MAX;
        }
        let count = counts.entry(id).or_default();
        *count = count.saturating_add(1);
        *count - 1
    }

    /// Forgets a claim that holds, or has ended.
    pub fn forget(&self, id: ClaimId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

/// Claims whose requests are counted.
const MAX_POLLERS: usize = 100_000;
