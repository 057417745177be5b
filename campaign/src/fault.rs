//! The thirty faults of the grid: its rows.

use std::fmt;
use std::str::FromStr;

/// A fault, by its number in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fault(u8);

impl Fault {
    /// Returns every fault, in the order of the catalogue.
    pub fn all() -> impl Iterator<Item = Fault> {
        (1..=30).map(Fault)
    }

    /// Returns the fault of this number.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn number(number: u8) -> Fault {
        assert!((1..=30).contains(&number), "faults are numbered from 1 to 30, and not {number}");
        Fault(number)
    }

    /// Returns its number in the catalogue.
    pub fn get(self) -> u8 {
        self.0
    }

    /// Returns what happens, as the head of its row.
    pub fn title(self) -> &'static str {
        TITLES[usize::from(self.0) - 1].0
    }

    /// Returns how the campaign makes it happen.
    pub fn how(self) -> &'static str {
        TITLES[usize::from(self.0) - 1].1
    }
}

/// The name of each fault, and the way in which it is made to happen.
const TITLES: [(&str, &str); 30] = [
    (
        "a client is paused past its lease",
        "a worker is stopped (SIGSTOP) for 1 to 2.5 times the ttl, and continues in the middle of what it did",
    ),
    (
        "an answer comes after the lease",
        "the proxy keeps everything that the servers send to half of the clients for 1 to 1.5 times the ttl, and then delivers it",
    ),
    (
        "a server hangs past the lease",
        "the server, or the leader of several, is stopped (SIGSTOP) for 1 to 1.5 times the ttl; every second time, where \
         the servers sync what they confirm, only their disk hangs instead, or a sync takes a quarter of the \
         ttl",
    ),
    (
        "a client is killed",
        "a worker is killed (SIGKILL) while it holds or waits, and another takes its place",
    ),
    (
        "a server is killed and comes back",
        "SIGKILL, then a restart, with its data (of Redis: an append-only file), or without where there is no copy of them",
    ),
    (
        "a failover that loses the last writes",
        "the replicas are cut off, the primary grants, and is killed when they have missed something; a replica is promoted",
    ),
    (
        "the old primary stays alive",
        "a replica is promoted for half of the clients; the others still reach the old primary",
    ),
    (
        "a client is partitioned from the servers",
        "the proxy drops what half of the clients send, receive, or both, for 0.4 to 2 times the ttl",
    ),
    (
        "servers are partitioned from each other",
        "of Redlock each half of the clients misses two other servers, and of Sentinel one Sentinel is cut off; \
         servers of a cluster, of etcd and of ZooKeeper are stopped (SIGSTOP), which is not a partition: \
         behind a network that is parted they would still run",
    ),
    (
        "the answer to a request is lost",
        "the proxy loses the answer to one of the next requests and closes the connection, again and again",
    ),
    (
        "connections are reset, slow or half open",
        "the proxy resets all connections, delays every byte, or lets one direction die",
    ),
    (
        "renewals time out for a part of the lease",
        "the proxy drops both directions for 0.4 to 0.5 times the ttl, so that a later renewal comes in time",
    ),
    ("a notification is lost", "subscriptions and watches are ended by force, or their revisions compacted"),
    (
        "the server's wall clock steps",
        "a library before the server moves the real-time clock by 120 s forward and back",
    ),
    (
        "the client's clock runs apart or jumps",
        "in turn, of half of the clients: a library moves the real-time clock by two minutes or a day, forward and back, \
         which the clock of leases does not follow, so it is a reason for nothing that is wrong with a lock; \
         the clock that measures leases runs at a quarter, half, twice or four times the rate of the machine, while timers \
         do not; it jumps forward by half a ttl or two, as after a suspend. A machine that is suspended is a test of the \
         engine over a store in memory (`engine_supervision`)",
    ),
    (
        "memory or disk is full",
        "the server has no room: items are evicted, or writes are refused, and later accepted again",
    ),
    ("an operator deletes the lock", "`FLUSHALL`, `flush_all`, rows, keys, nodes or files removed by hand"),
    ("the server ends the session", "`pg_terminate_backend`, `KILL`, `CLIENT KILL`, or a revoked lease"),
    ("a pooler shares the sessions", "PgBouncer in transaction mode between clients and server"),
    (
        "an acquisition is dropped at any moment",
        "every second future of an acquisition is dropped within 200 ms, half of these within 25 ms: on its way, in the queue, \
         or when it was granted. Nothing may be left of it; tests of the engine drop one at each poll (`engine_cancel`)",
    ),
    (
        "a release fails halfway",
        "the proxy drops the answers to half of the clients past the lease, so that releases are repeated after a new grant",
    ),
    (
        "a lock is released twice, or deeper than taken",
        "a law of the seam ends a claim a second time on each store; owners, reentrant depths and unbalanced ends are \
         tests of the engine over a store in memory (`engine_owner`)",
    ),
    ("a thousand waiters for one lock", "all tasks want one lock, hold it shortly, and wake in their order"),
    (
        "all servers restart, one after the other",
        "each server ends and comes back with its data; before that the primary of elected servers hands over, and a slot of a \
         cluster moves; every second time, a member of etcd is removed and another one takes its place",
    ),
    ("an older state is restored", "the server comes back on an older snapshot"),
    (
        "a minority of the servers fails at random",
        "any two of five are killed, stopped, cut off or restarted empty",
    ),
    (
        "a process forks, or leaves descriptors open",
        "tests of the engine fork a process in the middle of holds of each store",
    ),
    ("an unusual file system", "the store lies in memory (tmpfs); network file systems are refused"),
    (
        "the server answers nonsense",
        "the proxy replaces what the servers send to half of the clients by random bytes; of Sentinel and Redis Cluster \
         each parser is tried by a fuzz target, and files are damaged",
    ),
    (
        "the login is revoked",
        "the user is locked and its connections are ended, and it is unlocked later; of etcd it loses its role; every second \
         time, a Redis server with TLS presents an expired certificate instead",
    ),
];

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "F{}", self.0)
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let number = text.trim_start_matches(['F', 'f']).parse::<u8>().ok();
        let found = number.filter(|number| (1..=30).contains(number)).map(Fault);
        found.ok_or_else(|| format!("unknown fault {text:?}: write one of F1 to F30"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_names_its_fault() {
        for fault in Fault::all() {
            assert_eq!(fault.to_string().parse(), Ok(fault));
            assert!(!fault.title().is_empty() && !fault.how().is_empty());
        }
        for wrong in ["F0", "F31", "x", "300"] {
            assert!(wrong.parse::<Fault>().is_err(), "{wrong}");
        }
    }
}
