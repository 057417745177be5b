//! leasehold on one Redis (6.2 or later) or Valkey server.
//!
//! The server decides everything, by script; this crate asks, listens and reads.
#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod acl;
mod backend;
mod backoff;
mod channel_scope;
mod cluster;
mod command_conn;
mod config;
mod connection;
mod dialect;
mod endpoint;
mod error;
mod floor;
mod keys;
mod login;
mod polling;
mod pubsub_conn;
mod redlock;
mod redlock_member;
mod replicas;
mod reply;
mod router;
mod scripts;
mod sentinel;
mod server;
mod slots;
mod subscriber;
mod sweep;
mod timer;
mod wait_keepalive;

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use dialect::connect;
pub use redlock::RedlockConfig;
pub use redlock_member::RedisNode;
pub use server::Server;
pub use sweep::{SweepReport, sweep};
