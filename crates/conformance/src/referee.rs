//! Watches grants from outside and knows at every instant which claims may hold.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::{Fence, Share};

use crate::not_kept::{Checked, NotKept, ensure};

/// The claims that hold one resource, as their holders themselves report it.
#[derive(Default)]
pub(crate) struct Referee(Mutex<Field>);

#[derive(Default)]
struct Field {
    inside: Vec<Share>,
    /// The fences of all grants so far.
    fences: BTreeSet<Fence>,
    /// The highest fence of those that held alone.
    highest_alone: Option<Fence>,
    grants: usize,
    /// The largest number of holders that were inside together.
    most: usize,
}

impl Referee {
    /// Returns the highest fence so far: a grant that is asked for from now on must be above it.
    pub(crate) fn floor(&self) -> Option<Fence> {
        self.field().highest()
    }

    /// Notes that a claim was granted, and its holder goes inside.
    pub(crate) fn enter(&self, share: Share, fence: Option<Fence>, floor: Option<Fence>) -> Checked {
        let mut field = self.field();
        let field = &mut *field;
        field.inside.push(share);
        let load: u64 = field.inside.iter().map(|share| u64::from(share.weight())).sum();
        let capacity = field.inside.iter().map(|share| share.capacity()).min().unwrap_or(u32::MAX);
        ensure!(load <= u64::from(capacity), "a load of {load} is held of {capacity}: {:?}", field.inside);
        if let Some(fence) = fence {
            // A holder that is alone enters after its grant and leaves before its release, so it is inside in the order
            // of the grants. Those that hold together enter in any order.
            let before = if share.is_exclusive() { field.highest() } else { floor.max(field.highest_alone) };
            ensure!(Some(fence) > before, "fence {fence:?} was granted to {share} after {before:?}");
            ensure!(field.fences.insert(fence), "fence {fence:?} was granted twice");
            if share.is_exclusive() {
                field.highest_alone = Some(fence);
            }
        }
        field.grants += 1;
        field.most = field.most.max(field.inside.len());
        Ok(())
    }

    /// Notes that a holder goes outside, before it releases.
    pub(crate) fn leave(&self, share: Share) -> Checked {
        let mut field = self.field();
        let at = field.inside.iter().position(|inside| *inside == share);
        let at = at.ok_or_else(|| NotKept::broken("a holder left that had not entered"))?;
        field.inside.swap_remove(at);
        Ok(())
    }

    /// Returns how many grants there were, and how many holders were inside together at most.
    pub(crate) fn tally(&self) -> (usize, usize) {
        let field = self.field();
        (field.grants, field.most)
    }

    fn field(&self) -> MutexGuard<'_, Field> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Field {
    fn highest(&self) -> Option<Fence> {
        self.fences.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets these go inside one after the other, alone if they hold alone. All of them have asked before the first was
    /// granted. Returns the first for which a rule is broken.
    fn first_wrong(entries: &[(Share, u64)]) -> Option<usize> {
        let referee = Referee::default();
        let floor = referee.floor();
        entries.iter().position(|(share, fence)| {
            let is_wrong = referee.enter(*share, Some(Fence::new(0, *fence, 0)), floor).is_err();
            is_wrong || referee.leave(*share).is_err()
        })
    }

    #[test]
    fn fence_that_was_drawn_early_and_granted_late_is_seen() {
        let (mutex, reader, writer) = (Share::MUTEX, Share::READER, Share::WRITER);
        assert_eq!(first_wrong(&[(mutex, 1), (mutex, 2), (mutex, 4)]), None);
        assert_eq!(first_wrong(&[(mutex, 1), (mutex, 3), (mutex, 2)]), Some(2));
        assert_eq!(first_wrong(&[(mutex, 1), (mutex, 1)]), Some(1));
        assert_eq!(first_wrong(&[(reader, 2), (writer, 1)]), Some(1));
        assert_eq!(first_wrong(&[(writer, 2), (reader, 1)]), Some(1));
    }

    #[test]
    fn holders_together_go_inside_in_any_order_but_with_different_fences() {
        let (reader, writer) = (Share::READER, Share::WRITER);
        assert_eq!(first_wrong(&[(reader, 3), (reader, 1), (reader, 2), (writer, 4), (reader, 6)]), None);
        assert_eq!(first_wrong(&[(reader, 3), (reader, 1), (reader, 3)]), Some(2));
    }
}
