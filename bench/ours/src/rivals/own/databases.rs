//! The least that databases and memcached can do for a lock, through the drivers that leasehold uses.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_bench_peer::{Arguments, Contestant};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use rusqlite::Connection;
use tokio_postgres::{Client, NoTls, Statement};

use super::host;
use crate::Outcome;

/// `pg_advisory_lock` by hand: two prepared statements, and a connection for each task.
pub(super) struct Advisory {
    links: Vec<(Client, Statement, Statement)>,
    names: Vec<String>,
}

impl Advisory {
    pub(super) async fn connect(arguments: &Arguments) -> Outcome<Advisory> {
        let mut links = Vec::new();
        for _ in 0..arguments.tasks {
            let (client, connection) = tokio_postgres::connect(&arguments.at, NoTls).await?;
            tokio::spawn(connection);
            let lock = client.prepare("SELECT pg_advisory_lock(hashtext($1))").await?;
            let unlock = client.prepare("SELECT pg_advisory_unlock(hashtext($1))").await?;
            links.push((client, lock, unlock));
        }
        Ok(Advisory { links, names: (0..arguments.tasks).map(|task| arguments.name_of(task)).collect() })
    }
}

impl Contestant for Advisory {
    type Held = ();

    async fn lock(&self, task: usize) -> Outcome<()> {
        let (client, lock, _) = &self.links[task];
        client.execute(lock, &[&self.names[task]]).await?;
        Ok(())
    }

    async fn unlock(&self, task: usize, (): ()) -> Outcome<()> {
        let (client, _, unlock) = &self.links[task];
        client.execute(unlock, &[&self.names[task]]).await?;
        Ok(())
    }
}

/// `GET_LOCK` by hand: two prepared statements, and a connection for each task.
pub(super) struct GetLock {
    links: Vec<tokio::sync::Mutex<Conn>>,
    names: Vec<String>,
}

impl GetLock {
    pub(super) async fn connect(arguments: &Arguments) -> Outcome<GetLock> {
        let mut links = Vec::new();
        for _ in 0..arguments.tasks {
            links.push(tokio::sync::Mutex::new(Conn::from_url(&arguments.at).await?));
        }
        Ok(GetLock { links, names: (0..arguments.tasks).map(|task| arguments.name_of(task)).collect() })
    }

    async fn run(&self, task: usize, statement: &str) -> Outcome<()> {
        // No other task wants this one.
        let mut link = self.links[task].lock().await;
        link.exec_drop(statement, (&self.names[task],)).await?;
        Ok(())
    }
}

impl Contestant for GetLock {
    type Held = ();

    async fn lock(&self, task: usize) -> Outcome<()> {
        self.run(task, "DO GET_LOCK(?, 10)").await
    }

    async fn unlock(&self, task: usize, (): ()) -> Outcome<()> {
        self.run(task, "DO RELEASE_LOCK(?)").await
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
        if line.trim_end() == expected { Ok(()) } else { Err(format!("memcached said {line:?}").into()) }
    }
}

impl Contestant for Memcached {
    type Held = ();

    async fn lock(&self, task: usize) -> Outcome<()> {
        let (name, length) = (&self.names[task], super::VALUE.len());
        self.ask(task, &format!("add {name} 0 30 {length}\r\n{}\r\n", super::VALUE), "STORED")
    }

    async fn unlock(&self, task: usize, (): ()) -> Outcome<()> {
        self.ask(task, &format!("delete {}\r\n", self.names[task]), "DELETED")
    }
}
