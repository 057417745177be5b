//! A referee that sees every grant and every loss of one lock, and reports two holders.
//!
//! Ground rules: the validity of a guard is checked on the guard itself, at the moment at which it
//! matters, and as often as something can be learned from it. A fault never excuses two valid holders;
//! it excuses losses and delays. The exception is a server that is known to revoke leases which it renewed: while it may
//! do so, overlaps are counted instead, and the fences and the register stay strict.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold::{Fence, Guard};

/// The referee of one lock.
pub struct Referee(Mutex<Seen>);

struct Seen {
    highest: Option<Fence>,
    holder: Option<Arc<Guard>>,
    violations: Vec<String>,
    /// `true` while the server may revoke leases that it renewed.
    expects_overlaps: bool,
    counts: Counts,
    last_grant: Instant,
}

impl Seen {
    /// Records two valid holders.
    fn overlap(&mut self, text: String) {
        match self.expects_overlaps {
            true => self.counts.overlaps += 1,
            false => self.violations.push(text),
        }
    }
}

/// The record of grants and losses so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub grants: u64,
    /// Grants that came while an earlier holder had not released: its guard had reported the loss.
    pub losses: u64,
    /// Writes of holders that were too late, and refused by the register.
    pub refused: u64,
    /// Two valid holders while the server may have revoked a lease that it renewed.
    pub overlaps: u64,
    /// The longest time between two grants.
    pub longest_gap: Duration,
}

impl Referee {
    pub fn new() -> Arc<Referee> {
        let seen = Seen {
            highest: None,
            holder: None,
            violations: Vec::new(),
            expects_overlaps: false,
            counts: Counts::default(),
            last_grant: Instant::now(),
        };
        Arc::new(Referee(Mutex::new(seen)))
    }

    /// Records a grant. The guard of an earlier holder must have reported its loss by now, unless it was
    /// released.
    ///
    /// A grant whose guard reports its loss, and that a later grant overtook, was never a second holder: on a
    /// busy machine its lease may end before the task that waited for it runs.
    pub fn enter(&self, guard: &Arc<Guard>) {
        let mut seen = self.lock();
        let fence = guard.fence();
        if fence.is_some() && fence < seen.highest && guard.check().is_err() {
            seen.counts.losses += 1;
            return;
        }
        if fence.is_none() || fence <= seen.highest {
            let text = format!("a grant has the fence {fence:?} after {:?}", seen.highest);
            seen.violations.push(text);
        }
        if let Some(before) = seen.holder.replace(guard.clone()) {
            seen.counts.losses += 1;
            if before.check().is_ok() {
                seen.overlap(format!("granted with {fence:?} while {:?} is valid", before.fence()));
            }
        }
        seen.highest = fence;
        seen.counts.grants += 1;
        seen.counts.longest_gap = seen.counts.longest_gap.max(seen.last_grant.elapsed());
        seen.last_grant = Instant::now();
    }

    /// Records a grant that another process has reported; the reporting process watches its guard. Returns `false`, and
    /// records nothing, if a later grant overtook it: that process must have lost the lock.
    pub fn enter_elsewhere(&self, fence: Fence) -> bool {
        let mut seen = self.lock();
        if seen.highest.is_some_and(|highest| fence < highest) {
            return false;
        }
        if seen.highest == Some(fence) {
            let text = format!("another process was granted {fence} after {:?}", seen.highest);
            seen.violations.push(text);
        }
        if let Some(before) = seen.holder.take()
            && before.check().is_ok()
        {
            let text = format!("another process was granted {fence} while {:?} is valid", before.fence());
            seen.violations.push(text);
        }
        seen.highest = Some(fence);
        seen.last_grant = Instant::now();
        true
    }

    /// Records the end of a hold, before it is released.
    pub fn leave(&self, guard: &Arc<Guard>) {
        let mut seen = self.lock();
        if seen.holder.as_ref().is_some_and(|holder| Arc::ptr_eq(holder, guard)) {
            seen.holder = None;
        } else if guard.check().is_ok() {
            let highest = seen.highest;
            seen.overlap(format!("{:?} is valid although {highest:?} was granted since", guard.fence()));
        }
    }

    /// Records that the register has refused this holder, so there is a later one.
    pub fn refused(&self, guard: &Guard) {
        let mut seen = self.lock();
        seen.counts.refused += 1;
        if guard.check().is_ok() {
            seen.overlap(format!("the register refuses {:?}, which is valid", guard.fence()));
        }
    }

    /// Counts two valid holders from now on, or calls them a violation again.
    pub fn expect_overlaps(&self, expects: bool) {
        self.lock().expects_overlaps = expects;
    }

    /// Records a violation that was seen elsewhere.
    pub fn accuse(&self, text: impl Into<String>) {
        self.lock().violations.push(text.into());
    }

    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Restarts the measurement of gaps. Returns the longest one so far.
    pub fn take_gap(&self) -> Duration {
        std::mem::take(&mut self.lock().counts.longest_gap)
    }

    /// # Panics
    /// If two clients held the lock, or a fence fell.
    pub fn verdict(&self) {
        let seen = self.lock();
        assert!(seen.violations.is_empty(), "{:#?}", seen.violations);
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::local::MemoryBackend;
    use leasehold::{Client, Tuning};

    /// Opens a client that renews its leases long before they end.
    fn client(store: &Arc<MemoryBackend>) -> Client {
        Client::builder().tuning(Tuning::default().renew_at(0.05)).over(store.clone()).unwrap()
    }

    /// Returns the guards of two grants of one lock in order, the first of which has reported its loss.
    async fn lost_and_next() -> (Arc<Guard>, Arc<Guard>) {
        let store = Arc::new(MemoryBackend::new());
        let (first, second) = (client(&store), client(&store));
        let lost = first.mutex("job").ttl(Duration::from_secs(6)).lock().await.unwrap();
        let seen = second.inspect("job").await.unwrap().holders.remove(0);
        second.break_claim("job", &seen).await.unwrap();
        lost.lost().await;
        (Arc::new(lost), Arc::new(second.mutex("job").lock().await.unwrap()))
    }

    #[tokio::test]
    async fn overtaken_lost_grant_is_not_a_violation() {
        let (lost, next) = lost_and_next().await;
        let referee = Referee::new();
        referee.enter(&next);
        referee.enter(&lost);
        referee.refused(&lost);
        referee.leave(&lost);
        referee.verdict();
        assert_eq!((referee.counts().grants, referee.counts().losses), (1, 1));
        referee.leave(&next);
        referee.verdict();
    }

    #[tokio::test]
    #[should_panic(expected = "while Some")]
    async fn grant_beside_a_valid_guard_is_a_violation() {
        let (_, valid) = lost_and_next().await;
        let next = client(&Arc::new(MemoryBackend::new())).mutex("job").lock().await.unwrap();
        let referee = Referee::new();
        referee.enter(&valid);
        referee.enter(&Arc::new(next));
        referee.verdict();
    }

    #[tokio::test]
    #[should_panic(expected = "a grant has the fence")]
    async fn valid_grant_with_a_lower_fence_is_a_violation() {
        let (_, second) = lost_and_next().await;
        let first = client(&Arc::new(MemoryBackend::new())).mutex("job").lock().await.unwrap();
        assert!(first.fence() < second.fence());
        let referee = Referee::new();
        referee.enter(&second);
        referee.leave(&second);
        referee.enter(&Arc::new(first));
        referee.verdict();
    }
}
