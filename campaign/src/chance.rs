//! Numbers that follow from a seed, so that a repeated run has the same schedule of faults.

use std::time::Duration;

/// A stream of numbers that follows from a seed and a name.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Begins the stream of this seed for this purpose: streams of other purposes do not depend on it.
    pub fn seeded(seed: u64, purpose: &str) -> Chance {
        let start =
            purpose.bytes().fold(seed ^ OFFSET, |state, byte| (state ^ u64::from(byte)).wrapping_mul(PRIME));
        Chance(start)
    }

    /// Returns the next number (SplitMix64).
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a time from `least` up to `most`.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX);
        least + Duration::from_micros(self.draw() % span.saturating_add(1).max(1))
    }
}

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_follow_from_seed_and_purpose() {
        let first = |seed, purpose| Chance::seeded(seed, purpose).draw();
        assert_eq!(first(1, "redis-F1"), first(1, "redis-F1"));
        assert_ne!(first(1, "redis-F1"), first(2, "redis-F1"));
        assert_ne!(first(1, "redis-F1"), first(1, "redis-F2"));
    }

    #[test]
    fn times_lie_between_their_ends() {
        let (least, most) = (Duration::from_millis(5), Duration::from_millis(9));
        let mut chance = Chance::seeded(7, "times");
        for _ in 0..1_000 {
            assert!((least..=most).contains(&chance.between(least, most)));
        }
        assert_eq!(chance.between(least, least), least);
    }
}
