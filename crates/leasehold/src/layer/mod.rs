//! Backends around a backend: what is added to every store alike.

mod dual;
mod fault;

pub use dual::Dual;
pub use fault::{Fault, Mode, Verb};
