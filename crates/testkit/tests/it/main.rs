//! Tests of the servers of tests: each module is one file of tests.
//!
//! They are one program, because each is linked with all that it depends on. `cargo xtask test` runs
//! each module in a process of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking, also in its helpers")]

mod etcd;
mod executable;
mod lifetime;
mod mariadb;
mod memcached;
mod proxy;
mod redis;
mod redis_cluster;
mod redis_sentinel;
