//! A granted claim that goes from one process to another.
//!
//! Ground rules: it stays one and the same claim, so the store never sees it free; who goes on with it contends for it with
//! its id, and the fence of the grant tells whether it is still the one that was passed on. Before anybody can go on with it, it
//! is lost for whoever passed it on.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Fence, Grade, Grant, LossCause, Patience, Resource, Step};
use tokio::sync::oneshot;

use super::charge::Charge;
use super::contender::{LOOKS, abandon, ask, too_slow};
use super::handle::HoldHandle;
use super::held::State;
use super::hold::Hold;
use super::outage::Outage;
use super::queue::Lines;
use super::{Engine, Want, told};
use crate::error::{Error, ErrorKind, Result};

/// A claim that its process holds no longer, and that waits for somebody who goes on with it.
pub(crate) struct Passed {
    pub(crate) id: ClaimId,
    /// The fence of its last holder.
    pub(crate) fence: Fence,
    /// For how long the store keeps it at least.
    pub(crate) left: Duration,
}

/// What is needed to go on with a claim, besides the right to do so.
pub(crate) struct Resumption {
    pub(crate) want: Want,
    pub(crate) id: ClaimId,
    /// The fence of its last holder.
    pub(crate) after: Fence,
}

impl Engine {
    /// Whether claims can go to another process at all.
    ///
    /// # Errors
    /// `Unsupported` where they cannot. Nothing is sent.
    pub(crate) fn passes(&self, op: &'static str) -> Result<()> {
        let name = self.profile().name;
        let why = if !self.backend.adopts() {
            "what it grants stays with the connection, or the process, that it was granted to"
        } else if self.profile().fencing == Grade::None {
            "its grants have no fences to tell the next holder from the last"
        } else {
            return self.registers(op).map(drop);
        };
        let text = format!("a `{name}` store cannot let another process go on with a lock: {why}");
        Err(Error::new(ErrorKind::Unsupported, op, text))
    }

    /// Goes on with a claim, once `allowed` has come back with the right to.
    ///
    /// Cancel safe: a dropped future gives back what it would have got.
    pub(crate) async fn resume(
        self: &Arc<Self>,
        resumption: Resumption,
        allowed: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<HoldHandle> {
        let want = resumption.want.clone();
        told::asking(self, &want, self.resume_now(resumption, allowed)).await
    }

    async fn resume_now(
        self: &Arc<Self>,
        resumption: Resumption,
        allowed: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<Hold> {
        let resource = resumption.want.resource.clone();
        let closed = || Error::closed("take_over").on(&resource);
        if self.is_open("take_over").is_err() {
            return Err(closed());
        }
        let (reply, told) = oneshot::channel();
        let engine = self.clone();
        self.spawn(async move {
            let outcome = match allowed.await {
                Ok(()) => go_on(&engine, &resumption).await,
                Err(error) => Err(error),
            };
            // Undelivered, the hold is dropped here and gives itself back.
            drop(reply.send(outcome));
        });
        tokio::select! {
            biased;
            outcome = told => outcome.unwrap_or_else(|_| Err(closed())),
            () = self.closed.cancelled() => Err(closed()),
        }
    }
}

impl Hold {
    /// Ends it here, and leaves the claim to whoever goes on with it.
    ///
    /// # Errors
    /// Why it had been lost before. It is given back then.
    pub(crate) fn pass_on(self) -> Result<Passed, LossCause> {
        let (engine, fence) = (self.engine().clone(), self.fence().unwrap_or_default());
        self.tell_end(self.held());
        let Some(held) = self.into_held() else { return Err(LossCause::Gone) };
        if !held.retire() {
            // The keeper was first, and has given it back.
            return Err(match held.state() {
                State::Lost(cause) => cause,
                _ => LossCause::Gone,
            });
        }
        engine.keeper.forget(&held);
        let left = held.remaining();
        // Whoever lost it before stays the one who did. From here on nothing of this process believes to hold it.
        if let lost @ State::Lost(cause) = held.lose(LossCause::HandedOver)
            && cause != LossCause::HandedOver
        {
            drop(engine.reaper.release(&engine, held, lost, None));
            return Err(cause);
        }
        engine.backend.forgo(&held.claim);
        Lines::departed(&engine, &held.claim.resource, held.claim.id);
        Ok(Passed { id: held.claim.id, fence, left })
    }
}

/// Asks for the claim until the store has said whether it is still the one that was passed on.
async fn go_on(engine: &Arc<Engine>, resumption: &Resumption) -> Result<Hold> {
    let Resumption { want, id, after } = resumption;
    let resource = &want.resource;
    let fence = next(*after, resource)?;
    let claim = Claim {
        id: *id,
        resource: resource.clone(),
        share: want.share,
        ttl: want.ttl + want.quiet,
        note: want.note.clone(),
    };
    let patience = Patience::none(engine.clock.clone());
    let (mut outage, mut stale) = (Outage::none(), 0);
    loop {
        match ask(engine, &claim, &patience).await {
            Ok(Step::Granted(grant)) => {
                if grant.fence.map(|fence| (fence.epoch, fence.seq)) != Some((after.epoch, after.seq)) {
                    // The lease had ended, and this is another grant, which nobody has asked for.
                    abandon(engine, &claim);
                    return Err(ended(resource));
                }
                let grant = Grant { fence: Some(fence), ..grant };
                if let Some(charge) = Charge::take(engine, want, &claim, grant)? {
                    return Lines::granted_directly(charge);
                }
                stale += 1;
                if stale == LOOKS {
                    abandon(engine, &claim);
                    return Err(too_slow("take_over", resource));
                }
            }
            Ok(Step::Busy(_)) => return Err(ended(resource)),
            Err(failure) => {
                let failure = outage.honest(failure);
                let Some(pause) = outage.goes_on(engine, &failure) else {
                    // Nobody else has the right to go on with it.
                    abandon(engine, &claim);
                    return Err(Error::failed("take_over", failure).on(resource));
                };
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// The fence of whoever follows a holder under the same grant.
fn next(after: Fence, resource: &Resource) -> Result<Fence> {
    let sub = after.sub.checked_add(1).ok_or_else(|| {
        let text =
            "it was handed on under one grant for as often as can be counted; let go, and lock it anew";
        Error::new(ErrorKind::Invalid, "take_over", text).on(resource)
    })?;
    Ok(Fence { sub, ..after })
}

fn ended(resource: &Resource) -> Error {
    let text = "its lease ended before it was taken over: ask for the lock as everybody does";
    Error::new(ErrorKind::Lost(LossCause::Expired), "take_over", text).on(resource)
}
