//! Acquiring a claim: try, then wait for a notification, or try again later.
//!
//! Waiters have no common queue. When a holder leaves, all waiters are notified, and each waits for a
//! short random time, the longer the more waiters there are; the first to ask is granted the lock, and
//! the others learn of that grant and need not ask. If two ask at once, each releases all of its locks
//! and tries again after another random time.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_backend::changes::patience_ended;
use leasehold_core::quorum::{Member, Notification};
use leasehold_core::{Claim, Failure, Hint, Patience, Resource, Step, doubled};
use leasehold_machine::Unforked;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Quorum;
use super::attempt::Outcome;
use super::members::{at, some_of};
use super::timer::after;

/// The number of waiters of this client for each resource, and the time that a try takes.
#[derive(Clone, Debug, Default)]
pub(super) struct WaiterCounts(Arc<Mutex<HashMap<Resource, u32>>>, Arc<AtomicU64>);

/// One of the waiters.
struct WaiterGuard {
    waiters: WaiterCounts,
    resource: Resource,
}

impl WaiterCounts {
    fn register(&self, resource: &Resource) -> WaiterGuard {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(resource.clone()).or_default() += 1;
        WaiterGuard { waiters: self.clone(), resource: resource.clone() }
    }

    /// Records how long a try has taken.
    fn record_duration(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 8);
        let before = self.1.load(Ordering::Relaxed);
        // A lost update of two at once is made up by the next one.
        self.1.store(before - before / 8 + micros.min(SPREAD_MAX.as_micros() as u64) / 8, Ordering::Relaxed);
    }

    /// Returns the distance between the tries of two waiters: about as long as a try takes, so that the
    /// others learn of the first one.
    fn slot(&self) -> Duration {
        Duration::from_micros(self.1.load(Ordering::Relaxed)).max(SLOT)
    }
}

impl WaiterGuard {
    fn count(&self) -> u32 {
        let counts = self.waiters.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&self.resource).copied().unwrap_or(1)
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        let mut counts = self.waiters.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.resource) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.resource);
            }
        }
    }
}

impl Quorum {
    /// Takes one step towards holding: waits until the claim is granted or patience ends.
    pub(super) async fn step(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let claim = Arc::new(claim.clone());
        let waiter = self.waiters.register(&claim.resource);
        let mut subscriptions: Option<Subscriptions> = None;
        let mut splits = 0;
        let mut stamps = vec![Vec::new(); self.members.count()];
        loop {
            // The attempt may have missed a release that is reported while it runs.
            let began = patience.now();
            let outcome = self.attempt(&claim, patience, &mut stamps).await;
            self.waiters.record_duration(patience.now().since(began));
            let slot = self.waiters.slot();
            let ended = patience.is_ended();
            match outcome {
                Outcome::Granted(grant) => return Ok(Step::Granted(grant)),
                Outcome::Failed(failure) => return Err(failure),
                Outcome::Split if ended && splits >= TRIES_MAX => return Ok(Step::Busy(Hint::default())),
                Outcome::Split => {
                    let ceiling = doubled(slot * 2, LAST_PAUSE, splits.min(6));
                    splits += 1;
                    tokio::time::sleep(some_of(ceiling)).await;
                }
                Outcome::Busy { .. } if ended => {
                    return Ok(Step::Busy(Hint { ask_again_in: None, ahead: Some(1) }));
                }
                Outcome::Busy { free_in, listeners } => {
                    splits = 0;
                    let waiters = listeners.max(1).saturating_mul(waiter.count());
                    let Some(subscriptions) = &mut subscriptions else {
                        // A release between the attempt and the listening would be missed: try again.
                        subscriptions = tokio::select! {
                            subscribing = self.subscribe(&claim.resource) => Some(subscribing),
                            () = patience_ended(patience) => None,
                        };
                        if subscriptions.is_none() {
                            return Ok(Step::Busy(Hint { ask_again_in: None, ahead: Some(1) }));
                        }
                        continue;
                    };
                    tokio::select! {
                        () = subscriptions.wait_for_change(free_in, spread(waiters, slot)) => {}
                        () = patience_ended(patience) => {
                            return Ok(Step::Busy(Hint { ask_again_in: None, ahead: Some(1) }));
                        }
                    }
                }
            }
        }
    }

    /// Subscribes at all members, and returns when a majority is connected or the rest is late.
    async fn subscribe(&self, resource: &Resource) -> Subscriptions {
        let (sender, inbox) = mpsc::channel(BACKLOG);
        let (ready, mut ready_members) = mpsc::channel(self.members.count().max(1));
        let mut tasks = JoinSet::new();
        for number in 0..self.members.count() {
            let Some(member) = self.members.member(number) else { continue };
            let subscribing = forward_news(number, member, resource.clone(), sender.clone(), ready.clone());
            tasks.spawn(Unforked::new(subscribing));
        }
        drop(ready);
        let mut connected = HashSet::new();
        let end = after(LISTEN_LIMIT);
        while connected.len() < self.members.majority() {
            tokio::select! {
                number = ready_members.recv() => match number {
                    Some(number) => _ = connected.insert(number),
                    None => break,
                },
                () = at(Some(end)) => break,
            }
        }
        // A minority that connects later is received as well; what it missed, the majority reported.
        Subscriptions { inbox, connected, majority: self.members.majority(), _tasks: tasks }
    }
}

/// The subscriptions to one resource at all members. Dropping it ends them.
struct Subscriptions {
    inbox: mpsc::Receiver<(usize, Notification, bool)>,
    /// The members whose subscriptions are connected at present.
    connected: HashSet<usize>,
    majority: usize,
    _tasks: JoinSet<()>,
}

impl Subscriptions {
    /// Returns when something may have changed for a waiter.
    ///
    /// # Cancel safety
    /// Dropping the future may lose a notification: the caller is about to leave.
    async fn wait_for_change(&mut self, free_in: Duration, spread: Duration) {
        // Even during a long lease it tries now and then: a notification may have been lost.
        let mut next_try = after((free_in + TICK).min(REFRESH) + some_of(spread));
        if self.connected.len() < self.majority {
            next_try = next_try.min(after(NO_MAJORITY_PAUSE / 2 + some_of(NO_MAJORITY_PAUSE)));
        }
        let mut freed = HashSet::new();
        let mut soon: Option<Instant> = None;
        loop {
            let next = soon.map_or(next_try, |soon| soon.min(next_try));
            let message = tokio::select! {
                message = self.inbox.recv() => message,
                () = at(Some(next)) => return,
            };
            let Some((number, news, connected)) = message else { return at(Some(next)).await };
            if connected {
                self.connected.insert(number)
            } else {
                self.connected.remove(&number)
            };
            match news {
                Notification::Freed => {
                    freed.insert(number);
                    // A try before a majority is released would find it held.
                    let settled = freed.len() >= self.majority;
                    let then = after(some_of(spread) + if settled { Duration::ZERO } else { SETTLE });
                    soon = Some(soon.map_or(then, |soon| if settled { soon.min(then) } else { soon }));
                }
                // Another waiter was faster, unless this member is late, and a majority has reported the end of that
                // claim already.
                Notification::Taken { ends_in } => {
                    freed.remove(&number);
                    if freed.len() < self.majority {
                        soon = None;
                    }
                    // Its release will be reported as well. Its death will not.
                    if let Some(ends_in) = ends_in {
                        next_try = next_try.min(after(ends_in + TICK + some_of(spread)));
                    }
                }
                Notification::Unknown => {
                    let then = after(some_of(spread.max(SETTLE)));
                    soon = Some(soon.map_or(then, |soon| soon.min(then)));
                }
            }
        }
    }
}

/// Forwards the notifications of one member, for as long as there is a receiver.
async fn forward_news(
    number: usize,
    member: Arc<dyn Member>,
    resource: Resource,
    sender: mpsc::Sender<(usize, Notification, bool)>,
    ready: mpsc::Sender<usize>,
) {
    let mut subscription = loop {
        match member.subscribe(&resource).await {
            Ok(subscription) => break subscription,
            Err(failure) => {
                tracing::debug!(%failure, "a server of the quorum cannot be listened to");
                tokio::time::sleep(REFRESH).await;
            }
        }
    };
    if subscription.is_connected() {
        // The listener may have enough members already.
        let _ = ready.send(number).await;
    }
    drop(ready);
    loop {
        let news = subscription.next().await;
        if sender.send((number, news, subscription.is_connected())).await.is_err() {
            return;
        }
    }
}

/// Returns the time over which a number of waiters is spread.
fn spread(waiters: u32, slot: Duration) -> Duration {
    slot.saturating_mul(waiters.saturating_sub(1)).min(SPREAD_MAX)
}

/// The number of tries of a claim that does not wait, if no claim has a majority.
const TRIES_MAX: u32 = 3;
/// The longest pause after an attempt of several at once.
const LAST_PAUSE: Duration = Duration::from_millis(250);
/// The least distance between the tries of two waiters.
const SLOT: Duration = Duration::from_millis(2);
const SPREAD_MAX: Duration = Duration::from_millis(400);
/// The time after the first notification of a release for which the majority is waited for.
const SETTLE: Duration = Duration::from_millis(5);
/// The server counts in milliseconds; a try in the very millisecond of an end is one too early.
const TICK: Duration = Duration::from_millis(2);
/// The longest time between two tries, and between two attempts to listen to a member.
const REFRESH: Duration = Duration::from_secs(20);
/// The approximate pause between tries of a waiter whose subscriptions reach no majority.
const NO_MAJORITY_PAUSE: Duration = Duration::from_millis(500);
const LISTEN_LIMIT: Duration = Duration::from_millis(500);
/// The number of unread notifications; senders wait beyond that.
const BACKLOG: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Subscriptions to three members, of which so many are connected.
    fn subscriptions(connected: usize) -> (mpsc::Sender<(usize, Notification, bool)>, Subscriptions) {
        let (sender, inbox) = mpsc::channel(BACKLOG);
        let connected = (0..connected).collect();
        (sender, Subscriptions { inbox, connected, majority: 2, _tasks: JoinSet::new() })
    }

    /// Returns the time after which a waiter tries again. Each report has the time at which it comes, and its member.
    async fn waits(connected: usize, free_in: Duration, reports: &[(u64, usize, Notification)]) -> Duration {
        let (sender, mut subscriptions) = subscriptions(connected);
        let began = Instant::now();
        let reporting = async {
            for (at, number, news) in reports {
                tokio::time::sleep_until(began + ms(*at)).await;
                sender.send((*number, *news, true)).await.unwrap();
            }
            std::future::pending::<()>().await
        };
        tokio::select! {
            () = reporting => {}
            () = subscriptions.wait_for_change(free_in, Duration::ZERO) => {}
        }
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_tries_again_when_the_lease_ends_or_a_report_may_be_lost() {
        assert_eq!(waits(2, LEASE, &[]).await, LEASE + TICK);
        assert_eq!(waits(2, LEASE * 6, &[]).await, REFRESH);
        for _ in 0..20 {
            let without_majority = waits(1, LEASE, &[]).await;
            assert!((ms(250)..=ms(750)).contains(&without_majority), "{without_majority:?}");
        }
        // A lease that another client was granted, and that ends earlier.
        let taken = |lease| Notification::Taken { ends_in: Some(ms(lease)) };
        assert_eq!(waits(2, LEASE, &[(100, 0, taken(3_000))]).await, ms(3_102));
        assert_eq!(waits(2, LEASE, &[(100, 0, taken(30_000))]).await, LEASE + TICK);
    }

    #[tokio::test(start_paused = true)]
    async fn several_waiters_try_again_one_after_the_other() {
        let mut at = Vec::new();
        for _ in 0..50 {
            let (_sender, mut subscriptions) = subscriptions(2);
            let began = Instant::now();
            subscriptions.wait_for_change(LEASE, ms(200)).await;
            at.push(began.elapsed());
        }
        let (first, last) = (at.iter().min().unwrap(), at.iter().max().unwrap());
        assert!(*first >= LEASE + TICK && *last <= LEASE + TICK + ms(201), "{first:?}, {last:?}");
        assert!(*last - *first > ms(20), "{first:?}, {last:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn release_counts_once_a_majority_has_reported_it() {
        let (freed, taken) = (Notification::Freed, Notification::Taken { ends_in: None });
        let report = |at, number, news: &Notification| (at, number, *news);
        // The others are waited for, and not for long.
        assert_eq!(waits(2, LEASE, &[report(100, 0, &freed)]).await, ms(105));
        assert_eq!(waits(2, LEASE, &[report(100, 0, &freed), report(103, 0, &freed)]).await, ms(105));
        assert_eq!(waits(2, LEASE, &[report(100, 0, &freed), report(102, 1, &freed)]).await, ms(102));
        // Another waiter was faster.
        let news = [report(100, 0, &freed), report(102, 0, &taken)];
        assert_eq!(waits(2, LEASE, &news).await, LEASE + TICK);
        let news = [report(100, 0, &freed), report(102, 0, &taken), report(200, 1, &freed)];
        assert_eq!(waits(2, LEASE, &news).await, ms(205), "the first of them is held again");
        // Reports were lost.
        let unknown = Notification::Unknown;
        let at = waits(2, LEASE, &[report(100, 0, &unknown)]).await;
        assert!((ms(100)..=ms(105)).contains(&at), "{at:?}");
        let at = waits(2, LEASE, &[report(100, 0, &freed), report(104, 1, &unknown)]).await;
        assert!((ms(104)..=ms(105)).contains(&at), "{at:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn report_says_whether_its_member_is_connected() {
        let (sender, mut subscriptions) = subscriptions(1);
        sender.send((0, Notification::Taken { ends_in: None }, false)).await.unwrap();
        sender.send((2, Notification::Taken { ends_in: None }, true)).await.unwrap();
        subscriptions.wait_for_change(ms(1), Duration::ZERO).await;
        assert_eq!(subscriptions.connected, HashSet::from([2]));
    }

    #[test]
    fn waiters_ask_at_distances_of_what_a_try_takes() {
        let counts = WaiterCounts::default();
        counts.record_duration(Duration::ZERO);
        assert_eq!(counts.slot(), SLOT);
        counts.record_duration(ms(80));
        assert_eq!(counts.slot(), ms(10));
        counts.record_duration(ms(80));
        assert_eq!(counts.slot(), Duration::from_micros(18_750));
        let counts = WaiterCounts::default();
        counts.record_duration(Duration::MAX);
        assert_eq!(counts.slot(), SPREAD_MAX / 8);
        assert_eq!(spread(1, ms(2)), Duration::ZERO);
        assert_eq!(spread(3, ms(2)), ms(4));
        assert_eq!(spread(1_000, ms(2)), SPREAD_MAX);
    }

    #[test]
    fn waiters_of_a_resource_are_counted_as_long_as_they_wait() {
        let counts = WaiterCounts::default();
        let [one, other] = ["one", "other"].map(|name| Resource::new(name).unwrap());
        let (first, second, third) = (counts.register(&one), counts.register(&one), counts.register(&other));
        assert_eq!([first.count(), second.count(), third.count()], [2, 2, 1]);
        drop(second);
        assert_eq!(first.count(), 1);
        drop((first, third));
        assert!(counts.0.lock().unwrap().is_empty());
    }
}
