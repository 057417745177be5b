//! Cells in memory: the laws, faults, group commit and isolation.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

mod at_once;
mod conformance;
mod direct;
mod faults;
mod group_commit;
mod inspecting;
mod isolation;
#[cfg(feature = "laws")]
mod laws;
mod pausing;
mod plain;
mod store;
mod subscribing;
mod sweeping;
