//! The simulation: every process, every lock, every request, in virtual time.
//!
//! The load runs for two periods of renewals before anything is counted.

mod renewing;
mod waiting;

use std::collections::HashMap;

use crate::capacity::dice::Dice;
use crate::capacity::events::EventHeap;
use crate::capacity::figures::Figures;
use crate::capacity::handed::HandedLock;
use crate::capacity::process::{HeldCounts, HeldLocks};
use crate::capacity::rules::{LAST_POLL, REFRESH, SECOND};
use crate::capacity::server::{Kind, Request, ServerQueue};
use crate::capacity::stores::{StoreModel, Waiting};
use crate::capacity::watching::Watching;
use crate::capacity::workload::Workload;

/// The counts of a simulation.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// The rates.
    pub figures: Figures,
    /// The time from a request for a free lock to its grant, in microseconds: the median, and the 99th of a
    /// hundred.
    pub acquire: (u64, u64),
    /// Renewals, with all suspects and losses from the beginning.
    pub held: HeldCounts,
    /// The longest queue of requests at a server.
    pub longest_queue: usize,
}

/// Simulates this load, and counts for so many nanoseconds.
pub fn simulate(store: &StoreModel, load: &Workload, length: u64, seed: u64) -> Simulated {
    let mut world = World::new(store, load, seed);
    world.begin();
    // Twice the time between two renewals, and no less than waiters need to get out of step.
    let warm = (store.paced(load.ttl) * 2 / 3).max(2 * REFRESH);
    world.run(warm);
    world.reset();
    world.run(warm + length);
    world.simulated(length)
}

#[derive(Clone, Copy, Debug)]
enum Origin {
    Nobody,
    /// A batch of renewals.
    Batch(u64),
    /// The acquire of a free lock, asked for at this time.
    Taken(u64),
    /// A party of a lock that goes from process to process has released it.
    Left(usize, u64),
    /// Such a lock has to be given to the next.
    Called(usize, u64),
    Granted(usize, u64),
    /// A waiter polls for it.
    Polled(usize, u64),
}

#[derive(Debug)]
enum Event {
    Turn(u64, u64),
    /// An answer to a batch may be overdue.
    Check(u64),
    Arrive(usize, Request<Origin>),
    Served(usize, Request<Origin>),
    Synced(usize),
    Answer(Origin),
    Cycle,
    /// A process looks for its waiters.
    Glance(usize),
    /// A waiter looks by itself.
    Look(u64),
    /// A process shows that it lives.
    Alive(u64),
    HoldEnd(usize, u64),
    Poll(usize, u64),
}

/// A batch of renewals under way.
#[derive(Debug)]
struct Batch {
    locks: Vec<u64>,
    asked_at: u64,
    shard: usize,
    /// Requests of it that are not answered.
    open: usize,
    /// The number of times that these locks were asked for before.
    failures: u32,
}

struct World<'a> {
    store: &'a StoreModel,
    load: &'a Workload,
    events: EventHeap<Event>,
    dice: Dice,
    servers: Vec<ServerQueue<Origin>>,
    held: HeldLocks,
    batches: HashMap<u64, Batch>,
    last_batch: u64,
    watching: Vec<Watching>,
    handed: Vec<HandedLock>,
    hand_overs: u64,
    acquires: Vec<u64>,
}

impl<'a> World<'a> {
    fn new(store: &'a StoreModel, load: &'a Workload, seed: u64) -> World<'a> {
        let mut dice = Dice::new(seed);
        World {
            store,
            load,
            events: EventHeap::default(),
            servers: (0..load.shards).map(|_| ServerQueue::new(store.cores(load.cores))).collect(),
            held: HeldLocks::new(store, load, &mut dice),
            dice,
            batches: HashMap::new(),
            last_batch: 0,
            watching: Vec::new(),
            handed: (0..load.handing.queues).map(|_| HandedLock::new(&load.handing)).collect(),
            hand_overs: 0,
            acquires: Vec::new(),
        }
    }

    /// Plans the first event of everything.
    fn begin(&mut self) {
        for (process, due) in self.held.begin() {
            self.events.plan(due, Event::Turn(process, due));
        }
        if self.load.cycles > 0.0 {
            self.events.plan(0, Event::Cycle);
        }
        self.begin_waiting();
        for queue in 0..self.handed.len() {
            let at = self.dice.below(self.load.handing.hold);
            self.events.plan(at, Event::HoldEnd(queue, self.load.handing.waiters));
            if self.store.waiting == Waiting::Polls {
                (0..self.load.handing.waiters).for_each(|party| self.plan_poll(queue, party));
            }
        }
    }

    fn begin_waiting(&mut self) {
        let waiting_processes = self.load.processes.min(self.load.waiters);
        match self.store.waiting {
            Waiting::Glances => {
                self.watching = (0..waiting_processes).map(|_| Watching::default()).collect();
                for waiter in 0..self.load.waiters {
                    self.watching[(waiter % waiting_processes) as usize].add(&mut self.dice);
                }
                (0..self.watching.len()).for_each(|process| self.plan_glance(process));
            }
            Waiting::Looks(_) => {
                for waiter in 0..self.load.waiters {
                    let at = self.dice.below(REFRESH);
                    self.events.plan(at, Event::Look(waiter));
                }
            }
            Waiting::Polls => {
                for waiter in 0..self.load.waiters {
                    let at = self.dice.below(LAST_POLL);
                    self.events.plan(at, Event::Look(waiter));
                }
            }
            Waiting::KeptAlive(every) => {
                for process in 0..waiting_processes {
                    let at = self.dice.below(every);
                    self.events.plan(at, Event::Alive(process));
                }
            }
        }
    }

    fn run(&mut self, end: u64) {
        while let Some(event) = self.events.take(end) {
            match event {
                Event::Turn(process, due) => self.turn(process, due),
                Event::Check(batch) => self.check(batch),
                Event::Arrive(shard, request) => self.arrive(shard, request),
                Event::Served(shard, request) => self.served(shard, request),
                Event::Synced(shard) => self.synced(shard),
                Event::Answer(origin) => self.answered(origin),
                Event::Cycle => self.cycle(),
                Event::Glance(process) => self.glance(process),
                Event::Look(waiter) => self.look(waiter),
                Event::Alive(process) => self.show_alive(process),
                Event::HoldEnd(queue, party) => self.hand(Kind::Release, Origin::Left(queue, party)),
                Event::Poll(queue, party) => {
                    let shard = queue % self.servers.len();
                    self.send(shard, Kind::Look, self.store.costs.look, Origin::Polled(queue, party));
                }
            }
        }
    }

    /// Begins to count.
    fn reset(&mut self) {
        self.servers.iter_mut().for_each(ServerQueue::reset);
        self.held.counts.renewals = 0;
        self.hand_overs = 0;
        self.acquires.clear();
    }

    fn simulated(mut self, length: u64) -> Simulated {
        let seconds = length as f64 / SECOND as f64;
        let sum = |of: &dyn Fn(&ServerQueue<Origin>) -> u64| {
            self.servers.iter().map(of).sum::<u64>() as f64 / seconds
        };
        let kind = |kind: Kind| sum(&|server| server.counts.requests[kind as usize]);
        let all = sum(&|server| server.counts.requests.iter().sum());
        let figures = Figures {
            renewals: self.held.counts.renewals as f64 / seconds,
            renew_requests: kind(Kind::Renew),
            looks: if self.handed.is_empty() { kind(Kind::Look) } else { 0.0 },
            hand_overs: self.hand_overs as f64 / seconds,
            requests: all - kind(Kind::Wake),
            cores: sum(&|server| server.counts.used) / SECOND as f64,
            syncs: sum(&|server| server.counts.syncs),
        };
        self.acquires.sort_unstable();
        let at = |hundredth: usize| {
            self.acquires.get(self.acquires.len() * hundredth / 100).map_or(0, |nanos| nanos / 1_000)
        };
        Simulated {
            acquire: (at(50), at(99)),
            held: self.held.counts,
            longest_queue: self.servers.iter().map(|server| server.counts.longest).max().unwrap_or(0),
            figures,
        }
    }
}

/// The servers.
impl World<'_> {
    /// Sends a request that costs so many microseconds.
    fn send(&mut self, shard: usize, kind: Kind, micros: f64, origin: Origin) {
        let is_durable = match kind {
            Kind::Acquire | Kind::Release | Kind::QueueUp => true,
            Kind::Renew => self.store.renewals_sync,
            Kind::Look | Kind::Wake => false,
        };
        let is_durable = is_durable && self.store.sync.is_some();
        let request = Request { kind, service: (micros * 1_000.0) as u64, is_durable, origin };
        let delay = if kind == Kind::Wake { 0 } else { self.load.network };
        self.events.plan(self.events.now() + delay, Event::Arrive(shard, request));
    }

    fn arrive(&mut self, shard: usize, request: Request<Origin>) {
        if let Some(request) = self.servers[shard].arrive(request) {
            self.events.plan(self.events.now() + request.service, Event::Served(shard, request));
        }
    }

    fn served(&mut self, shard: usize, request: Request<Origin>) {
        if let Some(next) = self.servers[shard].served(&request) {
            self.events.plan(self.events.now() + next.service, Event::Served(shard, next));
        }
        if !request.is_durable {
            self.carried_out(shard, request.origin);
        } else if self.servers[shard].write(request) {
            self.plan_sync(shard);
        }
    }

    fn synced(&mut self, shard: usize) {
        let (done, begins) = self.servers[shard].synced();
        if begins {
            self.plan_sync(shard);
        }
        done.into_iter().for_each(|request| self.carried_out(shard, request.origin));
    }

    fn plan_sync(&mut self, shard: usize) {
        let length = (self.store.sync.unwrap_or(0.0) * 1_000.0) as u64;
        self.events.plan(self.events.now() + length, Event::Synced(shard));
    }

    /// Sends the answer, and wakes the next waiter after a release.
    fn carried_out(&mut self, shard: usize, origin: Origin) {
        if let Origin::Left(queue, _) = origin {
            self.handed[queue].free();
            if self.store.waiting != Waiting::Polls
                && let Some(next) = self.handed[queue].grant_first()
            {
                let cost = self.hand_over_part();
                self.send(shard, Kind::Wake, cost, Origin::Called(queue, next));
            }
        }
        self.events.plan(self.events.now() + self.load.network, Event::Answer(origin));
    }

    fn answered(&mut self, origin: Origin) {
        let now = self.events.now();
        match origin {
            Origin::Nobody => {}
            Origin::Batch(number) => self.batch_answered(number),
            Origin::Taken(asked_at) => {
                self.acquires.push(now - asked_at);
                let shard = self.dice.below(self.load.shards) as usize;
                self.send(shard, Kind::Release, self.store.costs.cycle / 2.0, Origin::Nobody);
            }
            Origin::Left(queue, party) => self.queue_again(queue, party),
            Origin::Called(queue, party) => self.hand(Kind::Acquire, Origin::Granted(queue, party)),
            Origin::Granted(queue, party) => {
                self.hand_overs += 1;
                self.events.plan(now + self.load.handing.hold, Event::HoldEnd(queue, party));
            }
            Origin::Polled(queue, party) => {
                if self.handed[queue].grant(party) {
                    self.hand(Kind::Acquire, Origin::Granted(queue, party));
                } else {
                    self.plan_poll(queue, party);
                }
            }
        }
    }
}

/// Returns a number that seems to have nothing to do with this one.
fn mixed(number: u64, salt: u64) -> u64 {
    Dice::new(number.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ salt).number()
}
