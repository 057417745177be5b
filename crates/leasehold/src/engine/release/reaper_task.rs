//! The task of the reaper: batches, paces and retries background releases.
//!
//! One task sends all batches and receives their answers: a task for each would cost two more task
//! switches for a single lock.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use leasehold_core::{Backend, Clock, Moment};
use leasehold_machine::Process;
use tokio::sync::mpsc;

use crate::clock::CLOCK_READ_INTERVAL;
use crate::engine::Engine;
use crate::engine::release::inline::ReleaseFuture;
use crate::engine::release::job::{Job, request_releases};
use crate::engine::release::stall_watch::StallWatch;
use crate::mutant::mutant;
use crate::panics::{contained, logged};
use crate::random::HashMap;

/// A message to the reaper.
pub(crate) enum Order {
    Release(Job),
    /// An inline release that its caller has left, or that others depend on.
    TakeOver(ReleaseFuture),
    /// An inline release has begun that may stall.
    WatchStalls(Arc<StallWatch>),
}

/// The task of the `Reaper`.
pub(crate) struct ReaperTask {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    /// The engine; dropped with the last guard.
    engine: Weak<Engine>,
    inbox: mpsc::UnboundedReceiver<Order>,
    is_open: bool,
    /// The releases to send, for each part of the store.
    parts: HashMap<u64, Part>,
    /// The releases to retry, by time. They are in no window meanwhile.
    later: BTreeMap<(Moment, u64), Job>,
    next: u64,
    calls: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// The watch over inline releases, and its next check; `None` while there are none.
    stall_watch: Option<(Arc<StallWatch>, Moment)>,
    /// The process that owns these claims. A fork of it sends nothing.
    process: Process,
    failed: bool,
}

/// The queue and window of one part of the store.
#[derive(Default)]
struct Part {
    waiting: VecDeque<Job>,
    in_flight: usize,
}

/// The result of one call.
struct Answered {
    /// The part whose window it was in.
    part: Option<u64>,
    again: Vec<Job>,
}

impl ReaperTask {
    pub(crate) fn new(
        inbox: mpsc::UnboundedReceiver<Order>,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        engine: Weak<Engine>,
    ) -> ReaperTask {
        ReaperTask {
            backend,
            clock,
            engine,
            inbox,
            is_open: true,
            parts: HashMap::default(),
            later: BTreeMap::new(),
            next: 0,
            calls: FuturesUnordered::new(),
            stall_watch: None,
            process: Process::this(),
            failed: false,
        }
    }

    pub(crate) async fn run(mut self) {
        let mut orders = Vec::with_capacity(BATCH_MAX);
        // Panics of foreign code are caught where it is called. One that still arrives here is reported
        // and ends the client.
        let ended = AssertUnwindSafe(async { while self.turn(&mut orders).await {} }).catch_unwind().await;
        self.failed = ended.is_err();
    }

    /// Sends what the windows allow, and waits for more. Returns `false` when there never will be more.
    async fn turn(&mut self, orders: &mut Vec<Order>) -> bool {
        self.send_all();
        // After the client is dropped, its releases are still brought to their end.
        if !self.is_open && self.calls.is_empty() && self.later.is_empty() {
            return false;
        }
        let retry_at = self.later.first_key_value().map(|((due, _), _)| *due);
        let check_at = self.stall_watch.as_ref().map(|(_, at)| *at);
        let nap = retry_at.into_iter().chain(check_at).min().map(|due| self.clock.now().until(due));
        // The order is fixed: calls under way make progress however much arrives.
        tokio::select! {
            biased;
            Some(answered) = self.calls.next() => self.record_answer(answered),
            count = self.inbox.recv_many(orders, BATCH_MAX), if self.is_open => self.is_open = count > 0,
            () = tokio::time::sleep(nap.unwrap_or_default().min(CLOCK_READ_INTERVAL)), if nap.is_some() => {}
        }
        if !self.process.is_this() {
            return false;
        }
        for order in orders.drain(..) {
            match order {
                Order::Release(job) if job.was_tried() => self.retry_later(job),
                Order::Release(job) => self.enqueue(job),
                Order::WatchStalls(watch) => {
                    self.stall_watch = Some((watch, self.clock.now().after(STALL_CHECK_INTERVAL)));
                }
                Order::TakeOver(release) => {
                    self.calls.push(release.map(|_| Answered { part: None, again: Vec::new() }).boxed());
                }
            }
        }
        let now = self.clock.now();
        if check_at.is_some_and(|at| at <= now) {
            // It may wake a foreign executor.
            let checks_again = |watch: &StallWatch| contained(|| watch.check()).unwrap_or_default();
            let stall_watch = self.stall_watch.take().filter(|(watch, _)| checks_again(watch));
            self.stall_watch = stall_watch.map(|(watch, _)| (watch, now.after(STALL_CHECK_INTERVAL)));
        }
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let job = entry.remove();
            self.enqueue(job);
        }
        true
    }

    fn record_answer(&mut self, answered: Answered) {
        if let Some(number) = answered.part
            && let Some(part) = self.parts.get_mut(&number)
        {
            part.in_flight -= 1;
            if part.in_flight == 0 && part.waiting.is_empty() {
                self.parts.remove(&number);
            }
        }
        answered.again.into_iter().for_each(|job| self.retry_later(job));
    }

    fn enqueue(&mut self, job: Job) {
        // Claims whose part the backend cannot determine are batched together.
        let part = contained(|| self.backend.part(&job.claim)).unwrap_or_default();
        let part = if mutant!("all parts are released together") { 0 } else { part };
        self.parts.entry(part).or_default().waiting.push_back(job);
    }

    fn retry_later(&mut self, job: Job) {
        // Moved back to a common beat, so that releases that failed together are retried together.
        let due = self.clock.now().after(job.pause()).as_nanos();
        let due = Moment::from_nanos(due.next_multiple_of(BEAT));
        self.next += 1;
        self.later.insert((due, self.next), job);
    }

    /// Sends as much as the windows allow.
    fn send_all(&mut self) {
        for (number, part) in &mut self.parts {
            while part.in_flight < CALLS_MAX && !part.waiting.is_empty() {
                let batch: Vec<Job> = part.waiting.drain(..part.waiting.len().min(BATCH_MAX)).collect();
                let (backend, clock, part_of) = (self.backend.clone(), self.clock.clone(), Some(*number));
                let call = async move { request_releases(batch, &*backend, &*clock).await };
                // Jobs that a panic drops settle themselves.
                let call = AssertUnwindSafe(call).catch_unwind();
                let call =
                    call.map(move |again| Answered { part: part_of, again: again.unwrap_or_default() });
                self.calls.push(call.boxed());
                part.in_flight += 1;
            }
        }
    }
}

impl Drop for ReaperTask {
    /// Closes the client, however the task ends, because nothing would be released any more. The jobs
    /// that are dropped here end as unknown.
    fn drop(&mut self) {
        if mutant!("the end of a runtime is silent") {
            return;
        }
        if self.failed {
            logged!(
                error,
                "the task that releases locks panicked: the client is closed, and what it holds ends with its leases"
            );
        }
        if let Some(engine) = self.engine.upgrade() {
            engine.close_abruptly();
        }
    }
}

const BATCH_MAX: usize = 256;
/// The maximum number of calls in flight for one part of the store.
const CALLS_MAX: usize = 64;
/// 10 ms: a retry waits for the next multiple of it.
const BEAT: u64 = 10_000_000;
/// The pause between two checks of inline releases. One that is found twice is taken over.
const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(250);
