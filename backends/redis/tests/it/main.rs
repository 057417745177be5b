//! Tests of the Redis backend: each module is one file of tests.
//!
//! They are one program, because each is linked with all that it depends on. `cargo xtask test` runs
//! each module in a process of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, also in its helpers")]

mod access;
mod acl;
mod cluster;
mod common;
mod conformance;
mod conformance_sentinel;
mod cost;
mod dialects;
mod direct;
mod doctor;
mod faults;
mod free_lock;
mod histories;
mod hold;
mod interop;
mod member;
mod member_restart;
mod outages;
mod replicas;
mod sentinel;
mod single_value;
mod sweep;
mod wait;
