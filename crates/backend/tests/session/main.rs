//! Sessions in memory: the laws and faults.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

mod calls;
mod conformance;
mod dials;
mod faults;
mod shown;
mod store;
mod waits;
