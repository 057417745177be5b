//! The local wait queues: the tasks of this process that wait for each resource.
//!
//! One claim of this process is queued on the server, however many tasks wait for a resource.
//!
//! Ground rules: a queue is a pure state machine (`local_queue.rs`) that returns the consequences of each
//! change. This module carries them out, in one place, once the shard's lock is released. That lock is
//! held for a few instructions only, and never while anything is sent, spawned or dropped that could call
//! back into this module.

use std::collections::hash_map::Entry as Slot;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Moment, Patience, QueueOrder, Resource, Share};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::engine::Want;
use crate::engine::acquire::handoff::handoffs_left;
use crate::engine::acquire::linger::LingeringClaim;
#[cfg(leasehold_sim)]
use crate::engine::acquire::local_queue::Head;
use crate::engine::acquire::local_queue::{Change, HeldClaim, LocalQueue, Outage, Outcome, Place};
use crate::engine::acquire::requester::Requester;
use crate::engine::hold::pending_grant::PendingGrant;
use crate::engine::hold::{Hold, PassedOn};
use crate::engine::lease::{Lease, State, UseEnd};
use crate::engine::release::inline::InlineRelease;
use crate::error::{Error, Result};
use crate::mutant::mutant;
use crate::panics::{in_this_span, logged};
use crate::random::{AsItIs, Hashing};

/// The local queues of all resources, in shards so that unrelated resources do not contend.
pub(crate) struct LocalQueues {
    shards: Vec<Mutex<Shard>>,
    hasher: Hashing,
    /// The next ticket number. Numbers are never reused, so that a late `Leave` cannot remove another
    /// task from a queue that was created anew.
    next_ticket: AtomicU64,
}

type Shard = std::collections::HashMap<Key, Entry, BuildHasherDefault<AsItIs>>;

/// A resource with its hash, which chooses the shard as well.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    hash: u64,
    resource: Resource,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The lowest bits are the same in a shard.
        state.write_u64(self.hash.rotate_right(SHARDS.trailing_zeros()));
    }
}

/// The queue of one resource, the patience of its contender, and the store's last answer.
struct Entry {
    queue: LocalQueue<Reply, Weak<InlineRelease>, LingeringClaim>,
    patience: Option<Patience>,
    /// The time of the last answer that the lock is not free, and the share that was asked for; `None` if a later
    /// request was not answered.
    busy: Option<(Moment, Share)>,
    /// Cancelled once no claim is left that no task has; `None` if nothing waits for that.
    unused_gone: Option<CancellationToken>,
}

/// The sender of the answer to one waiter.
type Reply = oneshot::Sender<Result<Hold>>;
type QueueChange = Change<Reply, Weak<InlineRelease>, LingeringClaim>;
type Changed = Outcome<Reply, Weak<InlineRelease>, LingeringClaim>;

/// The treatment of a queue that does not exist.
#[derive(Clone, Copy)]
enum Missing {
    /// It is created, for a change that makes something wait or be held.
    Create,
    /// Nothing is changed.
    Skip,
}

impl LocalQueues {
    /// Returns the claim that is queued on the server for exactly this request; `None` where the waiter
    /// may be granted it past that claim, by another task of this process.
    pub(crate) fn queued_claim(&self, want: &Want) -> Option<ClaimId> {
        let (shard, key) = self.shard(&want.resource);
        shard.get(&key)?.queue.queued_claim(want)
    }

    /// Returns a token that is cancelled once this process holds no claim that no task has; `None` if it holds none
    /// now.
    pub(super) fn unused_gone(&self, resource: &Resource) -> Option<CancellationToken> {
        let (mut shard, key) = self.shard(resource);
        let entry = shard.get_mut(&key).filter(|entry| entry.queue.has_unused())?;
        Some(entry.unused_gone.get_or_insert_default().clone())
    }

    /// Returns the number of resources with a waiter or a holder.
    #[cfg(leasehold_sim)]
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Returns the first waiter for a resource.
    #[cfg(leasehold_sim)]
    pub(crate) fn head(&self, resource: &Resource) -> Option<Head> {
        let (shard, key) = self.shard(resource);
        shard.get(&key)?.queue.head()
    }

    /// Removes the lingering claims, and returns them. Nothing else is in any queue by then.
    pub(crate) fn take_lingering(&mut self) -> Vec<Arc<Lease>> {
        let entries = self.shards.iter_mut().flat_map(|shard| {
            std::mem::take(shard.get_mut().unwrap_or_else(PoisonError::into_inner)).into_values()
        });
        entries.flat_map(|entry| entry.queue.into_lingering()).map(LingeringClaim::into_lease).collect()
    }

    fn shard(&self, resource: &Resource) -> (MutexGuard<'_, Shard>, Key) {
        let hash = self.hasher.hash_one(resource);
        let key = Key { hash, resource: resource.clone() };
        (lock(&self.shards[(hash % SHARDS as u64) as usize]), key)
    }
}

impl Engine {
    /// Enters the local queue.
    pub(crate) fn enter_queue(self: &Arc<Self>, want: Want, priority: i32) -> Ticket {
        let (reply, receiver) = oneshot::channel();
        let resource = want.resource.clone();
        let (task, mut place) = (Requester::here(), Place::new(priority, 0));
        let entered = self.clock.now();
        let changed = self.change_queue_with(&resource, Missing::Create, Some(entered), || {
            // Drawn under the shard's lock, so that the order of tickets is the order of arrival.
            place = Place::new(priority, self.queues.next_ticket.fetch_add(1, Ordering::Relaxed));
            Change::Enter { place, want, task, entered, handle: reply }
        });
        let mut changed = changed.unwrap_or_default();
        if let (Some(lingering), Some((reply, want))) = (changed.resumed.take(), changed.taker.take()) {
            // The receiver is below, so it arrives.
            drop(reply.send(Ok(self.use_again(lingering, want.max_hold))));
        }
        if changed.waits_for_itself {
            logged!(
                warn,
                resource = %resource,
                "a task waits for a lock that it holds itself; unless another part of it releases the \
                 lock, it waits for ever: use an Owner to re-enter"
            );
        }
        Ticket { engine: self.clone(), resource, place, receiver }
    }

    /// Records that a task outside the queue waits for what this process releases, for as long as the
    /// returned value lives. Until then no release is carried out inline: its caller might not be polled.
    pub(crate) fn depend_on_release(self: &Arc<Self>, resource: &Resource) -> Dependent {
        let exists = self.change_queue(resource, Change::AddDependent).is_some();
        Dependent { engine: self.clone(), resource: exists.then(|| resource.clone()) }
    }

    /// Records the id of the claim that this process has queued on the server.
    pub(crate) fn record_contender(self: &Arc<Self>, resource: &Resource, id: ClaimId) {
        self.change_queue(resource, Change::Drawn(id));
    }

    /// Returns `true` if a task may ask the store without entering the queue: nothing waits for the resource here,
    /// and what is held leaves room for the request.
    pub(super) fn admits_fast_path(&self, want: &Want) -> bool {
        let (shard, key) = self.queues.shard(&want.resource);
        shard.get(&key).is_none_or(|entry| entry.queue.admits_fast_path(want.share))
    }

    /// Returns the hash of a resource, which chooses among a few places.
    pub(super) fn hash_of(&self, resource: &Resource) -> u64 {
        self.queues.hasher.hash_one(resource)
    }

    /// Records that the store has just said that the resource is not free for this claim.
    pub(crate) fn record_busy(&self, claim: &Claim) {
        self.set_busy(&claim.resource, Some((self.clock.now(), claim.share)));
    }

    /// Records that the store has not answered a request for this claim.
    pub(crate) fn record_no_answer(&self, claim: &Claim) {
        self.set_busy(&claim.resource, None);
    }

    fn set_busy(&self, resource: &Resource, busy: Option<(Moment, Share)>) {
        let (mut shard, key) = self.queues.shard(resource);
        if let Some(entry) = shard.get_mut(&key) {
            entry.busy = busy;
        }
    }

    /// Returns `true` if the store said a moment ago that the resource is not free for this request, and has not
    /// failed to answer since.
    pub(crate) fn was_busy_recently(&self, want: &Want) -> bool {
        let now = self.clock.now();
        let (shard, key) = self.queues.shard(&want.resource);
        let busy = shard.get(&key).and_then(|entry| entry.busy);
        // What is refused to a share may be free for a smaller one, as a reader's is for another reader.
        let applies =
            |share: Share| share.weight() <= want.share.weight() && share.capacity() >= want.share.capacity();
        busy.is_some_and(|(at, share)| {
            now.since(at) <= BUSY_ANSWER_MAX_AGE
                && (applies(share) || mutant!("a refusal counts for every share"))
        })
    }

    /// Records a claim that was granted to a task outside the queue, and begins its use.
    ///
    /// # Errors
    /// `Closed` where the client was closed meanwhile; the claim is then released.
    pub(crate) fn grant_outside_queue(grant: PendingGrant) -> Result<Hold> {
        let claim = held_claim(&grant, Requester::here());
        let change = || Change::GrantedOutsideQueue(claim);
        grant.engine().change_queue_with(grant.resource(), Missing::Create, None, change);
        grant.begin(PassedOn::default())
    }

    /// Passes the contender's granted claim to the first task with exactly this request.
    pub(crate) fn grant_to_waiter(grant: PendingGrant) {
        let claim = held_claim(&grant, None);
        let change = || Change::Granted(claim);
        let changed = grant.engine().change_queue_with(grant.resource(), Missing::Create, None, change);
        let changed = changed.unwrap_or_default();
        let passed = PassedOn::default();
        let outcome = grant.begin(if changed.is_handed_on { passed.handed_off() } else { passed });
        // If no waiter wants it any more, or the waiter has left, the hold is dropped here, which
        // releases it.
        if let Some((reply, _)) = changed.taker {
            drop(reply.send(outcome));
        }
    }

    /// Records that the contender ended without a grant; `failing_since` if the store has not answered from then on.
    /// An error goes to every waiter with the same request. That of an outage goes to all that have waited for as
    /// long as it is tolerated, and the next contender does not tolerate it anew.
    pub(crate) fn end_contender(
        self: &Arc<Self>,
        want: &Want,
        error: Option<Error>,
        failing_since: Option<Moment>,
    ) {
        let limit = self.clock.now().before(self.tuning.outage);
        let outage = failing_since.map(|began| Outage { began, limit });
        let changed = self.change_queue(&want.resource, Change::Ended { failed: error.is_some(), outage });
        if let (Some(changed), Some(error)) = (changed, error) {
            for reply in changed.failed {
                drop(reply.send(Err(error.clone())));
            }
        }
    }

    /// Returns `true` if the caller may carry out the release inline: nothing else in this process
    /// depends on it. A later waiter detaches it.
    pub(crate) fn may_release_inline(
        self: &Arc<Self>,
        resource: &Resource,
        id: ClaimId,
        inline: &Arc<InlineRelease>,
    ) -> bool {
        let changed = self.change_queue(resource, Change::ReleaseInline(id, Arc::downgrade(inline)));
        changed.is_some_and(|changed| changed.is_allowed)
    }

    /// Removes a claim that the server no longer has, or for which the engine has done what it can: the
    /// next waiter may contend.
    pub(crate) fn forget_claim(self: &Arc<Self>, resource: &Resource, id: ClaimId) {
        self.change_queue(resource, Change::Departed(id));
    }

    /// Ends every contender; the client's closing signal notifies their waiters. Releases continue
    /// without their callers.
    pub(crate) fn end_waits(self: &Arc<Self>) {
        if self.is_forked() {
            return;
        }
        for shard in &self.queues.shards {
            let resources: Vec<_> = lock(shard).keys().map(|key| key.resource.clone()).collect();
            for resource in resources {
                self.change_queue(&resource, Change::Close);
            }
        }
    }

    /// Changes the queue of a resource. Returns `None` if it has none, because nothing waits, contends
    /// or holds.
    pub(super) fn change_queue(
        self: &Arc<Self>,
        resource: &Resource,
        change: QueueChange,
    ) -> Option<Changed> {
        self.change_queue_with(resource, Missing::Skip, None, || change)
    }

    /// Changes the queue of a resource as [`Engine::change_queue`] does, without the lingering claims that no task
    /// could use.
    pub(super) fn change_queue_after_linger_check(
        self: &Arc<Self>,
        resource: &Resource,
        change: impl FnOnce() -> QueueChange,
    ) -> Option<Changed> {
        self.change_queue_with(resource, Missing::Skip, Some(self.clock.now()), change)
    }

    /// Applies a change to a queue, and carries out its consequences once the shard is free. All changes
    /// pass through here. At `now`, what lingers and is not usable lingers no more. Returns `None` if nothing
    /// was changed, because a `missing` queue is skipped, or in a fork.
    fn change_queue_with(
        self: &Arc<Self>,
        resource: &Resource,
        missing: Missing,
        now: Option<Moment>,
        change: impl FnOnce() -> QueueChange,
    ) -> Option<Changed> {
        if self.is_forked() {
            // In a fork the shard may be locked for ever, by a thread that exists only in the parent.
            return None;
        }
        let (mut shard, key) = self.queues.shard(resource);
        let mut slot = match (shard.entry(key), missing) {
            (Slot::Occupied(slot), _) => slot,
            (Slot::Vacant(_), Missing::Skip) => return None,
            (Slot::Vacant(slot), Missing::Create) => {
                let store_has_queue = self.profile().order >= QueueOrder::Fifo;
                let queue = LocalQueue::new(store_has_queue, self.closed.is_cancelled());
                slot.insert_entry(Entry { queue, patience: None, busy: None, unused_gone: None })
            }
        };
        let entry = slot.get_mut();
        // Under the lock only the state changes. What follows from it runs below, once the shard is free,
        // because it may come back here.
        let unusable = now.map_or_else(Vec::new, |now| take_unusable(&mut entry.queue, now));
        let mut changed = entry.queue.apply(change());
        if !unusable.is_empty() {
            changed.linger_over.splice(0..0, unusable);
        }
        let gone = if entry.queue.has_unused() { None } else { entry.unused_gone.take() };
        let stopped = if changed.stop { entry.patience.take() } else { None };
        let started = changed.start.take().map(|want| {
            let patience = Patience::unlimited(self.clock.clone());
            entry.patience = Some(patience.clone());
            self.contender_task(want, patience, changed.failing_since)
        });
        if changed.is_idle {
            slot.remove();
        }
        drop(shard);
        for lingering in &changed.linger_over {
            self.end_linger(lingering);
        }
        if let Some(gone) = gone {
            gone.cancel();
        }
        if let Some(patience) = stopped {
            patience.end();
        }
        if let Some(inline) = changed.detach.take().and_then(|inline| inline.upgrade()) {
            inline.detach();
        }
        if let Some(work) = started {
            // Its requests belong to the span of the waiter that started it, as far as that is known here.
            // With its type, unlike the tasks of `spawn`: it is the task of each acquisition, and a box costs time.
            drop(self.tracked.spawn_on(in_this_span(work), &self.runtime));
        }
        for id in std::mem::take(&mut changed.handoff_candidates) {
            self.end_handoff_in_time(resource, id);
        }
        Some(changed)
    }
}

impl Default for LocalQueues {
    fn default() -> Self {
        LocalQueues {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: Hashing::default(),
            next_ticket: AtomicU64::new(0),
        }
    }
}

fn held_claim(grant: &PendingGrant, task: Option<Requester>) -> HeldClaim {
    let lease = grant.lease();
    let granted = UseEnd { state: State::Valid, at: lease.granted_at };
    let handoff_over = handoffs_left(grant.engine(), lease, granted, PassedOn::default()) == 0;
    HeldClaim { handoff_over, ..HeldClaim::new(lease.claim.id, grant.want().clone(), task) }
}

/// Lets all claims linger no more that no task could use at `now`. Returns their handles.
fn take_unusable(
    queue: &mut LocalQueue<Reply, Weak<InlineRelease>, LingeringClaim>,
    now: Moment,
) -> Vec<LingeringClaim> {
    let unusable = queue.lingering().iter().filter(|(_, lingering)| !lingering.is_usable(now));
    let ids: Vec<ClaimId> = unusable.map(|(id, _)| *id).collect();
    ids.into_iter().flat_map(|id| queue.apply(Change::HandoffOver(id)).linger_over).collect()
}

/// A task outside the queue that waits for what this process releases.
pub(crate) struct Dependent {
    engine: Arc<Engine>,
    /// The resource, if its queue counts this task.
    resource: Option<Resource>,
}

impl Drop for Dependent {
    fn drop(&mut self) {
        if let Some(resource) = &self.resource {
            self.engine.change_queue(resource, Change::RemoveDependent);
        }
    }
}

/// A place in the local queue. Dropping it gives the place up; a grant that was on its way is then released.
pub(crate) struct Ticket {
    engine: Arc<Engine>,
    resource: Resource,
    place: Place,
    receiver: oneshot::Receiver<Result<Hold>>,
}

impl Ticket {
    /// Waits for the answer; `None` where the engine ended. Cancel safe.
    pub(crate) async fn reply(&mut self) -> Option<Result<Hold>> {
        (&mut self.receiver).await.ok()
    }

    /// Leaves the queue. Returns a reply that was already sent.
    pub(crate) fn withdraw(&mut self) -> Option<Result<Hold>> {
        self.receiver.close();
        self.receiver.try_recv().ok()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.receiver.close();
        self.engine.change_queue(&self.resource, Change::Leave(self.place));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave a queue half changed: no foreign code is called under the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const SHARDS: usize = 16;
/// The maximum age of a store's answer that a lock is not free.
const BUSY_ANSWER_MAX_AGE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use leasehold_core::Note;

    use super::*;
    use crate::clock::TokioClock;
    use crate::engine::{Deadline, Tuning, Wait, Wanted};
    use crate::events::EventSink;
    use crate::local::MemoryBackend;

    fn want(max_hold: Option<Duration>) -> Want {
        Want::of(Wanted {
            resource: Resource::new("job").unwrap(),
            share: Share::MUTEX,
            ttl: Duration::from_secs(30),
            lock_delay: Duration::ZERO,
            max_hold,
            linger: Duration::from_secs(20),
            note: Note::default(),
        })
    }

    async fn held(engine: &Arc<Engine>) -> Hold {
        let deadline = Deadline::of(Wait::Forever, engine);
        engine.acquire_unowned(want(None), deadline, 0).await.unwrap().unwrap()
    }

    /// Returns an engine whose hand-off stays possible for all of a test.
    fn handing_off() -> Arc<Engine> {
        let clock = Arc::new(TokioClock::new());
        let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
        let tuning = Tuning::default().local_handoff_time(Duration::from_secs(60));
        Engine::start(store, clock, tuning, EventSink::default()).unwrap()
    }

    /// The task has stopped to listen, and its place in the queue is not given up yet.
    #[tokio::test(start_paused = true)]
    async fn claim_that_is_handed_to_a_task_that_has_left_gets_one_user() {
        let engine = handing_off();
        let hold = held(&engine).await;
        let mut leaves = engine.enter_queue(want(None), 0);
        assert!(leaves.withdraw().is_none());
        let mut next = [engine.enter_queue(want(None), 0), engine.enter_queue(want(None), 0)];
        drop(hold);
        let second = next[0].receiver.try_recv().unwrap().unwrap();
        assert_eq!(second.fence().unwrap().sub, 1);
        assert!(next[1].receiver.try_recv().is_err(), "the second has it");
        drop(second);
        let third = next[1].receiver.try_recv().unwrap().unwrap();
        assert_eq!(third.fence().unwrap().sub, 2);

        // It lingers if no task is left, and the limit of the task that left does not end that.
        let mut leaves = engine.enter_queue(want(Some(Duration::from_secs(1))), 0);
        assert!(leaves.withdraw().is_none());
        drop(third);
        tokio::time::sleep(Duration::from_secs(15)).await;
        drop(leaves);
        assert_eq!(held(&engine).await.fence().unwrap().sub, 3, "it lingered");
    }

    /// It cannot get the lock from the other task.
    #[tokio::test(start_paused = true)]
    async fn task_behind_a_pinned_lock_waits_at_the_store() {
        let engine = handing_off();
        let hold = held(&engine).await;
        let _waits = engine.enter_queue(want(None), 0);
        for is_pinned in [false, true] {
            if is_pinned {
                hold.pin();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            let found = engine.inspect(&want(None).resource, None, Duration::ZERO).await.unwrap();
            assert_eq!(found.waiting.len(), usize::from(is_pinned));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn claim_that_waits_at_the_store_is_known() {
        let clock = Arc::new(TokioClock::new());
        let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
        let start = || Engine::start(store.clone(), clock.clone(), Tuning::default(), EventSink::default());
        let (engine, other) = (start().unwrap(), start().unwrap());
        let _hold = held(&other).await;
        let _waits = engine.enter_queue(want(None), 0);
        tokio::time::sleep(Duration::from_millis(1)).await;
        let queue = engine.inspect(&want(None).resource, None, Duration::ZERO).await.unwrap();
        assert_eq!(engine.queues.queued_claim(&want(None)), Some(queue.waiting[0].id));
    }
}
