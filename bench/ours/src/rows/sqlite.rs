//! SQLite, beside an insert and a delete on a connection of one's own.

use std::path::Path;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rusqlite::Connection;

use super::{AsyncRate, Comparison, RAW, in_turn};
use crate::Outcome;
use crate::cycle::Ours;
use crate::plan::Plan;
use crate::report::Report;

/// The time at which a commit of the raw side is on the disk.
#[derive(Clone, Copy)]
pub(crate) enum Durability {
    Full,
    Normal,
}

pub(crate) async fn measure(durability: Durability, plan: &Plan, report: &mut Report) -> Outcome<()> {
    // Ours syncs nothing for a lock in either case, and its fences are strict.
    let (word, group) = match durability {
        Durability::Full => ("full", "SQLite, raw with synchronous=full"),
        Durability::Normal => ("normal", "SQLite, raw with synchronous=normal"),
    };
    let folder = tempfile::tempdir()?;
    for tasks in [1, TASKS] {
        let url = format!("sqlite:{}", folder.path().join("ours.db").display());
        let ours = Ours::open(&url, tasks, |task| format!("rows/{task}")).await?;
        let raw = Raw::open(&folder.path().join(format!("raw-{tasks}.db")), word)?;
        let others = vec![Comparison::new("insert and delete by hand, crate rusqlite", Some(RAW), raw)];
        in_turn(group, &ours, tasks, others, plan, report).await?;
    }
    Ok(())
}

/// Of ours. The raw side does one thing after the other in either case: more at once would only wait
/// for one another.
const TASKS: usize = 8;

/// A connection, which is somewhere else while it works.
struct Raw(Option<Connection>);

impl Raw {
    fn open(path: &Path, synchronous: &str) -> Outcome<Raw> {
        let connection = Connection::open(path)?;
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", synchronous)?;
        connection.execute_batch(
            "CREATE TABLE raw (name TEXT PRIMARY KEY, owner TEXT, until INTEGER) WITHOUT ROWID",
        )?;
        Ok(Raw(Some(connection)))
    }
}

#[async_trait]
impl AsyncRate for Raw {
    async fn rate(&mut self, plan: &Plan) -> Outcome<f64> {
        let connection = self.0.take().ok_or("the connection was lost with an earlier round")?;
        let length = plan.round;
        let (connection, rate) = tokio::task::spawn_blocking(move || {
            let rate = cycles(&connection, length);
            (connection, rate)
        })
        .await?;
        self.0 = Some(connection);
        rate
    }
}

fn cycles(connection: &Connection, length: Duration) -> Outcome<f64> {
    let mut insert = connection.prepare("INSERT INTO raw VALUES (?1, ?2, unixepoch() + 30)")?;
    let mut delete = connection.prepare("DELETE FROM raw WHERE name = ?1 AND owner = ?2")?;
    let (began, mut cycles) = (Instant::now(), 0u64);
    while began.elapsed() < length {
        insert.execute(("raw/0", "owner"))?;
        delete.execute(("raw/0", "owner"))?;
        cycles += 1;
    }
    Ok(cycles as f64 / began.elapsed().as_secs_f64())
}
