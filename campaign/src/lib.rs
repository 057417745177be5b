//! Thirty faults on every store: which outcome is expected, how each fault is made to happen, and the judgement.
//!
//! A cell is a store under a fault. A history of it is recorded by worker processes on real servers and judged by
//! a checker that knows nothing of leasehold; see `docs/book/src/faults.md` for the grid, and ADR 52.
//!
//! Ground rules: expectations are written before runs; a seed repeats a schedule of faults; every cell is bounded
//! in time; all processes are ended through the handles that started them.
#![forbid(unsafe_code)]

pub mod broken;
mod cell;
mod chance;
pub mod endure;
mod expected;
mod fault;
mod inject;
mod json_lines;
mod judge;
mod machine;
pub mod page;
mod plot;
mod results;
mod seen;
mod store;
mod world;

pub use cell::{Cell, Run};
pub use chance::Chance;
pub use expected::{Existing, Expected, existing, expected};
pub use fault::Fault;
pub use inject::{Injection, Round, Scene, injection, schedule};
pub use judge::{gaps, judge};
pub use machine::Machine;
pub use results::{Did, Outcome as CellOutcome, Record, Results};
pub use seen::{Hits, Seen};
pub use store::Store;
pub use world::{ClockShim, Effect, Needs, Network, Servers, Target, World};

/// The outcome of what can fail for any reason.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
