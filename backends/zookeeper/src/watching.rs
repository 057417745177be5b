//! Watches that the client crate must not have too many of.
//!
//! After a reconnect zookeeper-client 0.11.2 sets its watches again in requests of 128 KiB each. Of those on children, and on nodes that
//! are not there, each further request repeats all that were in the ones before, so with enough of them a request becomes longer than
//! servers read, and the session can never be resumed. Those are counted here; who finds no room looks again after a while.
//! Watches on nodes that are there are not repeated, and are not counted.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zookeeper_client::{Error, OneshotWatcher, Stat};

use crate::session::Session;

/// How many bytes the paths of such watches of one session may still take.
pub(crate) struct WatchRoom(Arc<Semaphore>);

/// What ends when there may be something new.
pub(crate) enum Watching {
    Watch(OneshotWatcher, Option<OwnedSemaphorePermit>),
    /// There was no room for a watch.
    Pause,
}

impl WatchRoom {
    pub(crate) fn new() -> WatchRoom {
        WatchRoom(Arc::new(Semaphore::new(ROOM)))
    }

    fn take(&self, path: &str) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(path.len()).ok()?;
        self.0.clone().try_acquire_many_owned(bytes).ok()
    }
}

impl Watching {
    /// Waits for the change, or for as long as one waits without a watch.
    pub(crate) async fn changed(self) {
        match self {
            Watching::Watch(watcher, _room) => drop(watcher.changed().await),
            Watching::Pause => tokio::time::sleep(PAUSE).await,
        }
    }
}

impl Session {
    /// The children of a node, and a watch on their next change.
    pub(crate) async fn watch_children(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<(Vec<String>, Stat, Watching), Error> {
        let Some(room) = self.watches.take(path) else {
            let (names, stat) = self.ask(limit, self.client.get_children(path)).await?;
            return Ok((names, stat, Watching::Pause));
        };
        let (names, stat, watcher) = self.ask(limit, self.client.get_and_watch_children(path)).await?;
        Ok((names, stat, Watching::Watch(watcher, Some(room))))
    }

    /// Whether a node is there, and where it is not, a watch on its making.
    pub(crate) async fn watch_absent(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<(Option<Stat>, Watching), Error> {
        let Some(room) = self.watches.take(path) else {
            return Ok((self.ask(limit, self.client.check_stat(path)).await?, Watching::Pause));
        };
        let (stat, watcher) = self.ask(limit, self.client.check_and_watch_stat(path)).await?;
        Ok((stat, Watching::Watch(watcher, Some(room))))
    }
}

/// Half of what servers read in one request unless they are told otherwise, so that there is room for the others.
const ROOM: usize = 512 * 1024;
/// For how long one waits without a watch.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_take_room_for_as_long_as_they_last() {
        let room = WatchRoom::new();
        let path = "/".repeat(ROOM / 2);
        let (first, second) = (room.take(&path), room.take(&path));
        assert!(first.is_some() && second.is_some() && room.take("/").is_none());
        drop(first);
        assert!(room.take("/").is_some());
    }
}
