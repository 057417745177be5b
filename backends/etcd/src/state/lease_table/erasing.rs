//! Requests to remove the keys of claims, which may arrive late.

use std::collections::{HashSet, VecDeque};

use leasehold_core::{ClaimId, Moment};

use super::{ClaimState, LeaseTable};
use crate::protocol::key_slots::KeyRef;
use crate::protocol::txn::Erase;

/// The number of requests to put the key of a claim that a request to remove it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PutsBefore(usize);

/// The latest claims whose own key a late request may still remove, although they are not tracked under it any more.
/// One that is contended for again gets another key.
#[derive(Debug, Default)]
pub(super) struct LateErases {
    claims: HashSet<ClaimId>,
    in_order: VecDeque<ClaimId>,
}

impl LeaseTable {
    /// Returns `true` if a request to remove the key of the claim may still be under way.
    pub(crate) fn is_erasing(&self, claim: ClaimId) -> bool {
        self.claims.get(&claim).is_some_and(|state| state.erasing > 0)
    }

    /// Records that a request to remove this key of the claim is about to be sent. Returns the argument for
    /// [`LeaseTable::erased`]; `None` where the claim is not tracked under this key.
    pub(crate) fn erasing(&mut self, claim: ClaimId, key: &[u8]) -> Option<PutsBefore> {
        let state = self.claims.get_mut(&claim).filter(|state| state.key_ref.erase.key == key)?;
        state.erasing += 1;
        Some(state.puts_before(self.leases.get(&state.lease).map(|lease| lease.mark)))
    }

    /// Returns those of the claims that are still at their end, with the requests that remove their keys,
    /// which are counted as about to be sent.
    pub(crate) fn erasing_due(
        &mut self,
        claims: &[ClaimId],
        now: Moment,
    ) -> Vec<(ClaimId, Erase, PutsBefore)> {
        let mut due = Vec::with_capacity(claims.len());
        for claim in claims {
            // A caller may have come for it since it was due.
            if let Some(state) = self.claims.get_mut(claim).filter(|state| state.is_due(now)) {
                state.erasing += 1;
                let mark = self.leases.get(&state.lease).map(|lease| lease.mark);
                due.push((*claim, state.key_ref.erase.clone(), state.puts_before(mark)));
            }
        }
        due
    }

    /// Records that the request was answered: the key does not exist, unless it was put since. `repeated` where the
    /// request was sent more than once.
    pub(crate) fn erased(
        &mut self,
        claim: ClaimId,
        key: &[u8],
        puts_before: PutsBefore,
        repeated: bool,
        now: Moment,
    ) {
        let Some(state) = self.claims.get_mut(&claim).filter(|state| state.key_ref.erase.key == key) else {
            return;
        };
        // A request that was sent before may arrive later, so it is counted for good.
        state.erasing = state.erasing.saturating_sub(usize::from(!repeated));
        // The caller that has put the key since contends for the claim, or has left it to its end.
        if state.puts == puts_before.0 {
            state.keyless = true;
            self.ended(claim, now);
        }
    }

    /// Records that a request to remove the own key of a claim that is not tracked may arrive later.
    pub(crate) fn erases_late(&mut self, claim: ClaimId) {
        self.late_erases.insert(claim);
    }

    /// Returns `true` if a request to remove the own key of the claim may arrive later.
    pub(crate) fn may_be_erased_late(&self, claim: ClaimId) -> bool {
        self.late_erases.contains(claim)
    }

    /// Gives a claim whose key does not exist another one, which no request to remove the old one concerns.
    pub(crate) fn change_key(&mut self, claim: ClaimId, key_ref: KeyRef) {
        if let Some(state) = self.claims.get_mut(&claim).filter(|state| state.keyless) {
            (state.key_ref, state.erasing) = (key_ref, 0);
        }
    }
}

impl ClaimState {
    /// Returns how many requests to put its key a request to remove it follows that is sent now; `mark` is that of
    /// its lease. One that is under way may come later.
    fn puts_before(&self, mark: Option<i64>) -> PutsBefore {
        PutsBefore(self.puts.saturating_sub(usize::from(self.is_unsettled(mark))))
    }
}

impl LateErases {
    /// Adds a claim. The oldest one is forgotten where there are too many.
    pub(super) fn insert(&mut self, claim: ClaimId) {
        if !self.claims.insert(claim) {
            return;
        }
        self.in_order.push_back(claim);
        if self.in_order.len() > CLAIMS_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.claims.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, claim: ClaimId) -> bool {
        self.claims.contains(&claim)
    }
}

/// The most claims that are remembered. Nearly none of them is contended for again, and one that is comes within the
/// time of one call.
const CLAIMS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_claims_are_remembered() {
        let id = |n: usize| ClaimId::from_bytes((n as u128).to_be_bytes());
        let mut late = LateErases::default();
        for n in 0..=CLAIMS_MAX {
            late.insert(id(n));
            late.insert(id(n));
        }
        assert!(!late.contains(id(0)));
        assert!(late.contains(id(1)) && late.contains(id(CLAIMS_MAX)));
        assert_eq!((late.claims.len(), late.in_order.len()), (CLAIMS_MAX, CLAIMS_MAX));
    }
}
