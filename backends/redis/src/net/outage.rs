//! Pauses between attempts that fail.
//!
//! All requests to the same server share one state: they wait for the next attempt together and share
//! its outcome. The pauses double up to a limit and are jittered, so that clients that lost a server
//! together do not return together.

use std::time::Duration;

use leasehold_backend::random;
use leasehold_core::{Backoff, jittered};
use tokio::sync::watch;
use tokio::time::Instant;

/// The attempts to reach a server since the last success.
#[derive(Debug)]
pub(crate) struct Outage {
    backoff: Backoff,
    longest: Duration,
    opens_at: Option<Instant>,
}

impl Outage {
    /// Pauses from `first` to `longest`; nothing has failed yet.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Outage {
        Outage { backoff: Backoff::new(first, longest), longest, opens_at: None }
    }

    /// Returns when the next attempt may begin; `None` means at once.
    pub(crate) fn opens_at(&self) -> Option<Instant> {
        self.opens_at
    }

    /// Records a failed attempt.
    pub(crate) fn failed(&mut self, now: Instant) {
        // Without an attempt for long after the pause, the earlier outage says nothing about this one.
        if self.opens_at.is_some_and(|opens_at| now > opens_at + 2 * self.longest) {
            self.backoff.reset();
        }
        self.opens_at = Some(now + self.backoff.failed(random::chance()));
    }

    /// Forgets all failures.
    pub(crate) fn worked(&mut self) {
        self.backoff.reset();
        self.opens_at = None;
    }
}

/// The pause before the next attempt. A request that has little time shortens it for all.
#[derive(Debug)]
pub(crate) struct Pause(watch::Sender<Instant>);

impl Pause {
    /// Creates a pause until `opens_at`.
    pub(crate) fn until(opens_at: Instant) -> Pause {
        Pause(watch::Sender::new(opens_at))
    }

    /// Ends the pause after a fifth of `limit`, the time that a request has in all, unless it ends earlier.
    ///
    /// The renewal of a lease of 2 s has 0.7 s. It cannot wait for a pause of a second.
    pub(crate) fn shorten_for(&self, limit: Duration, now: Instant) {
        let latest = now + jittered(limit / ATTEMPTS_IN_TIME, random::chance());
        self.0.send_if_modified(|opens_at| {
            let is_sooner = latest < *opens_at;
            *opens_at = latest.min(*opens_at);
            is_sooner
        });
    }

    /// Returns a future that is ready when the pause is over.
    pub(crate) fn over(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut opens_at = self.0.subscribe();
        async move {
            loop {
                let end = *opens_at.borrow_and_update();
                tokio::select! {
                    () = tokio::time::sleep_until(end) => return,
                    changed = opens_at.changed() => if changed.is_err() {
                        return tokio::time::sleep_until(end).await;
                    },
                }
            }
        }
    }
}

/// The number of attempts for which a request has the time.
const ATTEMPTS_IN_TIME: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_the_longest_and_end_with_a_success() {
        let mut outage = Outage::new(50 * MS, 1_000 * MS);
        assert_eq!(outage.opens_at(), None);
        let mut now = Instant::now();
        for whole in [50, 100, 200, 400, 800, 1_000, 1_000, 1_000] {
            outage.failed(now);
            let opens_at = outage.opens_at().unwrap();
            assert!(opens_at >= now + whole * MS / 2 && opens_at <= now + whole * MS, "{whole}");
            now = opens_at;
        }
        outage.worked();
        assert_eq!(outage.opens_at(), None);
        outage.failed(now);
        assert!(outage.opens_at().unwrap() <= now + 50 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn request_with_little_time_shortens_the_pause_for_all() {
        let begun = Instant::now();
        let pause = Pause::until(begun + 1_000 * MS);
        let over = tokio::spawn(pause.over());
        tokio::time::sleep(100 * MS).await;
        pause.shorten_for(5_000 * MS, Instant::now());
        tokio::time::sleep(300 * MS).await;
        assert!(!over.is_finished(), "there is time for the whole pause");
        pause.shorten_for(700 * MS, Instant::now());
        over.await.unwrap();
        let waited = begun.elapsed();
        assert!(waited > 400 * MS && waited <= 545 * MS, "{waited:?}");
        // A later request never makes it longer, and it ends also when no request waits any more.
        let pause = Pause::until(Instant::now() + 50 * MS);
        pause.shorten_for(5_000 * MS, Instant::now());
        let (begun, over) = (Instant::now(), pause.over());
        drop(pause);
        over.await;
        assert!(begun.elapsed() <= 55 * MS, "{:?}", begun.elapsed());
    }

    #[test]
    fn an_outage_long_ago_does_not_count() {
        let mut outage = Outage::new(50 * MS, 1_000 * MS);
        let begun = Instant::now();
        for _ in 0..10 {
            outage.failed(begun);
        }
        let later = begun + 4_000 * MS;
        outage.failed(later);
        assert!(outage.opens_at().unwrap() <= later + 50 * MS);
    }
}
