//! The view of an observer.

use std::time::Duration;

use crate::{ClaimId, Fence, Note, Resource, Share};

/// The holders and the queue of one resource at one instant of the server.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The inspected resource.
    pub resource: Resource,
    /// The name of this state; another state has another version.
    pub version: SnapshotVersion,
    /// The holders, in the order of grants.
    pub holders: Vec<ClaimInfo>,
    /// The waiters, in the order of the queue.
    pub waiting: Vec<ClaimInfo>,
    /// The last fence that was granted, if the backend keeps one.
    pub fence: Option<Fence>,
}

impl Snapshot {
    /// Creates the state of a resource without holders, waiters or a fence.
    pub fn new(resource: Resource, version: SnapshotVersion) -> Snapshot {
        Snapshot { resource, version, holders: Vec::new(), waiting: Vec::new(), fence: None }
    }

    /// Sets the holders, in the order of grants.
    #[must_use]
    pub fn holders(self, holders: Vec<ClaimInfo>) -> Snapshot {
        Snapshot { holders, ..self }
    }

    /// Sets the waiters, in the order of the queue.
    #[must_use]
    pub fn waiting(self, waiting: Vec<ClaimInfo>) -> Snapshot {
        Snapshot { waiting, ..self }
    }

    /// Sets the last fence that was granted.
    #[must_use]
    pub fn fence(self, fence: Option<Fence>) -> Snapshot {
        Snapshot { fence, ..self }
    }
}

/// One claim as others see it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClaimInfo {
    /// The claim. Any client that has it can end the claim: this is what makes `break` possible, and why it
    /// is not printed.
    pub id: ClaimId,
    /// The share that it asks for.
    pub share: Share,
    /// Its fence, if it holds.
    pub fence: Option<Fence>,
    /// The moment since which it holds or waits, in milliseconds of the Unix epoch on the server's clock;
    /// for display only.
    pub since_unix_ms: Option<u64>,
    /// The time for which the server keeps it without a sign of life; `None` if a session keeps it alive.
    pub remaining: Option<Duration>,
    /// The note of the claim.
    pub note: Note,
}

impl ClaimInfo {
    /// Creates the view of a claim of which nothing else is known yet.
    pub fn new(id: ClaimId, share: Share) -> ClaimInfo {
        ClaimInfo { id, share, fence: None, since_unix_ms: None, remaining: None, note: Note::default() }
    }

    /// Sets its fence.
    #[must_use]
    pub fn fence(self, fence: Option<Fence>) -> ClaimInfo {
        ClaimInfo { fence, ..self }
    }

    /// Sets the moment since which it holds or waits.
    #[must_use]
    pub fn since_unix_ms(self, since_unix_ms: Option<u64>) -> ClaimInfo {
        ClaimInfo { since_unix_ms, ..self }
    }

    /// Sets the time for which the server keeps it without a sign of life.
    #[must_use]
    pub fn remaining(self, remaining: Option<Duration>) -> ClaimInfo {
        ClaimInfo { remaining, ..self }
    }

    /// Sets its note.
    #[must_use]
    pub fn note(self, note: Note) -> ClaimInfo {
        ClaimInfo { note, ..self }
    }
}

/// One resource of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceSummary {
    /// The resource.
    pub resource: Resource,
    /// The number of claims that hold it.
    pub holders: u32,
    /// The number of claims that wait for it.
    pub waiting: u32,
}

impl ResourceSummary {
    /// Creates the line of a resource with these numbers of holders and waiters.
    pub fn new(resource: Resource, holders: u32, waiting: u32) -> ResourceSummary {
        ResourceSummary { resource, holders, waiting }
    }
}

/// A name of one state of a resource; only equality has a meaning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotVersion(String);

impl SnapshotVersion {
    /// Creates a version from the text that a backend distinguishes states by.
    pub fn new(text: impl Into<String>) -> SnapshotVersion {
        SnapshotVersion(text.into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
