//! The claims of this client: the node of each, and the session in which it was made.
//!
//! A claim is in the table from before its first request until it is known to be gone, so that an attempt whose
//! answer did not come is never taken for one that was not made. The table is a hint where to look,
//! never a proof of holding.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::{Claim, ClaimId, Resource};

use crate::protocol::names::NodeRole;
use crate::protocol::shown::Shown;

/// The claims of one client.
#[derive(Default)]
pub(crate) struct ClaimTable(Mutex<Table>);

#[derive(Default)]
struct Table {
    claims: HashMap<ClaimId, TrackedClaim>,
    /// The total length of the paths of the nodes of each session, those that may be made included.
    loads: HashMap<i64, usize>,
}

/// One claim.
#[derive(Clone, Debug)]
pub(crate) struct TrackedClaim {
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
    Queued(OwnNode),
    /// It holds.
    Holding(OwnNode),
    /// It is being ended, in the background where need be. Nothing may be made under its id any more.
    Ending,
}

/// The node of a claim.
#[derive(Clone)]
pub(crate) struct OwnNode {
    pub(crate) role: NodeRole,
    /// The child's name.
    pub(crate) name: String,
    /// The transaction that made it.
    pub(crate) czxid: i64,
}

impl ClaimTable {
    pub(crate) fn get(&self, id: ClaimId) -> Option<TrackedClaim> {
        self.lock().claims.get(&id).cloned()
    }

    /// Returns the session that a claim is in, or was sent in.
    pub(crate) fn session(&self, id: ClaimId) -> Option<i64> {
        self.lock().claims.get(&id).map(|known| known.session)
    }

    /// Returns `true` if a session has capacity for a node with a path of so many bytes.
    pub(crate) fn has_capacity(&self, session: i64, bytes: usize) -> bool {
        self.lock().has_capacity(session, bytes)
    }

    /// Reserves capacity for a node with a path of so many bytes that is about to be asked for. Returns `false`
    /// where the session has no capacity for it: then it must not be asked for.
    pub(crate) fn reserve(&self, claim: &Claim, session: i64, bytes: usize) -> bool {
        let mut table = self.lock();
        // The capacity of a former attempt of the same claim is freed for this one.
        table.remove(claim.id);
        let has_capacity = table.has_capacity(session, bytes);
        if has_capacity {
            table.insert(claim, session, Stage::Sent, bytes);
        }
        has_capacity
    }

    pub(crate) fn set(&self, claim: &Claim, session: i64, stage: Stage) {
        let mut table = self.lock();
        let bytes = table.remove(claim.id);
        table.insert(claim, session, stage, bytes);
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        self.lock().remove(id);
    }

    /// Forgets a claim that was ended, unless it was contended for again meanwhile.
    pub(crate) fn forget_ended(&self, id: ClaimId) {
        self.forget_if(id, |stage| matches!(stage, Stage::Ending));
    }

    /// Forgets a claim whose node is gone, unless it has another one by now or is being ended.
    pub(crate) fn forget_node(&self, id: ClaimId, gone: &str) {
        let is_gone = |stage: &Stage| match stage {
            Stage::Queued(own) | Stage::Holding(own) => own.name == gone,
            Stage::Sent | Stage::Ending => false,
        };
        self.forget_if(id, is_gone);
    }

    fn forget_if(&self, id: ClaimId, is_over: impl FnOnce(&Stage) -> bool) {
        let mut table = self.lock();
        if table.claims.get(&id).is_some_and(|known| is_over(&known.stage)) {
            table.remove(id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ClaimTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.lock();
        write!(f, "ClaimTable({} claims in {} sessions)", table.claims.len(), table.loads.len())
    }
}

impl fmt::Debug for OwnNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnNode({:?}, {:?}, {:#x})", self.role, Shown(&self.name), self.czxid)
    }
}

impl Table {
    fn has_capacity(&self, session: i64, bytes: usize) -> bool {
        self.loads.get(&session).copied().unwrap_or_default() + bytes <= SESSION_BYTES_MAX
    }

    fn insert(&mut self, claim: &Claim, session: i64, stage: Stage, bytes: usize) {
        *self.loads.entry(session).or_default() += bytes;
        let known = TrackedClaim { resource: claim.resource.clone(), session, stage, bytes };
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

impl TrackedClaim {
    /// Returns the node, where the claim waits or holds in this session.
    pub(crate) fn own(&self, session: i64) -> Option<&OwnNode> {
        match &self.stage {
            Stage::Queued(own) | Stage::Holding(own) if self.session == session => Some(own),
            _ => None,
        }
    }

    /// Returns the node, where the claim holds in this session.
    pub(crate) fn held(&self, session: i64) -> Option<&OwnNode> {
        match &self.stage {
            Stage::Holding(own) if self.session == session => Some(own),
            _ => None,
        }
    }
}

/// The most bytes of the paths of the nodes of one session together. Servers write them down in one
/// transaction when it ends, with little else, and read no more than 1 MiB by default.
pub(crate) const SESSION_BYTES_MAX: usize = 900_000;

#[cfg(test)]
mod tests {
    use leasehold_core::Share;

    use super::*;

    fn claim(n: u8) -> Claim {
        Claim::new(
            ClaimId::from_bytes([n; 16]),
            Resource::new("job").unwrap(),
            Share::MUTEX,
            std::time::Duration::from_secs(9),
        )
    }

    fn own() -> OwnNode {
        OwnNode { name: "n".to_owned(), czxid: 1, role: NodeRole::Queue }
    }

    #[test]
    fn a_session_takes_no_more_than_its_servers_can_write_down() {
        let claims = ClaimTable::default();
        let half = SESSION_BYTES_MAX / 2;
        assert!(claims.reserve(&claim(1), 7, half) && claims.reserve(&claim(2), 7, half));
        assert!(!claims.has_capacity(7, 1) && !claims.reserve(&claim(3), 7, 1));
        assert!(claims.get(claim(3).id).is_none(), "what was refused is not there");
        assert!(claims.reserve(&claim(3), 8, 1), "another session has room");
        assert!(claims.reserve(&claim(1), 7, half), "a second try takes its own room");
        claims.set(&claim(1), 7, Stage::Holding(own()));
        assert!(!claims.has_capacity(7, 1), "it takes as much when it holds");
        claims.set(&claim(2), 8, Stage::Queued(own()));
        assert!(claims.has_capacity(7, half), "its node is in another session now");
        claims.forget(claim(1).id);
        assert!(claims.has_capacity(7, SESSION_BYTES_MAX));
    }

    #[test]
    fn an_end_and_an_old_look_leave_the_node_of_a_later_try() {
        let claims = ClaimTable::default();
        let (claim, later) = (claim(1), || OwnNode { name: "later".to_owned(), ..own() });
        // Of two ends of one claim the first forgets it, and it joins the queue again before the second one does.
        claims.set(&claim, 7, Stage::Ending);
        claims.set(&claim, 7, Stage::Queued(later()));
        claims.forget_ended(claim.id);
        assert!(claims.get(claim.id).is_some_and(|known| known.own(7).is_some()), "it has a node");
        claims.forget_node(claim.id, &own().name);
        assert!(claims.get(claim.id).is_some(), "another node is gone");
        claims.set(&claim, 7, Stage::Holding(later()));
        claims.forget_node(claim.id, &own().name);
        assert!(claims.get(claim.id).is_some_and(|known| known.held(7).is_some()));
        claims.forget_node(claim.id, &later().name);
        assert!(claims.get(claim.id).is_none());
        claims.set(&claim, 7, Stage::Ending);
        claims.forget_node(claim.id, &own().name);
        assert!(claims.get(claim.id).is_some(), "its end forgets it");
        claims.forget_ended(claim.id);
        assert!(claims.get(claim.id).is_none());
    }
}
