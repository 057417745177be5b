//! The store in the memory of one process: the ledger itself, behind a mutex.
//!
//! Ground rules: the ledger makes every decision, under the one mutex, which is never held across an
//! await. A waiter sleeps on a `Notify` of its own, registers *before* it reads the ledger, and is woken
//! only when the ledger calls its claim.

mod registers;
mod store;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use leasehold_backend::changes::{until_changed, within};
use leasehold_core::{
    Ask, AtOnce, Backend, Claim, ClaimInfo, Clock, DirectReply, Durability, Effect, Entry, Failure,
    FailureKind, Fence, FenceGrade, Grant, Hint, Liveness, LockSupport, MAX_QUEUE, Moment, Patience, Profile,
    Proof, QueueOrder, Registers, Release, Renew, Renewal, Resource, ResourceSummary, Snapshot,
    SnapshotVersion, Step, Verdict, Wait, WaitMode,
};
use tokio::sync::Notify;

use crate::SystemClock;
use registers::RegisterTable;
use store::{MemoryState, WakeupKey};

/// Locks between the tasks of one process, kept in its memory: `mem:`.
///
/// # Promises
/// Admits any share, in order of arrival. Fences rise strictly. A release wakes only the waiters whose
/// turn has come. All of it holds among the users of *this value*
/// (share it in an `Arc`).
///
/// # Does not promise
/// Nothing beyond this process, or beyond its end, is promised: [`Durability::Strict`] and
/// [`FenceGrade::Strict`] mean that only the end of the process takes a claim away or a fence back, and
/// then no user of it is left. Another value of this type is another store, which begins with no values, and at
/// the first fence; one that is opened as `mem:name` begins above the fences of all that had a name before.
///
/// # Example
/// ```
/// use leasehold::{Client, local::MemoryBackend};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let store = Arc::new(MemoryBackend::new());
/// let (here, there) = (Client::builder().over(store.clone())?, Client::builder().over(store)?);
/// let guard = here.mutex("job").lock().await?;
/// assert!(there.mutex("job").try_lock().await?.is_none());
/// guard.release().await?;
/// assert!(there.mutex("job").try_lock().await?.is_some());
/// # Ok(())
/// # }
/// ```
///
/// # Memory
/// A resource with claims costs its queue. A resource without claims costs its name and its last fence,
/// because a fence must not go back when the name is used again. Beyond [`MemoryBackend::MAX_IDLE`]
/// such names the store forgets them all and continues above the highest fence that any of them had:
/// fences still rise, with a gap. Claims that were not released are removed after their ttl as the
/// number of resources grows.
///
/// # Cancel safety
/// Dropping a waiting `contend` gives up its place, except under [`MemoryBackend::polling`], where the place
/// lives for [`Profile::place_ttl`].
pub struct MemoryBackend {
    profile: Profile,
    clock: Arc<dyn Clock>,
    store: Mutex<MemoryState>,
    registers: RegisterTable,
}

impl MemoryBackend {
    /// The most resources without claims whose last fence is remembered.
    pub const MAX_IDLE: usize = 100_000;

    /// Creates an empty store on the clock of this machine, in which waiters sleep until they are called.
    pub fn new() -> Self {
        MemoryBackend::with_clock(Arc::new(SystemClock))
    }

    /// Creates an empty store that measures leases on `clock`. The *sleep* until a lease ends is
    /// measured by the timer of the runtime; a clock that runs faster is noticed at the next call on
    /// the same resource.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let profile = Profile::new("mem", Liveness::Lease { min: MIN_TTL, max: MAX_TTL })
            .admission(LockSupport::Counted)
            .order(QueueOrder::Fifo)
            .waiting(WaitMode::Notifies)
            .fencing(FenceGrade::Strict)
            .durability(Durability::Strict)
            .renew_batch_max(RENEW_BATCH_MAX)
            .note_max(leasehold_core::Note::MAX_BYTES);
        MemoryBackend {
            profile,
            clock,
            store: Mutex::new(MemoryState::default()),
            registers: RegisterTable::default(),
        }
    }

    /// Changes the store for callers that must not wait: `contend` returns at once and says
    /// when to ask again.
    #[must_use]
    pub fn polling(mut self) -> Self {
        self.profile.waiting = WaitMode::Polls;
        self.profile.place_ttl = POLLED_PLACE;
        self
    }

    /// Changes the store to barging: a newcomer takes a free share even if others are queued. Fewer
    /// switches between tasks, and no promise about how long one of them waits.
    #[must_use]
    pub fn unordered(mut self) -> Self {
        self.profile.order = QueueOrder::Unordered;
        self
    }

    /// Changes a new store so that all of its fences are above `floor`.
    #[must_use]
    pub(crate) fn above(self, floor: Fence) -> Self {
        self.store().raise_floor(floor);
        self
    }

    /// Returns a fence that is as high as the highest of this store.
    pub(crate) fn highest_fence(&self) -> Fence {
        self.store().highest_fence()
    }

    fn polls(&self) -> bool {
        self.profile.waiting == WaitMode::Polls
    }

    fn store(&self) -> MutexGuard<'_, MemoryState> {
        // No invariant spans a panic: every change is a single call of the ledger.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_ttl(&self, claim: &Claim) -> Result<(), Failure> {
        if (MIN_TTL..=MAX_TTL).contains(&claim.ttl) {
            return Ok(());
        }
        let detail =
            format!("a ttl of {:?} cannot be kept: choose between {MIN_TTL:?} and {MAX_TTL:?}", claim.ttl);
        Err(Failure::new(FailureKind::Invalid, Effect::None, detail))
    }

    /// Contends in the ledger once.
    fn contend_once(&self, claim: &Claim, patient: bool) -> Verdict {
        let mut store = self.store();
        let now = self.clock.now();
        let ledger = store.ledger(&claim.resource, now);
        let known = ledger.entries().iter().any(|entry| entry.id == claim.id);
        let in_line = Wait::Queued(if self.polls() { POLLED_PLACE } else { Duration::MAX });
        let mut verdict = Verdict::Full;
        // A claim that has a place keeps it even if the order is free: barging again would cost it the place.
        if self.profile.order == QueueOrder::Unordered && !known {
            verdict = ledger.contend(&ask_of(claim, Wait::Barging), now);
        }
        if !matches!(verdict, Verdict::Granted(_)) {
            verdict = ledger.contend(&ask_of(claim, if patient { in_line } else { Wait::No }), now);
        }
        if !patient {
            // A second call of the same claim may be asleep in the place that was just given up.
            store.wake(&claim.resource, Some(claim.id));
        }
        store.finish_change(&claim.resource);
        if known && (!patient || matches!(verdict, Verdict::Granted(_))) {
            store.wake_first_waiter(&claim.resource);
        }
        verdict
    }

    fn snapshot(&self, resource: &Resource) -> (Snapshot, Moment) {
        let mut store = self.store();
        let now = self.clock.now();
        store.expire(resource, now);
        let entries = store.entries(resource);
        let fence = store.last_fence(resource);
        let info = |entry: &Entry| {
            ClaimInfo::new(entry.id, entry.share)
                .fence(entry.granted)
                .since_unix_ms(unix_ms(now.since(entry.since)))
                .remaining((entry.until != Moment::NEVER).then(|| now.until(entry.until)))
                .note(entry.note.clone())
        };
        let mut holders: Vec<ClaimInfo> =
            entries.iter().filter(|entry| entry.granted.is_some()).map(info).collect();
        // A claim that passed the queue is ahead of those that were granted before it.
        holders.sort_by_key(|holder| holder.fence);
        let snapshot = Snapshot::new(resource.clone(), version(fence, entries))
            .holders(holders)
            .waiting(entries.iter().filter(|entry| entry.granted.is_none()).map(info).collect())
            .fence(fence);
        let earliest = entries.iter().map(|entry| entry.until).min().unwrap_or(Moment::NEVER);
        (snapshot, earliest)
    }

    /// Returns the time to sleep, until `earliest` at the latest.
    fn pause(&self, earliest: Moment, patience: &Patience) -> Duration {
        self.clock.now().until(earliest).min(patience.left()).clamp(MIN_PAUSE, MAX_PAUSE)
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        Some(self)
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    fn supports_transfer(&self) -> bool {
        true
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.check_ttl(claim)?;
        let wakeup = Wakeup::register(self, (claim.resource.clone(), Some(claim.id)));
        loop {
            let mut woken = std::pin::pin!(wakeup.notify.notified());
            woken.as_mut().enable();
            let patient = !patience.is_ended();
            let asked_at = patience.now();
            let (ahead, earliest) = match self.contend_once(claim, patient) {
                Verdict::Granted(fence) => {
                    let (fence, proof) = (Some(fence), Proof::none());
                    return Ok(Step::Granted(Grant::new(asked_at).fence(fence).proof(proof)));
                }
                Verdict::Busy { ahead, earliest } => (ahead, earliest),
                Verdict::Full => {
                    let detail = format!("{MAX_QUEUE} claims are queued for it already: try again later");
                    return Err(Failure::unavailable(detail));
                }
            };
            if !patient || self.polls() {
                let ask_again_in = patient.then_some(POLL);
                return Ok(Step::Busy(Hint { ask_again_in, ahead: Some(ahead) }));
            }
            tokio::select! {
                () = woken => {}
                () = patience.ended() => {}
                () = tokio::time::sleep(self.pause(earliest, patience)) => {}
            }
        }
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let mut store = self.store();
        let now = self.clock.now();
        let renew = |Renew { claim, .. }: &Renew<'_>| match self.check_ttl(claim) {
            Err(failure) => Renewal::Unknown(failure),
            Ok(()) if store.renew(claim, now) => Renewal::Renewed,
            Ok(()) => Renewal::Lost,
        };
        batch.iter().map(renew).collect()
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        let mut store = self.store();
        let now = self.clock.now();
        batch.iter().map(|claim| store.release(&claim.resource, claim.id, now)).map(released).collect()
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        let wakeup = Wakeup::register(self, (resource.clone(), None));
        let look = || async {
            // Notified of every change from here on.
            let woken = wakeup.notify.notified();
            let (snapshot, earliest) = self.snapshot(resource);
            Ok((snapshot, within(self.pause(earliest, patience), woken)))
        };
        until_changed(patience, |snapshot| seen.is_none_or(|seen| *seen != snapshot.version), look).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        Ok(self.store().list(prefix, after, limit, self.clock.now()))
    }
}

impl AtOnce for MemoryBackend {
    fn grant_now(&self, claim: &Claim, asked_at: Moment) -> DirectReply {
        // What is wrong with it is said by the slow path.
        if self.check_ttl(claim).is_err() {
            return DirectReply::Declined;
        }
        let is_ordered = self.profile.order == QueueOrder::Fifo;
        let ask = ask_of(claim, if is_ordered { Wait::No } else { Wait::Barging });
        let mut store = self.store();
        let now = self.clock.now();
        match store.grant(&claim.resource, &ask, now) {
            Some(fence) => DirectReply::Granted(Grant::new(asked_at).fence(Some(fence))),
            None => DirectReply::Busy { ahead: None },
        }
    }

    fn release_now(&self, claim: &Claim) -> Option<Release> {
        let mut store = self.store();
        let now = self.clock.now();
        Some(released(store.release(&claim.resource, claim.id, now)))
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        MemoryBackend::new()
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").field("profile", &self.profile).finish_non_exhaustive()
    }
}

/// The registration of one sleeping call. Dropping the last one of a waiting claim gives up its place in the
/// queue.
struct Wakeup<'a> {
    backend: &'a MemoryBackend,
    at: WakeupKey,
    notify: Arc<Notify>,
}

impl<'a> Wakeup<'a> {
    fn register(backend: &'a MemoryBackend, at: WakeupKey) -> Self {
        let notify = backend.store().wakeup(&at);
        Wakeup { backend, at, notify }
    }
}

impl Drop for Wakeup<'_> {
    fn drop(&mut self) {
        let mut store = self.backend.store();
        // Under the lock: otherwise two that end together would each count the other, and both would
        // leave the wake-up behind.
        drop(std::mem::take(&mut self.notify));
        if !store.remove_wakeup(&self.at) {
            return;
        }
        let (resource, Some(id)) = &self.at else { return };
        let waits =
            |entry: &Entry| entry.id == *id && entry.granted.is_none() && entry.until == Moment::NEVER;
        if store.entries(resource).iter().any(waits) {
            store.release(resource, *id, self.backend.clock.now());
        }
    }
}

fn ask_of(claim: &Claim, wait: Wait) -> Ask {
    Ask { id: claim.id, share: claim.share, lease: claim.ttl, wait, note: claim.note.clone() }
}

fn released(freed: bool) -> Release {
    if freed { Release::Freed } else { Release::Gone }
}

/// Derives the version from the state, so that resources without claims need no counter.
fn version(fence: Option<Fence>, entries: &[Entry]) -> SnapshotVersion {
    let mut state = DefaultHasher::new();
    for entry in entries {
        (entry.id, entry.granted, entry.note.as_str()).hash(&mut state);
    }
    SnapshotVersion::new(format!("{}-{:016x}", fence.unwrap_or_default(), state.finish()))
}

/// Returns the time of an event, for display only: the wall clock decides nothing.
fn unix_ms(ago: Duration) -> Option<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.checked_sub(ago)?;
    u64::try_from(since.as_millis()).ok()
}

const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const RENEW_BATCH_MAX: usize = 1024;
/// The time to live of a polled place: some hundred polls, and no longer than a person waits
/// behind a dead one.
const POLLED_PLACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// The least sleep: the timer of the runtime counts in milliseconds.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// The longest sleep: a day more or less changes nothing for a waiter that is woken anyway, and keeps
/// timers from overflowing.
const MAX_PAUSE: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests;
