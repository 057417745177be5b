//! Pauses between attempts that fail.
//!
//! All requests to the same server share one state: they wait for the next attempt together and share
//! its outcome. The pauses double up to a limit and are jittered, so that clients that lost a server
//! together do not return together.

use std::time::Duration;

use tokio::time::Instant;

/// The attempts since the last success.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    opens_at: Option<Instant>,
}

impl Backoff {
    /// Pauses from `first` to `longest`; nothing has failed yet.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, failures: 0, opens_at: None }
    }

    /// Returns when the next attempt may begin; `None` means at once.
    pub(crate) fn opens_at(&self) -> Option<Instant> {
        self.opens_at
    }

    /// Counts an attempt that came to nothing.
    pub(crate) fn failed(&mut self, now: Instant) {
        // Without an attempt for long after the pause, the earlier outage says nothing about this one.
        if self.opens_at.is_some_and(|opens_at| now > opens_at + 2 * self.longest) {
            self.failures = 0;
        }
        let pause = self.first.saturating_mul(1 << self.failures.min(MAX_DOUBLINGS)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        self.opens_at = Some(now + jittered(pause));
    }

    /// Forgets all failures.
    pub(crate) fn worked(&mut self) {
        self.failures = 0;
        self.opens_at = None;
    }
}

/// Draws a pause between half of `pause` and the whole, anew each time.
pub(crate) fn jittered(pause: Duration) -> Duration {
    // Without random numbers all wait for the whole of it, which is right, too.
    let drawn = getrandom::u32().unwrap_or(u32::MAX);
    pause / 2 + (pause / 2).mul_f64(f64::from(drawn) / f64::from(u32::MAX))
}

const MAX_DOUBLINGS: u32 = 16;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_the_longest_and_end_with_a_success() {
        let mut backoff = Backoff::new(50 * MS, 1_000 * MS);
        assert_eq!(backoff.opens_at(), None);
        let mut now = Instant::now();
        for whole in [50, 100, 200, 400, 800, 1_000, 1_000, 1_000] {
            backoff.failed(now);
            let opens_at = backoff.opens_at().unwrap();
            assert!(opens_at >= now + whole * MS / 2 && opens_at <= now + whole * MS, "{whole}");
            now = opens_at;
        }
        backoff.worked();
        assert_eq!(backoff.opens_at(), None);
        backoff.failed(now);
        assert!(backoff.opens_at().unwrap() <= now + 50 * MS);
    }

    #[test]
    fn an_outage_long_ago_does_not_count() {
        let mut backoff = Backoff::new(50 * MS, 1_000 * MS);
        let begun = Instant::now();
        for _ in 0..10 {
            backoff.failed(begun);
        }
        let later = begun + 4_000 * MS;
        backoff.failed(later);
        assert!(backoff.opens_at().unwrap() <= later + 50 * MS);
    }

    #[test]
    fn many_failures_do_not_overflow_and_no_two_wait_alike() {
        let mut backoff = Backoff::new(50 * MS, Duration::from_secs(365 * 24 * 3600));
        let now = Instant::now();
        for _ in 0..100 {
            backoff.failed(now);
        }
        let pauses: BTreeSet<_> = (0..100).map(|_| jittered(1_000 * MS)).collect();
        assert!(pauses.len() > 90, "{pauses:?}");
    }
}
