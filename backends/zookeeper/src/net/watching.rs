//! Watches, of which the client crate must not have too many.
//!
//! After a reconnect zookeeper-client 0.11.2 sets the watches of a session again, in requests of 128
//! KiB. All these requests have the same number, so a second one makes it take the answer for a mistake
//! of the server, and close the connection: the session can never be resumed, and is lost with all that
//! it holds. So the paths of all watches of a session are counted here, and fit in one request. A
//! waiter without a watch looks again after a while.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use leasehold_core::Failure;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use zookeeper_client::OneshotWatcher;

/// The bytes that the paths of the watches of one session may still take.
pub(crate) struct WatchCapacity {
    free: Arc<Semaphore>,
    /// Held by the waiter without a watch that looks again: they look one after the other.
    looks: Arc<Mutex<()>>,
}

/// A watch or a pause, which ends when there may be something new.
pub(crate) enum Watching {
    Watch(OneshotWatcher, OwnedSemaphorePermit),
    /// There was no capacity for a watch.
    Pause(Arc<Mutex<()>>),
}

impl WatchCapacity {
    pub(crate) fn new() -> WatchCapacity {
        WatchCapacity { free: Arc::new(Semaphore::new(PATH_BYTES_MAX)), looks: Arc::default() }
    }

    pub(crate) fn take(&self, path: &str) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_many_owned(u32::try_from(path.len()).ok()?).ok()
    }

    /// Takes capacity for a watch without a waiter: half of all is left to waiters.
    pub(crate) fn take_spare(&self, path: &str) -> Option<OwnedSemaphorePermit> {
        (self.free.available_permits() > PATH_BYTES_MAX / 2).then(|| self.take(path)).flatten()
    }

    pub(crate) fn pause(&self) -> Watching {
        Watching::Pause(self.looks.clone())
    }
}

impl Watching {
    /// Waits for the change, or for as long as one waits without a watch.
    pub(crate) async fn changed(self) {
        match self {
            Watching::Watch(watcher, permit) => watcher.changed().map(|_| drop(permit)).await,
            Watching::Pause(looks) => {
                tokio::time::sleep(PAUSE).await;
                let _turn = looks.lock().await;
                tokio::time::sleep(BETWEEN).await;
            }
        }
    }
}

/// Waits until one of the watches ends; without any it returns at once. Does not fail.
pub(crate) async fn any_change(watchers: Vec<Watching>) -> Result<(), Failure> {
    watchers.into_iter().map(Watching::changed).collect::<FuturesUnordered<_>>().next().await;
    Ok(())
}

/// The bytes that the client crate puts in one request, less some for watches that were dropped and are
/// not yet removed.
const PATH_BYTES_MAX: usize = 120 * 1024;
/// The shortest wait without a watch.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause between two looks of claims without a watch, so that thousands of them do not keep the
/// servers busy.
const BETWEEN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_take_room_for_as_long_as_they_last() {
        let capacity = WatchCapacity::new();
        let half = "/".repeat(PATH_BYTES_MAX / 2);
        let first = capacity.take_spare(&half);
        assert!(first.is_some() && capacity.take_spare("/").is_none(), "half is for those who wait");
        let second = capacity.take(&half);
        assert!(second.is_some() && capacity.take("/").is_none());
        drop(first);
        assert!(capacity.take("/").is_some());
    }
}
