//! Operators that act on stores, and machines that are full.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold_testkit::{Data, Way};

use super::nodes::SLOT;
use super::{Effect, Network, Servers, World};
use crate::{Outcome, Store};

impl World {
    /// Cuts one server off from the clients of one network.
    pub(crate) fn cut_off(&self, network: Network, server: usize) {
        if let Some(proxy) = self.networks[network.index()].get(server) {
            proxy.blackhole(Way::Both);
        }
    }

    /// Deletes the locks by hand, and returns how, and how many keys, items, rows, nodes or files there were.
    pub(crate) async fn delete_locks(&self, prefix: &str, pick: u64) -> Outcome<Effect> {
        let before = self.residents().await?;
        match &self.servers {
            Servers::Embedded(url) => {
                // A file that is made meanwhile stays.
                let removed = match database(url) {
                    Some(path) => remove_with_log(&path),
                    None => std::fs::remove_dir_all(url.trim_start_matches("file:")),
                };
                let part = if removed.is_ok() { "" } else { " in part" };
                Ok(Effect::new(format!("the store's files are removed{part}"), before))
            }
            Servers::Memcached(server) => {
                server.flush_all().await?;
                Ok(Effect::new("flush_all", before))
            }
            Servers::Redlock(servers) => {
                let number = usize::try_from(pick % servers.count() as u64)?;
                let keys = servers.server(number).command(&["DBSIZE"]).await?.into_text()?;
                servers.server(number).flushall().await?;
                Ok(Effect::new(format!("FLUSHALL of server {number}"), keys.trim().parse::<u64>()?))
            }
            Servers::Etcd(cluster) => {
                let answer = cluster.etcdctl(&["del", "--prefix", "leasehold/"])?;
                Ok(Effect::new("keys are deleted", answer.trim().parse::<u64>()?))
            }
            Servers::ZooKeeper(_) => {
                Ok(Effect::new("nodes of holders are deleted", self.break_all(prefix).await?))
            }
            Servers::Postgres { .. } | Servers::MariaDb { .. } => {
                self.sql("DELETE FROM leasehold").await?;
                Ok(Effect::new("all rows are deleted", before))
            }
            // Those of replicas answer with an error.
            _ => {
                let wiped = self.send_to_redis(&["FLUSHALL"]).await;
                Ok(Effect::new(format!("FLUSHALL of {wiped} servers"), before))
            }
        }
    }

    /// Ends the claim of each holder by force.
    async fn break_all(&self, prefix: &str) -> Outcome<usize> {
        let locks = self.client().await?;
        let mut broken = 0;
        for found in locks.list(prefix, None, 100).await? {
            let name = found.resource.as_str();
            for holder in locks.inspect(name).await?.holders {
                // One that has released meanwhile is gone.
                broken += usize::from(locks.break_claim(name, &holder).await.is_ok());
            }
        }
        locks.close(Duration::from_secs(5)).await;
        Ok(broken)
    }

    /// Revokes every lease of etcd, and returns how many there were.
    pub(crate) fn revoke_leases(&self) -> Outcome<usize> {
        let Servers::Etcd(cluster) = &self.servers else {
            return Err("only etcd has leases of its own".into());
        };
        let list = cluster.etcdctl(&["lease", "list"])?;
        let mut revoked = 0;
        for lease in list.lines().map(str::trim).filter(|line| line.len() == 16 && !line.contains(' ')) {
            revoked += usize::from(cluster.etcdctl(&["lease", "revoke", lease]).is_ok());
        }
        Ok(revoked)
    }

    /// Compacts all revisions of etcd but the newest.
    pub(crate) fn compact(&self) -> Outcome {
        let Servers::Etcd(cluster) = &self.servers else { return Err("only etcd compacts".into()) };
        let answer = cluster.etcdctl(&["get", "leasehold-campaign", "-w", "json"])?;
        let revision = answer.split("\"revision\":").nth(1).ok_or("etcd names no revision")?;
        let digits: String = revision.chars().take_while(char::is_ascii_digit).collect();
        cluster.etcdctl(&["compact", &digits])?;
        Ok(())
    }

    /// Fills what the server has for its data.
    pub(crate) async fn fill(&self) -> Outcome<Effect> {
        match &self.servers {
            Servers::Embedded(_) => {
                let filled = self.disk.as_ref().ok_or("the files have no disk of their own")?.fill()?;
                Ok(Effect::new("the disk is filled", filled / 4_096))
            }
            Servers::Memcached(server) => {
                let before = server.stat("evictions").await?;
                server.fill(20_000, 1_000).await?;
                let evicted = server.stat("evictions").await?.saturating_sub(before);
                Ok(Effect::new("the memory is filled with other items, and items are evicted", evicted))
            }
            Servers::Etcd(cluster) => {
                let value = "x".repeat(100_000);
                let is_refused = |n| cluster.etcdctl(&["put", &format!("full/{n}"), &value]).is_err();
                let refused = (0..400).any(is_refused);
                Ok(Effect::new("the database has reached its quota", u64::from(refused)))
            }
            _ => {
                let full = self.send_to_redis(&["CONFIG", "SET", "maxmemory", "1"]).await;
                Ok(Effect::new("servers refuse to store more", full))
            }
        }
    }

    /// Makes room again.
    pub(crate) async fn empty(&self) -> Outcome {
        match &self.servers {
            Servers::Embedded(_) => {
                self.disk.as_ref().ok_or("the files have no disk of their own")?.empty()?
            }
            Servers::Memcached(_) => {}
            Servers::Etcd(cluster) => {
                cluster.etcdctl(&["del", "--prefix", "full/"])?;
                self.compact()?;
                cluster.etcdctl(&["defrag"])?;
                cluster.etcdctl(&["alarm", "disarm"])?;
            }
            _ => drop(self.send_to_redis(&["CONFIG", "SET", "maxmemory", "0"]).await),
        }
        Ok(())
    }

    /// Makes a copy of the database file, as it is now.
    pub(crate) fn back_up_database(&self) -> Outcome {
        let path = self.database()?;
        let copy = path.with_extension("older");
        // One that was not restored.
        let _ = std::fs::remove_file(&copy);
        let connection = rusqlite::Connection::open(&path)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.execute("VACUUM INTO ?1", [copy.to_str().ok_or("the path is no text")?])?;
        Ok(())
    }

    /// Puts the copy in the place of the database file, which clients have open.
    pub(crate) fn restore_database(&self) -> Outcome {
        let path = self.database()?;
        remove_log(&path);
        Ok(std::fs::rename(path.with_extension("older"), &path)?)
    }

    fn database(&self) -> Outcome<PathBuf> {
        let Servers::Embedded(url) = &self.servers else {
            return Err("only SQLite has a database file".into());
        };
        Ok(database(url).ok_or("only SQLite has a database file")?)
    }

    /// Restarts each server in its turn, with its data, and returns how many were. Before that the primary of elected servers
    /// hands over to another one, and a slot of a cluster moves.
    pub(crate) async fn roll(&self) -> Outcome<Effect> {
        let before = match &self.servers {
            Servers::Cluster(cluster) => {
                let from = cluster.primary_of(SLOT).await?;
                let to = (0..3).map(|third| third * 16_384 / 3 + 1);
                for slot in to {
                    let owner = cluster.primary_of(u16::try_from(slot)?).await?;
                    if owner != from {
                        cluster.move_slot(SLOT, owner).await?;
                        break;
                    }
                }
                cluster.fail_over(cluster.primary_of(SLOT).await?).await?;
                cluster.settle().await?;
                "a slot moved, its primary handed over, and then "
            }
            Servers::Sentinel(servers) => {
                servers.failover().await?;
                servers.settle().await?;
                "the primary handed over, and then "
            }
            _ => "",
        };
        let mut restarted = 0_u64;
        for server in 0..self.nodes() {
            self.restart(server, Data::Keep).await?;
            restarted += 1;
            self.settle().await?;
        }
        Ok(Effect::new(format!("{before}all servers restarted in turn"), restarted))
    }

    /// Waits until each server of Redlock has its vote again, which takes a longest lease and a client that asks.
    pub(super) async fn await_votes(&self) -> Outcome {
        let end = Instant::now() + Duration::from_secs(60);
        for server in self.redis_servers() {
            loop {
                let mark = server.command(&["GET", "{lh:}:mark"]).await?.into_text().unwrap_or_default();
                let run = server.info_field("run_id").await?.unwrap_or_default();
                if mark.ends_with(&run) {
                    break;
                }
                if Instant::now() > end {
                    return Err("not all servers have their vote again within a minute".into());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }

    /// Counts what the store keeps: keys, items, rows, nodes or files.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn residents(&self) -> Outcome<u64> {
        match &self.servers {
            Servers::Embedded(url) if self.store == Store::File => {
                Ok(count_files(Path::new(url.trim_start_matches("file:"))))
            }
            Servers::Embedded(url) => {
                let path = url.trim_start_matches("sqlite:");
                Ok(std::fs::metadata(path)?.len() / 4_096)
            }
            Servers::Memcached(server) => Ok(server.stat("curr_items").await?),
            Servers::Etcd(cluster) => {
                let keys = cluster.metric(0, "etcd_debugging_mvcc_keys_total").await?;
                Ok(keys.unwrap_or_default() as u64)
            }
            Servers::ZooKeeper(ensemble) => Ok(ensemble.metric(0, "zk_znode_count").await? as u64),
            Servers::Postgres { .. } | Servers::MariaDb { .. } => {
                Ok(self.sql("SELECT count(*) FROM leasehold").await?.trim().parse()?)
            }
            _ => {
                let mut keys = 0;
                for server in self.redis_servers() {
                    let size = server.command(&["DBSIZE"]).await?.into_text()?;
                    keys += size.trim().parse::<u64>()?;
                }
                Ok(keys)
            }
        }
    }
}

/// Returns the file of a database by its URL.
fn database(url: &str) -> Option<PathBuf> {
    url.strip_prefix("sqlite:").map(PathBuf::from)
}

/// Removes a database with all that SQLite keeps beside it.
fn remove_with_log(path: &Path) -> std::io::Result<()> {
    let removed = std::fs::remove_file(path);
    remove_log(path);
    removed
}

fn remove_log(path: &Path) {
    for end in ["-wal", "-shm"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(end);
        // It exists only while the database is open.
        let _ = std::fs::remove_file(beside);
    }
}

fn count_files(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => count_files(&entry.path()),
            _ => 1,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use leasehold_testkit::require;

    use super::*;
    use crate::world::Needs;

    async fn run_ids(world: &World) -> Vec<String> {
        let mut ids = Vec::new();
        for server in world.redis_servers() {
            ids.push(server.info_field("run_id").await.unwrap().unwrap());
        }
        ids
    }

    /// A server that was restarted is another run of its program, and the effect says how many there were.
    async fn every_server_restarts(store: Store) {
        let world = match World::start(store, Needs::default()).await {
            Ok(world) => world,
            Err(error) => match error.downcast_ref::<leasehold_testkit::Error>() {
                Some(missing) if missing.is_missing() => return require::skip("redis", &missing.to_string()),
                _ => panic!("{error}"),
            },
        };
        let leader = world.redis_servers()[world.leader(0).await.unwrap()];
        leader.command(&["SET", KEY, "kept"]).await.unwrap();
        leader.replicated(1).await.unwrap();
        let before = run_ids(&world).await;
        let effect = world.roll().await.unwrap();
        let after = run_ids(&world).await;
        let restarted = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert_eq!(restarted, world.nodes(), "servers are still those of before: {before:?} {after:?}");
        assert_eq!(effect.count, restarted as u64, "{effect:?}");
        let leader = world.redis_servers()[world.leader(0).await.unwrap()];
        assert_eq!(leader.command(&["GET", KEY]).await.unwrap().into_text().unwrap(), "kept", "{effect:?}");
    }

    /// A key in the slot that moves.
    const KEY: &str = "06S";

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_server_of_sentinel_restarts() {
        every_server_restarts(Store::Sentinel).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_server_of_a_cluster_restarts() {
        every_server_restarts(Store::Cluster).await;
    }
}
