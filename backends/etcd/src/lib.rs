//! Locks on one etcd cluster (3.4 or later).
//!
#![forbid(unsafe_code)]
#![doc = include_str!("docs.md")]

mod backend;
mod cluster;
mod config;
mod contending;
mod core;
mod ending;
mod examining;
mod gate;
mod lease;
mod line;
mod looking;
mod member;
mod moving;
mod outage;
mod proof;
mod proto;
mod refusal;
mod registers;
mod renewing;
mod roster;
mod slots;
mod tending;
mod txn;
mod version;
mod watcher;
mod wire;

pub use backend::EtcdBackend;
pub use config::EtcdConfig;
pub use proof::EtcdProof;
