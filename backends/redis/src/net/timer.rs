//! The clock of the timers in here: when to look again, when to connect again, which channel is unused.
//!
//! It stops while the machine is suspended, as the timers themselves do. Nothing that decides whether a
//! lock is held is measured by it: that is counted from
//! [`Patience::now`](leasehold_core::Patience::now).

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;
use tokio::time::error::Elapsed;

/// Returns the present.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the moment at which a pause from now ends.
pub(crate) fn after(pause: Duration) -> Instant {
    now() + pause
}

/// Waits until that moment, or for ever where there is none.
pub(crate) async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// The time limit of a request, which includes waiting for a connection and connecting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    whole: Duration,
    end: Instant,
}

impl Limit {
    /// Begins now.
    pub(crate) fn of(whole: Duration) -> Limit {
        Limit { whole, end: after(whole) }
    }

    /// Returns when it ends.
    pub(crate) fn end(self) -> Instant {
        self.end
    }

    /// Returns its length at the beginning.
    pub(crate) fn whole(self) -> Duration {
        self.whole
    }

    /// Returns the time that is left.
    pub(crate) fn left(self) -> Duration {
        self.end.saturating_duration_since(now())
    }

    /// Returns the limit that ends when this one does, but at most so long from now on.
    pub(crate) fn at_most(self, pause: Duration) -> Limit {
        Limit { whole: self.whole, end: self.end.min(after(pause)) }
    }

    /// Runs `work` until it is done or the time is over.
    pub(crate) async fn bound<T>(self, work: impl Future<Output = T>) -> Result<T, Elapsed> {
        tokio::time::timeout_at(self.end, work).await
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.whole).fmt(f)
    }
}
