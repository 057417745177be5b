//! Background releases: ends claims on the server that were released or dropped, or abandoned while their
//! outcome was unknown.
//!
//! Ground rules: a release is detached from its caller, may be repeated, and is retried for as long as
//! the lease could last. It is reported as freed, gone or unknown. Each part of the store has its own
//! window of calls in flight, and a release that waits for a retry is in none of them: an unreachable
//! part delays no other. However a release ends, its local queue continues. A fork sends nothing: the
//! claims belong to the parent.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};

use leasehold_core::{
    Backend, Claim, ClaimId, Clock, DirectRelease, Effect, Failure, Moment, Release, Resource,
};
use leasehold_machine::Process;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::engine::Engine;
use crate::engine::lease::{Lease, State, UseEnd};
use crate::engine::release::inline::{InlineRelease, InlineReleaseFuture, ReleaseFuture};
use crate::engine::release::job::{
    Job, ReleaseCounters, Released, await_direct_release, request_releases, without_panics,
};
use crate::engine::release::reaper_task::{Order, ReaperTask};
use crate::engine::release::stall_watch::StallWatch;
use crate::panics::{ContainedSpan, called_in, can_enter_a_runtime, contained};

impl Engine {
    /// Releases a claim for which no caller waits.
    pub(crate) fn release_unattended(self: &Arc<Self>, lease: Arc<Lease>, ended: UseEnd) {
        drop(self.reaper.release(self, lease, ended, Waits::No));
    }
}

/// The two kinds of callers of a release: one waits for its outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waits {
    Yes,
    No,
}

/// The state of a release when its caller has begun it.
#[must_use = "it may be the caller who does the work"]
pub(crate) enum ReleaseProgress {
    Over(Released),
    /// The reaper continues it.
    Pending(oneshot::Receiver<Released>),
    /// The caller carries it out.
    Inline(InlineReleaseFuture, oneshot::Receiver<Released>),
    /// The reaper continues it, and nothing waits for its outcome.
    Unwatched,
}

/// The result of a release that a store may decide at once.
enum AtOnceRelease {
    Over(Released),
    /// The store may get another request.
    Failed(Job),
    /// The store was not asked, or left it to the slow path.
    Declined(Job),
}

/// The engine's handle to the reaper.
#[derive(Debug)]
pub(crate) struct Reaper {
    jobs: mpsc::UnboundedSender<Order>,
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    counters: Arc<ReleaseCounters>,
    stall_watch: Arc<StallWatch>,
    process: Process,
}

impl Reaper {
    pub(crate) fn start(
        runtime: &Handle,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        engine: Weak<Engine>,
    ) -> Reaper {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let task = ReaperTask::new(inbox, backend.clone(), clock.clone(), engine);
        drop(runtime.spawn(task.run()));
        Reaper {
            jobs,
            backend,
            clock,
            counters: Arc::default(),
            stall_watch: Arc::default(),
            process: Process::this(),
        }
    }

    /// Releases a claim that was held. The local queue continues when that is done.
    ///
    /// A caller that waits may have to carry out the release itself. That is so if the backend sends it at once, or
    /// while the client has no other release under way that it could be batched with. Nothing in this process may
    /// depend on it.
    pub(crate) fn release(
        &self,
        engine: &Arc<Engine>,
        lease: Arc<Lease>,
        ended: UseEnd,
        waits: Waits,
    ) -> ReleaseProgress {
        if self.is_forked() {
            // Nothing is counted: another thread may have had the counters locked when the process was forked.
            return ReleaseProgress::Over(Released::Gone);
        }
        let was_valid = !matches!(ended.state, State::Lost(_));
        let valid_until = was_valid.then(|| lease.valid_until());
        let (job, is_only) = self.job(lease.claim.clone(), ended.at, valid_until, Some(engine.clone()));
        // The server keeps a claim with a lock delay on purpose.
        if lease.keeps_lock_delay() {
            job.finish(Released::Gone);
            return ReleaseProgress::Over(Released::Gone);
        }
        let (mut job, is_only) = match self.release_at_once(engine, job, ended.at) {
            AtOnceRelease::Over(released) => return ReleaseProgress::Over(released),
            AtOnceRelease::Failed(job) => (job, false),
            AtOnceRelease::Declined(job) => (job, is_only),
        };
        let Waits::Yes = waits else {
            self.send(job);
            return ReleaseProgress::Unwatched;
        };
        let outcome = job.outcome();
        let (resource, id) = (job.claim.resource.clone(), job.claim.id);
        let sent = self.send_directly(engine, &mut job);
        if sent.is_none() && !is_only {
            self.send(job);
            return ReleaseProgress::Pending(outcome);
        }
        let is_sent = sent.is_some();
        let (backend, clock) = (self.backend.clone(), self.clock.clone());
        let release = match sent {
            Some((answer, span)) => {
                let asked_at = ended.at;
                let settling = async move { await_direct_release(job, answer, asked_at, &*clock).await };
                self.inline(span.around(settling))
            }
            None => self.inline(async move { request_releases(vec![job], &*backend, &*clock).await.pop() }),
        };
        let Some(inline) = self.release_inline(engine, &resource, id, release) else {
            return ReleaseProgress::Pending(outcome);
        };
        // A direct release has been sent and keeps nothing back. Another one may stall, and keep what the client needs.
        if !is_sent && self.stall_watch.note(&inline.0) {
            drop(self.jobs.send(Order::WatchStalls(self.stall_watch.clone())));
        }
        ReleaseProgress::Inline(inline, outcome)
    }

    /// Releases a claim that never had a user.
    pub(crate) fn abandon(&self, claim: Claim) {
        if self.is_forked() {
            return;
        }
        let (job, _) = self.job(claim, self.clock.now(), None, None);
        self.send(job);
    }

    /// Creates a job at `now`. Also returns whether nothing else is under way.
    fn job(
        &self,
        claim: Claim,
        now: Moment,
        valid_until: Option<Moment>,
        engine: Option<Arc<Engine>>,
    ) -> (Job, bool) {
        let until = now.after(claim.ttl);
        Job::new(claim, until, valid_until, engine, self.counters.clone())
    }

    fn send(&self, job: Job) {
        // If it cannot be delivered, the job is dropped here and ends as unknown.
        drop(self.jobs.send(Order::Release(job)));
    }

    /// Lets a store that decides at once end the claim, on this thread.
    fn release_at_once(&self, engine: &Engine, job: Job, asked_at: Moment) -> AtOnceRelease {
        // A thread that is ending may drop a guard.
        if contained(|| self.backend.at_once().is_none()).unwrap_or(true) || !can_enter_a_runtime() {
            return AtOnceRelease::Declined(job);
        }
        let span = || tracing::debug_span!("leasehold.release", claims = 1);
        let release = || self.backend.at_once().and_then(|store| store.release_now(&job.claim));
        let (answer, span) = called_in(span, &engine.runtime, release);
        drop(span);
        let release = match answer {
            Some(Some(release)) => release,
            Some(None) => return AtOnceRelease::Declined(job),
            None => Release::Unknown(Failure::unanswered("the backend panicked")),
        };
        // Only a failure depends on the time.
        let now = if let Release::Unknown(_) = release { self.clock.now() } else { asked_at };
        match job.answered(release, asked_at, now) {
            ControlFlow::Break(released) => AtOnceRelease::Over(released),
            ControlFlow::Continue(job) => AtOnceRelease::Failed(job),
        }
    }

    /// Sends the release, if the backend can do so at once. Returns its answer, and the span for both.
    fn send_directly(&self, engine: &Engine, job: &mut Job) -> Option<(DirectRelease, ContainedSpan)> {
        contained(|| self.backend.direct_requests().is_some())
            .filter(|sends| *sends && can_enter_a_runtime())?;
        let span = || tracing::debug_span!("leasehold.release", claims = 1);
        let (sent, span) = called_in(span, &engine.runtime, || {
            self.backend.direct_requests().and_then(|requests| requests.release_directly(&job.claim))
        });
        if sent.is_none() {
            // It panicked, perhaps after it had sent.
            job.count_try(Effect::Unknown);
        }
        sent.flatten().map(|answer| (answer, span))
    }

    /// Creates the release of one claim. The reaper makes the retries.
    fn inline(&self, attempt: impl Future<Output = Option<Job>> + Send + 'static) -> ReleaseFuture {
        let jobs = self.jobs.clone();
        without_panics(async move {
            if let Some(job) = attempt.await {
                drop(jobs.send(Order::Release(job)));
            }
            true
        })
    }

    fn release_inline(
        &self,
        engine: &Arc<Engine>,
        resource: &Resource,
        id: ClaimId,
        release: ReleaseFuture,
    ) -> Option<InlineReleaseFuture> {
        let jobs = self.jobs.clone();
        let take_over = move |release| drop(jobs.send(Order::TakeOver(release)));
        // The queue keeps a weak reference to it, with which a later waiter detaches it. If something
        // depends on it already, the reaper carries it out from the start.
        let inline = InlineRelease::new(release, engine.runtime.clone(), take_over);
        if !engine.may_release_inline(resource, id, &inline) {
            inline.detach();
            return None;
        }
        Some(InlineReleaseFuture(inline))
    }

    fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// Makes each release be tried at least once more from now on, so that a store that has come back
    /// can answer. Returns how many releases have ended without an answer before.
    pub(crate) fn close(&self) -> usize {
        self.counters.close(self.clock.now());
        self.counters.unanswered()
    }

    /// Waits until nothing is under way. Returns `true` if everything that ended since [`Reaper::close`] returned
    /// `before` was answered.
    pub(crate) async fn flush(&self, before: usize) -> bool {
        self.counters.settled(before).await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::clock::TokioClock;
    use crate::engine::Tuning;
    use crate::error::ErrorKind;
    use crate::events::EventSink;
    use crate::local::MemoryBackend;

    /// Nothing would be released any more.
    #[tokio::test(start_paused = true)]
    async fn client_whose_releases_cannot_continue_is_closed() {
        let clock = Arc::new(TokioClock::new());
        let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
        let engine = Engine::start(store, clock, Tuning::default(), EventSink::default()).unwrap();
        // Wherever a panic may come from, it is contained there, but for this one.
        drop(engine.reaper.jobs.send(Order::TakeOver(async { panic!("a release panics") }.boxed())));
        tokio::task::yield_now().await;
        assert_eq!(engine.check_open("lock").unwrap_err().kind(), ErrorKind::Closed);
    }
}
