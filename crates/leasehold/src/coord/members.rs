//! Who takes part in something, and who of them lives.
//!
//! Each member holds a reader's share of one resource, renewed as any lock is. It ends with its process, so whoever is
//! registered somewhere and holds no share any more is dead, or was not heard of for so long that it counts as dead.

use std::collections::HashSet;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Guard, RwLock};

/// All who take part in one thing.
#[derive(Clone, Debug)]
pub(super) struct Members {
    signs: RwLock,
    /// How long one counts as alive that is not heard of.
    ttl: Duration,
}

/// One who takes part. Dropping it takes the sign of life away, in the background.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: u64,
    /// Held as long as the member is one.
    _sign: Guard,
}

impl Members {
    pub(super) fn new(signs: RwLock) -> Members {
        Members { ttl: signs.lease(), signs }
    }

    #[must_use]
    pub(super) fn ttl(self, ttl: Duration) -> Members {
        Members { signs: self.signs.ttl(ttl), ttl }
    }

    /// Takes part from now on.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind.
    pub(super) async fn join(&self) -> Result<Member> {
        let sign = self.signs.read().await?;
        let id = id_of(&sign.tag()).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "wait", "the store does not tell claims apart")
        })?;
        Ok(Member { id, _sign: sign })
    }

    /// Who lives. One who joined before this was asked and is not among them is dead.
    pub(super) async fn living(&self) -> Result<HashSet<u64>> {
        let snapshot = self.signs.inspect().await?;
        Ok(snapshot.holders.iter().filter_map(|holder| id_of(&holder.id.tag())).collect())
    }

    /// How often it is worth asking who lives.
    pub(super) fn pace(&self) -> Duration {
        (self.ttl / 3).clamp(PACE_MIN, PACE_MAX)
    }
}

/// The first 64 bits of a claim's public name.
fn id_of(tag: &str) -> Option<u64> {
    u64::from_str_radix(tag.get(..16)?, 16).ok()
}

const PACE_MIN: Duration = Duration::from_millis(50);
const PACE_MAX: Duration = Duration::from_secs(10);
