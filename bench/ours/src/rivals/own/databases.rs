//! The least that databases and memcached can do for a lock, and for a lock with a fence, through the drivers that
//! leasehold uses.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_bench_peer::{Arguments, Contestant};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use rusqlite::Connection;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
use tokio_postgres::{Client, NoTls, Statement};

use super::host;
use crate::Outcome;

/// Two prepared statements of PostgreSQL, and a connection for each task.
pub(super) struct Postgres {
    links: Vec<(Client, Statement, Statement)>,
    names: Vec<String>,
}

impl Postgres {
    /// Connects for `pg_advisory_lock`.
    pub(super) async fn advisory(arguments: &Arguments) -> Outcome<Postgres> {
        let lock = "SELECT pg_advisory_lock(hashtext($1))";
        Postgres::connect(arguments, "", lock, "SELECT pg_advisory_unlock(hashtext($1))").await
    }

    /// Connects for two updates of a row, each a commit, of which the first draws a fence.
    pub(super) async fn updates(arguments: &Arguments) -> Outcome<Postgres> {
        let table = "CREATE TABLE raw (name text COLLATE \"C\" PRIMARY KEY, owner text, fence bigint NOT NULL, \
                     until timestamptz) WITH (fillfactor = 50)";
        let lock = "UPDATE raw SET owner = 'me', fence = fence + 1, until = clock_timestamp() + interval '30 s' \
                    WHERE name = $1 AND owner IS NULL RETURNING fence";
        let unlock = "UPDATE raw SET owner = NULL WHERE name = $1 AND owner = 'me'";
        Postgres::connect(arguments, table, lock, unlock).await
    }

    async fn connect(arguments: &Arguments, table: &str, lock: &str, unlock: &str) -> Outcome<Postgres> {
        let names: Vec<String> = (0..arguments.tasks).map(|task| arguments.name_of(task)).collect();
        let mut links = Vec::new();
        for (task, name) in names.iter().enumerate() {
            let (client, connection) = tokio_postgres::connect(&arguments.at, NoTls).await?;
            tokio::spawn(connection);
            if !table.is_empty() {
                if task == 0 {
                    client.batch_execute(table).await?;
                }
                client.execute("INSERT INTO raw VALUES ($1, NULL, 0, NULL)", &[name]).await?;
            }
            let (lock, unlock) = (client.prepare(lock).await?, client.prepare(unlock).await?);
            links.push((client, lock, unlock));
        }
        Ok(Postgres { links, names })
    }

    async fn run(&self, task: usize, client: &Client, statement: &Statement) -> Outcome<()> {
        match client.execute(statement, &[&self.names[task]]).await? {
            1 => Ok(()),
            rows => Err(format!("{rows} rows were concerned").into()),
        }
    }
}

impl Contestant for Postgres {
    type Held = ();

    async fn lock(&self, task: usize) -> Outcome<()> {
        let (client, lock, _) = &self.links[task];
        self.run(task, client, lock).await
    }

    async fn unlock(&self, task: usize, (): ()) -> Outcome<()> {
        let (client, _, unlock) = &self.links[task];
        self.run(task, client, unlock).await
    }
}

/// Two prepared statements of MariaDB, and a connection for each task.
pub(super) struct MariaDb {
    links: Vec<tokio::sync::Mutex<Conn>>,
    names: Vec<String>,
    lock: &'static str,
    unlock: &'static str,
    /// The number of rows that each changes.
    rows: u64,
}

impl MariaDb {
    /// Connects for `GET_LOCK`.
    pub(super) async fn get_lock(arguments: &Arguments) -> Outcome<MariaDb> {
        MariaDb::connect(arguments, "DO GET_LOCK(?, 10)", "DO RELEASE_LOCK(?)", 0).await
    }

    /// Connects for two updates of a row, each a commit, of which the first draws a fence.
    pub(super) async fn updates(arguments: &Arguments) -> Outcome<MariaDb> {
        let mut first = Conn::from_url(&arguments.at).await?;
        let table = "CREATE TABLE raw (name VARBINARY(512) PRIMARY KEY, owner TEXT, fence BIGINT NOT NULL, \
                     until DATETIME(6))";
        first.query_drop(table).await?;
        for task in 0..arguments.tasks {
            first.exec_drop("INSERT INTO raw VALUES (?, NULL, 0, NULL)", (arguments.name_of(task),)).await?;
        }
        first.disconnect().await?;
        let lock = "UPDATE raw SET owner = 'me', fence = LAST_INSERT_ID(fence + 1), \
                    until = TIMESTAMPADD(SECOND, 30, UTC_TIMESTAMP(6)) WHERE name = ? AND owner IS NULL";
        MariaDb::connect(arguments, lock, "UPDATE raw SET owner = NULL WHERE name = ? AND owner = 'me'", 1)
            .await
    }

    async fn connect(
        arguments: &Arguments,
        lock: &'static str,
        unlock: &'static str,
        rows: u64,
    ) -> Outcome<MariaDb> {
        let names: Vec<String> = (0..arguments.tasks).map(|task| arguments.name_of(task)).collect();
        let mut links = Vec::new();
        for _ in &names {
            links.push(tokio::sync::Mutex::new(Conn::from_url(&arguments.at).await?));
        }
        Ok(MariaDb { links, names, lock, unlock, rows })
    }

    async fn run(&self, task: usize, statement: &str) -> Outcome<()> {
        // No other task wants this one.
        let mut link = self.links[task].lock().await;
        link.exec_drop(statement, (&self.names[task],)).await?;
        let rows = link.affected_rows();
        if rows == self.rows { Ok(()) } else { Err(format!("{rows} rows were changed").into()) }
    }
}

impl Contestant for MariaDb {
    type Held = ();

    async fn lock(&self, task: usize) -> Outcome<()> {
        self.run(task, self.lock).await
    }

    async fn unlock(&self, task: usize, (): ()) -> Outcome<()> {
        self.run(task, self.unlock).await
    }
}

/// An insert and a delete, each a commit, on one connection.
pub(super) struct Sqlite(Mutex<Connection>);

impl Sqlite {
    pub(super) fn open(arguments: &Arguments) -> Outcome<Sqlite> {
        let connection = Connection::open(&arguments.at)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "normal")?;
        let table = "CREATE TABLE IF NOT EXISTS raw (name TEXT PRIMARY KEY, until INTEGER) WITHOUT ROWID";
        connection.execute_batch(table)?;
        Ok(Sqlite(Mutex::new(connection)))
    }

    fn execute(&self, statement: &str, task: usize) -> Outcome<()> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match connection.prepare_cached(statement)?.execute([format!("raw/{task}")])? {
            1 => Ok(()),
            rows => Err(format!("{rows} rows were changed").into()),
        }
    }
}

impl Contestant for Sqlite {
    type Held = ();

    async fn lock(&self, task: usize) -> Outcome<()> {
        self.execute("INSERT INTO raw VALUES (?1, unixepoch() + 30)", task)
    }

    async fn unlock(&self, task: usize, (): ()) -> Outcome<()> {
        self.execute("DELETE FROM raw WHERE name = ?1", task)
    }
}

/// `add` and `delete`, on a bare socket of its own for each task.
pub(super) struct Memcached {
    links: Vec<Mutex<BufReader<TcpStream>>>,
    names: Vec<String>,
}

impl Memcached {
    pub(super) fn connect(arguments: &Arguments) -> Outcome<Memcached> {
        let link = |_| {
            let socket = TcpStream::connect(host(&arguments.at))?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(Duration::from_secs(10)))?;
            Outcome::Ok(Mutex::new(BufReader::new(socket)))
        };
        let links = (0..arguments.tasks).map(link).collect::<Outcome<_>>()?;
        Ok(Memcached { links, names: (0..arguments.tasks).map(|task| arguments.name_of(task)).collect() })
    }

    fn ask(&self, task: usize, request: &str, expected: &str) -> Outcome<()> {
        let mut link = self.links[task].lock().unwrap_or_else(PoisonError::into_inner);
        link.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        link.read_line(&mut line)?;
        said(&line, expected)
    }
}

impl Contestant for Memcached {
    type Held = ();

    async fn lock(&self, task: usize) -> Outcome<()> {
        self.ask(task, &add(&self.names[task]), "STORED")
    }

    async fn unlock(&self, task: usize, (): ()) -> Outcome<()> {
        self.ask(task, &delete(&self.names[task]), "DELETED")
    }
}

/// The same on sockets of the asynchronous runtime, which leasehold uses.
pub(super) struct AsyncMemcached {
    links: Vec<tokio::sync::Mutex<tokio::io::BufReader<tokio::net::TcpStream>>>,
    names: Vec<String>,
}

impl AsyncMemcached {
    pub(super) async fn connect(arguments: &Arguments) -> Outcome<AsyncMemcached> {
        let mut links = Vec::new();
        for _ in 0..arguments.tasks {
            let socket = tokio::net::TcpStream::connect(host(&arguments.at)).await?;
            socket.set_nodelay(true)?;
            links.push(tokio::sync::Mutex::new(tokio::io::BufReader::new(socket)));
        }
        Ok(AsyncMemcached {
            links,
            names: (0..arguments.tasks).map(|task| arguments.name_of(task)).collect(),
        })
    }

    async fn ask(&self, task: usize, request: &str, expected: &str) -> Outcome<()> {
        // No other task wants this one.
        let mut link = self.links[task].lock().await;
        link.write_all(request.as_bytes()).await?;
        let mut line = String::new();
        link.read_line(&mut line).await?;
        said(&line, expected)
    }
}

impl Contestant for AsyncMemcached {
    type Held = ();

    async fn lock(&self, task: usize) -> Outcome<()> {
        self.ask(task, &add(&self.names[task]), "STORED").await
    }

    async fn unlock(&self, task: usize, (): ()) -> Outcome<()> {
        self.ask(task, &delete(&self.names[task]), "DELETED").await
    }
}

fn add(name: &str) -> String {
    format!("add {name} 0 30 {}\r\n{}\r\n", super::VALUE.len(), super::VALUE)
}

fn delete(name: &str) -> String {
    format!("delete {name}\r\n")
}

fn said(line: &str, expected: &str) -> Outcome<()> {
    if line.trim_end() == expected { Ok(()) } else { Err(format!("memcached said {line:?}").into()) }
}
