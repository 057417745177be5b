//! Lingering claims: they stay with the process after their last user, for the next one.
//!
//! The idea is that of the lock managers of cluster file systems, which cache a granted lock in the node until
//! another node wants it. Which claim lingers, and which request gets it, is decided by the local queue. Here is
//! what follows from it outside of the queue.
//!
//! Ground rules: a lingering claim belongs to no task, so its loss is reported to nobody, and nothing waits for
//! it. However often it is used meanwhile, it lingers no later than one moment: the linger time after it lingered
//! first. One task for each such claim, and not for each of these times, ends that: then, or if the claim is not
//! valid any more, or if another client waits, as far as the store notifies this client of that.

use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::{
    Claim, ClaimId, Clock, Moment, Patience, Profile, QueueOrder, Resource, Snapshot, WaitMode,
};

use crate::clock::CLOCK_READ_INTERVAL;
use crate::engine::Engine;
use crate::engine::Want;
use crate::engine::acquire::local_queue::Change;
use crate::engine::acquire::requester::Requester;
use crate::engine::hold::{Hold, PassedOn};
use crate::engine::inspect::EndOnDrop;
use crate::engine::lease::{Lease, State, UseEnd};
use crate::error::{Error, ErrorKind, Result};
use crate::mutant::mutant;

/// A claim that lingers.
#[derive(Debug)]
pub(crate) struct LingeringClaim {
    lease: Arc<Lease>,
    passed: PassedOn,
    until: Moment,
}

impl LingeringClaim {
    /// Returns the time until which it lingers at most.
    pub(super) fn until(&self) -> Moment {
        self.until
    }

    /// Returns `true` if a task may get the claim at `now`.
    pub(super) fn is_usable(&self, now: Moment) -> bool {
        now < self.until && self.lease.is_usable(now)
    }

    pub(super) fn into_lease(self) -> Arc<Lease> {
        self.lease
    }
}

/// The answer of the local queue to a task that does not wait.
pub(crate) enum TriedLocally {
    /// It may ask the server.
    Allowed,
    /// Claims of this process are in its way, or in the way of the first waiter.
    Refused,
    /// It gets a claim that lingered.
    Granted(Hold),
}

impl Engine {
    /// Asks the local queue for a task that does not wait. Claims that no task has are released first.
    ///
    /// # Errors
    /// `Unavailable` where the store does not answer such a release in time, `Closed` where the client closes.
    pub(crate) async fn try_locally(self: &Arc<Self>, want: &Want) -> Result<TriedLocally> {
        for _ in 0..RECALLS_MAX {
            match self.try_in_queue(want) {
                Some(tried) => return Ok(tried),
                // Boxed, because it is rare, and the common future is moved with the caller's.
                None => Box::pin(self.unused_gone_in_time(&want.resource)).await?,
            }
        }
        Ok(TriedLocally::Refused)
    }

    /// Asks the local queue once; `None` if the task has to ask again once no claim is left that no task has.
    fn try_in_queue(self: &Arc<Self>, want: &Want) -> Option<TriedLocally> {
        let change = || Change::Try { want: want.clone(), task: Requester::here() };
        let Some(mut changed) = self.change_queue_after_linger_check(&want.resource, change) else {
            return Some(TriedLocally::Allowed);
        };
        match changed.resumed.take() {
            Some(lingering) => Some(TriedLocally::Granted(self.use_again(lingering, want.max_hold))),
            None if changed.is_allowed => Some(TriedLocally::Allowed),
            None if changed.may_try_later && !mutant!("what nobody uses is in the way") => None,
            None => Some(TriedLocally::Refused),
        }
    }

    async fn unused_gone_in_time(&self, resource: &Resource) -> Result<()> {
        let Some(gone) = self.queues.unused_gone(resource) else { return Ok(()) };
        tokio::select! {
            biased;
            () = gone.cancelled() => Ok(()),
            is_open = self.sleep(RELEASE_LIMIT) => Err(match is_open {
                true => Error::new(ErrorKind::Unavailable, "lock", NOT_RELEASED).on(resource),
                false => Error::closed("lock").on(resource),
            }),
        }
    }

    /// Begins the next use of a claim that lingered.
    pub(super) fn use_again(self: &Arc<Self>, lingering: LingeringClaim, max_hold: Option<Duration>) -> Hold {
        let LingeringClaim { lease, passed, .. } = lingering;
        lease.set_lingering(false);
        self.renewer.limit_hold(&lease, max_hold);
        Hold::new(self.clone(), lease, passed.resumed())
    }

    /// Returns the handle with which a claim whose use has ended may linger; `None` if it may not.
    pub(super) fn lingering_claim(
        &self,
        lease: &Arc<Lease>,
        ended: UseEnd,
        passed: PassedOn,
    ) -> Option<LingeringClaim> {
        let until = lease.linger_end(ended.at)?;
        let may_linger =
            ended.state == State::Valid && lease.revoked().is_none() && lease.can_hand_off(passed.sub);
        (may_linger && self.lets_claims_linger()).then(|| {
            // Before another task can get it.
            lease.set_lingering(true);
            LingeringClaim { lease: lease.clone(), passed, until }
        })
    }

    /// Returns `true` if another client that waits gets the lock at its release. Elsewhere the first that asks
    /// afterwards gets it, which would be this process again, and after a linger time the other had one chance
    /// instead of many.
    fn lets_claims_linger(&self) -> bool {
        let Profile { order, waiting, .. } = self.profile();
        *order >= QueueOrder::Fifo || *waiting == WaitMode::Blocks || mutant!("claims linger without a queue")
    }

    /// Releases a claim that lingers no more.
    pub(super) fn end_linger(self: &Arc<Self>, lingering: &LingeringClaim) {
        let lease = &lingering.lease;
        // The renewer releases a claim that it finds lost, perhaps at this moment.
        if lease.retire() {
            self.renewer.forget(lease);
            let at = self.clock.now();
            let ended = UseEnd { state: lease.state_at(at), at };
            self.release_unattended(lease.clone(), ended);
        }
    }

    /// Starts the linger task of a claim that lingers for the first time.
    pub(super) fn start_linger_task(self: &Arc<Self>, lease: &Arc<Lease>, until: Moment) {
        if !lease.begin_linger(until) {
            return;
        }
        let Claim { id, resource, .. } = &lease.claim;
        let task = LingerTask {
            engine: Arc::downgrade(self),
            clock: self.clock.clone(),
            resource: resource.clone(),
            id: *id,
            until,
            is_notified: self.profile().order == QueueOrder::Fifo
                && self.profile().waiting == WaitMode::Notifies,
        };
        let mut changes = lease.watch();
        self.spawn_detached(async move { task.run(changes.not_valid()).await });
    }

    /// Looks at a resource once, or until another version than `seen`, without keeping the client alive.
    fn look(
        &self,
        resource: &Resource,
        seen: Option<leasehold_core::SnapshotVersion>,
        patience: &Patience,
    ) -> impl Future<Output = Option<Snapshot>> + Send + use<> {
        let (backend, resource, patience) = (self.backend.clone(), resource.clone(), patience.clone());
        let looking =
            self.run_read(async move { backend.inspect(&resource, seen.as_ref(), &patience).await });
        async { looking.await.ok() }
    }
}

/// The task that ends the time in which one claim may linger. It holds neither the client nor the claim.
struct LingerTask {
    engine: Weak<Engine>,
    clock: Arc<dyn Clock>,
    resource: Resource,
    id: ClaimId,
    until: Moment,
    /// `true` if the store notifies a client that looks at a resource of those that begin to wait.
    is_notified: bool,
}

impl LingerTask {
    /// Waits for the first reason to end that. `not_valid` ends with the validity of the claim.
    async fn run(self, not_valid: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = not_valid => {}
            () = self.reached_end() => {}
            () = self.recalled(), if self.is_notified => {}
        }
        if let Some(engine) = self.engine.upgrade()
            && !mutant!("a claim lingers without end")
        {
            // Other clients may have waited long enough: no task of this process comes before them either.
            engine.end_handoff(&self.resource, self.id);
        }
    }

    /// Waits for the end of the linger time by the clock, which may continue while timers stand still.
    async fn reached_end(&self) {
        loop {
            let left = self.clock.now().until(self.until);
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(CLOCK_READ_INTERVAL)).await;
        }
    }

    /// Waits until another client waits for the resource.
    async fn recalled(&self) {
        let mut seen = None;
        loop {
            let Some(engine) = self.engine.upgrade() else { return std::future::pending().await };
            let patience = Patience::until(self.clock.clone(), self.until);
            // The look is never dropped: the end of its patience makes it return.
            let _leaving = EndOnDrop(patience.clone());
            let looking = engine.look(&self.resource, seen.clone(), &patience);
            drop(engine);
            let pause = match looking.await {
                // A request of this process that waits has ended it already.
                Some(snapshot) if !snapshot.waiting.is_empty() => return,
                Some(snapshot) if seen.as_ref() != Some(&snapshot.version) => {
                    seen = Some(snapshot.version);
                    LOOK_PAUSE
                }
                _ => LOOK_RETRY,
            };
            tokio::time::sleep(pause).await;
        }
    }
}

/// The number of times that one try waits for the release of what lingers in its way.
const RECALLS_MAX: u32 = 3;
/// The time that the store has to answer such a release.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
/// The least time between two looks at a resource.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// The time until the next look after one that failed or showed nothing new.
const LOOK_RETRY: Duration = Duration::from_millis(300);
const NOT_RELEASED: &str = "the store has not confirmed the release of a lock that lingered here; nothing was \
                            requested; try again";
