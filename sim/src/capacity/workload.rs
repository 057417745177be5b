//! The load of all processes together.

use crate::capacity::rules::{MS, SECOND};

/// The load on one store, and the machines that it has.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Processes, each with one client.
    pub processes: u64,
    /// Locks that are held for long, by all processes together, and renewed.
    pub held: u64,
    /// The ttl of each, in nanoseconds.
    pub ttl: u64,
    /// Free locks that are taken and released at once, in a second.
    pub cycles: f64,
    /// Claims that wait for locks that stay taken.
    pub waiters: u64,
    /// The number of them that wait for one lock.
    pub waiters_each: u64,
    /// Locks that go from process to process.
    pub handing: Handing,
    /// Servers that share the locks.
    pub shards: u64,
    /// Cores of each server; a server that carries out one request at a time uses one.
    pub cores: u64,
    /// The time that a message is under way, in nanoseconds.
    pub network: u64,
}

/// Locks that go from process to process.
#[derive(Clone, Copy, Debug)]
pub struct Handing {
    /// Their number.
    pub queues: u64,
    /// The number that waits for each.
    pub waiters: u64,
    /// The time for which each holder holds, in nanoseconds.
    pub hold: u64,
}

impl Workload {
    /// Creates an idle load of so many processes, with the ttl that is used where none is named.
    pub fn of(processes: u64) -> Workload {
        Workload {
            processes,
            held: 0,
            ttl: 30 * SECOND,
            cycles: 0.0,
            waiters: 0,
            waiters_each: 1,
            handing: Handing { queues: 0, waiters: 4, hold: SECOND },
            shards: 1,
            cores: 4,
            network: MS / 10,
        }
    }

    /// Adds locks that are held for long.
    pub fn held(self, held: u64) -> Workload {
        Workload { held, ..self }
    }

    /// Adds free locks that are taken and released, in a second.
    pub fn cycles(self, cycles: f64) -> Workload {
        Workload { cycles, ..self }
    }

    /// Adds claims that wait for locks that stay taken, so many for each.
    pub fn waiters(self, waiters: u64, waiters_each: u64) -> Workload {
        Workload { waiters, waiters_each, ..self }
    }

    /// Adds locks that go from process to process.
    pub fn handing(self, queues: u64, waiters: u64, hold: u64) -> Workload {
        Workload { handing: Handing { queues, waiters, hold }, ..self }
    }

    /// Shares the locks among so many servers.
    pub fn shards(self, shards: u64) -> Workload {
        Workload { shards, ..self }
    }

    /// Sets the ttl, in nanoseconds.
    pub fn ttl(self, ttl: u64) -> Workload {
        Workload { ttl, ..self }
    }
}
