//! The clock of the timers in here: when to look again, when to dial again, what has been quiet for long.
//!
//! It stands still while the machine is suspended, as the timers themselves do. Nothing that decides whether a lock is
//! held is measured by it: that is counted from [`Patience::now`](leasehold_core::Patience::now).

use std::time::Duration;

use tokio::time::Instant;

/// The present.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The moment that a pause from now ends.
pub(crate) fn after(pause: Duration) -> Instant {
    now() + pause
}

/// Comes back at that moment, or never where there is none.
pub(crate) async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
