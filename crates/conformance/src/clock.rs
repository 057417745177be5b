//! The time of the suite, and waits that end by it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{Clock, Moment, Patience};

/// A steady clock that begins when it is made.
///
/// It does not advance while the machine is suspended, as a real client's clock must; a test run is not
/// suspended.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock(Instant);

impl SteadyClock {
    /// Creates a clock that begins now.
    pub fn new() -> Self {
        SteadyClock(Instant::now())
    }
}

impl Default for SteadyClock {
    fn default() -> Self {
        SteadyClock::new()
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Moment {
        Moment::START.after(self.0.elapsed())
    }
}

/// Returns patience that ends after `wait`, by a task of the present runtime. It is what the engine does,
/// in three lines.
pub fn patience_for(clock: &Arc<dyn Clock>, wait: Duration) -> Patience {
    let patience = Patience::until(Arc::clone(clock), clock.now().after(wait));
    let ends = patience.clone();
    tokio::spawn(async move {
        tokio::time::sleep(wait).await;
        ends.end();
    });
    patience
}

/// Waits for less than the runtime's timer can measure, by asking the clock again and again.
pub(crate) async fn briefly(wait: Duration) {
    let end = Instant::now() + wait;
    while Instant::now() < end {
        tokio::task::yield_now().await;
    }
}
