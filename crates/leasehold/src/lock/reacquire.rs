//! Re-acquires a lock that was released.

use std::sync::Arc;
use std::time::Duration;

use super::Guard;
use super::settings::GuardSettings;
use crate::engine::{Engine, Lease, Wait, Want, Wanted};
use crate::error::{Error, Result};

/// A lock that was held, to be acquired again.
#[derive(Debug)]
pub(crate) struct Reacquire {
    engine: Arc<Engine>,
    want: Want,
    settings: GuardSettings,
}

impl Reacquire {
    pub(super) fn of(engine: Arc<Engine>, lease: &Lease, settings: GuardSettings) -> Reacquire {
        // As the ttl, the lock delay is that of the owner's first guard, which may not be that of `settings`.
        let (claim, lock_delay) = (&lease.claim, lease.lock_delay());
        let want = Want::of(Wanted {
            resource: claim.resource.clone(),
            share: claim.share,
            // The ttl of the claim includes the lock delay.
            ttl: claim.ttl.saturating_sub(lock_delay),
            lock_delay,
            max_hold: settings.max_hold,
            linger: settings.linger,
            note: claim.note.clone(),
        });
        Reacquire { engine, want, settings }
    }

    /// Waits in the queue for the lock.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is left behind.
    pub(crate) async fn lock(&self) -> Result<Guard> {
        let owner = self.settings.owner.as_ref();
        match self.engine.acquire(self.want.clone(), owner, Wait::Forever, self.settings.wait).await? {
            Some(hold) => Ok(Guard::new(hold, self.settings.clone())),
            None => Err(Error::timeout(Duration::ZERO, &self.want.resource)),
        }
    }
}
