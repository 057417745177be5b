//! The length and the number of measurements.

use std::time::Duration;

use clap::ValueEnum;

/// The sizes of one run. The whole of it takes about ten minutes, half of that for `consensus`; a quick
/// one two or three.
#[derive(Debug)]
pub(crate) struct Plan {
    groups: Vec<Group>,
    /// The number of times that each measure is taken, in turn with what it is compared with.
    pub(crate) rounds: usize,
    /// The time that one measure of throughput or latency takes.
    pub(crate) round: Duration,
    /// The number of commands that are started as processes, of each kind.
    pub(crate) processes: usize,
    /// The time for which processes hand a lock to each other in one round, and the number of such
    /// rounds.
    pub(crate) handing: Duration,
    pub(crate) handing_rounds: usize,
    /// The number of leases that are renewed, and their ttl; they are watched for two of it.
    pub(crate) leases: usize,
    pub(crate) ttl: Duration,
    /// The time for which idle waiters are watched.
    pub(crate) idling: Duration,
}

/// The measures that are taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
    /// Redis, uncontended: acquire and release
    Cycle,
    /// The file store, uncontended
    Files,
    /// From a release to the next grant, with 8 waiters in 8 processes
    Handover,
    /// 64 tasks of one process on one lock
    Crowd,
    /// One task that locks one name repeatedly, with a linger time
    Linger,
    /// 100,000 held leases
    Leases,
    /// 1,000 idle waiters
    Idle,
    /// With and without a measuring subscriber
    Watched,
    /// etcd and ZooKeeper, uncontended: acquire and release, beside their own operations
    Uncontended,
    /// Updates of a value, optimistic and pessimistic
    Updates,
    /// etcd and ZooKeeper: hand-over beside their own recipes, 10,000 held locks, 1,000 waiters
    Consensus,
    /// From a release to the next grant, with 12 killed waiters in front
    Dead,
    /// PostgreSQL, MariaDB, SQLite and memcached, beside their own statements
    Rows,
}

impl Plan {
    /// Plans all groups where none is named.
    pub(crate) fn new(quick: bool, only: Vec<Group>) -> Plan {
        let groups = if only.is_empty() { Group::value_variants().to_vec() } else { only };
        let millis = Duration::from_millis;
        if quick {
            Plan {
                groups,
                rounds: 5,
                round: millis(120),
                processes: 30,
                handing: millis(1_000),
                handing_rounds: 2,
                leases: 10_000,
                ttl: millis(4_000),
                idling: millis(3_000),
            }
        } else {
            Plan {
                groups,
                rounds: 21,
                round: millis(250),
                processes: 150,
                handing: millis(1_500),
                handing_rounds: 5,
                leases: 100_000,
                ttl: millis(20_000),
                idling: millis(20_000),
            }
        }
    }

    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }
}

impl Group {
    /// As `--only` names it.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns the line that is shown while it runs.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Group::Cycle => "cycle: Redis, uncontended acquire and release …",
            Group::Files => "files: the file store, uncontended, and the command beside flock(1) …",
            Group::Handover => "handover: from a release to the next grant, 8 processes …",
            Group::Crowd => "crowd: 64 tasks of one process on one lock …",
            Group::Linger => "linger: one task that locks one name repeatedly, on Redis and etcd …",
            Group::Leases => "leases: 100,000 of them, renewed …",
            Group::Idle => "idle: 1,000 waiters …",
            Group::Watched => "watched: with and without somebody who measures …",
            Group::Uncontended => "uncontended: etcd and ZooKeeper, acquire and release …",
            Group::Consensus => "consensus: etcd and ZooKeeper, beside their own recipes, and idle …",
            Group::Dead => "dead: from a release to the next grant, with 12 killed waiters in front …",
            Group::Rows => "rows: PostgreSQL, MariaDB, SQLite and memcached, beside their own statements …",
            Group::Updates => "updates: compare and set beside a lock, on Redis and PostgreSQL …",
        }
    }
}
