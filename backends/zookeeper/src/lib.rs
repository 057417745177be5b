//! Locks in one ZooKeeper ensemble (3.6 or later).
//!
//! The place in the queue is the grant; this crate takes a place, watches and confirms.
#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod backend;
mod client;
mod config;
#[cfg(test)]
mod fuzz;
mod net;
mod protocol;
mod state;

pub use backend::ZooKeeperBackend;
pub use config::{URLS, ZooKeeperConfig};
pub use protocol::proof::ZooKeeperProof;
