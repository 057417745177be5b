//! A request for a lock of the plan.

use std::time::Duration;

use leasehold::{Client, Error, Guard, Owner};
use leasehold_history::{Mode, Values};

use crate::clock::nanos;
use crate::plan::LockKind;

/// The outcome of a request for a lock.
pub(super) enum Asked {
    Granted(Guard),
    Busy,
    Cancelled,
    Failed(Error),
}

/// A request for a lock.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) ttl: Duration,
    pub(super) limit: Duration,
    pub(super) kind: LockKind,
    pub(super) mode: Mode,
}

impl Wanted {
    pub(super) fn values(self) -> Values {
        let mut values = Values::default();
        (values.mode, values.limit) = (Some(self.mode), Some(nanos(self.limit)));
        values.ttl = Some(nanos(self.ttl));
        values
    }
}

pub(super) async fn acquire(
    client: &Client,
    wanted: Wanted,
    key: &str,
    owner: Option<&Owner>,
) -> leasehold::Result<Option<Guard>> {
    let Wanted { ttl, limit, kind, mode } = wanted;
    match (kind, mode) {
        (LockKind::Mutex, _) => {
            let mutex = client.mutex(key).ttl(ttl);
            owner.map_or(mutex.clone(), |owner| mutex.owner(owner)).try_lock_for(limit).await
        }
        (LockKind::ReadWrite, Mode::Shared) => client.rwlock(key).ttl(ttl).try_read_for(limit).await,
        (LockKind::ReadWrite, _) => {
            let lock = client.rwlock(key).ttl(ttl);
            owner.map_or(lock.clone(), |owner| lock.owner(owner)).try_write_for(limit).await
        }
        (LockKind::Semaphore(of), _) => client.semaphore(key, of).ttl(ttl).try_acquire_for(limit).await,
    }
}
