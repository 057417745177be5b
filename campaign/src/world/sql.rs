//! Databases: statements by an administrator, and failovers.

use std::time::{Duration, Instant};

use leasehold_testkit::PostgresServer;

use super::{Network, Servers, World};
use crate::Outcome;

impl World {
    /// Runs statements as the administrator of the database.
    pub(crate) async fn sql(&self, statements: &str) -> Outcome<String> {
        match &self.servers {
            Servers::Postgres { primary, .. } => Ok(primary.sql(statements).await?),
            Servers::MariaDb { primary, .. } => Ok(primary.sql(statements).await?),
            _ => Err("the store is not in a database".into()),
        }
    }

    /// Ends every session of clients, as an administrator does. Returns how many there were.
    pub(crate) async fn end_sessions(&self) -> Outcome<usize> {
        match &self.servers {
            Servers::Postgres { primary, .. } => {
                let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                           WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
                Ok(primary.sql(end).await?.trim().parse()?)
            }
            Servers::MariaDb { primary, .. } => {
                let list = "SELECT id FROM information_schema.processlist WHERE host LIKE '127.0.0.1%'";
                let mut ended = 0;
                for id in primary.sql(list).await?.split_whitespace() {
                    // One that has just ended by itself is not a fault.
                    ended += usize::from(primary.sql(&format!("KILL {id}")).await.is_ok());
                }
                Ok(ended)
            }
            _ => Err("the store is not in a database".into()),
        }
    }

    /// Cuts the standby of a database off, and kills the primary when the standby has missed what happened in this time,
    /// and anything at all. Returns how much of the primary's log that was at least, and in what it is counted; none
    /// without a standby.
    pub(crate) async fn kill_ahead_of_standby(
        &self,
        missed: Duration,
    ) -> Outcome<Option<(u64, &'static str)>> {
        match &self.servers {
            Servers::Postgres { primary, standby: Some(standby), .. } => {
                unfollow(standby).await?;
                tokio::time::sleep(missed).await;
                let known = standby.sql("SELECT pg_last_wal_receive_lsn()").await?;
                let question =
                    format!("SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '{}')::bigint", known.trim());
                let deadline = Instant::now() + TO_WRITE;
                let mut lost: i64 = 0;
                while lost <= 0 && Instant::now() < deadline {
                    lost = primary.sql(&question).await?.trim().parse()?;
                }
                let lost = u64::try_from(lost).unwrap_or(0);
                primary.kill()?;
                Ok(Some((lost, "bytes of its log")))
            }
            Servers::MariaDb { primary, replica: Some(replica) } => {
                replica.sql("STOP SLAVE").await?;
                tokio::time::sleep(missed).await;
                let known = last_transaction(&replica.sql("SELECT @@gtid_slave_pos").await?)?;
                let deadline = Instant::now() + TO_WRITE;
                let mut lost = 0;
                while lost == 0 && Instant::now() < deadline {
                    let written = last_transaction(&primary.sql("SELECT @@gtid_binlog_pos").await?)?;
                    lost = written.saturating_sub(known);
                }
                primary.kill()?;
                Ok(Some((lost, "transactions")))
            }
            _ => Ok(None),
        }
    }

    /// Promotes the standby, and leads the clients of these networks to it.
    pub(crate) async fn promote(&self, networks: &[Network]) -> Outcome {
        let addr = match &self.servers {
            Servers::Postgres { standby: Some(standby), .. } => {
                standby.promote().await?;
                standby.addr()
            }
            Servers::MariaDb { replica: Some(replica), .. } => {
                replica.promote().await?;
                replica.addr()
            }
            _ => return Err("the store has no standby".into()),
        };
        for network in networks {
            self.lead_to(*network, &[addr]);
            // Connections that stayed open lead to the old primary.
            self.reset(*network)?;
            for proxy in self.proxies(*network) {
                proxy.heal()?;
            }
        }
        Ok(())
    }

    /// Makes the promoted standby the primary for everybody, ends the old one, and begins another standby.
    pub(crate) async fn replace_primary(&mut self) -> Outcome {
        match &mut self.servers {
            Servers::Postgres { primary, standby, .. } => {
                let promoted = standby.take().ok_or("the store has no standby")?;
                let old: Box<PostgresServer> = std::mem::replace(primary, promoted);
                old.kill()?;
                *standby = Some(Box::new(primary.standby().await?));
            }
            Servers::MariaDb { primary, replica } => {
                let promoted = replica.take().ok_or("the store has no replica")?;
                let old = std::mem::replace(primary, promoted);
                old.kill()?;
            }
            _ => return Err("the store is not in a database".into()),
        }
        let addrs = self.servers.entrances();
        for network in [Network::Even, Network::Odd] {
            self.lead_to(network, &addrs);
        }
        Ok(())
    }
}

/// Lets a standby of PostgreSQL follow nobody. One that is stopped would read later what the primary has written into its
/// socket.
async fn unfollow(standby: &PostgresServer) -> Outcome {
    // Nobody listens on this port.
    standby.sql("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'").await?;
    standby.sql("SELECT pg_reload_conf()").await?;
    let receiving = "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'";
    let deadline = Instant::now() + TO_PART;
    while standby.sql(receiving).await?.trim() != "0" {
        if Instant::now() > deadline {
            return Err("the standby follows its primary all the same".into());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Returns the number of a transaction of MariaDB: the last part of `domain-server-number`.
fn last_transaction(position: &str) -> Outcome<u64> {
    let number = position.trim().rsplit('-').next().unwrap_or_default();
    number.parse().map_err(|_| format!("{position:?} is not a position of a log").into())
}

/// The time in which a standby sees that it follows nobody.
const TO_PART: Duration = Duration::from_secs(20);
/// The time in which a primary writes something; some locks write little.
const TO_WRITE: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use leasehold_testkit::require;

    use super::*;
    use crate::Store;
    use crate::world::Needs;

    /// Waits until the standby has all that was written so far.
    async fn await_standby(world: &World) {
        match &world.servers {
            Servers::Postgres { primary, .. } => primary.await_standbys(1).await.unwrap(),
            Servers::MariaDb { primary, replica: Some(replica) } => {
                replica.await_replication(primary).await.unwrap();
            }
            _ => panic!("the store has no standby"),
        }
    }

    /// Checks that the promoted server lacks writes that the primary confirmed after the standby was cut off.
    async fn loses_the_last_writes(store: Store) {
        let mut world = match World::start(store, Needs { standby: true, ..Needs::default() }).await {
            Ok(world) => world,
            Err(error) => match error.downcast_ref::<leasehold_testkit::Error>() {
                Some(missing) if missing.is_missing() => {
                    return require::skip(store.word(), &missing.to_string());
                }
                _ => panic!("{error}"),
            },
        };
        world.sql("CREATE TABLE written (n bigint)").await.unwrap();
        await_standby(&world).await;
        // A primary that is not killed would take writes for ever.
        let ended = Cell::new(false);
        let writes = async {
            let mut confirmed = 0;
            while !ended.get()
                && world.sql(&format!("INSERT INTO written VALUES ({confirmed})")).await.is_ok()
            {
                confirmed += 1;
            }
            confirmed
        };
        let kill = async {
            // Each write is a program that starts, which takes its time on a busy machine.
            let lost = world.kill_ahead_of_standby(Duration::from_secs(2)).await;
            ended.set(true);
            lost
        };
        let (confirmed, lost) = tokio::join!(writes, kill);
        let (lost, unit) = lost.unwrap().unwrap();
        world.promote(&[Network::Even, Network::Odd]).await.unwrap();
        world.replace_primary().await.unwrap();
        // What was confirmed before, such as the table, is there.
        let kept: u64 = world.sql("SELECT count(*) FROM written").await.unwrap().trim().parse().unwrap();
        println!("{store}: {kept} of {confirmed} writes are kept, {lost} {unit} are lost");
        assert!(lost > 0 && kept < confirmed, "{kept} of {confirmed}, {lost} {unit}");
    }

    #[tokio::test]
    async fn failover_of_postgres_loses_the_last_writes() {
        loses_the_last_writes(Store::Postgres).await;
    }

    #[tokio::test]
    async fn failover_of_mariadb_loses_the_last_writes() {
        loses_the_last_writes(Store::MariaDb).await;
    }
}
