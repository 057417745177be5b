//! The waiters of one process that are looked for together: `backends/redis/src/wait/keepalive.rs`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::capacity::dice::Dice;
use crate::capacity::rules::{GLANCE_AHEAD, GLANCE_MAX, REFRESH, spread};

/// The waiters of one process, each with the time of its next look.
#[derive(Debug, Default)]
pub struct Watching {
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// The pause of each waiter, which stays the same for as long as it waits.
    pauses: Vec<u64>,
}

impl Watching {
    /// Adds a waiter that has waited for some time.
    pub fn add(&mut self, dice: &mut Dice) {
        let pause = spread(REFRESH, dice);
        self.due.push(Reverse((dice.below(pause), self.pauses.len())));
        self.pauses.push(pause);
    }

    /// Returns the time of the next look.
    pub fn next(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// Takes the waiters of one look, and plans their next. Returns their number.
    pub fn take(&mut self, now: u64) -> u64 {
        let mut taken = Vec::new();
        while (taken.len() as u64) < GLANCE_MAX
            && let Some(Reverse((due, waiter))) = self.due.peek().copied()
            && due <= now + GLANCE_AHEAD
        {
            self.due.pop();
            taken.push(waiter);
        }
        let count = taken.len() as u64;
        self.due.extend(taken.into_iter().map(|waiter| Reverse((now + self.pauses[waiter], waiter))));
        count
    }
}
