//! The law of each word that stands on registers, or partly so, and of who is told of a deadlock, on random schedules: many
//! clients over one store, with lost and late requests and answers, with waits that are dropped and clients that fall silent
//! for good.
//!
//! Time is the runtime's own and stands still while anything can go on, so a schedule of minutes takes milliseconds.
//! `LEASEHOLD_SCHEDULES` says how many each test tries, `LEASEHOLD_SEED` with which one to begin.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod barrier;
mod condition;
mod deadlock;
mod election;
mod flight;
mod handover;
mod latch;
mod rate;
mod revocation;
mod versioned;
mod world;
