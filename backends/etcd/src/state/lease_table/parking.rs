//! Claims that wait, on the one short lease that a client keeps alive for all of them.

use leasehold_core::ClaimId;

use super::LeaseTable;

impl LeaseTable {
    /// Notes that the key of a claim that waits is about to be moved to this lease, which is kept alive
    /// from now on for as long as the claim waits.
    pub(crate) fn park(&mut self, claim: ClaimId, lease: i64) {
        if self.parked_on(claim) == Some(lease) {
            return;
        }
        self.unpark(claim);
        if let Some(seat) = self.seats.get_mut(&claim) {
            seat.parked = Some(lease);
            self.count_parked(lease, 1);
        }
    }

    /// Notes that the claim does not wait any more.
    pub(super) fn unpark(&mut self, claim: ClaimId) {
        if let Some(lease) = self.seats.get_mut(&claim).and_then(|seat| seat.parked.take()) {
            self.count_parked(lease, -1);
        }
    }

    /// Returns the lease that a claim was sent to for as long as it waits.
    pub(crate) fn parked_on(&self, claim: ClaimId) -> Option<i64> {
        self.seats.get(&claim)?.parked
    }

    /// Notes that a lease ended: each claim that waited on it is woken to look at the queue.
    pub(super) fn parking_ended(&mut self, lease: i64) {
        for seat in self.seats.values_mut().filter(|seat| seat.parked == Some(lease)) {
            seat.parked = None;
            if let Some(bell) = &seat.bell {
                bell.ring(None);
            }
        }
    }

    fn count_parked(&mut self, lease: i64, step: isize) {
        if let Some(lease) = self.leases.get_mut(&lease) {
            lease.seats = lease.seats.saturating_add_signed(step);
            lease.waiters = lease.waiters.saturating_add_signed(step);
        }
    }
}
