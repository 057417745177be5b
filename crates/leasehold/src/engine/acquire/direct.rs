//! An uncontended acquisition whose caller sends the request and waits for the answer.
//!
//! It costs no task and no channel of the engine. It is tried if nothing waits for the resource in this client, and
//! if the backend can send at once. Otherwise the acquisition continues on the slow path, and so it does if the
//! resource is not free, the connection is not there, or the answer has an unknown effect.
//!
//! Ground rules: only the caller needs the answer. A waiter that comes meanwhile has a contender of its own, and
//! closing releases what is in flight. A caller that is not polled keeps what it was granted until the lease ends,
//! and no longer. A caller that is dropped leaves its claim to the reaper.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, DirectAnswer, DirectReply, Grant};

use crate::engine::acquire::attempt::Attempt;
use crate::engine::acquire::contender::abandon;
use crate::engine::acquire::span::contend_span;
use crate::engine::deadline::Deadline;
use crate::engine::hold::Hold;
use crate::engine::hold::pending_grant::PendingGrant;
use crate::engine::{Engine, Want};
use crate::error::{Error, Result};
use crate::events::Event;
use crate::panics::{ContainedSpan, called_in, can_enter_a_runtime, contained, contained_request};

/// The outcome of a fast path.
pub(crate) enum FastOutcome {
    Granted(Hold),
    /// The resource is not free, with so many claims ahead. Nothing is left behind.
    Busy(Option<u32>),
    /// It is not decided, and another path is tried. Nothing is left behind.
    Declined,
    /// The same, except that the store may have granted this claim.
    Unknown(Claim),
}

impl Engine {
    /// Acquires the lock by one request, if that can be sent at once.
    ///
    /// Cancel safe: a claim whose answer nobody gets is released.
    pub(crate) async fn acquire_directly(
        self: &Arc<Self>,
        want: &Want,
        deadline: &Deadline,
    ) -> Result<FastOutcome> {
        let is_try = deadline.is_zero();
        if !contained(|| self.backend.direct_requests().is_some()).unwrap_or(false) {
            return Ok(FastOutcome::Declined);
        }
        // As with a store that decides at once: an answer may be there when it is asked for.
        tokio::task::coop::consume_budget().await;
        if !self.admits_directly(want, is_try) {
            return Ok(FastOutcome::Declined);
        }
        let Some((request, answer, span)) = self.send_directly(want)? else {
            return Ok(FastOutcome::Declined);
        };
        let mut reply = pin!(span.around(self.reply_to(answer)));
        let reply = tokio::select! {
            biased;
            reply = &mut reply => reply,
            () = self.closed.cancelled() => return Err(Error::closed("lock").on(&want.resource)),
            () = deadline.passed(), if !is_try => {
                // Boxed, so that the common future stays small.
                return Box::pin(self.answer_at_deadline(want, request, reply, deadline.waited())).await;
            }
        };
        let outcome = self.settle_direct(want, request, reply)?;
        let FastOutcome::Busy(ahead) = outcome else { return Ok(outcome) };
        if !is_try {
            // A caller that waits asks again for a place in the queue.
            return Ok(FastOutcome::Declined);
        }
        self.events.emit(|| Event::Queued { resource: &want.resource, ahead });
        Ok(outcome)
    }

    /// Waits for the answer to a request that is under way at the end of a wait: it is the last attempt.
    async fn answer_at_deadline(
        self: &Arc<Self>,
        want: &Want,
        request: DirectRequest<'_>,
        reply: impl Future<Output = DirectReply>,
        waited: Duration,
    ) -> Result<FastOutcome> {
        let last = async {
            match self.settle_direct(want, request, reply.await)? {
                FastOutcome::Granted(hold) => Ok(Some(hold)),
                FastOutcome::Busy(_) => Ok(None),
                FastOutcome::Declined => self.acquire_now(want.clone(), None).await,
                FastOutcome::Unknown(claim) => self.acquire_now(want.clone(), Some(claim)).await,
            }
        };
        let hold = self.with_answer_limit(waited, last).await.map_err(|error| error.on(&want.resource))?;
        hold.map(FastOutcome::Granted).ok_or_else(|| Error::timeout(waited, &want.resource))
    }

    /// Takes the claim out of those in flight, and begins its use if it was granted.
    fn settle_direct(
        self: &Arc<Self>,
        want: &Want,
        request: DirectRequest<'_>,
        reply: DirectReply,
    ) -> Result<FastOutcome> {
        let closed = || Error::closed("lock").on(&want.resource);
        // The claim belongs to the parent, and a thread of it may hold the lock of those in flight.
        if self.is_forked() {
            return Err(closed());
        }
        // Before the claim is taken out: closing finds it in flight, or waits for the end of this.
        let _under_way = self.tracked.token();
        let claim = request.settle().ok_or_else(closed)?;
        Ok(match reply {
            DirectReply::Granted(grant) => return self.take_fast_grant(want, claim, grant),
            DirectReply::Busy { ahead } => {
                self.lately_busy.record(self.hash_of(&want.resource), self.clock.now());
                FastOutcome::Busy(ahead)
            }
            DirectReply::Declined => FastOutcome::Declined,
            DirectReply::Unknown => FastOutcome::Unknown(claim),
        })
    }

    fn admits_directly(&self, want: &Want, is_try: bool) -> bool {
        // A try leaves no place either way.
        let is_free = is_try || !self.lately_busy.includes(self.hash_of(&want.resource), self.clock.now());
        is_free && self.admits_fast_path(want)
    }

    /// Sends the request; `None` if the backend cannot do so at once.
    fn send_directly<'a>(
        self: &'a Arc<Self>,
        want: &Want,
    ) -> Result<Option<(DirectRequest<'a>, DirectAnswer, ContainedSpan)>> {
        let closed = || Error::closed("lock").on(&want.resource);
        let claim = self.claim(want)?;
        // Closing waits for the end of this.
        let _under_way = self.tracked.token();
        self.check_open("lock").map_err(|_| closed())?;
        self.in_flight.enter(claim.clone());
        let request = DirectRequest { engine: self, id: claim.id };
        let asked_at = self.clock.now();
        let (sent, span) = called_in(
            || contend_span(&claim),
            &self.runtime,
            || self.backend.direct_requests().and_then(|requests| requests.ask_directly(&claim, asked_at)),
        );
        if self.closed.is_cancelled() {
            // Closing may have released the claim before it was requested.
            request.settle();
            abandon(self, &claim);
            return Err(closed());
        }
        match sent {
            Some(Some(answer)) => Ok(Some((request, answer, span))),
            Some(None) => {
                request.settle();
                Ok(None)
            }
            // It panicked, perhaps after it had sent.
            None => Ok(Some((request, Box::pin(async { DirectReply::Unknown }), span))),
        }
    }

    /// Waits for the answer, with the client's runtime entered at each poll.
    async fn reply_to(&self, answer: DirectAnswer) -> DirectReply {
        let mut answer = pin!(contained_request(answer));
        poll_fn(|context| {
            // In a thread that is ending that would panic.
            let Some(_entered) = can_enter_a_runtime().then(|| self.runtime.enter()) else {
                return Poll::Ready(DirectReply::Unknown);
            };
            answer.as_mut().poll(context).map(|reply| reply.unwrap_or(DirectReply::Unknown))
        })
        .await
    }

    /// Begins the use of what was granted. Nothing is awaited in here, so a caller that is dropped has asked for
    /// nothing more, or drops a hold.
    pub(super) fn take_fast_grant(
        self: &Arc<Self>,
        want: &Want,
        claim: Claim,
        grant: Grant,
    ) -> Result<FastOutcome> {
        let attempt = Attempt::of(self, &claim);
        let taken = PendingGrant::take(self, want, &claim, grant);
        match attempt.over(taken)? {
            Some(pending) => Engine::grant_outside_queue(pending).map(FastOutcome::Granted),
            // It came too late. The store may keep it, and a try must not be refused by it.
            None => Ok(FastOutcome::Unknown(claim)),
        }
    }

    /// Releases the claims of requests that are in flight while the client closes.
    pub(crate) fn end_direct_requests(self: &Arc<Self>) {
        if self.is_forked() {
            return;
        }
        for claim in self.in_flight.take_all() {
            abandon(self, &claim);
        }
    }
}

/// The guard of a claim in flight: a claim that is still there when it is dropped is left to the reaper.
struct DirectRequest<'a> {
    engine: &'a Arc<Engine>,
    id: ClaimId,
}

impl DirectRequest<'_> {
    /// Takes the claim out; `None` if closing has done so, and has released it.
    fn settle(self) -> Option<Claim> {
        self.engine.in_flight.take(self.id)
    }
}

impl Drop for DirectRequest<'_> {
    fn drop(&mut self) {
        // In a fork another thread of the parent may hold the lock for ever.
        if self.engine.is_forked() {
            return;
        }
        if let Some(claim) = self.engine.in_flight.take(self.id) {
            abandon(self.engine, &claim);
        }
    }
}
