//! Faults and questions for single servers of any store: they are numbered from 0 on.

use std::time::{Duration, Instant};

use leasehold_testkit::Data;

use super::{Servers, World};
use crate::Outcome;

/// The slot whose primary is meant on a cluster. The kit gives the first third of all slots to one server.
pub(super) const SLOT: u16 = 0;

impl World {
    /// Returns how many servers there are.
    pub fn nodes(&self) -> usize {
        match &self.servers {
            Servers::Embedded(_) => 0,
            Servers::Memcached(_) | Servers::Redis(_) => 1,
            Servers::Sentinel(servers) => servers.servers(),
            Servers::Cluster(cluster) => cluster.members(),
            Servers::Redlock(servers) => servers.count(),
            Servers::Etcd(cluster) => cluster.members(),
            Servers::ZooKeeper(ensemble) => ensemble.servers(),
            Servers::Postgres { .. } | Servers::MariaDb { .. } => 1,
        }
    }

    /// Returns the server that decides now: the leader, the primary, or the only one. Of Redlock's servers none
    /// does, and a number picks one.
    ///
    /// # Errors
    /// If no server leads within a minute.
    pub async fn leader(&self, pick: u64) -> Outcome<usize> {
        match &self.servers {
            Servers::Sentinel(servers) => Ok(servers.primary().await?),
            Servers::Cluster(cluster) => Ok(cluster.primary_of(SLOT).await?),
            Servers::Redlock(servers) => Ok(usize::try_from(pick)? % servers.count()),
            Servers::Etcd(cluster) => Ok(cluster.leader().await?),
            Servers::ZooKeeper(ensemble) => {
                let end = Instant::now() + Duration::from_secs(60);
                loop {
                    if let Some(leader) = ensemble.leader().await {
                        return Ok(leader);
                    }
                    if Instant::now() > end {
                        return Err("no server of ZooKeeper leads within a minute".into());
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            _ => Ok(0),
        }
    }

    /// Stops a server (SIGSTOP).
    ///
    /// # Errors
    /// If it does not run.
    pub fn stop(&self, node: usize) -> Outcome {
        match &self.servers {
            Servers::Embedded(_) => return Err("a store without servers has none to stop".into()),
            Servers::Memcached(server) => server.stop()?,
            Servers::Redis(server) => server.stop()?,
            Servers::Sentinel(servers) => servers.stop(node)?,
            Servers::Cluster(cluster) => cluster.stop(node)?,
            Servers::Redlock(servers) => servers.server(node).stop()?,
            Servers::Etcd(cluster) => cluster.stop(node)?,
            Servers::ZooKeeper(ensemble) => ensemble.stop(node)?,
            Servers::Postgres { primary, .. } => primary.stop()?,
            Servers::MariaDb { primary, .. } => primary.stop()?,
        }
        Ok(())
    }

    /// Continues a server.
    ///
    /// # Errors
    /// If it does not run.
    pub fn resume(&self, node: usize) -> Outcome {
        match &self.servers {
            Servers::Embedded(_) => return Err("a store without servers has none to continue".into()),
            Servers::Memcached(server) => server.resume()?,
            Servers::Redis(server) => server.resume()?,
            Servers::Sentinel(servers) => servers.resume(node)?,
            Servers::Cluster(cluster) => cluster.resume(node)?,
            Servers::Redlock(servers) => servers.server(node).resume()?,
            Servers::Etcd(cluster) => cluster.resume(node)?,
            Servers::ZooKeeper(ensemble) => ensemble.resume(node)?,
            Servers::Postgres { primary, .. } => primary.resume()?,
            Servers::MariaDb { primary, .. } => primary.resume()?,
        }
        Ok(())
    }

    /// Kills a server (SIGKILL).
    ///
    /// # Errors
    /// If it cannot be killed.
    pub fn kill(&self, node: usize) -> Outcome {
        match &self.servers {
            Servers::Embedded(_) => return Err("a store without servers has none to kill".into()),
            Servers::Memcached(server) => server.kill()?,
            Servers::Redis(server) => server.kill()?,
            Servers::Sentinel(servers) => servers.kill(node)?,
            Servers::Cluster(cluster) => cluster.kill(node)?,
            Servers::Redlock(servers) => servers.server(node).kill()?,
            Servers::Etcd(cluster) => cluster.kill(node)?,
            Servers::ZooKeeper(ensemble) => ensemble.kill(node)?,
            Servers::Postgres { primary, .. } => primary.kill()?,
            Servers::MariaDb { primary, .. } => primary.kill()?,
        }
        Ok(())
    }

    /// Starts a server again, running or not, and waits until it answers. Servers that confirm in a majority keep
    /// their data in either case.
    ///
    /// # Errors
    /// If it does not come up.
    pub async fn restart(&self, node: usize, data: Data) -> Outcome {
        match &self.servers {
            Servers::Embedded(_) => return Err("a store without servers has none to restart".into()),
            Servers::Memcached(server) => {
                server.kill()?;
                server.restart().await?;
            }
            Servers::Redis(server) => server.restart(data).await?,
            Servers::Sentinel(servers) => servers.restart(node, data).await?,
            Servers::Cluster(cluster) => cluster.restart(node, data).await?,
            Servers::Redlock(servers) => servers.server(node).restart(data).await?,
            Servers::Etcd(cluster) => {
                cluster.kill(node)?;
                cluster.restart(node).await?;
            }
            Servers::ZooKeeper(ensemble) => {
                ensemble.kill(node)?;
                ensemble.restart(node).await?;
            }
            Servers::Postgres { primary, .. } => primary.restart(data).await?,
            Servers::MariaDb { primary, .. } => primary.restart(data).await?,
        }
        Ok(())
    }

    /// Waits until the servers agree again, where they have to.
    ///
    /// # Errors
    /// If they do not within a minute.
    pub async fn settle(&self) -> Outcome {
        match &self.servers {
            Servers::Sentinel(servers) => servers.settle().await?,
            Servers::Cluster(cluster) => cluster.settle().await?,
            Servers::Redlock(_) => self.await_votes().await?,
            Servers::Etcd(_) | Servers::ZooKeeper(_) => drop(self.leader(0).await?),
            _ => {}
        }
        Ok(())
    }

    /// Returns what the wall clock of the server shows, since 1970, in whole seconds.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn server_time(&self) -> Outcome<Duration> {
        let seconds = match &self.servers {
            Servers::Redis(server) => {
                let time = server.command(&["TIME"]).await?.into_texts()?;
                time.into_iter().next().ok_or("the server answers with no time")?
            }
            Servers::Postgres { .. } => {
                self.sql("SELECT floor(extract(epoch FROM clock_timestamp()))::bigint").await?
            }
            Servers::MariaDb { .. } => self.sql("SELECT UNIX_TIMESTAMP()").await?,
            _ => return Err("this server is not asked for the time".into()),
        };
        Ok(Duration::from_secs(seconds.trim().parse()?))
    }

    /// Returns the version of the server, or of the library that is the store.
    pub async fn version(&self) -> String {
        self.asked_version().await.unwrap_or_else(|_| "unknown".to_owned())
    }

    async fn asked_version(&self) -> Outcome<String> {
        let of_info = |version: Option<String>| version.ok_or("the server does not name its version");
        let redis = |version: Option<String>| Ok::<_, &str>(format!("Redis {}", of_info(version)?));
        Ok(match &self.servers {
            Servers::Embedded(url) if url.starts_with("sqlite") => "bundled SQLite".to_owned(),
            Servers::Embedded(_) => {
                let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
                format!("Linux {}", release.split(['-', '\n']).next().unwrap_or_default())
            }
            Servers::Memcached(server) => {
                let answer = server.ask("version\r\n", "\r\n").await?;
                let line = answer.lines().next().unwrap_or_default();
                format!("memcached {}", line.trim_start_matches("VERSION "))
            }
            Servers::Redis(server) => redis(server.info_field("redis_version").await?)?,
            Servers::Sentinel(servers) => redis(servers.server(0).info_field("redis_version").await?)?,
            Servers::Cluster(cluster) => redis(cluster.member(0).info_field("redis_version").await?)?,
            Servers::Redlock(servers) => redis(servers.server(0).info_field("redis_version").await?)?,
            Servers::Etcd(cluster) => {
                let answer = cluster.etcdctl(&["endpoint", "status", "-w", "json"])?;
                let version = answer.split("\"version\":\"").nth(1).and_then(|rest| rest.split('"').next());
                format!("etcd {}", version.unwrap_or("of an unknown version"))
            }
            Servers::ZooKeeper(ensemble) => {
                let answer = ensemble.ask(0, "srvr").await?;
                let version = answer.split(": ").nth(1).and_then(|rest| rest.split(['-', ',']).next());
                format!("ZooKeeper {}", version.unwrap_or("of an unknown version"))
            }
            Servers::Postgres { primary, .. } => {
                let version = primary.sql("SHOW server_version").await?;
                format!("PostgreSQL {}", version.split_whitespace().next().unwrap_or_default())
            }
            Servers::MariaDb { primary, .. } => {
                let version = primary.sql("SELECT VERSION()").await?;
                let title = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
                format!("{title} {}", version.split('-').next().unwrap_or_default().trim())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use leasehold_testkit::require;

    use super::*;
    use crate::Store;
    use crate::world::Needs;

    const DAY: u64 = 86_400;

    /// A server whose clock is stepped says so itself.
    async fn clock_of_a_server_steps(store: Store) {
        let needs = Needs { clock: true, ..Needs::default() };
        let world = match World::start(store, needs).await {
            Ok(world) => world,
            Err(error) => match error.downcast_ref::<leasehold_testkit::Error>() {
                Some(missing) if missing.is_missing() => {
                    return require::skip(store.word(), &missing.to_string());
                }
                _ => panic!("{error}"),
            },
        };
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let shown = async || world.server_time().await.unwrap().as_secs();
        let (before, here) = (now(), shown().await);
        assert!((before..=now()).contains(&here), "{here} is not between {before} and {}", now());
        world.clock.as_ref().unwrap().set(DAY as i64).unwrap();
        assert!(shown().await >= before + DAY, "the step did not reach the server");
        world.clock.as_ref().unwrap().set(0).unwrap();
        assert!(shown().await < before + DAY);
    }

    #[tokio::test]
    async fn clock_of_redis_steps() {
        clock_of_a_server_steps(Store::Redis).await;
    }

    #[tokio::test]
    async fn clock_of_postgres_steps() {
        clock_of_a_server_steps(Store::Postgres).await;
    }

    #[tokio::test]
    async fn clock_of_mariadb_steps() {
        clock_of_a_server_steps(Store::MariaDb).await;
    }
}
