//! Deterministic random numbers from a seed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A sequence of numbers that is determined by its seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(Arc<Mutex<u64>>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        let dice = Dice(Arc::new(Mutex::new(seed)));
        // Neighbouring seeds begin far apart.
        let begin = dice.next().wrapping_mul(0x2545_f491_4f6c_dd1d);
        Dice(Arc::new(Mutex::new(begin)))
    }

    /// Draws the seed of another sequence.
    pub(crate) fn split(&self) -> Dice {
        Dice::new(self.next())
    }

    pub(crate) fn next(&self) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number below `end`.
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.next() % end
    }

    /// Draws a number from `first` to `last`.
    pub(crate) fn between(&self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// Draws `true` in `chance` of a hundred cases.
    pub(crate) fn percent(&self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn one_of<T: Copy>(&self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Draws a time from `first` to `last` milliseconds.
    pub(crate) fn ms(&self, first: u64, last: u64) -> Duration {
        Duration::from_millis(self.between(first, last))
    }
}
