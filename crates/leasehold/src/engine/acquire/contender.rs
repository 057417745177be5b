//! The acquire loop: requests a claim from the server until it is granted or no longer wanted. A task
//! that runs it is a contender.
//!
//! Ground rules: the loop runs in a task of its own, so that a caller can be dropped at any point. The
//! claim's id is drawn once and every attempt repeats it, until a grant arrives too late: then another id
//! is drawn. A claim that is no longer wanted, or whose outcome is unknown, is released by the reaper.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Effect, Failure, Moment, Patience, Resource, Step};

use crate::engine::Engine;
use crate::engine::Want;
use crate::engine::calling::Attempt;
use crate::engine::hold::Hold;
use crate::engine::hold::charge::Charge;
use crate::engine::retry::RetryState;
use crate::error::{Error, ErrorKind, Result};
use crate::events::Event;
use crate::mutant::mutant;
use crate::panics::{answered, logged, spanned};

impl Engine {
    /// Contends until the claim is granted, patience ends, or the server is away for too long. Settles the
    /// queue even if the future is dropped before its end, or before its first poll.
    pub(crate) fn contend(
        self: &Arc<Self>,
        want: Want,
        patience: Patience,
    ) -> impl Future<Output = ()> + Send + use<> {
        let contender = Contender { engine: self.clone(), want, is_settled: false };
        async move {
            let outcome = contender.contend(&patience).await;
            contender.settle(outcome);
        }
    }
}

/// The contender of one local queue. Settles the queue when dropped.
struct Contender {
    engine: Arc<Engine>,
    want: Want,
    is_settled: bool,
}

impl Contender {
    async fn contend(&self, patience: &Patience) -> Result<Option<Charge>> {
        let drawn = |id| self.engine.record_contender(&self.want.resource, id);
        pursue(&self.engine, &self.want, patience, drawn).await
    }

    fn settle(mut self, outcome: Result<Option<Charge>>) {
        self.is_settled = true;
        match outcome {
            Ok(Some(charge)) => Engine::grant_to_waiter(charge),
            Ok(None) => self.engine.end_contender(&self.want, None),
            Err(error) => self.engine.end_contender(&self.want, Some(error)),
        }
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if self.is_settled || mutant!("a contender ends in silence") {
            return;
        }
        if mutant!("the end of a runtime is silent") {
            return;
        }
        let error = if std::thread::panicking() {
            let text = "the task that asked for it panicked";
            Error::new(ErrorKind::OutcomeUnknown, "lock", text)
        } else {
            // Only the end of the runtime drops it unsettled. Closed queues start no contender, so none
            // is dropped recursively in here.
            if !self.engine.closed.is_cancelled() {
                self.engine.end_with_its_runtime();
            }
            Error::closed("lock")
        };
        self.engine.end_contender(&self.want, Some(error.on(&self.want.resource)));
    }
}

/// Requests a lock until a claim is granted, patience ends (`None`), or the server is away for too long.
/// Without a grant nothing is left behind. `drawn` gets the id of each claim before its first request.
///
/// A grant whose lease has run out when it arrives is useless, and blocks other clients. So it is
/// released, and after a pause a new claim is requested, which a late release of the first cannot end. A
/// server that answers so slowly for the whole outage tolerance, without one timely answer in between,
/// counts as away.
pub(crate) async fn pursue(
    engine: &Arc<Engine>,
    want: &Want,
    patience: &Patience,
    drawn: impl Fn(ClaimId),
) -> Result<Option<Charge>> {
    let mut slow = RetryState::none();
    loop {
        let claim = engine.claim(want)?;
        drawn(claim.id);
        match pursue_one(engine, want, &claim, patience).await? {
            Pursuit::Granted(charge) => return Ok(Some(charge)),
            Pursuit::Left => return Ok(None),
            Pursuit::Stale { .. } if mutant!("a stale grant is asked for at once") => continue,
            // The store was reachable while this claim was queued.
            Pursuit::Stale { asked_at } => slow.was_over(engine, asked_at),
        }
        abandon(engine, &claim);
        if patience.is_ended() {
            return Ok(None);
        }
        let Some(length) = slow.goes_on(engine, &Failure::unavailable(TOO_SLOW)) else {
            return Err(too_slow("lock", &want.resource));
        };
        pause(length, patience).await;
    }
}

/// The result of requesting one claim.
enum Pursuit {
    Granted(Charge),
    /// Patience ended; nothing is left behind.
    Left,
    /// The claim was granted, but its lease was over when the answer came. `asked_at` is the time of
    /// the request.
    Stale {
        asked_at: Moment,
    },
}

async fn pursue_one(
    engine: &Arc<Engine>,
    want: &Want,
    claim: &Claim,
    patience: &Patience,
) -> Result<Pursuit> {
    let attempt = Attempt::of(engine, claim);
    let outcome = pursue_on(engine, want, claim, patience).await;
    attempt.over(outcome)
}

async fn pursue_on(engine: &Arc<Engine>, want: &Want, claim: &Claim, patience: &Patience) -> Result<Pursuit> {
    let mut outage = RetryState::none();
    loop {
        if engine.is_forked() {
            return Err(Error::closed("lock").on(&claim.resource));
        }
        match ask(engine, claim, patience).await {
            Ok(Step::Granted(grant)) => {
                let stale = Pursuit::Stale { asked_at: grant.asked_at };
                return Ok(Charge::take(engine, want, claim, grant)?.map_or(stale, Pursuit::Granted));
            }
            Ok(Step::Busy(hint)) if patience.is_ended() => {
                engine.record_answer(&claim.resource, true);
                // A hint to ask again means that the store answered before patience ended, and kept
                // the place.
                if hint.ask_again_in.is_some() {
                    abandon(engine, claim);
                }
                return Ok(Pursuit::Left);
            }
            Ok(Step::Busy(hint)) => {
                engine.record_answer(&claim.resource, true);
                // Any answer ends an outage.
                outage = RetryState::none();
                pause(hint.ask_again_in.unwrap_or_default(), patience).await;
            }
            Err(failure) => {
                logged!(debug, resource = %claim.resource, %failure, "contending failed");
                engine.record_answer(&claim.resource, false);
                let failure = outage.honest(failure);
                let left = outage.goes_on(engine, &failure);
                if patience.is_ended() || left.is_none() {
                    // Even where this attempt had no effect, an earlier one may have left a place in
                    // the queue.
                    abandon(engine, claim);
                    if patience.is_ended() {
                        return Ok(Pursuit::Left);
                    }
                    return Err(Error::failed("lock", failure).on(&claim.resource));
                }
                pause(left.unwrap_or_default(), patience).await;
            }
        }
        // Patience may have ended during a pause, which the backend could not see: then the place has to
        // go, too.
        if patience.is_ended() {
            abandon(engine, claim);
            return Ok(Pursuit::Left);
        }
    }
}

/// Requests a lock without waiting, and leaves no place in a queue behind.
pub(crate) async fn look_once(engine: Arc<Engine>, want: Want) -> Result<Option<Hold>> {
    let claim = engine.claim(&want)?;
    let attempt = Attempt::of(&engine, &claim);
    let outcome = look_for(&engine, &want, &claim).await;
    attempt.over(outcome)
}

async fn look_for(engine: &Arc<Engine>, want: &Want, claim: &Claim) -> Result<Option<Hold>> {
    let patience = Patience::none(engine.clock.clone());
    let mut outage = RetryState::none();
    let mut tries = 0;
    loop {
        tries += 1;
        match ask(engine, claim, &patience).await {
            Ok(Step::Granted(grant)) => {
                if let Some(charge) = Charge::take(engine, want, claim, grant)? {
                    return Engine::grant_directly(charge).map(Some);
                }
                if tries == LOOKS {
                    abandon(engine, claim);
                    return Ok(None);
                }
            }
            Ok(Step::Busy(_)) => return Ok(None),
            // The request is repeated with the same id, since the lost answer may have been a grant.
            Err(failure) if failure.effect == Effect::Unknown && failure.is_transient() && tries < LOOKS => {
                outage.unanswered = true;
            }
            Err(failure) => {
                let failure = outage.honest(failure);
                if failure.effect == Effect::Unknown {
                    abandon(engine, claim);
                }
                return Err(Error::failed("lock", failure).on(&claim.resource));
            }
        }
    }
}

/// Sends one request for the claim to the server.
pub(crate) async fn ask(engine: &Engine, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
    let span = || tracing::debug_span!("leasehold.contend", resource = %claim.resource, share = %claim.share);
    let step = answered(spanned(span, engine.backend.contend(claim, patience))).await.flatten();
    if let Ok(Step::Busy(hint)) = &step {
        engine.telling.tell(|| Event::Queued { resource: &claim.resource, ahead: hint.ahead });
    }
    step
}

/// Leaves a claim that is not wanted any more to the reaper.
pub(crate) fn abandon(engine: &Arc<Engine>, claim: &Claim) {
    engine.reaper.abandon(claim.clone());
}

/// Returns the error for grants that arrive after their leases are over.
pub(crate) fn too_slow(op: &'static str, resource: &Resource) -> Error {
    Error::new(ErrorKind::Unavailable, op, TOO_SLOW).on(resource)
}

/// Sleeps, but not past the end of patience.
async fn pause(length: Duration, patience: &Patience) {
    tokio::select! {
        () = tokio::time::sleep(length) => {}
        () = patience.ended() => {}
    }
}

pub(crate) const LOOKS: u32 = 3;
const TOO_SLOW: &str =
    "the store answers too slowly: the lease ended before the answer arrived; the grant is released";
