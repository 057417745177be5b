//! One lock with what is asked of it, so that locks of different kinds go into one list.

use std::sync::Arc;

use leasehold_core::{Clock, Resource, Share};

use super::kind::{Counted, Exclusive, Shared};
use super::{Guard, Lock};
use crate::engine::Wait;
use crate::error::Result;

/// A lock, and how much of it is wanted: a part of a [`MultiLock`](crate::MultiLock).
///
/// A mutex becomes one by `From`; of the others one says which: [`RwLock::reading`](crate::RwLock::reading),
/// [`RwLock::writing`](crate::RwLock::writing), [`Semaphore::taking`](crate::Semaphore::taking).
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

    /// What is locked.
    ///
    /// # Errors
    /// `Invalid` for a name that no resource can have.
    pub fn resource(&self) -> Result<&Resource> {
        self.lock.name.as_ref().map_err(Clone::clone)
    }

    /// How much of it is wanted.
    ///
    /// # Errors
    /// `Invalid` for a share that cannot be.
    pub fn share(&self) -> Result<Share> {
        self.share.clone()
    }

    /// The clock of its client.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.lock.engine.clock()
    }

    /// The name of the store's kind.
    pub(crate) fn backend_name(&self) -> &'static str {
        self.lock.engine.profile().name
    }

    /// Whether both are locks of one client on one resource.
    pub(crate) fn is_same_lock(&self, other: &Part) -> bool {
        std::sync::Arc::ptr_eq(self.lock.engine.backend(), other.lock.engine.backend())
            && matches!((&self.lock.name, &other.lock.name), (Ok(one), Ok(another)) if one == another)
    }

    /// Whether this is in order, without anything being sent.
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
    /// To read beside other readers, as a part of a [`MultiLock`](crate::MultiLock).
    pub fn reading(&self) -> Part {
        Part::of(self, Ok(Share::READER))
    }

    /// To write alone, as a part of a [`MultiLock`](crate::MultiLock).
    pub fn writing(&self) -> Part {
        Part::of(self, Ok(Share::WRITER))
    }
}

impl Lock<Counted> {
    /// To take so many permits, as a part of a [`MultiLock`](crate::MultiLock).
    pub fn taking(&self, permits: u32) -> Part {
        Part::of(self, Share::permits(permits, self.kind.permits).map_err(Into::into))
    }
}
