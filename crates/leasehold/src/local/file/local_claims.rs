//! The claims of this process: their liveness FIFOs, and their grants.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{Claim, ClaimId, Fence, LossCause, LossSignal, LossTrigger, Resource};
use tokio::task::AbortHandle;

use super::liveness_fifo::LivenessFifo;

/// All claims of one backend that hold or wait. Dropping it ends them all.
#[derive(Debug, Default)]
pub(super) struct LocalClaims(Mutex<HashMap<Key, LocalClaim>>);

/// One claim of this process. Dropping it ends its sign of life.
#[derive(Debug)]
pub(super) struct LocalClaim {
    pub(super) fifo: Arc<LivenessFifo>,
    pub(super) held: Option<GrantData>,
    /// The task that notices when another process breaks it.
    watcher: Option<AbortHandle>,
}

/// The data of a grant.
#[derive(Debug)]
pub(super) struct GrantData {
    pub(super) fence: Fence,
    pub(super) signal: LossSignal,
    trigger: LossTrigger,
}

/// An id counts only on the resource that it claimed.
type Key = (ClaimId, Resource);

fn key(claim: &Claim) -> Key {
    (claim.id, claim.resource.clone())
}

impl LocalClaims {
    pub(super) fn fifo(&self, claim: &Claim) -> Option<Arc<LivenessFifo>> {
        self.map().get(&key(claim)).map(|own| own.fifo.clone())
    }

    pub(super) fn is_held(&self, claim: &Claim) -> bool {
        self.map().get(&key(claim)).is_some_and(|own| own.held.is_some())
    }

    /// Returns the fence and the loss signal of a claim that was granted.
    pub(super) fn grant_of(&self, claim: &Claim) -> Option<(Fence, LossSignal)> {
        self.map()
            .get(&key(claim))
            .and_then(|own| own.held.as_ref())
            .map(|held| (held.fence, held.signal.clone()))
    }

    /// Remembers a waiting claim.
    pub(super) fn waits(&self, claim: &Claim, fifo: Arc<LivenessFifo>) {
        // Made only if there is none: dropping one that is not needed would end the sign of
        // life of the other.
        self.map().entry(key(claim)).or_insert_with(|| LocalClaim { fifo, held: None, watcher: None });
    }

    /// Remembers a claim that was granted.
    pub(super) fn holds(&self, claim: &Claim, fifo: Arc<LivenessFifo>, fence: Fence) {
        let (trigger, signal) = LossTrigger::new();
        // Changed in place: dropping the previous entry would end the sign of life that both share.
        let mut map = self.map();
        let own = map.entry(key(claim)).or_insert_with(|| LocalClaim { fifo, held: None, watcher: None });
        own.held = Some(GrantData { fence, signal, trigger });
    }

    /// Ends the task with the claim that it watches over, which may have ended meanwhile.
    pub(super) fn watched_by(&self, claim: &Claim, watcher: AbortHandle) {
        match self.map().get_mut(&key(claim)) {
            Some(own) => own.watcher = Some(watcher),
            None => watcher.abort(),
        }
    }

    pub(super) fn has_watcher(&self, claim: &Claim) -> bool {
        self.map().get(&key(claim)).is_some_and(|own| own.watcher.is_some())
    }

    /// Forgets a claim. Dropping the returned value ends its sign of life.
    pub(super) fn forget(&self, claim: &Claim) -> Option<LocalClaim> {
        self.map().remove(&key(claim))
    }

    /// Forgets a claim that another process ended, and notifies its holder.
    ///
    /// `fifo` is the sign of life that was found without its name: by now the claim may have been
    /// released, and taken again, by its own process.
    pub(super) fn lose(&self, claim: &Claim, fifo: &Arc<LivenessFifo>) {
        let lost = {
            let mut map = self.map();
            let is_same = map.get(&key(claim)).is_some_and(|own| Arc::ptr_eq(&own.fifo, fifo));
            if is_same { map.remove(&key(claim)) } else { None }
        };
        // Notified before the sign of life ends: the holder learns of it before the next one can hold.
        if let Some(held) = lost.as_ref().and_then(|own| own.held.as_ref()) {
            held.trigger.fire(LossCause::Gone);
        }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<Key, LocalClaim>> {
        // Every change of the map is a single call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LocalClaim {
    fn drop(&mut self) {
        self.fifo.end();
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
    }
}
