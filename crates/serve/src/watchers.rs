//! The streams that only read: watches of locks and elections, and pages of the console.
//!
//! Ground rules: they need no token on this machine, so they have places of their own. However many there are,
//! the streams of holders find theirs.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{Code, Problem};

/// The places of streams that only read.
#[derive(Debug)]
pub(crate) struct Watchers {
    places: Arc<Semaphore>,
    limit: usize,
}

impl Watchers {
    pub(crate) fn new(limit: usize) -> Watchers {
        Watchers { places: Arc::new(Semaphore::new(limit)), limit }
    }

    /// Takes a place, which is free again when it is dropped.
    ///
    /// # Errors
    /// `too_many_watchers`.
    pub(crate) fn place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.places.clone().try_acquire_owned().map_err(|_| {
            let text = format!("{} watches and pages are open, which is the limit: close some", self.limit);
            Problem::new(Code::TooManyWatchers, text)
        })
    }

    /// Returns the number of taken places.
    pub(crate) fn open(&self) -> usize {
        self.limit.saturating_sub(self.places.available_permits())
    }
}
