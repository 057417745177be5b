//! One row per resource: the store behind the leases.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::cell::{
    Cell, CellRegisters, CellStore, ClockSource, Found, Locked, Notifier, Write, WriteAnswer, WriteCondition,
    WriteOutcome,
};
use leasehold_backend::sql::{cells_of, each, micros, signed};
use leasehold_core::{Failure, Finding, Profile, Registers, Resource, WaitMode};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::backend::diagnose::diagnose;
use crate::backend::opening::Opened;
use crate::backend::sweep;
use crate::config::{Create, PostgresConfig};
use crate::error::Refusal;
use crate::net::dial::{Sql, read};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::sql::rows::{cell, end_of, fence, named};
use crate::sql::schema;
use crate::sql::statements::{Statements, Table};
use crate::wait::calls::{channel, encode_call};
use crate::wait::listener::Listener;

/// The table of locks in one database.
#[derive(Debug)]
pub struct PostgresCells {
    pub(crate) pool: Arc<Pool>,
    pub(crate) server: Server,
    statements: Statements,
    profile: Profile,
    /// The channel of calls; empty where no client listens.
    channel: String,
    listener: Option<Listener>,
    /// Its own cells, in the table of registers. They have none themselves.
    registers: Option<Box<CellRegisters<PostgresCells>>>,
}

impl PostgresCells {
    /// Connects, creates what is missing, and asks what the server is.
    pub(crate) async fn connect(config: PostgresConfig) -> Result<PostgresCells, Failure> {
        let opened = Opened::open(Arc::new(config)).await?;
        let channel = channel(&opened.pool.config.names);
        let (pool, server) = (Arc::new(opened.pool), opened.server);
        let profile = server.profile(&pool.config);
        let listens = profile.waiting == WaitMode::Notifies;
        let cells = |table, channel: String, registers| PostgresCells {
            pool: pool.clone(),
            server: server.clone(),
            statements: Statements::of(&pool.config.names, table),
            profile: profile.clone(),
            listener: listens.then(|| Listener::start(pool.config.clone(), channel.clone())),
            channel,
            registers,
        };
        let registers = cells(Table::Registers, format!("{channel}_registers"), None);
        let registers = CellRegisters::new(registers, profile.durability);
        Ok(cells(Table::Locks, channel, Some(Box::new(registers))))
    }

    /// Sends a read-only statement as [`PostgresCells::query`] does; one that lost a race is sent again.
    async fn query_retrying(&self, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Refusal> {
        match self.pool.query_retrying(sql, params).await {
            // The table is made anew, and shows nothing.
            Err(Refusal::NoTable(_)) => self.query(sql, params).await,
            answer => answer,
        }
    }

    /// Sends one statement. A table that is lost, with the server's data, is made anew.
    async fn query(&self, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Refusal> {
        match self.pool.query(sql, params).await {
            Err(Refusal::NoTable(failure)) if self.pool.config.sql.create == Create::Yes => {
                self.recreate_tables(failure).await?;
                self.pool.query(sql, params).await
            }
            answer => answer,
        }
    }

    /// Sends one statement, whose last parameter is the timeline of the connection, as [`PostgresCells::query`] does.
    async fn query_on_timeline(
        &self,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Refusal> {
        match self.pool.query_on_timeline(sql, params).await {
            Err(Refusal::NoTable(failure)) if self.pool.config.sql.create == Create::Yes => {
                self.recreate_tables(failure).await?;
                self.pool.query_on_timeline(sql, params).await
            }
            answer => answer,
        }
    }

    async fn recreate_tables(&self, failure: Failure) -> Result<(), Refusal> {
        if self.registers.is_some() {
            tracing::warn!(%failure, "the lock table is gone: all locks that were held are lost");
        }
        schema::restore(&self.pool).await.map_err(Refusal::Failed)
    }

    /// Makes one write, which waits for a transaction that keeps its row locked.
    async fn write_one(&self, write: &Write) -> Result<WriteOutcome, Failure> {
        let (Write { at, when, put, answer }, sql) = (write, &self.statements);
        let (name, version, keep) = (at.as_str(), signed(put.version), micros(put.keep));
        let call = || encode_call(at, &put.call);
        let rows = match *when {
            WriteCondition::Free => {
                let (free, call) = (&sql.free, call());
                self.query(free, &[&name, &put.text, &version, &keep, &call, &self.channel]).await
            }
            WriteCondition::Emptied(seen) => {
                let params: &[&(dyn ToSql + Sync)] = &[&name, &signed(seen), &put.text, &version, &keep];
                self.query_on_timeline(&sql.emptied_one, params).await
            }
            WriteCondition::Living { version: seen, epoch: None } => {
                let living = if *answer == WriteAnswer::Full { &sql.living_full } else { &sql.living_one };
                self.pool.query(living, &[&name, &signed(seen), &put.text, &version, &keep]).await
            }
            WriteCondition::Living { version: seen, epoch: Some(within) }
            | WriteCondition::Seen { version: seen, epoch: within } => {
                let (seen, within, anew, call) = (signed(seen), signed(within), is_living(write), call());
                let (epoch, seq) = (signed(put.fence.epoch), signed(put.fence.seq));
                let (text, channel) = (&put.text, &self.channel);
                let params: &[&(dyn ToSql + Sync)] =
                    &[&name, &seen, &within, &anew, text, &version, &epoch, &seq, &keep, &call, channel];
                self.pool.query(&sql.seen_one, params).await
            }
        };
        let rows = rows_of(rows)?;
        let Some(row) = rows.first() else { return Ok(WriteOutcome::Refused(None)) };
        Ok(match when {
            WriteCondition::Emptied(_) => put.outcome_written(fence(row, 0)?),
            WriteCondition::Free if read::<bool>(row, 0)? => put.outcome_written(fence(row, 4)?),
            WriteCondition::Living { .. } | WriteCondition::Seen { .. } if read::<bool>(row, 0)? => {
                put.outcome_written(put.fence)
            }
            _ => WriteOutcome::Refused(Some(cell(row, 2)?)),
        })
    }

    /// Makes those of these writes whose rows no transaction keeps locked.
    async fn write_many(&self, writes: &[&Write]) -> Result<Vec<WriteOutcome>, Failure> {
        let columns = Columns::of(writes);
        let rows = if writes.iter().any(|write| state_of(write).1.is_some()) {
            self.write_seen(writes, &columns).await
        } else if writes.iter().all(|write| is_living(write)) {
            self.write_living(&columns).await
        } else {
            let anew: Vec<bool> = writes.iter().map(|write| !is_living(write)).collect();
            match self.statements.own_few(writes.len()) {
                Some(few) => self.write_own_few(few, &columns, &anew).await,
                None => self.write_own_many(&columns, &anew).await,
            }
        };
        let rows = rows_of(rows)?;
        let mut done = HashMap::with_capacity(rows.len());
        for row in &rows {
            done.insert(read::<&str>(row, 0)?, fence(row, 1)?);
        }
        let outcome = |write: &&Write| match done.get(write.at.as_str()) {
            Some(fence) => write.put.outcome_written(*fence),
            None => WriteOutcome::Refused(None),
        };
        Ok(writes.iter().map(outcome).collect())
    }

    /// Writes cells that were read, as [`Statements::seen_many`].
    async fn write_seen(&self, writes: &[&Write], columns: &Columns<'_>) -> Result<Vec<Row>, Refusal> {
        let Columns { names, seen, texts, versions, keeps } = columns;
        let within = numbers(writes, |write| state_of(write).1.unwrap_or_default());
        let anew: Vec<bool> = writes.iter().map(|write| is_living(write)).collect();
        let epochs = numbers(writes, |write| write.put.fence.epoch);
        let seqs = numbers(writes, |write| write.put.fence.seq);
        let calls: Vec<String> = writes.iter().map(|write| encode_call(&write.at, &write.put.call)).collect();
        let params: &[&(dyn ToSql + Sync)] =
            &[names, seen, &within, &anew, texts, versions, &epochs, &seqs, keeps, &calls, &self.channel];
        self.pool.query(&self.statements.seen_many, params).await
    }

    /// Renews or ends claims that are alone in their cells, as [`Statements::living_many`].
    async fn write_living(&self, columns: &Columns<'_>) -> Result<Vec<Row>, Refusal> {
        let Columns { names, seen, texts, versions, keeps } = columns;
        let waits = texts.iter().any(|text| !text.is_empty());
        let params: &[&(dyn ToSql + Sync)] = &[names, seen, texts, versions, keeps, &waits];
        self.pool.query(&self.statements.living_many, params).await
    }

    /// Writes a few cells that this client was the last to write, as [`Statements::own_few`]. `anew` says which of them
    /// it left empty.
    async fn write_own_few(
        &self,
        few: &Sql,
        columns: &Columns<'_>,
        anew: &[bool],
    ) -> Result<Vec<Row>, Refusal> {
        let Columns { names, seen, texts, versions, keeps } = columns;
        let mut params: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(few.types.len());
        for at in 0..names.len() {
            params.extend::<[&(dyn ToSql + Sync); 6]>([
                &names[at],
                &anew[at],
                &seen[at],
                &texts[at],
                &versions[at],
                &keeps[at],
            ]);
        }
        self.query_on_timeline(few, &params).await
    }

    /// Writes many cells that this client was the last to write, as [`Statements::own_many`]. `anew` says which of them
    /// it left empty.
    async fn write_own_many(&self, columns: &Columns<'_>, anew: &[bool]) -> Result<Vec<Row>, Refusal> {
        let Columns { names, seen, texts, versions, keeps } = columns;
        let params: &[&(dyn ToSql + Sync)] = &[names, &anew, seen, texts, versions, keeps];
        self.query_on_timeline(&self.statements.own_many, params).await
    }
}

#[async_trait]
impl CellStore for PostgresCells {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock_source(&self) -> ClockSource {
        ClockSource::Store
    }

    fn commits_at_once(&self) -> Option<usize> {
        // One is carried out while this client reads the answers of the other.
        Some(2)
    }

    fn max_text(&self) -> usize {
        MAX_TEXT
    }

    fn notifier(&self) -> Option<&Notifier> {
        self.listener.as_ref().map(Listener::notifier)
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.registers.as_deref().map(|registers| registers as &dyn Registers)
    }

    async fn read(&self, at: &[&Resource]) -> Vec<Result<Option<Cell>, Failure>> {
        let names: Vec<&str> = at.iter().map(|at| at.as_str()).collect();
        let answer = match names[..] {
            [one] => self.query_retrying(&self.statements.read_one, &[&one]).await,
            _ => self.query_retrying(&self.statements.read_many, &[&names]).await,
        };
        cells_of(at, answer.map_err(Refusal::into_failure).and_then(|rows| by_name(&rows)))
    }

    async fn write(&self, writes: &[&Write], locked: Locked) -> Vec<Result<WriteOutcome, Failure>> {
        if let ([one], Locked::Wait) = (writes, locked) {
            return vec![self.write_one(one).await];
        }
        each(writes.len(), self.write_many(writes).await)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<(Resource, Cell)>, Failure> {
        let (after, end) = (after.map_or("", Resource::as_str), end_of(prefix));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let answer = self.query_retrying(&self.statements.list, &[&prefix, &after, &end, &limit]).await;
        let rows = answer.map_err(Refusal::into_failure)?;
        rows.iter().map(|row| Ok((named(row)?, cell(row, 1)?))).collect()
    }

    async fn all(&self, after: Option<&Resource>, limit: usize) -> Result<Vec<Found>, Failure> {
        sweep::all(&self.pool, after, limit).await
    }

    async fn forget(&self, unused: &[&Found]) -> Result<Option<usize>, Failure> {
        sweep::forget(&self.pool, unused).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        diagnose(&self.pool, &self.server, ttl).await
    }
}

/// The parameters of several writes that all statements have.
struct Columns<'a> {
    names: Vec<&'a str>,
    /// The versions that the rows must have.
    seen: Vec<i64>,
    texts: Vec<&'a str>,
    versions: Vec<i64>,
    keeps: Vec<i64>,
}

impl<'a> Columns<'a> {
    fn of(writes: &[&'a Write]) -> Columns<'a> {
        Columns {
            names: writes.iter().map(|write| write.at.as_str()).collect(),
            seen: numbers(writes, |write| state_of(write).0),
            texts: writes.iter().map(|write| write.put.text.as_str()).collect(),
            versions: numbers(writes, |write| write.put.version),
            keeps: writes.iter().map(|write| micros(write.put.keep)).collect(),
        }
    }
}

/// Returns a number of each write.
fn numbers(writes: &[&Write], number: fn(&Write) -> u64) -> Vec<i64> {
    writes.iter().map(|write| signed(number(write))).collect()
}

/// Returns the version that the row must have, and the epoch that the server must be in, if it matters.
fn state_of(write: &Write) -> (u64, Option<u64>) {
    match write.when {
        WriteCondition::Free => (0, None),
        WriteCondition::Emptied(version) => (version, None),
        WriteCondition::Living { version, epoch } => (version, epoch),
        WriteCondition::Seen { version, epoch } => (version, Some(epoch)),
    }
}

/// Returns `true` if a claim must still live in the row, whose origin becomes the present.
fn is_living(write: &Write) -> bool {
    matches!(write.when, WriteCondition::Living { .. })
}

/// Returns the rows of the answer to a change. One that lost a race to another has changed no row, and
/// answers none.
fn rows_of(answer: Result<Vec<Row>, Refusal>) -> Result<Vec<Row>, Failure> {
    match answer {
        Ok(rows) => Ok(rows),
        Err(Refusal::LostRace) => Ok(Vec::new()),
        Err(refusal) => Err(refusal.into_failure()),
    }
}

fn by_name(rows: &[Row]) -> Result<HashMap<String, Cell>, Failure> {
    rows.iter().map(|row| Ok((read(row, 0)?, cell(row, 1)?))).collect()
}

/// A queue of some ten thousand claims with short notes.
const MAX_TEXT: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use leasehold_backend::cell::{Call, Put, laws};
    use leasehold_core::Fence;
    use leasehold_testkit::PostgresServer;

    use super::*;

    async fn cells(server: &PostgresServer) -> PostgresCells {
        let url = format!("{}?timeout=1s", server.url());
        PostgresCells::connect(PostgresConfig::parse(&url).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn each_write_has_the_outcome_of_its_condition() {
        let Some(server) = PostgresServer::start_or_skip().await else { return };
        let cells = cells(&server).await;
        laws::writes_are_made_on_their_condition(&cells).await;
        laws::several_writes_are_decided_one_by_one(&cells).await;
        laws::write_on_a_missing_cell_leaves_nothing(&cells).await;
        laws::lapsed_cell_is_free(&cells, Duration::from_secs(2)).await;
        laws::empty_cell_is_free(&cells).await;
        let (stop, resume) = (|| server.stop().unwrap(), async || server.resume().unwrap());
        laws::unanswered_write_may_have_happened(&cells, stop, resume).await;
    }

    /// Judges by the server's positions in its log: what was written, and what was brought to the disk.
    #[tokio::test]
    async fn joint_end_waits_for_the_disk_only_beside_a_renewal() {
        let Some(server) = PostgresServer::start_or_skip().await else { return };
        let cells = cells(&server).await;
        let text = "SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()".to_owned();
        let behind = Sql { name: "behind", text, types: &[] };
        // Makes all of these writes at once, and returns whether they are not on the disk.
        let made = async |writes: &[Write]| -> bool {
            let outcomes = cells.write(&writes.iter().collect::<Vec<_>>(), Locked::Wait).await;
            for outcome in outcomes {
                assert!(matches!(outcome, Ok(WriteOutcome::Written { .. })), "{outcome:?}");
            }
            cells.pool.query(&behind, &[]).await.unwrap()[0].get(0)
        };
        let (mut after_ends, mut after_others) = (0, 0);
        for round in 0..100 {
            let write = |name: &str, when, version, text: &str| {
                let keep = Duration::from_secs(60);
                let (text, fence) = (text.to_owned(), Fence::new(1, 1, 0));
                let put = Put { text, version, fence, keep, call: Call::None };
                let at = Resource::new(&format!("{name}/{round}")).unwrap();
                Write { at, when, put, answer: WriteAnswer::Brief }
            };
            let next = |name: &str, version, text: &str| {
                write(name, WriteCondition::Living { version, epoch: None }, version + 1, text)
            };
            for name in ["a", "b", "c"] {
                made(&[write(name, WriteCondition::Free, 1, "claim")]).await;
            }
            after_others += u32::from(made(&[next("a", 1, "claim"), next("b", 1, "claim")]).await);
            after_others += u32::from(made(&[next("a", 2, "claim"), next("b", 2, "")]).await);
            after_ends += u32::from(made(&[next("a", 3, ""), next("c", 1, "")]).await);
        }
        // The server writes its log by itself as well, at any time.
        assert!(after_ends >= 20, "{after_ends} of 100 joint ends were not on the disk");
        assert!(after_others <= 20, "{after_others} of 200 joint renewals were not on the disk");
    }

    #[tokio::test]
    async fn locked_row_delays_no_other() {
        let Some(server) = PostgresServer::start_or_skip().await else { return };
        let (cells, stranger) = (cells(&server).await, cells(&server).await.pool.lend().await.unwrap());
        let lock = "BEGIN; SELECT FROM leasehold WHERE name = 'locked' FOR UPDATE";
        let (lock, unlock) =
            (async || stranger.run(lock).await.unwrap(), async || stranger.run("ROLLBACK").await.unwrap());
        laws::locked_cell_delays_no_other(&cells, lock, unlock).await;
    }
}
