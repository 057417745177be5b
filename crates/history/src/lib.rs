//! Recorded histories of distributed locks, and a checker that judges them without knowing any lock library.
//!
//! A [`History`] is JSON Lines, one [`Event`] a line: the invocation of an operation and its completion, what holders
//! saw, what the protected register accepted, and which faults were at work. Any client of any lock can write it.
//! [`Checker`] finds the violations of the [invariants](Invariant) that the events show, and says which ones they
//! cannot show. [`History::export`] gives the same history to the checkers of others, and [`Timeline`] draws it.
//!
//! # The form of an event
//!
//! | field | meaning |
//! |---|---|
//! | `i` | the place of the event, which rises from line to line |
//! | `t` | the recorder's monotonic clock when it received the event, in nanoseconds |
//! | `w` | the monotonic clock of the process, before an invocation and after a completion; optional |
//! | `p` | the logical process, which does one thing at a time, and nothing once a fault killed it; absent for the recorder and the register |
//! | `type` | `invoke`, `ok`, `fail` (certainly not done) or `info` (unknown: open for ever, and its process ends) |
//! | `f` | the [operation](Operation) |
//! | `key` | the name of the lock, which is also that of its register |
//! | `v` | the [values](Values) |
//! | `err` | the error, or the cause of a loss; that of a register that refuses a fence begins with `refused` |
//!
//! An acquisition whose caller dropped it on its way is a `fail` with the error `cancelled`.
//!
//! The stage `info` is Jepsen's: an operation without an answer may still happen, at any later time.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod check;
mod event;
mod export;
#[cfg(test)]
mod fuzz;
mod history;
mod linear;
mod report;
mod timeline;
mod verdict;
mod view;

pub use check::Checker;
pub use event::{BUSY, CANCELLED, Event, FenceValue, Mode, NOBODY, Operation, Stage, Values};
pub use export::{Exporter, Format};
pub use history::{History, ReadError};
pub use timeline::Timeline;
pub use verdict::{Class, Counts, Invariant, Unjudged, Verdict, Violation};
pub use view::Stamps;

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
