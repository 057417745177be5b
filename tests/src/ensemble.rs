//! Stores of several servers that elect a leader, with what can go wrong with one of them.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testkit::{Error, EtcdCluster, ZooKeeperEnsemble};

/// Three servers of one kind, of their own for one test.
pub enum Ensemble {
    Etcd(EtcdCluster),
    ZooKeeper(ZooKeeperEnsemble),
}

impl Ensemble {
    /// Starts etcd servers. `None`, with the reason printed, if etcd is not installed.
    pub async fn etcd() -> Option<Ensemble> {
        EtcdCluster::builder().members(SERVERS).start_or_skip().await.map(Ensemble::Etcd)
    }

    /// Starts ZooKeeper servers. `None`, with the reason printed, if ZooKeeper is not installed.
    pub async fn zookeeper() -> Option<Ensemble> {
        ZooKeeperEnsemble::start_or_skip(SERVERS).await.map(Ensemble::ZooKeeper)
    }

    pub fn addrs(&self) -> Vec<SocketAddr> {
        let addr = |server| match self {
            Ensemble::Etcd(cluster) => cluster.addr(server),
            Ensemble::ZooKeeper(ensemble) => ensemble.addr(server),
        };
        (0..SERVERS).map(addr).collect()
    }

    /// A store at these addresses, where a claim of a dead client ends after about `ttl`.
    pub fn url_at(&self, addrs: &[SocketAddr], ttl: Duration) -> String {
        match self {
            Ensemble::Etcd(cluster) => cluster.url_at(addrs),
            Ensemble::ZooKeeper(_) => {
                let addrs: Vec<String> = addrs.iter().map(ToString::to_string).collect();
                format!("zk://{}?session={}ms", addrs.join(","), ttl.as_millis())
            }
        }
    }

    pub fn url(&self, ttl: Duration) -> String {
        self.url_at(&self.addrs(), ttl)
    }

    /// Waits until a server leads. Returns which one.
    pub async fn leader(&self) -> usize {
        for _ in 0..1200 {
            let leader = match self {
                Ensemble::Etcd(cluster) => cluster.leader().await.ok(),
                Ensemble::ZooKeeper(ensemble) => ensemble.leader().await,
            };
            if let Some(leader) = leader {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("no server leads");
    }

    /// Returns how many changes of the leader each server has seen. ZooKeeper does not count them.
    pub async fn elections(&self) -> Vec<u64> {
        let mut seen = Vec::new();
        for server in 0..SERVERS {
            seen.push(self.elections_of(server).await);
        }
        seen
    }

    /// Returns how many changes of the leader a server has seen that answers.
    pub async fn elections_of(&self, server: usize) -> u64 {
        match self {
            Ensemble::Etcd(cluster) => {
                let seen = cluster.metric(server, "etcd_server_leader_changes_seen_total").await;
                seen.unwrap().unwrap_or_default() as u64
            }
            Ensemble::ZooKeeper(_) => 0,
        }
    }

    pub fn kill(&self, server: usize) -> Result<(), Error> {
        match self {
            Ensemble::Etcd(cluster) => cluster.kill(server),
            Ensemble::ZooKeeper(ensemble) => ensemble.kill(server),
        }
    }

    pub async fn restart(&self, server: usize) -> Result<(), Error> {
        match self {
            Ensemble::Etcd(cluster) => cluster.restart(server).await,
            Ensemble::ZooKeeper(ensemble) => ensemble.restart(server).await,
        }
    }

    pub fn stop(&self, server: usize) -> Result<(), Error> {
        match self {
            Ensemble::Etcd(cluster) => cluster.stop(server),
            Ensemble::ZooKeeper(ensemble) => ensemble.stop(server),
        }
    }

    pub fn resume(&self, server: usize) -> Result<(), Error> {
        match self {
            Ensemble::Etcd(cluster) => cluster.resume(server),
            Ensemble::ZooKeeper(ensemble) => ensemble.resume(server),
        }
    }
}

const SERVERS: usize = 3;
