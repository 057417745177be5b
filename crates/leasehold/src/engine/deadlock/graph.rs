//! Deadlock detection: reads the wait-for graph from the waits that are announced in a store.
//!
//! Ground rules: one read never proves a deadlock, because what is read at different times need never
//! have been true together. A wait that is announced under the same id both before and after a read of
//! the queues has lasted all the while, and its owner has held what it holds. Detection changes nothing
//! in the store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::deadlock::{Announced, Deadlock, Places, find};
use leasehold_core::{Resource, Snapshot};

use crate::engine::Engine;
use crate::error::{Error, Result};

impl Engine {
    /// Returns all announced waits.
    pub(crate) async fn announced(self: &Arc<Self>) -> Result<Vec<Announced>> {
        self.announced_at(Places::of(self.profile())?.names).await
    }

    /// Returns the deadlocks among these waits that `is_relevant` accepts: found by a read now, and confirmed
    /// by another one a little later.
    pub(crate) async fn deadlocks_among(
        self: &Arc<Self>,
        waits: &[Announced],
        is_relevant: impl Fn(&Deadlock) -> bool,
    ) -> Result<Vec<Deadlock>> {
        let deadlocks_in = |waits: &[Announced], queues: &[Snapshot]| {
            let mut found = find(waits, queues);
            found.retain(&is_relevant);
            found
        };
        let suspected = deadlocks_in(waits, &self.queues_of(waits).await?);
        if suspected.is_empty() {
            return Ok(suspected);
        }
        // An owner that was granted the lock withdraws its announcement before it continues, and the
        // announcement of a client that was cut off expires.
        if !self.sleep(CONFIRM_DELAY).await {
            return Err(Error::closed("deadlocks"));
        }
        let is_suspected = |wait: &&Announced| {
            suspected.iter().any(|deadlock| deadlock.waits.iter().any(|one| one.id == wait.id))
        };
        let involved: Vec<Announced> = waits.iter().filter(is_suspected).cloned().collect();
        let queues = self.queues_of(&involved).await?;
        // The order matters: a wait counts if it was announced before the read of the queues and still is
        // after it.
        let places: BTreeSet<Resource> = involved.iter().map(|wait| wait.place.clone()).collect();
        let still = self.announced_at(places.into_iter().collect()).await?;
        let still: Vec<Announced> = involved.into_iter().filter(|wait| still.contains(wait)).collect();
        Ok(deadlocks_in(&still, &queues))
    }

    async fn announced_at(self: &Arc<Self>, places: Vec<Resource>) -> Result<Vec<Announced>> {
        let snapshots = self.inspect_all(places).await?;
        let all =
            snapshots.iter().flat_map(|place| place.holders.iter().map(|holder| (&place.resource, holder)));
        Ok(all.filter_map(|(place, holder)| Announced::read(place, holder)).collect())
    }

    async fn queues_of(self: &Arc<Self>, waits: &[Announced]) -> Result<Vec<Snapshot>> {
        let resources: BTreeSet<Resource> = waits.iter().map(|wait| wait.resource.clone()).collect();
        self.inspect_all(resources.into_iter().collect()).await
    }

    async fn inspect_all(self: &Arc<Self>, resources: Vec<Resource>) -> Result<Vec<Snapshot>> {
        let mut snapshots = Vec::with_capacity(resources.len());
        for some in resources.chunks(READS_AT_ONCE) {
            for snapshot in
                join_all(some.iter().map(|resource| self.inspect(resource, None, Duration::ZERO))).await
            {
                snapshots.push(snapshot?);
            }
        }
        Ok(snapshots)
    }

    /// Returns all deadlocks of the store, as far as its waiters announce themselves.
    pub(crate) async fn deadlocks(self: &Arc<Self>) -> Result<Vec<Deadlock>> {
        self.announces_waits("deadlocks")?;
        let waits = self.announced().await?;
        self.deadlocks_among(&waits, |_| true).await
    }

    /// Checks that this store can show which owner waits for which.
    ///
    /// # Errors
    /// `Unsupported`; nothing is sent.
    pub(crate) fn announces_waits(&self, op: &'static str) -> Result<()> {
        self.profile().announces_waits().map_err(|unmet| {
            let text = format!("{unmet}; waits are announced in notes, so deadlocks cannot be seen here");
            Error::new(crate::error::ErrorKind::Unsupported, op, text)
        })
    }
}

/// Time between two reads that must agree: long enough for an announcement that is being withdrawn
/// to disappear.
const CONFIRM_DELAY: Duration = Duration::from_millis(250);
/// The number of resources that are read at the same time.
const READS_AT_ONCE: usize = 8;
