//! The forms of grants and events on the wire.
//!
//! Ground rules: these are an interface, described in `docs/book/src/serve.md`. Adding a field is fine, changing or
//! removing one is a breaking change.

use leasehold::{Fence, FenceGrade, Resource, Share};
use serde::Serialize;

use crate::problem::Problem;

/// A lock that is held, as an answer shows it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GrantShape {
    /// The id that the client chose.
    pub(crate) id: String,
    pub(crate) name: Resource,
    /// `valid` or `suspect`.
    pub(crate) state: &'static str,
    /// For how long the client may rely on it, counted from before it sent the request.
    pub(crate) valid_ms: u64,
    /// The keeper of the lock: a `lease` of the store, or this `process`.
    pub(crate) basis: &'static str,
    pub(crate) ttl_ms: u64,
    pub(crate) fence: Option<Fence>,
    pub(crate) fence_grade: FenceGrade,
    pub(crate) share: Share,
    /// A public name of the claim, as observers see it.
    pub(crate) tag: String,
    /// The reason of a request to release it.
    pub(crate) revoked: Option<String>,
    /// `true` if the server is about to end.
    pub(crate) closing: bool,
}

/// The end of a hold, as an answer shows it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EndShape {
    pub(crate) id: String,
    /// `released`, or `unknown` if this server knows of no lock under the id.
    pub(crate) state: &'static str,
}

/// One event of a stream.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EventShape {
    pub(crate) event: &'static str,
    #[serde(flatten)]
    pub(crate) grant: Option<Box<GrantShape>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<Problem>,
}

impl EventShape {
    /// Creates an event that says no more than its name.
    pub(crate) fn bare(event: &'static str) -> EventShape {
        EventShape { event, grant: None, cause: None, problem: None }
    }

    /// Creates an event about a lock that is held.
    pub(crate) fn of(event: &'static str, grant: GrantShape) -> EventShape {
        EventShape { grant: Some(Box::new(grant)), ..EventShape::bare(event) }
    }

    /// Creates the event of a loss.
    pub(crate) fn lost(cause: &'static str) -> EventShape {
        EventShape { cause: Some(cause), ..EventShape::bare("lost") }
    }

    /// Creates the last event of a request that was not granted.
    pub(crate) fn refused(problem: &Problem) -> EventShape {
        EventShape { problem: Some(problem.clone()), ..EventShape::bare("error") }
    }

    /// Returns `true` if the stream ends with it.
    pub(crate) fn is_last(&self) -> bool {
        matches!(self.event, "lost" | "released" | "error")
    }
}
