//! Watches grants from outside and knows at every instant which claims may hold.

use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::{Fence, Share};

use crate::not_kept::{Checked, NotKept, ensure};

/// The claims that hold one resource, as their holders themselves report it.
#[derive(Default)]
pub(crate) struct Referee(Mutex<Field>);

#[derive(Default)]
struct Field {
    inside: Vec<Share>,
    highest: Option<Fence>,
    grants: usize,
    /// The largest number of holders that were inside together.
    most: usize,
}

impl Referee {
    /// Returns the highest fence so far: a grant that is asked for from now on must be above it.
    pub(crate) fn floor(&self) -> Option<Fence> {
        self.field().highest
    }

    /// Notes that a claim was granted, and its holder goes inside.
    pub(crate) fn enter(&self, share: Share, fence: Option<Fence>, floor: Option<Fence>) -> Checked {
        let mut field = self.field();
        let field = &mut *field;
        field.inside.push(share);
        let load: u64 = field.inside.iter().map(|share| u64::from(share.weight())).sum();
        let capacity = field.inside.iter().map(|share| share.capacity()).min().unwrap_or(u32::MAX);
        ensure!(load <= u64::from(capacity), "a load of {load} is held of {capacity}: {:?}", field.inside);
        ensure!(fence.is_none() || fence > floor, "fence {fence:?} was granted after {floor:?}");
        field.highest = field.highest.max(fence);
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
