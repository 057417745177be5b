//! The one watcher of the store behind all pages: what has changed, which leases shorten, what is looked at.
//!
//! Ground rules: it reads the pictures of the monitor and asks the store for nothing itself. While no page is
//! looked at it has no picture, so that a console without readers costs the store nothing. Its memory is
//! bounded by the locks of one picture.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::backend::ClaimId;
use leasehold::{ClaimInfo, Resource};
use leasehold_monitor::{LockRow, Monitor, Overview};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::lately::Lately;

/// The watcher, which stops when it is dropped.
#[derive(Debug)]
pub(super) struct Watcher {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    monitor: Arc<Monitor>,
    lately: Arc<Lately>,
    /// The number of the picture, which rises when readers should see another one.
    number: watch::Sender<u64>,
    /// The longest time left that each holder was seen with, which is about its ttl.
    leases: Mutex<HashMap<ClaimId, Duration>>,
    /// The locks that pages show, and when they did so last.
    shown: Mutex<HashMap<Resource, Instant>>,
    /// When a page was looked at last.
    visited: Mutex<Option<Instant>>,
}

impl Watcher {
    pub(super) fn start(monitor: Arc<Monitor>, lately: Arc<Lately>) -> Watcher {
        let shared = Arc::new(Shared {
            monitor,
            lately,
            number: watch::Sender::new(1),
            leases: Mutex::default(),
            shown: Mutex::default(),
            visited: Mutex::default(),
        });
        let task = tokio::spawn(shared.clone().run());
        Watcher { shared, task }
    }

    /// Returns the number of the picture, and a notification of each later one.
    pub(super) fn pictures(&self) -> watch::Receiver<u64> {
        self.shared.number.subscribe()
    }

    /// Returns the picture for a page, and its number.
    pub(super) async fn picture(&self) -> (Arc<Overview>, u64) {
        *guarded(&self.shared.visited) = Some(Instant::now());
        // The number first: if the picture changes meanwhile, the page is notified once too often.
        let number = *self.shared.number.borrow();
        // A store that does not answer must not keep the page from its last picture.
        let fresh = timeout(PATIENCE, self.shared.monitor.fresh()).await;
        let overview = fresh.unwrap_or_else(|_| self.shared.monitor.overview().borrow().clone());
        (overview, number)
    }

    /// Returns the part of the lease of this holder that is left, from a look of that time; `None` if it is
    /// not known, or if the look is too old.
    pub(super) fn left(&self, holder: &ClaimInfo, looked_ms: u64, now_ms: u64) -> Option<f64> {
        let since = Duration::from_millis(now_ms.saturating_sub(looked_ms));
        let seen = guarded(&self.shared.leases).get(&holder.id).copied();
        part_left(seen, holder.remaining?, since)
    }

    /// Notes that a page shows these locks, so that they are looked at first.
    pub(super) fn show<'a>(&self, names: impl IntoIterator<Item = &'a Resource>) {
        let now = Instant::now();
        let mut shown = guarded(&self.shared.shown);
        shown.extend(names.into_iter().take(FOCUS_OF_A_PAGE).map(|name| (name.clone(), now)));
        shown.retain(|_, at| now.duration_since(*at) < SHOWN_FOR);
        while shown.len() > FOCUS {
            let Some(oldest) = shown.iter().min_by_key(|(_, at)| **at).map(|(name, _)| name.clone()) else {
                break;
            };
            shown.remove(&oldest);
        }
        self.shared.monitor.focus(shown.keys().cloned().collect());
    }

    /// Returns the picture that was seen last.
    pub(super) fn present(&self) -> Arc<Overview> {
        self.shared.monitor.overview().borrow().clone()
    }

    /// Asks for a picture soon, after something was changed here.
    pub(super) fn refresh(&self) {
        self.shared.monitor.refresh();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    async fn run(self: Arc<Self>) {
        loop {
            if self.has_readers() {
                self.follow().await;
            }
            sleep(IDLE_STEP).await;
        }
    }

    /// Follows the pictures for as long as there are readers.
    async fn follow(&self) {
        let mut pictures = self.monitor.overview();
        let (mut digest, mut notified) = (0, Instant::now());
        while self.has_readers() {
            match timeout(IDLE_STEP, pictures.changed()).await {
                Ok(Ok(())) => {}
                // The monitor has ended.
                Ok(Err(_)) => return,
                Err(_) => continue,
            }
            let overview = pictures.borrow_and_update().clone();
            self.learn(&overview);
            let fresh = digest_of(&overview);
            // The ends of leases move without a change, and pages count them down.
            if fresh != digest || notified.elapsed() >= RENEWED_EVERY {
                (digest, notified) = (fresh, Instant::now());
                self.number.send_modify(|number| *number += 1);
            }
        }
    }

    fn has_readers(&self) -> bool {
        self.number.receiver_count() > 0 || guarded(&self.visited).is_some_and(|at| at.elapsed() < VISIT)
    }

    fn learn(&self, overview: &Overview) {
        let sum = |count: fn(&LockRow) -> u32| overview.locks.iter().map(count).fold(0, u32::saturating_add);
        if overview.outage.is_none() {
            self.lately.sample(sum(|row| row.holders), sum(|row| row.waiting));
        }
        let mut leases = guarded(&self.leases);
        let mut fresh = HashMap::new();
        for holder in overview.locks.iter().flat_map(LockRow::known_holders) {
            if let Some(remaining) = holder.remaining {
                let before = leases.get(&holder.id).copied().unwrap_or_default();
                fresh.insert(holder.id, remaining.max(before));
            }
        }
        *leases = fresh;
    }
}

/// Returns the part of a lease that is left, some time after a look.
fn part_left(longest: Option<Duration>, remaining: Duration, since: Duration) -> Option<f64> {
    if since > LOOK_IS_OLD {
        return None;
    }
    let longest = longest.unwrap_or(remaining).max(remaining);
    let left = remaining.saturating_sub(since);
    (!longest.is_zero()).then(|| left.as_secs_f64() / longest.as_secs_f64())
}

/// Returns a number that differs for pictures in which a reader sees a difference.
fn digest_of(overview: &Overview) -> u64 {
    let mut hasher = DefaultHasher::new();
    for row in &overview.locks {
        (&row.name, row.holders, row.waiting).hash(&mut hasher);
        row.detail.as_ref().map(|detail| &detail.snapshot.version).hash(&mut hasher);
    }
    for wait in overview.deadlocks.found().iter().flat_map(|deadlock| &deadlock.waits) {
        (wait.id, &wait.resource).hash(&mut hasher);
    }
    overview.truncated.hash(&mut hasher);
    overview.outage.as_ref().map(|outage| outage.since_unix_ms).hash(&mut hasher);
    hasher.finish()
}

fn guarded<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time for which a page counts as looked at without a stream.
const VISIT: Duration = Duration::from_secs(60);
const IDLE_STEP: Duration = Duration::from_millis(250);
/// The longest time for which a page waits for a new picture.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest time from one number to the next while the store answers.
const RENEWED_EVERY: Duration = Duration::from_secs(10);
/// A look says nothing about a lease any more after so long: it may have been renewed.
const LOOK_IS_OLD: Duration = Duration::from_secs(6);
const FOCUS: usize = 300;
const FOCUS_OF_A_PAGE: usize = 60;
const SHOWN_FOR: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_a_lease_is_of_the_longest_that_was_seen() {
        let seconds = Duration::from_secs;
        assert_eq!(part_left(Some(seconds(30)), seconds(15), seconds(0)), Some(0.5));
        assert_eq!(part_left(Some(seconds(30)), seconds(15), seconds(3)), Some(0.4));
        assert_eq!(part_left(None, seconds(15), seconds(0)), Some(1.0));
        assert_eq!(
            part_left(Some(seconds(10)), seconds(30), seconds(0)),
            Some(1.0),
            "it was renewed meanwhile"
        );
        assert_eq!(part_left(Some(seconds(30)), seconds(1), seconds(5)), Some(0.0));
    }

    #[test]
    fn old_look_says_nothing() {
        assert_eq!(
            part_left(Some(Duration::from_secs(30)), Duration::from_secs(1), Duration::from_secs(60)),
            None
        );
    }
}
