//! The scenarios: their contestants and loads, and what is unfair about comparing them.

use super::stores::{Needs, Store};

mod contestants;

use contestants::{
    COMMAND, CROWD, ETCD, ETCD_COMMAND, FILES, IDLE, MARIADB, MEMCACHED, MEMORY, POSTGRES, REDIS, REDLOCK,
    SQLITE, TRIPS, WAITERS, ZOOKEEPER,
};

/// Contestants under the same load on the same servers.
#[derive(Debug)]
pub(super) struct Scenario {
    /// The name of its plot, and what `--only` takes.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) needs: Needs,
    pub(super) load: Load,
    pub(super) contestants: &'static [Contestant],
    /// Sentences for the page.
    pub(super) notes: &'static [&'static str],
}

/// The load of the contestants.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// Each task takes and releases lock `task % locks`, in each of the processes.
    Cycles { processes: usize, tasks: usize, locks: usize },
    /// All tasks of all processes hand one lock to each other, and each holds it for 2 ms.
    HandOver { processes: usize, tasks: usize },
    /// All tasks wait for one lock that stays taken.
    Idle { processes: usize, tasks: usize },
    /// A command runs once, and its round trips are counted.
    Trips,
}

/// One of those that are compared.
#[derive(Debug)]
pub(super) struct Contestant {
    pub(super) name: &'static str,
    pub(super) side: Side,
    pub(super) program: Program,
    pub(super) kind: &'static str,
    pub(super) at: fn(&Store) -> String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The least that the server can do; no lock with fence, queue and names.
    Limit,
    /// The least for a lock with a fence: what leasehold sends, or the fewest statements, by hand.
    Floor,
    Ours,
    Rival,
}

/// The program that runs it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Program {
    /// This one.
    Own,
    /// `bench/rivals`, where it was built.
    Crates,
    /// The same with databases.
    SqlCrates,
    /// `peer.py`, with these packages.
    Python(&'static [&'static str]),
    /// `peer.js`.
    Node,
    /// `CuratorPeer.java`.
    Java,
}

/// A column of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Measure {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) more_is_better: bool,
}

impl Load {
    /// Returns the measures by which contestants are compared, the most important first.
    pub(super) fn measures(self) -> &'static [Measure] {
        match self {
            Load::Cycles { .. } => &[RATE, CLIENT, SERVER, COMMANDS],
            Load::HandOver { .. } => &[HALF, MOST],
            Load::Idle { .. } => &[IDLE_COMMANDS, CONNECTIONS],
            Load::Trips => &[ROUND_TRIPS],
        }
    }

    /// Returns `true` if tasks wait for each other.
    pub(super) fn is_contended(self) -> bool {
        match self {
            Load::Cycles { processes, tasks, locks } => locks < processes * tasks,
            Load::HandOver { .. } => true,
            Load::Idle { .. } | Load::Trips => false,
        }
    }
}

const fn measure(name: &'static str, title: &'static str, more_is_better: bool) -> Measure {
    Measure { name, title, more_is_better }
}

pub(super) const RATE: Measure = measure("rate", "cycles/s", true);
const CLIENT: Measure = measure("client_us", "client CPU, µs/cycle", false);
const SERVER: Measure = measure("server_us", "server CPU, µs/cycle", false);
const COMMANDS: Measure = measure("commands", "commands/cycle", false);
const HALF: Measure = measure("p50_us", "p50, µs", false);
const MOST: Measure = measure("p99_us", "p99, µs", false);
const IDLE_COMMANDS: Measure = measure("commands_per_second", "commands/s", false);
const CONNECTIONS: Measure = measure("connections", "connections", false);
const ROUND_TRIPS: Measure = measure("round_trips", "round trips", false);
/// Shown beside the others, and compared with nothing.
pub(super) const BESIDE: [Measure; 2] = [
    measure("luckiest", "luckiest task by unluckiest", false),
    measure("starved", "tasks without a cycle", false),
];

impl Scenario {
    /// Returns the contestants without which the scenario says nothing.
    pub(super) fn indispensable(&self) -> impl Iterator<Item = &'static str> {
        self.contestants.iter().filter(|one| one.side != Side::Rival).map(|one| one.name)
    }

    pub(super) fn limit(&self) -> Option<&'static str> {
        self.contestants.iter().find(|one| one.side == Side::Limit).map(|one| one.name)
    }
}

const fn cycles(tasks: usize) -> Load {
    Load::Cycles { processes: 1, tasks, locks: tasks }
}

const fn scenario(
    id: &'static str,
    title: &'static str,
    needs: Needs,
    load: Load,
    contestants: &'static [Contestant],
    notes: &'static [&'static str],
) -> Scenario {
    Scenario { id, title, needs, load, contestants, notes }
}

const ONE_REDIS: Needs = Needs::Redis(1);
const FAST_POSTGRES: Needs = Needs::Postgres { syncs: false };
const SYNCED_POSTGRES: Needs = Needs::Postgres { syncs: true };
const FAST_MARIADB: Needs = Needs::MariaDb { syncs: false };
const SYNCED_MARIADB: Needs = Needs::MariaDb { syncs: true };

/// All scenarios, in the order of measuring and of the page.
pub(super) const SCENARIOS: &[Scenario] = &[
    scenario("redis-1", "Redis, 1 task", ONE_REDIS, cycles(1), REDIS, REDIS_NOTES),
    scenario("redis-64", "Redis, 64 tasks on 64 locks", ONE_REDIS, cycles(64), REDIS, REDIS_NOTES),
    scenario(
        "redis-shared",
        "Redis, 8 tasks in 4 processes on one lock",
        ONE_REDIS,
        Load::Cycles { processes: 4, tasks: 2, locks: 1 },
        WAITERS,
        SHARED_NOTES,
    ),
    scenario(
        "redis-handover",
        "Redis, from a release to the next grant, 8 tasks in 4 processes",
        ONE_REDIS,
        Load::HandOver { processes: 4, tasks: 2 },
        WAITERS,
        HANDOVER_NOTES,
    ),
    scenario(
        "redis-crowd",
        "Redis, 64 tasks of one process on one lock",
        ONE_REDIS,
        Load::Cycles { processes: 1, tasks: 64, locks: 1 },
        CROWD,
        SHARED_NOTES,
    ),
    scenario(
        "redis-idle",
        "Redis, 1,000 idle waiters in 4 processes",
        ONE_REDIS,
        Load::Idle { processes: 4, tasks: 250 },
        IDLE,
        IDLE_NOTES,
    ),
    scenario("redlock", "Redlock on 5 servers, 1 task", Needs::Redis(5), cycles(1), REDLOCK, REDLOCK_NOTES),
    scenario("files-1", "Files, 1 task", Needs::Folder, cycles(1), FILES, FILES_NOTES),
    scenario("files-64", "Files, 64 tasks on 64 locks", Needs::Folder, cycles(64), FILES, FILES_NOTES),
    scenario("memory", "Memory, 1 task", Needs::Nothing, cycles(1), MEMORY, MEMORY_NOTES),
    scenario("sqlite", "SQLite, 1 task", Needs::Folder, cycles(1), SQLITE, SQLITE_NOTES),
    scenario(
        "postgres-1",
        "PostgreSQL without fsync, 1 task",
        FAST_POSTGRES,
        cycles(1),
        POSTGRES,
        POSTGRES_NOTES,
    ),
    scenario(
        "postgres-64",
        "PostgreSQL without fsync, 64 tasks",
        FAST_POSTGRES,
        cycles(64),
        POSTGRES,
        POSTGRES_NOTES,
    ),
    scenario(
        "postgres-sync-1",
        "PostgreSQL with fsync, 1 task",
        SYNCED_POSTGRES,
        cycles(1),
        POSTGRES,
        SYNC_NOTES,
    ),
    scenario(
        "postgres-sync-64",
        "PostgreSQL with fsync, 64 tasks",
        SYNCED_POSTGRES,
        cycles(64),
        POSTGRES,
        SYNC_NOTES,
    ),
    scenario("mariadb-1", "MariaDB without sync, 1 task", FAST_MARIADB, cycles(1), MARIADB, MARIADB_NOTES),
    scenario(
        "mariadb-64",
        "MariaDB without sync, 64 tasks",
        FAST_MARIADB,
        cycles(64),
        MARIADB,
        MARIADB_NOTES,
    ),
    scenario("mariadb-sync-1", "MariaDB with sync, 1 task", SYNCED_MARIADB, cycles(1), MARIADB, SYNC_NOTES),
    scenario(
        "mariadb-sync-64",
        "MariaDB with sync, 64 tasks",
        SYNCED_MARIADB,
        cycles(64),
        MARIADB,
        SYNC_NOTES,
    ),
    scenario("memcached", "memcached, 1 task", Needs::Memcached, cycles(1), MEMCACHED, MEMCACHED_NOTES),
    scenario("etcd", "etcd, 1 task", Needs::Etcd, cycles(1), ETCD, ETCD_NOTES),
    scenario("zookeeper", "ZooKeeper, 1 task", Needs::ZooKeeper, cycles(1), ZOOKEEPER, ZOOKEEPER_NOTES),
    scenario(
        "command-files",
        "A command under a lock of the file system",
        Needs::Folder,
        cycles(1),
        COMMAND,
        COMMAND_NOTES,
    ),
    scenario(
        "command-etcd",
        "A command under a lock of etcd",
        Needs::Etcd,
        cycles(1),
        ETCD_COMMAND,
        COMMAND_NOTES,
    ),
    scenario(
        "command-postgres",
        "A command under a lock of PostgreSQL, round trips",
        FAST_POSTGRES,
        Load::Trips,
        TRIPS,
        TRIPS_NOTES,
    ),
];

const REDIS_NOTES: &[&str] = &[
    "None of the rivals has a fence or a queue on the server; leasehold has both.",
    "python-redis-lock sends a signal to waiters at each release, and so does leasehold; the others send none.",
    "The rivals do not renew a lock by themselves here; leasehold does, and its renewer is part of the numbers.",
    "Commands include those that scripts call.",
];
const SHARED_NOTES: &[&str] = &[
    "Tasks of one leasehold client hand a lock to each other without the server, up to a hundred times in a row.",
    "The rivals have no such hand-over: each of their acquisitions goes through the server.",
    "rslock and redis-py wait by polling, with the pauses that they have by default.",
    "A poller that is alone for a moment takes the lock again and again, which raises its rate and starves others.",
];
const HANDOVER_NOTES: &[&str] = &[
    "Each task holds the lock for 2 ms, so the others wait.",
    "Half of the hand-overs stay within a process, where leasehold needs no server.",
    "A poller hands over faster than it polls only by chance: the others sleep, and the last holder comes back first.",
];
const IDLE_NOTES: &[&str] = &[
    "Counted once, and not a rate that a contestant tries to raise.",
    "leasehold's count includes the renewal by the holder; the holders of the others do not renew.",
    "python-redis-lock waits in a blocking command, on a connection for each waiter.",
    "It sends nothing meanwhile, so it has no point in the plot, whose axis is logarithmic.",
];
const REDLOCK_NOTES: &[&str] = &[
    "The limit is one of the servers, without a quorum.",
    "rslock and redlock do without a fence, and ask for no more than one round of requests.",
    "leasehold's ttl is 2 s here, so that its members count from the start.",
];
const FILES_NOTES: &[&str] = &[
    "`flock` keeps no fence and no queue, shows no holder, and blocks a thread for each waiter.",
    "distributed-lock and tooz use `flock` or `fcntl` on a file for each lock, with no fence and no queue.",
    "A blocking `flock` of 64 tasks on 64 locks blocks nobody, since no lock is wanted twice.",
];
const MEMORY_NOTES: &[&str] =
    &["Tokio's mutex has no names, no fence, no lease and no limit to a hold; it is not a rival."];
const SQLITE_NOTES: &[&str] = &[
    "The limit writes with `synchronous=normal`, and keeps no fence.",
    "No other library with locks on SQLite was found on the registries.",
];
const POSTGRES_NOTES: &[&str] = &[
    "An advisory lock writes nothing, has no fence, and is lost without a sign when its connection is.",
    "leasehold's default writes rows, with fence, queue and note; `method=advisory` is the comparable one.",
    "The limit and sqlx have a connection for each task, here 64; leasehold has its default number.",
    "distributed-lock has the default number of connections of its pool.",
    "tooz has a connection and a thread for each task.",
];
const SYNC_NOTES: &[&str] = &[
    "The server syncs each commit, as it does by default; only what writes is slower by that.",
    "A lock that the connection holds writes nothing, so the limit and the rivals are as fast as without.",
    "leasehold's rows survive a crash of the server; such locks do not.",
];
const MARIADB_NOTES: &[&str] = &[
    "A lock by `GET_LOCK` writes nothing, has no fence, and is lost without a sign when its connection is.",
    "leasehold's default writes rows, with fence, queue and note; `method=get-lock` is the comparable one.",
    "The limit has a connection for each task; leasehold and distributed-lock have their default numbers.",
    "MariaDB writes its log to the disk at each commit, past the cache of the system, even where it syncs nothing.",
];
const MEMCACHED_NOTES: &[&str] = &[
    "tooz is a Python program, and its lock has no fence.",
    "leasehold reads beside each `add`, since an item can be evicted.",
];
const ETCD_NOTES: &[&str] = &[
    "The limit opens no lease for a lock, and neither does leasehold, whose locks share one.",
    "tooz asks by way of the HTTP gateway of etcd.",
];
const ZOOKEEPER_NOTES: &[&str] = &[
    "ZooKeeper does not sync here, because the test kit sets it up so; this is so for all.",
    "Curator has warmed up the Java machine only as far as the rounds go.",
];
const COMMAND_NOTES: &[&str] = &[
    "Each cycle is a process, its lock, `true` and the release.",
    "`flock` and `etcdctl lock` neither renew a lock nor end the command when it is lost; leasehold does both.",
    "`etcdctl lock` opens a session for its lock, with a lease of its own.",
];
const TRIPS_NOTES: &[&str] = &[
    "A round trip is a run of bytes to the server after an answer, on any connection; the login is included.",
    "`psql` locks and unlocks by hand, without a fence, a ttl or a check.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct_and_each_scenario_has_ours_and_notes() {
        let mut ids: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.id).collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|two| two[0] != two[1]));
        for scenario in SCENARIOS {
            assert!(scenario.contestants.iter().any(|one| one.side == Side::Ours), "{}", scenario.id);
            assert!(!scenario.notes.is_empty(), "{}", scenario.id);
            let mut names: Vec<&str> = scenario.contestants.iter().map(|one| one.name).collect();
            names.sort_unstable();
            assert!(names.windows(2).all(|two| two[0] != two[1]), "{}", scenario.id);
        }
    }
}
