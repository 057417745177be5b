//! Databases: statements by an administrator, and failovers.

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
