//! A release job: one claim to be released on the server, from the order to the answer of its caller.
//!
//! [`request_releases`] is one request, for a batch of jobs. It settles the jobs that are answered, and returns
//! those that are to be tried again, which `reaper_task.rs` does. A job is tried until its lease is over. The calls
//! that use `retry.rs` of the engine differ: they end with the outage that their caller tolerates.
//!
//! Ground rules: however the job ends, its caller gets an answer, and the local queue of the
//! resource continues.

use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{Backend, Claim, Clock, DirectRelease, Effect, Failure, Moment, Release, doubled};
use tokio::sync::{Notify, oneshot};
use tracing::Span;

use crate::engine::Engine;
use crate::engine::release::inline::ReleaseFuture;
use crate::engine::retry::jittered;
use crate::mutant::mutant;
use crate::panics::{contained_request, spanned};

/// The outcome of a release.
#[derive(Clone, Debug)]
pub(crate) enum Released {
    /// The use ended while the claim was valid: the store has freed it, or this process passes it on or lets it linger.
    Freed,
    /// The claim was valid by the clock and is free now: an attempt without an answer released it, or its lease ended
    /// before an attempt arrived, or it had been lost before. The cases cannot be distinguished.
    PresumablyFreed,
    /// The claim was no longer held: it had been lost before.
    Gone,
    /// The server did not answer; the claim ends with its ttl at the latest.
    Unknown(Failure),
}

impl Released {
    pub(crate) fn unknown(text: &str) -> Released {
        Released::Unknown(Failure::unanswered(text))
    }
}

/// Counters of releases that are under way and of those that ended without an answer.
#[derive(Debug, Default)]
pub(crate) struct ReleaseCounters {
    under_way: AtomicUsize,
    unanswered: AtomicUsize,
    /// Notified each time the last release under way ends.
    idle: Notify,
    /// The time at which the client was closed.
    closed_at: OnceLock<Moment>,
}

impl ReleaseCounters {
    /// Records that the client is being closed: from `moment` on, a caller waits for the end of all that
    /// is under way.
    pub(crate) fn close(&self, moment: Moment) {
        // The first close counts.
        let _ = self.closed_at.set(moment);
    }

    /// Returns `true` if a request that was sent at this time and not answered is to be sent once more,
    /// although the lease is over: a client that closes waits for the answers of a store that may have
    /// come back meanwhile.
    fn retries_after_close(&self, asked_at: Moment) -> bool {
        let anew = |closed_at: &Moment| asked_at <= *closed_at;
        self.closed_at.get().is_some_and(anew)
    }

    /// Returns how many releases have ended without an answer.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::SeqCst)
    }

    /// Waits until nothing is under way. Returns `true` if everything that ended since there were `before` without an
    /// answer was answered.
    pub(crate) async fn settled(&self, before: usize) -> bool {
        loop {
            // It is woken by each end from here on.
            let idle = self.idle.notified();
            if self.under_way.load(Ordering::SeqCst) == 0 {
                return self.unanswered() == before;
            }
            idle.await;
        }
    }
}

/// A guard that counts one release as under way until it is dropped.
struct InFlightGuard(Arc<ReleaseCounters>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// One claim to be released. The queue is bounded by the number of claims: each is in it at most once.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) claim: Claim,
    /// The time at which the lease is over in any case.
    until: Moment,
    /// The end of the lease that its holder had, if the claim was valid by the clock when it was released.
    valid_until: Option<Moment>,
    /// `true` if nothing else was under way when it was created.
    is_only: bool,
    /// The number of attempts that failed.
    tries: u32,
    /// `true` if one of them may have ended the claim.
    may_be_done: bool,
    engine: Option<Arc<Engine>>,
    done: Option<oneshot::Sender<Released>>,
    counters: Arc<ReleaseCounters>,
    has_ended: bool,
}

impl Job {
    /// Creates the job for a claim that ends at `until` at the latest.
    pub(crate) fn new(
        claim: Claim,
        until: Moment,
        valid_until: Option<Moment>,
        engine: Option<Arc<Engine>>,
        counters: Arc<ReleaseCounters>,
    ) -> Job {
        let is_only = counters.under_way.fetch_add(1, Ordering::SeqCst) == 0;
        Job {
            claim,
            until,
            valid_until,
            is_only,
            tries: 0,
            may_be_done: false,
            engine,
            done: None,
            counters,
            has_ended: false,
        }
    }

    /// Returns `true` if it is the first attempt at the only release under way, so that there is nothing to batch it
    /// with.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_only && !self.was_tried()
    }

    /// Returns a receiver of the outcome.
    pub(crate) fn outcome(&mut self) -> oneshot::Receiver<Released> {
        let (done, outcome) = oneshot::channel();
        self.done = Some(done);
        outcome
    }

    /// Returns the pause before the next attempt.
    pub(crate) fn pause(&self) -> Duration {
        jittered(doubled(RETRY_FIRST, RETRY_LAST, self.tries.saturating_sub(1)))
    }

    /// Counts an attempt that failed.
    pub(crate) fn count_try(&mut self, effect: Effect) {
        self.tries += 1;
        self.may_be_done |= effect == Effect::Unknown;
    }

    /// Returns `true` if an attempt was made before.
    pub(crate) fn was_tried(&self) -> bool {
        self.tries > 0
    }

    pub(crate) fn finish(mut self, released: Released) {
        self.settle(released);
    }

    fn settle(&mut self, released: Released) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        // Dropped last, on every path.
        let _in_flight = InFlightGuard(self.counters.clone());
        if matches!(released, Released::Unknown(_)) {
            self.counters.unanswered.fetch_add(1, Ordering::SeqCst);
        }
        // The queue comes first: a caller that tries again at once must not find the claim in its way.
        if let Some(engine) = self.engine.take() {
            engine.forget_claim(&self.claim.resource, self.claim.id);
        }
        if let Some(done) = self.done.take() {
            drop(done.send(released));
        }
    }

    /// Ends with the server's answer to a request of `asked_at`, and returns the outcome. Continues with the job if it
    /// is to be tried again.
    pub(crate) fn answered(
        mut self,
        release: Release,
        asked_at: Moment,
        now: Moment,
    ) -> ControlFlow<Released, Job> {
        if let Release::Unknown(failure) = &release
            && failure.is_transient()
            && (now < self.until || self.counters.retries_after_close(asked_at))
        {
            self.count_try(failure.effect);
            return ControlFlow::Continue(self);
        }
        let released = self.outcome_of(release, now);
        self.finish(released.clone());
        ControlFlow::Break(released)
    }

    /// Translates the server's answer into the outcome for the caller.
    fn outcome_of(&self, release: Release, now: Moment) -> Released {
        match (release, self.valid_until) {
            (Release::Unknown(failure), _) => Released::Unknown(failure),
            // The server still had the claim after its local validity was over. Its holder had lost it
            // all the same.
            (_, None) => Released::Gone,
            (Release::Freed, Some(_)) => Released::Freed,
            // An earlier attempt without an answer released it, or else it was lost in the same moment;
            // the two cases cannot be distinguished. Or its lease ended before an attempt arrived.
            (Release::Gone, Some(end)) if self.may_be_done || now >= end => Released::PresumablyFreed,
            (Release::Gone, Some(_)) => Released::Gone,
        }
    }
}

impl Drop for Job {
    /// Settles a job that is dropped without an outcome, so that its caller gets an answer and the local
    /// queue continues.
    fn drop(&mut self) {
        // Mostly it has, and needs no text.
        if self.has_ended || mutant!("a release ends in silence") {
            return;
        }
        self.settle(Released::unknown("the runtime ended before the release was confirmed"));
    }
}

/// Creates the span of a request to release so many claims.
pub(crate) fn release_span(claims: usize) -> Span {
    tracing::debug_span!("leasehold.release", claims = claims)
}

/// Wraps work so that a panic in it only ends the work. Jobs that the panic drops settle themselves.
pub(crate) fn without_panics(work: impl Future<Output = bool> + Send + 'static) -> ReleaseFuture {
    AssertUnwindSafe(work).catch_unwind().map(|done| done.unwrap_or(false)).boxed()
}

/// Ends a job with the answer to its release, which was sent at this time. Returns the job if it is to be tried again.
pub(crate) async fn await_direct_release(
    job: Job,
    answer: DirectRelease,
    asked_at: Moment,
    clock: &dyn Clock,
) -> Option<Job> {
    match contained_request(answer).await.unwrap_or_else(Release::Unknown) {
        // It counts as not sent. The slow path may ask another server, which tells whether the claim was lost.
        Release::Unknown(failure) if failure.effect == Effect::None => Some(job),
        release => job.answered(release, asked_at, clock.now()).continue_value(),
    }
}

/// Asks the server once to release these claims. Returns those to be tried again.
pub(crate) async fn request_releases(batch: Vec<Job>, backend: &dyn Backend, clock: &dyn Clock) -> Vec<Job> {
    let claims: Vec<_> = batch.iter().map(|job| &job.claim).collect();
    let asked =
        contained_request(async { spanned(|| release_span(claims.len()), backend.release(&claims)).await });
    let asked_at = clock.now();
    let (mut releases, failure) = match asked.await {
        Ok(releases) => {
            (releases, Failure::unanswered("the backend answered fewer releases than were requested"))
        }
        Err(failure) => (Vec::new(), failure),
    };
    releases.resize(batch.len(), Release::Unknown(failure));
    let now = clock.now();
    let mut again = Vec::new();
    for (job, release) in batch.into_iter().zip(releases) {
        again.extend(job.answered(release, asked_at, now).continue_value());
    }
    again
}

const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LAST: Duration = Duration::from_secs(1);
