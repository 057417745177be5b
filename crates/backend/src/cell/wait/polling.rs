//! The claims that poll: the number of requests of each, and the time of its next one.
//!
//! Ground rules: forgetting costs a few requests and nothing else, so the memory is bounded.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, spread};

use crate::cell::wait::timing::{FIRST_POLL, HEAD_POLL, LAST_POLL, TICK};

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

/// Returns when to poll next: slower with each round, and not much later than the first of those ahead may
/// have ended.
pub fn pause(claim: &Claim, round: u32, first_end: Duration) -> Duration {
    let pause = FIRST_POLL.saturating_mul(1 << round.min(8)).min(LAST_POLL);
    spread(claim.id, pause, round).min(first_end.saturating_add(TICK)).max(TICK)
}

/// Returns a pause as [`pause`] does, for a claim with so many waiting before it: the next in the queue asks
/// again soon.
pub(crate) fn pause_in_queue(claim: &Claim, round: u32, before: u32, first_end: Duration) -> Duration {
    let longest = HEAD_POLL.saturating_mul(before.saturating_add(1));
    pause(claim, round, first_end.min(longest))
}

/// Claims whose pauses are remembered.
const MAX_POLLERS: usize = 100_000;
