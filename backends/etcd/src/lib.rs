//! Locks on one etcd cluster (3.4 or later).
//!
#![forbid(unsafe_code)]
#![doc = include_str!("docs.md")]

mod acquire;
mod backend;
mod cluster;
mod config;
mod core;
mod diagnose;
mod error;
mod inspect;
mod key_slots;
mod layout;
mod lease;
mod lease_table;
mod limiter;
mod maintenance;
mod member;
mod moving;
mod outage;
mod proof;
mod proto;
mod queue;
mod release;
mod renew;
mod txn;
mod version;
mod watcher;

pub use backend::EtcdBackend;
pub use config::EtcdConfig;
pub use proof::EtcdProof;
