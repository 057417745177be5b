//! Waiters that sleep until a notification arrives, and the way in which the store's notifications reach
//! them.
//!
//! Ground rules: the map is behind a plain mutex that is never held across an await. A subscription keeps
//! its notifications until its waiter reads them, so nothing is lost between check and wait. While no
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
    subscribers: Mutex<HashMap<Resource, HashMap<u64, Arc<Subscriber>>>>,
    next: AtomicU64,
    begun: Instant,
    /// `true` while the store's notifications arrive.
    connected: watch::Sender<bool>,
    /// The number of subscriptions.
    count: watch::Sender<usize>,
}

impl Notifier {
    /// Creates a notifier without subscriptions.
    pub fn new() -> Self {
        Notifier(Arc::new(Inner {
            subscribers: Mutex::default(),
            next: AtomicU64::new(0),
            begun: Instant::now(),
            connected: watch::Sender::new(false),
            count: watch::Sender::new(0),
        }))
    }

    /// Waits until a subscription exists, so that the client listens to the store only then.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn until_subscribed(&self) {
        // The sender lives as long as this value, so it never closes.
        let _ = self.0.count.subscribe().wait_for(|count| *count > 0).await;
    }

    /// Waits until no subscription is left.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn until_unsubscribed(&self) {
        let _ = self.0.count.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Notes that every change from now on is notified. Waiters check once more, for what was missed.
    pub fn mark_connected(&self) {
        self.0.connected.send_replace(true);
        self.wake_all();
    }

    /// Notes that notifications may be missed from now on. Waiters poll.
    pub fn mark_disconnected(&self) {
        if self.0.connected.send_replace(false) {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        let all: Vec<Arc<Subscriber>> =
            self.subscribers().values().flat_map(|here| here.values().map(Arc::clone)).collect();
        all.iter().for_each(|subscriber| subscriber.called.notify_one());
    }

    /// Passes a call to the waiters for this resource.
    pub fn notify(&self, resource: &Resource, call: &Call) {
        let subscribers = self.subscribers();
        let Some(subscribers) = subscribers.get(resource) else { return };
        let now = self.now();
        for subscriber in subscribers.values() {
            let (called, answered) = match (call, subscriber.address) {
                (Call::None, _) => continue,
                (Call::Freed, Some(_)) => {
                    subscriber.calls().freed(now);
                    subscriber.others.notify_one();
                    continue;
                }
                (Call::All | Call::Freed, _) | (_, None) => {
                    subscriber.called.notify_one();
                    continue;
                }
                (Call::These(called), Some(_)) => (called, None),
                (Call::Answered(answered, called), Some(_)) => (called, Some(*answered)),
            };
            if subscriber.address.is_some_and(|address| called.contains(&address)) {
                subscriber.called.notify_one();
            } else {
                subscriber.calls().record(called, answered, now);
                subscriber.others.notify_one();
            }
        }
    }

    /// Returns the present moment, counted from the creation of this notifier.
    fn now(&self) -> Moment {
        Moment::START.after(self.0.begun.elapsed())
    }

    /// Subscribes to the calls of one claim, or to all of a resource.
    pub(crate) fn subscribe(&self, resource: &Resource, address: Option<u32>) -> Subscription {
        let (called, others, calls) = (Notify::new(), Notify::new(), Mutex::default());
        let subscriber = Arc::new(Subscriber { address, called, others, calls });
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.subscribers().entry(resource.clone()).or_default().insert(number, Arc::clone(&subscriber));
        self.0.count.send_modify(|count| *count += 1);
        Subscription { notifier: self.clone(), resource: resource.clone(), number, subscriber }
    }

    /// Returns `true` if notifications arrive at present.
    pub(crate) fn is_connected(&self) -> bool {
        *self.0.connected.borrow()
    }

    fn subscribers(&self) -> MutexGuard<'_, HashMap<Resource, HashMap<u64, Arc<Subscriber>>>> {
        // No invariant spans a panic: every change is one insertion or removal.
        self.0.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Notifier {
    fn default() -> Self {
        Notifier::new()
    }
}

/// The part of a subscription that the notifier writes to.
#[derive(Debug)]
struct Subscriber {
    address: Option<u32>,
    called: Notify,
    others: Notify,
    /// The calls of others since the last check.
    calls: Mutex<CallWatch>,
}

impl Subscriber {
    fn calls(&self) -> MutexGuard<'_, CallWatch> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A subscription, until it is dropped.
#[derive(Debug)]
pub(crate) struct Subscription {
    notifier: Notifier,
    resource: Resource,
    number: u64,
    subscriber: Arc<Subscriber>,
}

/// A notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// The call concerns the subscriber.
    Called,
    /// Others were called or have answered, or more became free and no waiter was called for it.
    Others,
}

impl Subscription {
    /// Waits for a notification. Returns at once if one arrived since the last call.
    pub(crate) async fn receive(&self) -> Notification {
        tokio::select! {
            biased;
            () = self.subscriber.called.notified() => Notification::Called,
            () = self.subscriber.others.notified() => Notification::Others,
        }
    }

    /// Forgets the calls of others, for a waiter that checks now.
    pub(crate) fn forget_calls(&self) {
        self.subscriber.calls().checked();
    }

    /// Returns when to check because of the calls of others.
    pub(crate) fn next_check(&self) -> Option<Instant> {
        let at = self.subscriber.calls().check_at()?;
        Some(self.notifier.0.begun + Moment::START.until(at))
    }

    /// Returns `true` if notifications arrive at present.
    pub(crate) fn is_connected(&self) -> bool {
        self.notifier.is_connected()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut subscribers = self.notifier.subscribers();
        if let Some(here) = subscribers.get_mut(&self.resource) {
            here.remove(&self.number);
            if here.is_empty() {
                subscribers.remove(&self.resource);
            }
        }
        drop(subscribers);
        self.notifier.0.count.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn resource() -> Resource {
        Resource::new("a").unwrap()
    }

    #[test]
    fn claims_have_different_addresses() {
        let addresses = [1, 2, 3].map(|id| address(ClaimId::from_bytes([id; 16])));
        assert!(addresses[0] != addresses[1] && addresses[1] != addresses[2], "{addresses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn call_wakes_the_named_waiter_and_notifies_the_others() {
        let notifier = Notifier::new();
        let (one, two, all) = (
            notifier.subscribe(&resource(), Some(1)),
            notifier.subscribe(&resource(), Some(2)),
            notifier.subscribe(&resource(), None),
        );
        notifier.notify(&resource(), &Call::These(vec![2]));
        assert_eq!(two.receive().await, Notification::Called);
        assert_eq!(one.receive().await, Notification::Others);
        let may_not_answer = Instant::now() + leasehold_core::PROBE_AFTER;
        assert_eq!(one.next_check(), Some(may_not_answer), "the other may not answer");
        assert_eq!(all.receive().await, Notification::Called);
        notifier.notify(&resource(), &Call::Answered(2, Vec::new()));
        assert_eq!(one.receive().await, Notification::Others);
        assert_eq!(one.next_check(), None);
        assert_eq!(all.receive().await, Notification::Called);
        notifier.notify(&resource(), &Call::Freed);
        assert_eq!(one.receive().await, Notification::Others);
        assert!(one.next_check().is_some(), "one in front may keep it from what is free");
        one.forget_calls();
        assert_eq!(one.next_check(), None);
        assert_eq!(all.receive().await, Notification::Called, "an observer looks at every change");
    }

    #[tokio::test]
    async fn subscribers_are_woken_when_the_connection_changes() {
        let notifier = Notifier::new();
        let subscription = notifier.subscribe(&resource(), Some(1));
        assert!(!subscription.is_connected());
        notifier.mark_connected();
        assert!(subscription.is_connected());
        assert_eq!(subscription.receive().await, Notification::Called);
        notifier.mark_disconnected();
        assert_eq!(subscription.receive().await, Notification::Called);
        notifier.mark_disconnected();
        assert_eq!(subscription.receive().now_or_never(), None, "it knows that already");
    }

    #[tokio::test]
    async fn dropped_subscription_is_removed() {
        let notifier = Notifier::new();
        let subscription = notifier.subscribe(&resource(), Some(1));
        notifier.until_subscribed().await;
        assert!(notifier.until_unsubscribed().now_or_never().is_none());
        drop(subscription);
        notifier.until_unsubscribed().await;
        assert!(notifier.subscribers().is_empty());
    }
}
