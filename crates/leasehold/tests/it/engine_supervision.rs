//! Failures that the engine survives: panics of foreign code, parts of a store that are away, and the
//! end of its runtime.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

#[path = "../common/mod.rs"]
mod common;
mod endings;
mod executors;
mod isolation;
mod odd;
mod panics;
mod threads;
