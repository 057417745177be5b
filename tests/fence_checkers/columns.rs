//! Rows behind a fence, through the ordinary clients of PostgreSQL, MariaDB and SQLite.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Fence;
use leasehold::fenced::{FenceColumn, Parameter, RowRefusal, SqlDialect, Statement};
use leasehold_testkit::{MariaDbServer, PostgresServer};
use mysql_async::prelude::Queryable;
use tokio_postgres::types::ToSql;

use crate::place::{Counter, Refused};

/// The row that is counted in.
const KEY: &str = "ledger";

/// A connection of any of the clients; all values are texts.
pub(crate) enum Db {
    Sqlite(rusqlite::Connection),
    Postgres(tokio_postgres::Client),
    MySql(mysql_async::Conn),
}

/// Which database, as it is written in a place.
#[derive(Clone, Debug)]
pub(crate) enum At {
    Sqlite(PathBuf),
    Postgres(String),
    MySql(String),
}

impl Db {
    async fn open(at: &At) -> Db {
        match at {
            At::Sqlite(path) => {
                let db = rusqlite::Connection::open(path).unwrap();
                db.busy_timeout(Duration::from_secs(10)).unwrap();
                Db::Sqlite(db)
            }
            At::Postgres(url) => {
                let (db, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                Db::Postgres(db)
            }
            At::MySql(url) => Db::MySql(mysql_async::Conn::from_url(url).await.unwrap()),
        }
    }

    fn dialect(&self) -> SqlDialect {
        match self {
            Db::Sqlite(_) => SqlDialect::Sqlite,
            Db::Postgres(_) => SqlDialect::Postgres,
            Db::MySql(_) => SqlDialect::MySql,
        }
    }

    /// The table that was there before fences.
    fn stock(&self) -> FenceColumn {
        FenceColumn::new(self.dialect(), "stock", "id").unwrap()
    }

    /// The table that holds fences only.
    fn fences(&self) -> FenceColumn {
        FenceColumn::new(self.dialect(), "fences", "name").unwrap().named("newest").unwrap()
    }

    /// Returns the number of rows that were changed.
    async fn change(&mut self, text: &str, values: &[&str]) -> u64 {
        match self {
            Db::Sqlite(db) => db.execute(text, rusqlite::params_from_iter(values)).unwrap() as u64,
            Db::Postgres(db) => db.execute(text, &bound(values)).await.unwrap(),
            Db::MySql(db) => {
                db.exec_drop(text, mysql_async::Params::from(values.to_vec())).await.unwrap();
                db.affected_rows()
            }
        }
    }

    /// Returns the text in the first row, if one exists.
    async fn first(&mut self, text: &str, values: &[&str]) -> Option<String> {
        match self {
            Db::Sqlite(db) => {
                let row = db.query_row(text, rusqlite::params_from_iter(values), |row| row.get(0));
                match row {
                    Err(rusqlite::Error::QueryReturnedNoRows) => None,
                    row => Some(row.unwrap()),
                }
            }
            Db::Postgres(db) => db.query_opt(text, &bound(values)).await.unwrap().map(|row| row.get(0)),
            Db::MySql(db) => db.exec_first(text, mysql_async::Params::from(values.to_vec())).await.unwrap(),
        }
    }

    async fn run(&mut self, statement: &Statement, fence: &str, key: &str) {
        self.change(&statement.text, &values(statement, fence, key)).await;
    }

    async fn look(&mut self, statement: &Statement, key: &str) -> Option<String> {
        self.first(&statement.text, &values(statement, "", key)).await
    }

    /// Returns the placeholder of a value in a statement of the program's own.
    fn place(&self, number: u16) -> String {
        match self {
            Db::Sqlite(_) => format!("?{number}"),
            Db::Postgres(_) => format!("${number}"),
            Db::MySql(_) => "?".to_owned(),
        }
    }
}

fn bound<'a>(values: &'a [&'a str]) -> Vec<&'a (dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

/// Returns the values to bind, in order.
fn values<'a>(statement: &Statement, fence: &'a str, key: &'a str) -> Vec<&'a str> {
    let value = |parameter: &Parameter| match parameter {
        Parameter::Fence => fence,
        Parameter::Key => key,
    };
    statement.parameters.iter().map(value).collect()
}

/// Makes a table that was there before fences, and one for fences alone.
pub(crate) async fn prepare(at: &At) {
    let mut db = Db::open(at).await;
    db.change("create table stock (id varchar(40) primary key, pieces varchar(40) not null)", &[]).await;
    let row = format!("insert into stock values ({}, {})", db.place(1), db.place(2));
    db.change(&row, &[KEY, "5"]).await;
    let (stock, fences) = (db.stock(), db.fences());
    db.change(&stock.add_column_sql().text, &[]).await;
    db.change(&fences.create_table_sql().text, &[]).await;
}

/// A row that was opened with a fence.
pub(crate) struct Row {
    db: Db,
    fence: String,
}

impl Row {
    pub(crate) async fn open(at: &At, fence: Option<Fence>) -> Result<Row, Refused> {
        let mut db = Db::open(at).await;
        let column = db.stock();
        let text = column.value(fence).unwrap();
        db.run(&column.raise_sql(), &text, KEY).await;
        let seen = db.look(&column.select_sql(), KEY).await;
        column.check(fence, seen.as_deref()).map_err(|why| only_stale(&why))?;
        Ok(Row { db, fence: text })
    }
}

fn only_stale(refusal: &RowRefusal) -> Refused {
    assert!(matches!(refusal, RowRefusal::Stale(_)), "{refusal}");
    Refused
}

#[async_trait]
impl Counter for Row {
    async fn read(&mut self) -> Result<u64, Refused> {
        let (id, condition) = (self.db.place(1), self.db.stock().condition_sql(2));
        let text = format!("select pieces from stock where id = {id} and {condition}");
        let pieces = self.db.first(&text, &[KEY, &self.fence]).await.ok_or(Refused)?;
        Ok(pieces.parse().unwrap())
    }

    async fn write(&mut self, number: u64) -> Result<(), Refused> {
        let (pieces, id, condition) = (self.db.place(1), self.db.place(2), self.db.stock().condition_sql(3));
        let text = format!("update stock set pieces = {pieces} where id = {id} and {condition}");
        match self.db.change(&text, &[&number.to_string(), KEY, &self.fence]).await {
            1 => Ok(()),
            _ => Err(Refused),
        }
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

/// Asserts that no older fence overwrites a newer one, in both kinds of tables.
async fn rise(at: &At) {
    let mut db = Db::open(at).await;
    let (stock, fences) = (db.stock(), db.fences());
    for (column, raise) in [(&stock, stock.raise_sql()), (&fences, fences.raise_or_insert_sql())] {
        for (index, newer) in RISING.iter().enumerate() {
            // Twice, like a client that opens again after a lost answer.
            db.run(&raise, &newer.to_string(), KEY).await;
            db.run(&raise, &newer.to_string(), KEY).await;
            for older in &RISING[..index] {
                db.run(&raise, &older.to_string(), KEY).await;
                let now = db.look(&column.select_sql(), KEY).await;
                assert!(matches!(column.check(*older, now.as_deref()), Err(RowRefusal::Stale(_))), "{now:?}");
                assert_eq!(column.check(*newer, now.as_deref()), Ok(()));
            }
        }
    }
    db.run(&stock.raise_sql(), &RISING[0].to_string(), "nothing").await;
    let now = db.look(&stock.select_for_update_sql(), "nothing").await;
    assert_eq!(stock.check(RISING[0], now.as_deref()), Err(RowRefusal::NoRow));
}

/// Asserts that the column is added once, however often that is asked for.
async fn adds_its_column_once(at: &At) {
    let mut db = Db::open(at).await;
    db.change("create table shelves (id varchar(40) primary key, pieces varchar(40) not null)", &[]).await;
    let column = FenceColumn::new(db.dialect(), "shelves", "id").unwrap();
    assert_eq!(db.first(&column.has_column_sql().text, &[]).await, None);
    let missing = FenceColumn::new(db.dialect(), "no_such_table", "id").unwrap();
    assert_eq!(db.first(&missing.has_column_sql().text, &[]).await, None);
    // SQLite alone has no statement that can be repeated.
    for _ in 0..3 {
        if db.dialect() != SqlDialect::Sqlite || db.first(&column.has_column_sql().text, &[]).await.is_none()
        {
            db.change(&column.add_column_sql().text, &[]).await;
        }
    }
    assert_eq!(db.first(&column.has_column_sql().text, &[]).await.as_deref(), Some("fence"));
    let schema = match db.dialect() {
        SqlDialect::Postgres => "public".to_owned(),
        SqlDialect::Sqlite => "main".to_owned(),
        _ => db.first("select database()", &[]).await.unwrap(),
    };
    let named = FenceColumn::new(db.dialect(), &format!("{schema}.shelves"), "id").unwrap();
    assert_eq!(db.first(&named.has_column_sql().text, &[]).await.as_deref(), Some("fence"));
    let other = FenceColumn::new(db.dialect(), "elsewhere.shelves", "id").unwrap();
    if db.dialect() != SqlDialect::Sqlite {
        assert_eq!(db.first(&other.has_column_sql().text, &[]).await, None);
    }
}

/// Asserts that one statement writes and raises the fence, or does neither behind a newer holder.
async fn writes_and_raises_in_one(at: &At) {
    let mut db = Db::open(at).await;
    let column = FenceColumn::new(db.dialect(), "shelves", "id").unwrap();
    let insert = column.insert_sql(&["pieces"]).unwrap().text;
    let update = column.update_sql(&format!("pieces = {}", db.place(3))).text;
    let is_mysql = db.dialect() == SqlDialect::MySql;
    let order = |fence: Fence, pieces: &str| {
        let fence = fence.to_string();
        match is_mysql {
            true => vec![pieces.to_owned(), fence.clone(), "a".to_owned(), fence],
            false => vec![fence, "a".to_owned(), pieces.to_owned()],
        }
    };
    let [old, held, newer] = [RISING[1], RISING[2], RISING[4]];
    let select = format!("select pieces from shelves where id = {}", db.place(1));
    let mut write = async |fence: Fence, pieces: &str| {
        let values = order(fence, pieces);
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let changed = db.change(&update, &values).await;
        (changed, db.first(&select, &["a"]).await)
    };
    let five = Some("5".to_owned());
    assert_eq!(write(held, "5").await, (0, None), "the row does not exist");
    let mut new = Db::open(at).await;
    assert_eq!(new.change(&insert, &[&held.to_string(), "a", "5"]).await, 1);
    for again in [old, held, newer] {
        assert_eq!(new.change(&insert, &[&again.to_string(), "a", "9"]).await, 0, "it exists");
    }
    let seen = new.look(&column.select_sql(), "a").await;
    assert_eq!(column.check(held, seen.as_deref()), Ok(()), "it began with the fence of its first holder");
    assert_eq!(write(old, "7").await, (0, five), "an older holder");
    assert_eq!(write(held, "4").await, (1, Some("4".to_owned())));
    assert_eq!(write(held, "3").await, (1, Some("3".to_owned())), "the same holder again");
    assert_eq!(write(newer, "2").await, (1, Some("2".to_owned())));
    assert_eq!(write(held, "1").await, (0, Some("2".to_owned())), "it is the older one now");
    let seen = new.look(&column.select_sql(), "a").await;
    assert_eq!(column.check(newer, seen.as_deref()), Ok(()));
    assert_eq!(
        column.check(held, seen.as_deref()),
        Err(RowRefusal::Stale(leasehold::fenced::Stale { yours: held, seen: newer }))
    );
}

/// Asserts that a transaction that holds the fence keeps newer holders waiting, and that they then see
/// its writes.
async fn hold(at: &At) {
    let (mut ours, mut theirs) = (Db::open(at).await, Db::open(at).await);
    let column = ours.fences();
    let key = "whole";
    let (old, newer) = (Fence::new(2, 1, 0), Fence::new(2, 2, 0).to_string());
    ours.run(&column.raise_or_insert_sql(), &old.to_string(), key).await;
    ours.change("begin", &[]).await;
    let now = ours.look(&column.select_for_update_sql(), key).await;
    assert_eq!(column.check(old, now.as_deref()), Ok(()));
    let raise = column.raise_or_insert_sql();
    let mut opening = Box::pin(async {
        theirs.run(&raise, &newer, key).await;
        theirs.first("select pieces from stock", &[]).await
    });
    let early = tokio::time::timeout(Duration::from_millis(300), &mut opening).await;
    assert!(early.is_err(), "a newer holder has come in between");
    ours.change("update stock set pieces = '4'", &[]).await;
    ours.change("commit", &[]).await;
    assert_eq!(opening.await.as_deref(), Some("4"), "it reads what was written before it opened");
    let now = ours.look(&column.select_for_update_sql(), key).await;
    assert_eq!(column.check(old, now.as_deref()).map_err(|why| only_stale(&why)), Err(Refused));
}

#[tokio::test]
async fn sqlite_orders_fences_as_they_rise() {
    let dir = tempfile::tempdir().unwrap();
    let at = At::Sqlite(dir.path().join("x.db"));
    prepare(&at).await;
    adds_its_column_once(&at).await;
    writes_and_raises_in_one(&at).await;
    rise(&at).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_orders_fences_as_they_rise_whatever_the_collation() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let at = At::Postgres(server.url());
    prepare(&at).await;
    adds_its_column_once(&at).await;
    writes_and_raises_in_one(&at).await;
    // By this collation, `e…` and `.` do not sort by their bytes.
    server.sql("alter table stock alter column fence type varchar(53) collate \"und-x-icu\"").await.unwrap();
    rise(&at).await;
    hold(&at).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_orders_fences_as_they_rise() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let at = At::MySql(server.url());
    prepare(&at).await;
    adds_its_column_once(&at).await;
    writes_and_raises_in_one(&at).await;
    rise(&at).await;
    hold(&at).await;
}
