//! Locks on one etcd cluster (3.4 or later).
//!
#![forbid(unsafe_code)]
#![doc = include_str!("docs.md")]

mod backend;
mod client;
mod config;
#[cfg(test)]
mod fuzz;
mod net;
mod protocol;
mod state;

pub use backend::EtcdBackend;
pub use config::{EtcdConfig, URLS};
pub use protocol::proof::EtcdProof;
