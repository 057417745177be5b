//! ShedLock's table in PostgreSQL: its documented statements, by the server's clock.
//!
//! Ground rules: names of tables are checked before they come here; everything else is a parameter. Time is
//! that of the statement's own running, as a date without zone in UTC, which is what ShedLock's
//! `usingDbTime` writes; a column with a zone gets the instant itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::cell::{
    End, Row, RowRequest, ShedTable, Taken, Widths, shed_profile, writer_clocks_finding,
};
use leasehold_backend::sql::{each, micros};
use leasehold_core::{Effect, Failure, FailureKind, Finding, Profile};
use tokio_postgres::types::{ToSql, Type};

use crate::backend::diagnose;
use crate::config::{Create, PostgresConfig};
use crate::error::Refusal;
use crate::net::dial::{GREETED, Sql, only, read};
use crate::net::pool::Pool;
use crate::net::server::Server;
use crate::sql::home::{self, Home};
use crate::sql::rows::end_of;
use crate::sql::schema::{create, shedlock_table};

/// The table `shedlock` of one database.
#[derive(Debug)]
pub(crate) struct ShedLock {
    pool: Arc<Pool>,
    server: Server,
    profile: Profile,
    columns: Columns,
    statements: Statements,
}

impl ShedLock {
    /// Connects, creates the table where it is missing, and asks what it and the server are.
    pub(crate) async fn connect(config: PostgresConfig) -> Result<ShedLock, Failure> {
        let question = format!(
            "SELECT s.*, h.* FROM ({}) AS s CROSS JOIN ({}) AS h",
            Server::question(),
            Home::question(&config)
        );
        let (mut pool, answer) = Pool::open(Arc::new(config), &question).await?;
        let answer = answer.map_err(Refusal::into_failure)?;
        pool.config = Home::read(&answer, GREETED + Server::COLUMNS)?.settle(&pool.config)?;
        let pool = Arc::new(pool);
        let columns = Columns::ensure(&pool).await?;
        let server = Server::read(&answer, GREETED, &pool).await?;
        let profile = shed_profile("postgres", server.durability());
        let statements = Statements::of(&pool.config, &columns);
        Ok(ShedLock { pool, server, profile, columns, statements })
    }

    /// Sends one statement, again where it lost a race. A table that is lost, with the server's data, is
    /// made anew.
    async fn query(
        &self,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, Failure> {
        let answer = match self.pool.query_retrying(sql, params).await {
            Err(Refusal::NoTable(failure)) if self.pool.config.sql.create == Create::Yes => {
                tracing::warn!(%failure, "ShedLock's table is gone: all locks that were held are lost");
                create(&self.pool, &shedlock_table(&self.pool.config)).await?;
                self.pool.query_retrying(sql, params).await
            }
            answer => answer,
        };
        answer.map_err(Refusal::into_failure)
    }

    /// Sends one statement for many rows, and answers for each whether it came back changed.
    async fn change(
        &self,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
        whose: Vec<(&str, &str)>,
    ) -> Vec<Result<bool, Failure>> {
        let changed = async {
            let rows = self.query(sql, params).await?;
            rows.iter()
                .map(|row| Ok((read(row, 0)?, read(row, 1)?)))
                .collect::<Result<HashSet<(String, String)>, Failure>>()
        };
        let changed = changed.await.map(|changed| {
            let is_changed =
                |(name, by): &(&str, &str)| changed.contains(&((*name).to_owned(), (*by).to_owned()));
            whose.iter().map(is_changed).collect()
        });
        each(whose.len(), changed)
    }
}

#[async_trait]
impl ShedTable for ShedLock {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn widths(&self) -> Widths {
        self.columns.widths
    }

    async fn take(&self, hold: &RowRequest) -> Result<Taken, Failure> {
        let params: [&(dyn ToSql + Sync); 3] = [&hold.name, &hold.by, &micros(hold.ttl)];
        let rows = self.query(&self.statements.take, &params).await?;
        // Where another transaction has just put its row, this one saw neither way.
        let Some(found) = rows.first() else { return Ok(Taken::No(None)) };
        if read::<bool>(found, 0)? { Ok(Taken::Yes) } else { Ok(Taken::No(Some(row(found, 1)?))) }
    }

    async fn extend(&self, holds: &[RowRequest]) -> Vec<Result<bool, Failure>> {
        let names: Vec<&str> = holds.iter().map(|hold| hold.name.as_str()).collect();
        let owners: Vec<&str> = holds.iter().map(|hold| hold.by.as_str()).collect();
        let spans: Vec<i64> = holds.iter().map(|hold| micros(hold.ttl)).collect();
        let whose = names.iter().copied().zip(owners.iter().copied()).collect();
        self.change(&self.statements.extend, &[&names, &owners, &spans], whose).await
    }

    async fn free(&self, ends: &[End]) -> Vec<Result<bool, Failure>> {
        let names: Vec<&str> = ends.iter().map(|end| end.name.as_str()).collect();
        let owners: Vec<&str> = ends.iter().map(|end| end.by.as_str()).collect();
        let since: Vec<Option<i64>> = ends.iter().map(|end| end.since).collect();
        let whose = names.iter().copied().zip(owners.iter().copied()).collect();
        self.change(&self.statements.free, &[&names, &owners, &since], whose).await
    }

    async fn held_rows(&self, names: &[String]) -> Vec<Result<Option<Row>, Failure>> {
        let found = async {
            let rows = self.query(&self.statements.held_rows, &[&names]).await?;
            let found = rows.iter().map(|found| row(found, 0).map(|row| (row.name.clone(), row)));
            found.collect::<Result<HashMap<String, Row>, Failure>>()
        };
        match found.await {
            Ok(found) => names.iter().map(|name| Ok(found.get(name).cloned())).collect(),
            Err(failure) => names.iter().map(|_| Err(failure.clone())).collect(),
        }
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Row>, Failure> {
        let (end, limit) = (end_of(prefix), i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.query(&self.statements.list, &[&prefix, &after, &end, &limit]).await?;
        rows.iter().map(|found| row(found, 0)).collect()
    }

    async fn diagnose(&self, _ttl: Duration) -> Vec<Finding> {
        let mut findings = vec![diagnose::durability(&self.server), diagnose::schemas(&self.pool).await];
        let text = format!(
            "SELECT count(*) FROM {} WHERE locked_at > {} + interval '1 second'",
            self.pool.config.names.table(""),
            self.columns.now
        );
        let rows = self.pool.query_retrying(&Sql { name: "diagnose", text, types: &[] }, &[]).await;
        let ahead = rows.map_err(Refusal::into_failure).and_then(|rows| read::<i64>(&only(rows)?, 0));
        findings.push(writer_clocks_finding(ahead));
        findings
    }
}

/// The facts about the table's columns.
#[derive(Clone, Debug)]
struct Columns {
    widths: Widths,
    /// The present, in the form that `lock_until` has.
    now: &'static str,
}

impl Columns {
    /// Reads the columns of the table, which is created where it is missing and may be.
    async fn ensure(pool: &Pool) -> Result<Columns, Failure> {
        match Columns::read(pool).await {
            Err(Refusal::NoTable(failure)) => {
                home::check_alone(pool).await?;
                if pool.config.sql.create == Create::No {
                    return Err(failure);
                }
                create(pool, &shedlock_table(&pool.config)).await?
            }
            found => return found.map_err(Refusal::into_failure),
        }
        Columns::read(pool).await.map_err(Refusal::into_failure)
    }

    async fn read(pool: &Pool) -> Result<Columns, Refusal> {
        let (table, relation) = (pool.config.names.table(""), pool.config.names.text(""));
        // A varchar of n has n + 4 as its modifier, and a timestamp its digits; -1 is one without a limit.
        let text = format!(
            "SELECT attname::text, atttypid::regtype::text, atttypmod FROM pg_attribute \
             WHERE attrelid = {relation}::regclass::oid AND attname IN ('name', 'lock_until', 'locked_at', 'locked_by')"
        );
        let rows = pool.query_retrying(&Sql { name: "columns", text, types: &[] }, &[]).await?;
        let found = || {
            rows.iter()
                .map(|row| Ok((read(row, 0)?, (read(row, 1)?, read(row, 2)?))))
                .collect::<Result<HashMap<String, (String, i32)>, Failure>>()
        };
        Columns::of(&found().map_err(Refusal::Failed)?).map_err(|why| {
            let text = format!("{table} cannot be used as ShedLock's table: {why}");
            Refusal::Failed(Failure::new(FailureKind::Unsupported, Effect::None, text))
        })
    }

    fn of(found: &HashMap<String, (String, i32)>) -> Result<Columns, String> {
        let column = |name: &str| found.get(name).ok_or_else(|| format!("it has no column {name}"));
        let width = |name: &str, min: usize| {
            let (kind, width) = column(name)?;
            let width = match (kind.as_str(), usize::try_from(*width - 4)) {
                ("character varying", Ok(width)) => width,
                ("character varying" | "text", Err(_)) => usize::MAX,
                _ => return Err(format!("its column {name} is {kind}: make it varchar")),
            };
            match width < min {
                true => {
                    Err(format!("its column {name} has room for {width} characters: make it {min} or more"))
                }
                false => Ok(width),
            }
        };
        let (until, at) = (column("lock_until")?, column("locked_at")?);
        let now = match (until.0.as_str(), at.0.as_str()) {
            ("timestamp without time zone", "timestamp without time zone") => {
                "timezone('utc'::text, clock_timestamp())"
            }
            ("timestamp with time zone", "timestamp with time zone") => "clock_timestamp()",
            (until, at) => {
                return Err(format!("lock_until is {until} and locked_at {at}: make both timestamp"));
            }
        };
        for (name, (_, digits)) in [("lock_until", until), ("locked_at", at)] {
            if (0..DIGITS).contains(digits) {
                return Err(format!(
                    "its column {name} has {digits} digits of a second's fraction: make it {DIGITS} or more"
                ));
            }
        }
        let widths = Widths {
            name: width("name", Widths::MIN.name)?,
            locked_by: width("locked_by", Widths::MIN.locked_by)?,
        };
        Ok(Columns { widths, now })
    }
}

/// Digits of a second's fraction that a time needs: an end that is rounded would come early.
const DIGITS: i32 = 3;

/// The statements for ShedLock's table. Each is named after the method that sends it.
#[derive(Debug)]
struct Statements {
    /// Takes one lock, for `contend`.
    take: Sql,
    /// Moves the ends of several locks, for `renew`.
    extend: Sql,
    /// Ends several locks, for `release`.
    free: Sql,
    /// Reads the rows of names whose locks are held.
    held_rows: Sql,
    /// Reads the rows of held locks, in the order of their names.
    list: Sql,
}

impl Statements {
    fn of(config: &PostgresConfig, columns: &Columns) -> Statements {
        let (table, now) = (config.names.table(""), columns.now);
        let micro = "interval '1 microsecond'";
        // Whole microseconds: what was written is found again.
        let since = "(extract(epoch FROM t.locked_at)::float8 * 1000000::float8)::int8";
        let row = format!(
            "t.name, t.locked_by, {since}, greatest((extract(epoch FROM t.lock_until - {now})::float8 * 1000000::float8)::int8, 0::int8)"
        );
        Statements {
            take: sql(
                "take",
                format!(
                    "WITH put AS (INSERT INTO {table} AS t (name, lock_until, locked_at, locked_by) \
                     VALUES ($1, {now} + $3::float8 * {micro}, {now}, $2) ON CONFLICT (name) DO UPDATE SET \
                     lock_until = greatest(t.lock_until, {now} + $3::float8 * {micro}), \
                     locked_at = CASE WHEN t.lock_until <= {now} THEN {now} ELSE t.locked_at END, locked_by = $2 \
                     WHERE t.name::text = $1 AND (t.lock_until <= {now} OR t.locked_by::text = $2) RETURNING t.name) \
                     SELECT true, NULL, NULL, 0::int8, 0::int8 FROM put \
                     UNION ALL SELECT false, {row} FROM {table} t \
                     WHERE t.name::text = $1 AND NOT EXISTS (SELECT FROM put)"
                ),
                &[Type::TEXT, Type::TEXT, Type::INT8],
            ),
            extend: sql(
                "extend",
                format!(
                    "UPDATE {table} t SET lock_until = greatest(t.lock_until, {now} + w.span::float8 * {micro}) \
                     FROM unnest($1, $2, $3) AS w (name, by, span) \
                     WHERE t.name::text = w.name AND t.locked_by::text = w.by AND t.lock_until > {now} \
                     RETURNING t.name, t.locked_by"
                ),
                &[Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY],
            ),
            free: sql(
                "free",
                format!(
                    "UPDATE {table} t SET lock_until = {now} FROM unnest($1, $2, $3) AS w (name, by, since) \
                     WHERE t.name::text = w.name AND t.locked_by::text = w.by AND t.lock_until > {now} \
                     AND (w.since IS NULL OR w.since = {since}) RETURNING t.name, t.locked_by"
                ),
                &[Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY],
            ),
            held_rows: sql(
                "look",
                format!("SELECT {row} FROM {table} t WHERE t.name::text = ANY($1) AND t.lock_until > {now}"),
                &[Type::TEXT_ARRAY],
            ),
            list: sql(
                "list",
                format!(
                    "SELECT {row} FROM {table} t WHERE t.name::text COLLATE \"C\" >= $1 AND t.name::text COLLATE \"C\" > $2 \
                     AND t.name::text COLLATE \"C\" < $3 AND t.lock_until > {now} \
                     ORDER BY t.name::text COLLATE \"C\" LIMIT $4"
                ),
                &[Type::TEXT, Type::TEXT, Type::TEXT, Type::INT8],
            ),
        }
    }
}

/// Reads name, holder, beginning and what is left, from the column `at` on.
fn row(row: &tokio_postgres::Row, at: usize) -> Result<Row, Failure> {
    let left = u64::try_from(read::<i64>(row, at + 3)?).unwrap_or_default();
    Ok(Row {
        name: read(row, at)?,
        by: read(row, at + 1)?,
        since: read(row, at + 2)?,
        left: Duration::from_micros(left),
    })
}

fn sql(name: &'static str, text: String, types: &'static [Type]) -> Sql {
    Sql { name, text, types }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(name: (&str, i32), time: (&str, i32), by: (&str, i32)) -> Result<Columns, String> {
        let column = |at: &str, (kind, width): (&str, i32)| (at.to_owned(), (kind.to_owned(), width));
        let found = [
            column("name", name),
            column("lock_until", time),
            column("locked_at", time),
            column("locked_by", by),
        ];
        Columns::of(&found.into())
    }

    #[test]
    fn tables_that_are_in_use_are_understood() {
        let plain = ("timestamp without time zone", -1);
        let documented = columns(("character varying", 68), plain, ("character varying", 259)).unwrap();
        assert_eq!(documented.widths, Widths { name: 64, locked_by: 255 });
        assert!(documented.now.contains("utc"));
        let zoned =
            columns(("text", -1), ("timestamp with time zone", 3), ("character varying", -1)).unwrap();
        assert_eq!(zoned.now, "clock_timestamp()");
        for (bad, hint) in [
            (columns(("character varying", 24), plain, ("text", -1)), "make it 64"),
            (columns(("integer", -1), plain, ("text", -1)), "make it varchar"),
            (columns(("text", -1), ("date", -1), ("text", -1)), "make both timestamp"),
            (columns(("text", -1), (plain.0, 0), ("text", -1)), "make it 3"),
            (columns(("text", -1), (plain.0, 2), ("text", -1)), "make it 3"),
            (Columns::of(&HashMap::new()), "no column"),
        ] {
            let why = bad.unwrap_err();
            assert!(why.contains(hint), "{why}");
        }
    }
}
