//! The real binary, run as a person, a script or a shell runs it.
//!
//! Ground rules: every test has a store of its own. What happens is waited for by what it prints, never
//! by the clock; the limits are generous, because the machine may be busy. Processes are ended by their
//! ids, also when a test fails.

#![allow(clippy::unwrap_used, reason = "all of it is tests, which the lint does not see in helper functions")]

mod support;
mod sweep;

mod acquire;
mod breaking;
mod config;
mod conflict;
mod cost;
mod counter;
mod deadlocks;
mod descriptors;
mod doctor;
mod elect;
mod environment;
mod exits;
mod fence;
mod groups;
mod inspect;
mod keepers;
mod killed;
mod kinds;
mod log;
mod loss;
mod man;
mod nested;
mod other_user;
mod progress;
mod redis;
mod redlock;
mod revoke;
mod schema;
mod secrets;
mod sections;
mod serve;
mod several;
mod signals;
mod snapshots;
mod status;
mod stores;
mod stress;
mod terminal;
mod top;
mod top_pictures;
mod top_stores;
#[cfg(feature = "torture")]
mod torture;
mod usage;
mod wardens;
