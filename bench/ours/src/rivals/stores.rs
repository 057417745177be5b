//! The servers that the contestants share.

use leasehold_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisServer, ZooKeeperEnsemble,
};
use tempfile::TempDir;

use super::own::REDLOCK_TTL;
use crate::Outcome;
use crate::effort::server_cpu;

/// The servers that a scenario needs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Needs {
    Nothing,
    Folder,
    Redis(usize),
    Postgres { syncs: bool },
    MariaDb { syncs: bool },
    Memcached,
    Etcd,
    ZooKeeper,
}

/// They run.
pub(super) enum Store {
    Nothing,
    Folder(TempDir),
    Redis(Vec<RedisServer>),
    Postgres(PostgresServer),
    MariaDb(MariaDbServer),
    Memcached(MemcachedServer),
    Etcd(EtcdCluster),
    ZooKeeper(ZooKeeperEnsemble),
}

/// The work of servers so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Commands of clients, and those that scripts call.
    pub(super) commands: f64,
    pub(super) cpu: f64,
    pub(super) connections: f64,
}

impl Store {
    pub(super) async fn start(needs: Needs) -> Outcome<Store> {
        Ok(match needs {
            Needs::Nothing => Store::Nothing,
            Needs::Folder => Store::Folder(tempfile::tempdir()?),
            Needs::Redis(count) => {
                let mut servers = Vec::new();
                for _ in 0..count {
                    servers.push(RedisServer::start().await?);
                }
                Store::Redis(servers)
            }
            Needs::Postgres { syncs } => {
                let server = PostgresServer::builder().setting("max_connections", "500");
                let server = server.setting("fsync", if syncs { "on" } else { "off" });
                Store::Postgres(server.start().await?)
            }
            Needs::MariaDb { syncs } => {
                // As large as the server's own defaults.
                let server = MariaDbServer::builder()
                    .setting("innodb-log-file-size", "96M")
                    .setting("innodb-buffer-pool-size", "128M")
                    .setting("max-connections", "500")
                    .setting("innodb-flush-method", if syncs { "fsync" } else { "nosync" });
                Store::MariaDb(server.start().await?)
            }
            Needs::Memcached => Store::Memcached(MemcachedServer::start().await?),
            Needs::Etcd => Store::Etcd(EtcdCluster::builder().start().await?),
            Needs::ZooKeeper => Store::ZooKeeper(ZooKeeperEnsemble::start(1).await?),
        })
    }

    /// Returns the URL as leasehold takes it, and most others too; of several servers, that of the first.
    pub(super) fn url(&self) -> String {
        match self {
            Store::Nothing => "mem:".to_owned(),
            Store::Folder(folder) => format!("file://{}", folder.path().join("store").display()),
            Store::Redis(servers) => servers.first().map(RedisServer::url).unwrap_or_default(),
            Store::Postgres(server) => server.url(),
            Store::MariaDb(server) => server.url(),
            Store::Memcached(server) => server.url(),
            Store::Etcd(server) => server.url(),
            Store::ZooKeeper(server) => server.url(),
        }
    }

    /// Returns a path in its folder.
    pub(super) fn path(&self, name: &str) -> String {
        match self {
            Store::Folder(folder) => folder.path().join(name).display().to_string(),
            _ => name.to_owned(),
        }
    }

    /// Returns the URLs of all servers, with commas between.
    pub(super) fn urls(&self) -> String {
        match self {
            Store::Redis(servers) => servers.iter().map(RedisServer::url).collect::<Vec<_>>().join(","),
            _ => self.url(),
        }
    }

    /// Returns the URL of a quorum of all servers.
    pub(super) fn redlock(&self) -> String {
        let Store::Redis(servers) = self else { return self.url() };
        let at: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
        // Members begin to count once the longest ttl has passed.
        format!("redlock://{}?max-ttl={}s", at.join(","), REDLOCK_TTL.as_secs())
    }

    /// Returns the work of its servers, where they report it command by command.
    pub(super) async fn work(&self) -> Outcome<Option<Work>> {
        let Store::Redis(servers) = self else { return Ok(None) };
        let mut work = Work::default();
        for server in servers {
            let counts = server.counts().await?;
            work.commands += counts.total() as f64;
            work.connections += counts.connections as f64;
            work.cpu += server_cpu(server).await?.as_secs_f64();
        }
        Ok(Some(work))
    }
}
