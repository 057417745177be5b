//! Tests of the etcd backend: each module is one file of tests.
//!
//! They are one program, because each is linked with all that it depends on. `cargo xtask test` runs
//! each module in a process of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, also in its helpers")]

mod cluster;
mod common;
mod conformance;
mod cost;
mod dead_waiters;
mod doctor;
mod faults;
mod history;
mod interop;
mod outage;
mod own_transaction;
