//! Failures that the engine survives: panics of foreign code, parts of a store that are away, and the
//! end of its runtime.

mod endings;
mod executors;
mod isolation;
pub(crate) mod odd;
mod panics;
mod threads;
