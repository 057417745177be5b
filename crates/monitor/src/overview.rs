//! The picture of a whole store.

use std::time::Duration;

use leasehold::{Deadlock, Error, ErrorKind};
use tokio::time::Instant;

use crate::row::LockRow;

/// The locks of a store, as they were seen last.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Overview {
    /// The time of the listing by this machine's clock, in milliseconds of the Unix epoch; `None` before the first.
    pub at_unix_ms: Option<u64>,
    /// The locks that are held or waited for, in the order of their names.
    pub locks: Vec<LockRow>,
    /// `true` if the store has more locks than are kept.
    pub truncated: bool,
    /// The deadlocks of the store.
    pub deadlocks: DeadlockReport,
    /// The reason why the picture is not newer; `None` if the store has answered.
    pub outage: Option<Outage>,
    /// The cost of the last refresh.
    pub cost: RefreshCost,
    /// The number of pictures before this one.
    pub number: u64,
    /// The time at which the next refresh is due.
    pub(crate) due: Option<Instant>,
}

/// The deadlocks of a store, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum DeadlockReport {
    /// The store was not asked yet.
    #[default]
    NotYet,
    /// The store cannot show which owner waits for which, for this reason.
    Unsupported(String),
    /// Those that were found at this time.
    Found {
        /// The time of the search, in milliseconds of the Unix epoch.
        at_unix_ms: u64,
        /// One for each circle.
        deadlocks: Vec<Deadlock>,
    },
}

impl DeadlockReport {
    /// Returns the deadlocks that were found last.
    pub fn found(&self) -> &[Deadlock] {
        match self {
            DeadlockReport::Found { deadlocks, .. } => deadlocks,
            _ => &[],
        }
    }
}

/// A store that fails or does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outage {
    /// The time of the first failure, in milliseconds of the Unix epoch.
    pub since_unix_ms: u64,
    /// The kind of the last failure; `None` if a request has no answer yet.
    pub kind: Option<ErrorKind>,
    /// The reason, for people.
    pub text: String,
}

impl Outage {
    /// Creates the report of a failure.
    pub fn of(error: &Error, since_unix_ms: u64) -> Outage {
        Outage { since_unix_ms, kind: Some(error.kind()), text: error.to_string() }
    }

    /// Creates the report of a request without an answer.
    pub fn silent(since_unix_ms: u64, silence: Duration) -> Outage {
        let text = format!("the store has not answered for {} s", silence.as_secs());
        Outage { since_unix_ms, kind: None, text }
    }
}

/// The cost of one refresh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefreshCost {
    /// The time that the listing took.
    pub listing: Duration,
    /// The number of locks that were looked at. Until the looks of a refresh end, those of the refresh before it.
    pub looks: usize,
    /// The time from the end of this refresh to the beginning of the next one.
    pub pause: Duration,
}
