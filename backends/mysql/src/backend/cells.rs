//! One row per resource: the store behind the leases.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::cell::{
    Cell, CellRegisters, CellStore, ClockSource, Found, Locked, Write, WriteCondition, WriteOutcome,
};
use leasehold_backend::sql::{cells_of, each, resource_of};
use leasehold_core::{Clock, Failure, Fence, Finding, Profile, Registers, Resource};
use mysql_async::{Row, Value};

use crate::backend::diagnose::diagnose;
use crate::backend::opening::Opened;
use crate::config::{Create, MySqlConfig};
use crate::error::Refusal;
use crate::net::dial::{Done, Flavour, lock_wait, read};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::sql::schema;
use crate::sql::statements::Statements;

/// The table of locks in one database.
#[derive(Debug)]
pub struct MySqlCells {
    pub(crate) pool: Arc<Pool>,
    pub(crate) server: Server,
    statements: Statements,
    /// `true` if the server has statements that answer with the row that they change.
    answers_changes: bool,
    profile: Profile,
    /// Its own cells, in the table of registers. They have none themselves.
    registers: Option<Box<CellRegisters<MySqlCells>>>,
}

impl MySqlCells {
    /// Connects, creates what is missing, and asks what the server is.
    pub(crate) async fn connect(config: MySqlConfig, clock: Arc<dyn Clock>) -> Result<MySqlCells, Failure> {
        let Opened { pool, server, flavour, .. } = Opened::open(config, clock).await?;
        let pool = Arc::new(pool);
        // In a cluster a statement that is refused has to see what other servers have confirmed, which only a
        // transaction waits for. In a log of statements one that asks for a setting of the server is a warning.
        let answers_changes =
            flavour == Flavour::MariaDb && !server.is_clustered() && !server.logs_statements();
        let profile = server.profile(&pool.config);
        let cells = |ending, registers| MySqlCells {
            statements: Statements::of(&pool.config.names, ending),
            answers_changes,
            pool: pool.clone(),
            server: server.clone(),
            profile: profile.clone(),
            registers,
        };
        let registers = CellRegisters::new(cells("_registers", None), profile.durability);
        Ok(cells("", Some(Box::new(registers))))
    }

    /// Sends one statement. A table that is lost, with the server's data, is made anew.
    async fn exec(&self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>, Refusal> {
        match self.pool.exec(sql, values.clone()).await {
            Err(Refusal::NoTable(failure)) => {
                self.recreate_tables(failure).await?;
                self.pool.exec(sql, values).await
            }
            answer => answer,
        }
    }

    /// Sends a statement that answers with the row that it changes, as [`MySqlCells::exec`] does.
    async fn change(&self, sql: &str, values: Vec<Value>) -> Result<Row, Refusal> {
        match self.pool.change(sql, values.clone()).await {
            Err(Refusal::NoTable(failure)) => {
                self.recreate_tables(failure).await?;
                self.pool.change(sql, values).await
            }
            answer => answer,
        }
    }

    /// Runs several statements without parameters, as [`MySqlCells::exec`] does.
    async fn run(&self, statements: &str) -> Result<Vec<Row>, Refusal> {
        match self.pool.run(statements).await {
            Err(Refusal::NoTable(failure)) => {
                self.recreate_tables(failure).await?;
                self.pool.run(statements).await
            }
            answer => answer,
        }
    }

    /// Runs a transaction, as [`Pool::transact`] does.
    async fn transact(&self, statements: &[String]) -> Result<Vec<Done>, Refusal> {
        match self.pool.transact(statements).await {
            Err(Refusal::NoTable(failure)) => {
                self.recreate_tables(failure).await?;
                self.pool.transact(statements).await
            }
            answer => answer,
        }
    }

    async fn recreate_tables(&self, failure: Failure) -> Result<(), Refusal> {
        if self.pool.config.sql.create == Create::No {
            return Err(Refusal::NoTable(failure));
        }
        if self.registers.is_some() {
            tracing::warn!(%failure, "the lock table is gone: all locks that were held are lost");
        }
        schema::restore(&self.pool).await.map_err(Refusal::Failed)
    }

    /// Makes one write, which waits for a transaction that keeps its row locked.
    async fn write_one(&self, write: &Write) -> Result<WriteOutcome, Failure> {
        if self.answers_changes
            && let Some((sql, values)) = self.statements.change(write)
        {
            return self.write_answered(write, sql, values).await;
        }
        let done = match self.transact(&self.statements.write_one(write)).await {
            Err(Refusal::LostRace) => return Ok(WriteOutcome::Refused(None)),
            answer => answer.map_err(Refusal::into_failure)?,
        };
        let found = done.iter().find_map(|done| done.rows.first()).map(cell).transpose()?;
        // A write that is made already changes nothing, and is not made again.
        let is_new = done.first().is_some_and(|done| done.changed > 0);
        let is_ours = |found: &Cell| found.version == write.put.version;
        Ok(match found {
            Some(found) if is_ours(&found) && is_new => made(write, found.fence.seq),
            found => WriteOutcome::Refused(found.filter(|found| !is_ours(found))),
        })
    }

    /// Makes one write by the statement that answers with the row.
    async fn write_answered(
        &self,
        write: &Write,
        sql: &str,
        values: Vec<Value>,
    ) -> Result<WriteOutcome, Failure> {
        let row = match self.change(sql, values).await {
            Err(Refusal::LostRace) => return Ok(WriteOutcome::Refused(None)),
            answer => answer.map_err(Refusal::into_failure)?,
        };
        let is_full = row.len() > BRIEF;
        if read::<Option<u8>>(&row, 0)? == Some(1) {
            return Ok(made(write, read(&row, if is_full { 3 } else { 1 })?));
        }
        let found = is_full.then(|| cell(&row)).transpose()?;
        // A write that was made already is not made again.
        Ok(WriteOutcome::Refused(found.filter(|found| found.version != write.put.version)))
    }

    /// Makes those of these writes whose rows no transaction keeps locked. Only a read can leave out locked
    /// rows, and a row may be locked after it, so writes that meet one look again. Without a look they wait
    /// a little for the row, and are all refused: each can be made by itself.
    async fn write_many(&self, writes: &[&Write], locked: Locked) -> Result<Vec<WriteOutcome>, Refusal> {
        let mut outcomes = vec![WriteOutcome::Refused(None); writes.len()];
        for tries in 1.. {
            let mut chosen: Vec<usize> = (0..writes.len()).collect();
            if locked == Locked::Skip {
                let names = writes.iter().map(|write| write.at.as_str());
                let rows = match self.run(&self.statements.unlocked(names)).await {
                    Err(Refusal::LostRace) => break,
                    rows => rows?,
                };
                let free: Result<HashSet<String>, Failure> = rows.iter().map(|row| read(row, 0)).collect();
                let free = free.map_err(Refusal::Failed)?;
                chosen.retain(|at| free.contains(writes[*at].at.as_str()));
            }
            if chosen.is_empty() {
                break;
            }
            let some: Vec<&Write> = chosen.iter().map(|at| writes[*at]).collect();
            let seconds = lock_wait(self.pool.config.sql.timeout);
            match self.pool.transact(&self.statements.write_many(&some, seconds)).await {
                Err(Refusal::RowLocked(_)) if locked == Locked::Wait => break,
                Err(Refusal::RowLocked(_)) if tries < MAX_READS => {}
                // A dropped table is created anew by the next read, which follows a write that was refused.
                Err(Refusal::LostRace | Refusal::NoTable(_)) => break,
                answer => {
                    let done = answer?;
                    let rows = done.iter().flat_map(|done| &done.rows);
                    let written: Result<HashMap<String, u64>, Failure> =
                        rows.map(|row| Ok((read(row, 0)?, read(row, 1)?))).collect();
                    let written = written.map_err(Refusal::Failed)?;
                    for at in chosen {
                        if let Some(seq) = written.get(writes[at].at.as_str()) {
                            outcomes[at] = made(writes[at], *seq);
                        }
                    }
                    break;
                }
            }
        }
        Ok(outcomes)
    }
}

#[async_trait]
impl CellStore for MySqlCells {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock_source(&self) -> ClockSource {
        ClockSource::Store
    }

    fn commits_at_once(&self) -> Option<usize> {
        // The server spends half as much on a change that shares its transaction, whereas two at a time
        // gain nothing.
        Some(1)
    }

    fn max_text(&self) -> usize {
        self.server.max_text()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.registers.as_deref().map(|registers| registers as &dyn Registers)
    }

    async fn read(&self, at: &[&Resource]) -> Vec<Result<Option<Cell>, Failure>> {
        let rows = match at {
            [one] => self.exec(&self.statements.read, vec![one.as_str().into()]).await,
            many => self.run(&self.statements.read_many(many.iter().map(|at| at.as_str()))).await,
        };
        let found = rows.map_err(Refusal::into_failure);
        let found: Result<HashMap<String, Cell>, Failure> =
            found.and_then(|rows| rows.iter().map(|row| Ok((read(row, 0)?, cell(row)?))).collect());
        cells_of(at, found)
    }

    async fn write(&self, writes: &[&Write], locked: Locked) -> Vec<Result<WriteOutcome, Failure>> {
        if let ([one], Locked::Wait) = (writes, locked) {
            return vec![self.write_one(one).await];
        }
        let mut answers = Vec::with_capacity(writes.len());
        for some in parts(writes, self.server.max_text()) {
            let outcomes = self.write_many(some, locked).await.map_err(Refusal::into_failure);
            answers.extend(each(some.len(), outcomes));
        }
        answers
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<(Resource, Cell)>, Failure> {
        let after = after.map_or("", Resource::as_str);
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        let params = vec![prefix.into(), after.into(), prefix.into(), limit.into()];
        let rows = self.exec(&self.statements.list, params).await.map_err(Refusal::into_failure)?;
        rows.iter().map(|row| Ok((named(row)?, cell(row)?))).collect()
    }

    async fn all(&self, after: Option<&Resource>, limit: usize) -> Result<Vec<Found>, Failure> {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        let params = vec![after.map_or("", Resource::as_str).into(), limit.into()];
        let rows = self.exec(&self.statements.all, params).await.map_err(Refusal::into_failure)?;
        let found = |row: &Row| {
            let idle = u64::try_from(read::<i64>(row, 6)?).unwrap_or_default();
            Ok(Found { at: named(row)?, cell: cell(row)?, idle: Duration::from_micros(idle) })
        };
        rows.iter().map(found).collect()
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        diagnose(&self.pool, ttl).await
    }
}

/// Returns the outcome of a write that was made. `seq` is the counter of the row, if the store made it.
fn made(write: &Write, seq: u64) -> WriteOutcome {
    match write.when {
        WriteCondition::Free | WriteCondition::Emptied(_) => write.put.outcome_written(Fence::new(0, seq, 0)),
        WriteCondition::Living { .. } | WriteCondition::Seen { .. } => {
            write.put.outcome_written(write.put.fence)
        }
    }
}

/// Returns the resource of a row.
fn named(row: &Row) -> Result<Resource, Failure> {
    resource_of(&read::<String>(row, 0)?)
}

/// Reads claims, version, counter, age and the server's clock, behind the name.
fn cell(row: &Row) -> Result<Cell, Failure> {
    let (seq, now): (u64, u64) = (read(row, 3)?, read(row, 5)?);
    Ok(Cell {
        text: read(row, 1)?,
        version: read(row, 2)?,
        fence: Fence::new(0, seq, 0),
        floor: Fence::new(0, seq.max(now), 0),
        age: Some(Duration::from_micros(read(row, 4)?)),
    })
}

/// Cuts where a request would become too long: one write alone always fits, since its text does.
fn parts<'a, 'w>(writes: &'a [&'w Write], most: usize) -> Vec<&'a [&'w Write]> {
    let mut bytes = 0;
    let mut parts = Vec::new();
    let mut first = 0;
    for (at, write) in writes.iter().enumerate() {
        let own = length(write);
        bytes += own;
        if at > first && bytes > most {
            parts.push(&writes[first..at]);
            (first, bytes) = (at, own);
        }
    }
    parts.push(&writes[first..]);
    parts
}

/// Returns the length of one write in a request. What else is in its statement has a length of its own.
fn length(write: &Write) -> usize {
    write.put.text.len() + 3 * write.at.as_str().len() + NUMBERS
}

/// Columns of a brief answer to a change.
const BRIEF: usize = 3;
/// Bytes of the numbers and words of one change in a request, halved as all that is counted, since texts
/// have two digits a byte.
const NUMBERS: usize = 250;
/// The number of times that a change reads which of its rows are locked.
const MAX_READS: u32 = 3;

#[cfg(test)]
mod tests {
    use leasehold_backend::cell::{Call, Put, WriteAnswer, laws};
    use leasehold_conformance::calls::clock;
    use leasehold_testkit::MariaDbServer;

    use super::*;
    use crate::net::dial::Link;

    async fn cells(server: &MariaDbServer) -> MySqlCells {
        let url = format!("{}?timeout=3s", server.url());
        MySqlCells::connect(MySqlConfig::parse(&url).unwrap(), clock()).await.unwrap()
    }

    #[tokio::test]
    async fn each_write_has_the_outcome_of_its_condition() {
        let Some(server) = MariaDbServer::start_or_skip().await else { return };
        let cells = cells(&server).await;
        laws::writes_are_made_on_their_condition(&cells).await;
        laws::several_writes_are_decided_one_by_one(&cells).await;
        laws::write_on_a_missing_cell_leaves_nothing(&cells).await;
        laws::lapsed_cell_is_free(&cells, Duration::from_secs(2)).await;
        let (stop, resume) = (|| server.stop().unwrap(), async || server.resume().unwrap());
        laws::unanswered_write_may_have_happened(&cells, stop, resume).await;
    }

    #[tokio::test]
    async fn empty_cell_is_free() {
        let Some(server) = MariaDbServer::start_or_skip().await else { return };
        let mut cells = cells(&server).await;
        // By the statement that answers with its row, and as MySQL is asked.
        for answers_changes in [true, false] {
            cells.answers_changes = answers_changes;
            laws::empty_cell_is_free(&cells).await;
            cells.run("DELETE FROM leasehold").await.unwrap();
        }
    }

    #[tokio::test]
    async fn locked_row_delays_no_other() {
        let Some(server) = MariaDbServer::start_or_skip().await else { return };
        let cells = cells(&server).await;
        let stranger = tokio::sync::Mutex::new(Link::dial(&cells.pool.config).await.unwrap());
        let run = async |sql| drop(stranger.lock().await.run_each(sql, Duration::ZERO).await.unwrap());
        let lock = "BEGIN; SELECT 1 FROM leasehold WHERE name = 'locked' FOR UPDATE";
        laws::locked_cell_delays_no_other(&cells, async || run(lock).await, async || run("ROLLBACK").await)
            .await;
    }

    #[tokio::test]
    async fn locked_rows_of_others_do_not_delay_a_batch() {
        let Some(server) = MariaDbServer::start_or_skip().await else { return };
        let cells = cells(&server).await;
        let names = ["a", "b", "c", "d", "e"].map(|name| Resource::new(name).unwrap());
        let write = |at: &Resource, when, version, text: &str| {
            let (text, keep) = (text.to_owned(), Duration::from_secs(60));
            let put = Put { text, version, fence: Fence::default(), keep, call: Call::None };
            Write { at: at.clone(), when, put, answer: WriteAnswer::Brief }
        };
        for (version, at) in (1..).zip(&names) {
            let first = write(at, WriteCondition::Free, version, "first");
            let outcome = cells.write(&[&first], Locked::Wait).await.remove(0).unwrap();
            assert!(matches!(outcome, WriteOutcome::Written { .. }), "{outcome:?}");
        }
        let mut stranger = Link::dial(&cells.pool.config).await.unwrap();
        // By two statements, because one for both would lock all rows of so small a table.
        let lock = "BEGIN; SELECT 1 FROM leasehold WHERE name = 'b' FOR UPDATE; \
                    SELECT 1 FROM leasehold WHERE name = 'd' FOR UPDATE";
        stranger.run_each(lock, Duration::ZERO).await.unwrap();
        // A write that waits for a row of the other transaction ends with an error, as that one never ends.
        // Those of others are between its own, and before and behind the ends of its own.
        let when = |version, is_seen| match is_seen {
            true => WriteCondition::Seen { version, epoch: 0 },
            false => WriteCondition::Living { version, epoch: None },
        };
        for is_seen in [false, true] {
            let shift = if is_seen { 10 } else { 0 };
            let some = [(0, 1), (2, 3), (4, 5)].map(|(n, version): (usize, u64)| {
                write(&names[n], when(version + shift, is_seen), version + shift + 10, "next")
            });
            let some: Vec<&Write> = some.iter().collect();
            for outcome in cells.write(&some, Locked::Wait).await {
                assert!(matches!(outcome, Ok(WriteOutcome::Written { .. })), "{outcome:?}");
            }
        }
        // The versions of others in the batch are of no use for a row.
        let swapped = [(0, 25), (4, 21)].map(|(n, version): (usize, u64)| {
            write(&names[n], when(version, false), version + 10, "swapped")
        });
        let swapped: Vec<&Write> = swapped.iter().collect();
        for outcome in cells.write(&swapped, Locked::Wait).await {
            assert!(matches!(outcome, Ok(WriteOutcome::Refused(_))), "{outcome:?}");
        }
    }

    #[test]
    fn long_texts_are_sent_apart() {
        let writes = [10, 10, 80, 200, 1].map(|kilobytes: usize| {
            let (text, fence) = ("x".repeat(kilobytes * 1_000), Fence::default());
            let put = Put { text, version: 1, fence, keep: Duration::ZERO, call: Call::None };
            let when = WriteCondition::Seen { version: 1, epoch: 0 };
            Write { at: Resource::new("a").unwrap(), when, put, answer: WriteAnswer::Brief }
        });
        let writes: Vec<&Write> = writes.iter().collect();
        let sizes = |most| parts(&writes, most).iter().map(|part| part.len()).collect::<Vec<_>>();
        assert_eq!(sizes(99_000), [2, 1, 1, 1]);
        assert_eq!(sizes(1_000_000), [5]);
    }
}
