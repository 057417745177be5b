//! Rows behind a fence, through the ordinary clients of PostgreSQL and SQLite.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Fence;
use leasehold::fenced::{FenceColumn, Parameter, RowRefusal, SqlDialect, Statement};
use leasehold_testkit::PostgresServer;
use tokio_postgres::types::ToSql;

use crate::place::{Counter, Refused};

/// The row that is counted in.
const KEY: &str = "ledger";

fn stock(dialect: SqlDialect) -> FenceColumn {
    FenceColumn::new(dialect, "stock", "id").unwrap()
}

fn fences(dialect: SqlDialect) -> FenceColumn {
    FenceColumn::new(dialect, "fences", "name").unwrap().named("newest").unwrap()
}

fn only_stale(refusal: &RowRefusal) -> Refused {
    assert!(matches!(refusal, RowRefusal::Stale(_)), "{refusal}");
    Refused
}

/// What is bound, in order.
fn values<'a>(statement: &Statement, fence: &'a str, key: &'a str) -> Vec<&'a str> {
    let value = |parameter: &Parameter| match parameter {
        Parameter::Fence => fence,
        Parameter::Key => key,
    };
    statement.parameters.iter().map(value).collect()
}

/// A table that was there before fences, and one for fences alone.
pub(crate) fn prepare_sqlite(path: &Path) {
    let db = rusqlite::Connection::open(path).unwrap();
    db.execute_batch("create table stock (id text primary key, pieces integer)").unwrap();
    db.execute("insert into stock values (?1, 5)", [KEY]).unwrap();
    db.execute_batch(&stock(SqlDialect::Sqlite).add_column().text).unwrap();
    db.execute_batch(&fences(SqlDialect::Sqlite).create_table().text).unwrap();
}

pub(crate) struct SqliteRow {
    db: rusqlite::Connection,
    fence: String,
}

impl SqliteRow {
    pub(crate) fn open(path: &Path, fence: Option<Fence>) -> Result<SqliteRow, Refused> {
        let db = rusqlite::Connection::open(path).unwrap();
        db.busy_timeout(Duration::from_secs(10)).unwrap();
        let column = stock(SqlDialect::Sqlite);
        let text = column.value(fence).unwrap();
        execute(&db, &column.raise(), &text, KEY);
        column.judge(fence, seen(&db, &column.look(), KEY).as_deref()).map_err(|why| only_stale(&why))?;
        Ok(SqliteRow { db, fence: text })
    }
}

fn execute(db: &rusqlite::Connection, statement: &Statement, fence: &str, key: &str) {
    db.execute(&statement.text, rusqlite::params_from_iter(values(statement, fence, key))).unwrap();
}

fn seen(db: &rusqlite::Connection, statement: &Statement, key: &str) -> Option<String> {
    let row = db.query_row(&statement.text, [key], |row| row.get(0));
    match row {
        Err(rusqlite::Error::QueryReturnedNoRows) => None,
        row => Some(row.unwrap()),
    }
}

#[async_trait]
impl Counter for SqliteRow {
    async fn read(&mut self) -> Result<u64, Refused> {
        let column = stock(SqlDialect::Sqlite);
        let text = format!("select pieces from stock where id = ?2 and {}", column.condition(1));
        match self.db.query_row(&text, [&self.fence, KEY], |row| row.get::<_, i64>(0)) {
            Err(rusqlite::Error::QueryReturnedNoRows) => Err(Refused),
            pieces => Ok(u64::try_from(pieces.unwrap()).unwrap()),
        }
    }

    async fn write(&mut self, number: u64) -> Result<(), Refused> {
        let column = stock(SqlDialect::Sqlite);
        let text = format!("update stock set pieces = ?3 where id = ?2 and {}", column.condition(1));
        let bound = rusqlite::params![self.fence, KEY, i64::try_from(number).unwrap()];
        if self.db.execute(&text, bound).unwrap() == 1 { Ok(()) } else { Err(Refused) }
    }
}

/// As for SQLite; and a column whose collation orders texts otherwise than by their bytes.
pub(crate) async fn prepare_postgres(server: &PostgresServer) {
    let column = stock(SqlDialect::Postgres);
    server.sql("create table stock (id text primary key, pieces bigint)").await.unwrap();
    server.sql(&format!("insert into stock values ('{KEY}', 5)")).await.unwrap();
    server.sql(&column.add_column().text).await.unwrap();
    server.sql(&fences(SqlDialect::Postgres).create_table().text).await.unwrap();
}

async fn postgres(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) struct PostgresRow {
    db: tokio_postgres::Client,
    fence: String,
}

impl PostgresRow {
    pub(crate) async fn open(url: &str, fence: Option<Fence>) -> Result<PostgresRow, Refused> {
        let db = postgres(url).await;
        let column = stock(SqlDialect::Postgres);
        let text = column.value(fence).unwrap();
        run(&db, &column.raise(), &text, KEY).await;
        let seen = run(&db, &column.look(), &text, KEY).await;
        column.judge(fence, seen.as_deref()).map_err(|why| only_stale(&why))?;
        Ok(PostgresRow { db, fence: text })
    }
}

/// Runs a statement; the first column of its first row.
async fn run(
    db: &impl tokio_postgres::GenericClient,
    statement: &Statement,
    fence: &str,
    key: &str,
) -> Option<String> {
    let values = values(statement, fence, key);
    let bound: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
    let rows = db.query(&statement.text, &bound).await.unwrap();
    rows.first().map(|row| row.get(0))
}

#[async_trait]
impl Counter for PostgresRow {
    async fn read(&mut self) -> Result<u64, Refused> {
        let column = stock(SqlDialect::Postgres);
        let text = format!("select pieces from stock where id = $2 and {}", column.condition(1));
        let row = self.db.query_opt(&text, &[&self.fence, &KEY]).await.unwrap().ok_or(Refused)?;
        Ok(u64::try_from(row.get::<_, i64>(0)).unwrap())
    }

    async fn write(&mut self, number: u64) -> Result<(), Refused> {
        let column = stock(SqlDialect::Postgres);
        let text = format!("update stock set pieces = $3 where id = $2 and {}", column.condition(1));
        let pieces = i64::try_from(number).unwrap();
        let done = self.db.execute(&text, &[&self.fence, &KEY, &pieces]).await.unwrap();
        if done == 1 { Ok(()) } else { Err(Refused) }
    }
}

/// Fences in the order in which they rise, with every part of a fence.
const RISING: [Fence; 6] = [
    Fence::new(0, 9, 0),
    Fence::new(0, 9, 1),
    Fence::new(0, 10, 0),
    Fence::new(0, u64::MAX, 7),
    Fence::new(1, 1, 0),
    Fence::new(1, 1, 10),
];

#[test]
fn sqlite_orders_fences_as_they_rise() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    prepare_sqlite(&path);
    let db = rusqlite::Connection::open(&path).unwrap();
    for (column, raise) in [
        (stock(SqlDialect::Sqlite), stock(SqlDialect::Sqlite).raise()),
        (fences(SqlDialect::Sqlite), fences(SqlDialect::Sqlite).raise_or_insert()),
    ] {
        for (index, newer) in RISING.iter().enumerate() {
            execute(&db, &raise, &newer.to_string(), KEY);
            for older in &RISING[..index] {
                execute(&db, &raise, &older.to_string(), KEY);
                let now = seen(&db, &column.hold(), KEY);
                assert!(matches!(column.judge(*older, now.as_deref()), Err(RowRefusal::Stale(_))));
                assert_eq!(column.judge(*newer, now.as_deref()), Ok(()));
            }
        }
    }
    let column = stock(SqlDialect::Sqlite);
    execute(&db, &column.raise(), &RISING[0].to_string(), "nothing");
    assert_eq!(
        column.judge(RISING[0], seen(&db, &column.look(), "nothing").as_deref()),
        Err(RowRefusal::NoRow)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_orders_fences_as_they_rise_whatever_the_collation() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    prepare_postgres(&server).await;
    // By this collation, «e…» and «.» are not where their bytes are.
    server.sql("alter table stock alter column fence type varchar(53) collate \"und-x-icu\"").await.unwrap();
    let db = postgres(&server.url()).await;
    for (column, raise) in [
        (stock(SqlDialect::Postgres), stock(SqlDialect::Postgres).raise()),
        (fences(SqlDialect::Postgres), fences(SqlDialect::Postgres).raise_or_insert()),
    ] {
        for (index, newer) in RISING.iter().enumerate() {
            run(&db, &raise, &newer.to_string(), KEY).await;
            for older in &RISING[..index] {
                run(&db, &raise, &older.to_string(), KEY).await;
                let now = run(&db, &column.look(), "", KEY).await;
                assert!(matches!(column.judge(*older, now.as_deref()), Err(RowRefusal::Stale(_))));
                assert_eq!(column.judge(*newer, now.as_deref()), Ok(()));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_holds_the_fence_keeps_newer_holders_waiting() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    prepare_postgres(&server).await;
    let column = fences(SqlDialect::Postgres);
    let (mut ours, theirs) = (postgres(&server.url()).await, postgres(&server.url()).await);
    let (old, new) = (RISING[0], RISING[2]);
    run(&ours, &column.raise_or_insert(), &old.to_string(), KEY).await;
    let transaction = ours.transaction().await.unwrap();
    let now = run(&transaction, &column.hold(), "", KEY).await;
    assert_eq!(column.judge(old, now.as_deref()), Ok(()));
    let raise = column.raise_or_insert();
    let newer = new.to_string();
    let mut opening = Box::pin(run(&theirs, &raise, &newer, KEY));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut opening).await;
    assert!(early.is_err(), "a newer holder has come in between");
    transaction.execute("update stock set pieces = 4", &[]).await.unwrap();
    transaction.commit().await.unwrap();
    opening.await;
    let pieces: i64 = theirs.query_one("select pieces from stock", &[]).await.unwrap().get(0);
    assert_eq!(pieces, 4, "and reads what was written before it opened");
    let transaction = ours.transaction().await.unwrap();
    let now = run(&transaction, &column.hold(), "", KEY).await;
    assert_eq!(column.judge(old, now.as_deref()).map_err(|why| only_stale(&why)), Err(Refused));
}
