//! One claim that is to end on the server, and one attempt to end it.
//!
//! Ground rules: whatever ends the work, its asker gets an answer, and the local line of the resource goes on.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{Backend, Claim, Clock, Failure, Moment, Release};
use tokio::sync::{Notify, oneshot};

use super::Engine;
use super::errand::Ending;
use super::outage::jittered;
use super::queue::Lines;
use crate::mutant::mutant;
use crate::panics::{answered, spanned};

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

/// Counts what has not ended yet, and what ended without an answer.
#[derive(Debug, Default)]
pub(super) struct Tally {
    under_way: AtomicUsize,
    unanswered: AtomicUsize,
    /// Called each time that nothing is under way.
    idle: Notify,
    /// When the client was closed.
    closed_at: OnceLock<Moment>,
}

impl Tally {
    /// From `moment` on it is waited for the end of all that is under way.
    pub(super) fn close(&self, moment: Moment) {
        // The first one who closes the client stays.
        let _ = self.closed_at.set(moment);
    }

    /// Returns whether what was asked at this time without an answer is to be asked once more, although the lease is over: who
    /// closes the client waits for the answers of a store that may have come back meanwhile.
    fn asks_anew(&self, asked_at: Moment) -> bool {
        let anew = |closed_at: &Moment| asked_at <= *closed_at;
        self.closed_at.get().is_some_and(anew)
    }

    /// Waits until nothing is under way; whether all that ended meanwhile was answered.
    pub(super) async fn settled(&self) -> bool {
        let before = self.unanswered.load(Ordering::SeqCst);
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable();
            if self.under_way.load(Ordering::SeqCst) == 0 {
                return self.unanswered.load(Ordering::SeqCst) == before;
            }
            idle.await;
        }
    }
}

/// One that was under way, and is no longer once this is dropped.
struct Ended(Arc<Tally>);

impl Drop for Ended {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// One claim that is to end. Claims bound the queue: each is here at most once.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) claim: Claim,
    /// After this the lease is over anyway.
    until: Moment,
    /// It was held, by the clock, when it was given back.
    was_valid: bool,
    /// So many attempts were not answered.
    tries: u32,
    engine: Option<Arc<Engine>>,
    done: Option<oneshot::Sender<Released>>,
    tally: Arc<Tally>,
    has_ended: bool,
}

impl Job {
    /// A claim that is to end at `until` at the latest, and whether nothing else is under way.
    pub(super) fn new(
        claim: Claim,
        until: Moment,
        was_valid: bool,
        engine: Option<Arc<Engine>>,
        done: Option<oneshot::Sender<Released>>,
        tally: Arc<Tally>,
    ) -> (Job, bool) {
        let is_only = tally.under_way.fetch_add(1, Ordering::SeqCst) == 0;
        (Job { claim, until, was_valid, tries: 0, engine, done, tally, has_ended: false }, is_only)
    }

    /// How long it has to wait before it is tried again.
    pub(super) fn pause(&self) -> Duration {
        jittered(RETRY_FIRST.saturating_mul(1 << self.tries.saturating_sub(1).min(6)).min(RETRY_LAST))
    }

    /// Whether it was tried before.
    pub(super) fn was_tried(&self) -> bool {
        self.tries > 0
    }

    pub(super) fn finish(mut self, released: Released) {
        self.settle(released);
    }

    fn settle(&mut self, released: Released) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        // Last, and whatever happens before.
        let _ended = Ended(self.tally.clone());
        if matches!(released, Released::Unknown(_)) {
            self.tally.unanswered.fetch_add(1, Ordering::SeqCst);
        }
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
            Release::Gone if self.was_tried() && self.was_valid => Released::Freed,
            Release::Gone => Released::Gone,
            Release::Unknown(failure) => Released::Unknown(failure),
        }
    }
}

impl Drop for Job {
    /// Whatever ends the work, its asker gets an answer, and the local line goes on.
    fn drop(&mut self) {
        if mutant!("a release ends in silence") {
            return;
        }
        self.settle(Released::unknown("the runtime ended before the release was confirmed"));
    }
}

/// Work that ends whatever happens in it. What it drops on the way settles itself.
pub(super) fn contained(work: impl Future<Output = bool> + Send + 'static) -> Ending {
    AssertUnwindSafe(work).catch_unwind().map(|done| done.unwrap_or(false)).boxed()
}

/// Asks the server once to end these claims; those that are to be tried again come back.
pub(super) async fn end(batch: Vec<Job>, backend: &dyn Backend, clock: &dyn Clock) -> Vec<Job> {
    let claims: Vec<_> = batch.iter().map(|job| &job.claim).collect();
    let asked = answered(async {
        let span = || tracing::debug_span!("leasehold.release", claims = claims.len());
        spanned(span, backend.release(&claims)).await
    });
    let asked_at = clock.now();
    let (mut releases, failure) = match asked.await {
        Ok(releases) => {
            (releases, Failure::unanswered("the backend answered fewer releases than were asked for"))
        }
        Err(failure) => (Vec::new(), failure),
    };
    releases.resize(batch.len(), Release::Unknown(failure));
    let now = clock.now();
    let mut again = Vec::new();
    for (mut job, release) in batch.into_iter().zip(releases) {
        match release {
            Release::Unknown(ref failure)
                if failure.is_transient() && (now < job.until || job.tally.asks_anew(asked_at)) =>
            {
                job.tries += 1;
                again.push(job);
            }
            release => {
                let released = job.judge(release);
                job.finish(released);
            }
        }
    }
    again
}

const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LAST: Duration = Duration::from_secs(1);
