//! Checks all waiting claims of a client, many in one request (a *glance*).
//!
//! A waiter sleeps until it is notified. For safety, some task must look when the first of those ahead may
//! have ended, and keep the place alive; that is done here for all waiters together, so that a thousand
//! idle waiters cost the server few requests. A waiter for which something may have changed is woken to
//! look for itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::net::request::Request;
use crate::net::timer;
use crate::protocol::reply;
use crate::protocol::scripts;
use crate::topology::servers::Servers;
use crate::wait::polling::TICK;

/// The periodic checks of all waiting claims.
pub(crate) struct WaitKeepalive {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// A claim that is watched.
pub(crate) struct Watched {
    pub(crate) keys: [String; 4],
    pub(crate) member: String,
    /// The time for which its place is kept; zero for one without a place.
    pub(crate) place: Duration,
    /// The longest time between two glances.
    pub(crate) at_least_every: Duration,
    /// The delay after other waiters with which it looks, where one moment concerns several.
    pub(crate) stagger: Duration,
}

/// The watch over one claim. Dropping it ends the watch.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    number: u64,
    wakeup: Arc<Notify>,
}

impl WaitKeepalive {
    /// Creates one that checks over `servers`.
    pub(crate) fn new(servers: Arc<Servers>, limit: Duration) -> WaitKeepalive {
        let shared = Shared { servers, limit, registry: Mutex::default(), work: Notify::new() };
        WaitKeepalive { shared: Arc::new(shared), task: Mutex::default() }
    }

    /// Watches a claim, of which the first ahead may end after `first_end`.
    pub(crate) fn watch(&self, watched: Watched, first_end: Duration) -> Watch {
        let wakeup = Arc::new(Notify::new());
        let due = watched.due(first_end);
        let number = {
            let mut registry = self.shared.registry();
            registry.last += 1;
            let number = registry.last;
            registry
                .queue
                .insert((due, number), Entry { watched: Arc::new(watched), wakeup: wakeup.clone() });
            registry.due.insert(number, Some(due));
            number
        };
        self.ensure_running();
        self.shared.work.notify_one();
        Watch { shared: self.shared.clone(), number, wakeup }
    }

    fn ensure_running(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        // A runtime that was shut down took its task with it.
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(leasehold_machine::spawn(run(self.shared.clone())));
        }
    }
}

/// Shows how many claims are watched, and none of their ids, which are secrets.
impl fmt::Debug for WaitKeepalive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watched = self.shared.registry().due.len();
        f.debug_struct("WaitKeepalive").field("watched", &watched).finish_non_exhaustive()
    }
}

impl Drop for WaitKeepalive {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

impl Watch {
    /// Makes sure that a look follows when a lease ahead ends that begins now.
    pub(crate) fn expect_end(&self, lease: Duration) {
        let registry = &mut *self.shared.registry();
        let Some(Some(due)) = registry.due.get_mut(&self.number) else {
            // It is glanced at, perhaps from before that lease.
            return self.wakeup.notify_one();
        };
        let earlier = |entry: &Entry| entry.watched.due(lease);
        let key = (*due, self.number);
        let Some(next) = registry.queue.get(&key).map(earlier).filter(|next| next < due) else { return };
        if let Some(entry) = registry.queue.remove(&key) {
            *due = next;
            registry.queue.insert((next, self.number), entry);
            self.shared.work.notify_one();
        }
    }

    /// Waits until the claim should look for itself.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn should_look(&self) {
        self.wakeup.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut registry = self.shared.registry();
        if let Some(Some(due)) = registry.due.remove(&self.number) {
            registry.queue.remove(&(due, self.number));
        }
    }
}

impl Watched {
    /// Returns when to glance next. Claims that are later in the queue look later, so that they seldom
    /// have to at all.
    fn due(&self, first_end: Duration) -> Instant {
        timer::after((first_end.max(TICK) + TICK + self.stagger).min(self.at_least_every))
    }
}

/// Waiters that are due within this time are glanced at together with those that are due now. Where the
/// claim ahead lives, its lease has been extended by then, and the glance was not too early; where it
/// does not, the next glance is in time.
const GLANCE_AHEAD: Duration = Duration::from_secs(2);

/// Claims that are glanced at by one script: about a millisecond of the server's time.
const GLANCE_MAX: usize = 250;

struct Shared {
    servers: Arc<Servers>,
    limit: Duration,
    registry: Mutex<Registry>,
    work: Notify,
}

#[derive(Default)]
struct Registry {
    last: u64,
    queue: BTreeMap<(Instant, u64), Entry>,
    /// The time at which each watched claim is due; `None` while it is glanced at, or once it was sent
    /// to look.
    due: BTreeMap<u64, Option<Instant>>,
}

#[derive(Clone)]
struct Entry {
    watched: Arc<Watched>,
    wakeup: Arc<Notify>,
}

/// The result of a glance: when the first claim ahead of each may have ended.
struct Glanced {
    batch: Vec<(u64, Entry)>,
    ends: Vec<Duration>,
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_due(&self) -> Option<Instant> {
        self.registry().queue.keys().next().map(|(due, _)| *due)
    }

    fn take_due(&self) -> Vec<(u64, Entry)> {
        let mut registry = self.registry();
        let horizon = timer::after(GLANCE_AHEAD);
        let mut taken = Vec::new();
        while taken.len() < GLANCE_MAX
            && let Some(first) = registry.queue.first_entry()
            && first.key().0 <= horizon
        {
            let ((_, number), entry) = first.remove_entry();
            registry.due.insert(number, None);
            taken.push((number, entry));
        }
        taken
    }

    /// Splits a batch by server, so that a silent server delays only its own answers.
    fn split_by_server(&self, batch: Vec<(u64, Entry)>) -> Vec<Vec<(u64, Entry)>> {
        let mut parts: BTreeMap<u64, Vec<(u64, Entry)>> = BTreeMap::new();
        for (number, entry) in batch {
            let part = entry.watched.keys.first().map_or(0, |key| self.servers.part(key));
            parts.entry(part).or_default().push((number, entry));
        }
        parts.into_values().collect()
    }

    async fn glanced(&self, batch: Vec<(u64, Entry)>) -> Glanced {
        let ends = self.glance(&batch).await;
        Glanced { batch, ends }
    }

    async fn glance(&self, batch: &[(u64, Entry)]) -> Vec<Duration> {
        let first_keys: Vec<String> =
            batch.iter().filter_map(|(_, entry)| entry.watched.keys.first().cloned()).collect();
        let groups = self.servers.group_by_slot(&first_keys);
        let requests: Vec<Request> = groups.iter().map(|group| glance_at(batch, group)).collect();
        let answers = self.servers.run_all(&requests, self.limit).await;
        // A waiter without an answer looks for itself, and reports what it meets.
        let mut ends = vec![Duration::ZERO; batch.len()];
        for (group, answer) in groups.iter().zip(answers) {
            let Ok(numbers) = answer.and_then(|answer| reply::numbers(answer, group.len())) else { continue };
            for (position, ms) in group.iter().zip(numbers) {
                ends[*position] = Duration::from_millis(ms.into());
            }
        }
        ends
    }

    fn reschedule(&self, Glanced { batch, ends }: Glanced) {
        let mut registry = self.registry();
        for ((number, entry), end) in batch.into_iter().zip(ends) {
            let Some(due) = registry.due.get_mut(&number) else { continue };
            if end.is_zero() {
                entry.wakeup.notify_one();
            } else {
                let next = entry.watched.due(end);
                *due = Some(next);
                registry.queue.insert((next, number), entry);
            }
        }
    }
}

fn glance_at(batch: &[(u64, Entry)], group: &[usize]) -> Request {
    let mut keys = Vec::with_capacity(4 * group.len());
    let mut args = Vec::with_capacity(2 * group.len());
    for (_, Entry { watched, .. }) in group.iter().map(|position| &batch[*position]) {
        keys.extend(watched.keys.iter().cloned());
        args.extend([watched.member.clone(), watched.place.as_millis().to_string()]);
    }
    Request { script: &scripts::GLANCE, keys, args, confirm: None }
}

/// Glances at the waiters that are due, for as long as the backend lives.
async fn run(shared: Arc<Shared>) {
    let mut glances = FuturesUnordered::new();
    loop {
        let due = async {
            match shared.next_due() {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.work.notified() => {}
            Some(glanced) = glances.next() => shared.reschedule(glanced),
            () = due => {
                let parts = shared.split_by_server(shared.take_due());
                glances.extend(parts.into_iter().map(|batch| shared.glanced(batch)));
            }
        }
    }
}
