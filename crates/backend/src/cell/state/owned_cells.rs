//! Which cells this client holds alone, and in which state it left them: what lets a release, or a renewal,
//! swap without reading first.
//!
//! Ground rules: this is a guess that the condition of the swap proves or refutes. Forgetting costs one read. A claim
//! whose lease is over may never be released, so such claims are forgotten now and then.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::{ClaimId, Fence, Moment};

/// The cells in which a claim of one client is alone.
#[derive(Debug, Default)]
pub(crate) struct OwnedCells(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    cells: HashMap<ClaimId, Alone>,
    /// The number of times that a cell is remembered before those whose leases are over are looked for.
    until_sweep: usize,
}

/// A cell that has this one claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone {
    /// The state of the cell.
    pub(crate) version: u64,
    /// `true` if the claim waited for others, so that others have probably joined it meanwhile.
    pub(crate) is_contested: bool,
    /// The claim's fence.
    pub(crate) fence: Fence,
    /// The last fence of the cell, under the epoch that the store was in.
    pub(crate) last: Fence,
    /// The moment of the grant, by the local clock.
    pub(crate) since: Moment,
    /// Until when it surely lasts, by the local clock.
    pub(crate) until: Moment,
}

impl OwnedCells {
    /// Remembers the cell of a claim, at `now` by the local clock.
    pub(crate) fn remember(&self, id: ClaimId, alone: Alone, now: Moment) {
        let mut known = self.known();
        known.until_sweep = known.until_sweep.saturating_sub(1);
        if known.until_sweep == 0 {
            known.cells.retain(|_, alone| alone.until > now);
            // Each time looks at one claim on average, however many there are.
            known.until_sweep = known.cells.len().max(MANY);
        }
        if known.cells.len() < MAX_CLAIMS || known.cells.contains_key(&id) {
            known.cells.insert(id, alone);
        }
    }

    pub(crate) fn recall(&self, id: ClaimId) -> Option<Alone> {
        self.known().cells.get(&id).copied()
    }

    /// Returns `true` if many claims are held, of which many may end together.
    pub(crate) fn are_many(&self) -> bool {
        self.known().cells.len() > MANY
    }

    pub(crate) fn forget(&self, id: ClaimId) -> Option<Alone> {
        self.known().cells.remove(&id)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const MANY: usize = 64;
/// Claims that are remembered.
const MAX_CLAIMS: usize = 200_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(number: usize) -> ClaimId {
        let mut id = [7; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        ClaimId::from_bytes(id)
    }

    fn alone(until: Moment) -> Alone {
        let fence = Fence::new(1, 1, 0);
        Alone { version: 1, is_contested: false, fence, last: fence, since: Moment::START, until }
    }

    #[test]
    fn claims_whose_leases_are_over_are_forgotten_now_and_then() {
        let (owned, now) = (OwnedCells::default(), Moment::from_millis(1_000));
        let later = now.after(Duration::from_secs(60));
        owned.remember(id(0), alone(later), now);
        owned.remember(id(1), alone(now), now);
        for number in 2..=MANY {
            assert!(owned.recall(id(1)).is_some(), "each time would look at all of them");
            owned.remember(id(number), alone(later), now);
        }
        assert!(owned.recall(id(0)).is_some() && owned.recall(id(1)).is_none());
        assert!(!owned.are_many());
    }

    #[test]
    fn number_of_remembered_claims_is_bounded() {
        let (owned, now) = (OwnedCells::default(), Moment::START);
        let later = now.after(Duration::from_secs(60));
        for number in 0..=MAX_CLAIMS {
            owned.remember(id(number), alone(later), now);
        }
        assert!(owned.recall(id(MAX_CLAIMS - 1)).is_some() && owned.recall(id(MAX_CLAIMS)).is_none());
        owned.remember(id(0), Alone { version: 2, ..alone(later) }, now);
        assert_eq!(owned.recall(id(0)).map(|alone| alone.version), Some(2), "it was remembered before");
    }
}
