//! The checks of `doctor`: whether the database is sound, and what a loss of power takes back.

use leasehold_core::{Finding, Severity};

use crate::config::Synchronous;
use crate::net::worker::Worker;

/// Examines the database.
pub(crate) async fn diagnose(worker: &Worker) -> Vec<Finding> {
    let facts = worker.run(|connection| {
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
            format!("{} is sound, by SQLite {version}", worker.config),
        ),
        other => Finding::new("database", Severity::Broken, format!("{} is damaged: {other}", worker.config))
            .meaning("locks in damaged pages cannot be taken")
            .advice("restore it; see https://sqlite.org/recovery.html"),
    };
    let durable = match worker.config.synchronous {
        Synchronous::Full => {
            Finding::new("synchronous", Severity::Good, "full: a grant is on the disk before it is answered")
        }
        Synchronous::Normal => Finding::new("synchronous", Severity::Notice, "normal")
            .meaning("a loss of power can take the last fences back, and they are given out again")
            .advice("write ?synchronous=full where fences matter"),
    };
    vec![health, durable]
}
