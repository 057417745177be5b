//! Backends around a backend: what is added to every store alike.

mod fault;

pub use fault::{Fault, Mode, Verb};
