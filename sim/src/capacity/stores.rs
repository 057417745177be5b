//! The stores: what their clients send, and what that costs a server.
//!
//! Rules name the file of the code that has them. Costs are processor time of the server in microseconds, as
//! measured by `capacity_constants` of the benchmark: see "What was measured" in `docs/book/src/capacity.md`.

use crate::capacity::rules::{MS, SECOND};

/// One store.
#[derive(Clone, Debug)]
pub struct StoreModel {
    /// Its name, and its URL's scheme.
    pub name: &'static str,
    /// The most claims of one renewal request.
    pub batch_max: u64,
    /// The number of parts of the names that no request spans: the slots of a Redis Cluster.
    pub slots: Option<u64>,
    /// The requests of each turn of renewals beside the renewals.
    pub beside: u64,
    /// The claims of one session, where each session has a turn of its own.
    pub session_claims: Option<u64>,
    /// The time by which leases are paced and that holders rely on, where it is not the ttl: nanoseconds.
    pub pace: Option<u64>,
    /// The coarseness of its clock, which holders leave out of account: nanoseconds.
    pub granularity: u64,
    /// The way in which waiters wait.
    pub waiting: Waiting,
    /// The requests of a hand-over beside the release, the grant and the place in the queue.
    pub hand_over_extra: u64,
    /// `true` if a server uses one core.
    pub is_single: bool,
    /// The time of a sync, in microseconds, where writes wait for one.
    pub sync: Option<f64>,
    /// `true` if renewals wait for a sync, too.
    pub renewals_sync: bool,
    /// The processor time of the server.
    pub costs: Costs,
    /// The memory of the server.
    pub memory: MemoryUse,
    /// The memory of the client.
    pub client_memory: MemoryUse,
    /// The processor time of the client for a cycle and for a renewal in a batch, in microseconds.
    pub client: (f64, f64),
}

/// The way in which the waiters of a process learn that their turn has come, and keep their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// They are notified; the process looks for all of them together.
    Glances,
    /// They are notified; each looks by itself, with so many requests.
    Looks(u64),
    /// Each asks again after a pause.
    Polls,
    /// They are notified; the process sends a sign of life for all of them, every so many nanoseconds.
    KeptAlive(u64),
}

/// Processor time of a server, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// An acquire and its release, of a free lock.
    pub cycle: f64,
    /// A request that renews, beside what each claim in it costs.
    pub request: f64,
    /// A further such request of one process at the same time, over the same connection.
    pub further: f64,
    /// The renewal of a claim.
    pub renew: f64,
    /// A look for one waiter, or a sign of life.
    pub look: f64,
    /// A hand-over: release, notification, grant, and the place of the next waiter in the queue.
    pub hand_over: f64,
}

/// Bytes of memory, where they were measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryUse {
    /// For a held lock.
    pub held: Option<u64>,
    /// For a waiter, each on a lock of its own.
    pub waiter: Option<u64>,
    /// For a client with one lock.
    pub connection: Option<u64>,
}

impl MemoryUse {
    /// Creates the memory for a held lock, a waiter and a client; zero is not measured.
    const fn of(held: u64, waiter: u64, connection: u64) -> MemoryUse {
        const fn measured(bytes: u64) -> Option<u64> {
            if bytes == 0 { None } else { Some(bytes) }
        }
        MemoryUse { held: measured(held), waiter: measured(waiter), connection: measured(connection) }
    }
}

impl StoreModel {
    /// Returns the time by which leases of this ttl are paced.
    pub fn paced(&self, ttl: u64) -> u64 {
        self.pace.unwrap_or(ttl)
    }

    /// Returns the cores that one server of this store can use, of those that it has.
    pub fn cores(&self, cores: u64) -> u64 {
        if self.is_single { 1 } else { cores }
    }

    /// Returns the store of that name.
    pub fn named(name: &str) -> Option<StoreModel> {
        all().into_iter().find(|store| store.name == name)
    }
}

/// Redis: `backends/redis/src`. One script at a time (`RENEW_BATCH_MAX` in `topology/server_info.rs`).
pub fn redis() -> StoreModel {
    StoreModel {
        name: "Redis",
        batch_max: 500,
        slots: None,
        beside: 0,
        session_claims: None,
        pace: None,
        granularity: 2 * MS,
        waiting: Waiting::Glances,
        hand_over_extra: 0,
        is_single: true,
        sync: None,
        renewals_sync: false,
        costs: Costs { cycle: 22.7, request: 21.2, further: 21.2, renew: 7.7, look: 7.6, hand_over: 412.0 },
        memory: MemoryUse::of(367, 1311, 13763),
        client_memory: MemoryUse::of(4378, 17826, 0),
        client: (24.0, 6.0),
    }
}

/// Redis Cluster: as Redis, but a script names the keys of one slot only (`group_by_slot` in
/// `backends/redis/src/topology/servers.rs`).
pub fn redis_cluster() -> StoreModel {
    // 9.4 µs one by one, 9.0 in batches: the row "leases, processor time of a renewal" of docs/book/src/bench.md.
    let costs = Costs { further: 0.4, ..redis().costs };
    StoreModel { name: "Redis Cluster", slots: Some(16_384), costs, ..redis() }
}

/// etcd: `backends/etcd/src`. A renewal looks at 128 keys in a transaction (`RENEW_BATCH_MAX` in `backend.rs`),
/// and each turn keeps the lease alive (`renew.rs`). Waiters are on a lease of 2 s that is kept alive every
/// third of it (`state/lease.rs`).
pub fn etcd() -> StoreModel {
    StoreModel {
        name: "etcd",
        batch_max: 128,
        beside: 1,
        granularity: 0,
        waiting: Waiting::KeptAlive(2 * SECOND / 3),
        // 7.5 messages an acquisition with 64 waiters: docs/book/src/bench.md.
        hand_over_extra: 4,
        is_single: false,
        costs: Costs {
            cycle: 169.5,
            request: 42.7,
            further: 42.7,
            renew: 4.8,
            look: 42.7,
            hand_over: 4_015.0,
        },
        memory: MemoryUse::of(3510, 16429, 155156),
        client_memory: MemoryUse::of(5643, 17695, 0),
        client: (72.1, 6.8),
        ..redis()
    }
}

/// ZooKeeper: `backends/zookeeper/src`. A request looks at 512 nodes (`LOOKS_MAX` in `backend/renew.rs`), each
/// session proves itself by one more, and takes some ten thousand claims (`state/claim_table.rs`). A holder
/// relies on half of the session of 30 s (`state/validity.rs`). A quiet client pings after 3/8 of a sixth of
/// the session (`net/session.rs`).
pub fn zookeeper() -> StoreModel {
    StoreModel {
        name: "ZooKeeper",
        batch_max: 512,
        beside: 1,
        session_claims: Some(10_000),
        pace: Some(15 * SECOND),
        granularity: 0,
        waiting: Waiting::KeptAlive(1_875 * MS),
        // 6.5 messages an acquisition with 64 waiters: docs/book/src/bench.md.
        hand_over_extra: 3,
        is_single: false,
        costs: Costs {
            cycle: 199.6,
            request: 125.0,
            further: 125.0,
            renew: 6.3,
            look: 125.0,
            hand_over: 1_373.0,
        },
        memory: MemoryUse::of(970, 6685, 1966),
        client_memory: MemoryUse::of(5253, 15991, 0),
        client: (73.0, 4.7),
        ..redis()
    }
}

/// PostgreSQL: `backends/postgres/src`. 500 rows in a statement (`RENEW_BATCH_MAX` in `crates/backend/src/sql.rs`);
/// a waiter reads its row and writes its place again (`crates/backend/src/cell/backend/acquire.rs`).
pub fn postgres() -> StoreModel {
    StoreModel {
        name: "PostgreSQL",
        granularity: MS,
        waiting: Waiting::Looks(2),
        is_single: false,
        sync: Some(47.0),
        renewals_sync: true,
        costs: Costs {
            cycle: 34.0,
            request: 624.0,
            further: 624.0,
            renew: 10.6,
            look: 16.6,
            hand_over: 2_447.0,
        },
        memory: MemoryUse::of(0, 0, 0),
        client_memory: MemoryUse::of(4907, 15000, 0),
        client: (24.9, 7.3),
        ..redis()
    }
}

/// MySQL and MariaDB: `backends/mysql/src`. Waiters poll (`crates/backend/src/cell/wait/polling.rs`).
pub fn mariadb() -> StoreModel {
    StoreModel {
        name: "MariaDB",
        waiting: Waiting::Polls,
        sync: Some(50.0),
        costs: Costs {
            cycle: 128.3,
            request: 313.0,
            further: 313.0,
            renew: 48.0,
            look: 49.0,
            hand_over: 3_632.0,
        },
        memory: MemoryUse::of(0, 0, 0),
        client_memory: MemoryUse::of(5120, 13656, 0),
        client: (69.9, 23.5),
        ..postgres()
    }
}

/// memcached: `backends/memcached/src`. A renewal reads an item and writes it, all of a batch at once
/// (`crates/backend/src/cell/backend/renew.rs`, `net/servers.rs`). Waiters poll.
pub fn memcached() -> StoreModel {
    StoreModel {
        name: "memcached",
        granularity: SECOND,
        beside: 1,
        waiting: Waiting::Polls,
        is_single: false,
        costs: Costs { cycle: 6.7, request: 20.2, further: 20.2, renew: 2.7, look: 8.3, hand_over: 1_461.0 },
        memory: MemoryUse::of(223, 1049, 655),
        client_memory: MemoryUse::of(2805, 17564, 0),
        client: (21.5, 13.2),
        ..redis()
    }
}

/// Returns all stores on servers.
pub fn all() -> Vec<StoreModel> {
    vec![redis(), redis_cluster(), etcd(), zookeeper(), postgres(), mariadb(), memcached()]
}
