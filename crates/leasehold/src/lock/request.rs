//! A lock with its requested share, so that locks of different kinds fit into one list.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Clock, Resource, Share};

use super::kind::{Counted, Exclusive, Kind, Shared};
use super::{Guard, Lock};
use crate::engine::Wait;
use crate::error::Result;

/// A lock with a requested share: a part of a [`MultiLock`](crate::MultiLock).
///
/// A mutex becomes a part by `From`; the other locks name the share:
/// [`RwLock::read_request`](crate::RwLock::read_request),
/// [`RwLock::write_request`](crate::RwLock::write_request),
/// [`Semaphore::permits_request`](crate::Semaphore::permits_request).
#[derive(Clone, Debug)]
pub struct LockRequest {
    lock: Lock<()>,
    share: Result<Share>,
}

impl LockRequest {
    fn of<K: Kind>(lock: &Lock<K>, share: Result<Share>) -> LockRequest {
        let Lock { engine, name, kind: _, settings } = lock;
        let lock = Lock { engine: engine.clone(), name: name.clone(), kind: (), settings: settings.clone() };
        LockRequest { lock, share }
    }

    /// Returns the resource to lock.
    ///
    /// # Errors
    /// `Invalid` if no resource can have this name.
    pub fn resource(&self) -> Result<&Resource> {
        self.lock.name.as_ref().map_err(Clone::clone)
    }

    /// Returns the requested share.
    ///
    /// # Errors
    /// `Invalid` for an impossible share.
    pub fn share(&self) -> Result<Share> {
        self.share.clone()
    }

    /// Returns the clock of its client.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.lock.engine.clock()
    }

    /// Returns the name of the kind of the store.
    pub(crate) fn backend_name(&self) -> &'static str {
        self.lock.engine.profile().name
    }

    /// Returns `true` if both are locks of one client on one resource.
    pub(crate) fn is_same_lock(&self, other: &LockRequest) -> bool {
        std::sync::Arc::ptr_eq(self.lock.engine.backend(), other.lock.engine.backend())
            && matches!((&self.lock.name, &other.lock.name), (Ok(one), Ok(another)) if one == another)
    }

    /// Checks that this part is valid, without sending anything.
    pub(crate) fn check(&self) -> Result<()> {
        self.lock.want(self.share()?).map(drop)
    }

    /// Acquires the lock. Its minimum hold begins when all locks are held.
    pub(crate) async fn try_hold(&self, wait: Wait) -> Result<Option<Guard>> {
        let (want, settings) = (self.lock.want(self.share()?)?, &self.lock.settings.guard);
        let hold = self.lock.engine.acquire(want, settings.owner.as_ref(), wait, settings.wait).await?;
        Ok(hold.map(|hold| Guard::before_min_hold(hold, settings.clone())))
    }

    /// Acquires the lock within the rest of a wait of `limit` for several. If nothing is left of it, the store is asked
    /// once, and has the time of one answer.
    pub(crate) async fn try_hold_within(&self, limit: Duration, waited: Duration) -> Result<Option<Guard>> {
        let asking = self.try_hold(Wait::For(limit.saturating_sub(waited)));
        match waited < limit || limit.is_zero() {
            true => asking.await,
            false => self.lock.engine.with_answer_limit(waited, asking).await,
        }
    }
}

impl From<Lock<Exclusive>> for LockRequest {
    fn from(mutex: Lock<Exclusive>) -> LockRequest {
        LockRequest::of(&mutex, Ok(Share::MUTEX))
    }
}

impl From<&Lock<Exclusive>> for LockRequest {
    fn from(mutex: &Lock<Exclusive>) -> LockRequest {
        LockRequest::of(mutex, Ok(Share::MUTEX))
    }
}

impl Lock<Shared> {
    /// Requests to read beside other readers, as a part of a [`MultiLock`](crate::MultiLock).
    pub fn read_request(&self) -> LockRequest {
        LockRequest::of(self, Ok(Share::READER))
    }

    /// Requests to write alone, as a part of a [`MultiLock`](crate::MultiLock).
    pub fn write_request(&self) -> LockRequest {
        LockRequest::of(self, Ok(Share::WRITER))
    }
}

impl Lock<Counted> {
    /// Requests this number of permits, as a part of a [`MultiLock`](crate::MultiLock).
    pub fn permits_request(&self, permits: u32) -> LockRequest {
        LockRequest::of(self, Share::permits(permits, self.kind.permits).map_err(Into::into))
    }
}
