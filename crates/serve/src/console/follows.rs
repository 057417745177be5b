//! The locks that are followed for their pages, and for how long.
//!
//! Ground rules: all readers of one lock share one task. A lock stays followed for a while after its page was
//! looked at last, so that a reader without script finds its history at the next visit. Their number is
//! bounded: the lock that was looked at longest ago makes room.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::Resource;
use leasehold_monitor::{Followed, FollowedLock, Monitor};
use tokio::time::{Instant, timeout};

/// The followed locks.
#[derive(Debug)]
pub(super) struct Follows {
    monitor: Arc<Monitor>,
    kept: Mutex<Vec<Kept>>,
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
        Follows { monitor, kept: Mutex::default() }
    }

    /// Follows a lock from now on, if that is not so already.
    pub(super) fn follow(&self, name: &Resource) -> Followed {
        let looked = Instant::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // First of all, so that the task of a lock that is kept already continues.
        let followed = self.monitor.follow(name);
        kept.retain(|one| one.name != *name && looked.duration_since(one.looked) < KEPT_FOR);
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

const KEPT_FOR: Duration = Duration::from_secs(600);
const KEPT_MAX: usize = 64;
/// The longest time for which a page waits for the first look.
const PATIENCE: Duration = Duration::from_secs(3);
