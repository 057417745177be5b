//! Load on locks while their servers fail over, with a record of all grants.
//!
//! Ground rules: only the result of a guard's own check is counted. Two guards of one mutex that are
//! valid by their own check at one moment are a double grant. A fence that is not above all fences that
//! were granted before its lock was requested is a fault, no matter what happened to the servers.

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold::{Client, ErrorKind, Fence, Guard};
use tokio::task::JoinSet;

/// The ttl of every lock of a load.
pub const TTL: Duration = Duration::from_secs(3);

/// A holder looks so often until when its guard is valid.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Clients that take and hold mutexes until they are stopped.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

/// The observations.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    /// The number of locks that were granted.
    pub grants: u64,
    /// The number of these that were granted while another guard was valid.
    pub doubles: u64,
    /// The number of guards that were lost.
    pub losses: u64,
    /// The longest time for which two guards were valid side by side.
    pub longest_double: Duration,
    /// Locks that could not be had in time, or not at all for a while.
    pub failures: u64,
    /// When the first lock of each epoch was granted.
    pub epochs: BTreeMap<u64, Instant>,
}

#[derive(Debug)]
struct Shared {
    sites: Vec<Site>,
    stopped: AtomicBool,
    next: AtomicU64,
    seen: Mutex<Seen>,
}

/// One mutex.
#[derive(Debug)]
struct Site {
    name: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    highest: Fence,
    fences: HashSet<Fence>,
    holders: Vec<Holder>,
}

#[derive(Debug)]
struct Holder {
    number: u64,
    guard: Arc<Guard>,
    /// Since when another was valid, too.
    doubled: Option<Instant>,
}

impl Load {
    /// Begins with so many tasks of each client, on the mutexes of these names.
    pub fn begin(clients: &[Client], tasks: usize, names: Vec<String>) -> Load {
        let site = |name| Site { name, state: Mutex::default() };
        let shared = Arc::new(Shared {
            sites: names.into_iter().map(site).collect(),
            stopped: AtomicBool::new(false),
            next: AtomicU64::new(0),
            seen: Mutex::default(),
        });
        let mut all = JoinSet::new();
        for client in clients {
            for _ in 0..tasks {
                all.spawn(work(shared.clone(), client.clone()));
            }
        }
        Load { shared, tasks: all }
    }

    /// Returns the observations so far.
    pub fn seen(&self) -> Seen {
        lock(&self.shared.seen).clone()
    }

    /// Ends the load, when all guards are released.
    pub async fn end(mut self) -> Seen {
        self.shared.stopped.store(true, Ordering::SeqCst);
        while let Some(done) = self.tasks.join_next().await {
            done.unwrap();
        }
        self.seen()
    }
}

/// Takes one mutex after the other, and holds most of them shortly and some over renewals.
async fn work(shared: Arc<Shared>, client: Client) {
    while !shared.stopped.load(Ordering::SeqCst) {
        let chance = getrandom::u32().unwrap();
        let site = &shared.sites[chance as usize % shared.sites.len()];
        // Every later request has to get a higher one.
        let before = lock(&site.state).highest;
        match client.mutex(&site.name).ttl(TTL).try_lock_for(Duration::from_secs(10)).await {
            Ok(Some(guard)) => hold(&shared, site, before, guard, (chance >> 8) % 1_000).await,
            missed => {
                if let Err(error) = missed {
                    let transient = [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown];
                    assert!(transient.contains(&error.kind()), "{error}");
                }
                lock(&shared.seen).failures += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn hold(shared: &Shared, site: &Site, before: Fence, guard: Guard, chance: u32) {
    let guard = Arc::new(guard);
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    granted(shared, site, before, &guard, number);
    // A few are held for up to four seconds, which is over renewals and failovers.
    let time = if chance < 40 { u64::from(chance) * 100 } else { u64::from(chance) % 20 };
    let (mut valid_until, mut looks) = (Instant::now(), tokio::time::interval(BETWEEN_LOOKS));
    let held = async {
        let mut end = pin!(tokio::time::sleep(Duration::from_millis(time)));
        loop {
            // In this order: the end is not taken for a later one.
            let now = Instant::now();
            match guard.remaining() {
                Duration::ZERO => {}
                remaining => valid_until = now + remaining,
            }
            tokio::select! {
                _ = guard.lost() => return true,
                () = &mut end => return false,
                _ = looks.tick() => {}
            }
        }
    };
    let lost = held.await;
    // Taken off the board first: from the release on another may hold it.
    let mut holder = remove_holder(site, number);
    // A task of a busy machine sees the end of its lease late. Its guard was not valid until then.
    let ended = match guard.remaining() {
        Duration::ZERO => Instant::now().min(valid_until),
        _ => Instant::now(),
    };
    if let Some(doubled) = holder.doubled.take() {
        let mut seen = lock(&shared.seen);
        seen.longest_double = seen.longest_double.max(ended.saturating_duration_since(doubled));
    }
    drop(holder);
    let guard = Arc::try_unwrap(guard).unwrap();
    let released = guard.release().await;
    let is_lost = lost || released.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Lost(_)));
    lock(&shared.seen).losses += u64::from(is_lost);
}

fn granted(shared: &Shared, site: &Site, before: Fence, guard: &Arc<Guard>, number: u64) {
    let fence = guard.fence().expect("every lock here has a fence");
    let now = Instant::now();
    let mut state = lock(&site.state);
    assert!(fence > before, "{}: {before:?} had been granted before {fence:?} was asked for", site.name);
    assert!(state.fences.insert(fence), "{}: {fence:?} was granted twice", site.name);
    state.highest = state.highest.max(fence);
    let mut doubles = 0;
    for other in &mut state.holders {
        if other.guard.check().is_ok() {
            other.doubled.get_or_insert(now);
            doubles = 1;
        }
    }
    state.holders.push(Holder { number, guard: guard.clone(), doubled: None });
    drop(state);
    let mut seen = lock(&shared.seen);
    seen.grants += 1;
    seen.doubles += doubles;
    seen.epochs.entry(fence.epoch).or_insert(now);
}

fn remove_holder(site: &Site, number: u64) -> Holder {
    let mut state = lock(&site.state);
    let position = state.holders.iter().position(|holder| holder.number == number);
    state.holders.swap_remove(position.expect("it was put there"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What another task's assertion left is what the report is about.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
