//! When a claim that polls asks again.

use std::time::Duration;

use leasehold_core::{Claim, doubled, spread};

use crate::cell::wait::timing::{FIRST_POLL, HEAD_POLL, LAST_POLL, TICK};

/// Returns when to poll next: slower with each round, and not much later than the first of those ahead may
/// have ended.
pub fn pause(claim: &Claim, round: u32, first_end: Duration) -> Duration {
    let pause = doubled(FIRST_POLL, LAST_POLL, round);
    spread(claim.id, pause, round).min(first_end.saturating_add(TICK)).max(TICK)
}

/// Returns a pause as [`pause`] does, for a claim with so many waiting before it: the next in the queue asks
/// again soon.
pub(crate) fn pause_in_queue(claim: &Claim, round: u32, before: u32, first_end: Duration) -> Duration {
    let longest = HEAD_POLL.saturating_mul(before.saturating_add(1));
    pause(claim, round, first_end.min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{ClaimId, Resource, SILENT_AFTER, Share};

    #[test]
    fn claim_in_a_queue_is_never_silent_for_as_long_as_a_dead_one() {
        let resource = Resource::new("job").unwrap();
        let claim = Claim::new(ClaimId::from_bytes([7; 16]), resource, Share::MUTEX, Duration::from_secs(60));
        for round in 0..64 {
            for before in [0, 1, 3, 1_000] {
                let pause = pause_in_queue(&claim, round, before, Duration::MAX);
                assert!(pause <= SILENT_AFTER, "round {round}, {before} before it: {pause:?}");
            }
            let next = pause_in_queue(&claim, round, 0, Duration::MAX);
            assert!(next <= HEAD_POLL + TICK, "round {round}: {next:?}");
        }
    }
}
