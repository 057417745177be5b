//! Locks in one PostgreSQL database (12 or later).
//!
//! A lock is a row that holds a ledger, which this crate reads, swaps, and is notified of; or it is held by
//! a connection.
#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod backend;
mod compat;
mod config;
mod error;
#[cfg(test)]
mod fuzz;
mod net;
mod sql;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::cell::{CellBackend, ShedBackend};
use leasehold_backend::session::SessionBackend;
use leasehold_backend::url::warn_of_exposed_password;
use leasehold_core::{Backend, Clock, Failure};

use backend::session::{Advisory, ForUpdate};
use config::Method;

pub use backend::cells::PostgresCells;
pub use backend::session::{in_transaction, in_transaction_sql};
pub use config::{PostgresConfig, URLS};
pub use leasehold_backend::cell::SweepReport;
pub use sql::schema::{grants, schema};

use compat::shedlock::ShedLock;
use config::Dialect;

/// Removes the rows of locks that nobody has used for so long; see [`CellBackend::sweep`]. Fences rise all
/// the same: before a row goes, the epoch of all later fences is raised above the row's.
///
/// # Errors
/// `Unsupported` for other than leases in rows, `Denied` without the right to `DELETE`, else as [`connect`].
pub async fn sweep(
    config: PostgresConfig,
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
    config: PostgresConfig,
    clock: Arc<dyn Clock>,
    prefix: &str,
    unused_for: Duration,
    progress: impl Fn(SweepReport) + Send + Sync,
) -> Result<SweepReport, Failure> {
    config.check_sweep()?;
    CellBackend::new(PostgresCells::connect(config).await?, clock)
        .sweep_under(prefix, unused_for, progress)
        .await
}

/// Leases in a table of PostgreSQL.
pub type PostgresBackend = CellBackend<PostgresCells>;

/// Connects by the method that the configuration names. `clock` is the machine's own, and counts suspend.
///
/// # Errors
/// `Unavailable` where no primary can be reached, `Denied` where it refuses the login or what is needed,
/// `Unsupported` where it is too old, where tables are missing that may not be created, or where the method
/// cannot work on this connection. The text says what to do.
pub async fn connect(config: PostgresConfig, clock: Arc<dyn Clock>) -> Result<Arc<dyn Backend>, Failure> {
    if config.exposes_password() {
        warn_of_exposed_password(&config, "add sslmode=verify-full");
    }
    if config.dialect == Dialect::ShedLock {
        return Ok(Arc::new(ShedBackend::new(ShedLock::connect(config).await?)));
    }
    match config.method {
        Method::Row => Ok(Arc::new(CellBackend::new(PostgresCells::connect(config).await?, clock))),
        Method::Advisory => Ok(Arc::new(SessionBackend::new(Advisory::connect(config).await?, clock))),
        Method::ForUpdate => Ok(Arc::new(SessionBackend::new(ForUpdate::connect(config).await?, clock))),
    }
}
