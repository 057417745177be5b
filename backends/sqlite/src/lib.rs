#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod cells;
mod config;
mod failure;
mod schema;
mod sql;
mod time;
mod worker;

pub use cells::{SqliteCells, connect};
pub use config::SqliteConfig;
