//! Random numbers of a seed: equal on every machine and in every release.

use std::time::{SystemTime, UNIX_EPOCH};

/// Sebastiano Vigna's SplitMix64.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, 0 where that is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        // Slightly uneven, which does not matter here.
        usize::try_from(self.next() % (end.max(1) as u64)).unwrap_or(0)
    }

    /// Returns one of several.
    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }
}

/// Returns a seed that differs from run to run.
pub(crate) fn of_the_clock() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Random::new(passed.as_secs() ^ u64::from(passed.subsec_nanos()).rotate_left(32)).next()
}
