//! Containers that this client has used not long ago, so that they are probably there still.
//!
//! ZooKeeper removes an empty container at its next round, once a minute. A claim on a name that was not
//! used for a while makes the container together with its own node; on a name that was just used that would
//! be a transaction too many. This is a guess: where it is wrong, it costs a round trip.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Moment;

/// The time at which each container was last used.
#[derive(Default)]
pub(crate) struct Recent(Mutex<HashMap<String, Moment>>);

impl Recent {
    /// Returns `true` if the container was used not long ago.
    pub(crate) fn is(&self, container: &str, now: Moment) -> bool {
        self.lock().get(container).is_some_and(|used| now.since(*used) < REST)
    }

    /// Records that a node was made in the container.
    pub(crate) fn used(&self, container: &str, now: Moment) {
        let mut used = self.lock();
        if used.len() >= KNOWN_MAX && !used.contains_key(container) {
            used.retain(|_, used| now.since(*used) < REST);
            if used.len() >= KNOWN_MAX {
                used.clear();
            }
        }
        used.insert(container.to_owned(), now);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Moment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recent({} containers)", self.lock().len())
    }
}

/// Half of the time between two rounds of a server that is set up as usual.
const REST: Duration = Duration::from_secs(30);
/// The most containers that are remembered.
const KNOWN_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_rested_is_not_counted_on() {
        let (recent, now) = (Recent::default(), Moment::START);
        assert!(!recent.is("/a", now));
        recent.used("/a", now);
        assert!(recent.is("/a", now.after(REST / 2)) && !recent.is("/b", now));
        assert!(!recent.is("/a", now.after(REST)));
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let recent = Recent::default();
        for n in 0..KNOWN_MAX * 2 + 1 {
            recent.used(&format!("/{n}"), Moment::START);
            assert!(recent.is(&format!("/{n}"), Moment::START) && recent.lock().len() <= KNOWN_MAX);
        }
    }
}
