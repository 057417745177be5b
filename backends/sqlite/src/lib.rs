//! Locks in a SQLite database. What is promised, and how it works, is in `docs.md`, which follows.
//!
#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod backend;
mod config;
mod error;
#[cfg(test)]
mod fuzz;
mod net;
mod sql;

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::cell::CellBackend;
use leasehold_core::{Backend, Clock, Failure};

pub use backend::cells::SqliteCells;
pub use config::{SqliteConfig, URLS};
pub use leasehold_backend::cell::SweepReport;
pub use sql::schema::schema;

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
    sweep_under(config, clock, "", unused_for, |_| ()).await
}

/// Does as [`sweep`] for names that begin with `prefix` only, and calls `progress` with what is done after each batch
/// of rows.
///
/// # Errors
/// As [`sweep`].
pub async fn sweep_under(
    config: SqliteConfig,
    clock: Arc<dyn Clock>,
    prefix: &str,
    unused_for: Duration,
    progress: impl Fn(SweepReport) + Send + Sync,
) -> Result<SweepReport, Failure> {
    CellBackend::new(SqliteCells::open(config).await?, clock).sweep_under(prefix, unused_for, progress).await
}
