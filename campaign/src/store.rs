//! The stores of the grid: its columns.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A kind of store, as the grid distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Store {
    /// Files of one directory.
    File,
    /// A database file of SQLite.
    Sqlite,
    /// One memcached server.
    Memcached,
    /// One Redis server.
    Redis,
    /// A primary, two replicas and three Sentinels.
    Sentinel,
    /// A Redis Cluster of three primaries with a replica each.
    Cluster,
    /// Five Redis servers that decide together.
    Redlock,
    /// Three etcd servers.
    Etcd,
    /// Three ZooKeeper servers.
    ZooKeeper,
    /// Rows of PostgreSQL.
    Postgres,
    /// Advisory locks of PostgreSQL.
    PostgresAdvisory,
    /// Transactions of PostgreSQL that lock a row.
    PostgresForUpdate,
    /// Rows of MariaDB.
    MariaDb,
    /// Named locks of MariaDB.
    MariaDbGetLock,
    /// Transactions of MariaDB that lock a row.
    MariaDbForUpdate,
}

impl Store {
    /// Every store, in the order of the grid.
    pub const ALL: [Store; 15] = [
        Store::File,
        Store::Sqlite,
        Store::Memcached,
        Store::Redis,
        Store::Sentinel,
        Store::Cluster,
        Store::Redlock,
        Store::Etcd,
        Store::ZooKeeper,
        Store::Postgres,
        Store::PostgresAdvisory,
        Store::PostgresForUpdate,
        Store::MariaDb,
        Store::MariaDbGetLock,
        Store::MariaDbForUpdate,
    ];

    /// Returns the word for it on the command line and in results.
    pub fn word(self) -> &'static str {
        match self {
            Store::File => "file",
            Store::Sqlite => "sqlite",
            Store::Memcached => "memcached",
            Store::Redis => "redis",
            Store::Sentinel => "redis-sentinel",
            Store::Cluster => "redis-cluster",
            Store::Redlock => "redlock",
            Store::Etcd => "etcd",
            Store::ZooKeeper => "zookeeper",
            Store::Postgres => "postgres",
            Store::PostgresAdvisory => "postgres-advisory",
            Store::PostgresForUpdate => "postgres-for-update",
            Store::MariaDb => "mariadb",
            Store::MariaDbGetLock => "mariadb-get-lock",
            Store::MariaDbForUpdate => "mariadb-for-update",
        }
    }

    /// Returns the head of its column.
    pub fn title(self) -> &'static str {
        match self {
            Store::File => "files",
            Store::Sqlite => "SQLite",
            Store::Memcached => "memcached",
            Store::Redis => "Redis",
            Store::Sentinel => "Sentinel",
            Store::Cluster => "Redis Cluster",
            Store::Redlock => "Redlock",
            Store::Etcd => "etcd",
            Store::ZooKeeper => "ZooKeeper",
            Store::Postgres => "PostgreSQL",
            Store::PostgresAdvisory => "… advisory",
            Store::PostgresForUpdate => "… for update",
            Store::MariaDb => "MariaDB",
            Store::MariaDbGetLock => "… get lock",
            Store::MariaDbForUpdate => "… for update",
        }
    }

    /// Returns the ttl of a lease in its campaign, or the time of silence after which its session ends: short,
    /// so that faults outlast it often, and not below what the store supports.
    pub fn ttl(self) -> Duration {
        match self {
            Store::Etcd | Store::ZooKeeper => Duration::from_secs(2),
            Store::Memcached => Duration::from_secs(3),
            Store::Sentinel | Store::Cluster => Duration::from_secs(2),
            _ => Duration::from_millis(1_500),
        }
    }

    /// Returns the time in which everything of a dead client has ended, as the store's page says, and clients are back
    /// after an outage.
    pub fn recovery(self) -> Duration {
        match self {
            // The rest of a lease, a second more, and a change of leader that counts it anew.
            Store::Etcd | Store::ZooKeeper => Duration::from_secs(10),
            // A failover, and the rest of a lease.
            Store::Sentinel | Store::Cluster => Duration::from_secs(10),
            // Twice the silence, and a connection.
            _ if self.is_session() => Duration::from_secs(6),
            _ => Duration::from_secs(5),
        }
    }

    /// Returns the time at the end of each history without a fault: so long that a lock which nobody can acquire any
    /// more is seen.
    pub fn quiet(self) -> Duration {
        self.recovery() + Duration::from_secs(4)
    }

    /// Returns the time within which a released lock goes to one who waits: less than the lease that remains if the
    /// release was not sent.
    pub fn handover(self) -> Duration {
        self.ttl() * 2 / 3
    }

    /// Returns `true` if nobody but the kernel of this machine serves it.
    pub fn is_embedded(self) -> bool {
        matches!(self, Store::File | Store::Sqlite)
    }

    /// Returns `true` if a connection holds the locks, and not a lease.
    pub fn is_session(self) -> bool {
        use Store::{MariaDbForUpdate, MariaDbGetLock, PostgresAdvisory, PostgresForUpdate};
        matches!(self, PostgresAdvisory | PostgresForUpdate | MariaDbGetLock | MariaDbForUpdate)
    }

    /// Returns `true` for the stores in PostgreSQL.
    pub fn is_postgres(self) -> bool {
        matches!(self, Store::Postgres | Store::PostgresAdvisory | Store::PostgresForUpdate)
    }

    /// Returns `true` for the stores in MariaDB.
    pub fn is_mariadb(self) -> bool {
        matches!(self, Store::MariaDb | Store::MariaDbGetLock | Store::MariaDbForUpdate)
    }

    /// Returns `true` for the stores on Redis servers.
    pub fn is_redis(self) -> bool {
        matches!(self, Store::Redis | Store::Sentinel | Store::Cluster | Store::Redlock)
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Store, String> {
        let found = Store::ALL.into_iter().find(|store| store.word() == text);
        found.ok_or_else(|| {
            let words: Vec<&str> = Store::ALL.into_iter().map(Store::word).collect();
            format!("unknown store {text:?}: write one of {}", words.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_names_its_store() {
        for store in Store::ALL {
            assert_eq!(store.word().parse(), Ok(store));
        }
        assert!("oracle".parse::<Store>().unwrap_err().contains("postgres-advisory"));
    }
}
