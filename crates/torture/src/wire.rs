//! The messages between the rig and a worker, one JSON object a line.
//!
//! The rig writes one [`Assignment`] to the worker's standard input, then each [`Order`] about its clocks, and closes it
//! when the worker has to end, so a worker also ends if its rig is killed. The worker answers on its standard output.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_history::Event;
use serde::{Deserialize, Serialize};

use crate::clock::Change;
use crate::plan::Plan;

/// The orders of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Assignment {
    pub(crate) plan: Plan,
    /// The number of the worker.
    pub(crate) worker: usize,
    /// The number of this start, for the seed.
    pub(crate) spawn: u64,
    /// The beginning of all names.
    pub(crate) prefix: String,
    /// The socket of the registers.
    pub(crate) registers: PathBuf,
    /// `true` if a store that cannot be opened is tried again until the worker has to end.
    pub(crate) is_patient: bool,
}

/// An order to a worker that runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Change the clock that measures leases.
    Change(Change),
    /// Answer what the wall clock shows.
    ReadTime,
}

/// The answer to an order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Done {
    /// The clock was changed.
    Changed(Change),
    /// The wall clock shows this time since 1970.
    Time(Duration),
}

/// A message of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Message {
    /// The store is open.
    Ready(Facts),
    /// The store cannot be opened.
    Failed(String),
    /// An order was carried out.
    Done(Done),
    /// Something happened. The event has no index and no time of receipt yet.
    Event(Box<Event>),
}

/// Facts about the store, as a worker sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// The name of the backend.
    pub(crate) store: String,
    /// The grade of the fences.
    pub(crate) grade: String,
    /// The ttl that the locks really have; none if a session keeps them alive.
    pub(crate) ttl: Option<Duration>,
    /// The time for which a claim of a dead process stays.
    pub(crate) stays: Duration,
    /// `true` if the store grants waiting requests in the order in which they came.
    pub(crate) is_ordered: bool,
    /// Kinds of locks of the plan that the store does not support.
    pub(crate) unsupported: Vec<String>,
}
