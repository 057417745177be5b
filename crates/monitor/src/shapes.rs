//! The shapes in which locks are shown as JSON, by the command with `--json` and by everything else.
//!
//! Ground rules: these are an interface, described in `docs/book/src/cli.md`. Adding a field is fine,
//! changing or removing one is a breaking change. The id of a claim is never among them, because the id
//! is enough to end the claim.
//!
//! The texts of fences, shares and notes are the library's own forms. Here is what views add: the moment,
//! as text, and objects around several values.

use leasehold::{ClaimInfo, Fence, Note, Resource, Share, Snapshot};
use serde::Serialize;

use crate::text::{now, timestamp};

/// The state of one lock: `show`, and with `at` every line of `watch`.
#[derive(Debug, Serialize)]
pub struct LockShape<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    name: &'a Resource,
    state: &'static str,
    /// The last fence that was granted.
    fence: Option<Fence>,
    holders: Vec<ClaimShape<'a>>,
    waiting: Vec<ClaimShape<'a>>,
}

/// A claim that holds or waits.
#[derive(Debug, Serialize)]
pub struct ClaimShape<'a> {
    /// A public name of the claim, as in `LEASEHOLD_OWNER`.
    tag: String,
    share: Share,
    weight: u32,
    capacity: u32,
    fence: Option<Fence>,
    since: Option<String>,
    since_unix_ms: Option<u64>,
    remaining_ms: Option<u64>,
    note: &'a Note,
}

/// The outcome of breaking a lock.
#[derive(Debug, Serialize)]
pub struct BrokenShape<'a> {
    name: &'a Resource,
    broken: Vec<ClaimShape<'a>>,
    /// The holders that released the lock when they were asked; `None` if none was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    released: Option<Vec<ClaimShape<'a>>>,
    /// Other locks that ended with the connection of the holder.
    also_released: &'a [Resource],
}

/// The holders that a revocation has asked.
#[derive(Debug, Serialize)]
pub struct RevokedShape<'a> {
    name: &'a Resource,
    asked: Vec<ClaimShape<'a>>,
    /// Those that hold the lock after the wait; `None` without a wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    still_held: Option<Vec<ClaimShape<'a>>>,
}

impl<'a> LockShape<'a> {
    /// Returns the shape of a state, without a moment.
    pub fn of(snapshot: &'a Snapshot) -> Self {
        LockShape {
            at: None,
            name: &snapshot.resource,
            state: if snapshot.holders.is_empty() { "free" } else { "held" },
            fence: snapshot.fence,
            holders: snapshot.holders.iter().map(ClaimShape::of).collect(),
            waiting: snapshot.waiting.iter().map(ClaimShape::of).collect(),
        }
    }

    /// Returns the shape of a state at this moment.
    pub fn of_now(snapshot: &'a Snapshot) -> Self {
        LockShape { at: Some(now()), ..LockShape::of(snapshot) }
    }
}

impl<'a> ClaimShape<'a> {
    /// Returns the shape of a claim.
    pub fn of(info: &'a ClaimInfo) -> Self {
        ClaimShape {
            tag: info.id.tag(),
            share: info.share,
            weight: info.share.weight(),
            capacity: info.share.capacity(),
            fence: info.fence,
            since: info.since_unix_ms.map(timestamp),
            since_unix_ms: info.since_unix_ms,
            remaining_ms: info.remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            note: &info.note,
        }
    }
}

impl<'a> BrokenShape<'a> {
    /// Returns the shape of the claims of a lock that were broken, and of the locks that ended with them.
    pub fn of(name: &'a Resource, broken: &'a [ClaimInfo], also_released: &'a [Resource]) -> Self {
        BrokenShape { name, broken: claims(broken), released: None, also_released }
    }

    /// Adds the holders that released the lock by themselves after they were asked.
    #[must_use]
    pub fn released(self, released: Option<&'a [ClaimInfo]>) -> Self {
        BrokenShape { released: released.map(claims), ..self }
    }
}

impl<'a> RevokedShape<'a> {
    /// Returns the shape of the holders of a lock that were asked to release it.
    pub fn of(name: &'a Resource, asked: &'a [ClaimInfo]) -> Self {
        RevokedShape { name, asked: claims(asked), still_held: None }
    }

    /// Adds the holders that did not release the lock in time.
    #[must_use]
    pub fn still_held(self, still_held: Option<&'a [ClaimInfo]>) -> Self {
        RevokedShape { still_held: still_held.map(claims), ..self }
    }
}

fn claims(claims: &[ClaimInfo]) -> Vec<ClaimShape<'_>> {
    claims.iter().map(ClaimShape::of).collect()
}
