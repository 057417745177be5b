//! leasehold on one Redis (6.2 or later) or Valkey server.
//!
//! The server decides everything, by script; this crate asks, listens and reads.
#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod backend;
mod backoff;
mod cluster;
mod config;
mod connection;
mod dialect;
mod ears;
mod examining;
mod floor;
mod keys;
mod login;
mod looking;
mod lookout;
mod node;
mod polling;
mod redlock;
mod refusal;
mod registers;
mod replicas;
mod reply;
mod rights;
mod scripts;
mod sentinel;
mod server;
mod servers;
mod subscriber;
mod sweeping;
mod target;
mod timer;
mod view;
mod waiting;
mod wire;

pub use backend::RedisBackend;
pub use config::RedisConfig;
pub use dialect::connect;
pub use node::RedisNode;
pub use redlock::RedlockConfig;
pub use server::Server;
pub use sweeping::{Swept, sweep};
