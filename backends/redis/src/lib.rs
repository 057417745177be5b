//! leasehold on one Redis (6.2 or later) or Valkey server.
//!
//! The server decides everything, by script; this crate asks, listens and reads.
#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod backend;
mod compat;
mod config;
#[cfg(test)]
mod fuzz;
mod net;
mod protocol;
mod redlock;
mod topology;
mod wait;

pub use backend::RedisBackend;
pub use backend::sweep::{SweepReport, sweep, sweep_under};
pub use compat::connect;
pub use config::{RedisConfig, URLS};
pub use redlock::member::RedisNode;
pub use redlock::{REDLOCK_URLS, RedlockConfig};
pub use topology::server_info::ServerInfo;
