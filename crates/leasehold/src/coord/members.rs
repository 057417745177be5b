//! The members of a group, and which of them live.
//!
//! Each member holds a reader's share of one resource, renewed as any lock is. It ends with its
//! process, so a registered member that does not hold a share any more is dead, or had no sign of life
//! for so long that it counts as dead.

use std::collections::HashSet;
use std::time::Duration;

use leasehold_core::Snapshot;

use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Guard, RwLock};

/// All members of one group.
#[derive(Clone, Debug)]
pub(super) struct Members {
    liveness_lock: RwLock,
    /// The time for which a member counts as alive without a sign of life.
    ttl: Duration,
}

/// One member. Dropping it removes the sign of life, in the background.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: u64,
    /// The sign of life, held as long as the member is one.
    _liveness: Guard,
}

impl Members {
    pub(super) fn new(liveness_lock: RwLock) -> Members {
        Members { ttl: liveness_lock.requested_ttl(), liveness_lock }
    }

    #[must_use]
    pub(super) fn ttl(self, ttl: Duration) -> Members {
        Members { liveness_lock: self.liveness_lock.ttl(ttl), ttl }
    }

    /// Joins the group.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is left behind.
    pub(super) async fn join(&self) -> Result<Member> {
        let liveness = self.liveness_lock.read().await?;
        // The claim names this member, and no member of this process that comes after it.
        liveness.hold().pin();
        let id = id_of(&liveness.tag()).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "wait", "the store does not distinguish claims")
        })?;
        Ok(Member { id, _liveness: liveness })
    }

    /// Returns the living members. A member that joined before the request and is not among them is dead.
    pub(super) async fn living(&self) -> Result<HashSet<u64>> {
        Ok(ids_of(&self.liveness_lock.inspect().await?))
    }

    /// Returns the living members like [`Members::living`], and retries through an outage of the store.
    pub(super) async fn living_through_outage(&self, op: &'static str) -> Result<HashSet<u64>> {
        let resource = self.liveness_lock.named(op)?;
        Ok(ids_of(&self.liveness_lock.engine().inspect_through_outage(&resource, op).await?))
    }

    /// Returns how often it is worth asking for the living members.
    pub(super) fn pace(&self) -> Duration {
        (self.ttl / 3).clamp(PACE_MIN, PACE_MAX)
    }
}

/// Returns the members that hold a share.
fn ids_of(seen: &Snapshot) -> HashSet<u64> {
    seen.holders.iter().filter_map(|holder| id_of(&holder.id.tag())).collect()
}

/// Returns the first 64 bits of a claim's public name.
fn id_of(tag: &str) -> Option<u64> {
    u64::from_str_radix(tag.get(..16)?, 16).ok()
}

const PACE_MIN: Duration = Duration::from_millis(50);
const PACE_MAX: Duration = Duration::from_secs(10);
