//! Claims whose end could not be confirmed, until a server says that they are gone.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{Claim, ClaimId};
use tokio::sync::Notify;

/// Abandoned claims that may still exist.
#[derive(Default)]
pub(crate) struct Leftovers {
    claims: Mutex<HashMap<ClaimId, Claim>>,
    pub(crate) added: Arc<Notify>,
}

impl Leftovers {
    pub(crate) fn add(&self, claim: &Claim) {
        self.lock().insert(claim.id, claim.clone());
        self.added.notify_one();
    }

    pub(crate) fn remove(&self, id: ClaimId) {
        self.lock().remove(&id);
    }

    /// Returns some of them.
    pub(crate) fn sample(&self, count: usize) -> Vec<Claim> {
        self.lock().values().take(count).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Claim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leftovers({} claims)", self.lock().len())
    }
}

impl Drop for Leftovers {
    /// Wakes the background once more, to find that the client is gone.
    fn drop(&mut self) {
        self.added.notify_one();
    }
}
