//! ShedLock's table in MySQL and MariaDB: its documented statements, by the server's clock.
//!
//! Ground rules: names of tables are checked before they come here; every text is written in hexadecimal
//! digits. Time is that at which a statement began, as a date without zone in UTC, which is what ShedLock's
//! `usingDbTime` writes, and in whole units of the columns, so that nothing is rounded when it is written.
//! Which texts are equal is for the columns to say, as it is for ShedLock's own statements.

mod columns;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::cell::{
    End, Row, RowRequest, ShedTable, Taken, Widths, before_retry, shed_profile, writer_clocks_finding,
};
use leasehold_backend::sql::each;
use leasehold_core::{Clock, Failure, Finding, Profile};

use crate::backend::diagnose;
use crate::config::{Create, MySqlConfig};
use crate::error::Refusal;
use crate::net::dial::{Question, only, read};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::sql::statements::literal;
use columns::Columns;

/// The table `shedlock` of one database.
#[derive(Debug)]
pub(crate) struct ShedLock {
    pool: Pool,
    server: Server,
    profile: Profile,
    columns: Columns,
    /// Quoted.
    table: String,
}

impl ShedLock {
    /// Connects, creates the table where it is missing, and asks what it and the server are.
    pub(crate) async fn connect(config: MySqlConfig, clock: Arc<dyn Clock>) -> Result<ShedLock, Failure> {
        let question = Question { counters: Server::COUNTERS, statements: vec![Server::question()] };
        let (pool, answer, _) = Pool::open(Arc::new(config), clock, &question).await?;
        let columns = Columns::ensure(&pool).await?;
        let server = match answer.statements.first() {
            Some(settings) => Server::read(settings.iter().chain(&answer.counters))?,
            None => Server::inspect(&pool).await?,
        };
        let profile = shed_profile("mysql", server.durability());
        let table = pool.config.names.table("");
        Ok(ShedLock { pool, server, profile, columns, table })
    }

    /// Sends statements that only read.
    async fn run(&self, statements: &str) -> Result<Vec<mysql_async::Row>, Failure> {
        self.retried(|| self.pool.run(statements)).await
    }

    /// Sends the statements of a transaction.
    async fn transact(&self, statements: &[String]) -> Result<Vec<mysql_async::Row>, Failure> {
        let rows = || async {
            let done = self.pool.transact(statements).await?;
            Ok(done.into_iter().flat_map(|done| done.rows).collect())
        };
        self.retried(rows).await
    }

    /// Asks, again where a race was lost. A table that is lost, with the server's data, is made anew.
    async fn retried<F>(&self, ask: impl Fn() -> F) -> Result<Vec<mysql_async::Row>, Failure>
    where
        F: Future<Output = Result<Vec<mysql_async::Row>, Refusal>>,
    {
        let mut tries = 0;
        loop {
            tries += 1;
            match ask().await {
                Err(Refusal::LostRace) if tries < MAX_TRIES => before_retry(tries).await,
                Err(Refusal::NoTable(failure))
                    if self.pool.config.sql.create == Create::Yes && tries < MAX_TRIES =>
                {
                    tracing::warn!(%failure, "ShedLock's table is gone: all locks that were held are lost");
                    Columns::ensure(&self.pool).await?;
                }
                answer => return answer.map_err(Refusal::into_failure),
            }
        }
    }

    /// Writes `lock_until` of each row that the holder in its condition has, and answers for each whether
    /// it was: all in one transaction, and each row by its key.
    ///
    /// One reading of the clock decides for all whether a row is held. What a row is found by cannot be
    /// said by the count of rows that were changed, since one whose end is far enough away already is not.
    async fn change(&self, changes: Vec<Change<'_>>) -> Vec<Result<bool, Failure>> {
        let (table, held) = (&self.table, self.columns.is_held_at("@leasehold_now"));
        let mut statements =
            vec![format!("SET @leasehold_now = {}", self.columns.micros(&self.columns.now()))];
        // In the same order for everybody, so that two seldom wait for each other in a circle.
        let mut ordered: Vec<(usize, &Change<'_>)> = changes.iter().enumerate().collect();
        ordered.sort_by_key(|(_, change)| change.name);
        for (at, change) in ordered {
            let whose = format!("{} AND {held}", self.columns.is_of(change.name, change.by, change.since));
            statements.push(format!("SELECT {at} FROM {table} WHERE {whose} FOR UPDATE"));
            statements.push(format!("UPDATE {table} SET lock_until = {} WHERE {whose}", change.until));
        }
        let answer = self.transact(&statements).await;
        let found =
            answer.and_then(|rows| rows.iter().map(|row| read(row, 0)).collect::<Result<Vec<usize>, _>>());
        each(changes.len(), found.map(|found| (0..changes.len()).map(|at| found.contains(&at)).collect()))
    }
}

/// A row that is to get another end.
struct Change<'a> {
    name: &'a str,
    by: &'a str,
    since: Option<i64>,
    /// The end, as an expression.
    until: String,
}

#[async_trait]
impl ShedTable for ShedLock {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn widths(&self) -> Widths {
        self.columns.widths
    }

    /// Writes a free row, and reads which owner has it then: a claim that finds itself there has it, by any
    /// of its requests.
    async fn take(&self, hold: &RowRequest) -> Result<Taken, Failure> {
        let (table, now) = (&self.table, self.columns.now());
        let (name, by) = (text(&hold.name), self.columns.holder(&hold.by));
        let until = self.columns.after(hold.ttl);
        // Assignments are made from left to right, and each sees those before it: the holder is ours by now
        // where the row was free, or was ours.
        let taking = format!(
            "INSERT INTO {table} (name, lock_until, locked_at, locked_by) VALUES ({name}, {until}, {now}, {by}) \
             ON DUPLICATE KEY UPDATE locked_at = IF(lock_until <= {now}, {now}, locked_at), \
             locked_by = IF(lock_until <= {now}, {by}, locked_by), \
             lock_until = IF(locked_by = {by}, GREATEST(lock_until, {until}), lock_until)"
        );
        let reading = format!(
            "SELECT {row}, locked_by = {by} FROM {table} WHERE name = {name} AND lock_until > {now}",
            row = self.columns.row()
        );
        let rows = self.transact(&[taking, reading]).await?;
        let Some(found) = rows.first() else { return Ok(Taken::No(None)) };
        if read::<bool>(found, 4)? { Ok(Taken::Yes) } else { Ok(Taken::No(Some(row(found, 0)?))) }
    }

    async fn extend(&self, holds: &[RowRequest]) -> Vec<Result<bool, Failure>> {
        let change = |hold: &'_ RowRequest| format!("GREATEST(lock_until, {})", self.columns.after(hold.ttl));
        let changes = holds.iter().map(|hold| Change {
            name: &hold.name,
            by: &hold.by,
            since: None,
            until: change(hold),
        });
        self.change(changes.collect()).await
    }

    async fn free(&self, ends: &[End]) -> Vec<Result<bool, Failure>> {
        let until = format!("LEAST(lock_until, {})", self.columns.now());
        let changes = ends.iter().map(|end| Change {
            name: &end.name,
            by: &end.by,
            since: end.since,
            until: until.clone(),
        });
        self.change(changes.collect()).await
    }

    async fn held_rows(&self, names: &[String]) -> Vec<Result<Option<Row>, Failure>> {
        // A statement a name: only the server can say which of them a row is equal to.
        let statements: Vec<String> = names
            .iter()
            .enumerate()
            .map(|(at, name)| {
                format!(
                    "SELECT {at}, {row} FROM {table} WHERE name = {name} AND lock_until > {now}",
                    row = self.columns.row(),
                    table = self.table,
                    name = text(name),
                    now = self.columns.now()
                )
            })
            .collect();
        let found = async {
            let mut found_rows = vec![Ok(None); names.len()];
            for found in self.run(&statements.join("; ")).await? {
                if let Some(found_row) = found_rows.get_mut(read::<usize>(&found, 0)?) {
                    *found_row = Ok(Some(row(&found, 1)?));
                }
            }
            Ok(found_rows)
        };
        match found.await {
            Ok(found_rows) => found_rows,
            Err(failure) => names.iter().map(|_| Err(Failure::clone(&failure))).collect(),
        }
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Row>, Failure> {
        // By bytes, no matter how the column would compare. No name has the byte 255 in it.
        let query = format!(
            "SELECT {row} FROM {table} WHERE {bytes} >= {prefix} AND {bytes} > {after} \
             AND {bytes} < CONCAT({prefix}, X'FF') AND lock_until > {now} ORDER BY {bytes} LIMIT {limit}",
            row = self.columns.row(),
            table = self.table,
            bytes = "CAST(CONVERT(name USING utf8mb4) AS BINARY)",
            prefix = literal(prefix),
            after = literal(after),
            now = self.columns.now(),
        );
        self.run(&query).await?.iter().map(|found| row(found, 0)).collect()
    }

    async fn diagnose(&self, _ttl: Duration) -> Vec<Finding> {
        let query = format!(
            "SELECT COUNT(*), CAST(@@session.time_zone AS CHAR), CAST(@@system_time_zone AS CHAR) FROM {} \
             WHERE locked_at > TIMESTAMPADD(SECOND, 1, {})",
            self.table,
            self.columns.now()
        );
        let row = self.pool.run(&query).await.map_err(Refusal::into_failure).and_then(only);
        let ahead = row.as_ref().map_err(Failure::clone).and_then(|row| read(row, 0));
        let mut findings = vec![
            diagnose::durability(&self.server),
            diagnose::replication(&self.server),
            writer_clocks_finding(ahead),
        ];
        findings.push(self.columns.names());
        if let Ok((session, system)) =
            row.and_then(|row| Ok((read::<String>(&row, 1)?, read::<String>(&row, 2)?)))
        {
            findings.push(self.columns.zone(&session, &system));
        }
        findings
    }
}

/// Reads name, holder, beginning and what is left, from the column `at` on.
fn row(row: &mysql_async::Row, at: usize) -> Result<Row, Failure> {
    Ok(Row {
        name: read(row, at)?,
        by: read(row, at + 1)?,
        since: read(row, at + 2)?,
        left: Duration::from_micros(read(row, at + 3)?),
    })
}

/// Returns a text that is compared as the column with which it is compared says.
fn text(text: &str) -> String {
    format!("_utf8mb4 {}", literal(text))
}

/// Times that statements are sent which lose their races.
const MAX_TRIES: u32 = 20;
