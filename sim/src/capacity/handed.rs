//! Locks that go from process to process, and the order of those that wait.

use std::collections::VecDeque;

use crate::capacity::workload::Handing;

/// One such lock.
#[derive(Debug)]
pub struct HandedLock {
    /// Those that wait, in their order.
    order: VecDeque<u64>,
    /// The number of times that each has polled since it was queued.
    rounds: Vec<u32>,
    /// `true` between a release and the next grant.
    is_free: bool,
}

impl HandedLock {
    /// Creates a lock that the last of its parties holds, while all others wait.
    pub fn new(handing: &Handing) -> HandedLock {
        let parties = handing.waiters + 1;
        HandedLock {
            order: (0..handing.waiters).collect(),
            rounds: vec![5; parties as usize],
            is_free: false,
        }
    }

    /// Notes the release.
    pub fn free(&mut self) {
        self.is_free = true;
    }

    /// Takes the first of the queue, which is granted the lock.
    pub fn grant_first(&mut self) -> Option<u64> {
        self.is_free = false;
        self.order.pop_front()
    }

    /// Grants the lock to a party that looks, if it is free and this is the first. Returns `true` if so.
    pub fn grant(&mut self, party: u64) -> bool {
        let granted = self.is_free && self.order.front() == Some(&party);
        if granted {
            self.grant_first();
        }
        granted
    }

    /// Puts a party at the end of the queue.
    pub fn queue(&mut self, party: u64) {
        self.order.push_back(party);
        self.rounds[party as usize] = 0;
    }

    /// Returns the number of waiters before this one, and how often it has polled.
    pub fn poll(&mut self, party: u64) -> (u64, u32) {
        let round = self.rounds[party as usize];
        self.rounds[party as usize] += 1;
        (self.order.iter().take_while(|other| **other != party).count() as u64, round)
    }
}
