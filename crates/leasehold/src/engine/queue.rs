//! The local wait queues: the tasks of this process that wait for each resource.
//!
//! One claim of this process is queued on the server, however many tasks wait for a resource. A released
//! lock passes straight to the next waiting task, with the fence's `sub` advanced and without asking the
//! server, within a limit of count and time that keeps other processes from starving.
//!
//! Ground rules: a queue is a pure state machine (`line.rs`) that returns the consequences of each
//! change. This module carries them out, in one place, once the shard's lock is released. That lock is
//! held for a few instructions only, and never while anything is sent, spawned or dropped that could call
//! back into this module.

use std::cmp::Reverse;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Moment, Patience, QueueOrder, Resource};
use tokio::sync::oneshot;

use super::asker::Asker;
use super::charge::Charge;
use super::contender;
use super::hold::Hold;
use super::inline_release::{Carried, InlineRelease};
use super::lease::{Lease, State};
use super::line::{Change, Line, Local, Outcome, Place};
use super::reaper::Released;
use super::{Engine, Want};
use crate::error::{Error, Result};
use crate::panics::{in_this_span, logged};
use crate::random::{HashMap, Hashing};

/// The local queues of all resources, in shards so that unrelated resources do not contend.
pub(crate) struct Lines {
    shards: Vec<Mutex<HashMap<Resource, Entry>>>,
    hasher: Hashing,
    /// The next ticket number. Numbers are never reused, so that a late `Leave` cannot remove another
    /// task from a queue that was created anew.
    next_ticket: AtomicU64,
}

/// The queue of one resource, the patience of its contender, and the store's last answer.
struct Entry {
    line: Line<Reply, Weak<InlineRelease>>,
    patience: Option<Patience>,
    /// The time of the contender's last answer that the lock is not free; `None` if a later request was
    /// not answered.
    busy_at: Option<Moment>,
}

/// The sender of the answer to one waiter.
type Reply = oneshot::Sender<Result<Hold>>;
type Changed = Outcome<Reply, Weak<InlineRelease>>;

impl Lines {
    /// Enters the local queue.
    pub(super) fn enter(engine: &Arc<Engine>, want: Want, priority: i32) -> Ticket {
        let (reply, told) = oneshot::channel();
        let resource = want.resource.clone();
        let (task, mut place) = (Asker::here(), (Reverse(priority), 0));
        let changed = Lines::change_by(engine, &resource, true, || {
            // Drawn under the shard's lock, so that the order of tickets is the order of arrival.
            place.1 = engine.lines.next_ticket.fetch_add(1, Ordering::Relaxed);
            Change::Enter { place, want, task, handle: reply }
        });
        if changed.waits_for_itself {
            logged!(
                warn,
                resource = %resource,
                "a task waits for a lock that it holds itself; unless another part of it releases the \
                 lock, it waits for ever: use an Owner to re-enter"
            );
        }
        Ticket { engine: engine.clone(), resource, place, told }
    }

    /// Returns `true` if a task outside the queue may ask the server: the claims of this process leave
    /// room for it, and for the first waiter.
    pub(super) fn admits(engine: &Arc<Engine>, want: &Want) -> bool {
        let changed = Lines::change(engine, &want.resource, Change::Try(want.share));
        changed.is_none_or(|changed| changed.is_allowed)
    }

    /// Records that a task outside the queue waits for what this process releases.
    pub(super) fn depend(engine: &Arc<Engine>, resource: &Resource) {
        Lines::change(engine, resource, Change::Depend);
    }

    /// Records the id of the claim that this process has queued on the server.
    pub(super) fn contends_as(engine: &Arc<Engine>, resource: &Resource, id: ClaimId) {
        Lines::change(engine, resource, Change::Drawn(id));
    }

    /// Records whether the store has just said that the resource is not free, or has not answered.
    pub(super) fn hears(engine: &Engine, resource: &Resource, is_busy: bool) {
        let busy_at = is_busy.then(|| engine.clock.now());
        if let Some(entry) = engine.lines.shard(resource).get_mut(resource) {
            entry.busy_at = busy_at;
        }
    }

    /// Returns `true` if the store said a moment ago that the resource is not free, and has not failed to
    /// answer since.
    pub(super) fn has_heard(engine: &Engine, resource: &Resource) -> bool {
        let now = engine.clock.now();
        let shard = engine.lines.shard(resource);
        let busy_at = shard.get(resource).and_then(|entry| entry.busy_at);
        busy_at.is_some_and(|at| now.since(at) <= FRESH)
    }

    /// Returns the claim that is queued on the server for exactly this request; `None` where the waiter
    /// may be granted it past that claim, by another task of this process.
    pub(super) fn stands_for(&self, want: &Want) -> Option<ClaimId> {
        self.shard(&want.resource).get(&want.resource)?.line.stands_for(want)
    }

    /// Records a claim that was granted to a task outside the queue, and begins its use.
    ///
    /// # Errors
    /// `Closed` where the client was closed meanwhile; the claim is then released.
    pub(super) fn granted_directly(charge: Charge) -> Result<Hold> {
        let local = Lines::local(&charge, Asker::here());
        Lines::change_by(charge.engine(), charge.resource(), true, || Change::HeldBeside(local));
        charge.begin()
    }

    /// Passes the contender's granted claim to the first task with exactly this request.
    pub(super) fn granted(charge: Charge) {
        let local = Lines::local(&charge, None);
        let changed = Lines::change_by(charge.engine(), charge.resource(), true, || Change::Granted(local));
        let outcome = charge.begin();
        // If no waiter wants it any more, or the waiter has left, the hold is dropped here, which
        // releases it.
        if let Some((reply, _)) = changed.taker {
            drop(reply.send(outcome));
        }
    }

    fn local(charge: &Charge, task: Option<Asker>) -> Local {
        let held = charge.held();
        let stays = passes_left(charge.engine(), held, State::Valid, 0) == 0;
        Local { stays, ..Local::new(held.claim.id, charge.want().clone(), task) }
    }

    /// Ends local hand-over of a claim.
    pub(super) fn stays(engine: &Arc<Engine>, resource: &Resource, id: ClaimId) {
        Lines::change(engine, resource, Change::Stays(id));
    }

    /// Records that the contender ended without a grant. An error goes to every waiter with the same request.
    pub(super) fn ended(engine: &Arc<Engine>, want: &Want, error: Option<Error>) {
        let changed = Lines::change(engine, &want.resource, Change::Ended { failed: error.is_some() });
        if let (Some(changed), Some(error)) = (changed, error) {
            for reply in changed.failed {
                drop(reply.send(Err(error.clone())));
            }
        }
    }

    /// Passes a hold that ended in this state to the next waiter if that is possible, otherwise releases it.
    pub(super) fn give_back(
        engine: &Arc<Engine>,
        held: Arc<Lease>,
        mut state: State,
        passed: u32,
        done: Option<oneshot::Sender<Released>>,
    ) -> Option<Carried> {
        let Claim { id, resource, .. } = &held.claim;
        // Each round offers the claim to the next waiter, until one takes it or no further hand-over
        // is possible.
        loop {
            let left = passes_left(engine, &held, state, passed);
            if left == 0 {
                break;
            }
            let changed = Lines::change(engine, resource, Change::Returned { id: *id, left });
            let Some((reply, want)) = changed.and_then(|changed| changed.taker) else { break };
            engine.renewer.limit_hold(&held, want.max_hold);
            let next = Hold::new(engine.clone(), held.clone(), passed + 1);
            let Err(undelivered) = reply.send(Ok(next)) else {
                if let Some(done) = done {
                    drop(done.send(Released::Freed));
                }
                return None;
            };
            // That task has left. Its undelivered hold must not release the claim, which this function
            // still owns.
            if let Ok(hold) = undelivered {
                hold.defuse();
            }
            state = held.end_use();
        }
        if held.retire() {
            engine.renewer.forget(&held);
            return engine.reaper.release(engine, held, state, done);
        }
        if let Some(done) = done {
            // It was lost, and the renewal task has released it already.
            drop(done.send(Released::Gone));
        }
        None
    }

    /// Returns `true` if the caller may carry out the release inline: nothing else in this process
    /// depends on it. A later waiter detaches it.
    pub(super) fn carries(
        engine: &Arc<Engine>,
        resource: &Resource,
        id: ClaimId,
        inline: &Arc<InlineRelease>,
    ) -> bool {
        let changed = Lines::change(engine, resource, Change::Carry(id, Arc::downgrade(inline)));
        changed.is_some_and(|changed| changed.is_allowed)
    }

    /// Leaves a claim to its lease: from now on only the server counts it.
    pub(super) fn spend(engine: &Arc<Engine>, held: &Lease) {
        engine.renewer.forget(held);
        Lines::departed(engine, &held.claim.resource, held.claim.id);
    }

    /// Returns the number of resources with a waiter or a holder.
    #[cfg(leasehold_sim)]
    pub(super) fn count(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Returns the first waiter for a resource, see [`Line::head`].
    #[cfg(leasehold_sim)]
    pub(super) fn head(
        &self,
        resource: &Resource,
    ) -> Option<(u64, leasehold_core::Share, bool, Option<ClaimId>)> {
        self.shard(resource).get(resource)?.line.head()
    }

    /// Removes a claim that the server no longer has, or for which the engine has done what it can: the
    /// next waiter may contend.
    pub(super) fn departed(engine: &Arc<Engine>, resource: &Resource, id: ClaimId) {
        Lines::change(engine, resource, Change::Departed(id));
    }

    /// Ends every contender; the client's closing signal notifies their waiters. Releases continue
    /// without their callers.
    pub(super) fn end_waits(engine: &Arc<Engine>) {
        if engine.is_forked() {
            return;
        }
        for shard in &engine.lines.shards {
            let resources: Vec<_> = lock(shard).keys().cloned().collect();
            for resource in resources {
                Lines::change(engine, &resource, Change::Close);
            }
        }
    }

    /// Changes the queue of a resource. Returns `None` if it has none, because nothing waits, contends
    /// or holds.
    fn change(
        engine: &Arc<Engine>,
        resource: &Resource,
        change: Change<Reply, Weak<InlineRelease>>,
    ) -> Option<Changed> {
        let mut is_there = false;
        let changed = Lines::change_by(engine, resource, false, || {
            is_there = true;
            change
        });
        is_there.then_some(changed)
    }

    /// Applies a change to a queue, and carries out its consequences once the shard is free. All changes
    /// pass through here. Creates a missing queue if `opens`.
    fn change_by(
        engine: &Arc<Engine>,
        resource: &Resource,
        opens: bool,
        change: impl FnOnce() -> Change<Reply, Weak<InlineRelease>>,
    ) -> Changed {
        if engine.is_forked() {
            // In a fork the shard may be locked for ever, by a thread that exists only in the parent.
            return Changed::default();
        }
        let mut shard = engine.lines.shard(resource);
        if opens && !shard.contains_key(resource) {
            let stands_behind = engine.profile().order >= QueueOrder::Fifo;
            let line = Line::new(stands_behind, engine.closed.is_cancelled());
            shard.insert(resource.clone(), Entry { line, patience: None, busy_at: None });
        }
        let Some(entry) = shard.get_mut(resource) else { return Changed::default() };
        let mut changed = entry.line.apply(change());
        let stopped = if changed.stop { entry.patience.take() } else { None };
        let started = changed.start.take().map(|want| {
            let patience = Patience::unlimited(engine.clock.clone());
            entry.patience = Some(patience.clone());
            contender::contend(engine.clone(), want, patience)
        });
        if changed.is_idle {
            shard.remove(resource);
        }
        drop(shard);
        if let Some(patience) = stopped {
            patience.end();
        }
        if let Some(inline) = changed.send_off.take().and_then(|inline| inline.upgrade()) {
            inline.send_off();
        }
        if let Some(work) = started {
            // Its requests belong to the span of the waiter that started it, as far as that is known here.
            engine.spawn(in_this_span(work));
        }
        for id in std::mem::take(&mut changed.hopes) {
            Lines::stays_in_the_end(engine, resource, id);
        }
        changed
    }

    /// Ends local hand-over of a claim when its time is over: its age is counted from before now.
    fn stays_in_the_end(engine: &Arc<Engine>, resource: &Resource, id: ClaimId) {
        let (weak, resource) = (Arc::downgrade(engine), resource.clone());
        let budget = engine.tuning.local_handoff_time;
        drop(engine.runtime.spawn(async move {
            tokio::time::sleep(budget).await;
            if let Some(engine) = weak.upgrade() {
                Lines::stays(&engine, &resource, id);
            }
        }));
    }

    fn shard(&self, resource: &Resource) -> MutexGuard<'_, HashMap<Resource, Entry>> {
        let hash = self.hasher.hash_one(resource);
        lock(&self.shards[(hash % SHARDS as u64) as usize])
    }
}

impl Default for Lines {
    fn default() -> Self {
        Lines {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: Hashing::default(),
            next_ticket: AtomicU64::new(0),
        }
    }
}

/// Returns how often a claim may still be handed to the next waiter.
fn passes_left(engine: &Engine, held: &Lease, state: State, passed: u32) -> u32 {
    let age = engine.clock.now().since(held.granted_at);
    let in_time = state == State::Valid && age < engine.tuning.local_handoff_time;
    // A revoked claim is for other clients, not for the next local waiter.
    let may_pass = in_time && held.revoked().is_none() && held.can_pass(passed);
    match engine.tuning.local_handoff_limit.saturating_sub(passed) {
        _ if !may_pass => 0,
        left if !held.can_pass(passed.saturating_add(1)) => left.min(1),
        left => left,
    }
}

/// A place in the local queue. Dropping it gives the place up; a grant that was on its way is then released.
pub(super) struct Ticket {
    engine: Arc<Engine>,
    resource: Resource,
    place: Place,
    told: oneshot::Receiver<Result<Hold>>,
}

impl Ticket {
    /// Waits for the answer; `None` where the engine ended. Cancel safe.
    pub(super) async fn reply(&mut self) -> Option<Result<Hold>> {
        (&mut self.told).await.ok()
    }

    /// Leaves the queue. Returns a reply that was already sent.
    pub(super) fn withdraw(&mut self) -> Option<Result<Hold>> {
        self.told.close();
        self.told.try_recv().ok()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.told.close();
        Lines::change(&self.engine, &self.resource, Change::Leave(self.place));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave a queue half changed: no foreign code is called under the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const SHARDS: usize = 16;
/// The maximum age of a store's answer that a lock is not free.
const FRESH: Duration = Duration::from_secs(1);
