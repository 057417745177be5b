//! Tests of what stands across backends: each module is one file of tests.
//!
//! They are one program, because each is linked with all that it depends on. `cargo xtask test` runs
//! each module in a process of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, also in its helpers")]

mod cancelled_waits;
mod conformance_redlock;
mod ensemble_campaign;
mod many_leases;
mod partitions;
mod paused_holder;
mod redis_failovers;
mod redis_faults;
mod redis_isolation;
mod redlock_campaign;
mod redlock_faults;
mod redlock_oracle;
