//! Distributed locks that tell the truth.
#![forbid(unsafe_code)]

mod clock;
pub mod local;

pub use clock::SystemClock;
