//! Recorded histories of distributed locks, and a checker that knows no lock library.
#![doc = ""]
#![forbid(unsafe_code)]

mod check;
mod event;
mod history;
mod verdict;

pub use check::{Checker, Stamps};
pub use event::{Event, Fence, Mode, Operation, Stage, Values};
pub use history::{History, ReadError};
pub use verdict::{Class, Counts, Invariant, Unjudged, Verdict, Violation};
