//! The locks that are followed for their pages, and for how long.
//!
//! Ground rules: all readers of one lock share one task. A lock stays followed for a while after its page was
//! looked at last, so that a reader without script finds its history at the next visit. Their number is
//! bounded: the lock that was looked at longest ago makes room. After that while a lock is dropped without another
//! look at any page, so that a console that nobody looks at costs the store nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::Resource;
use leasehold_monitor::{Followed, FollowedLock, Monitor};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// The followed locks.
#[derive(Debug)]
pub(super) struct Follows {
    monitor: Arc<Monitor>,
    kept: Arc<Mutex<Vec<Kept>>>,
    /// The task that drops those that nobody looks at.
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Kept {
    name: Resource,
    /// The handle that keeps it followed.
    _followed: Followed,
    looked: Instant,
}

impl Follows {
    pub(super) fn new(monitor: Arc<Monitor>) -> Follows {
        let kept: Arc<Mutex<Vec<Kept>>> = Arc::default();
        let task = tokio::spawn(expire(kept.clone()));
        Follows { monitor, kept, task }
    }

    /// Follows a lock from now on, if that is not so already.
    pub(super) fn follow(&self, name: &Resource) -> Followed {
        let looked = Instant::now();
        let mut kept = guarded(&self.kept);
        // First of all, so that the task of a lock that is kept already continues.
        let followed = self.monitor.follow(name);
        kept.retain(|one| one.name != *name);
        // The latest is the last.
        if kept.len() >= KEPT_MAX {
            kept.remove(0);
        }
        kept.push(Kept { name: name.clone(), _followed: followed.clone(), looked });
        followed
    }

    /// Returns what is known of a lock, once there is anything, or after a while without an answer.
    pub(super) async fn look(&self, name: &Resource) -> Arc<FollowedLock> {
        let mut followed = self.follow(name);
        let present = followed.current();
        if present.snapshot.is_some() || present.outage.is_some() {
            return present;
        }
        timeout(PATIENCE, followed.changed()).await.unwrap_or(present)
    }
}

impl Drop for Follows {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Drops each lock that was not looked at for long, for ever.
async fn expire(kept: Arc<Mutex<Vec<Kept>>>) {
    loop {
        // The first was looked at longest ago. One that comes while there is none is kept for as long.
        let oldest = guarded(&kept).first().map_or_else(Instant::now, |one| one.looked);
        sleep_until(oldest + KEPT_FOR).await;
        guarded(&kept).retain(|one| one.looked.elapsed() < KEPT_FOR);
    }
}

fn guarded(kept: &Mutex<Vec<Kept>>) -> MutexGuard<'_, Vec<Kept>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

const KEPT_FOR: Duration = Duration::from_secs(600);
const KEPT_MAX: usize = 64;
/// The longest time for which a page waits for the first look.
const PATIENCE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use leasehold::layer::{Fault, Verb};
    use leasehold::local::MemoryBackend;
    use leasehold::{Client, TokioClock};
    use leasehold_monitor::Options;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lock_whose_page_nobody_looks_at_is_asked_for_no_longer() {
        let memory = MemoryBackend::with_clock(Arc::new(TokioClock::new()));
        let fault = Arc::new(Fault::over(Arc::new(memory)));
        let client = Client::builder().clock(Arc::new(TokioClock::new())).over(fault.clone()).unwrap();
        let follows = Follows::new(Arc::new(Monitor::start(client, Options::default())));
        let (one, other) = (Resource::new("a").unwrap(), Resource::new("b").unwrap());
        drop(follows.follow(&one));
        sleep(KEPT_FOR / 2).await;
        drop(follows.follow(&one));
        drop(follows.follow(&other));
        sleep(KEPT_FOR * 3 / 4).await;
        let calls = fault.calls(Verb::Inspect);
        sleep(Duration::from_secs(10)).await;
        assert!(fault.calls(Verb::Inspect) > calls, "both are followed for the time after the last look");
        sleep(KEPT_FOR / 4).await;
        let calls = fault.calls(Verb::Inspect);
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(fault.calls(Verb::Inspect), calls, "nobody looks");
        drop(follows.follow(&one));
        sleep(Duration::from_secs(10)).await;
        assert!(fault.calls(Verb::Inspect) > calls, "a later look follows it again");
        sleep(KEPT_FOR).await;
        let calls = fault.calls(Verb::Inspect);
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(fault.calls(Verb::Inspect), calls, "nobody looks again");
    }
}
