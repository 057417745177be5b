//! Which waits depend on which, and which of them can never end: the graph of waits as pure code.
//!
//! Ground rules: what is known of a wait is what its [`Announced`] says, and what is known of a resource is
//! its [`Snapshot`]. A holder that is not known to wait counts as one that continues and releases. A waiter
//! that is ahead in a queue counts as one that stays until its turn comes. No I/O and no clock.

mod announcement;

use std::collections::{HashMap, HashSet};
use std::fmt;

pub use announcement::{Announced, HOLDS_MAX, Places, Tag};

use crate::{ClaimId, Resource, Share, Snapshot};

/// A circle of waits, each of which can end only after another one of them: without help none ever ends.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Deadlock {
    /// The waits: first the one that is to give up, then each behind one that waits for it, as far as that
    /// goes.
    pub waits: Vec<DeadlockedWait>,
}

impl Deadlock {
    /// Creates the report of a circle of these waits.
    pub fn new(waits: Vec<DeadlockedWait>) -> Deadlock {
        Deadlock { waits }
    }
}

/// One wait of a [`Deadlock`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeadlockedWait {
    /// The claim by which the wait is announced. A client that has it can end that announcement, so it is
    /// not printed.
    pub id: ClaimId,
    /// The waiter, as its note describes it.
    pub note: String,
    /// The resource that it waits for.
    pub resource: Resource,
    /// The share that it asks for.
    pub share: Share,
    /// The resources that it holds and that others of this deadlock wait for.
    pub holds: Vec<Resource>,
}

impl DeadlockedWait {
    /// Creates a wait of `note`, announced by the claim `id`, for this share of `resource`. It holds nothing
    /// that others wait for.
    pub fn new(id: ClaimId, note: impl Into<String>, resource: Resource, share: Share) -> DeadlockedWait {
        DeadlockedWait { id, note: note.into(), resource, share, holds: Vec::new() }
    }

    /// Sets the resources that it holds and that others of the deadlock wait for.
    #[must_use]
    pub fn holds(self, holds: Vec<Resource>) -> DeadlockedWait {
        DeadlockedWait { holds, ..self }
    }
}

/// Finds the waits that can never end by themselves, among those that are announced and in the queues that
/// they wait in.
///
/// Each deadlock is found by itself: of the owners that wait behind it, without being waited for in it, none
/// is named. A queue that is not given counts as one that moves.
pub fn find(waits: &[Announced], lines: &[Snapshot]) -> Vec<Deadlock> {
    let graph = Graph::of(waits, lines);
    let reached: Vec<HashSet<usize>> = (0..waits.len()).map(|wait| graph.reached_from(wait)).collect();
    let mut found = Vec::new();
    let mut named: HashSet<usize> = HashSet::new();
    for wait in 0..waits.len() {
        let circle = &reached[wait];
        // A strongly connected component without a way out: from each of them, exactly these are reached.
        if named.contains(&wait)
            || !circle.contains(&wait)
            || circle.iter().any(|other| reached[*other] != *circle)
        {
            continue;
        }
        named.extend(circle);
        found.push(Deadlock { waits: graph.in_report_order(circle) });
    }
    found
}

/// The graph of waits that block each other.
struct Graph<'a> {
    waits: &'a [Announced],
    lines: HashMap<&'a Resource, &'a Snapshot>,
    /// The claims by their owners, as far as those wait.
    owners: HashMap<Tag, Vec<usize>>,
    /// For each wait, those that would have to end before it; none for a wait that may end by itself.
    behind: Vec<Vec<usize>>,
}

impl<'a> Graph<'a> {
    fn of(waits: &'a [Announced], lines: &'a [Snapshot]) -> Self {
        let mut owners: HashMap<Tag, Vec<usize>> = HashMap::new();
        for (index, wait) in waits.iter().enumerate() {
            for tag in &wait.holds {
                owners.entry(*tag).or_default().push(index);
            }
        }
        let lines = lines.iter().map(|line| (&line.resource, line)).collect();
        let mut graph = Graph { waits, lines, owners, behind: Vec::new() };
        graph.behind = graph.remove_waits_that_can_end();
        graph
    }

    /// Removes all waits that can end, and those that can end then, until none is left that can.
    fn remove_waits_that_can_end(&self) -> Vec<Vec<usize>> {
        let mut stuck = vec![true; self.waits.len()];
        // Each round but the last removes a wait.
        loop {
            let behind: Vec<Vec<usize>> =
                (0..self.waits.len()).map(|wait| self.in_the_way_of(wait, &stuck)).collect();
            let mut moved = false;
            for (stuck, behind) in stuck.iter_mut().zip(&behind) {
                moved |= *stuck && behind.is_empty();
                *stuck &= !behind.is_empty();
            }
            if !moved {
                return behind;
            }
        }
    }

    /// Returns the owners whose waits would have to end before this one can, given which can never end;
    /// none where it ends without that.
    fn in_the_way_of(&self, wait: usize, stuck: &[bool]) -> Vec<usize> {
        let Announced { resource, share, asks, .. } = &self.waits[wait];
        let Some(line) = self.lines.get(resource).filter(|_| stuck[wait]) else { return Vec::new() };
        let mut load = Load::default();
        let mut behind = Vec::new();
        for holder in &line.holders {
            let owners = self.owners.get(&Tag::of(holder.id)).map(Vec::as_slice).unwrap_or_default();
            // An owner with several waits may release as soon as one of them ends.
            if !owners.is_empty() && owners.iter().all(|owner| stuck[*owner]) {
                load.add(holder.share);
                behind.extend(owners);
            }
        }
        // Those ahead in the queue whose turn never comes stay in the way, too, and for the same reason.
        let place = asks.and_then(|asks| line.waiting.iter().position(|other| Tag::of(other.id) == asks));
        for ahead in &line.waiting[..place.unwrap_or_default()] {
            if !load.admits(ahead.share) {
                load.add(ahead.share);
            }
        }
        if load.admits(*share) { Vec::new() } else { behind }
    }

    fn reached_from(&self, wait: usize) -> HashSet<usize> {
        let mut reached = HashSet::new();
        let mut open = self.behind[wait].clone();
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(&self.behind[next]);
            }
        }
        reached
    }

    /// Returns these waits in the order in which they are reported: the one that is to give up, and each
    /// behind the one that it waits for.
    fn in_report_order(&self, circle: &HashSet<usize>) -> Vec<DeadlockedWait> {
        let mut left: Vec<usize> = circle.iter().copied().collect();
        // The last that announced its wait comes first; all clients see the same order.
        left.sort_by_key(|wait| (self.waits[*wait].number, Tag::of(self.waits[*wait].id)));
        let mut ordered = Vec::with_capacity(left.len());
        let mut next = None;
        while !left.is_empty() {
            let place = next.and_then(|wait| left.iter().position(|other| *other == wait));
            let wait = left.remove(place.unwrap_or(left.len() - 1));
            next = self.behind[wait].iter().copied().find(|other| left.contains(other));
            ordered.push(self.blocked(wait, circle));
        }
        ordered
    }

    fn blocked(&self, wait: usize, circle: &HashSet<usize>) -> DeadlockedWait {
        let Announced { id, note, resource, share, holds, .. } = &self.waits[wait];
        let wanted: HashSet<&Resource> = circle.iter().map(|other| &self.waits[*other].resource).collect();
        let held = |line: &&Snapshot| line.holders.iter().any(|holder| holds.contains(&Tag::of(holder.id)));
        let lines = wanted.into_iter().filter_map(|resource| self.lines.get(resource).copied());
        let mut holds: Vec<Resource> = lines.filter(held).map(|line| line.resource.clone()).collect();
        holds.sort();
        DeadlockedWait { id: *id, note: note.clone(), resource: resource.clone(), share: *share, holds }
    }
}

/// The load that stays in the way, by the rule of admission.
struct Load {
    weight: u64,
    capacity: u32,
}

impl Default for Load {
    fn default() -> Self {
        Load { weight: 0, capacity: u32::MAX }
    }
}

impl Load {
    fn add(&mut self, share: Share) {
        self.weight += u64::from(share.weight());
        self.capacity = self.capacity.min(share.capacity());
    }

    fn admits(&self, share: Share) -> bool {
        self.weight + u64::from(share.weight()) <= u64::from(self.capacity.min(share.capacity()))
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, wait) in self.waits.iter().enumerate() {
            let holds: Vec<&str> = wait.holds.iter().map(Resource::as_str).collect();
            let comma = if index == 0 { "" } else { "; " };
            let DeadlockedWait { note, resource, share, .. } = wait;
            write!(f, "{comma}\"{note}\" holds {} and waits for {resource} ({share})", holds.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
