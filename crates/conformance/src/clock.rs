//! The time of the suite, and waits that end by it.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use leasehold_core::{Clock, Moment, Patience};

/// A steady clock that begins when the first one of its process is made, so that all of them agree: a
/// backend and the suite compare moments.
///
/// It does not advance while the machine is suspended, as a real client's clock must; a test run is not
/// suspended.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock(Instant);

impl SteadyClock {
    /// Returns the clock of this process.
    pub fn new() -> Self {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        SteadyClock(*BEGIN.get_or_init(Instant::now))
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

/// The time from which on a machine or a server counts as stalled, so that an event that is late proves no breach.
pub(crate) const STALLED: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_clocks_of_one_process_agree() {
        let first = SteadyClock::new();
        std::thread::sleep(Duration::from_millis(20));
        let (earlier, later) = (first.now(), SteadyClock::new().now());
        assert!(earlier <= later && later.since(earlier) < Duration::from_secs(10), "{earlier:?}, {later:?}");
        assert!(first.now() >= later);
    }
}
