//! The one acquire loop.
//!
//! Ground rules: it runs in a task of its own, so that a caller can go away at any point. The claim's id is
//! drawn once and every attempt repeats it, until it was granted too late: then another one is drawn. When nobody wants the claim any more, or its outcome is not
//! known, the reaper ends it on the server.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Effect, Failure, Moment, Patience, Resource, Step};

use super::calling::Attempt;
use super::charge::Charge;
use super::hold::Hold;
use super::outage::Outage;
use super::queue::Lines;
use super::{Engine, Want};
use crate::error::{Error, ErrorKind, Result};
use crate::mutant::mutant;
use crate::panics::{answered, logged, spanned};
use crate::witness::Event;

/// Contends until the claim is granted, patience ends or the server is away for too long. Dropped before its end, or even before
/// its beginning, it settles the line as well.
pub(super) fn contend(
    engine: Arc<Engine>,
    want: Want,
    patience: Patience,
) -> impl Future<Output = ()> + Send + 'static {
    let contender = Contender { engine, want, is_settled: false };
    async move {
        let outcome = contender.contend(&patience).await;
        contender.settle(outcome);
    }
}

/// The one who contends for a line of this process.
struct Contender {
    engine: Arc<Engine>,
    want: Want,
    is_settled: bool,
}

impl Contender {
    async fn contend(&self, patience: &Patience) -> Result<Option<Charge>> {
        let drawn = |id| Lines::contends_as(&self.engine, &self.want.resource, id);
        pursue(&self.engine, &self.want, patience, drawn).await
    }

    fn settle(mut self, outcome: Result<Option<Charge>>) {
        self.is_settled = true;
        match outcome {
            Ok(Some(charge)) => Lines::granted(charge),
            Ok(None) => Lines::ended(&self.engine, &self.want, None),
            Err(error) => Lines::ended(&self.engine, &self.want, Some(error)),
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
            // Nothing else drops it than the end of the runtime. Closed lines start no contender, which would be dropped in here.
            if !self.engine.closed.is_cancelled() {
                self.engine.end_with_its_runtime();
            }
            Error::closed("lock")
        };
        Lines::ended(&self.engine, &self.want, Some(error.on(&self.want.resource)));
    }
}

/// Asks until a claim is granted, patience ends (`None`) or the server is away for too long. What is not granted in the end
/// leaves nothing behind. `drawn` gets the id of each claim before it is asked for.
///
/// A grant whose lease has run out when it arrives is useless, and keeps others out. So it is released, and after a pause another
/// claim is asked for, which a late release of the first cannot end. A server that answers so slowly for as long as an outage may
/// last, without an answer in time in between, counts as away.
pub(super) async fn pursue(
    engine: &Arc<Engine>,
    want: &Want,
    patience: &Patience,
    drawn: impl Fn(ClaimId),
) -> Result<Option<Charge>> {
    let mut slow = Outage::none();
    loop {
        let claim = engine.claim(want)?;
        drawn(claim.id);
        match pursue_one(engine, want, &claim, patience).await? {
            Pursuit::Granted(charge) => return Ok(Some(charge)),
            Pursuit::Left => return Ok(None),
            Pursuit::Stale { .. } if mutant!("a stale grant is asked for at once") => continue,
            // The store was there while this one stood in line.
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

/// Result of asking for one claim.
enum Pursuit {
    Granted(Charge),
    /// Patience ended; nothing is left behind.
    Left,
    /// What was asked for then was granted, and its lease was over when the answer came.
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
    let mut outage = Outage::none();
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
                Lines::hears(engine, &claim.resource, true);
                // With a date to ask again the answer was given before patience ended, and the place was kept.
                if hint.ask_again_in.is_some() {
                    abandon(engine, claim);
                }
                return Ok(Pursuit::Left);
            }
            Ok(Step::Busy(hint)) => {
                Lines::hears(engine, &claim.resource, true);
                outage = Outage::none();
                pause(hint.ask_again_in.unwrap_or_default(), patience).await;
            }
            Err(failure) => {
                logged!(debug, resource = %claim.resource, %failure, "contending failed");
                Lines::hears(engine, &claim.resource, false);
                let failure = outage.honest(failure);
                let left = outage.goes_on(engine, &failure);
                if patience.is_ended() || left.is_none() {
                    // Even where this attempt had no effect, an earlier one may have left a place.
                    abandon(engine, claim);
                    if patience.is_ended() {
                        return Ok(Pursuit::Left);
                    }
                    return Err(Error::failed("lock", failure).on(&claim.resource));
                }
                pause(left.unwrap_or_default(), patience).await;
            }
        }
        // Patience may have ended during a pause, when the backend could not know: then its place goes, too.
        if patience.is_ended() {
            abandon(engine, claim);
            return Ok(Pursuit::Left);
        }
    }
}

/// Asks exactly once and leaves no place behind.
pub(super) async fn look_once(engine: Arc<Engine>, want: Want) -> Result<Option<Hold>> {
    let claim = engine.claim(&want)?;
    let attempt = Attempt::of(&engine, &claim);
    let outcome = look_for(&engine, &want, &claim).await;
    attempt.over(outcome)
}

async fn look_for(engine: &Arc<Engine>, want: &Want, claim: &Claim) -> Result<Option<Hold>> {
    let patience = Patience::none(engine.clock.clone());
    let mut outage = Outage::none();
    let mut tries = 0;
    loop {
        tries += 1;
        match ask(engine, claim, &patience).await {
            Ok(Step::Granted(grant)) => {
                if let Some(charge) = Charge::take(engine, want, claim, grant)? {
                    return Lines::granted_directly(charge).map(Some);
                }
                if tries == LOOKS {
                    abandon(engine, claim);
                    return Ok(None);
                }
            }
            Ok(Step::Busy(_)) => return Ok(None),
            // The same id is asked again, since the answer to the first may have been yes.
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

/// One question to the server.
pub(super) async fn ask(engine: &Engine, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
    let span = || tracing::debug_span!("leasehold.contend", resource = %claim.resource, share = %claim.share);
    let step = answered(spanned(span, engine.backend.contend(claim, patience))).await.flatten();
    if let Ok(Step::Busy(hint)) = &step {
        engine.telling.tell(|| Event::Blocked { resource: &claim.resource, ahead: hint.ahead });
    }
    step
}

/// Ends a claim that nobody waits for any more.
pub(super) fn abandon(engine: &Arc<Engine>, claim: &Claim) {
    engine.reaper.abandon(claim.clone());
}

/// Makes the error for grants that arrive after their leases are over.
pub(super) fn too_slow(op: &'static str, resource: &Resource) -> Error {
    Error::new(ErrorKind::Unavailable, op, TOO_SLOW).on(resource)
}

/// Sleeps, but not past the end of patience.
async fn pause(length: Duration, patience: &Patience) {
    tokio::select! {
        () = tokio::time::sleep(length) => {}
        () = patience.ended() => {}
    }
}

pub(super) const LOOKS: u32 = 3;
const TOO_SLOW: &str = "the store answers so slowly that the lease has run out when its answer comes; what it granted is released";
