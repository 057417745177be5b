//! Claims that wait, on the one short lease that a client keeps alive for all of them.

use leasehold_core::ClaimId;

use super::LeaseTable;

impl LeaseTable {
    /// Records that the key of a claim that waits is about to be moved to this lease, which is kept alive
    /// from now on for as long as the claim waits.
    pub(crate) fn park(&mut self, claim: ClaimId, lease: i64) {
        if self.parked_on(claim) == Some(lease) {
            return;
        }
        self.unpark(claim);
        if let Some(state) = self.claims.get_mut(&claim) {
            state.parked = Some(lease);
            self.count_parked(lease, 1);
        }
    }

    /// Records that the claim does not wait any more.
    pub(super) fn unpark(&mut self, claim: ClaimId) {
        if let Some(lease) = self.claims.get_mut(&claim).and_then(|state| state.parked.take()) {
            self.count_parked(lease, -1);
        }
    }

    /// Returns the lease that a claim was sent to for as long as it waits.
    pub(crate) fn parked_on(&self, claim: ClaimId) -> Option<i64> {
        self.claims.get(&claim)?.parked
    }

    /// Records that a lease ended: each claim that waited on it is woken to look at the queue.
    pub(super) fn parking_ended(&mut self, lease: i64) {
        for state in self.claims.values_mut().filter(|state| state.parked == Some(lease)) {
            state.parked = None;
            if let Some(wakeup) = &state.wakeup {
                wakeup.wake(None);
            }
        }
    }

    fn count_parked(&mut self, lease: i64, step: isize) {
        if let Some(lease) = self.leases.get_mut(&lease) {
            lease.claims = lease.claims.saturating_add_signed(step);
            lease.waiters = lease.waiters.saturating_add_signed(step);
        }
    }
}
