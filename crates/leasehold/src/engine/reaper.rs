//! Ends claims on the server: given back, dropped, or given up while their outcome was not known.
//!
//! Ground rules: a release is detached from whoever asked for it, may be repeated, and is tried for as long
//! as the lease could last. It is reported as what it was: freed, gone, or unknown.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use leasehold_core::{Backend, Claim, Clock, Failure, Moment, Release};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

use super::Engine;
use super::errand::{Carried, Ending, Errand};
use super::held::{Held, State};
use super::outage::jittered;
use super::queue::Lines;

/// What became of a release.
#[derive(Clone, Debug)]
pub(crate) enum Released {
    /// It was held, and is free now.
    Freed,
    /// It was held no longer: it had been lost before.
    Gone,
    /// The server did not answer; the claim ends with its ttl at the latest.
    Unknown(Failure),
}

impl Released {
    pub(super) fn unknown(text: &str) -> Released {
        Released::Unknown(Failure::unanswered(text))
    }
}

/// The engine's end of the reaper.
#[derive(Debug)]
pub(crate) struct Reaper {
    jobs: mpsc::UnboundedSender<Order>,
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    under_way: Arc<AtomicUsize>,
}

enum Order {
    Release(Job),
    /// A release whose asker has left it, or on which others depend.
    GoOn(Ending),
    Flush(oneshot::Sender<bool>),
}

/// Counts what has not ended yet.
#[derive(Debug)]
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    /// One more; whether it is the only one.
    fn begin(count: &Arc<AtomicUsize>) -> (UnderWay, bool) {
        let before = count.fetch_add(1, Ordering::Relaxed);
        (UnderWay(count.clone()), before == 0)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One claim that is to end. Claims bound the queue: each is here at most once.
#[derive(Debug)]
struct Job {
    claim: Claim,
    /// After this the lease is over anyway.
    until: Moment,
    /// It was held, by the clock, when it was given back.
    was_valid: bool,
    /// A former attempt was not answered.
    tried: bool,
    engine: Option<Arc<Engine>>,
    done: Option<oneshot::Sender<Released>>,
    _under_way: UnderWay,
}

impl Reaper {
    pub(super) fn start(runtime: &Handle, backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Reaper {
        let (jobs, inbox) = mpsc::unbounded_channel();
        drop(runtime.spawn(run(inbox, backend.clone(), clock.clone())));
        Reaper { jobs, backend, clock, under_way: Arc::default() }
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
        let (under_way, is_only) = UnderWay::begin(&self.under_way);
        let may_be_carried = is_only && done.is_some();
        let job = Job {
            until: self.clock.now().after(held.claim.ttl),
            claim: held.claim.clone(),
            was_valid: !matches!(state, State::Lost(_)),
            tried: false,
            engine: Some(engine.clone()),
            done,
            _under_way: under_way,
        };
        if held.stays_quiet() {
            job.finish(Released::Gone);
            return None;
        }
        if may_be_carried {
            return self.carry(engine, job);
        }
        if let Err(refused) = self.jobs.send(Order::Release(job))
            && let Order::Release(job) = refused.0
        {
            job.finish(Released::unknown("the runtime ended before the release was sent"));
        }
        None
    }

    fn carry(&self, engine: &Arc<Engine>, job: Job) -> Option<Carried> {
        let resource = job.claim.resource.clone();
        let ending = ended(vec![job], self.backend.clone(), self.clock.clone());
        let jobs = self.jobs.clone();
        let go_on = move |ending| drop(jobs.send(Order::GoOn(ending)));
        let errand = Errand::new(ending, engine.runtime.clone(), go_on);
        if !Lines::carries(engine, &resource, &errand) {
            errand.send_off();
            return None;
        }
        Some(Carried(errand))
    }

    /// Ends a claim that was never handed to anybody.
    pub(super) fn abandon(&self, claim: Claim) {
        let until = self.clock.now().after(claim.ttl);
        let (under_way, _) = UnderWay::begin(&self.under_way);
        let job = Job {
            claim,
            until,
            was_valid: false,
            tried: false,
            engine: None,
            done: None,
            _under_way: under_way,
        };
        drop(self.jobs.send(Order::Release(job)));
    }

    /// Waits until everything that was given back so far is done; whether all of it was answered.
    pub(super) async fn flush(&self) -> bool {
        let (done, told) = oneshot::channel();
        drop(self.jobs.send(Order::Flush(done)));
        told.await.unwrap_or(false)
    }
}

impl Job {
    fn finish(mut self, released: Released) {
        if let Some(done) = self.done.take() {
            drop(done.send(released));
        }
        if let Some(engine) = self.engine.take() {
            Lines::departed(&engine, &self.claim.resource, self.claim.id);
        }
    }

    /// What the server's answer means for the one who gave it back.
    fn judge(&self, release: Release) -> Released {
        match release {
            Release::Freed if self.was_valid => Released::Freed,
            // It was still there after the local end of its validity. Whoever gave it back had lost it all the same.
            Release::Freed => Released::Gone,
            // An unanswered attempt did it, unless it was lost in the same moment, which nobody can tell apart.
            Release::Gone if self.tried && self.was_valid => Released::Freed,
            Release::Gone => Released::Gone,
            Release::Unknown(failure) => Released::Unknown(failure),
        }
    }
}

/// One task sends all batches and hears their answers: a task for each would change tasks twice more for a single lock.
async fn run(mut inbox: mpsc::UnboundedReceiver<Order>, backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) {
    let mut batches = FuturesUnordered::new();
    let mut orders = Vec::with_capacity(BATCH_MAX);
    let mut all_answered = true;
    loop {
        while batches.len() >= BATCHES_MAX {
            all_answered &= batches.next().await == Some(true);
        }
        tokio::select! {
            count = inbox.recv_many(&mut orders, BATCH_MAX) => if count == 0 { break },
            Some(answered) = batches.next() => {
                all_answered &= answered;
                continue;
            }
        }
        let mut batch = Vec::with_capacity(orders.len());
        let mut flushes = Vec::new();
        for order in orders.drain(..) {
            match order {
                Order::Release(job) => batch.push(job),
                Order::GoOn(ending) => batches.push(ending),
                Order::Flush(done) => flushes.push(done),
            }
        }
        if !batch.is_empty() {
            batches.push(ended(batch, backend.clone(), clock.clone()));
        }
        if !flushes.is_empty() {
            while let Some(answered) = batches.next().await {
                all_answered &= answered;
            }
            for done in flushes {
                let _ = done.send(all_answered);
            }
            all_answered = true;
        }
    }
    // The client is gone; what it gave back is still brought to its end.
    while batches.next().await.is_some() {}
}

/// The end of a batch. A backend that panics must not take anything else with it.
fn ended(batch: Vec<Job>, backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Ending {
    let ending = AssertUnwindSafe(end(batch, backend, clock)).catch_unwind();
    ending.map(|answered| answered.unwrap_or(false)).boxed()
}

/// Ends a batch, asking again for those that were not answered while their leases could last.
async fn end(mut batch: Vec<Job>, backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> bool {
    let mut all_answered = true;
    let mut pause = RETRY_FIRST;
    while !batch.is_empty() {
        let claims: Vec<_> = batch.iter().map(|job| &job.claim).collect();
        let span = tracing::debug_span!("leasehold.release", claims = claims.len());
        let releases = backend.release(&claims).instrument(span).await;
        debug_assert_eq!(releases.len(), batch.len(), "a backend answers every claim of a batch");
        let now = clock.now();
        let mut again = Vec::new();
        for (mut job, release) in batch.into_iter().zip(releases) {
            match release {
                Release::Unknown(ref failure) if failure.is_transient() && now < job.until => {
                    job.tried = true;
                    again.push(job);
                }
                release => {
                    all_answered &= !matches!(release, Release::Unknown(_));
                    let released = job.judge(release);
                    job.finish(released);
                }
            }
        }
        batch = again;
        if !batch.is_empty() {
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(RETRY_LAST);
        }
    }
    all_answered
}

const BATCH_MAX: usize = 256;
const BATCHES_MAX: usize = 64;
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LAST: Duration = Duration::from_secs(1);
