//! The servers of each store, and the addresses by which clients enter.

use std::net::SocketAddr;
use std::path::Path;

use leasehold_testkit::{
    Appendonly, EtcdCluster, MariaDbServer, MemcachedServer, PgBouncer, PoolMode, PostgresServer, Proxy,
    RedisCluster, RedisQuorum, RedisSentinel, RedisServer, Tls, ZooKeeperEnsemble,
};

use super::Needs;
use super::clock::ClockShim;
use super::slow_disk::SlowDisk;
use crate::{Outcome, Store};

/// The servers of a store.
pub enum Servers {
    /// None: a directory, or a database file.
    Embedded(String),
    /// A memcached server.
    Memcached(MemcachedServer),
    /// A Redis server.
    Redis(Box<RedisServer>),
    /// Servers that Sentinels watch.
    Sentinel(Box<RedisSentinel>),
    /// A cluster of Redis.
    Cluster(Box<RedisCluster>),
    /// Five independent Redis servers.
    Redlock(Box<RedisQuorum>),
    /// Three servers of etcd.
    Etcd(EtcdCluster),
    /// Three servers of ZooKeeper.
    ZooKeeper(ZooKeeperEnsemble),
    /// A server of PostgreSQL, with a standby and a pooler where they are needed.
    Postgres {
        /// The server that clients reach.
        primary: Box<PostgresServer>,
        /// The one that follows it.
        standby: Option<Box<PostgresServer>>,
        /// The pooler.
        pooler: Option<PgBouncer>,
    },
    /// A server of MariaDB, with a replica where it is needed.
    MariaDb {
        /// The server that clients reach.
        primary: Box<MariaDbServer>,
        /// The one that follows it.
        replica: Option<Box<MariaDbServer>>,
    },
}

/// The commands that give etcd an administrator, and clients a user with the rights that they need.
const ETCD_LOGINS: [&str; 7] = [
    "user add root:root",
    "user grant-role root root",
    "role add locks",
    "role grant-permission locks readwrite leasehold/ --prefix=true",
    "user add jobs:secret",
    "user grant-role jobs locks",
    "auth enable",
];

/// The servers of Redlock.
pub(super) const REDLOCK: usize = 5;

impl Servers {
    pub(super) async fn start(
        store: Store,
        needs: Needs,
        directory: Option<&Path>,
        clock: Option<&ClockShim>,
        slow_disk: Option<&SlowDisk>,
    ) -> Outcome<Servers> {
        let path = || directory.map(|path| path.display().to_string()).unwrap_or_default();
        Ok(match store {
            Store::File => Servers::Embedded(format!("file:{}/locks", path())),
            Store::Sqlite => Servers::Embedded(format!("sqlite:{}/locks.db", path())),
            Store::Memcached => {
                let builder = MemcachedServer::builder();
                let builder = if needs.small { builder.memory_mb(8) } else { builder };
                Servers::Memcached(builder.start().await?)
            }
            Store::Redis => {
                let builder = RedisServer::builder();
                let builder = if needs.durable || needs.slow_disk {
                    builder.persistence(Appendonly::Always)
                } else {
                    builder
                };
                let builder = if needs.tls { builder.tls(Tls::Server) } else { builder };
                let wrapper = match (clock, slow_disk) {
                    (Some(clock), _) => Some(clock.wrapper(&builder.find()?)?),
                    (None, Some(disk)) => Some(disk.wrapper(&builder.find()?)?),
                    (None, None) => None,
                };
                let builder = match wrapper {
                    Some(wrapper) => builder.program(wrapper.display().to_string()),
                    None => builder,
                };
                Servers::Redis(Box::new(builder.start().await?))
            }
            Store::Sentinel => Servers::Sentinel(Box::new(RedisSentinel::builder().proxies().start().await?)),
            Store::Cluster => {
                let builder = RedisCluster::builder().node_timeout(std::time::Duration::from_secs(1));
                Servers::Cluster(Box::new(builder.start().await?))
            }
            Store::Redlock => Servers::Redlock(Box::new(RedisQuorum::start(REDLOCK).await?)),
            Store::Etcd => {
                let builder = EtcdCluster::builder().members(3);
                let builder =
                    if needs.small { builder.arg("--quota-backend-bytes=16777216") } else { builder };
                let builder = match slow_disk {
                    Some(disk) => {
                        let wrapper = disk.wrapper(&builder.find()?)?;
                        builder.program(wrapper)
                    }
                    None => builder,
                };
                let cluster = builder.start().await?;
                if needs.user {
                    for command in ETCD_LOGINS {
                        cluster.etcdctl(&command.split(' ').collect::<Vec<_>>())?;
                    }
                }
                Servers::Etcd(cluster)
            }
            Store::ZooKeeper => Servers::ZooKeeper(match slow_disk {
                Some(disk) => ZooKeeperEnsemble::start_by(&disk.launcher(), 3, "forceSync=yes").await?,
                None => ZooKeeperEnsemble::start(3).await?,
            }),
            _ if store.is_postgres() => Servers::postgres(needs, clock, slow_disk).await?,
            _ => Servers::mariadb(needs, clock, slow_disk).await?,
        })
    }

    async fn postgres(
        needs: Needs,
        clock: Option<&ClockShim>,
        slow_disk: Option<&SlowDisk>,
    ) -> Outcome<Servers> {
        // A standby has to allow as many connections as its primary, and the kit's has the kit's number.
        let builder = PostgresServer::builder();
        let builder = if needs.standby { builder } else { builder.setting("max_connections", "900") };
        let builder = match slow_disk {
            Some(disk) => builder.launcher(disk.launcher()).setting("fsync", "on"),
            None => builder,
        };
        let builder = match clock {
            Some(clock) => builder.launcher(clock.launcher()?),
            None => builder,
        };
        let primary = builder.start().await?;
        if needs.user {
            primary.sql("CREATE ROLE jobs LOGIN SUPERUSER").await?;
        }
        let standby = match needs.standby {
            true => Some(Box::new(primary.standby().await?)),
            false => None,
        };
        let pooler = match needs.pooler {
            true => Some(PgBouncer::start(&primary, PoolMode::Transaction, 20).await?),
            false => None,
        };
        Ok(Servers::Postgres { primary: Box::new(primary), standby, pooler })
    }

    async fn mariadb(
        needs: Needs,
        clock: Option<&ClockShim>,
        slow_disk: Option<&SlowDisk>,
    ) -> Outcome<Servers> {
        let builder = MariaDbServer::builder().setting("max-connections", "900");
        let builder = if needs.standby { builder.replicated() } else { builder };
        let builder = match slow_disk {
            Some(disk) => builder.launcher(disk.launcher()).setting("innodb-flush-method", "fsync"),
            None => builder,
        };
        let builder = match clock {
            Some(clock) => builder.launcher(clock.launcher()?),
            None => builder,
        };
        let primary = builder.start().await?;
        if needs.user {
            primary.sql("CREATE USER jobs@'127.0.0.1'; GRANT ALL ON *.* TO jobs@'127.0.0.1'").await?;
        }
        let replica = match needs.standby {
            true => Some(Box::new(primary.replica().await?)),
            false => None,
        };
        Ok(Servers::MariaDb { primary: Box::new(primary), replica })
    }

    /// Returns the addresses that clients begin at, in the order of `Servers::url_at`.
    pub fn entrances(&self) -> Vec<SocketAddr> {
        match self {
            Servers::Embedded(_) | Servers::Sentinel(_) | Servers::Cluster(_) => Vec::new(),
            Servers::Memcached(server) => vec![server.addr()],
            Servers::Redis(server) => vec![server.tls_addr().unwrap_or(server.addr())],
            Servers::Redlock(servers) => (0..servers.count()).map(|n| servers.server(n).addr()).collect(),
            Servers::Etcd(cluster) => (0..cluster.members()).map(|n| cluster.addr(n)).collect(),
            Servers::ZooKeeper(ensemble) => (0..ensemble.servers()).map(|n| ensemble.addr(n)).collect(),
            Servers::Postgres { pooler: Some(pooler), .. } => vec![pooler.addr()],
            Servers::Postgres { primary, .. } => vec![primary.addr()],
            Servers::MariaDb { primary, .. } => vec![primary.addr()],
        }
    }

    /// Returns the URL by way of these addresses.
    pub(super) fn url_at(&self, addrs: &[SocketAddr]) -> String {
        let joined = || addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        match self {
            Servers::Embedded(url) => url.clone(),
            Servers::Memcached(server) => server.url_at(addrs[0]),
            Servers::Redis(server) => match server.ca_path() {
                Some(ca) => format!("{}?ca={}", server.tls_url_at(addrs[0]), ca.display()),
                None => server.url_at(addrs[0]),
            },
            Servers::Sentinel(servers) => servers.url(),
            Servers::Cluster(cluster) => cluster.url(),
            Servers::Redlock(_) => format!("redlock://{}", joined()),
            Servers::Etcd(cluster) => cluster.url_at(addrs),
            Servers::ZooKeeper(_) => format!("zk://{}", joined()),
            Servers::Postgres { primary, .. } => primary.url_at(addrs[0]),
            Servers::MariaDb { primary, .. } => primary.url_at(addrs[0]),
        }
    }

    /// Returns the proxies that the servers themselves have, through which everybody reaches them.
    pub(super) fn own_proxies(&self) -> Vec<&Proxy> {
        match self {
            Servers::Sentinel(servers) => {
                (0..servers.servers()).filter_map(|number| servers.proxy(number).ok()).collect()
            }
            _ => Vec::new(),
        }
    }
}
