//! The waiters of the simulation, the free locks that are taken, and the locks that go from process to process.

use std::collections::HashMap;

use super::{Event, Origin, World, mixed};
use crate::capacity::rules::{REFRESH, SECOND, poll_pause, spread};
use crate::capacity::server::Kind;
use crate::capacity::stores::Waiting;

impl World<'_> {
    pub(super) fn cycle(&mut self) {
        let now = self.events.now();
        let shard = self.dice.below(self.load.shards) as usize;
        self.send(shard, Kind::Acquire, self.store.costs.cycle / 2.0, Origin::Taken(now));
        let next = now + self.dice.exponential(SECOND as f64 / self.load.cycles);
        self.events.plan(next, Event::Cycle);
    }

    pub(super) fn plan_glance(&mut self, process: usize) {
        if let Some(next) = self.watching[process].next() {
            self.events.plan(next, Event::Glance(process));
        }
    }

    pub(super) fn glance(&mut self, process: usize) {
        let mut left = self.watching[process].take(self.events.now());
        let places = self.store.slots.unwrap_or(1).max(self.load.shards);
        let mut sizes = HashMap::<u64, u64>::new();
        while left > 0 {
            *sizes.entry(self.dice.below(places)).or_default() += 1;
            left -= 1;
        }
        let mut sizes: Vec<(u64, u64)> = sizes.into_iter().collect();
        sizes.sort_unstable();
        for (place, size) in sizes {
            let micros = self.store.costs.request + size as f64 * self.store.costs.look;
            self.send((place % self.load.shards) as usize, Kind::Look, micros, Origin::Nobody);
        }
        self.plan_glance(process);
    }

    pub(super) fn look(&mut self, waiter: u64) {
        let shard = (waiter % self.load.shards) as usize;
        let (requests, pause) = match self.store.waiting {
            Waiting::Looks(requests) => (requests, spread(REFRESH, &mut self.dice)),
            _ => (1, poll_pause(u32::MAX, waiter % self.load.waiters_each, &mut self.dice)),
        };
        for _ in 0..requests {
            self.send(shard, Kind::Look, self.store.costs.look, Origin::Nobody);
        }
        self.events.plan(self.events.now() + pause, Event::Look(waiter));
    }

    /// Sends a sign of life to each server where the process has a waiter.
    pub(super) fn show_alive(&mut self, process: u64) {
        let Waiting::KeptAlive(every) = self.store.waiting else { return };
        let here = self.load.waiters / self.load.processes.min(self.load.waiters);
        let mut shards: Vec<u64> =
            (0..here).map(|waiter| mixed(process * 1_000_003 + waiter, 4) % self.load.shards).collect();
        shards.sort_unstable();
        shards.dedup();
        for shard in shards {
            self.send(shard as usize, Kind::Look, self.store.costs.look, Origin::Nobody);
        }
        self.events.plan(self.events.now() + every, Event::Alive(process));
    }

    /// Returns the cost of one part of a hand-over, in microseconds.
    pub(super) fn hand_over_part(&self) -> f64 {
        let parts = if self.store.waiting == Waiting::Polls { 3 } else { 4 };
        self.store.costs.hand_over / (parts + self.store.hand_over_extra) as f64
    }

    pub(super) fn hand(&mut self, kind: Kind, origin: Origin) {
        let (Origin::Left(queue, _) | Origin::Granted(queue, _)) = origin else { return };
        let cost = self.hand_over_part();
        self.send(queue % self.servers.len(), kind, cost, origin);
    }

    /// Queues a party again that has released, for its next turn.
    pub(super) fn queue_again(&mut self, queue: usize, party: u64) {
        self.handed[queue].queue(party);
        let (shard, cost) = (queue % self.servers.len(), self.hand_over_part());
        self.send(shard, Kind::QueueUp, cost, Origin::Nobody);
        for _ in 0..self.store.hand_over_extra {
            self.send(shard, Kind::Look, cost, Origin::Nobody);
        }
        if self.store.waiting == Waiting::Polls {
            self.plan_poll(queue, party);
        }
    }

    pub(super) fn plan_poll(&mut self, queue: usize, party: u64) {
        let (before, round) = self.handed[queue].poll(party);
        let pause = poll_pause(round, before, &mut self.dice);
        self.events.plan(self.events.now() + pause, Event::Poll(queue, party));
    }
}
