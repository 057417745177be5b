//! The claims at a resource: its queue, and in other libraries' dialects the queue for a lease of its
//! semaphore, and the leases.
//!
//! Pure: the children of the resource's nodes go in, as they were read one after the other. A claim
//! that wants a lease moves from the queue to the leases, so those are read last: a claim that moved
//! meanwhile is seen twice and kept once, and never missed.

use std::fmt;

use leasehold_core::{ClaimId, SnapshotVersion};
use zookeeper_client::Stat;

use crate::protocol::dialect::Dialect;
use crate::protocol::names::NodeRole;
use crate::protocol::queue::{NodeQueue, Unreadable};
use crate::protocol::shown::Shown;

/// The claims that exist.
#[derive(Debug, Default)]
pub(crate) struct ResourceView {
    pub(crate) queue: NodeQueue,
    /// The claims that want a lease.
    pub(crate) locks: NodeQueue,
    /// The claims that have a lease, or have made one and wait for it, in no order.
    pub(crate) leases: Vec<SemaphoreLease>,
    states: Vec<Option<i64>>,
}

/// One lease of a semaphore.
#[derive(Clone, PartialEq)]
pub(crate) struct SemaphoreLease {
    /// The child's name.
    pub(crate) name: String,
    pub(crate) id: ClaimId,
}

/// The children of one node, if it exists.
pub(crate) type Children = Option<(Vec<String>, Stat)>;

impl ResourceView {
    /// Reads the children of each of the nodes.
    ///
    /// # Errors
    /// As [`NodeQueue::of`]; also where a lease may be another client's.
    pub(crate) fn of(dialect: Dialect, nodes: Vec<(NodeRole, Children)>) -> Result<ResourceView, Unreadable> {
        let mut view = ResourceView::default();
        for (role, children) in nodes {
            let state = children.as_ref().map(|(_, stat)| stat.pzxid);
            let names = children.map(|(names, _)| names).unwrap_or_default();
            let claims = match role {
                NodeRole::Queue => {
                    view.queue = NodeQueue::of(dialect, names)?;
                    view.queue.entries().len()
                }
                NodeRole::Locks => {
                    view.locks = NodeQueue::of(dialect, names)?;
                    view.locks.entries().len()
                }
                NodeRole::Leases => {
                    let (leases, others) = leases(dialect, names)?;
                    view.leases = leases;
                    // Kazoo keeps the queue of the resource at the same node.
                    if dialect == Dialect::Kazoo {
                        view.queue = NodeQueue::of(dialect, others)?;
                        view.queue.entries().len() + view.leases.len()
                    } else {
                        view.leases.len()
                    }
                }
            };
            // A node without claims may be removed by the server at any time, and below the queue there
            // may be other nodes.
            view.states.push(state.filter(|_| claims > 0));
        }
        let leases = &view.leases;
        view.locks = view.locks.without(|id| leases.iter().any(|lease| lease.id == id));
        Ok(view)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.entries().is_empty() && self.locks.entries().is_empty() && self.leases.is_empty()
    }

    /// Returns the version: all states with the same claims are one, whether the nodes without claims
    /// exist or not.
    pub(crate) fn version(&self) -> SnapshotVersion {
        if self.is_empty() {
            return SnapshotVersion::new("empty");
        }
        let states =
            self.states.iter().map(|state| state.map(|pzxid| format!("{pzxid:x}")).unwrap_or_default());
        SnapshotVersion::new(states.collect::<Vec<_>>().join("-"))
    }
}

impl fmt::Debug for SemaphoreLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?})", Shown(&self.name))
    }
}

/// Returns the nodes of a claim: their roles, and their names. A claim that moves is found at both places.
/// Other children do not matter: no two claims have one id.
pub(crate) fn nodes_of(
    dialect: Dialect,
    nodes: &[(NodeRole, Children)],
    id: ClaimId,
) -> Vec<(NodeRole, String)> {
    let mut found = Vec::new();
    for (at, children) in nodes {
        for name in children.iter().flat_map(|(names, _)| names) {
            let is_lease = *at == NodeRole::Leases && dialect.read_lease(name) == Some(id);
            if !is_lease && dialect.read(name).is_none_or(|named| named.id != id) {
                continue;
            }
            let role = match at {
                // Kazoo keeps the queue of the resource at the same node.
                NodeRole::Leases if !is_lease => NodeRole::Queue,
                at => *at,
            };
            found.push((role, name.clone()));
        }
    }
    found
}

/// Returns the leases among the children of a node, and the others.
///
/// # Errors
/// A child among Curator's leases that is not one: Curator would count it all the same.
pub(crate) fn leases(
    dialect: Dialect,
    names: Vec<String>,
) -> Result<(Vec<SemaphoreLease>, Vec<String>), Unreadable> {
    let (mut leases, mut others) = (Vec::new(), Vec::new());
    for name in names {
        match dialect.read_lease(&name) {
            Some(id) => leases.push(SemaphoreLease { name, id }),
            None if dialect == Dialect::Curator => return Err(Unreadable::Foreign(name)),
            None => others.push(name),
        }
    }
    Ok((leases, others))
}

#[cfg(test)]
mod tests {
    use leasehold_core::Share;

    use super::*;

    fn id(n: u8) -> ClaimId {
        ClaimId::from_bytes([n; 16])
    }

    fn children(pzxid: i64, names: Vec<String>) -> Children {
        let stat = Stat {
            czxid: 0,
            mzxid: 0,
            ctime: 0,
            mtime: 0,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
            pzxid,
        };
        Some((names, stat))
    }

    fn entry(dialect: Dialect, n: u8) -> String {
        format!("{}{n:010}", dialect.stem(id(n), Share::MUTEX))
    }

    fn lease(dialect: Dialect, n: u8) -> String {
        let sequence = if dialect == Dialect::Curator { format!("{n:010}") } else { String::new() };
        format!("{}{sequence}", dialect.lease(id(n)))
    }

    #[test]
    fn claim_that_moves_between_two_reads_is_seen_once() {
        for dialect in [Dialect::Curator, Dialect::Kazoo] {
            let nodes = vec![
                (NodeRole::Locks, children(7, vec![entry(dialect, 2), entry(dialect, 1)])),
                (NodeRole::Leases, children(8, vec![lease(dialect, 9), lease(dialect, 1)])),
            ];
            let found = |n| nodes_of(dialect, &nodes, id(n));
            let both = [(NodeRole::Locks, entry(dialect, 1)), (NodeRole::Leases, lease(dialect, 1))];
            assert_eq!(found(1), both);
            assert_eq!(found(2), [(NodeRole::Locks, entry(dialect, 2))]);
            assert!(found(3).is_empty());
            let view = ResourceView::of(dialect, nodes).unwrap();
            assert_eq!(view.leases.len(), 2);
            assert_eq!(view.locks.entries().iter().map(|entry| entry.id).collect::<Vec<_>>(), [id(2)]);
            assert_eq!(view.version(), SnapshotVersion::new("7-8"));
        }
    }

    #[test]
    fn the_version_knows_of_no_node_without_claims() {
        let held = || (NodeRole::Leases, children(8, vec![lease(Dialect::Curator, 1)]));
        let parts = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
        let version = |queue, locks| {
            let nodes = vec![(NodeRole::Queue, queue), (NodeRole::Locks, locks), held()];
            ResourceView::of(Dialect::Curator, nodes).unwrap().version()
        };
        let before = version(children(4, parts(&["locks", "leases"])), children(7, Vec::new()));
        let after = version(children(9, parts(&["leases"])), None);
        assert_eq!(before, after, "the server has removed the empty part");
        let entry = || vec![entry(Dialect::Curator, 2)];
        let waited = version(children(4, parts(&["locks", "leases"])), children(9, entry()));
        assert_ne!(before, waited);
        assert_ne!(waited, version(children(4, parts(&["locks", "leases"])), children(11, entry())));
    }

    #[test]
    fn kazoo_leases_and_queue_are_children_of_one_node() {
        let names = vec![lease(Dialect::Kazoo, 1), entry(Dialect::Kazoo, 2), "deeper".to_owned()];
        let nodes = vec![(NodeRole::Locks, None), (NodeRole::Leases, children(3, names))];
        let found = nodes_of(Dialect::Kazoo, &nodes, id(2));
        assert_eq!(found, [(NodeRole::Queue, entry(Dialect::Kazoo, 2))]);
        let view = ResourceView::of(Dialect::Kazoo, nodes).unwrap();
        assert_eq!((view.leases.len(), view.queue.entries().len()), (1, 1));
    }

    #[test]
    fn a_claim_is_found_among_children_that_form_no_queue() {
        for dialect in [Dialect::Native, Dialect::Curator] {
            let beside = ["strange".to_owned(), "lock-0000000001".to_owned(), entry(dialect, 2)];
            let names = beside.into_iter().chain([entry(dialect, 1)]).collect();
            let nodes = vec![(NodeRole::Queue, children(3, names))];
            assert_eq!(nodes_of(dialect, &nodes, id(1)), [(NodeRole::Queue, entry(dialect, 1))]);
            assert!(ResourceView::of(dialect, nodes).is_err());
        }
    }

    #[test]
    fn what_curator_would_count_and_we_cannot_read_is_an_error() {
        let odd =
            || vec![(NodeRole::Leases, children(3, vec![lease(Dialect::Curator, 1), "odd".to_owned()]))];
        assert_eq!(
            ResourceView::of(Dialect::Curator, odd()).unwrap_err(),
            Unreadable::Foreign("odd".to_owned())
        );
        let empty =
            ResourceView::of(Dialect::Curator, vec![(NodeRole::Queue, children(3, Vec::new()))]).unwrap();
        assert!(empty.is_empty());
        assert_eq!(empty.version(), ResourceView::default().version());
    }
}
