//! Waiters that sleep until a notification comes, and the way in which the store's notifications reach
//! them.
//!
//! Ground rules: the map is behind a plain mutex that is never held across an await. A subscription keeps
//! its notifications until its waiter reads them, so nothing is lost between look and wait. While no
//! notification can arrive, every waiter knows that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::{CallWatch, ClaimId, Moment, Resource};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::cell::Call;

/// Returns the public address by which a claim is called: it cannot be used to end the claim.
pub fn address(id: ClaimId) -> u32 {
    // A digest, because every listener sees these bits.
    u32::from_str_radix(&id.tag()[..8], 16).unwrap_or_default()
}

/// The subscriptions of one client. Clones share them.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ears: Mutex<HashMap<Resource, HashMap<u64, Arc<Subscription>>>>,
    next: AtomicU64,
    begun: Instant,
    hearing: watch::Sender<bool>,
    wanted: watch::Sender<usize>,
}

impl Notifier {
    /// Creates a notifier without subscriptions.
    pub fn new() -> Self {
        Notifier(Arc::new(Inner {
            ears: Mutex::default(),
            next: AtomicU64::new(0),
            begun: Instant::now(),
            hearing: watch::Sender::new(false),
            wanted: watch::Sender::new(0),
        }))
    }

    /// Waits until a listener exists, so that a store subscribes only then.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn wanted(&self) {
        // The sender lives as long as this value, so it never closes.
        let _ = self.0.wanted.subscribe().wait_for(|count| *count > 0).await;
    }

    /// Waits until no subscription is left.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn unwanted(&self) {
        let _ = self.0.wanted.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Notes that every change from now on will be notified. Waiters look once more, for what was missed.
    pub fn begin_hearing(&self) {
        self.0.hearing.send_replace(true);
        let everybody: Vec<Arc<Subscription>> =
            self.ears().values().flat_map(|ears| ears.values().map(Arc::clone)).collect();
        everybody.iter().for_each(|ear| ear.called.notify_one());
    }

    /// Notes that notifications may be missed from now on. Waiters poll.
    pub fn stop_hearing(&self) {
        if self.0.hearing.send_replace(false) {
            let everybody: Vec<Arc<Subscription>> =
                self.ears().values().flat_map(|ears| ears.values().map(Arc::clone)).collect();
            everybody.iter().for_each(|ear| ear.called.notify_one());
        }
    }

    /// Passes a call to the waiters for this resource.
    pub fn ring(&self, resource: &Resource, call: &Call) {
        let ears = self.ears();
        let Some(ears) = ears.get(resource) else { return };
        let now = self.now();
        for ear in ears.values() {
            let (called, answered) = match (call, ear.address) {
                (Call::Nobody, _) => continue,
                (Call::Freed, Some(_)) => {
                    ear.calls().freed(now);
                    ear.others.notify_one();
                    continue;
                }
                (Call::Everyone | Call::Freed, _) | (_, None) => {
                    ear.called.notify_one();
                    continue;
                }
                (Call::These(called), Some(_)) => (called, None),
                (Call::Answered(answered, called), Some(_)) => (called, Some(*answered)),
            };
            if ear.address.is_some_and(|address| called.contains(&address)) {
                ear.called.notify_one();
            } else {
                ear.calls().hear(called, answered, now);
                ear.others.notify_one();
            }
        }
    }

    /// Returns the present moment, counted from the creation of this notifier.
    fn now(&self) -> Moment {
        Moment::START.after(self.0.begun.elapsed())
    }

    /// Begins to listen: to the calls of one claim, or to all of a resource.
    pub(crate) fn hang(&self, resource: &Resource, address: Option<u32>) -> Waiter {
        let (called, others, calls) = (Notify::new(), Notify::new(), Mutex::default());
        let ear = Arc::new(Subscription { address, called, others, calls });
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.ears().entry(resource.clone()).or_default().insert(number, Arc::clone(&ear));
        self.0.wanted.send_modify(|count| *count += 1);
        Waiter { bells: self.clone(), resource: resource.clone(), number, ear }
    }

    /// Returns `true` if notifications arrive at present.
    pub(crate) fn is_hearing(&self) -> bool {
        *self.0.hearing.borrow()
    }

    fn ears(&self) -> MutexGuard<'_, HashMap<Resource, HashMap<u64, Arc<Subscription>>>> {
        // No invariant spans a panic: every change is one insertion or removal.
        self.0.ears.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Notifier {
    fn default() -> Self {
        Notifier::new()
    }
}

#[derive(Debug)]
struct Subscription {
    address: Option<u32>,
    called: Notify,
    others: Notify,
    /// The calls of others since the last look.
    calls: Mutex<CallWatch>,
}

impl Subscription {
    fn calls(&self) -> MutexGuard<'_, CallWatch> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listener, until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiter {
    bells: Notifier,
    resource: Resource,
    number: u64,
    ear: Arc<Subscription>,
}

/// A notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The call concerns the listener.
    Called,
    /// Others were called or have answered, or more became free and nobody was called for it.
    Others,
}

impl Waiter {
    /// Waits for a notification. Returns at once if one came since the last call.
    pub(crate) async fn hear(&self) -> News {
        tokio::select! {
            biased;
            () = self.ear.called.notified() => News::Called,
            () = self.ear.others.notified() => News::Others,
        }
    }

    /// Forgets the calls of others, for a waiter that looks now.
    pub(crate) fn look(&self) {
        self.ear.calls().look();
    }

    /// Returns when to look because of the calls of others.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        let at = self.ear.calls().look_at()?;
        Some(self.bells.0.begun + Moment::START.until(at))
    }

    /// Returns `true` if notifications arrive at present.
    pub(crate) fn is_hearing(&self) -> bool {
        self.bells.is_hearing()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut ears = self.bells.ears();
        if let Some(here) = ears.get_mut(&self.resource) {
            here.remove(&self.number);
            if here.is_empty() {
                ears.remove(&self.resource);
            }
        }
        drop(ears);
        self.bells.0.wanted.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource() -> Resource {
        Resource::new("a").unwrap()
    }

    #[tokio::test]
    async fn a_call_reaches_whom_it_names_and_the_others_hear_of_it() {
        let bells = Notifier::new();
        let (one, two, all) = (
            bells.hang(&resource(), Some(1)),
            bells.hang(&resource(), Some(2)),
            bells.hang(&resource(), None),
        );
        bells.ring(&resource(), &Call::These(vec![2]));
        assert_eq!(two.hear().await, News::Called);
        assert_eq!(one.hear().await, News::Others);
        assert!(one.look_at().is_some(), "the other may not answer");
        assert_eq!(all.hear().await, News::Called);
        bells.ring(&resource(), &Call::Answered(2, Vec::new()));
        assert_eq!(one.hear().await, News::Others);
        assert_eq!(one.look_at(), None);
        assert_eq!(all.hear().await, News::Called);
        bells.ring(&resource(), &Call::Freed);
        assert_eq!(one.hear().await, News::Others);
        assert!(one.look_at().is_some(), "one in front may keep it from what is free");
        one.look();
        assert_eq!(one.look_at(), None);
        assert_eq!(all.hear().await, News::Called, "an onlooker looks at every change");
    }

    #[tokio::test]
    async fn whoever_listens_is_told_when_word_was_missed() {
        let bells = Notifier::new();
        let bell = bells.hang(&resource(), Some(1));
        assert!(!bell.is_hearing());
        bells.begin_hearing();
        assert!(bell.is_hearing());
        assert_eq!(bell.hear().await, News::Called);
        bells.stop_hearing();
        assert_eq!(bell.hear().await, News::Called);
    }

    #[tokio::test]
    async fn nobody_is_left_behind() {
        let bells = Notifier::new();
        let bell = bells.hang(&resource(), Some(1));
        bells.wanted().await;
        drop(bell);
        bells.unwanted().await;
        assert!(bells.ears().is_empty());
    }
}
