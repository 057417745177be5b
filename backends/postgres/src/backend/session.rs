//! Locks that a connection holds: what both ways of holding them have in common.
//!
//! Ground rules: the server ends a silent session after twice the time after which this client gives it up,
//! by settings for that session alone.

mod advisory;
mod fences;
mod for_update;
mod holders;
mod in_transaction;
mod key;

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::random;
use leasehold_core::{Effect, Failure, FailureKind};

use crate::backend::opening::Opened;
use crate::config::{Create, PostgresConfig};
use crate::error::Refusal;
use crate::net::dial::{Link, Sql, only, read};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::sql::schema;
use holders::HoldersTable;

pub(crate) use advisory::Advisory;
pub(crate) use for_update::ForUpdate;
pub use in_transaction::{in_transaction, in_transaction_sql};

/// The server, as all sessions of a client see it.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) config: Arc<PostgresConfig>,
    /// Connections for everything that needs no session of its own.
    pub(crate) pool: Pool,
    pub(crate) server: Server,
    pub(crate) holders_table: HoldersTable,
}

impl Base {
    async fn connect(config: PostgresConfig) -> Result<Base, Failure> {
        let Opened { pool, server } = Opened::open(Arc::new(config)).await?;
        let config = pool.config.clone();
        let holders_table = HoldersTable::of(&config.names);
        Ok(Base { config, pool, server, holders_table })
    }

    /// Opens one more connection, with the settings that only later servers have.
    async fn dial(&self) -> Result<Link, Failure> {
        let link = Link::dial(&self.config).await?;
        if link.version < OLDEST {
            let text = format!(
                "this is PostgreSQL {}, which does not end a session that falls silent: method=advisory and \
                 method=for-update need 14 or later, method=row does not",
                link.version / 10_000
            );
            return Err(Failure::new(FailureKind::Unsupported, Effect::None, text));
        }
        Ok(link)
    }

    /// Creates tables anew that are lost, with the server's data. Then what was refused for that is to be
    /// tried once more.
    ///
    /// # Errors
    /// The failure for any other refusal.
    async fn recreate_tables(&self, refusal: Refusal) -> Result<(), Failure> {
        match refusal {
            Refusal::NoTable(failure) if self.config.sql.create == Create::Yes => {
                tracing::warn!(%failure, "the table of holders is gone: all locks that were held are lost");
                schema::restore(&self.pool).await
            }
            refusal => Err(refusal.into_failure()),
        }
    }

    /// Returns the timeouts that the server of this version gets for a session: `scope` is `SESSION` or `LOCAL`.
    ///
    /// Its own settings may make it give up dead connections sooner than the holder does, or end a transaction that is
    /// open for long; here they may not.
    fn patience(&self, scope: &str, version: i32) -> String {
        let patience = self.config.sql.server_timeout();
        let seconds = patience.as_secs_f64().ceil();
        let unlimited = match version >= TRANSACTION_TIMEOUT {
            true => format!(" SET {scope} transaction_timeout = 0;"),
            false => String::new(),
        };
        format!(
            "SET {scope} tcp_keepalives_idle = {seconds}; SET {scope} tcp_keepalives_interval = {seconds}; \
             SET {scope} tcp_user_timeout = {millis}; SET {scope} idle_in_transaction_session_timeout = {millis};{unlimited}",
            millis = patience.as_millis()
        )
    }

    /// Returns the time limit of a statement: one that is not answered for longer would be taken for silence.
    fn limit(&self) -> Duration {
        self.config.sql.timeout.min(self.config.sql.silence / 2)
    }
}

/// Returns a name that no other session, past or present, has.
fn draw_session_name() -> Result<String, Failure> {
    random::number().map(|number| format!("leasehold {number:016x}"))
}

/// Returns the process of the server behind a connection.
async fn process(link: &Link) -> Result<i32, Failure> {
    let sql = Sql { name: "process", text: "SELECT pg_backend_pid()".to_owned(), types: &[] };
    read(&only(link.query(&sql, &[]).await.map_err(Refusal::into_failure)?)?, 0)
}

/// Earlier ones have no limit for idle sessions.
const OLDEST: i32 = 140_000;
/// The first with a limit for whole transactions.
const TRANSACTION_TIMEOUT: i32 = 170_000;
