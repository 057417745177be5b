//! What this client knows of its own claims: which node is whose, and in which session it was made.
//!
//! A claim is here from before its first request until it is known to be gone, so that an attempt whose answer did
//! not come is never taken for one that was not made. What is here is a hint where to look, never a proof of holding.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::{Claim, ClaimId, Resource};

use crate::names::Post;

/// The claims of one client.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<HashMap<ClaimId, Known>>);

/// One claim.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) resource: Resource,
    /// In which session it stands, or was sent.
    pub(crate) session: i64,
    pub(crate) stage: Stage,
}

/// How far it came.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// A node was asked for, in the line or as a lease; whether it was made is not known.
    Sent,
    /// It stands in line.
    Stands(Own),
    /// It holds.
    Holds(Own),
    /// It is being ended, in the background where need be. Nothing may be made under its id any more.
    Ends,
}

/// The node of a claim.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) post: Post,
    /// The child's name.
    pub(crate) name: String,
    /// The transaction that made it.
    pub(crate) czxid: i64,
}

impl Places {
    pub(crate) fn get(&self, id: ClaimId) -> Option<Known> {
        self.lock().get(&id).cloned()
    }

    pub(crate) fn set(&self, claim: &Claim, session: i64, stage: Stage) {
        let known = Known { resource: claim.resource.clone(), session, stage };
        self.lock().insert(claim.id, known);
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        self.lock().remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The node, where the claim stands or holds in this session.
    pub(crate) fn own(&self, session: i64) -> Option<&Own> {
        match &self.stage {
            Stage::Stands(own) | Stage::Holds(own) if self.session == session => Some(own),
            _ => None,
        }
    }

    /// The node, where the claim holds in this session.
    pub(crate) fn held(&self, session: i64) -> Option<&Own> {
        match &self.stage {
            Stage::Holds(own) if self.session == session => Some(own),
            _ => None,
        }
    }
}
