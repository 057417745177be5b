//! Worker processes under a lock, faults on them, and a fenced register that judges.
//!
//! A [`Rig`] starts workers as processes of their own. Each takes the locks of a [`Plan`], increments a register under
//! the fence of its grant, and reports what it sees over a pipe. The rig pauses and kills workers, and what comes of it
//! is a [`History`](history::History) for the [`Checker`](history::Checker) of `leasehold-history`. [`torture`] does
//! all of that for a while, with faults that a seed decides, and says what came of it.
//!
//! ```text
//!  run → report → torture, nemesis → rig → worker → register, recorder, wire → plan, clock
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod clock;
mod error;
mod nemesis;
mod plan;
mod recorder;
mod register;
mod report;
mod rig;
mod run;
mod torture;
mod wire;
pub mod worker;

pub use error::RigError;
pub use leasehold_history as history;
pub use nemesis::FaultKind;
pub use plan::{Dense, LockKind, LockPlan, Plan, Program};
pub use recorder::Progress;
pub use report::{Finding, HISTORY, Judgement, Report};
pub use rig::{Edge, Rig};
pub use run::{torture, torture_until};
pub use torture::Torture;

/// Returns a seed for a run that was given none.
pub fn random_seed() -> u64 {
    fastrand::u64(..)
}

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
