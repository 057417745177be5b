//! The clock of the timers of the quorum: until when the rest is waited for, and when to try again.
//!
//! It stops while the machine is suspended, as the timers themselves do. It never decides whether a
//! lock is held: that is measured by [`Patience::now`](leasehold_core::Patience::now).

use std::time::Duration;

use tokio::time::Instant;

/// Returns the moment at which a pause from now ends.
pub(super) fn after(pause: Duration) -> Instant {
    Instant::now() + pause
}
