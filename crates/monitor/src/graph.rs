//! The wait-for graph: which party waits for which lock, and which party holds it.

use std::collections::{BTreeSet, HashMap};

use leasehold::{ClaimInfo, Deadlock, Resource};
use serde::Serialize;

use crate::row::LockRow;

/// Locks and the parties that hold them or wait for them.
///
/// A party is one owner of a deadlock, or one claim of a queue. Which claims belong to one owner is known for
/// deadlocks only, so only there do edges form a circle.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WaitGraph {
    /// Locks and parties. An edge names them by their position.
    pub nodes: Vec<GraphNode>,
    /// Waits and holds.
    pub edges: Vec<Edge>,
}

/// A lock or a party.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GraphNode {
    /// Lock or party.
    pub kind: NodeKind,
    /// The name of the lock, or the note of the party.
    pub text: String,
    /// The public name of the claim; empty for a lock.
    pub tag: String,
    /// `true` if it is part of a deadlock.
    pub is_deadlocked: bool,
}

/// The kinds of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// A lock.
    Lock,
    /// A party.
    Party,
}

/// A wait or a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Edge {
    /// Wait or hold.
    pub kind: EdgeKind,
    /// The position of the party that waits, or of the lock that is held.
    pub from: usize,
    /// The position of the lock that is waited for, or of the party that holds.
    pub to: usize,
    /// `true` if it is part of a deadlock.
    pub is_deadlocked: bool,
}

/// The kinds of edges. Both lead from what waits to what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EdgeKind {
    /// From a party to the lock that it waits for.
    WaitsFor,
    /// From a lock to a party that holds it.
    HeldBy,
}

impl WaitGraph {
    /// Creates the graph of the circles alone.
    pub fn of_deadlocks(deadlocks: &[Deadlock]) -> WaitGraph {
        WaitGraph::of(deadlocks, &[])
    }

    /// Creates the graph of the circles, and of all queues that are known.
    ///
    /// A claim whose note is that of an owner in a deadlock around the same lock is taken for that owner.
    pub fn of(deadlocks: &[Deadlock], rows: &[LockRow]) -> WaitGraph {
        let mut builder = GraphBuilder::default();
        for wait in deadlocks.iter().flat_map(|deadlock| &deadlock.waits) {
            let party = builder.party(&wait.note, wait.id.tag(), true);
            let lock = builder.lock(&wait.resource, true);
            builder.edge(EdgeKind::WaitsFor, party, lock, true);
            builder.places.insert((lock, wait.note.clone()));
            for held in &wait.holds {
                let lock = builder.lock(held, true);
                builder.edge(EdgeKind::HeldBy, lock, party, true);
                builder.places.insert((lock, wait.note.clone()));
            }
        }
        for row in rows.iter().filter(|row| !row.known_waiting().is_empty()) {
            let lock = builder.lock(&row.name, false);
            for holder in row.known_holders() {
                builder.claim(EdgeKind::HeldBy, lock, holder);
            }
            for waiter in row.known_waiting() {
                builder.claim(EdgeKind::WaitsFor, lock, waiter);
            }
        }
        builder.graph
    }
}

#[derive(Default)]
struct GraphBuilder {
    graph: WaitGraph,
    locks: HashMap<Resource, usize>,
    parties: HashMap<String, usize>,
    /// The notes of owners that a deadlock has at a lock.
    places: BTreeSet<(usize, String)>,
}

impl GraphBuilder {
    fn node(&mut self, kind: NodeKind, text: &str, tag: String, is_deadlocked: bool) -> usize {
        self.graph.nodes.push(GraphNode { kind, text: text.to_owned(), tag, is_deadlocked });
        self.graph.nodes.len() - 1
    }

    fn lock(&mut self, name: &Resource, is_deadlocked: bool) -> usize {
        if let Some(at) = self.locks.get(name) {
            return *at;
        }
        let at = self.node(NodeKind::Lock, name.as_str(), String::new(), is_deadlocked);
        self.locks.insert(name.clone(), at);
        at
    }

    fn party(&mut self, note: &str, tag: String, is_deadlocked: bool) -> usize {
        if let Some(at) = self.parties.get(&tag) {
            return *at;
        }
        let at = self.node(NodeKind::Party, note, tag.clone(), is_deadlocked);
        self.parties.insert(tag, at);
        at
    }

    fn edge(&mut self, kind: EdgeKind, from: usize, to: usize, is_deadlocked: bool) {
        self.graph.edges.push(Edge { kind, from, to, is_deadlocked });
    }

    /// Adds a claim of a queue, unless it belongs to an owner whose deadlock is in the graph already.
    fn claim(&mut self, kind: EdgeKind, lock: usize, claim: &ClaimInfo) {
        if self.places.contains(&(lock, claim.note.as_str().to_owned())) {
            return;
        }
        let party = self.party(claim.note.as_str(), claim.id.tag(), false);
        match kind {
            EdgeKind::HeldBy => self.edge(kind, lock, party, false),
            EdgeKind::WaitsFor => self.edge(kind, party, lock, false),
        }
    }
}
