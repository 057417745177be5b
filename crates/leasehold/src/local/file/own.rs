//! The claims of this process: what keeps them alive, and what was granted to them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{ClaimId, Fence, LossCause, LossSignal, LossTrigger};
use tokio::task::AbortHandle;

use super::pulse::Pulse;

/// All claims of one backend that hold or wait. Dropping it ends them all.
#[derive(Debug, Default)]
pub(super) struct OwnClaims(Mutex<HashMap<ClaimId, Own>>);

/// One claim of this process. Dropping it ends its sign of life.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) pulse: Arc<Pulse>,
    pub(super) held: Option<Held>,
    /// The task that notices when somebody breaks it.
    watcher: Option<AbortHandle>,
}

/// What was granted.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) fence: Fence,
    pub(super) signal: LossSignal,
    trigger: LossTrigger,
}

impl OwnClaims {
    pub(super) fn pulse(&self, id: ClaimId) -> Option<Arc<Pulse>> {
        self.map().get(&id).map(|own| own.pulse.clone())
    }

    pub(super) fn is_held(&self, id: ClaimId) -> bool {
        self.map().get(&id).is_some_and(|own| own.held.is_some())
    }

    /// The fence and the loss signal of a claim that was granted.
    pub(super) fn grant_of(&self, id: ClaimId) -> Option<(Fence, LossSignal)> {
        self.map().get(&id).and_then(|own| own.held.as_ref()).map(|held| (held.fence, held.signal.clone()))
    }

    /// Remembers a claim that stands in line.
    pub(super) fn waits(&self, id: ClaimId, pulse: Arc<Pulse>) {
        // Made only where there is none: dropping one that is not needed would end the sign of life of the other.
        self.map().entry(id).or_insert_with(|| Own { pulse, held: None, watcher: None });
    }

    /// Remembers a claim that was granted.
    pub(super) fn holds(&self, id: ClaimId, pulse: Arc<Pulse>, fence: Fence) {
        let (trigger, signal) = LossTrigger::new();
        // Changed in place: dropping what stood there before would end the sign of life that both share.
        let mut map = self.map();
        let own = map.entry(id).or_insert_with(|| Own { pulse, held: None, watcher: None });
        own.held = Some(Held { fence, signal, trigger });
    }

    /// Ends the task with the claim that it watches over, which may have ended meanwhile.
    pub(super) fn watched_by(&self, id: ClaimId, watcher: AbortHandle) {
        match self.map().get_mut(&id) {
            Some(own) => own.watcher = Some(watcher),
            None => watcher.abort(),
        }
    }

    pub(super) fn has_watcher(&self, id: ClaimId) -> bool {
        self.map().get(&id).is_some_and(|own| own.watcher.is_some())
    }

    /// Forgets a claim. Dropping what is returned ends its sign of life.
    pub(super) fn forget(&self, id: ClaimId) -> Option<Own> {
        self.map().remove(&id)
    }

    /// Forgets a claim that somebody else ended, and says so to its holder.
    pub(super) fn lose(&self, id: ClaimId) {
        // Told before the sign of life ends: the holder learns of it before the next one can hold.
        if let Some(own) = self.forget(id)
            && let Some(held) = &own.held
        {
            held.trigger.fire(LossCause::Gone);
        }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<ClaimId, Own>> {
        // Every change of the map is a single call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.pulse.end();
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
    }
}
