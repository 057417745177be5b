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
use crate::protocol::queue::{Line, Unreadable};
use crate::protocol::shown::Shown;

/// The claims that exist.
#[derive(Debug, Default)]
pub(crate) struct ResourceView {
    pub(crate) line: Line,
    /// The claims that want a lease.
    pub(crate) locks: Line,
    /// The claims that have one, or wait for it with it in hand, in no order.
    pub(crate) leases: Vec<Lease>,
    states: Vec<Option<i64>>,
}

/// One lease of a semaphore.
#[derive(Clone, PartialEq)]
pub(crate) struct Lease {
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
    /// As [`Line::of`]; also where a lease may be another client's.
    pub(crate) fn of(dialect: Dialect, nodes: Vec<(NodeRole, Children)>) -> Result<ResourceView, Unreadable> {
        let mut scene = ResourceView::default();
        for (post, children) in nodes {
            let state = children.as_ref().map(|(_, stat)| stat.pzxid);
            let names = children.map(|(names, _)| names).unwrap_or_default();
            let claims = match post {
                NodeRole::Line => {
                    scene.line = Line::of(dialect, names)?;
                    scene.line.places().len()
                }
                NodeRole::Locks => {
                    scene.locks = Line::of(dialect, names)?;
                    scene.locks.places().len()
                }
                NodeRole::Leases => {
                    let (leases, others) = leases(dialect, names)?;
                    scene.leases = leases;
                    // Kazoo keeps the queue of the resource at the same node.
                    if dialect == Dialect::Kazoo {
                        scene.line = Line::of(dialect, others)?;
                        scene.line.places().len() + scene.leases.len()
                    } else {
                        scene.leases.len()
                    }
                }
            };
            // A node without claims may be removed by the server at any time, and below the queue there
            // may be other nodes.
            scene.states.push(state.filter(|_| claims > 0));
        }
        let leases = &scene.leases;
        scene.locks = scene.locks.without(|id| leases.iter().any(|lease| lease.id == id));
        Ok(scene)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.places().is_empty() && self.locks.places().is_empty() && self.leases.is_empty()
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

    /// Returns the nodes of a claim: their places, and their names.
    pub(crate) fn nodes_of(&self, id: ClaimId) -> Vec<(NodeRole, String)> {
        let places = |post: NodeRole, line: &Line| {
            let own = line.places().iter().filter(|place| place.id == id);
            own.map(|place| (post, place.name.clone())).collect::<Vec<_>>()
        };
        let mut found = places(NodeRole::Line, &self.line);
        found.extend(places(NodeRole::Locks, &self.locks));
        let leases = self.leases.iter().filter(|lease| lease.id == id);
        found.extend(leases.map(|lease| (NodeRole::Leases, lease.name.clone())));
        found
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?})", Shown(&self.name))
    }
}

/// Returns the leases among the children of a node, and the others.
///
/// # Errors
/// A child beside Curator's leases that is not one: Curator would count it all the same.
pub(crate) fn leases(dialect: Dialect, names: Vec<String>) -> Result<(Vec<Lease>, Vec<String>), Unreadable> {
    let (mut leases, mut others) = (Vec::new(), Vec::new());
    for name in names {
        match dialect.read_lease(&name) {
            Some(id) => leases.push(Lease { name, id }),
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

    fn place(dialect: Dialect, n: u8) -> String {
        format!("{}{n:010}", dialect.stem(id(n), Share::MUTEX))
    }

    fn lease(dialect: Dialect, n: u8) -> String {
        let sequence = if dialect == Dialect::Curator { format!("{n:010}") } else { String::new() };
        format!("{}{sequence}", dialect.lease(id(n)))
    }

    #[test]
    fn who_moved_between_two_reads_is_seen_once() {
        for dialect in [Dialect::Curator, Dialect::Kazoo] {
            let nodes = vec![
                (NodeRole::Locks, children(7, vec![place(dialect, 2), place(dialect, 1)])),
                (NodeRole::Leases, children(8, vec![lease(dialect, 9), lease(dialect, 1)])),
            ];
            let scene = ResourceView::of(dialect, nodes).unwrap();
            assert_eq!(scene.leases.len(), 2);
            assert_eq!(scene.locks.places().iter().map(|place| place.id).collect::<Vec<_>>(), [id(2)]);
            assert_eq!(scene.nodes_of(id(1)), [(NodeRole::Leases, lease(dialect, 1))]);
            assert_eq!(scene.nodes_of(id(2)), [(NodeRole::Locks, place(dialect, 2))]);
            assert!(scene.nodes_of(id(3)).is_empty());
            assert_eq!(scene.version(), SnapshotVersion::new("7-8"));
        }
    }

    #[test]
    fn the_version_knows_of_no_node_without_claims() {
        let held = || (NodeRole::Leases, children(8, vec![lease(Dialect::Curator, 1)]));
        let parts = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>();
        let version = |line, locks| {
            let nodes = vec![(NodeRole::Line, line), (NodeRole::Locks, locks), held()];
            ResourceView::of(Dialect::Curator, nodes).unwrap().version()
        };
        let before = version(children(4, parts(&["locks", "leases"])), children(7, Vec::new()));
        let after = version(children(9, parts(&["leases"])), None);
        assert_eq!(before, after, "the server has removed the empty part");
        let place = || vec![place(Dialect::Curator, 2)];
        let waited = version(children(4, parts(&["locks", "leases"])), children(9, place()));
        assert_ne!(before, waited);
        assert_ne!(waited, version(children(4, parts(&["locks", "leases"])), children(11, place())));
    }

    #[test]
    fn kazoos_leases_and_its_line_are_the_children_of_one_node() {
        let names = vec![lease(Dialect::Kazoo, 1), place(Dialect::Kazoo, 2), "deeper".to_owned()];
        let scene = ResourceView::of(
            Dialect::Kazoo,
            vec![(NodeRole::Locks, None), (NodeRole::Leases, children(3, names))],
        );
        let scene = scene.unwrap();
        assert_eq!((scene.leases.len(), scene.line.places().len()), (1, 1));
        assert_eq!(scene.nodes_of(id(2)), [(NodeRole::Line, place(Dialect::Kazoo, 2))]);
    }

    #[test]
    fn what_curator_would_count_and_we_cannot_read_is_an_error() {
        let odd =
            || vec![(NodeRole::Leases, children(3, vec![lease(Dialect::Curator, 1), "odd".to_owned()]))];
        assert_eq!(
            ResourceView::of(Dialect::Curator, odd()).unwrap_err(),
            Unreadable::Foreign("odd".to_owned())
        );
        let nobody =
            ResourceView::of(Dialect::Curator, vec![(NodeRole::Line, children(3, Vec::new()))]).unwrap();
        assert!(nobody.is_empty());
        assert_eq!(nobody.version(), ResourceView::default().version());
    }
}
