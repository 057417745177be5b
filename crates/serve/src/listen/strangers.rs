//! The connections that have not shown the token. When there is no place for another one, the oldest makes room.
//!
//! Ground rules: however many connections strangers open, a holder gets in. One that has shown the token once keeps
//! its place for as long as it is open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::guard::Trust;

/// The open connections by their age, without those that are known to have shown the token.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    by_age: BTreeMap<u64, (Trust, Arc<Notify>)>,
}

/// One connection among them, for as long as it is open.
#[derive(Debug)]
pub(super) struct Stranger {
    strangers: Arc<Strangers>,
    number: u64,
    leaves: Arc<Notify>,
}

impl Strangers {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection.
    pub(super) fn enter(self: &Arc<Self>, trust: Trust) -> Stranger {
        let leaves = Arc::new(Notify::new());
        let mut entries = self.entries();
        let number = entries.next;
        entries.next += 1;
        entries.by_age.insert(number, (trust, leaves.clone()));
        Stranger { strangers: self.clone(), number, leaves }
    }

    /// Lets the oldest leave. Returns `false` if all open connections have shown the token.
    pub(super) fn make_room(&self) -> bool {
        let mut entries = self.entries();
        // Limit: each connection is taken out once.
        while let Some((_, (trust, leaves))) = entries.by_age.pop_first() {
            if !trust.is_earned() {
                leaves.notify_one();
                return true;
            }
        }
        false
    }
}

impl Stranger {
    /// Waits until it has to make room.
    pub(super) async fn leaves(&self) {
        self.leaves.notified().await;
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.strangers.entries().by_age.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn oldest_without_the_token_makes_room() {
        let strangers = Arc::new(Strangers::default());
        let trusted = Trust::default();
        let (_first, second, third) = (
            strangers.enter(trusted.clone()),
            strangers.enter(Trust::default()),
            strangers.enter(Trust::default()),
        );
        trusted.earn();
        assert!(strangers.make_room());
        second.leaves().await;
        drop(third);
        assert!(!strangers.make_room(), "only the one with the token is left");
        assert!(strangers.entries().by_age.is_empty());
    }
}
