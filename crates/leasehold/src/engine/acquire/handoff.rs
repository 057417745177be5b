//! Local hand-off: what happens to a held claim when its user is done: the next waiter, a linger time, or a release.
//!
//! A released lock passes straight to the next waiting task, with the fence's `sub` advanced and without asking the
//! server, within a limit of count and time that keeps other processes from starving.
//!
//! Ground rules: which waiter gets a claim, and whether it lingers, is decided by the local queue. Here is how often
//! it is offered, and the release of what no task takes.

use std::sync::Arc;

use leasehold_core::{Claim, ClaimId, Resource};

use crate::engine::Engine;
use crate::engine::acquire::linger::LingeringClaim;
use crate::engine::acquire::local_queue::Change;
use crate::engine::hold::{Hold, PassedOn};
use crate::engine::lease::{Lease, State, UseEnd};
use crate::engine::release::job::Released;
use crate::engine::release::reaper::{ReleaseProgress, Waits};

impl Engine {
    /// Passes a hold that ended in this state to the next waiter if that is possible, or lets its claim linger
    /// if it may and nothing waits. Otherwise releases it.
    pub(crate) fn hand_off_or_release(
        self: &Arc<Self>,
        lease: Arc<Lease>,
        mut ended: UseEnd,
        passed: PassedOn,
        waits: Waits,
    ) -> ReleaseProgress {
        let Claim { id, resource, .. } = &lease.claim;
        // Each round offers the claim to the next waiter, until one takes it or no further hand-off
        // is possible.
        loop {
            let left = handoffs_left(self, &lease, ended, passed);
            let lingering = self.lingering_claim(&lease, ended, passed);
            let linger_until = lingering.as_ref().map(LingeringClaim::until);
            if left == 0 && lingering.is_none() {
                break;
            }
            let changed = self.change_queue(resource, Change::Returned { id: *id, left, lingering });
            if let Some(until) = linger_until {
                if changed.as_ref().is_some_and(|changed| changed.lingers) {
                    self.start_linger_task(&lease, until);
                    return ReleaseProgress::Over(Released::Freed);
                }
                lease.set_lingering(false);
            }
            let Some((reply, want)) = changed.and_then(|changed| changed.taker) else { break };
            self.renewer.limit_hold(&lease, want.max_hold);
            let next = Hold::new(self.clone(), lease.clone(), passed.handed_off());
            let Err(undelivered) = reply.send(Ok(next)) else {
                return ReleaseProgress::Over(Released::Freed);
            };
            // That task has left. Its undelivered hold must not release the claim, which this function
            // still owns.
            if let Ok(hold) = undelivered {
                hold.defuse();
            }
            // The `max_hold` of that task has started, and is ended here.
            let at = self.clock.now();
            ended = UseEnd { state: lease.end_use(at), at };
        }
        // The renewer releases a claim that it finds lost, perhaps at this moment. `retire` is `true`
        // for one of the two, so the claim is released once.
        if lease.retire() {
            self.renewer.forget(&lease);
            return self.reaper.release(self, lease, ended, waits);
        }
        // It was lost, and the renewer has released it already.
        ReleaseProgress::Over(Released::Gone)
    }

    /// Ends local hand-off of a claim.
    pub(crate) fn end_handoff(self: &Arc<Self>, resource: &Resource, id: ClaimId) {
        self.change_queue(resource, Change::HandoffOver(id));
    }

    /// Ends local hand-off of a claim when its time is over: its age is counted from before now.
    pub(super) fn end_handoff_in_time(self: &Arc<Self>, resource: &Resource, id: ClaimId) {
        let (weak, resource) = (Arc::downgrade(self), resource.clone());
        let budget = self.tuning.local_handoff_time;
        drop(self.runtime.spawn(async move {
            tokio::time::sleep(budget).await;
            if let Some(engine) = weak.upgrade() {
                engine.end_handoff(&resource, id);
            }
        }));
    }

    /// Leaves a claim to its lease: from now on only the server counts it.
    pub(crate) fn leave_to_lease(self: &Arc<Self>, lease: &Lease) {
        self.renewer.forget(lease);
        self.forget_claim(&lease.claim.resource, lease.claim.id);
    }
}

/// Returns how often a claim may still be handed to the next waiter.
pub(super) fn handoffs_left(engine: &Engine, lease: &Lease, ended: UseEnd, passed: PassedOn) -> u32 {
    let age = ended.at.since(lease.granted_at);
    let in_time = ended.state == State::Valid && age < engine.tuning.local_handoff_time;
    // A revoked claim is for other clients, not for the next local waiter.
    let may_hand_off = in_time && lease.revoked().is_none() && lease.can_hand_off(passed.sub);
    match engine.tuning.local_handoff_limit.saturating_sub(passed.handoffs) {
        _ if !may_hand_off => 0,
        left if !lease.can_hand_off(passed.sub.saturating_add(1)) => left.min(1),
        left => left,
    }
}
