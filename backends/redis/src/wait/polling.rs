//! When a claim that polls asks again.
//!
//! The pauses grow while a claim waits, end with the first lease ahead, and differ from claim to claim,
//! so that claims that came together do not keep asking together.

use std::time::Duration;

use leasehold_core::{ClaimId, SILENT_AFTER, doubled, spread};

/// Returns how long a claim, which has asked `round` times before, leaves the server alone, where the first
/// claim ahead ends after `first_end`.
pub(crate) fn pause(id: ClaimId, round: u32, first_end: Duration) -> Duration {
    spread(id, doubled(FIRST_POLL, LAST_POLL, round), round).min(first_end.saturating_add(TICK))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_end_with_the_first_lease_ahead() {
        let (id, long) = (ClaimId::from_bytes([7; 16]), Duration::from_secs(60));
        let pauses: Vec<Duration> = (0..12).map(|round| pause(id, round, long)).collect();
        assert!(pauses[0] <= FIRST_POLL && pauses[0] >= FIRST_POLL * 3 / 4, "{pauses:?}");
        assert!(pauses[11] <= LAST_POLL && pauses[11] >= LAST_POLL * 3 / 4, "{pauses:?}");
        assert_eq!(pause(id, 12, Duration::from_millis(30)), Duration::from_millis(32));
    }
}
