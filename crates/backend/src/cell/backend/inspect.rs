//! Inspection: one resource, and the list of all. Nothing is changed.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_core::{
    ClaimInfo, Entry, Failure, Fence, Ledger, Moment, Patience, Resource, ResourceSummary, Snapshot,
    SnapshotVersion,
};

use crate::cell::backend::CellBackend;
use crate::cell::cells::{CellStore, read_one};
use crate::cell::list::Listing;
use crate::cell::state::decoded::DecodedCell;
use crate::cell::wait::timing::TICK;
use crate::changes::{until_changed, within};

impl<C: CellStore> CellBackend<C> {
    /// Reads one resource; with `seen`, again and again until it has another version or patience ends.
    pub(crate) async fn inspect_until(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        let Some(seen) = seen else { return Ok(self.inspect_once(resource).await?.0) };
        let subscription = self.notifier().subscribe(resource, None);
        let look = || async {
            let (snapshot, first_end) = self.inspect_once(resource).await?;
            // Calls are notified; grants and arrivals are not, so that they cost nothing.
            let pause = LOOK_AGAIN.min(first_end.saturating_add(TICK));
            Ok((snapshot, within(pause, subscription.receive())))
        };
        until_changed(patience, |snapshot| snapshot.version != *seen, look).await
    }

    async fn inspect_once(&self, resource: &Resource) -> Result<(Snapshot, Duration), Failure> {
        let Some(cell) = read_one(&*self.cells, resource).await? else {
            let version = version(Fence::default(), &[]);
            let (holders, waiting) = (Vec::new(), Vec::new());
            let unlocked = Snapshot::new(resource.clone(), version).holders(holders).waiting(waiting);
            return Ok((unlocked, Duration::MAX));
        };
        let decoded = self.open(resource, &cell)?;
        let ledger = alive(&decoded);
        let info = |entry: &Entry| {
            ClaimInfo::new(entry.id, entry.share)
                .fence(entry.granted)
                .since_unix_ms(decoded.unix_ms(entry))
                .remaining((entry.until != Moment::NEVER).then(|| decoded.now.until(entry.until)))
                .note(entry.note.clone())
        };
        let entries = ledger.entries();
        let mut holders: Vec<ClaimInfo> =
            entries.iter().filter(|entry| entry.granted.is_some()).map(info).collect();
        // One that passed the queue is ahead of those that were granted before it.
        holders.sort_by_key(|holder| holder.fence);
        let last = ledger.last_fence();
        let snapshot = Snapshot::new(resource.clone(), version(last, entries))
            .holders(holders)
            .waiting(entries.iter().filter(|entry| entry.granted.is_none()).map(info).collect())
            .fence((last != Fence::default()).then_some(last));
        Ok((snapshot, decoded.first_end()))
    }

    /// Returns the resources with holders or waiters, in the order of their names.
    pub(crate) async fn list_resources(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let mut listing = Listing::new(after, limit);
        while let Some((behind, length)) = listing.next_page() {
            let behind = Resource::new(&behind).ok();
            let cells = self.cells.list(prefix, behind.as_ref(), length).await?;
            let page = cells.into_iter().map(|(resource, cell)| {
                let name = resource.as_str().to_owned();
                (name, self.open(&resource, &cell).ok().and_then(|decoded| summary(resource, &decoded)))
            });
            listing.add(length, page.collect());
        }
        Ok(listing.into_summaries())
    }
}

/// Counts the claims of a resource; `None` where none lives.
fn summary(resource: Resource, decoded: &DecodedCell) -> Option<ResourceSummary> {
    let ledger = alive(decoded);
    let entries = ledger.entries();
    let count = |number| u32::try_from(number).unwrap_or(u32::MAX);
    let holders = entries.iter().filter(|entry| entry.granted.is_some()).count();
    let waiting = entries.len() - holders;
    let summary = ResourceSummary::new(resource, count(holders), count(waiting));
    (!entries.is_empty()).then_some(summary)
}

fn alive(decoded: &DecodedCell) -> Ledger {
    let mut ledger = decoded.ledger.clone();
    ledger.expire(decoded.now);
    ledger
}

/// Names the state by its content: renewals, and the store's own numbers, are not changes for an observer.
fn version(last: Fence, entries: &[Entry]) -> SnapshotVersion {
    let mut state = DefaultHasher::new();
    for entry in entries {
        (entry.id, entry.granted, entry.note.as_str()).hash(&mut state);
    }
    SnapshotVersion::new(format!("{last}-{:016x}", state.finish()))
}

/// The longest time between two reads of an observer that waits for a change.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
