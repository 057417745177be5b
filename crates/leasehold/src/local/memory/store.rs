//! The ledgers of all resources, and the wake-ups of sleeping calls.
//!
//! Ground rules: no time of its own, and no waiting. Every change of a ledger ends in
//! [`MemoryState::finish_change`], so that no change forgets the wake-ups, and no queue without claims is kept.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use leasehold_core::{Ask, Claim, ClaimId, Entry, Fence, Ledger, Moment, Resource, ResourceSummary, Verdict};
use tokio::sync::Notify;

use super::MemoryBackend;

/// The key of a wake-up: a claim, or a resource for all calls that inspect it.
pub(super) type WakeupKey = (Resource, Option<ClaimId>);

/// The state behind the mutex.
#[derive(Default)]
pub(super) struct MemoryState {
    /// The resources that have claims, or had when they were last used.
    pub(super) ledgers: BTreeMap<Resource, Ledger>,
    /// The resource whose ledger became empty last. It is kept for the next claim, which is often one on the same
    /// resource.
    rested: Option<Resource>,
    /// The last fences of resources without claims.
    pub(super) idle: HashMap<Resource, Fence>,
    /// A fence above the last fence of every resource that is in neither map.
    floor: Fence,
    /// The sleeping calls: on a claim, or on any change of a resource.
    pub(super) wakeups: HashMap<WakeupKey, Arc<Notify>>,
    /// The number of queues after the last sweep.
    swept: usize,
}

impl MemoryState {
    pub(super) fn ledger(&mut self, resource: &Resource, now: Moment) -> &mut Ledger {
        if !self.ledgers.contains_key(resource) {
            self.sweep(now);
            let last = self.idle.remove(resource).unwrap_or(self.floor);
            self.ledgers.insert(resource.clone(), Ledger::new(last));
        }
        self.ledgers.entry(resource.clone()).or_default()
    }

    /// Removes claims that were not released, each time the number of queues has doubled:
    /// constant work per new queue.
    fn sweep(&mut self, now: Moment) {
        if self.ledgers.len() < MIN_SWEEP.max(self.swept * 2) {
            return;
        }
        let all: Vec<Resource> = self.ledgers.keys().cloned().collect();
        all.iter().for_each(|resource| self.expire(resource, now));
        self.swept = self.ledgers.len();
    }

    pub(super) fn entries(&self, resource: &Resource) -> &[Entry] {
        self.ledgers.get(resource).map(Ledger::entries).unwrap_or_default()
    }

    pub(super) fn wakeup(&mut self, at: &WakeupKey) -> Arc<Notify> {
        Arc::clone(self.wakeups.entry(at.clone()).or_default())
    }

    /// Removes a wake-up on which no call sleeps any more. Returns `false` if one does.
    pub(super) fn remove_wakeup(&mut self, at: &WakeupKey) -> bool {
        let is_unused = self.wakeups.get(at).is_none_or(|wakeup| Arc::strong_count(wakeup) == 1);
        if is_unused {
            self.wakeups.remove(at);
        }
        is_unused
    }

    #[cfg(test)]
    pub(super) fn has_wakeup(&self, at: &WakeupKey) -> bool {
        self.wakeups.contains_key(at)
    }

    pub(super) fn last_fence(&self, resource: &Resource) -> Option<Fence> {
        let known =
            self.ledgers.get(resource).map(Ledger::last_fence).or_else(|| self.idle.get(resource).copied());
        known.filter(|fence| *fence != Fence::default())
    }

    /// Makes the fences of all resources that are not known yet greater than `floor`.
    pub(super) fn raise_floor(&mut self, floor: Fence) {
        self.floor = self.floor.max(floor);
    }

    pub(super) fn highest_fence(&self) -> Fence {
        let known = self.ledgers.values().map(Ledger::last_fence).chain(self.idle.values().copied());
        known.fold(self.floor, Fence::max)
    }

    pub(super) fn renew(&mut self, claim: &Claim, now: Moment) -> bool {
        let Some(ledger) = self.ledgers.get_mut(&claim.resource) else { return false };
        let renewed = ledger.renew(claim.id, claim.ttl, now);
        self.finish_change(&claim.resource);
        renewed
    }

    /// Grants a new claim that does not wait; `None` if it is not admitted now.
    pub(super) fn grant(&mut self, resource: &Resource, ask: &Ask, now: Moment) -> Option<Fence> {
        let ledger = self.ledger(resource, now);
        // A claim that has a place asks by the slow path, which knows what to do with the place.
        let is_new = ledger.entries().iter().all(|entry| entry.id != ask.id);
        let verdict = is_new.then(|| ledger.contend(ask, now));
        self.finish_change(resource);
        match verdict {
            Some(Verdict::Granted(fence)) => Some(fence),
            _ => None,
        }
    }

    pub(super) fn release(&mut self, resource: &Resource, id: ClaimId, now: Moment) -> bool {
        let Some(ledger) = self.ledgers.get_mut(resource) else { return false };
        let freed = ledger.release(id, now);
        self.wake(resource, Some(id));
        self.finish_change(resource);
        self.wake_first_waiter(resource);
        freed
    }

    pub(super) fn expire(&mut self, resource: &Resource, now: Moment) {
        let Some(ledger) = self.ledgers.get_mut(resource) else { return };
        let before = ledger.entries().len();
        ledger.expire(now);
        // What was empty before has not changed: its watchers, who look in this way, must not wake each other.
        if ledger.entries().len() != before {
            self.finish_change(resource);
        }
    }

    pub(super) fn list(
        &mut self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
        now: Moment,
    ) -> Vec<ResourceSummary> {
        // Names with a common prefix are adjacent; a prefix that is not itself a name is empty,
        // or has no names.
        let first = match (Resource::new(prefix), after) {
            (Ok(first), Some(after)) if *after >= first => Bound::Excluded(after.clone()),
            (Ok(first), _) => Bound::Included(first),
            (Err(_), Some(after)) => Bound::Excluded(after.clone()),
            (Err(_), None) => Bound::Unbounded,
        };
        let here = self.ledgers.range((first, Bound::Unbounded)).map(|(resource, _)| resource.clone());
        let here: Vec<Resource> = here.take_while(|resource| resource.as_str().starts_with(prefix)).collect();
        let mut found = Vec::new();
        for resource in here {
            if found.len() >= limit {
                break;
            }
            self.expire(&resource, now);
            let ledger = self.ledgers.get(&resource).filter(|ledger| !ledger.entries().is_empty());
            let Some(ledger) = ledger else { continue };
            let holders = ledger.entries().iter().filter(|entry| entry.granted.is_some()).count();
            let waiting = ledger.entries().len() - holders;
            let (holders, waiting) = (u32::try_from(holders), u32::try_from(waiting));
            let (holders, waiting) = (holders.unwrap_or(u32::MAX), waiting.unwrap_or(u32::MAX));
            found.push(ResourceSummary::new(resource, holders, waiting));
        }
        found
    }

    pub(super) fn wake(&self, resource: &Resource, id: Option<ClaimId>) {
        if self.wakeups.is_empty() {
            return;
        }
        if let Some(wakeup) = self.wakeups.get(&(resource.clone(), id)) {
            wakeup.notify_waiters();
        }
    }

    /// Wakes the first waiter, so that it learns when those ahead of it end. As long as one of them only
    /// waited, it had no end up to which the waiter could sleep.
    pub(super) fn wake_first_waiter(&self, resource: &Resource) {
        if let Some(front) = self.entries(resource).iter().find(|entry| entry.granted.is_none()) {
            self.wake(resource, Some(front.id));
        }
    }

    /// Wakes every call that a change concerns, and removes the queue when it is empty.
    pub(super) fn finish_change(&mut self, resource: &Resource) {
        let Some(ledger) = self.ledgers.get(resource) else { return };
        ledger.called().for_each(|entry| self.wake(resource, Some(entry.id)));
        self.wake(resource, None);
        if !ledger.entries().is_empty() || self.rested.as_ref() == Some(resource) {
            return;
        }
        if let Some(before) = self.rested.replace(resource.clone()) {
            self.put_away(&before);
        }
    }

    /// Removes the ledger of a resource, unless it has claims again. Keeps its last fence.
    fn put_away(&mut self, resource: &Resource) {
        let empty = self.ledgers.get(resource).filter(|ledger| ledger.entries().is_empty());
        let Some(last) = empty.map(Ledger::last_fence) else { return };
        self.ledgers.remove(resource);
        if last > self.floor {
            if self.idle.len() >= MemoryBackend::MAX_IDLE {
                self.floor = self.idle.drain().map(|(_, fence)| fence).fold(self.floor, Fence::max);
            }
            self.idle.insert(resource.clone(), last);
        }
    }
}

/// Fewer queues than this are not worth a sweep.
pub(super) const MIN_SWEEP: usize = 64;
