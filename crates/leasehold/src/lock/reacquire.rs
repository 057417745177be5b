//! Re-acquires a lock that was released.

use std::sync::Arc;
use std::time::Duration;

use super::Guard;
use crate::engine::{Engine, Lease, Owner, Wait, WaitOptions, Want, Wanted};
use crate::error::{Error, Result};

/// The settings of a lock, besides those that are part of its claim.
#[derive(Clone, Debug)]
pub(crate) struct LockOptions {
    pub(super) max_hold: Option<Duration>,
    pub(super) min_hold: Duration,
    pub(super) linger: Duration,
    pub(super) options: WaitOptions,
    pub(super) owner: Option<Owner>,
}

/// A lock that was held, to be acquired again.
#[derive(Debug)]
pub(crate) struct Reacquire {
    engine: Arc<Engine>,
    want: Want,
    terms: LockOptions,
}

impl Reacquire {
    pub(super) fn of(engine: Arc<Engine>, lease: &Lease, terms: LockOptions) -> Reacquire {
        // As the ttl, the lock delay is that of the owner's first guard, which may not be that of `terms`.
        let (claim, lock_delay) = (&lease.claim, lease.lock_delay());
        let want = Want::of(Wanted {
            resource: claim.resource.clone(),
            share: claim.share,
            // The ttl of the claim includes the lock delay.
            ttl: claim.ttl.saturating_sub(lock_delay),
            lock_delay,
            max_hold: terms.max_hold,
            linger: terms.linger,
            note: claim.note.clone(),
        });
        Reacquire { engine, want, terms }
    }

    /// Waits in the queue for the lock.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is left behind.
    pub(crate) async fn lock(&self) -> Result<Guard> {
        let owner = self.terms.owner.as_ref();
        match self.engine.acquire(self.want.clone(), owner, Wait::Forever, self.terms.options).await? {
            Some(hold) => Ok(Guard::new(hold, self.terms.clone())),
            None => Err(Error::timeout(Duration::ZERO, &self.want.resource)),
        }
    }
}
