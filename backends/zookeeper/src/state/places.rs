//! The knowledge of this client of its own claims: which node belongs to which, and in which session it
//! was made.
//!
//! A claim is here from before its first request until it is known to be gone, so that an attempt whose
//! answer did not come is never taken for one that was not made. What is here is a hint where to look,
//! never a proof of holding.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::{Claim, ClaimId, Resource};

use crate::protocol::names::NodeRole;
use crate::protocol::shown::Shown;

/// The claims of one client.
#[derive(Default)]
pub(crate) struct Places(Mutex<Table>);

#[derive(Default)]
struct Table {
    claims: HashMap<ClaimId, Known>,
    /// The total length of the paths of the nodes of each session, those that may be made included.
    loads: HashMap<i64, usize>,
}

/// One claim.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) resource: Resource,
    /// The session in which it waits or holds, or was sent.
    pub(crate) session: i64,
    pub(crate) stage: Stage,
    /// The bytes that its node adds to what is written when the session ends.
    bytes: usize,
}

/// The progress of a claim.
#[derive(Clone, Debug)]
pub(crate) enum Stage {
    /// A node was asked for, in the queue or as a lease; whether it was made is not known.
    Sent,
    /// It is in the queue.
    Stands(Own),
    /// It holds.
    Holds(Own),
    /// It is being ended, in the background where need be. Nothing may be made under its id any more.
    Ends,
}

/// The node of a claim.
#[derive(Clone)]
pub(crate) struct Own {
    pub(crate) post: NodeRole,
    /// The child's name.
    pub(crate) name: String,
    /// The transaction that made it.
    pub(crate) czxid: i64,
}

impl Places {
    pub(crate) fn get(&self, id: ClaimId) -> Option<Known> {
        self.lock().claims.get(&id).cloned()
    }

    /// Returns the session that a claim is in, or was sent in.
    pub(crate) fn session(&self, id: ClaimId) -> Option<i64> {
        self.lock().claims.get(&id).map(|known| known.session)
    }

    /// Returns `true` if a session has room for a node with a path of so many bytes.
    pub(crate) fn has_room(&self, session: i64, bytes: usize) -> bool {
        self.lock().has_room(session, bytes)
    }

    /// Notes that a node with a path of so many bytes is about to be asked for. Returns `false` where
    /// the session has no room for it: then it must not be.
    pub(crate) fn enter(&self, claim: &Claim, session: i64, bytes: usize) -> bool {
        let mut table = self.lock();
        // A former try of the same claim makes room for this one.
        table.remove(claim.id);
        let enters = table.has_room(session, bytes);
        if enters {
            table.insert(claim, session, Stage::Sent, bytes);
        }
        enters
    }

    pub(crate) fn set(&self, claim: &Claim, session: i64, stage: Stage) {
        let mut table = self.lock();
        let bytes = table.remove(claim.id);
        table.insert(claim, session, stage, bytes);
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.lock();
        write!(f, "Places({} claims in {} sessions)", table.claims.len(), table.loads.len())
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Own({:?}, {:?}, {:#x})", self.post, Shown(&self.name), self.czxid)
    }
}

impl Table {
    fn has_room(&self, session: i64, bytes: usize) -> bool {
        self.loads.get(&session).copied().unwrap_or_default() + bytes <= ROOM
    }

    fn insert(&mut self, claim: &Claim, session: i64, stage: Stage, bytes: usize) {
        *self.loads.entry(session).or_default() += bytes;
        let known = Known { resource: claim.resource.clone(), session, stage, bytes };
        self.claims.insert(claim.id, known);
    }

    /// Removes a claim; returns the bytes that it took.
    fn remove(&mut self, id: ClaimId) -> usize {
        let Some(known) = self.claims.remove(&id) else { return 0 };
        if let Some(load) = self.loads.get_mut(&known.session) {
            *load = load.saturating_sub(known.bytes);
            if *load == 0 {
                self.loads.remove(&known.session);
            }
        }
        known.bytes
    }
}

impl Known {
    /// Returns the node, where the claim waits or holds in this session.
    pub(crate) fn own(&self, session: i64) -> Option<&Own> {
        match &self.stage {
            Stage::Stands(own) | Stage::Holds(own) if self.session == session => Some(own),
            _ => None,
        }
    }

    /// Returns the node, where the claim holds in this session.
    pub(crate) fn held(&self, session: i64) -> Option<&Own> {
        match &self.stage {
            Stage::Holds(own) if self.session == session => Some(own),
            _ => None,
        }
    }
}

/// The most bytes of the paths of the nodes of one session together. Servers write them down in one go
/// when it ends, beside little else, and read no more than 1 MiB by default.
pub(crate) const ROOM: usize = 900_000;

#[cfg(test)]
mod tests {
    use leasehold_core::{Note, Share};

    use super::*;

    fn claim(n: u8) -> Claim {
        Claim {
            id: ClaimId::from_bytes([n; 16]),
            resource: Resource::new("job").unwrap(),
            share: Share::MUTEX,
            ttl: std::time::Duration::from_secs(9),
            note: Note::default(),
        }
    }

    fn own() -> Own {
        Own { name: "n".to_owned(), czxid: 1, post: NodeRole::Line }
    }

    #[test]
    fn a_session_takes_no_more_than_its_servers_can_write_down() {
        let places = Places::default();
        let half = ROOM / 2;
        assert!(places.enter(&claim(1), 7, half) && places.enter(&claim(2), 7, half));
        assert!(!places.has_room(7, 1) && !places.enter(&claim(3), 7, 1));
        assert!(places.get(claim(3).id).is_none(), "what was refused is not there");
        assert!(places.enter(&claim(3), 8, 1), "another session has room");
        assert!(places.enter(&claim(1), 7, half), "a second try takes its own room");
        places.set(&claim(1), 7, Stage::Holds(own()));
        assert!(!places.has_room(7, 1), "it takes as much when it holds");
        places.set(&claim(2), 8, Stage::Stands(own()));
        assert!(places.has_room(7, half), "its node is in another session now");
        places.forget(claim(1).id);
        assert!(places.has_room(7, ROOM));
    }
}
