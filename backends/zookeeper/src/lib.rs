//! Locks in one ZooKeeper ensemble (3.6 or later).
//!
//! Standing in line is the grant; this crate stands, watches and confirms.
#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod backend;
mod config;
mod ending;
mod line;
mod looking;
mod places;
mod renewing;
mod session;
mod waiting;
mod wire;

pub use backend::{ZooKeeperBackend, ZooKeeperProof};
pub use config::ZooKeeperConfig;
