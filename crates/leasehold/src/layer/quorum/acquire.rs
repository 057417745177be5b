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
