//! Backends around a backend: what is added to every store alike.

mod dual;
mod fault;
mod quorum;

pub use dual::Dual;
pub use fault::{Fault, Mode, Verb};
pub use quorum::{Quorum, Rearmed, Terms};
