//! Transfer of a granted claim from one process to another.
//!
//! Ground rules: the claim stays the same, so the store never sees the lock free. The receiving process
//! contends with the id of the claim, and the fence of the grant shows whether it is still the claim that was
//! passed on. The claim is marked as lost for its old holder before another process can continue with it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Fence, FenceGrade, LossCause, Patience, Resource, Step};
use tokio::sync::oneshot;

use crate::engine::Engine;
use crate::engine::Want;
use crate::engine::acquire::contender::{TRIES_MAX, abandon, may_be_released, send_request, too_slow};
use crate::engine::acquire::span;
use crate::engine::hold::Hold;
use crate::engine::hold::handle::HoldHandle;
use crate::engine::hold::pending_grant::PendingGrant;
use crate::engine::lease::{State, UseEnd};
use crate::engine::retry::RetryState;
use crate::error::{Error, ErrorKind, Result};
use crate::panics::contained;

/// A claim that its process no longer holds, and that another one may continue with.
pub(crate) struct Transferred {
    pub(crate) id: ClaimId,
    /// The fence of its last holder.
    pub(crate) fence: Fence,
    /// The minimum time for which the store keeps it.
    pub(crate) left: Duration,
}

/// The data needed to continue with a claim, apart from the right to do so.
pub(crate) struct TransferClaim {
    pub(crate) want: Want,
    pub(crate) id: ClaimId,
    /// The fence of its last holder.
    pub(crate) after: Fence,
}

impl Engine {
    /// Checks that this store can transfer claims to another process.
    ///
    /// # Errors
    /// `Unsupported` where they cannot. Nothing is sent.
    pub(crate) fn check_transfer_support(&self, op: &'static str) -> Result<()> {
        let name = self.profile().name;
        let why = if !self.backend.supports_transfer() {
            "a grant stays with the connection, or the process, to which it was made"
        } else if self.profile().fencing == FenceGrade::None {
            "its grants have no fences to distinguish the next holder from the last"
        } else {
            return self.registers(op).map(drop);
        };
        let text = format!("a `{name}` store cannot transfer a lock to another process: {why}");
        Err(Error::new(ErrorKind::Unsupported, op, text))
    }

    /// Continues with a claim of another process, once `allowed` has granted the right to.
    ///
    /// Cancel safe: if the future is dropped, a claim that it would have got is released.
    pub(crate) async fn accept_transfer(
        self: &Arc<Self>,
        transfer: TransferClaim,
        allowed: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<HoldHandle> {
        let want = transfer.want.clone();
        span::run_reported(self, &want, self.accept_transfer_inner(transfer, allowed)).await
    }

    async fn accept_transfer_inner(
        self: &Arc<Self>,
        transfer: TransferClaim,
        allowed: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<Hold> {
        let resource = transfer.want.resource.clone();
        let closed = || Error::closed("accept_transfer").on(&resource);
        if self.check_open("accept_transfer").is_err() {
            return Err(closed());
        }
        let (reply, receiver) = oneshot::channel();
        let engine = self.clone();
        self.spawn(async move {
            let outcome = match allowed.await {
                Ok(()) => take_over(&engine, &transfer).await,
                Err(error) => Err(error),
            };
            // If it cannot be delivered, the hold is dropped here, which releases it.
            drop(reply.send(outcome));
        });
        // Without a time limit: the task does not wait in a queue, and it gives up when an outage lasts too
        // long.
        tokio::select! {
            biased;
            // First: what was granted while the client closed is lost by now, and is released by its drop.
            // The token may have been used.
            () = self.closed.cancelled() => Err(closed().of_unknown_effect()),
            outcome = receiver => outcome.unwrap_or_else(|_| Err(closed().of_unknown_effect())),
        }
    }
}

impl Hold {
    /// Ends the hold in this process, and leaves the claim to the process that continues with it.
    ///
    /// # Errors
    /// The cause of an earlier loss. The claim is then released.
    pub(crate) fn transfer_out(self) -> Result<Transferred, LossCause> {
        let (engine, fence) = (self.engine().clone(), self.fence().unwrap_or_default());
        self.report_end(self.lease());
        // `into_lease` and not `finish`: the listeners of this hold are to see the loss that is marked below.
        let Some(lease) = self.into_lease() else { return Err(LossCause::Gone) };
        if !lease.retire() {
            // The renewer was first, and has released it.
            return Err(match lease.state() {
                State::Lost(cause) => cause,
                _ => LossCause::Gone,
            });
        }
        engine.renewer.forget(&lease);
        let left = lease.remaining();
        // An earlier cause of loss stays. From here on nothing in this process considers it held.
        if let lost @ State::Lost(cause) = lease.lose(LossCause::Transferred)
            && cause != LossCause::Transferred
        {
            let ended = UseEnd { state: lost, at: engine.clock.now() };
            engine.release_unattended(lease, ended);
            return Err(cause);
        }
        contained(|| engine.backend.detach(&lease.claim));
        engine.forget_claim(&lease.claim.resource, lease.claim.id);
        Ok(Transferred { id: lease.claim.id, fence, left })
    }
}

/// Requests the claim until the store has said whether it is still the one that was passed on.
async fn take_over(engine: &Arc<Engine>, transfer: &TransferClaim) -> Result<Hold> {
    let TransferClaim { want, id, after } = transfer;
    let resource = &want.resource;
    let fence = next(*after, resource)?;
    let claim =
        Claim::new(*id, resource.clone(), want.share, want.ttl + want.lock_delay).note(want.note.clone());
    let patience = Patience::none(engine.clock.clone());
    let (mut retries, mut stale) = (RetryState::none(), 0);
    loop {
        match send_request(engine, &claim, &patience).await {
            Ok(Step::Granted(grant)) => {
                if grant.fence.map(|fence| (fence.epoch, fence.seq)) != Some((after.epoch, after.seq)) {
                    // The lease had ended, and this is a new grant that was not asked for.
                    abandon(engine, &claim);
                    return Err(ended(resource));
                }
                let grant = grant.fence(Some(fence));
                if let Some(pending) = PendingGrant::take(engine, want, &claim, grant)? {
                    return Engine::grant_outside_queue(pending);
                }
                stale += 1;
                if stale == TRIES_MAX {
                    abandon(engine, &claim);
                    return Err(too_slow("accept_transfer", resource));
                }
                // The store may still keep the claim whose answer came too late.
                retries.unanswered = true;
            }
            Ok(Step::Busy(_)) => {
                if retries.unanswered {
                    // The request without an answer may still arrive, and be granted when the resource is free.
                    abandon(engine, &claim);
                }
                return Err(ended(resource));
            }
            Err(failure) => {
                let failure = retries.with_overall_effect(failure);
                let pause = retries.next_pause(engine, &failure);
                let Some(pause) = pause.filter(|_| !may_be_released(&failure)) else {
                    // No other process has the right to continue with it.
                    abandon(engine, &claim);
                    return Err(Error::failed("accept_transfer", failure).on(resource));
                };
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// Returns the fence of the next holder under the same grant.
fn next(after: Fence, resource: &Resource) -> Result<Fence> {
    let sub = after.sub.checked_add(1).ok_or_else(|| {
        let text = "the lock was transferred too often under one grant; release it and acquire it anew";
        Error::new(ErrorKind::Invalid, "accept_transfer", text).on(resource)
    })?;
    Ok(Fence { sub, ..after })
}

fn ended(resource: &Resource) -> Error {
    let text = "its lease ended before it was taken over; acquire the lock without the token";
    Error::new(ErrorKind::Lost(LossCause::Expired), "accept_transfer", text).on(resource)
}
