//! When a claim that polls asks again.
//!
//! The pauses grow while a claim waits, end with the first lease ahead, and differ from claim to claim,
//! so that claims that came together do not keep asking together.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{ClaimId, SILENT_AFTER, spread};

/// The number of requests of each claim of this client that polls.
#[derive(Debug, Default)]
pub(crate) struct Pollers(Mutex<HashMap<ClaimId, u32>>);

impl Pollers {
    /// Returns how long the claim, which asked just now, leaves the server alone, where the first claim
    /// ahead ends after `first_end`.
    pub(crate) fn pause(&self, id: ClaimId, first_end: Duration) -> Duration {
        let round = self.count(id);
        let pause = FIRST_POLL.saturating_mul(1 << round.min(8)).min(LAST_POLL);
        spread(id, pause, round).min(first_end.saturating_add(TICK))
    }

    /// Forgets a claim that holds, or has ended.
    pub(crate) fn forget(&self, id: ClaimId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Returns how often the claim had asked before.
    fn count(&self, id: ClaimId) -> u32 {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MAX_POLLERS && !counts.contains_key(&id) {
            // A claim that is not remembered asks as seldom as one that has waited long.
            return u32::MAX;
        }
        let count = counts.entry(id).or_default();
        *count = count.saturating_add(1);
        *count - 1
    }
}

/// Returns the short name of a claim, by which it is called.
pub(crate) fn address(id: ClaimId) -> u32 {
    let [a, b, c, d, ..] = *id.as_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// The server counts in milliseconds; a look in the very millisecond of an end is one too early.
pub(crate) const TICK: Duration = Duration::from_millis(2);

/// The longest pause. One that lives answers a call within it.
pub(crate) const LAST_POLL: Duration = SILENT_AFTER;

const FIRST_POLL: Duration = Duration::from_millis(25);

/// Claims whose pauses are remembered.
const MAX_POLLERS: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_end_with_the_first_lease_ahead() {
        let (pollers, id, long) = (Pollers::default(), ClaimId::from_bytes([7; 16]), Duration::from_secs(60));
        let pauses: Vec<Duration> = (0..12).map(|_| pollers.pause(id, long)).collect();
        assert!(pauses[0] <= FIRST_POLL && pauses[0] >= FIRST_POLL * 3 / 4, "{pauses:?}");
        assert!(pauses[11] <= LAST_POLL && pauses[11] >= LAST_POLL * 3 / 4, "{pauses:?}");
        assert_eq!(pollers.pause(id, Duration::from_millis(30)), Duration::from_millis(32));
        pollers.forget(id);
        assert!(pollers.pause(id, long) <= FIRST_POLL);
    }
}
