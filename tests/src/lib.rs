//! The parts that the tests across backends share: the stores they run on and the processes they drive.
//!
//! Ground rules: a process is ended through the handle that started it; every wait has a limit.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "it is part of tests")]
#![allow(missing_docs, reason = "only the tests beside it use this")]

mod actor;
pub mod campaign;
mod elected;
mod ensemble;
mod load;
mod opening;
mod partition;
mod primaries;
mod redlock;
mod referee;
mod store;
pub mod stores;

pub use actor::{Actor, Outcome, increment};
pub use campaign::{Campaign, add_one};
pub use elected::Elected;
pub use ensemble::Ensemble;
pub use load::{Load, Seen, TTL};
pub use opening::{opened, opened_by_threads, opened_with};
pub use partition::{Partition, monotonic};
pub use primaries::{Missed, kill_primaries};
pub use redlock::{arm, quorum, redlock};
pub use referee::{Counts, Referee};
pub use store::{Store, renewed, settled};
