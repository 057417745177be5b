//! The claims of this process: their liveness FIFOs, and their grants.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use leasehold_core::{Claim, ClaimId, Fence, LossCause, LossSignal, LossTrigger, Resource};
use leasehold_machine::Process;
use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;

use super::kept_dir::KeptDir;
use super::liveness_fifo::LivenessFifo;

/// All claims of one backend that hold or wait. Dropping it ends them all.
#[derive(Debug, Default)]
pub(super) struct LocalClaims(Mutex<HashMap<Key, LocalClaim>>);

/// One claim of this process. Dropping it ends its sign of life.
#[derive(Debug)]
pub(super) struct LocalClaim {
    pub(super) life: Life,
    pub(super) held: Option<GrantData>,
    /// The file that its release can use, if it is kept open.
    pub(super) kept: Option<KeptDir>,
}

/// A sign of life, and the tasks that watch over it. Dropping it ends the sign of life.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) fifo: Arc<LivenessFifo>,
    /// The tasks that notice when another process breaks the claim: one on each runtime that has used the sign
    /// of life. The task of an earlier claim may be on a runtime that exists, but that nothing drives.
    watchers: Vec<(Option<Id>, AbortHandle)>,
    process: Process,
}

/// The data of a grant.
#[derive(Debug)]
pub(super) struct GrantData {
    pub(super) fence: Fence,
    pub(super) signal: LossSignal,
    trigger: LossTrigger,
    /// The sign of life as long as it is that of this claim: the FIFO may outlive it.
    pub(super) sign: Arc<HeldSign>,
}

/// The sign of life of one granted claim.
#[derive(Debug)]
pub(super) struct HeldSign(pub(super) Arc<LivenessFifo>);

/// An id counts only on the resource that it claimed.
type Key = (ClaimId, Resource);

fn key(claim: &Claim) -> Key {
    (claim.id, claim.resource.clone())
}

impl LocalClaims {
    pub(super) fn fifo(&self, claim: &Claim) -> Option<Arc<LivenessFifo>> {
        self.map().get(&key(claim)).map(|own| own.life.fifo.clone())
    }

    pub(super) fn is_held(&self, claim: &Claim) -> bool {
        self.map().get(&key(claim)).is_some_and(|own| own.held.is_some())
    }

    /// Returns the fence, the loss signal and the sign of life of a claim that was granted. `watch` starts the
    /// task that watches over it, if none does on this runtime.
    pub(super) fn grant_of(
        &self,
        claim: &Claim,
        watch: impl FnOnce(Arc<LivenessFifo>) -> AbortHandle,
    ) -> Option<(Fence, LossSignal, Weak<HeldSign>)> {
        let mut map = self.map();
        let own = map.get_mut(&key(claim))?;
        let held = own.held.as_ref()?;
        // A task ends with its runtime, and the claim may be used by the next one.
        own.life.watchers.retain(|(_, watcher)| !watcher.is_finished());
        let runtime = Handle::try_current().ok().map(|runtime| runtime.id());
        if own.life.watchers.iter().all(|(watched_on, _)| *watched_on != runtime) {
            own.life.watchers.push((runtime, watch(own.life.fifo.clone())));
        }
        Some((held.fence, held.signal.clone(), Arc::downgrade(&held.sign)))
    }

    /// Remembers a waiting claim.
    pub(super) fn waits(&self, claim: &Claim, fifo: Arc<LivenessFifo>) {
        // Made only if there is none: dropping one that is not needed would end the sign of
        // life of the other.
        self.map().entry(key(claim)).or_insert_with(|| LocalClaim::new(Life::of(fifo)));
    }

    /// Remembers a claim that was granted.
    pub(super) fn holds(&self, claim: &Claim, fifo: Arc<LivenessFifo>, fence: Fence) {
        // Changed in place: dropping the previous entry would end the sign of life that both share.
        let mut map = self.map();
        let own = map.entry(key(claim)).or_insert_with(|| LocalClaim::new(Life::of(fifo)));
        own.held = Some(GrantData::new(&own.life.fifo, fence));
    }

    /// Remembers a claim that was granted with the sign of life of an earlier one.
    pub(super) fn holds_with(&self, claim: &Claim, life: Life, fence: Fence) {
        let held = Some(GrantData::new(&life.fifo, fence));
        let before = self.map().insert(key(claim), LocalClaim { life, held, kept: None });
        drop(before);
    }

    /// Keeps files open for the release of a claim, if it still holds. Called without the short lock.
    pub(super) fn keep(&self, claim: &Claim, kept: KeptDir) {
        if let Some(own) = self.map().get_mut(&key(claim)).filter(|own| own.held.is_some()) {
            own.kept = Some(kept);
        }
    }

    /// Forgets a claim. Dropping the returned value ends its sign of life.
    pub(super) fn forget(&self, claim: &Claim) -> Option<LocalClaim> {
        self.map().remove(&key(claim))
    }

    /// Remembers a claim again that was forgotten.
    pub(super) fn put_back(&self, claim: &Claim, own: LocalClaim) {
        self.map().insert(key(claim), own);
    }

    /// Forgets a claim that another process ended, and notifies its holder.
    ///
    /// `fifo` is the sign of life that was found without its name: by now the claim may have been
    /// released, and taken again, by its own process.
    pub(super) fn lose(&self, claim: &Claim, fifo: &Arc<LivenessFifo>) {
        let lost = {
            let mut map = self.map();
            let is_same = map.get(&key(claim)).is_some_and(|own| Arc::ptr_eq(&own.life.fifo, fifo));
            if is_same { map.remove(&key(claim)) } else { None }
        };
        notify(lost);
    }

    /// Does the same for the claim that has this sign of life, if there is one.
    pub(super) fn lose_by(&self, fifo: &Arc<LivenessFifo>) {
        let lost = {
            let mut map = self.map();
            let key =
                map.iter().find(|(_, own)| Arc::ptr_eq(&own.life.fifo, fifo)).map(|(key, _)| key.clone());
            key.and_then(|key| map.remove(&key))
        };
        notify(lost);
    }

    fn map(&self) -> MutexGuard<'_, HashMap<Key, LocalClaim>> {
        // Every change of the map is a single call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notifies the holder of a claim before its sign of life ends: it learns of the loss before the next one can
/// hold.
fn notify(lost: Option<LocalClaim>) {
    if let Some(own) = &lost {
        own.notify();
    }
}

impl LocalClaim {
    fn new(life: Life) -> LocalClaim {
        LocalClaim { life, held: None, kept: None }
    }

    /// Notifies the holder, if the claim was granted, that it has lost it.
    pub(super) fn notify(&self) {
        if let Some(held) = &self.held {
            held.trigger.fire(LossCause::Gone);
        }
    }

    /// Returns `true` if no other process has the sign of life, or will get it from this claim's grant.
    pub(super) fn is_private(&mut self) -> bool {
        // A program that has the grant may be copying the descriptor at this moment: then it shares this value.
        let is_last = self.held.take().is_none_or(|held| Arc::into_inner(held.sign).is_some());
        is_last && !self.life.fifo.was_copied()
    }
}

impl GrantData {
    fn new(fifo: &Arc<LivenessFifo>, fence: Fence) -> GrantData {
        let (trigger, signal) = LossTrigger::new();
        GrantData { fence, signal, trigger, sign: Arc::new(HeldSign(fifo.clone())) }
    }
}

impl Life {
    fn of(fifo: Arc<LivenessFifo>) -> Life {
        Life { fifo, watchers: Vec::new(), process: Process::this() }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        for (_, watcher) in &self.watchers {
            watcher.abort();
        }
        // A fork shares the lock with its parent, whose claim it still is.
        if self.process.is_this() {
            drop(self.fifo.remove());
            self.fifo.end();
        }
    }
}
