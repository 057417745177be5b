//! Locks in one ZooKeeper ensemble (3.6 or later).
//!
//! The place in line is the grant; this crate takes a place, watches and confirms.
#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod backend;
mod config;
mod dialect;
mod ending;
mod examining;
mod fleet;
mod leases;
mod line;
mod listing;
mod looking;
mod making;
mod names;
mod places;
mod proof;
mod quiet;
mod recent;
mod registers;
mod renewing;
mod scene;
mod session;
mod shown;
mod tunnel;
mod validity;
mod waiting;
mod watching;
mod wire;
mod words;

pub use backend::ZooKeeperBackend;
pub use config::ZooKeeperConfig;
pub use proof::ZooKeeperProof;
