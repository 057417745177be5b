//! A lock with its requested share, so that locks of different kinds fit into one list.

use std::sync::Arc;

use leasehold_core::{Clock, Resource, Share};

use super::kind::{Counted, Exclusive, Shared};
use super::{Guard, Lock};
use crate::engine::Wait;
use crate::error::Result;

/// A lock with a requested share: a part of a [`MultiLock`](crate::MultiLock).
///
/// A mutex becomes a part by `From`; the other locks say which share:
/// [`RwLock::reading`](crate::RwLock::reading), [`RwLock::writing`](crate::RwLock::writing),
/// [`Semaphore::taking`](crate::Semaphore::taking).
#[derive(Clone, Debug)]
pub struct Part {
    lock: Lock<()>,
    share: Result<Share>,
}

impl Part {
    fn of<K>(lock: &Lock<K>, share: Result<Share>) -> Part {
        let Lock { engine, name, ttl, max_hold, at_least, quiet, manner, note, owner, .. } = lock;
        let lock = Lock {
            engine: engine.clone(),
            name: name.clone(),
            kind: (),
            ttl: *ttl,
            max_hold: *max_hold,
            at_least: *at_least,
            quiet: *quiet,
            manner: *manner,
            note: note.clone(),
            owner: owner.clone(),
        };
        Part { lock, share }
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
    pub(crate) fn is_same_lock(&self, other: &Part) -> bool {
        std::sync::Arc::ptr_eq(self.lock.engine.backend(), other.lock.engine.backend())
            && matches!((&self.lock.name, &other.lock.name), (Ok(one), Ok(another)) if one == another)
    }

    /// Checks that this part is valid, without sending anything.
    pub(crate) fn check(&self) -> Result<()> {
        self.lock.want(self.share()?).map(drop)
    }

    pub(crate) async fn try_hold(&self, wait: Wait) -> Result<Option<Guard>> {
        self.lock.try_hold(self.share()?, wait).await
    }
}

impl From<Lock<Exclusive>> for Part {
    fn from(mutex: Lock<Exclusive>) -> Part {
        Part::of(&mutex, Ok(Share::MUTEX))
    }
}

impl From<&Lock<Exclusive>> for Part {
    fn from(mutex: &Lock<Exclusive>) -> Part {
        Part::of(mutex, Ok(Share::MUTEX))
    }
}

impl Lock<Shared> {
    /// Requests to read beside other readers, as a part of a [`MultiLock`](crate::MultiLock).
    pub fn reading(&self) -> Part {
        Part::of(self, Ok(Share::READER))
    }

    /// Requests to write alone, as a part of a [`MultiLock`](crate::MultiLock).
    pub fn writing(&self) -> Part {
        Part::of(self, Ok(Share::WRITER))
    }
}

impl Lock<Counted> {
    /// Requests this number of permits, as a part of a [`MultiLock`](crate::MultiLock).
    pub fn taking(&self, permits: u32) -> Part {
        Part::of(self, Share::permits(permits, self.kind.permits).map_err(Into::into))
    }
}
