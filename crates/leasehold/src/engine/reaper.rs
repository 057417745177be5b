//! Ends claims on the server: given back, dropped, or given up while their outcome was not known.
//!
//! Ground rules: a release is detached from whoever asked for it, may be repeated, and is tried for as long
//! as the lease could last. It is reported as what it was: freed, gone, or unknown. Each part of the store has its own window of
//! calls in flight, and what waits to be tried again is in none: a part that is away delays nothing elsewhere. However a release
//! ends, its local line goes on. In a fork nothing is sent: what is held is the parent's.

use std::sync::{Arc, Weak};

use leasehold_core::{Backend, Claim, Clock};
use leasehold_machine::Process;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::Engine;
use super::errand::{Carried, Errand};
use super::held::{Held, State};
use super::job::{Job, Tally, contained, end};
use super::queue::Lines;
use super::releasing::{Order, Worker};

pub(crate) use super::job::Released;

/// The engine's end of the reaper.
#[derive(Debug)]
pub(crate) struct Reaper {
    jobs: mpsc::UnboundedSender<Order>,
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    tally: Arc<Tally>,
    process: Process,
}

impl Reaper {
    pub(super) fn start(
        runtime: &Handle,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        engine: Weak<Engine>,
    ) -> Reaper {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let worker = Worker::new(inbox, backend.clone(), clock.clone(), engine);
        drop(runtime.spawn(worker.run()));
        Reaper { jobs, backend, clock, tally: Arc::default(), process: Process::this() }
    }

    /// Ends a claim that was held. The local line goes on when it is done.
    ///
    /// Where somebody waits for that he may have to carry it out: while the client has no other release under way, which it
    /// could go together with, and nobody of this process depends on it.
    pub(super) fn release(
        &self,
        engine: &Arc<Engine>,
        held: Arc<Held>,
        state: State,
        done: Option<oneshot::Sender<Released>>,
    ) -> Option<Carried> {
        let was_valid = !matches!(state, State::Lost(_));
        let waits = done.is_some();
        let (job, is_only) = self.job(held.claim.clone(), was_valid, Some(engine.clone()), done);
        if held.stays_quiet() || self.is_forked() {
            job.finish(Released::Gone);
            return None;
        }
        if is_only && waits {
            return self.carry(engine, job);
        }
        self.send(job);
        None
    }

    /// Ends a claim that was never handed to anybody.
    pub(super) fn abandon(&self, claim: Claim) {
        let (job, _) = self.job(claim, false, None, None);
        if self.is_forked() {
            return job.finish(Released::Gone);
        }
        self.send(job);
    }

    /// A job, and whether nothing else is under way.
    fn job(
        &self,
        claim: Claim,
        was_valid: bool,
        engine: Option<Arc<Engine>>,
        done: Option<oneshot::Sender<Released>>,
    ) -> (Job, bool) {
        let until = self.clock.now().after(claim.ttl);
        Job::new(claim, until, was_valid, engine, done, self.tally.clone())
    }

    fn send(&self, job: Job) {
        // Undelivered, the job is dropped here and ends as unknown.
        drop(self.jobs.send(Order::Release(job)));
    }

    fn carry(&self, engine: &Arc<Engine>, job: Job) -> Option<Carried> {
        let (resource, id) = (job.claim.resource.clone(), job.claim.id);
        let (backend, clock) = (self.backend.clone(), self.clock.clone());
        let (jobs, rest) = (self.jobs.clone(), self.jobs.clone());
        let ending = async move {
            // What is to be tried again is the worker's to see to.
            for job in end(vec![job], &*backend, &*clock).await {
                drop(rest.send(Order::Release(job)));
            }
            true
        };
        let go_on = move |ending| drop(jobs.send(Order::GoOn(ending)));
        let errand = Errand::new(contained(ending), engine.runtime.clone(), go_on);
        if !Lines::carries(engine, &resource, id, &errand) {
            errand.send_off();
            return None;
        }
        Some(Carried(errand))
    }

    fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// From now on each release is asked for once more at least, so that a store that has come back gets to answer.
    pub(super) fn close(&self) {
        self.tally.close(self.clock.now());
    }

    /// Waits until nothing is under way; whether all that ended meanwhile was answered.
    pub(super) async fn flush(&self) -> bool {
        self.tally.settled().await
    }
}
