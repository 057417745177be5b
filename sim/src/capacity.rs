//! Capacity of the stores on paper: a closed form, and a simulation that checks it.
//!
//! # The model
//!
//! Processes hold locks, renew them in batches, wait for locks of others, and take and release free ones.
//! A server is a queue of requests, each with a service time by its kind, and perhaps a disk that syncs all
//! writes that arrived during the sync before. `estimate.rs` states what follows as formulas. `world.rs`
//! simulates it event by event, for each process and each lock, and finds the same, or a test fails.
//! `failover.rs` derives the shortest ttl that survives a failover, and `failover_run.rs` simulates one lease.
//!
//! # Where the numbers come from
//!
//! The rules of the clients (batches, beats, pauses) are those of the code, and each names its file. Service
//! times are measured: `stores.rs` says where. `docs/book/src/capacity.md` has the tables, which `tables.rs`
//! writes and a test compares.
//!
//! Ground rules: virtual time in nanoseconds, chance from a seed, no I/O. The same seed gives the same run.

pub mod dice;
pub mod estimate;
pub mod events;
pub mod failover;
pub mod failover_run;
pub mod figures;
pub mod handed;
pub mod process;
pub mod rules;
pub mod server;
pub mod stores;
pub mod tables;
pub mod watching;
pub mod workload;
pub mod world;
