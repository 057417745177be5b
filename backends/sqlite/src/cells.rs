//! One row per resource: the store behind the leases.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::cell::{
    Answer, Cell, CellBackend, CellRegisters, CellStore, ClockSource, Condition, Found, Locked, MAX_TTL,
    MIN_TTL, PLACE_TTL, SweepReport, Write, WriteOutcome,
};
use leasehold_core::{
    Backend, Clock, Durability, Effect, Failure, FailureKind, Fence, Finding, Liveness, LockSupport, Profile,
    Registers, Resource, Severity,
};
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior};

use crate::config::{SqliteConfig, Synchronous};
use crate::failure::failure;
use crate::sql::Statements;
use crate::time;
use crate::worker::Worker;

/// Opens a database, creates the tables where they are missing, and locks in it. `clock` is the machine's
/// own, and counts suspend.
///
/// # Errors
/// `Denied` for a file that this user may not write, `Foreign` for one that is not a database,
/// `Unsupported` for a network file system; the text says what to do.
pub async fn connect(config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<Arc<dyn Backend>, Failure> {
    Ok(Arc::new(CellBackend::new(SqliteCells::open(config).await?, clock)))
}

/// Removes claims that are over from the rows of locks that nobody has used for so long; see
/// [`CellBackend::sweep`]. Rows stay, because their fences must not go back.
///
/// # Errors
/// As [`connect`].
pub async fn sweep(
    config: SqliteConfig,
    clock: Arc<dyn Clock>,
    unused_for: Duration,
) -> Result<SweepReport, Failure> {
    CellBackend::new(SqliteCells::open(config).await?, clock).sweep(unused_for).await
}

/// The table of locks in one database.
#[derive(Debug)]
pub struct SqliteCells {
    config: SqliteConfig,
    profile: Profile,
    statements: Arc<Statements>,
    worker: Arc<Worker>,
    /// Its own cells, in the table of registers. They have none themselves.
    registers: Option<Box<CellRegisters<SqliteCells>>>,
}

impl SqliteCells {
    /// Opens a database, and creates the tables where they are missing.
    ///
    /// # Errors
    /// As [`connect`].
    pub async fn open(config: SqliteConfig) -> Result<SqliteCells, Failure> {
        let worker = Arc::new(Worker::start(config.clone()).await?);
        let profile = Profile::new("sqlite", Liveness::Lease { min: MIN_TTL, max: MAX_TTL })
            .admission(LockSupport::Counted)
            .order(config.order)
            .fencing(config.synchronous.grade())
            // All holders are processes of this machine: a loss of power ends them too.
            .durability(Durability::Strict)
            .place_ttl(PLACE_TTL)
            .granularity(Duration::from_millis(1))
            .renew_batch_max(RENEW_BATCH_MAX)
            .note_max(leasehold_core::Note::MAX_BYTES);
        let cells = |table: &str, registers| {
            let (statements, profile) = (Arc::new(Statements::of(table)), profile.clone());
            SqliteCells { statements, profile, worker: worker.clone(), config: config.clone(), registers }
        };
        let registers = CellRegisters::new(cells(&format!("{}_registers", config.table), None));
        Ok(cells(&config.table, Some(Box::new(registers))))
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        match self.worker.run(self.config.timeout, work).await {
            Some(outcome) => outcome?.map_err(|error| failure(&self.config, error)),
            None => Err(Failure::unanswered("the thread of the database ended")),
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

    async fn read(&self, at: &[&Resource]) -> Vec<Result<Option<Cell>, Failure>> {
        let names: Vec<String> = at.iter().map(|at| at.as_str().to_owned()).collect();
        let statements = self.statements.clone();
        let found = self.run(move |connection| {
            let cells = names.iter().map(|name| read_one(connection, &statements, name));
            cells.collect::<rusqlite::Result<Vec<_>>>()
        });
        match found.await {
            Ok(cells) => cells.into_iter().map(Ok).collect(),
            Err(failure) => at.iter().map(|_| Err(failure.clone())).collect(),
        }
    }

    /// Makes these writes, in one transaction: one wait for the disk.
    async fn write(&self, writes: &[&Write], _locked: Locked) -> Vec<Result<WriteOutcome, Failure>> {
        let (count, statements) = (writes.len(), self.statements.clone());
        let writes: Vec<Write> = writes.iter().map(|write| (*write).clone()).collect();
        // The present is that of the attempt which succeeds, and not of one that found the database busy.
        let done = self.run(move |connection| {
            if let [one] = &writes[..] {
                return Ok(vec![write_one(connection, &statements, one, time::now())?]);
            }
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let now = time::now();
            let done = writes.iter().map(|write| write_one(&transaction, &statements, write, now));
            let done = done.collect::<rusqlite::Result<Vec<WriteOutcome>>>()?;
            transaction.commit()?;
            Ok(done)
        });
        match done.await {
            Ok(done) => done.into_iter().map(Ok).collect(),
            Err(failure) => (0..count).map(|_| Err(failure.clone())).collect(),
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<(Resource, Cell)>, Failure> {
        let (prefix, after) = (prefix.to_owned(), after.map_or("", Resource::as_str).to_owned());
        let statements = self.statements.clone();
        self.run(move |connection| {
            let mut list = connection.prepare_cached(&statements.list)?;
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
                    found.push((resource, cell(row, 1)?));
                }
            }
            Ok(found)
        })
        .await
    }

    async fn all(&self, after: Option<&Resource>, limit: usize) -> Result<Vec<Found>, Failure> {
        let after = after.map_or("", Resource::as_str).to_owned();
        let (statements, limit) = (self.statements.clone(), i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.run(move |connection| {
            let mut all = connection.prepare_cached(&statements.all)?;
            let row = |row: &Row<'_>| {
                let idle = u64::try_from(time::now().saturating_sub(row.get(5)?)).unwrap_or(0);
                Ok((row.get::<_, String>(0)?, cell(row, 1)?, Duration::from_micros(idle)))
            };
            all.query_map((&after, limit), row)?.collect::<rusqlite::Result<Vec<_>>>()
        });
        let found = |(name, cell, idle): (String, Cell, Duration)| {
            let at = Resource::new(&name).map_err(|error| {
                let text = format!("the table has a row that is not ours: {error}");
                Failure::new(FailureKind::Foreign, Effect::None, text)
            })?;
            Ok(Found { at, cell, idle })
        };
        rows.await?.into_iter().map(found).collect()
    }

    async fn diagnose(&self, _ttl: Duration) -> Vec<Finding> {
        let facts = self.run(|connection| {
            let version: String = connection.query_row("SELECT sqlite_version()", [], |row| row.get(0))?;
            let health: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            Ok((version, health))
        });
        let (version, health) = match facts.await {
            Ok(facts) => facts,
            Err(failure) => return vec![Finding::new("database", Severity::Broken, failure.to_string())],
        };
        let health = match health.as_str() {
            "ok" => Finding::new(
                "database",
                Severity::Good,
                format!("{} is sound, by SQLite {version}", self.config),
            ),
            other => {
                Finding::new("database", Severity::Broken, format!("{} is damaged: {other}", self.config))
                    .meaning("locks in damaged pages cannot be taken")
                    .advice("restore it; see https://sqlite.org/recovery.html")
            }
        };
        let durable = match self.config.synchronous {
            Synchronous::Full => Finding::new(
                "synchronous",
                Severity::Good,
                "full: a grant is on the disk before it is answered",
            ),
            Synchronous::Normal => Finding::new("synchronous", Severity::Notice, "normal")
                .meaning("a loss of power can take the last fences back, and they are given out again")
                .advice("write ?synchronous=full where fences matter"),
        };
        vec![health, durable]
    }
}

/// A text of a few thousand claims.
const MAX_TEXT: usize = 1 << 20;
/// The most claims of one transaction: a few milliseconds of the write lock.
const RENEW_BATCH_MAX: usize = 500;

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
) -> rusqlite::Result<WriteOutcome> {
    let Write { at, when, put, answer } = write;
    let (name, text, version, keep) = (at.as_str(), &put.text, signed(put.version), micros(put.keep));
    let seq = match *when {
        Condition::Free => change_one(connection, &statements.free, (name, text, version, now, keep))?,
        Condition::Emptied(seen) => {
            change_one(connection, &statements.emptied, (name, text, version, now, keep, signed(seen)))?
        }
        Condition::Living { version: seen, .. } => {
            change_one(connection, &statements.living, (name, text, version, now, keep, signed(seen)))?
        }
        Condition::Seen { version: seen, .. } => {
            let parameters = (name, text, version, signed(put.fence.seq), keep, signed(seen));
            change_one(connection, &statements.seen, parameters)?
        }
    };
    if let Some(seq) = seq {
        return Ok(put.written(fence(seq)));
    }
    let is_of_use = *when == Condition::Free || *answer == Answer::Full;
    Ok(WriteOutcome::Refused(if is_of_use { read_one(connection, statements, name)? } else { None }))
}

fn read_one(connection: &Connection, statements: &Statements, name: &str) -> rusqlite::Result<Option<Cell>> {
    connection.prepare_cached(&statements.read)?.query_row([name], |row| cell(row, 0)).optional()
}

/// Returns the cell in the columns from `first` on: claims, version, seq, origin.
fn cell(row: &Row<'_>, first: usize) -> rusqlite::Result<Cell> {
    let (version, seq, origin): (i64, i64, i64) =
        (row.get(first + 1)?, row.get(first + 2)?, row.get(first + 3)?);
    let age = u64::try_from(time::now().saturating_sub(origin)).unwrap_or(0);
    Ok(Cell {
        text: row.get(first)?,
        version: version.unsigned_abs(),
        fence: fence(seq),
        floor: fence(seq),
        age: Some(Duration::from_micros(age)),
    })
}

fn fence(seq: i64) -> Fence {
    Fence::new(0, seq.unsigned_abs(), 0)
}

/// Numbers of SQLite have a sign; ours never need the last bit.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 4)
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
        laws::lapsed_cell_is_free(&cells, Duration::from_millis(300)).await;
    }

    #[test]
    fn row_returned_before_a_failed_commit_is_no_success() {
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
