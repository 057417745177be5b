//! The local line: who in this process waits for which resource.
//!
//! However many tasks wait for a resource, one claim of this process stands on the server. A lock that is
//! given back goes straight to the next task in line, with the fence's `sub` advanced and without asking the
//! server, within a budget of count and time that keeps other processes from starving.
//!
//! Ground rules: a shard's lock is held for a few instructions only, never while anything is sent,
//! spawned or dropped that could come back here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use leasehold_core::{ClaimId, Patience, Resource, Share};
use tokio::sync::oneshot;
use tokio::task;

use super::contender;
use super::errand::{Carried, Errand};
use super::held::{Held, State};
use super::hold::Hold;
use super::reaper::Released;
use super::{Engine, Want};
use crate::error::{Error, Result};
use crate::panics::{logged, spanned};

/// The local lines of all resources, in shards so that unrelated resources do not meet.
pub(crate) struct Lines {
    shards: Vec<Mutex<HashMap<Resource, Line>>>,
    hasher: RandomState,
    /// Never used twice, so that a late leaver cannot take another's place in a line that was made anew.
    next_ticket: AtomicU64,
}

/// The local line of one resource.
#[derive(Default)]
struct Line {
    waiters: BTreeMap<Place, Waiter>,
    contending: Option<Contending>,
    held: Vec<Local>,
    /// A release that its asker carries out.
    carried: Weak<Errand>,
}

/// A place in the local line: the greater priority first, then who came first.
type Place = (Reverse<i32>, u64);

/// One task that waits.
struct Waiter {
    want: Want,
    task: Option<task::Id>,
    reply: oneshot::Sender<Result<Hold>>,
}

/// The one claim of this process that stands on the server's line.
struct Contending {
    want: Want,
    /// Under which claim, once that is drawn.
    id: Option<ClaimId>,
    patience: Patience,
}

/// What this process holds of the resource, until its release is confirmed.
struct Local {
    id: ClaimId,
    share: Share,
    task: Option<task::Id>,
}

impl Lines {
    /// Stands in the local line.
    pub(super) fn enter(engine: &Arc<Engine>, want: Want, priority: i32) -> Ticket {
        let (reply, told) = oneshot::channel();
        let resource = want.resource.clone();
        let task = task::try_id();
        let mut shard = engine.lines.shard(&resource);
        let line = shard.entry(resource.clone()).or_default();
        // Drawn under the shard's lock, so that the order of tickets is the order of arrival.
        let number = engine.lines.next_ticket.fetch_add(1, Ordering::Relaxed);
        let place = (Reverse(priority), number);
        let own =
            task.is_some() && line.held.iter().any(|local| local.task == task && local.share.is_exclusive());
        line.waiters.insert(place, Waiter { want, task, reply });
        let next = line.advance(engine);
        let carried = line.carried.upgrade();
        drop(shard);
        if let Some(carried) = carried {
            carried.send_off();
        }
        if own {
            logged!(
                warn,
                resource = %resource,
                "a task waits for a lock that it took itself; unless another part of it lets go, it waits \
                 for ever: use an Owner to re-enter"
            );
        }
        start(engine, next);
        Ticket { engine: engine.clone(), resource, place, told }
    }

    /// Whether what this process holds leaves room for another claim.
    pub(super) fn admits(&self, want: &Want) -> bool {
        let shard = self.shard(&want.resource);
        let Some(line) = shard.get(&want.resource) else { return true };
        let (fits, carried) = (line.fits(want.share), line.carried.upgrade());
        drop(shard);
        if let Some(carried) = carried.filter(|_| !fits) {
            carried.send_off();
        }
        fits
    }

    /// Under which claim the one of this process stands in the server's line.
    pub(super) fn contends_as(&self, resource: &Resource, id: ClaimId) {
        if let Some(contending) =
            self.shard(resource).get_mut(resource).and_then(|line| line.contending.as_mut())
        {
            contending.id = Some(id);
        }
    }

    /// The claim that stands in the server's line for whoever wants just this; `None` where he may be granted it past that
    /// claim, by another task of this process.
    pub(super) fn stands_for(&self, want: &Want) -> Option<ClaimId> {
        let shard = self.shard(&want.resource);
        let line = shard.get(&want.resource).filter(|line| line.held.is_empty())?;
        line.contending.as_ref().filter(|contending| contending.want == *want)?.id
    }

    /// A claim was granted to a task that stood in no line.
    pub(super) fn granted_directly(engine: &Arc<Engine>, held: Arc<Held>) -> Hold {
        let mut shard = engine.lines.shard(&held.claim.resource);
        let line = shard.entry(held.claim.resource.clone()).or_default();
        line.held.push(Local { id: held.claim.id, share: held.claim.share, task: task::try_id() });
        drop(shard);
        Hold::new(engine.clone(), held, 0)
    }

    /// The contender's claim was granted: it goes to the first task that wants just this.
    pub(super) fn granted(engine: &Arc<Engine>, want: &Want, held: Arc<Held>) {
        let mut shard = engine.lines.shard(&want.resource);
        let line = shard.entry(want.resource.clone()).or_default();
        line.contending = None;
        let taker = line.take_waiter(|waiter| waiter.want == *want);
        let task = taker.as_ref().and_then(|waiter| waiter.task);
        line.held.push(Local { id: held.claim.id, share: held.claim.share, task });
        let next = line.advance(engine);
        drop(shard);
        start(engine, next);
        engine.keeper.limit_hold(&held, want.max_hold);
        let hold = Hold::new(engine.clone(), held, 0);
        // Nobody wants it any more, or he who wanted it has left: the hold is dropped here and gives itself back.
        if let Some(waiter) = taker {
            drop(waiter.reply.send(Ok(hold)));
        }
    }

    /// The contender ended without a grant; with an error, all who wanted the same are told.
    pub(super) fn ended(engine: &Arc<Engine>, want: &Want, error: Option<Error>) {
        let mut told = Vec::new();
        let mut shard = engine.lines.shard(&want.resource);
        if let Some(line) = shard.get_mut(&want.resource) {
            line.contending = None;
            if error.is_some() {
                while let Some(waiter) = line.take_waiter(|waiter| waiter.want == *want) {
                    told.push(waiter);
                }
            }
        }
        let next = Lines::settle(&mut shard, engine, &want.resource);
        drop(shard);
        start(engine, next);
        if let Some(error) = error {
            for waiter in told {
                drop(waiter.reply.send(Err(error.clone())));
            }
        }
    }

    /// A hold is given back: to the next task in line if that may be, else to the server.
    pub(super) fn give_back(
        engine: &Arc<Engine>,
        held: Arc<Held>,
        passed: u32,
        done: Option<oneshot::Sender<Released>>,
    ) -> Option<Carried> {
        let state = held.state();
        while let Some(waiter) = Lines::next_taker(engine, &held, passed, state) {
            engine.keeper.limit_hold(&held, waiter.want.max_hold);
            let next = Hold::new(engine.clone(), held.clone(), passed + 1);
            let Err(undelivered) = waiter.reply.send(Ok(next)) else {
                if let Some(done) = done {
                    drop(done.send(Released::Freed));
                }
                return None;
            };
            // That task has left. The hold that it did not get must not give itself back: it is still in our hands.
            if let Ok(hold) = undelivered {
                hold.defuse();
            }
        }
        if held.retire() {
            engine.keeper.forget(&held);
            return engine.reaper.release(engine, held, state, done);
        }
        if let Some(done) = done {
            // It was lost, and the keeper has given it back already.
            drop(done.send(Released::Gone));
        }
        None
    }

    /// Whether a release may be carried out by its asker: not where others of this process depend on it. Those who come later
    /// send it off.
    pub(super) fn carries(engine: &Engine, resource: &Resource, errand: &Arc<Errand>) -> bool {
        let mut shard = engine.lines.shard(resource);
        let Some(line) = shard.get_mut(resource) else { return false };
        let is_alone =
            line.waiters.is_empty() && line.contending.is_none() && line.carried.strong_count() == 0;
        // Closing sends off what it finds, so nothing may come after that.
        if !is_alone || engine.closed.is_cancelled() {
            return false;
        }
        line.carried = Arc::downgrade(errand);
        true
    }

    /// A claim is left to its lease: the server alone counts it from now on.
    pub(super) fn spend(engine: &Arc<Engine>, held: &Held) {
        engine.keeper.forget(held);
        Lines::departed(engine, &held.claim.resource, held.claim.id);
    }

    fn next_taker(engine: &Arc<Engine>, held: &Held, passed: u32, state: State) -> Option<Waiter> {
        let age = engine.clock.now().since(held.granted_at);
        let budget = passed < engine.tuning.handover_count && age < engine.tuning.handover_time;
        // What was asked back is for others, and not for the next one here.
        if state != State::Valid || !budget || held.revoked().is_some() {
            return None;
        }
        let mut shard = engine.lines.shard(&held.claim.resource);
        let line = shard.get_mut(&held.claim.resource)?;
        let waiter = line.take_front(|waiter| waiter.fits_claim(held))?;
        if let Some(local) = line.held.iter_mut().find(|local| local.id == held.claim.id) {
            local.task = waiter.task;
        }
        Some(waiter)
    }

    /// The server no longer has the claim, or the engine has done what it can: the next in line may contend.
    pub(super) fn departed(engine: &Arc<Engine>, resource: &Resource, id: ClaimId) {
        let mut shard = engine.lines.shard(resource);
        if let Some(line) = shard.get_mut(resource) {
            line.held.retain(|local| local.id != id);
        }
        let next = Lines::settle(&mut shard, engine, resource);
        drop(shard);
        start(engine, next);
    }

    /// Ends every contender; their waiters are told by the client's own closing signal. Releases go on without their askers.
    pub(super) fn end_waits(&self) {
        let mut carried = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            for line in shard.values() {
                if let Some(contending) = &line.contending {
                    contending.patience.end();
                }
                carried.extend(line.carried.upgrade());
            }
        }
        carried.iter().for_each(|errand| errand.send_off());
    }

    fn leave(&self, resource: &Resource, place: Place) -> bool {
        let mut shard = self.shard(resource);
        let Some(line) = shard.get_mut(resource) else { return false };
        let left = line.waiters.remove(&place);
        if let Some(contending) = &line.contending
            && !line.waiters.values().any(|waiter| waiter.want == contending.want)
        {
            contending.patience.end();
        }
        if line.is_idle() {
            shard.remove(resource);
        }
        drop(shard);
        left.is_some()
    }

    fn settle(shard: &mut HashMap<Resource, Line>, engine: &Arc<Engine>, resource: &Resource) -> Next {
        let line = shard.get_mut(resource)?;
        let next = line.advance(engine);
        if line.is_idle() {
            shard.remove(resource);
        }
        next
    }

    fn shard(&self, resource: &Resource) -> MutexGuard<'_, HashMap<Resource, Line>> {
        let hash = self.hasher.hash_one(resource);
        lock(&self.shards[(hash % SHARDS as u64) as usize])
    }
}

impl Default for Lines {
    fn default() -> Self {
        Lines {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            next_ticket: AtomicU64::new(0),
        }
    }
}

impl Line {
    /// Sends the first in line to the server, if nobody is there for this process and it could be admitted.
    fn advance(&mut self, engine: &Arc<Engine>) -> Next {
        if self.contending.is_some() || engine.closed.is_cancelled() {
            return None;
        }
        let want = self.waiters.values().find(|waiter| !waiter.reply.is_closed())?.want.clone();
        if !self.fits(want.share) {
            return None;
        }
        let patience = Patience::unlimited(engine.clock.clone());
        self.contending = Some(Contending { want: want.clone(), id: None, patience: patience.clone() });
        Some((want, patience))
    }

    fn fits(&self, share: Share) -> bool {
        let load: u64 = self.held.iter().map(|local| u64::from(local.share.weight())).sum();
        let capacity = self.held.iter().map(|local| local.share.capacity()).fold(share.capacity(), u32::min);
        load + u64::from(share.weight()) <= u64::from(capacity)
    }

    fn take_waiter(&mut self, wanted: impl Fn(&Waiter) -> bool) -> Option<Waiter> {
        let live = |waiter: &Waiter| !waiter.reply.is_closed() && wanted(waiter);
        let place = *self.waiters.iter().find(|(_, waiter)| live(waiter))?.0;
        self.waiters.remove(&place)
    }

    /// Takes the first live task in line, if it is a wanted one: nobody is passed over.
    fn take_front(&mut self, wanted: impl Fn(&Waiter) -> bool) -> Option<Waiter> {
        let (place, front) = self.waiters.iter().find(|(_, waiter)| !waiter.reply.is_closed())?;
        let place = *place;
        if !wanted(front) {
            return None;
        }
        self.waiters.remove(&place)
    }

    fn is_idle(&self) -> bool {
        self.waiters.is_empty() && self.held.is_empty() && self.contending.is_none()
    }
}

impl Waiter {
    /// Whether a claim that this process holds is just what this task wants.
    fn fits_claim(&self, held: &Held) -> bool {
        let claim = &held.claim;
        let (ttl, quiet) = (self.want.ttl + self.want.quiet, self.want.quiet);
        self.want.share == claim.share
            && ttl == claim.ttl
            && quiet == held.quiet()
            && self.want.note == claim.note
    }
}

/// A place in the local line. Dropping it gives the place up; a grant that was on its way gives itself back.
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

    /// Leaves the line; a reply that was already sent is returned.
    pub(super) fn withdraw(&mut self) -> Option<Result<Hold>> {
        self.told.close();
        self.told.try_recv().ok()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.told.close();
        self.engine.lines.leave(&self.resource, self.place);
    }
}

/// The contender that is to be started, once no lock is held.
type Next = Option<(Want, Patience)>;

fn start(engine: &Arc<Engine>, next: Next) {
    if let Some((want, patience)) = next {
        let work = contender::contend(engine.clone(), want, patience);
        // What it asks belongs to whoever sent it, as far as that is known here.
        let span = tracing::Span::current();
        engine.spawn(spanned(|| span, work));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave a line half changed: nothing in here calls foreign code while the lock is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const SHARDS: usize = 16;
