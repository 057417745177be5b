//! The clock of the timers in here: until when the rest is waited for, and when to try again.
//!
//! It stands still while the machine is suspended, as the timers themselves do. Nothing that decides whether a lock is
//! held is measured by it: that is counted from [`Patience::now`](leasehold_core::Patience::now).

use std::time::Duration;

use tokio::time::Instant;

/// The moment that a pause from now ends.
pub(super) fn after(pause: Duration) -> Instant {
    Instant::now() + pause
}
