//! One lock of an overview: what the listing says of it, and what a closer look has shown.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{ClaimInfo, Resource, ResourceSummary, Snapshot};
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::text::timestamp;

/// One lock of an overview.
///
/// It is serialized as `name`, `holders` and `waiting`, which are those of the listing. If the lock was looked at,
/// `since`, `since_unix_ms`, `remaining_ms`, `note` and `looked_unix_ms` follow.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockRow {
    /// The lock.
    pub name: Resource,
    /// The number of claims that hold it, as of the listing.
    pub holders: u32,
    /// The number of claims that wait for it, as of the listing.
    pub waiting: u32,
    /// Its holders and its queue, if the lock was looked at since it appeared in the listing.
    pub detail: Option<LockDetail>,
}

/// The holders and the queue of a lock, and the time of the look.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockDetail {
    /// The state that was seen.
    pub snapshot: Arc<Snapshot>,
    /// The time of the look by this machine's clock, in milliseconds of the Unix epoch.
    pub at_unix_ms: u64,
}

impl LockDetail {
    /// Creates the record of a look.
    pub fn new(snapshot: Arc<Snapshot>, at_unix_ms: u64) -> LockDetail {
        LockDetail { snapshot, at_unix_ms }
    }
}

impl LockRow {
    /// Creates the row of a line of a listing, without a closer look.
    pub fn new(summary: ResourceSummary) -> LockRow {
        let ResourceSummary { resource, holders, waiting, .. } = summary;
        LockRow { name: resource, holders, waiting, detail: None }
    }

    /// Sets what a closer look has shown.
    #[must_use]
    pub fn detail(self, detail: Option<LockDetail>) -> LockRow {
        LockRow { detail, ..self }
    }

    /// Returns `true` if the closer look has shown as many holders and waiters as the listing.
    pub fn agrees(&self) -> bool {
        self.detail.as_ref().is_some_and(|detail| {
            let Snapshot { holders, waiting, .. } = &*detail.snapshot;
            let same = |count: u32, claims: &[ClaimInfo]| usize::try_from(count) == Ok(claims.len());
            same(self.holders, holders) && same(self.waiting, waiting)
        })
    }

    /// Returns the holders, as far as they are known.
    pub fn known_holders(&self) -> &[ClaimInfo] {
        self.detail.as_ref().map_or(&[], |detail| &detail.snapshot.holders)
    }

    /// Returns the waiters in the order of the queue, as far as they are known.
    pub fn known_waiting(&self) -> &[ClaimInfo] {
        self.detail.as_ref().map_or(&[], |detail| &detail.snapshot.waiting)
    }

    /// Returns the time since which the oldest of the holders holds, in milliseconds of the Unix epoch on
    /// the server's clock.
    pub fn since_unix_ms(&self) -> Option<u64> {
        self.known_holders().iter().filter_map(|holder| holder.since_unix_ms).min()
    }

    /// Returns the time since which the oldest of the waiters waits.
    pub fn waiting_since_unix_ms(&self) -> Option<u64> {
        self.known_waiting().iter().filter_map(|waiter| waiter.since_unix_ms).min()
    }

    /// Returns the time after which the first of the leases ends unless it is renewed, counted from the look;
    /// `None` if no lease keeps the holders, or if they are not known.
    pub fn remaining(&self) -> Option<Duration> {
        self.known_holders().iter().filter_map(|holder| holder.remaining).min()
    }

    /// Returns the same, counted from `now`, in milliseconds of the Unix epoch on this machine's clock.
    pub fn remaining_at(&self, now_unix_ms: u64) -> Option<Duration> {
        let looked = self.detail.as_ref()?.at_unix_ms;
        Some(self.remaining()?.saturating_sub(Duration::from_millis(now_unix_ms.saturating_sub(looked))))
    }

    /// Returns the time at which the first of the leases ends unless it is renewed, from the Unix epoch on this
    /// machine's clock.
    pub(crate) fn ends(&self) -> Option<Duration> {
        let looked = self.detail.as_ref()?.at_unix_ms;
        Some(self.remaining()?.saturating_add(Duration::from_millis(looked)))
    }
}

impl Serialize for LockRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let length = if self.detail.is_some() { 8 } else { 3 };
        let mut shape = serializer.serialize_struct("LockRow", length)?;
        shape.serialize_field("name", &self.name)?;
        shape.serialize_field("holders", &self.holders)?;
        shape.serialize_field("waiting", &self.waiting)?;
        if let Some(detail) = &self.detail {
            shape.serialize_field("since", &self.since_unix_ms().map(timestamp))?;
            shape.serialize_field("since_unix_ms", &self.since_unix_ms())?;
            shape.serialize_field("remaining_ms", &self.remaining().map(millis))?;
            shape.serialize_field("note", &self.known_holders().first().map(|holder| &holder.note))?;
            shape.serialize_field("looked_unix_ms", &detail.at_unix_ms)?;
        }
        shape.end()
    }
}
