//! The stamps of one client's messages to the members, in the order in which they are sent.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::Failure;
use leasehold_core::quorum::RequestStamp;

/// The stamps of one client.
#[derive(Debug)]
pub(super) struct StampSeries {
    series: u64,
    next: AtomicU64,
}

impl StampSeries {
    /// Draws the series.
    ///
    /// # Errors
    /// `Unavailable` where the operating system gives no random numbers.
    pub(super) fn new() -> Result<StampSeries, Failure> {
        Ok(StampSeries { series: leasehold_backend::random::number()?, next: AtomicU64::new(1) })
    }

    /// Returns the next stamp, which no other message has.
    pub(super) fn next(&self) -> RequestStamp {
        RequestStamp::numbered(self.series, self.next.fetch_add(1, Ordering::Relaxed))
    }
}
