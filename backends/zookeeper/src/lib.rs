//! Locks in one ZooKeeper ensemble (3.6 or later).
//!
//! The place in the queue is the grant; this crate takes a place, watches and confirms.
#![doc = include_str!("docs.md")]
#![forbid(unsafe_code)]

mod acquire;
mod backend;
mod config;
mod create;
mod diagnose;
mod dialect;
mod ensemble;
mod four_letter;
mod inspect;
mod layout;
mod leases;
mod leftovers;
mod listing;
mod names;
mod places;
mod proof;
mod queue;
mod recent;
mod registers;
mod release;
mod renew;
mod resource_view;
mod session;
mod session_pool;
mod shown;
mod tunnel;
mod uncontended;
mod validity;
mod watching;

pub use backend::ZooKeeperBackend;
pub use config::ZooKeeperConfig;
pub use proof::ZooKeeperProof;
