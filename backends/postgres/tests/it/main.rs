//! Tests of the PostgreSQL backend: each module is one file of tests.
//!
//! They are one program, because each is linked with all that it depends on. `cargo xtask test` runs
//! each module in a process of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, also in its helpers")]

mod common;
mod conformance;
mod cost;
mod dials;
mod faults;
mod fences;
mod schema;
mod search_path;
mod sessions;
mod shedlock;
