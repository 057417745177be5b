//! The queue of a resource as its children name it, and what follows from it.
//!
//! Pure: names go in, entries and decisions come out. The sequence at the end of a name is ZooKeeper's,
//! a signed 32-bit counter. Its documentation says that it rolls over, so an order is found among those
//! that exist; in fact it stays at its highest value, and gives that to every further node. Where two
//! have it, the first of them cannot be known, and no claim is admitted.

use std::fmt;

use leasehold_core::{ClaimId, Share};

use crate::protocol::dialect::Dialect;
use crate::protocol::shown::Shown;

/// The claims on one resource, in the order of their arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeQueue {
    entries: Vec<Entry>,
}

/// One claim in the queue.
#[derive(Clone, PartialEq)]
pub(crate) struct Entry {
    /// The child's whole name.
    pub(crate) name: String,
    pub(crate) id: ClaimId,
    pub(crate) share: Share,
    sequence: i32,
    /// Set for a read of the writer in the entry before it, which holds together with it: a writer of
    /// Curator that reads as well.
    is_writers_read: bool,
}

/// The reason why children do not form a queue. The parts of their names that it shows reveal no id.
#[derive(Clone, PartialEq)]
pub(crate) enum Unreadable {
    /// This one may be a claim of another library.
    Foreign(String),
    /// The counter has come to its end, and these have its last value.
    SameNumber(String, String),
}

/// The entries that a claim that is not admitted has to watch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Blockers<'a> {
    /// It cannot be admitted before one of these leaves.
    Some(Vec<&'a Entry>),
    /// They are too many: any change of the queue.
    Any,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({:?}, {}, {})", Shown(&self.name), self.share, self.sequence)
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Foreign(child) => write!(
                f,
                "has a child `{}` that is not written in this dialect: \
                 remove it, or use another prefix or the child's dialect",
                Shown(child)
            ),
            Unreadable::SameNumber(one, other) => write!(
                f,
                "cannot be put in order: ZooKeeper's counter is exhausted, and gives all new nodes the same number, \
                 `{}` and `{}`; remove the node above them once it is empty, and the counter begins anew",
                Shown(one),
                Shown(other)
            ),
        }
    }
}

impl fmt::Debug for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a line that {self}")
    }
}

impl NodeQueue {
    /// Reads the queue that these children form.
    ///
    /// # Errors
    /// A name may be a claim of another library, or two names do not show which was first.
    pub(crate) fn of(dialect: Dialect, names: Vec<String>) -> Result<NodeQueue, Unreadable> {
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            match dialect.read(&name) {
                Some(named) => {
                    let (id, share, sequence) = (named.id, named.share, named.sequence);
                    entries.push(Entry { name, id, share, sequence, is_writers_read: false });
                }
                None if dialect.may_conflict(&name) => return Err(Unreadable::Foreign(name)),
                None => {}
            }
        }
        entries.sort_unstable_by_key(|entry| (entry.sequence.cast_unsigned(), !entry.share.is_exclusive()));
        let first = NodeQueue::first(&entries);
        entries.rotate_left(first);
        for index in 1..entries.len() {
            let (before, entry) = (&entries[index - 1], &entries[index]);
            if before.sequence != entry.sequence {
                continue;
            }
            // Newer versions of Curator give what a writer reads the writer's own number. ZooKeeper
            // gives a number twice at the end only.
            let is_writers_read = dialect == Dialect::Curator
                && (before.share, entry.share) == (Share::WRITER, Share::READER)
                && entry.sequence != i32::MAX;
            if !is_writers_read {
                return Err(Unreadable::SameNumber(before.name.clone(), entry.name.clone()));
            }
            entries[index].is_writers_read = true;
        }
        Ok(NodeQueue { entries })
    }

    /// Finds where the queue begins in the circle of sequences: behind the widest gap. All that live at
    /// the same time are far closer to one another than half the circle, also while the counter passes
    /// from positive to negative.
    fn first(entries: &[Entry]) -> usize {
        let gap_before = |index: usize| {
            let before = if index == 0 { entries.len() - 1 } else { index - 1 };
            entries[index].sequence.wrapping_sub(entries[before].sequence).cast_unsigned()
        };
        (0..entries.len()).max_by_key(|index| (gap_before(*index), std::cmp::Reverse(*index))).unwrap_or(0)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the queue without some of its claims.
    pub(crate) fn without(mut self, gone: impl Fn(ClaimId) -> bool) -> NodeQueue {
        self.entries.retain(|entry| !gone(entry.id));
        self
    }

    /// Returns the position of a claim.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name == name)
    }

    /// Returns `true` if the one at `index` is admitted: its weight and those ahead of it fit the
    /// smallest capacity.
    pub(crate) fn admits(&self, index: usize) -> bool {
        let Some(entry) = self.entries.get(index) else { return false };
        // A writer's read is admitted with its writer, which is never such a read itself.
        let writer = (0..=index).rev().find(|at| !self.entries[*at].is_writers_read).unwrap_or(index);
        if writer < index { self.admits(writer) } else { self.fits_behind(index, entry.share) }
    }

    /// Returns `true` if one that comes behind the first `ahead` would be admitted.
    pub(crate) fn fits_behind(&self, ahead: usize, share: Share) -> bool {
        let mut load = u64::from(share.weight());
        let mut capacity = share.capacity();
        for entry in self.entries.iter().take(ahead) {
            load += u64::from(entry.share.weight());
            capacity = capacity.min(entry.share.capacity());
        }
        load <= u64::from(capacity)
    }

    /// Returns the entries that block the one at `index`, chosen so that it cannot be admitted while all of
    /// these exist: a wake-up cannot be missed, and a release wakes no more than fit the capacity,
    /// however long the queue is.
    ///
    /// The nearest that excludes it alone is enough; where none does, the nearest that do so together.
    pub(crate) fn blockers(&self, index: usize) -> Blockers<'_> {
        let Some(own) = self.entries.get(index).map(|entry| entry.share) else { return Blockers::Any };
        let ahead = &self.entries[..index];
        let excludes = |entry: &&Entry| {
            let capacity = own.capacity().min(entry.share.capacity());
            u64::from(own.weight()) + u64::from(entry.share.weight()) > u64::from(capacity)
        };
        if let Some(alone) = ahead.iter().rev().find(excludes) {
            return Blockers::Some(vec![alone]);
        }
        let (mut load, mut capacity) = (u64::from(own.weight()), own.capacity());
        let mut together = Vec::new();
        for entry in ahead.iter().rev().take(MAX_WATCHED) {
            load += u64::from(entry.share.weight());
            capacity = capacity.min(entry.share.capacity());
            together.push(entry);
            if load > u64::from(capacity) {
                return Blockers::Some(together);
            }
        }
        Blockers::Any
    }

    /// Returns how many hold: everything in front of the first that is not admitted.
    pub(crate) fn holders(&self) -> usize {
        // The load only grows along the queue and the capacity only shrinks, so the first no is followed
        // by noes.
        (0..self.entries.len()).find(|index| !self.admits(*index)).unwrap_or(self.entries.len())
    }
}

/// The most nodes that one waiter watches. With more, one watch on the whole queue is cheaper.
const MAX_WATCHED: usize = 16;

#[cfg(test)]
mod tests {
    use leasehold_core::{Ask, Fence, Ledger, Moment, Note, Verdict, Wait};
    use proptest::prelude::*;
    use std::time::Duration;

    use super::*;

    fn id(n: u8) -> ClaimId {
        ClaimId::from_bytes([n; 16])
    }

    /// As the server appends it: ten characters at least, the sign among them.
    fn name(n: u8, share: Share, sequence: i32) -> String {
        format!("{}{sequence:010}", Dialect::Native.stem(id(n), share))
    }

    fn queue_of(names: Vec<String>) -> NodeQueue {
        NodeQueue::of(Dialect::Native, names).unwrap()
    }

    fn order(names: Vec<String>) -> Vec<u8> {
        queue_of(names).entries.iter().map(|entry| entry.id.as_bytes()[0]).collect()
    }

    #[test]
    fn the_counter_may_roll_over() {
        let at = |n, sequence| name(n, Share::MUTEX, sequence);
        assert_eq!(at(1, i32::MIN)[32..], *"-1-1--2147483648");
        let names = vec![at(3, i32::MIN), at(1, i32::MAX - 1), at(4, i32::MIN + 1), at(2, i32::MAX)];
        assert_eq!(order(names), [1, 2, 3, 4]);
        let names = vec![at(3, 0), at(1, -2), at(2, -1), at(4, 1)];
        assert_eq!(order(names), [1, 2, 3, 4], "from negative back to zero, where ZooKeeper counts on");
        assert_eq!(order(vec![at(2, i32::MIN), at(1, i32::MAX)]), [1, 2]);
        assert_eq!(order(vec![at(7, -5)]), [7]);
        assert_eq!(order(Vec::new()), Vec::<u8>::new());
    }

    #[test]
    fn two_entries_with_one_number_are_refused() {
        for sequence in [i32::MAX, 7] {
            let alike = |n, share| name(n, share, sequence);
            for shares in [[Share::MUTEX; 2], [Share::WRITER, Share::READER], [Share::READER; 2]] {
                let names = vec![name(3, Share::MUTEX, 5), alike(1, shares[0]), alike(2, shares[1])];
                let queue = NodeQueue::of(Dialect::Native, names);
                assert!(matches!(queue, Err(Unreadable::SameNumber(..))), "{queue:?}");
            }
            assert!(
                NodeQueue::of(Dialect::Native, vec![name(3, Share::MUTEX, 5), alike(1, Share::MUTEX)])
                    .is_ok()
            );
        }
        // A writer of Curator's that reads as well has one number twice, but so have any two at the
        // end.
        let curator = |n, share, sequence| format!("{}{sequence:010}", Dialect::Curator.stem(id(n), share));
        for (sequence, readable) in [(7, true), (i32::MAX, false)] {
            let both = vec![curator(1, Share::WRITER, sequence), curator(2, Share::READER, sequence)];
            assert_eq!(NodeQueue::of(Dialect::Curator, both).is_ok(), readable, "{sequence}");
            let mutexes = vec![curator(1, Share::MUTEX, sequence), curator(2, Share::MUTEX, sequence)];
            assert!(NodeQueue::of(Dialect::Curator, mutexes).is_err());
        }
    }

    #[test]
    fn a_foreign_name_is_not_read() {
        let id = id(1).to_hex();
        for foreign in [
            "lock-0000000001".to_owned(),
            format!("{id}-1-1-"),
            format!("{id}-1-1-+000000001"),
            format!("{id}-1-1---00000001"),
            format!("{id}-+1-1-0000000001"),
            format!("{id}-2-1-0000000001"),
            format!("{id}-1-1-9999999999"),
            format!("_c_{id}-lock-0000000001"),
        ] {
            assert_eq!(
                NodeQueue::of(Dialect::Native, vec![foreign.clone()]),
                Err(Unreadable::Foreign(foreign))
            );
        }
    }

    #[test]
    fn a_waiter_watches_the_nearest_that_excludes_it() {
        let shares = [Share::READER, Share::WRITER, Share::READER, Share::READER];
        let names = (0u8..).zip(shares).map(|(n, share)| name(n, share, i32::from(n))).collect();
        let queue = queue_of(names);
        let watched = |index| match queue.blockers(index) {
            Blockers::Some(entries) => entries.iter().map(|entry| entry.id.as_bytes()[0]).collect(),
            Blockers::Any => vec![255],
        };
        assert_eq!(watched(1), [0]);
        assert_eq!(watched(2), [1]);
        assert_eq!(watched(3), [1], "readers do not exclude one another");
    }

    #[test]
    fn foreign_nodes_are_read_as_claims_and_other_children_skipped() {
        let uuid = |n: u8| {
            let hex = id(n).to_hex();
            format!("_c_{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
        };
        let curator = |n, kind: &str, sequence: i32| format!("{}-{kind}{sequence:010}", uuid(n));
        let names = vec![
            curator(3, "__READ__", 7),
            "deeper".to_owned(),
            curator(1, "__WRIT__", 5),
            curator(4, "lock-", 8),
            // The writer reads as well, under its own sequence, as in newer versions of Curator.
            curator(2, "__READ__", 5),
        ];
        let queue = NodeQueue::of(Dialect::Curator, names).unwrap();
        let admitted: Vec<_> = (0..4).map(|n| (queue.entries[n].id.as_bytes()[0], queue.admits(n))).collect();
        assert_eq!(admitted, [(1, true), (2, true), (3, false), (4, false)]);
        assert_eq!(queue.holders(), 2);
        // Once the writer is gone, its read continues, and others read at the same time.
        let rest = [curator(2, "__READ__", 5), curator(3, "__READ__", 7), curator(4, "lock-", 8)];
        let queue = NodeQueue::of(Dialect::Curator, rest.to_vec()).unwrap();
        assert_eq!(queue.holders(), 2);
        let lease = format!("{}-lease-0000000001", uuid(1));
        assert_eq!(NodeQueue::of(Dialect::Curator, vec![lease.clone()]), Err(Unreadable::Foreign(lease)));
    }

    fn shares() -> impl Strategy<Value = Share> {
        prop_oneof![
            Just(Share::MUTEX),
            Just(Share::READER),
            Just(Share::WRITER),
            (1u32..4, 3u32..6).prop_map(|(weight, capacity)| Share::permits(weight, capacity).unwrap()),
            Just(Share::permits(1, 40).unwrap()),
        ]
    }

    proptest! {
        #[test]
        fn queue_admits_as_the_ledger_does(queue in proptest::collection::vec(shares(), 1..12), start: i32) {
            let mut ledger = Ledger::new(Fence::default());
            let mut names = Vec::new();
            for (n, share) in (0u8..).zip(queue) {
                let ask = Ask { id: id(n), share, lease: Duration::MAX, wait: Wait::Queued(Duration::MAX), note: Note::default() };
                let granted = matches!(ledger.contend(&ask, Moment::START), Verdict::Granted(_));
                names.push((name(n, share, start.wrapping_add(i32::from(n))), granted));
            }
            let queue = queue_of(names.iter().rev().map(|(name, _)| name.clone()).collect());
            for (index, (name, granted)) in names.iter().enumerate() {
                prop_assert_eq!(queue.position(name), Some(index));
                prop_assert_eq!(queue.admits(index), *granted);
            }
            prop_assert_eq!(queue.holders(), names.iter().take_while(|(_, granted)| *granted).count());
        }

        /// Checks that, with any others leaving, no claim is admitted while all that it watches exist.
        #[test]
        fn claim_is_not_admitted_before_a_blocker_leaves(
            queue in proptest::collection::vec(shares(), 2..12),
            leaving in proptest::collection::vec(any::<bool>(), 12),
        ) {
            let names: Vec<String> = (0u8..).zip(queue).map(|(n, share)| name(n, share, i32::from(n))).collect();
            let queue = queue_of(names.clone());
            for index in 0..names.len() {
                if queue.admits(index) {
                    continue;
                }
                let Blockers::Some(watched) = queue.blockers(index) else { continue };
                prop_assert!(!watched.is_empty());
                let left = names.iter().enumerate().filter(|(at, name)| {
                    *at >= index || !leaving[*at] || watched.iter().any(|entry| entry.name == **name)
                });
                let left = queue_of(left.map(|(_, name)| name.clone()).collect());
                let at = left.position(&names[index]).unwrap();
                prop_assert!(!left.admits(at), "{:?} watches {:?}", queue, watched);
            }
        }
    }
}
