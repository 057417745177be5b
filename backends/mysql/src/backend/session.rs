//! The shared part of all sessions of a client: connections for statements that need no session of their
//! own, and the table of holders.
//!
//! Ground rules: a lock decides, and a row only shows its holder. A row outlives its lock, because its
//! fence must not go back, and counts while the server says that the lock exists.

pub(crate) mod dotnet;
mod fences;
pub(crate) mod for_update;
pub(crate) mod get_lock;
pub(crate) mod in_transaction;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    ClaimId, ClaimInfo, Clock, Effect, Failure, FailureKind, Fence, Note, Resource, ResourceSummary, Share,
};
use mysql_async::Row;

use crate::backend::opening::Opened;
use crate::config::{Create, Dialect, MySqlConfig};
use crate::error::Refusal;
use crate::net::dial::{Flavour, Link, only, read};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::net::session::SessionLink;
use crate::sql::schema;
use crate::sql::statements::literal;

/// One server, as all sessions of a client see it.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) pool: Pool,
    pub(crate) server: Server,
    pub(crate) flavour: Flavour,
    /// The name by which the server distinguishes the database from others.
    pub(crate) database: String,
    /// The name in the URL, where it is another one. Locks had it in earlier versions.
    pub(crate) written: Option<String>,
    /// The table of holders, quoted.
    pub(crate) holders_table: String,
}

impl Base {
    /// Connects, prepares the tables, and refuses a server whose locks the others of its cluster know
    /// nothing of, and one that ends connections before their holders give up.
    pub(crate) async fn connect(
        config: MySqlConfig,
        clock: Arc<dyn Clock>,
        holders_table: &str,
    ) -> Result<Base, Failure> {
        let Opened { pool, server, flavour, database } = Opened::open(config, clock).await?;
        let written = (pool.config.database != database).then(|| pool.config.database.clone());
        if server.is_clustered() {
            return Err(Failure::new(
                FailureKind::Unsupported,
                Effect::None,
                "this server is one of a cluster, and the others would know nothing of what its connections hold: use \
                 method=row",
            ));
        }
        check_silence(&server, &pool.config)?;
        let holders_table = pool.config.names.table(holders_table);
        Ok(Base { pool, server, flavour, database, written, holders_table })
    }

    /// Opens one more connection, whose locks live as long as it does.
    pub(crate) async fn open(&self) -> Result<SessionLink, Failure> {
        let config = &self.pool.config;
        let mut link = Link::dial(config).await?;
        // A statement that is not answered for longer would be taken for silence.
        link.limit_to(config.sql.silence / 2);
        // The server's own settings may make it give up sooner than the holder does; here they may not.
        let patience = config.sql.server_timeout().as_secs_f64().ceil();
        let mut settings = format!("SET SESSION wait_timeout = {patience}");
        if self.flavour == Flavour::MariaDb {
            for kind in ["", "readonly_", "write_"] {
                settings += &format!(", idle_{kind}transaction_timeout = {patience}");
            }
        }
        link.run(&settings).await.map_err(Refusal::into_failure)?;
        SessionLink::of(link).await
    }

    pub(crate) fn has_fences(&self) -> bool {
        self.pool.config.dialect == Dialect::Native
    }

    /// Reads which resources are held: those whose row fulfils the condition.
    pub(crate) async fn list(
        &self,
        is_alive: &str,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let query = format!(
            "SELECT name FROM {held} AS h WHERE name >= {prefix} AND name > {after} AND name < CONCAT({prefix}, X'FF') \
             AND {is_alive} ORDER BY name LIMIT {limit}",
            held = self.holders_table,
            prefix = literal(prefix),
            after = literal(after.map_or("", Resource::as_str)),
        );
        let mut summaries = Vec::new();
        for row in &self.query(&query).await? {
            // What has no name of ours is not ours.
            let Ok(resource) = Resource::new(&read::<String>(row, 0)?) else { continue };
            summaries.push(ResourceSummary::new(resource, 1, 0));
        }
        Ok(summaries)
    }

    /// Ends the connection that has these named locks, which represent a claim; `false` if this
    /// connection no longer has them. A lock is an expression of SQL.
    ///
    /// The very statement that ends it checks that it has the locks, and its number does not come again
    /// while the server runs.
    pub(crate) async fn evict(&self, locks: &[&str], session: u64) -> Result<bool, Failure> {
        let has = |lock: &&str| format!("COALESCE(IS_USED_LOCK({lock}) = {session}, 0)");
        let has: Vec<String> = locks.iter().map(has).collect();
        let (has_it, has_any) = (has.join(" AND "), has.join(" OR "));
        match self.pool.run(&format!("KILL CONNECTION IF({has_it}, {session}, 0)")).await {
            Ok(_) => {}
            // Connection 0 does not exist.
            Err(Refusal::LostRace) => return Ok(false),
            Err(refusal) => return Err(refusal.into_failure()),
        }
        // The server ends it a little later.
        for _ in 0..EVICTING_READS {
            let row = only(self.query(&format!("SELECT {has_any}")).await?)?;
            if read::<u8>(&row, 0)? == 0 {
                return Ok(true);
            }
            tokio::time::sleep(EVICTING_PAUSE).await;
        }
        Err(Failure::unanswered("the server accepted the request, and did not end the connection in time"))
    }

    /// Sends a query, and repeats it once if a table was lost with the server's data.
    pub(crate) async fn query(&self, query: &str) -> Result<Vec<Row>, Failure> {
        let answer = match self.pool.run(query).await {
            Err(Refusal::NoTable(failure)) => {
                self.recreate_tables(failure).await?;
                self.pool.run(query).await
            }
            answer => answer,
        };
        answer.map_err(Refusal::into_failure)
    }

    /// Creates the tables that are lost, where that is allowed.
    pub(crate) async fn recreate_tables(&self, failure: Failure) -> Result<(), Failure> {
        if self.pool.config.sql.create == Create::No {
            return Err(failure);
        }
        tracing::warn!(%failure, "the table of holders is gone: inspections no longer show the earlier ones");
        schema::ensure(&self.pool).await
    }
}

/// Refuses a server that ends the connection of a client which is out of reach before its holders count it as lost.
fn check_silence(server: &Server, config: &MySqlConfig) -> Result<(), Failure> {
    let needed = config.sql.server_timeout();
    match server.ends_silence_early(config) {
        None => Ok(()),
        Some(kept) => Err(Failure::new(
            FailureKind::Unsupported,
            Effect::None,
            format!(
                "the server ends the connection of a client that is out of reach after {kept:?}, which is less \
                 than twice the silence= of the URL: raise its tcp_keepalive_time until that, with \
                 tcp_keepalive_interval times tcp_keepalive_probes, is {needed:?} or more, or lower silence="
            ),
        )),
    }
}

/// Returns the holder of the resource, by a row of the claim, its note, its fence and its beginning, from
/// the third column on.
pub(crate) fn claim_info(row: &Row, resource: &Resource, has_fences: bool) -> Result<ClaimInfo, Failure> {
    let unreadable = || {
        let text = format!("the table of holders has a row for {resource:?} that is not ours");
        Failure::new(FailureKind::Foreign, Effect::None, text)
    };
    let seq: u64 = read(row, 4)?;
    Ok(ClaimInfo::new(ClaimId::from_hex(&read::<String>(row, 2)?).ok_or_else(unreadable)?, Share::MUTEX)
        .fence(has_fences.then_some(Fence::new(0, seq, 0)))
        .since_unix_ms(Some(read::<u64>(row, 5)? / 1_000))
        .note(Note::clipped(&read::<String>(row, 3)?)))
}

/// Reads of a connection that is to end, and the pause between two.
const EVICTING_READS: u32 = 100;
const EVICTING_PAUSE: Duration = Duration::from_millis(20);
