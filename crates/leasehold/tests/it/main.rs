//! Tests of the engine and the public types: each module is one file of tests.
//!
//! They are one program, because each is linked with all that it depends on. `cargo xtask test` runs
//! each module in a process of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, also in its helpers")]

mod auto_traits;
mod blocking;
mod cancellation;
#[path = "../common/mod.rs"]
mod common;
mod conformance_memory;
mod coord_election;
mod coord_faults;
mod coord_multi;
mod diagnose;
#[cfg(feature = "redis")]
mod dual;
mod engine_at_once;
mod engine_cancel;
mod engine_contender;
mod engine_deadlock;
mod engine_direct;
mod engine_holds;
mod engine_late_grants;
mod engine_local_queue;
mod engine_looks;
mod engine_loss;
mod engine_min_hold;
mod engine_owner;
mod engine_releases;
mod engine_self_wait;
mod engine_supervision;
mod engine_timeout;
mod engine_transfer;
mod engine_unpolled;
mod engine_upgrade;
mod linger;
mod policies;
mod quorum_answers;
mod quorum_arming;
mod quorum_late_answers;
mod quorum_waiters;
mod watch;
