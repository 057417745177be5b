//! How late the machine is while a test measures a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

/// A measurement of how late the machine is: by a task that wants to run every few milliseconds.
///
/// A test that asserts that something took less than a limit asks it whether a failure says anything: on a machine that
/// stood still for a good part of the limit, it says nothing.
#[derive(Debug)]
pub struct Lateness {
    /// In microseconds.
    worst: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Lateness {
    /// Begins to measure.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn watch() -> Lateness {
        let worst = Arc::new(AtomicU64::new(0));
        let seen = worst.clone();
        let task = tokio::spawn(async move {
            loop {
                let before = Instant::now();
                tokio::time::sleep(BEAT).await;
                let late = before.elapsed().saturating_sub(BEAT);
                seen.fetch_max(u64::try_from(late.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Lateness { worst, task }
    }

    /// Returns the longest delay so far, and ends the measurement. Waits for a moment, so that a delay which is not over
    /// yet is seen.
    pub async fn end(self) -> Duration {
        tokio::time::sleep(3 * BEAT).await;
        Duration::from_micros(self.worst.load(Ordering::Relaxed))
    }

    /// Returns the longest delay within so long from now.
    pub async fn within(span: Duration) -> Duration {
        let lateness = Lateness::watch();
        tokio::time::sleep(span).await;
        lateness.end().await
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const BEAT: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_runtime_that_stands_still_is_late() {
        let lateness = Lateness::watch();
        tokio::task::yield_now().await;
        std::thread::sleep(Duration::from_millis(200));
        let late = lateness.end().await;
        assert!(late >= Duration::from_millis(180), "{late:?}");
    }
}
