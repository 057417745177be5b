//! A ring of counts of the last half hour: waits, holds and losses.
//!
//! Ground rules: this is an event subscriber, called in the middle of the work of others. It takes a short
//! lock, counts, and does nothing else. Its memory is fixed.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::{Event, EventSubscriber};

/// The counts of one stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bucket {
    /// The locks that were acquired.
    pub(crate) acquired: u32,
    /// The longest wait of an acquisition, with success or without.
    pub(crate) longest_wait: Duration,
    /// The longest hold that ended.
    pub(crate) longest_hold: Duration,
    /// The locks that were released.
    pub(crate) released: u32,
    /// The locks that were lost.
    pub(crate) lost: u32,
    /// The most claims of the store that held at a time, and that waited; `None` if nobody has looked.
    pub(crate) seen: Option<(u32, u32)>,
}

/// The counts of the last half hour, as this server's own client sees them.
#[derive(Debug)]
pub(crate) struct Lately {
    begin: Instant,
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    /// The number of the latest stretch, counted from the begin.
    latest: u64,
    buckets: [Bucket; BUCKETS],
}

/// The number of stretches that are kept.
pub(crate) const BUCKETS: usize = 60;
/// The length of one.
pub(crate) const STRETCH: Duration = Duration::from_secs(30);
/// The number for `/metrics` of the losses that the library does not report.
const LOST: &str = "leasehold_serve_lost_total";

/// Returns the counts of this process, of all clients that report to them.
pub(crate) fn of_this_process() -> Arc<Lately> {
    static COUNTS: LazyLock<Arc<Lately>> = LazyLock::new(Arc::default);
    COUNTS.clone()
}

/// Counts a lock that this server ends although its client did not release it. The library was asked to release it, and
/// reports no loss.
pub(crate) fn count_loss(cause: &'static str) {
    metrics::counter!(LOST, "cause" => cause).increment(1);
    of_this_process().count_loss();
}

impl Default for Lately {
    fn default() -> Lately {
        Lately {
            begin: Instant::now(),
            ring: Mutex::new(Ring { latest: 0, buckets: [Bucket::default(); BUCKETS] }),
        }
    }
}

impl Lately {
    /// Returns the counts, the oldest first; `None` for stretches from before this server began.
    pub(crate) fn recent(&self) -> Vec<Option<Bucket>> {
        self.recent_at(Instant::now())
    }

    fn recent_at(&self, now: Instant) -> Vec<Option<Bucket>> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.advance(self.number(now));
        let latest = ring.latest;
        let first = (latest + 1).checked_sub(BUCKETS as u64);
        let begin = first.unwrap_or_default();
        let unknown = BUCKETS as u64 - (latest + 1 - begin);
        let known = (begin..=latest).map(|number| Some(ring.buckets[Ring::place(number)]));
        (0..unknown).map(|_| None).chain(known).collect()
    }

    /// Notes how many claims of the store hold and wait.
    pub(crate) fn sample(&self, holding: u32, waiting: u32) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = ring.at(self.number(Instant::now()));
        let (most_holding, most_waiting) = bucket.seen.unwrap_or_default();
        bucket.seen = Some((most_holding.max(holding), most_waiting.max(waiting)));
    }

    /// Counts a loss that the library does not report.
    fn count_loss(&self) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.at(self.number(Instant::now())).lost += 1;
    }

    fn count(&self, now: Instant, event: &Event<'_>) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = ring.at(self.number(now));
        match *event {
            Event::Acquired { waited, .. } => {
                bucket.acquired += 1;
                bucket.longest_wait = bucket.longest_wait.max(waited);
            }
            Event::AcquireFailed { waited, .. } => bucket.longest_wait = bucket.longest_wait.max(waited),
            Event::Released { held, .. } => {
                bucket.released += 1;
                bucket.longest_hold = bucket.longest_hold.max(held);
            }
            Event::Lost { held, .. } => {
                bucket.lost += 1;
                bucket.longest_hold = bucket.longest_hold.max(held);
            }
            _ => {}
        }
    }

    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.begin).as_secs() / STRETCH.as_secs()
    }
}

impl Ring {
    fn place(number: u64) -> usize {
        (number % BUCKETS as u64) as usize
    }

    /// Returns the stretch of this number, or the latest one if that is later.
    fn at(&mut self, number: u64) -> &mut Bucket {
        self.advance(number);
        &mut self.buckets[Ring::place(self.latest)]
    }

    /// Empties the stretches that have begun since the latest one.
    fn advance(&mut self, number: u64) {
        // Limit: each stretch is emptied once.
        for next in (self.latest + 1..=number).rev().take(BUCKETS) {
            self.buckets[Ring::place(next)] = Bucket::default();
        }
        self.latest = self.latest.max(number);
    }
}

impl EventSubscriber for Lately {
    fn on_event(&self, event: &Event<'_>) {
        self.count(Instant::now(), event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{LossCause, Resource};

    fn lost(lately: &Lately, after: u64) {
        let resource = Resource::new("a").unwrap();
        let (held, late) = (Duration::from_secs(9), Duration::ZERO);
        let event = Event::Lost { resource: &resource, cause: LossCause::Expired, held, suspect: None, late };
        lately.count(lately.begin + STRETCH * u32::try_from(after).unwrap(), &event);
    }

    fn losses(lately: &Lately, after: u32) -> Vec<Option<u32>> {
        lately.recent_at(lately.begin + STRETCH * after).iter().map(|one| one.map(|one| one.lost)).collect()
    }

    #[test]
    fn latest_stretch_is_last_and_those_before_the_begin_are_unknown() {
        let lately = Lately::default();
        lost(&lately, 0);
        lost(&lately, 2);
        lost(&lately, 2);
        let seen = losses(&lately, 3);
        assert_eq!(seen.len(), BUCKETS);
        assert_eq!(seen[BUCKETS - 4..], [Some(1), Some(0), Some(2), Some(0)]);
        assert!(seen[..BUCKETS - 4].iter().all(Option::is_none));
    }

    #[test]
    fn loss_that_the_library_does_not_report_is_counted() {
        let lately = Lately::default();
        lately.count_loss();
        assert_eq!(lately.recent().iter().flatten().map(|one| one.lost).sum::<u32>(), 1);
    }

    #[test]
    fn what_is_older_than_the_ring_is_forgotten() {
        let lately = Lately::default();
        lost(&lately, 0);
        lost(&lately, 1);
        let last = BUCKETS as u32;
        assert_eq!(losses(&lately, last).iter().flatten().sum::<u32>(), 1);
        assert_eq!(losses(&lately, last + 1).iter().flatten().sum::<u32>(), 0);
        assert_eq!(losses(&lately, 1_000_000).iter().flatten().sum::<u32>(), 0, "a long pause");
    }
}
