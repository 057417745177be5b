//! Chance from a seed: SplitMix64, so that a run can be repeated.

/// A source of numbers that depend on its seed alone.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates a source with this seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a part of one: at least zero, and less than one.
    pub fn part(&mut self) -> f64 {
        // 53 bits are what a fraction of this type has.
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number below `end`, and zero if that is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        ((self.part() * end as f64) as u64).min(end.saturating_sub(1))
    }

    /// Returns the time until the next of events that come independently of each other.
    pub fn exponential(&mut self, mean: f64) -> u64 {
        (-(1.0 - self.part()).ln() * mean) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_sequence_with_the_means_that_it_should_have() {
        let (mut one, mut other) = (Dice::new(7), Dice::new(7));
        let count = 100_000;
        let (mut parts, mut waits) = (0.0, 0.0);
        for _ in 0..count {
            let part = one.part();
            assert_eq!(part, other.part());
            parts += part;
            waits += one.exponential(1_000.0) as f64;
            other.exponential(1_000.0);
        }
        assert!((parts / f64::from(count) - 0.5).abs() < 0.01);
        assert!((waits / f64::from(count) - 1_000.0).abs() < 20.0);
        assert!((0..1_000).all(|_| one.below(3) < 3) && one.below(0) == 0);
    }
}
