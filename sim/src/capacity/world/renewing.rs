//! The renewals of the simulation: turns of processes, batches, and what is overdue.

use std::collections::HashMap;

use super::{Batch, Event, Origin, World, mixed};
use crate::capacity::rules::{OPEN_MAX, jittered, retry_pause};
use crate::capacity::server::Kind;

impl World<'_> {
    pub(super) fn turn(&mut self, process: u64, due: u64) {
        let locks = self.held.take_due(process, due);
        let mut by_shard: Vec<Vec<u64>> = vec![Vec::new(); self.servers.len()];
        for lock in locks {
            by_shard[self.shard_of(lock)].push(lock);
        }
        for (shard, locks) in by_shard.into_iter().enumerate() {
            self.renew(shard, locks, 0);
        }
    }

    /// Sends the renewals of these locks of one process to one server.
    fn renew(&mut self, shard: usize, locks: Vec<u64>, failures: u32) {
        if locks.is_empty() {
            return;
        }
        self.last_batch += 1;
        let (number, now) = (self.last_batch, self.events.now());
        self.held.sent(&locks, number);
        let sizes = self.request_sizes(&locks);
        for (nth, size) in sizes.iter().enumerate() {
            let costs = &self.store.costs;
            let request = if nth == 0 { costs.request } else { costs.further };
            let micros = request + *size as f64 * costs.renew;
            self.send(shard, Kind::Renew, micros, Origin::Batch(number));
        }
        let pause = retry_pause(self.held.ttl(), failures, failures as usize + 1);
        let check = now + jittered(pause, &mut self.dice);
        self.events.plan(check, Event::Check(number));
        self.batches.insert(number, Batch { locks, asked_at: now, shard, open: sizes.len(), failures });
    }

    /// Returns the number of claims of each request: of renewals, and of what is sent beside them.
    fn request_sizes(&self, locks: &[u64]) -> Vec<u64> {
        let mut sizes = Vec::new();
        // The locks of a client are spread over its sessions.
        let sessions = self
            .store
            .session_claims
            .map_or(1, |claims| self.load.held.div_ceil(self.load.processes).div_ceil(claims).max(1));
        for session in 0..sessions {
            let here: Vec<u64> = match sessions {
                1 => locks.to_vec(),
                _ => locks.iter().copied().filter(|lock| mixed(*lock, 3) % sessions == session).collect(),
            };
            for batch in here.chunks(self.store.batch_max as usize) {
                let mut by_slot = HashMap::<u64, u64>::new();
                for lock in batch {
                    *by_slot
                        .entry(self.store.slots.map_or(0, |slots| mixed(*lock, 1) % slots))
                        .or_default() += 1;
                }
                let mut here: Vec<u64> = by_slot.into_values().collect();
                // The order in a map is not the same in each run.
                here.sort_unstable();
                sizes.extend(here);
            }
            if !here.is_empty() {
                sizes.extend((0..self.store.beside).map(|_| 0));
            }
        }
        sizes
    }

    fn shard_of(&self, lock: u64) -> usize {
        let place = self.store.slots.map_or_else(|| mixed(lock, 2), |slots| mixed(lock, 1) % slots);
        (place % self.load.shards) as usize
    }

    pub(super) fn batch_answered(&mut self, number: u64) {
        let Some(batch) = self.batches.get_mut(&number) else { return };
        batch.open -= 1;
        if batch.open > 0 {
            return;
        }
        let Some(batch) = self.batches.remove(&number) else { return };
        for (process, due) in self.held.confirm(&batch.locks, batch.asked_at, self.events.now()) {
            self.events.plan(due, Event::Turn(process, due));
        }
    }

    /// Asks again for the locks of a batch whose answer is overdue.
    pub(super) fn check(&mut self, number: u64) {
        let Some(batch) = self.batches.get(&number) else { return };
        let (shard, failures) = (batch.shard, batch.failures);
        let waiting = self.held.overdue(&batch.locks, number, self.events.now());
        if (failures as usize) < OPEN_MAX {
            self.renew(shard, waiting, failures + 1);
        }
    }
}
