//! The check of `doctor`: whether the database is sound.

use leasehold_core::{Finding, Severity};

use crate::net::worker::Worker;

/// Examines the database.
pub(crate) async fn diagnose(worker: &Worker) -> Vec<Finding> {
    let facts = worker.run(|database| {
        let connection = database.locks();
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
    vec![health]
}
