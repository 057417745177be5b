//! Worker processes under a lock, faults on them, and a fenced register that judges.

#![forbid(unsafe_code)]

mod error;
mod plan;
mod rig;
pub mod worker;

pub use error::RigError;
pub use leasehold_history as history;
pub use plan::{LockKind, LockPlan, Plan, Program};
pub use rig::{Edge, Progress, Rig};
