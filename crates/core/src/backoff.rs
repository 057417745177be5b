//! Pauses between attempts, spread so that clients do not repeat their requests in step.
//!
//! Chance comes in as a number, as time does: see the ground rules of this crate. The caller draws it anew
//! for each pause; `u32::MAX` gives the whole pause, which is correct where no random numbers exist.

use std::time::Duration;

use crate::ClaimId;

/// Pauses between attempts that fail: they double from the first to the longest.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates pauses from `first` to `longest`; nothing has failed yet.
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, failures: 0 }
    }

    /// Counts a failed attempt. Returns the pause before the next one, see [`jittered`].
    pub fn failed(&mut self, chance: u32) -> Duration {
        let pause = doubled(self.first, self.longest, self.failures);
        self.failures = self.failures.saturating_add(1);
        jittered(pause, chance)
    }

    /// Forgets all failures: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Returns `first`, doubled so many times, and not more than `longest`.
pub fn doubled(first: Duration, longest: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.min(MAX_DOUBLINGS)).min(longest)
}

/// Returns a pause between half of `pause` and the whole.
pub fn jittered(pause: Duration, chance: u32) -> Duration {
    pause / 2 + part_of(pause / 2, chance)
}

/// Returns a pause between zero and `pause`.
pub fn part_of(pause: Duration, chance: u32) -> Duration {
    pause.mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

/// Returns three to four quarters of `pause`, another part for each claim and round, so that claims that
/// arrive together do not continue to ask together. Draws nothing: the id of the claim is random.
pub fn spread(id: ClaimId, pause: Duration, round: u32) -> Duration {
    let [a, b, c, d, ..] = *id.as_bytes();
    let mixed =
        (u32::from_be_bytes([a, b, c, d]) ^ round.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0x9e37_79b1);
    pause * 3 / 4 + part_of(pause / 4, mixed)
}

const MAX_DOUBLINGS: u32 = 16;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_the_longest_until_a_reset() {
        let mut backoff = Backoff::new(50 * MS, 1_000 * MS);
        for whole in [50, 100, 200, 400, 800, 1_000, 1_000, 1_000] {
            let (mut least, mut most) = (backoff.clone(), backoff.clone());
            assert_eq!((least.failed(0), most.failed(u32::MAX)), (whole * MS / 2, whole * MS));
            backoff.failed(7);
        }
        backoff.reset();
        assert_eq!(backoff.failed(u32::MAX), 50 * MS);
    }

    #[test]
    fn doubling_ends_at_the_longest() {
        let pauses: Vec<_> = [0, 1, 3, 4, 40, u32::MAX].map(|times| doubled(MS, 9 * MS, times)).into();
        assert_eq!(pauses, [MS, 2 * MS, 8 * MS, 9 * MS, 9 * MS, 9 * MS]);
        assert_eq!(doubled(Duration::MAX / 3, Duration::MAX, u32::MAX), Duration::MAX);
    }

    #[test]
    fn many_failures_do_not_overflow() {
        let mut backoff = Backoff::new(Duration::MAX / 3, Duration::MAX);
        for chance in (0..100).chain([u32::MAX]) {
            backoff.failed(chance);
        }
    }

    #[test]
    fn claims_and_rounds_pause_for_different_parts() {
        let pauses = (0..=255).flat_map(|byte| {
            let id = ClaimId::from_bytes([byte; 16]);
            (0..4).map(move |round| spread(id, 1_000 * MS, round))
        });
        let pauses: BTreeSet<_> = pauses.collect();
        assert!(pauses.len() > 1_000, "{} of 1024", pauses.len());
        assert!(pauses.iter().all(|pause| (750 * MS..=1_000 * MS).contains(pause)), "{pauses:?}");
    }
}
