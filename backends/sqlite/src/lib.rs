//! Locks in a SQLite database. What is promised, and how it works, is in `docs.md`, which follows.
//!
#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod cells;
mod config;
mod failure;
mod schema;
mod sql;
mod time;
mod worker;

pub use cells::{SqliteCells, connect, sweep};
pub use config::SqliteConfig;
pub use leasehold_backend::cell::SweepReport;
pub use schema::schema;
