//! One row per resource: the store behind the leases.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::cell::{
    Cell, CellRegisters, CellStore, ClockSource, Found, Locked, PLACE_TTL, Write, WriteAnswer,
    WriteCondition, WriteOutcome,
};
use leasehold_backend::sql::{each, lease_profile, micros, resource_of, signed};
use leasehold_core::{Durability, Failure, FenceGrade, Finding, Profile, Registers, Resource};
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior};

use crate::backend::diagnose::diagnose;
use crate::config::SqliteConfig;
use crate::net::worker::{Database, Worker};
use crate::sql::fences::Fences;
use crate::sql::rows::{cell, fence};
use crate::sql::statements::Statements;
use crate::sql::time;

/// The table of locks in one database.
#[derive(Debug)]
pub struct SqliteCells {
    profile: Profile,
    rows: Rows,
    statements: Arc<Statements>,
    worker: Arc<Worker>,
    /// Its own cells, in the table of registers. They have none themselves.
    registers: Option<Box<CellRegisters<SqliteCells>>>,
}

impl SqliteCells {
    /// Opens a database, and creates the tables where they are missing.
    ///
    /// # Errors
    /// As [`connect`](crate::connect).
    pub async fn open(config: SqliteConfig) -> Result<SqliteCells, Failure> {
        let worker = Arc::new(Worker::start(config.clone()).await?);
        let (fencing, values) = match worker.is_fleeting {
            false => (FenceGrade::Strict, Durability::Strict),
            // The holders of locks end with the file. The next fences begin at the wall clock, which may have been
            // set back, and values are to outlive the processes that wrote them.
            true => (FenceGrade::BestEffort, Durability::LostOnFailover),
        };
        let profile = lease_profile("sqlite", config.order, fencing)
            // All holders are processes of this machine: a loss of power ends them too.
            .durability(Durability::Strict)
            .place_ttl(PLACE_TTL);
        let cells = |rows, table: &str, registers| {
            let (statements, profile) = (Arc::new(Statements::of(table)), profile.clone());
            SqliteCells { profile, rows, statements, worker: worker.clone(), registers }
        };
        let registers = cells(Rows::Registers, &format!("{}_registers", config.table), None);
        let registers = CellRegisters::new(registers, values);
        Ok(cells(Rows::Locks, &config.table, Some(Box::new(registers))))
    }

    /// Returns the least fence of the next grant in these rows.
    fn low(rows: Rows, database: &Database) -> i64 {
        match rows {
            Rows::Locks => database.low(),
            Rows::Registers => 0,
        }
    }
}

#[async_trait]
impl CellStore for SqliteCells {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock_source(&self) -> ClockSource {
        ClockSource::Store
    }

    fn commits_at_once(&self) -> Option<usize> {
        // There is one writer at a time.
        Some(1)
    }

    fn max_text(&self) -> usize {
        MAX_TEXT
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.registers.as_deref().map(|registers| registers as &dyn Registers)
    }

    fn writes_now(&self) -> bool {
        matches!(self.rows, Rows::Locks)
    }

    fn write_now(&self, write: &Write) -> Option<Result<WriteOutcome, Failure>> {
        self.worker.try_now(|database| {
            let (connection, fences) = database.change_locks()?;
            write_one(connection, &self.statements, write, time::now(), fences)
        })
    }

    async fn read(&self, at: &[&Resource]) -> Vec<Result<Option<Cell>, Failure>> {
        let names: Vec<String> = at.iter().map(|at| at.as_str().to_owned()).collect();
        let (rows, statements) = (self.rows, self.statements.clone());
        let read = move |database: &mut Database| {
            let low = Self::low(rows, database);
            let cells = names.iter().map(|name| read_one(database.locks(), &statements, name, low));
            cells.collect::<rusqlite::Result<Vec<_>>>()
        };
        let found = match at.len() <= SHORT {
            true => self.worker.run_short(read).await,
            false => self.worker.run(read).await,
        };
        each(at.len(), found)
    }

    /// Makes these writes, in one transaction: one turn of the writers.
    async fn write(&self, writes: &[&Write], _locked: Locked) -> Vec<Result<WriteOutcome, Failure>> {
        let (count, rows, statements) = (writes.len(), self.rows, self.statements.clone());
        let writes: Vec<Write> = writes.iter().map(|write| (*write).clone()).collect();
        let write = move |database: &mut Database| match rows {
            Rows::Locks => {
                let (connection, fences) = database.change_locks()?;
                write_all(connection, &statements, &writes, fences)
            }
            Rows::Registers => {
                let (connection, fences) = database.change_registers();
                write_all(connection, &statements, &writes, fences)
            }
        };
        let done = match rows {
            Rows::Locks if count <= SHORT => self.worker.run_short(write).await,
            Rows::Locks | Rows::Registers => self.worker.run(write).await,
        };
        each(count, done)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<(Resource, Cell)>, Failure> {
        let (prefix, after) = (prefix.to_owned(), after.map_or("", Resource::as_str).to_owned());
        let (rows, statements) = (self.rows, self.statements.clone());
        self.worker
            .run(move |database| {
                let low = Self::low(rows, database);
                let mut list = database.locks().prepare_cached(&statements.list)?;
                let mut rows = list.query((&prefix, &after, time::now()))?;
                let mut found = Vec::new();
                while let Some(row) = rows.next()? {
                    let name: String = row.get(0)?;
                    if !name.starts_with(&prefix) || found.len() == limit {
                        break;
                    }
                    // A name that no resource can have is not ours. It does not count, or the page would look
                    // like the last.
                    if let Ok(resource) = Resource::new(&name) {
                        found.push((resource, cell(row, 1, low)?));
                    }
                }
                Ok(found)
            })
            .await
    }

    async fn all(&self, after: Option<&Resource>, limit: usize) -> Result<Vec<Found>, Failure> {
        let after = after.map_or("", Resource::as_str).to_owned();
        let (rows, statements) = (self.rows, self.statements.clone());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self.worker.run(move |database| {
            let low = Self::low(rows, database);
            let mut all = database.locks().prepare_cached(&statements.all)?;
            let row = |row: &Row<'_>| {
                let idle = u64::try_from(time::now().saturating_sub(row.get(5)?)).unwrap_or(0);
                Ok((row.get::<_, String>(0)?, cell(row, 1, low)?, Duration::from_micros(idle)))
            };
            all.query_map((&after, limit), row)?.collect::<rusqlite::Result<Vec<_>>>()
        });
        let found = |(name, cell, idle): (String, Cell, Duration)| {
            let at = resource_of(&name)?;
            Ok(Found { at, cell, idle })
        };
        rows.await?.into_iter().map(found).collect()
    }

    async fn diagnose(&self, _ttl: Duration) -> Vec<Finding> {
        diagnose(&self.worker).await
    }
}

/// The kind of the rows in a table.
#[derive(Clone, Copy, Debug)]
enum Rows {
    Locks,
    Registers,
}

/// A text of a few thousand claims.
const MAX_TEXT: usize = 1 << 20;
/// The most rows that a caller reads or changes by itself: some ten microseconds each.
const SHORT: usize = 4;

/// Makes these writes, in one transaction.
fn write_all(
    connection: &mut Connection,
    statements: &Statements,
    writes: &[Write],
    fences: &mut Fences,
) -> rusqlite::Result<Vec<WriteOutcome>> {
    // The present is that of the attempt which succeeds, and not of one that found the database busy.
    if let [one] = writes {
        return Ok(vec![write_one(connection, statements, one, time::now(), fences)?]);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let now = time::now();
    let done = writes.iter().map(|write| write_one(&transaction, statements, write, now, fences));
    let done = done.collect::<rusqlite::Result<Vec<WriteOutcome>>>()?;
    transaction.commit()?;
    Ok(done)
}

/// Carries out a statement that changes a row at most, as a transaction of its own, and answers the number
/// that it returns.
fn change_one(
    connection: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(parameters)?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let number = row.get(0)?;
    // The row comes before the commit: only the step behind it shows that the commit failed, and a grant
    // must not be reported then.
    rows.next()?;
    Ok(Some(number))
}

/// Makes one write if its condition holds. If it does not, the row is read where it is of use.
fn write_one(
    connection: &Connection,
    statements: &Statements,
    write: &Write,
    now: i64,
    fences: &mut Fences,
) -> rusqlite::Result<WriteOutcome> {
    let Write { at, when, put, answer } = write;
    let (name, text, version, keep) = (at.as_str(), &put.text, signed(put.version), micros(put.keep));
    let seq = match *when {
        WriteCondition::Free => {
            let parameters = (name, text, version, now, keep, fences.first(now), fences.low());
            change_one(connection, &statements.free, parameters)?
        }
        WriteCondition::Emptied(seen) => {
            let parameters = (name, text, version, now, keep, signed(seen), fences.low());
            change_one(connection, &statements.emptied, parameters)?
        }
        WriteCondition::Living { version: seen, .. } => {
            change_one(connection, &statements.living, (name, text, version, now, keep, signed(seen)))?
        }
        WriteCondition::Seen { version: seen, .. } => {
            let parameters = (name, text, version, signed(put.fence.seq), keep, signed(seen));
            change_one(connection, &statements.seen, parameters)?
        }
    };
    if let Some(seq) = seq {
        fences.granted(seq);
        return Ok(put.outcome_written(fence(seq)));
    }
    let is_of_use = *when == WriteCondition::Free || *answer == WriteAnswer::Full;
    Ok(WriteOutcome::Refused(if is_of_use {
        read_one(connection, statements, name, fences.low())?
    } else {
        None
    }))
}

fn read_one(
    connection: &Connection,
    statements: &Statements,
    name: &str,
    low: i64,
) -> rusqlite::Result<Option<Cell>> {
    connection.prepare_cached(&statements.read)?.query_row([name], |row| cell(row, 0, low)).optional()
}

#[cfg(test)]
mod tests {
    use leasehold_backend::cell::laws;

    use super::*;

    #[tokio::test]
    async fn each_write_has_the_outcome_of_its_condition() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("locks.db").display());
        let cells = SqliteCells::open(SqliteConfig::parse(&url).unwrap()).await.unwrap();
        laws::writes_are_made_on_their_condition(&cells).await;
        laws::several_writes_are_decided_one_by_one(&cells).await;
        laws::write_on_a_missing_cell_leaves_nothing(&cells).await;
        laws::lapsed_cell_is_free(&cells, Duration::from_secs(2)).await;
        laws::empty_cell_is_free(&cells).await;
    }

    #[test]
    fn row_returned_before_a_failed_commit_is_an_error() {
        let connection = Connection::open_in_memory().unwrap();
        // What a row refers to is looked for at the commit.
        let tables = "PRAGMA foreign_keys = ON; CREATE TABLE there (id INTEGER PRIMARY KEY); \
                      CREATE TABLE here (id REFERENCES there DEFERRABLE INITIALLY DEFERRED)";
        connection.execute_batch(tables).unwrap();
        let insert = "INSERT INTO here VALUES (?1) RETURNING id";
        assert!(change_one(&connection, insert, [7]).is_err());
        connection.execute("INSERT INTO there VALUES (7)", []).unwrap();
        assert_eq!(change_one(&connection, insert, [7]).unwrap(), Some(7));
        let none = "UPDATE here SET id = id WHERE id > ?1 RETURNING id";
        assert_eq!(change_one(&connection, none, [7]).unwrap(), None);
    }
}
