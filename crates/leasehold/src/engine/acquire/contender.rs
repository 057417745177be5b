//! The acquire loop: requests a claim from the server until it is granted or no longer wanted. A task
//! that runs it is a contender.
//!
//! Ground rules: the loop runs in a task of its own, so that a caller can be dropped at any point. The
//! claim's id is drawn once and every attempt repeats it, until a grant arrives too late, or the backend has
//! released the claim without an answer: then another id is drawn. A claim that is no longer wanted, or whose
//! outcome is unknown, is released by the reaper.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Effect, Failure, Moment, Patience, Resource, Step};

use crate::engine::Engine;
use crate::engine::Want;
use crate::engine::acquire::attempt::Attempt;
use crate::engine::acquire::span::contend_span;
use crate::engine::hold::Hold;
use crate::engine::hold::pending_grant::PendingGrant;
use crate::engine::retry::RetryState;
use crate::error::{Error, ErrorKind, Result};
use crate::events::Event;
use crate::mutant::mutant;
use crate::panics::{contained_request, logged, spanned};

impl Engine {
    /// Returns the task of a contender: it requests a claim until it is granted, patience ends, or the server is away
    /// for too long. If the server did not answer the contender before this one, that was from `failing_since` on.
    /// Settles the queue even if the future is dropped before its end, or before its first poll.
    pub(crate) fn contender_task(
        self: &Arc<Self>,
        want: Want,
        patience: Patience,
        failing_since: Option<Moment>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let mut contender = Contender { engine: self.clone(), want, failing_since, is_settled: false };
        async move {
            let Contender { engine, want, failing_since, .. } = &mut contender;
            let on_claim = |id| engine.record_contender(&want.resource, id);
            // Boxed, because the future of a task is moved several times before it runs.
            let contending =
                Box::pin(contend_until_granted(engine, want, &patience, failing_since, on_claim));
            let outcome = contending.await;
            contender.settle(outcome);
        }
    }
}

/// The contender of one local queue. Settles the queue when dropped.
struct Contender {
    engine: Arc<Engine>,
    want: Want,
    /// The time of the first failure without an answer since. It outlives the `RetryState` of one claim, for the next
    /// claim and the next contender: each answer to a request unsets it, and each failure takes it from there.
    failing_since: Option<Moment>,
    is_settled: bool,
}

impl Contender {
    fn settle(mut self, outcome: Result<Option<PendingGrant>>) {
        self.is_settled = true;
        match outcome {
            Ok(Some(pending)) => Engine::grant_to_waiter(pending),
            Ok(None) => self.engine.end_contender(&self.want, None, self.failing_since),
            Err(error) => self.engine.end_contender(&self.want, Some(error), self.failing_since),
        }
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        if self.is_settled || mutant!("a contender ends in silence" | "the end of a runtime is silent") {
            return;
        }
        let error = if std::thread::panicking() {
            let text = "the task that asked for it panicked";
            Error::new(ErrorKind::OutcomeUnknown, "lock", text)
        } else {
            // Only the end of the runtime drops it unsettled. Closed queues start no contender, so none
            // is dropped recursively in here.
            if !self.engine.closed.is_cancelled() {
                self.engine.close_abruptly();
            }
            Error::closed("lock")
        };
        self.engine.end_contender(&self.want, Some(error.on(&self.want.resource)), None);
    }
}

/// Requests a lock until a claim is granted, patience ends (`None`), or the server is away for too long.
/// Without a grant nothing is left behind. `on_claim` gets the id of each claim before its first request.
/// `failing_since` is that of the contender.
///
/// A grant whose lease has run out when it arrives is useless, and blocks other clients. So it is
/// released, and after a pause a new claim is requested, which a late release of the first cannot end. A
/// server that answers so slowly for the whole outage tolerance, without one timely answer in between,
/// counts as away. A new claim is also requested after one that the backend has released without an answer.
pub(crate) async fn contend_until_granted(
    engine: &Arc<Engine>,
    want: &Want,
    patience: &Patience,
    failing_since: &mut Option<Moment>,
    on_claim: impl Fn(ClaimId),
) -> Result<Option<PendingGrant>> {
    let mut slow = RetryState::none();
    loop {
        let claim = engine.claim(want)?;
        on_claim(claim.id);
        match contend_guarded(engine, want, &claim, patience, failing_since).await? {
            ContendOutcome::Granted(pending) => return Ok(Some(pending)),
            ContendOutcome::GaveUp => return Ok(None),
            ContendOutcome::Stale { .. } if mutant!("a stale grant is asked for at once") => continue,
            // The store was reachable while this claim was queued.
            ContendOutcome::Stale { asked_at } => slow.reset_if_over(engine, asked_at),
            ContendOutcome::Released => {
                abandon(engine, &claim);
                continue;
            }
        }
        abandon(engine, &claim);
        if patience.is_ended() {
            return Ok(None);
        }
        let Some(length) = slow.next_pause(engine, &Failure::unavailable(TOO_SLOW)) else {
            return Err(too_slow("lock", &want.resource));
        };
        pause(length, patience).await;
    }
}

/// The result of requesting one claim.
enum ContendOutcome {
    Granted(PendingGrant),
    /// Patience ended; nothing is left behind.
    GaveUp,
    /// The claim was granted, but its lease was over when the answer came. `asked_at` is the time of
    /// the request.
    Stale {
        asked_at: Moment,
    },
    /// A release of the claim may still arrive. The pause after the failure is over.
    Released,
}

/// Requests one claim, and leaves it to the reaper if the task ends meanwhile.
async fn contend_guarded(
    engine: &Arc<Engine>,
    want: &Want,
    claim: &Claim,
    patience: &Patience,
    failing_since: &mut Option<Moment>,
) -> Result<ContendOutcome> {
    let attempt = Attempt::of(engine, claim);
    let outcome = contend_for_claim(engine, want, claim, patience, failing_since).await;
    attempt.over(outcome)
}

/// Requests one claim until it is granted or given up.
async fn contend_for_claim(
    engine: &Arc<Engine>,
    want: &Want,
    claim: &Claim,
    patience: &Patience,
    failing_since: &mut Option<Moment>,
) -> Result<ContendOutcome> {
    let mut retries = RetryState::since(*failing_since);
    loop {
        if engine.is_forked() {
            return Err(Error::closed("lock").on(&claim.resource));
        }
        match send_request(engine, claim, patience).await {
            Ok(Step::Granted(grant)) => {
                *failing_since = None;
                let stale = ContendOutcome::Stale { asked_at: grant.asked_at };
                return Ok(
                    PendingGrant::take(engine, want, claim, grant)?.map_or(stale, ContendOutcome::Granted)
                );
            }
            Ok(Step::Busy(hint)) if patience.is_ended() => {
                *failing_since = None;
                engine.record_busy(claim);
                // A hint to ask again means that the store answered before patience ended, and kept
                // the place. A request without an answer may still arrive, and be granted or queued.
                if retries.unanswered || hint.ask_again_in.is_some() {
                    abandon(engine, claim);
                }
                return Ok(ContendOutcome::GaveUp);
            }
            Ok(Step::Busy(hint)) => {
                engine.record_busy(claim);
                // Any answer ends the series of failures.
                retries.end();
                *failing_since = None;
                pause(hint.ask_again_in.unwrap_or_default(), patience).await;
            }
            Err(failure) => {
                logged!(debug, resource = %claim.resource, %failure, "contending failed");
                engine.record_no_answer(claim);
                let failure = retries.with_overall_effect(failure);
                let may_end = may_be_released(&failure);
                let retry_after = retries.next_pause(engine, &failure);
                *failing_since = retries.began().filter(|_| failure.is_transient());
                if patience.is_ended() || retry_after.is_none() {
                    // Even where this attempt had no effect, an earlier one may have left a place in
                    // the queue.
                    abandon(engine, claim);
                    if patience.is_ended() {
                        return Ok(ContendOutcome::GaveUp);
                    }
                    return Err(Error::failed("lock", failure).on(&claim.resource));
                }
                pause(retry_after.unwrap_or_default(), patience).await;
                if may_end && !patience.is_ended() {
                    return Ok(ContendOutcome::Released);
                }
            }
        }
        // Patience may have ended during a pause, which the backend could not see: then the place has to
        // go, too.
        if patience.is_ended() {
            abandon(engine, claim);
            return Ok(ContendOutcome::GaveUp);
        }
    }
}

/// Requests a lock without waiting, and leaves no place in a queue behind. The store may have granted the claim that
/// is `unanswered`.
pub(crate) async fn try_once(
    engine: Arc<Engine>,
    want: Want,
    unanswered: Option<Claim>,
) -> Result<Option<Hold>> {
    let mut retries = RetryState::none();
    retries.unanswered = unanswered.is_some();
    let claim = match unanswered {
        Some(claim) => claim,
        None => engine.claim(&want)?,
    };
    let attempt = Attempt::of(&engine, &claim);
    let outcome = try_claim(&engine, &want, &claim, retries).await;
    attempt.over(outcome)
}

async fn try_claim(
    engine: &Arc<Engine>,
    want: &Want,
    claim: &Claim,
    mut retries: RetryState,
) -> Result<Option<Hold>> {
    let patience = Patience::none(engine.clock.clone());
    let mut tries = 0;
    loop {
        if engine.is_forked() {
            return Err(Error::closed("lock").on(&claim.resource));
        }
        tries += 1;
        match send_request(engine, claim, &patience).await {
            Ok(Step::Granted(grant)) => {
                if let Some(pending) = PendingGrant::take(engine, want, claim, grant)? {
                    return Engine::grant_outside_queue(pending).map(Some);
                }
                if tries == TRIES_MAX {
                    // The lock was free each time, so it would be wrong to report it as held.
                    abandon(engine, claim);
                    return Err(too_slow("lock", &claim.resource));
                }
                // The store may still keep the claim that was granted too late.
                retries.unanswered = true;
            }
            Ok(Step::Busy(_)) => {
                if retries.unanswered {
                    // The request without an answer may still arrive, and be granted when the resource is free.
                    abandon(engine, claim);
                }
                return Ok(None);
            }
            // The request is repeated with the same id, since the lost answer may have been a grant.
            Err(failure)
                if failure.effect == Effect::Unknown
                    && failure.is_transient()
                    && !may_be_released(&failure)
                    && tries < TRIES_MAX =>
            {
                retries.unanswered = true;
            }
            Err(failure) => {
                let failure = retries.with_overall_effect(failure);
                if failure.effect == Effect::Unknown {
                    abandon(engine, claim);
                }
                return Err(Error::failed("lock", failure).on(&claim.resource));
            }
        }
    }
}

/// Sends one request for the claim to the server.
pub(crate) async fn send_request(
    engine: &Engine,
    claim: &Claim,
    patience: &Patience,
) -> Result<Step, Failure> {
    let span = || contend_span(claim);
    let step = contained_request(spanned(span, engine.backend.contend(claim, patience))).await.flatten();
    if let Ok(Step::Busy(hint)) = &step {
        engine.events.emit(|| Event::Queued { resource: &claim.resource, ahead: hint.ahead });
    }
    step
}

/// Returns `true` if a release that the backend has sent may still end the claim, or a later grant of it.
pub(crate) fn may_be_released(failure: &Failure) -> bool {
    failure.is_release_unanswered() && !mutant!("a released claim is requested again")
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

pub(crate) const TRIES_MAX: u32 = 3;
const TOO_SLOW: &str =
    "the store answers too slowly: the lease ended before the answer arrived; the grant is released";
