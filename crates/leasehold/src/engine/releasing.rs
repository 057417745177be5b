//! The worker of the reaper: what is sent when.
//!
//! One task sends all batches and hears their answers: a task for each would change tasks twice more for a single lock.

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

use super::Engine;
use super::errand::Ending;
use super::job::{Job, end};
use crate::mutant::mutant;
use crate::panics::{contained, logged};
use crate::random::HashMap;

/// What the worker is sent.
pub(super) enum Order {
    Release(Job),
    /// A release whose asker has left it, or on which others depend.
    GoOn(Ending),
}

/// The task.
pub(super) struct Worker {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    /// Gone with the last guard.
    engine: Weak<Engine>,
    inbox: mpsc::UnboundedReceiver<Order>,
    is_open: bool,
    /// What is to be sent, for each part of the store.
    parts: HashMap<u64, Part>,
    /// What is to be tried again, and when. It is in no window meanwhile.
    later: BTreeMap<(Moment, u64), Job>,
    next: u64,
    calls: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// The process whose claims these are. A fork of it sends nothing.
    process: Process,
    failed: bool,
}

/// One part of the store.
#[derive(Default)]
struct Part {
    waiting: VecDeque<Job>,
    in_flight: usize,
}

/// The end of one call.
struct Answered {
    /// Where it was in flight.
    part: Option<u64>,
    again: Vec<Job>,
}

impl Worker {
    pub(super) fn new(
        inbox: mpsc::UnboundedReceiver<Order>,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        engine: Weak<Engine>,
    ) -> Worker {
        Worker {
            backend,
            clock,
            engine,
            inbox,
            is_open: true,
            parts: HashMap::default(),
            later: BTreeMap::new(),
            next: 0,
            calls: FuturesUnordered::new(),
            process: Process::this(),
            failed: false,
        }
    }

    pub(super) async fn run(mut self) {
        let mut orders = Vec::with_capacity(BATCH_MAX);
        // All that is foreign is contained where it is called. What gets here all the same is reported, and ends the client.
        let ended = AssertUnwindSafe(async { while self.turn(&mut orders).await {} }).catch_unwind().await;
        self.failed = ended.is_err();
    }

    /// Sends what there is to send, and waits for more; `false` where there never will be.
    async fn turn(&mut self, orders: &mut Vec<Order>) -> bool {
        self.send_all();
        // Where the client is gone, what it gave back is still brought to its end.
        if !self.is_open && self.calls.is_empty() && self.later.is_empty() {
            return false;
        }
        let nap = self.later.first_key_value().map(|((due, _), _)| self.clock.now().until(*due));
        // In a fixed order: what is under way goes on however much arrives.
        tokio::select! {
            biased;
            Some(answered) = self.calls.next() => self.take_in(answered),
            count = self.inbox.recv_many(orders, BATCH_MAX), if self.is_open => self.is_open = count > 0,
            () = tokio::time::sleep(nap.unwrap_or_default().min(STEP)), if nap.is_some() => {}
        }
        if !self.process.is_this() {
            return false;
        }
        for order in orders.drain(..) {
            match order {
                Order::Release(job) if job.was_tried() => self.try_later(job),
                Order::Release(job) => self.line_up(job),
                Order::GoOn(ending) => {
                    self.calls.push(ending.map(|_| Answered { part: None, again: Vec::new() }).boxed());
                }
            }
        }
        let now = self.clock.now();
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let job = entry.remove();
            self.line_up(job);
        }
        true
    }

    fn take_in(&mut self, answered: Answered) {
        if let Some(number) = answered.part
            && let Some(part) = self.parts.get_mut(&number)
        {
            part.in_flight -= 1;
            if part.in_flight == 0 && part.waiting.is_empty() {
                self.parts.remove(&number);
            }
        }
        answered.again.into_iter().for_each(|job| self.try_later(job));
    }

    fn line_up(&mut self, job: Job) {
        // Where the backend cannot tell, it goes with all others of which it cannot.
        let part = contained(|| self.backend.part(&job.claim)).unwrap_or_default();
        let part = if mutant!("all parts are released together") { 0 } else { part };
        self.parts.entry(part).or_default().waiting.push_back(job);
    }

    fn try_later(&mut self, job: Job) {
        // Moved back to a common beat, so that what is away together is tried again together.
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
                let call = async move { end(batch, &*backend, &*clock).await };
                // What a panic drops on the way settles itself.
                let call = AssertUnwindSafe(call).catch_unwind();
                let call =
                    call.map(move |again| Answered { part: part_of, again: again.unwrap_or_default() });
                self.calls.push(call.boxed());
                part.in_flight += 1;
            }
        }
    }
}

impl Drop for Worker {
    /// However it ends, nobody goes on as if something would be given back. The jobs that are dropped here end as unknown.
    fn drop(&mut self) {
        if mutant!("the end of a runtime is silent") {
            return;
        }
        if self.failed {
            logged!(
                error,
                "the task that releases locks panicked: all locks of the client are lost, and it is closed"
            );
        }
        if let Some(engine) = self.engine.upgrade() {
            engine.end_with_its_runtime();
        }
    }
}

const BATCH_MAX: usize = 256;
/// The most calls in flight for one part of the store.
const CALLS_MAX: usize = 64;
/// 10 ms: what is to be tried again waits for the next multiple of it.
const BEAT: u64 = 10_000_000;
/// How long the clock may go unread while something is to be tried again.
const STEP: Duration = Duration::from_secs(1);
