//! Reentrancy by an explicit owner.
//!
//! An owner is an explicit value, never implied by a thread or a task. An owner can acquire again what it
//! holds, at no cost and without the server. The lock is released when the last of its guards is.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use leasehold_core::deadlock::Tag;
use leasehold_core::{Resource, Share};
use tokio::sync::Mutex as AsyncMutex;

use crate::engine::Engine;
use crate::engine::Want;
use crate::engine::deadline::Deadline;
use crate::engine::hold::Hold;
use crate::engine::hold::handle::HoldHandle;
use crate::engine::hold::users::Users;
use crate::engine::lease::{Lease, State};
use crate::error::{Error, ErrorKind, Result};
use crate::mutant::mutant;

/// An identity that can acquire again what it already holds.
///
/// Clones are the same owner. Claims of one owner on one resource are one claim for the server, counted
/// in memory; acquiring again succeeds at once and shares the fence.
///
/// Asking for more than is held (a write lock while reading, three permits while holding two) would wait
/// for itself, and is refused as a deadlock. Asking for less (a read lock while writing) is granted. The
/// options of the first guard (its ttl, its time limits, its note) apply to all of them.
///
/// A lost lock is not held: the owner waits for it like any other client, and gets it with a new fence.
/// The guards from before stay lost. A lock whose guards have all been dropped, and that is kept [for
/// some time yet](crate::Lock::min_hold), is granted to its owner at once; an owner that asks for more of
/// it waits for the end of that time.
///
/// While one task of an owner waits for a lock, its other tasks wait for that task. A future that waits and is
/// neither polled nor dropped holds them up, even once the lock was granted.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::{Client, Owner};
///
/// let locks = Client::open("mem:").await?;
/// let (me, you) = (Owner::new(), Owner::new());
/// let outer = locks.mutex("orders/42").owner(&me).lock().await?;
/// let inner = locks.mutex("orders/42").owner(&me).lock().await?; // at once
/// assert_eq!(outer.fence(), inner.fence());
/// assert!(locks.mutex("orders/42").owner(&you).try_lock().await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Owner(Arc<Identity>);

#[derive(Debug)]
struct Identity {
    number: u64,
    /// Claims of other clients that end only after this owner's work.
    inherited: Vec<Tag>,
}

impl Owner {
    /// Creates an owner that differs from every other.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Owner {
        Owner::with_inherited(Vec::new())
    }

    /// Creates an owner that works on behalf of the holders of these claims of other clients, as a process
    /// works for the parent that waits for its end. A claim is named by its [tag](crate::Guard::tag).
    ///
    /// The owner counts as a holder of these claims where [deadlocks](crate::Lock::detect_deadlocks) are
    /// looked for, and nowhere else: it does not re-enter their locks. Tags are not secret, and prove
    /// nothing: a claim that is over, or that is in another store, changes nothing, and neither does text
    /// that is not a tag. Of all claims of an owner 16 are known.
    ///
    /// # Does not promise
    /// A holder that does not wait for this owner after all may be reported as part of a deadlock.
    pub fn inheriting<T: AsRef<str>>(tags: impl IntoIterator<Item = T>) -> Owner {
        Owner::with_inherited(tags.into_iter().filter_map(|tag| Tag::of_public(tag.as_ref())).collect())
    }

    fn with_inherited(inherited: Vec<Tag>) -> Owner {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Owner(Arc::new(Identity { number: NEXT.fetch_add(1, Ordering::Relaxed), inherited }))
    }
}

/// The holds of all owners of one client.
#[derive(Default)]
pub(crate) struct Owners {
    slots: Mutex<Table<(u64, Resource), Arc<Slot>>>,
    /// The same holds by owner. Reading a slot would need its lock, and so disturb a `try_` on it.
    held: Mutex<Table<u64, Vec<Owned>>>,
}

/// A map from which unused entries are removed now and then.
struct Table<K, V> {
    entries: HashMap<K, V>,
    /// The number of entries at which unused ones are looked for.
    sweep_at: usize,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Table { entries: HashMap::new(), sweep_at: SWEEP_AT }
    }
}

impl<K: Eq + Hash, V> Table<K, V> {
    /// Removes unused entries once the map has grown to twice what was in use the last time. Each entry
    /// is checked a few times on average, however many there are.
    fn sweep(&mut self, is_used: impl Fn(&V) -> bool) {
        if self.entries.len() >= self.sweep_at {
            self.entries.retain(|_, value| is_used(value));
            self.sweep_at = (self.entries.len() * 2).max(SWEEP_AT);
        }
    }
}

/// The hold of one owner on one resource. It is locked during an acquisition, so that two tasks of the
/// owner share one claim.
type Slot = AsyncMutex<Owned>;

/// A hold as the tasks of its owner look at it.
///
/// A look makes no reference to the hold itself: a handle that ended meanwhile would not be the last one, so its
/// release would return before the claim has ended.
#[derive(Clone, Default)]
struct Owned {
    hold: Weak<Hold>,
    /// The lease, which another hold may have by now.
    lease: Weak<Lease>,
    users: Arc<Users>,
}

impl Owned {
    /// Begins to share a hold among the tasks of its owner.
    fn new(hold: Hold) -> (Arc<Hold>, Owned) {
        let (lease, users) = (Arc::downgrade(hold.lease()), Arc::default());
        let hold = Arc::new(hold.with_users(Arc::clone(&users)));
        (hold.clone(), Owned { hold: Arc::downgrade(&hold), lease, users })
    }

    /// Returns `true` if the hold has not ended.
    fn is_there(&self) -> bool {
        self.hold.strong_count() > 0
    }

    /// Returns `true` if a handle uses the hold. Otherwise it is only kept for its minimum hold, or is
    /// being released.
    fn is_used(&self) -> bool {
        self.users.has_any()
    }

    /// Returns the lease, if the hold has not ended and is not lost.
    fn lease(&self) -> Option<Arc<Lease>> {
        let is_held = |lease: &Arc<Lease>| {
            mutant!("an owner has what is lost") || !matches!(lease.state(), State::Lost(_))
        };
        self.lease.upgrade().filter(|_| self.is_there()).filter(is_held)
    }

    /// Returns a handle of the hold, if it covers what is wanted. `None` if the hold has ended or is lost.
    fn join(&self, want: &Want) -> Result<Option<HoldHandle>> {
        // It may have ended since the look.
        self.join_by(want, || self.hold.upgrade().map(HoldHandle::new))
    }

    /// Does what [`Owned::join`] does without the lock of the slot. The task that has it may wait for the end of a hold
    /// that is only kept, so one without users is not joined.
    fn join_if_used(&self, want: &Want) -> Result<Option<HoldHandle>> {
        self.join_by(want, || self.users.enter_beside_others(&self.hold).map(HoldHandle::entered))
    }

    fn join_by(&self, want: &Want, enter: impl Fn() -> Option<HoldHandle>) -> Result<Option<HoldHandle>> {
        let Some(lease) = self.lease() else { return Ok(None) };
        if lease.claim.share.covers(want.share) {
            return Ok(enter());
        }
        if self.is_used() || mutant!("an owner waits for what it let go of") {
            return Err(would_wait_for_itself(lease.claim.share, want));
        }
        // A hold without users that is only kept for its minimum hold ends by itself, so it can be waited for.
        Ok(None)
    }
}

impl Owners {
    pub(crate) async fn acquire(
        &self,
        engine: &Arc<Engine>,
        owner: &Owner,
        want: Want,
        deadline: Deadline,
        priority: i32,
    ) -> Result<Option<HoldHandle>> {
        let slot = self.slot(owner, &want.resource);
        let mut held = if deadline.is_zero() {
            match slot.try_lock() {
                Ok(held) => held,
                // Another task of this owner waits for it, or joins a hold.
                Err(_) => {
                    let held = self.held_on(owner, &want.resource);
                    return held.map_or(Ok(None), |held| held.join_if_used(&want));
                }
            }
        } else {
            tokio::select! {
                biased;
                held = slot.lock() => held,
                () = deadline.passed() => return Err(Error::timeout(deadline.waited(), &want.resource)),
                () = engine.closed.cancelled() => return Err(Error::closed("lock").on(&want.resource)),
            }
        };
        // A lost hold counts as absent: the server decides on the new request.
        if let Some(joined) = held.join(&want)? {
            return Ok(Some(joined));
        }
        let Some(hold) = engine.acquire_unowned(want, deadline, priority).await? else { return Ok(None) };
        let (hold, owned) = Owned::new(hold);
        *held = owned.clone();
        self.note(owner, owned);
        Ok(Some(HoldHandle::new(hold)))
    }

    fn note(&self, owner: &Owner, owned: Owned) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.sweep(|holds| holds.iter().any(Owned::is_there));
        let holds = held.entries.entry(owner.0.number).or_default();
        holds.retain(Owned::is_there);
        holds.push(owned);
    }

    /// Returns what an owner holds on a resource, without the lock of its slot.
    fn held_on(&self, owner: &Owner, resource: &Resource) -> Option<Owned> {
        let is_on = |owned: &Owned| owned.lease().is_some_and(|lease| lease.claim.resource == *resource);
        self.all_of(owner).into_iter().find(is_on)
    }

    fn all_of(&self, owner: &Owner) -> Vec<Owned> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.entries.get(&owner.0.number).cloned().unwrap_or_default()
    }

    /// Returns the claims that an owner holds now, its own and those that it inherited, in the same order each time.
    /// An announcement has room for the first of them.
    pub(crate) fn holds(&self, owner: &Owner) -> Vec<Tag> {
        // A lease whose last reference is dropped below, and its clock, are not called under the lock.
        let holds = self.all_of(owner);
        let used = holds.iter().filter(|owned| owned.is_used()).filter_map(Owned::lease);
        let mut tags: Vec<Tag> = used.map(|lease| Tag::of(lease.claim.id)).collect();
        tags.extend(&owner.0.inherited);
        tags
    }

    fn slot(&self, owner: &Owner, resource: &Resource) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.sweep(|slot| Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|held| held.is_there()));
        slots.entries.entry((owner.0.number, resource.clone())).or_default().clone()
    }
}

fn would_wait_for_itself(has: Share, want: &Want) -> Error {
    let text = format!(
        "this owner holds it as {has}, so a request for {} would wait for itself; release it first, or \
         request the larger share from the start",
        want.share
    );
    Error::new(ErrorKind::Deadlock, "lock", text).on(&want.resource)
}

/// The number of owned resources from which looking for unused slots is worth it.
const SWEEP_AT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;
    use crate::local::MemoryBackend;
    use std::cell::Cell;

    /// Neither of one owner of many locks, nor of many owners.
    #[tokio::test]
    async fn nothing_is_left_of_what_owners_held() {
        let locks = Client::builder().over(Arc::new(MemoryBackend::new())).unwrap();
        let (first, mut owner) = (Owner::new(), Owner::new());
        let kept = locks.mutex("kept").owner(&first);
        let guard = kept.lock().await.unwrap();
        let engine = guard.hold().engine().clone();
        let other = locks.mutex("kept").owner(&Owner::new());
        let waits = || {
            let other = other.clone();
            tokio::spawn(async move { other.lock().await.unwrap() })
        };
        let waiting = waits();
        for number in 0..4 * SWEEP_AT {
            if number % 2 == 0 {
                owner = Owner::new();
            }
            for owner in [&first, &owner] {
                let mutex = locks.mutex(format!("job/{number}")).owner(owner);
                mutex.lock().await.unwrap().release().await.unwrap();
            }
        }
        let slots = engine.owners.slots.lock().unwrap().entries.len();
        assert!(slots <= 2 * SWEEP_AT, "{slots}");
        {
            let held = engine.owners.held.lock().unwrap();
            assert!(held.entries.len() <= 2 * SWEEP_AT, "{}", held.entries.len());
            assert!(held.entries[&first.0.number].len() <= 2);
        }
        assert!(kept.try_lock().await.unwrap().is_some(), "it is re-entered");
        let joins = waits();
        tokio::task::yield_now().await;
        drop(guard);
        let (waiting, joins) = (waiting.await.unwrap(), joins.await.unwrap());
        assert_eq!(waiting.fence(), joins.fence(), "one claim for both tasks of its owner");
    }

    #[test]
    fn a_sweep_costs_little_however_many_are_in_use() {
        for in_use in [SWEEP_AT, SWEEP_AT + 1, 3 * SWEEP_AT] {
            let (mut table, looks) = (Table::<usize, bool>::default(), Cell::new(0));
            let mut most = 0;
            for number in 0..10 * SWEEP_AT {
                // `in_use` of them stay in use, and each of the others only for a moment.
                table.sweep(|is_used| {
                    looks.set(looks.get() + 1);
                    *is_used
                });
                table.entries.insert(number, number < in_use);
                most = most.max(table.entries.len());
            }
            assert!(looks.get() <= 30 * SWEEP_AT, "{in_use} in use: {} looks", looks.get());
            assert!(most <= 2 * in_use.max(SWEEP_AT), "{in_use} in use: {most} entries");
        }
    }
}
