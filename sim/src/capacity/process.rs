//! The locks that processes hold for long, and when each is renewed.
//!
//! It follows `engine/renew/renewer_task.rs`: a lock is renewed at a beat, by a request of which the answer counts
//! from when it was sent. One that is not answered in time is asked again, and is lost at the end of its
//! validity. One pause is drawn for a batch that is asked again, where the engine draws one for each lock.

use std::collections::BTreeMap;

use crate::capacity::dice::Dice;
use crate::capacity::rules::{RENEW_AT, beat, beats, next_due, relied_on};
use crate::capacity::stores::StoreModel;
use crate::capacity::workload::Workload;

/// All locks that are held for long.
#[derive(Debug)]
pub struct HeldLocks {
    ttl: u64,
    relied_on: u64,
    processes: u64,
    locks: Vec<HeldLock>,
    /// The locks of each process by the time at which they are due, of which some have moved since.
    agendas: Vec<BTreeMap<u64, Vec<u32>>>,
    /// By how much each process counts its beats later than the others: they run on several machines.
    phases: Vec<u64>,
    /// The counts since the last reset.
    pub counts: HeldCounts,
}

/// Counts of renewals.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldCounts {
    /// Confirmed renewals.
    pub renewals: u64,
    /// Locks whose renewal was overdue, once for each time.
    pub suspects: u64,
    /// Locks that were lost.
    pub lost: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct HeldLock {
    confirmed: u64,
    due: u64,
    /// The last request, where its answer is awaited.
    awaited: Option<u64>,
    is_lost: bool,
}

impl HeldLocks {
    /// Creates locks that were confirmed at some time within the first period.
    pub fn new(store: &StoreModel, load: &Workload, dice: &mut Dice) -> HeldLocks {
        let ttl = store.paced(load.ttl);
        let period = beats(ttl, RENEW_AT) * beat(ttl);
        let phases = (0..load.processes).map(|_| dice.below(beat(ttl))).collect();
        let locks = (0..load.held).map(|_| HeldLock { confirmed: dice.below(period), ..HeldLock::default() });
        HeldLocks {
            ttl,
            relied_on: relied_on(ttl, store.granularity),
            processes: load.processes,
            locks: locks.collect(),
            agendas: (0..load.processes).map(|_| BTreeMap::new()).collect(),
            phases,
            counts: HeldCounts::default(),
        }
    }

    /// Plans the first renewal of all. Returns the turns of the processes.
    pub fn begin(&mut self) -> Vec<(u64, u64)> {
        let all = 0..self.locks.len() as u64;
        all.filter_map(|lock| self.plan(lock, self.locks[lock as usize].confirmed)).collect()
    }

    /// Returns the process that holds a lock.
    pub fn process(&self, lock: u64) -> u64 {
        lock % self.processes
    }

    /// Returns the time by which renewals are paced.
    pub fn ttl(&self) -> u64 {
        self.ttl
    }

    /// Plans the renewal of a lock that was confirmed. Returns the turn of its process, if it is a new one.
    fn plan(&mut self, lock: u64, confirmed: u64) -> Option<(u64, u64)> {
        let process = self.process(lock);
        let due = next_due(confirmed, self.ttl, RENEW_AT, self.phases[process as usize]);
        self.locks[lock as usize].due = due;
        let agenda = &mut self.agendas[process as usize];
        let is_new = !agenda.contains_key(&due);
        agenda.entry(due).or_default().push(lock as u32);
        is_new.then_some((process, due))
    }

    /// Takes the locks that a process has to renew now.
    pub fn take_due(&mut self, process: u64, due: u64) -> Vec<u64> {
        let planned = self.agendas[process as usize].remove(&due).unwrap_or_default();
        let planned = planned.into_iter().map(u64::from);
        let mut locks: Vec<u64> = planned.filter(|lock| self.locks[*lock as usize].due == due).collect();
        locks.retain(|lock| self.is_held(*lock, due));
        locks
    }

    /// Returns `true` if a lock is held at this time, and counts it as lost where it no longer is.
    fn is_held(&mut self, lock: u64, now: u64) -> bool {
        let held = &mut self.locks[lock as usize];
        if !held.is_lost && now >= held.confirmed + self.relied_on {
            held.is_lost = true;
            self.counts.lost += 1;
        }
        !held.is_lost
    }

    /// Notes that a request for these locks was sent.
    pub fn sent(&mut self, locks: &[u64], number: u64) {
        locks.iter().for_each(|lock| self.locks[*lock as usize].awaited = Some(number));
    }

    /// Returns the locks of a request that still wait for its answer, and marks them as suspect.
    pub fn overdue(&mut self, locks: &[u64], number: u64, now: u64) -> Vec<u64> {
        let waits = |lock: &&u64| self.locks[**lock as usize].awaited == Some(number);
        let waiting: Vec<u64> = locks.iter().filter(waits).copied().collect();
        self.counts.suspects += waiting.len() as u64;
        waiting.into_iter().filter(|lock| self.is_held(*lock, now)).collect()
    }

    /// Takes the answer to a request that was sent at `asked_at`. Returns the new turns of the process.
    pub fn confirm(&mut self, locks: &[u64], asked_at: u64, now: u64) -> Vec<(u64, u64)> {
        let mut turns = Vec::new();
        for lock in locks.iter().copied() {
            // A later answer makes an earlier one irrelevant.
            if !self.is_held(lock, now) || self.locks[lock as usize].confirmed > asked_at {
                continue;
            }
            self.counts.renewals += 1;
            let held = &mut self.locks[lock as usize];
            (held.confirmed, held.awaited) = (asked_at, None);
            turns.extend(self.plan(lock, asked_at));
        }
        turns
    }
}
