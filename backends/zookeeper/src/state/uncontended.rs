//! Containers in which this client was alone: its next claim there needs no look at the queue.
//!
//! ZooKeeper numbers the children of a node by how many of any kind were ever made in it. So where two
//! claims of this client have consecutive numbers, no other claim came between them; and where the
//! first was alone, and is known to be gone, the second is alone. A container that is made anew counts
//! from zero, so the one that was seen is watched: its end is reported before the answer to any request
//! about its successor.
//!
//! Ground rules: an entry is taken out for each use and put back by its user, so that no two claims rely on
//! the same entry. A watch costs a request, so it is set where a claim was alone before, and
//! not for names that are used once.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use leasehold_core::Resource;

use crate::net::watching::Watching;

/// The containers of one client.
#[derive(Default)]
pub(crate) struct Uncontended(Mutex<HashMap<Resource, Alone>>);

/// The knowledge of one container.
enum Alone {
    /// This client was alone in it.
    Once,
    /// It is watched, and this client's last claim was alone in it.
    Last { watched: Watched, number: i32, gone: bool },
}

/// A container that existed when this was made, in one session, until [`Watched::is_gone`] says otherwise.
pub(crate) struct Watched {
    session: i64,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The knowledge that a claim has before its node is made.
pub(crate) enum KnownBefore {
    /// Nothing is known.
    None,
    /// It may be worth a watch: this client was alone there before.
    WorthWatching,
    /// A watch was set on its container, before the queue is looked at.
    Watching(Watched),
    /// If its number follows this one, and the container is not gone, it is alone.
    After(i32, Watched),
}

impl Uncontended {
    /// Takes what the next claim on a resource can rely on; no other claim can then.
    pub(crate) fn take(&self, resource: &Resource, session: i64) -> KnownBefore {
        let mut known = self.lock();
        match known.remove(resource) {
            None => KnownBefore::None,
            Some(Alone::Last { watched, number, gone: true }) if watched.session == session => {
                KnownBefore::After(number, watched)
            }
            Some(_) => KnownBefore::WorthWatching,
        }
    }

    /// Records that the claim of this number is alone in its container.
    pub(crate) fn record_alone(&self, resource: &Resource, number: i32, watched: Option<Watched>) {
        let alone = match watched {
            Some(watched) => Alone::Last { watched, number, gone: false },
            None => Alone::Once,
        };
        let mut known = self.lock();
        let over = known.len() >= KNOWN_MAX && !known.contains_key(resource);
        let other = known.keys().next().filter(|_| over).cloned();
        let dropped = other.and_then(|other| known.remove(&other));
        let former = known.insert(resource.clone(), alone);
        drop(known);
        // Dropping these ends a watch, which sends a request.
        drop((dropped, former));
    }

    /// Records that the claim of this number is gone from the server.
    pub(crate) fn record_gone(&self, resource: &Resource, gone_number: i32) {
        if let Some(Alone::Last { number, gone, .. }) = self.lock().get_mut(resource)
            && *number == gone_number
        {
            *gone = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Resource, Alone>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    pub(crate) fn new(session: i64, watching: Watching) -> Watched {
        Watched { session, ended: Box::pin(watching.changed()) }
    }

    /// Returns `true` if its end was reported, by everything that the server has answered so far.
    pub(crate) fn is_gone(&mut self) -> bool {
        (&mut self.ended).now_or_never().is_some()
    }
}

impl std::fmt::Debug for Uncontended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Uncontended({} containers)", self.lock().len())
    }
}

/// The most containers that are remembered, and so the most watches of this kind.
const KNOWN_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Notify;

    use super::*;

    fn watched(session: i64) -> Watched {
        Watched { session, ended: Box::pin(std::future::pending()) }
    }

    #[test]
    fn only_what_is_gone_is_counted_on_and_by_one_claim_only() {
        let (uncontended, name) = (Uncontended::default(), Resource::new("r").unwrap());
        assert!(matches!(uncontended.take(&name, 1), KnownBefore::None));
        uncontended.record_alone(&name, 4, None);
        assert!(matches!(uncontended.take(&name, 1), KnownBefore::WorthWatching));
        uncontended.record_alone(&name, 5, Some(watched(1)));
        uncontended.record_gone(&name, 4);
        assert!(matches!(uncontended.take(&name, 1), KnownBefore::WorthWatching), "5 still stands");
        uncontended.record_alone(&name, 6, Some(watched(1)));
        uncontended.record_gone(&name, 6);
        assert!(matches!(uncontended.take(&name, 1), KnownBefore::After(6, _)));
        assert!(matches!(uncontended.take(&name, 1), KnownBefore::None));
        uncontended.record_alone(&name, 7, Some(watched(1)));
        uncontended.record_gone(&name, 7);
        assert!(
            matches!(uncontended.take(&name, 2), KnownBefore::WorthWatching),
            "the watch was another session's"
        );
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let uncontended = Uncontended::default();
        for n in 0..KNOWN_MAX * 2 {
            uncontended.record_alone(&Resource::new(&format!("r{n}")).unwrap(), 0, None);
        }
        assert_eq!(uncontended.lock().len(), KNOWN_MAX);
    }

    #[test]
    fn notified_end_of_a_container_is_seen() {
        assert!(!watched(1).is_gone());
        let notify = Arc::new(Notify::new());
        let waiting = notify.clone();
        let mut watched = Watched { session: 1, ended: Box::pin(async move { waiting.notified().await }) };
        assert!(!watched.is_gone());
        notify.notify_one();
        assert!(watched.is_gone());
    }
}
