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
use crate::engine::release::inline::{InlineRelease, InlineReleaseFuture};
use crate::engine::release::job::{
    Job, ReleaseCounters, Released, await_direct_release, release_span, request_releases, without_panics,
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
        // In this order: nothing in a fork; nothing under a lock delay; at once; for a caller that waits, directly, or
        // inline if no other release is under way; else by the reaper.
        if self.is_forked() {
            // Nothing is counted: another thread may have had the counters locked when the process was forked.
            return ReleaseProgress::Over(Released::Gone);
        }
        let was_valid = !matches!(ended.state, State::Lost(_));
        let valid_until = was_valid.then(|| lease.valid_until());
        let job = self.job(lease.claim.clone(), ended.at, valid_until, Some(engine.clone()));
        // The server keeps a claim with a lock delay on purpose.
        if lease.keeps_lock_delay() {
            job.finish(Released::Gone);
            return ReleaseProgress::Over(Released::Gone);
        }
        let job = match self.release_at_once(engine, job, ended.at) {
            ControlFlow::Break(released) => return ReleaseProgress::Over(released),
            ControlFlow::Continue(job) => job,
        };
        match waits {
            Waits::Yes => self.release_awaited(engine, job, ended.at),
            Waits::No => {
                self.send(job);
                ReleaseProgress::Unwatched
            }
        }
    }

    /// Continues with a release whose caller waits for it, and may carry it out.
    fn release_awaited(&self, engine: &Arc<Engine>, mut job: Job, asked_at: Moment) -> ReleaseProgress {
        let outcome = job.outcome();
        let (resource, id, is_alone) = (job.claim.resource.clone(), job.claim.id, job.is_alone());
        let (backend, clock) = (self.backend.clone(), self.clock.clone());
        let inline = match self.send_directly(engine, &mut job) {
            // It has been sent, and keeps nothing back.
            Some((answer, span)) => {
                let settling = async move { await_direct_release(job, answer, asked_at, &*clock).await };
                self.release_inline(engine, &resource, id, span.around(settling))
            }
            None if is_alone => {
                let attempt = async move { request_releases(vec![job], &*backend, &*clock).await.pop() };
                let inline = self.release_inline(engine, &resource, id, attempt);
                // It may stall, and keep what the client needs.
                if let Some(inline) = &inline
                    && self.stall_watch.note(&inline.0)
                {
                    drop(self.jobs.send(Order::WatchStalls(self.stall_watch.clone())));
                }
                inline
            }
            None => {
                self.send(job);
                None
            }
        };
        match inline {
            Some(inline) => ReleaseProgress::Inline(inline, outcome),
            None => ReleaseProgress::Pending(outcome),
        }
    }

    /// Releases a claim that never had a user.
    pub(crate) fn abandon(&self, claim: Claim) {
        if self.is_forked() {
            return;
        }
        self.send(self.job(claim, self.clock.now(), None, None));
    }

    /// Creates a job at `now`.
    fn job(
        &self,
        claim: Claim,
        now: Moment,
        valid_until: Option<Moment>,
        engine: Option<Arc<Engine>>,
    ) -> Job {
        let until = now.after(claim.ttl);
        Job::new(claim, until, valid_until, engine, self.counters.clone())
    }

    fn send(&self, job: Job) {
        // If it cannot be delivered, the job is dropped here and ends as unknown.
        drop(self.jobs.send(Order::Release(job)));
    }

    /// Lets a store that decides at once end the claim, on this thread. Continues with the job if the store was not
    /// asked, declined, or may get another request after a failure.
    fn release_at_once(&self, engine: &Engine, job: Job, asked_at: Moment) -> ControlFlow<Released, Job> {
        // A thread that is ending may drop a guard.
        if contained(|| self.backend.at_once().is_none()).unwrap_or(true) || !can_enter_a_runtime() {
            return ControlFlow::Continue(job);
        }
        let release = || self.backend.at_once().and_then(|store| store.release_now(&job.claim));
        let (answer, span) = called_in(|| release_span(1), &engine.runtime, release);
        drop(span);
        let release = match answer {
            Some(Some(release)) => release,
            Some(None) => return ControlFlow::Continue(job),
            None => Release::Unknown(Failure::unanswered("the backend panicked")),
        };
        // Only a failure depends on the time.
        let now = if let Release::Unknown(_) = release { self.clock.now() } else { asked_at };
        job.answered(release, asked_at, now)
    }

    /// Sends the release, if the backend can do so at once. Returns its answer, and the span for both.
    fn send_directly(&self, engine: &Engine, job: &mut Job) -> Option<(DirectRelease, ContainedSpan)> {
        contained(|| self.backend.direct_requests().is_some())
            .filter(|sends| *sends && can_enter_a_runtime())?;
        let (sent, span) = called_in(
            || release_span(1),
            &engine.runtime,
            || self.backend.direct_requests().and_then(|requests| requests.release_directly(&job.claim)),
        );
        if sent.is_none() {
            // It panicked, perhaps after it had sent.
            job.count_try(Effect::Unknown);
        }
        sent.flatten().map(|answer| (answer, span))
    }

    /// Lets the caller make one attempt of a release, unless something depends on it. The reaper makes the retries.
    fn release_inline(
        &self,
        engine: &Arc<Engine>,
        resource: &Resource,
        id: ClaimId,
        attempt: impl Future<Output = Option<Job>> + Send + 'static,
    ) -> Option<InlineReleaseFuture> {
        let jobs = self.jobs.clone();
        let release = without_panics(async move {
            if let Some(job) = attempt.await {
                drop(jobs.send(Order::Release(job)));
            }
            true
        });
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
