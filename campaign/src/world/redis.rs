//! Servers of Redis in all their forms.

use std::any::Any;
use std::time::Duration;

use leasehold::layer::Quorum;
use leasehold_testkit::RedisServer;

use super::nodes::SLOT;
use super::{Servers, World};
use crate::Outcome;

impl World {
    /// Returns all servers of Redis, running or not.
    pub(crate) fn redis_servers(&self) -> Vec<&RedisServer> {
        match &self.servers {
            Servers::Redis(server) => vec![&**server],
            Servers::Sentinel(servers) => (0..servers.servers()).map(|n| servers.server(n)).collect(),
            Servers::Cluster(cluster) => (0..cluster.members()).map(|n| cluster.member(n)).collect(),
            Servers::Redlock(servers) => (0..servers.count()).map(|n| servers.server(n)).collect(),
            _ => Vec::new(),
        }
    }

    /// Sends a command to each server of Redis that answers. Returns how many did.
    pub(crate) async fn send_to_redis(&self, words: &[&str]) -> usize {
        let mut answered = 0;
        for server in self.redis_servers() {
            answered += usize::from(server.command(words).await.is_ok());
        }
        answered
    }

    /// Sends a command to each server of Redis, and returns the sum of their answers.
    pub(crate) async fn sum_of_redis(&self, words: &[&str]) -> usize {
        let mut sum = 0;
        for server in self.redis_servers() {
            let answer = server.command(words).await.and_then(|answer| answer.into_text());
            sum += answer.ok().and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(0);
        }
        sum
    }

    /// Ends all connections of a kind by force, and returns how many there were.
    pub(crate) async fn end_clients(&self, kind: &str) -> usize {
        self.sum_of_redis(&["CLIENT", "KILL", "TYPE", kind]).await
    }

    /// Gives each server of Redlock its vote, as an operator does who has set them up.
    pub(super) async fn arm(&self) -> Outcome {
        let locks = self.client().await?;
        let backend: &dyn Any = &**locks.backend();
        if let Some(quorum) = backend.downcast_ref::<Quorum>() {
            quorum.rearm().await?;
        }
        locks.close(Duration::from_secs(5)).await;
        Ok(())
    }

    /// Lets the replicas miss what the primary does for a while, then kills it. Returns its number.
    pub(crate) async fn kill_ahead_of_replicas(&self, missed: Duration) -> Outcome<usize> {
        let old = self.leader(0).await?;
        let parted = self.replicas_of(old).await?;
        for replica in &parted {
            self.stop(*replica)?;
        }
        // What waits in sockets would arrive after all.
        self.redis_servers()[old].command(&["CLIENT", "KILL", "TYPE", "replica"]).await?;
        tokio::time::sleep(missed).await;
        self.kill(old)?;
        for replica in &parted {
            self.resume(*replica)?;
        }
        Ok(old)
    }

    async fn replicas_of(&self, primary: usize) -> Outcome<Vec<usize>> {
        match &self.servers {
            Servers::Sentinel(servers) => {
                Ok((0..servers.servers()).filter(|server| *server != primary).collect())
            }
            Servers::Cluster(cluster) => {
                let port = cluster.member(primary).port().to_string();
                let mut replicas = Vec::new();
                for member in 0..cluster.members() {
                    let followed = cluster.member(member).info_field("master_port").await?;
                    replicas.extend((followed.as_deref() == Some(&port)).then_some(member));
                }
                Ok(replicas)
            }
            _ => Err("only elected servers of Redis have replicas".into()),
        }
    }

    /// Waits for another primary than this one.
    pub(crate) async fn promoted(&self, old: usize) -> Outcome<usize> {
        match &self.servers {
            Servers::Sentinel(servers) => Ok(servers.promoted(old).await?),
            Servers::Cluster(cluster) => Ok(cluster.promoted(SLOT, old).await?),
            _ => Err("only elected servers of Redis are promoted".into()),
        }
    }
}
