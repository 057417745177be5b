//! The laws of all primitives that are built on registers, at least in part, and of the deadlock
//! detector, on random schedules: many clients over one store, with lost and late requests and answers,
//! with waits that are dropped and clients that fall silent for good.
//!
//! Time is that of the runtime, and stands still while any task can run, so a schedule of minutes takes
//! milliseconds. `LEASEHOLD_SCHEDULES` sets how many schedules each test tries, `LEASEHOLD_SEED` the
//! first seed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod barrier;
mod condition;
mod deadlock;
mod election;
mod flight;
mod latch;
mod rate;
mod revocation;
mod transfer;
mod versioned;
mod world;
