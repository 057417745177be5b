//! Waits until replicas have what was written over a connection.
//!
//! `WAIT` is about what was written over the same connection, so it is sent over no other; and while it
//! waits, that connection answers nothing else. So all requests that wait at the same time
//! share one `WAIT`: at most one is under way, and requests that arrive meanwhile share the next.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::Failure;
use redis::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use crate::net::timer;

/// The part of a request that replicas have to confirm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirm {
    /// The number of replicas.
    pub(crate) replicas: u32,
    /// A test for the answers that have to be confirmed.
    pub(crate) applies_to: fn(&Value) -> bool,
}

/// An answer that too few replicas confirmed in time.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "only {confirmed} of {required} replicas confirmed it in time: bring them back, or write a smaller ?replicas="
)]
pub(crate) struct Unconfirmed {
    pub(crate) value: Value,
    pub(crate) confirmed: u32,
    pub(crate) required: u32,
}

impl Unconfirmed {
    /// Returns the failure for the request. The script's effect remains.
    pub(crate) fn into_failure(self) -> Failure {
        Failure::unanswered(self.to_string()).because(self)
    }

    /// Returns the cause of `failure`, if it is of this kind.
    pub(crate) fn cause_of(failure: &Failure) -> Option<&Unconfirmed> {
        failure.cause()?.downcast_ref()
    }
}

/// The requests that wait for the replicas on one connection.
#[derive(Debug)]
pub(crate) struct Barrier {
    turn: Semaphore,
    begun: AtomicU64,
    /// The number of the last `WAIT` that was answered, and the number of replicas that had confirmed.
    last: Mutex<(u64, u32)>,
}

impl Barrier {
    /// Creates a barrier without waiters.
    pub(crate) fn new() -> Barrier {
        Barrier { turn: Semaphore::new(1), begun: AtomicU64::new(0), last: Mutex::default() }
    }

    /// Returns how many replicas have all that was answered over the connection before this call,
    /// within `limit`; `ask` asks the server, which answers within the time that it is given.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the next caller sends its own `WAIT`.
    pub(crate) async fn pass<E, A: Future<Output = Result<u32, E>>>(
        &self,
        required: u32,
        limit: Duration,
        ask: impl FnOnce(Duration) -> A,
    ) -> Result<u32, E> {
        let deadline = timer::after(limit);
        // A `WAIT` that is under way may have been sent before the write.
        let earlier = self.begun.load(Ordering::Acquire);
        // The semaphore is never closed.
        let Ok(Ok(_turn)) = timeout_at(deadline, self.turn.acquire()).await else { return Ok(0) };
        let (number, confirmed) = self.last();
        if number > earlier && confirmed >= required {
            return Ok(confirmed);
        }
        let left = deadline.saturating_duration_since(timer::now());
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let confirmed = ask(left).await?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = (number, confirmed);
        Ok(confirmed)
    }

    fn last(&self) -> (u64, u32) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(200);

    #[tokio::test(start_paused = true)]
    async fn requests_during_a_wait_share_the_next_wait() {
        let barrier = Barrier::new();
        let asked = AtomicU64::new(0);
        let ask = |_| async {
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok::<_, Infallible>(2)
        };
        let passed = join_all((0..100).map(|_| barrier.pass(2, LIMIT, ask))).await;
        assert!(passed.iter().all(|confirmed| *confirmed == Ok(2)));
        assert_eq!(
            asked.load(Ordering::Relaxed),
            2,
            "the first one's, and one for the 99 that came meanwhile"
        );
        barrier.pass(2, LIMIT, ask).await.unwrap();
        assert_eq!(
            asked.load(Ordering::Relaxed),
            3,
            "an answer of before says nothing about what was written since"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn unsatisfied_caller_asks_again_within_its_own_limit() {
        let barrier = Barrier::new();
        let slow = |left| async move {
            tokio::time::sleep(left).await;
            Ok::<_, Infallible>(0)
        };
        let begun = Instant::now();
        let passed = join_all((0..50).map(|_| barrier.pass(1, LIMIT, slow))).await;
        assert!(passed.iter().all(|confirmed| *confirmed == Ok(0)));
        assert!(begun.elapsed() < 3 * LIMIT, "{:?}", begun.elapsed());
        let failing = |_| async { Err("broken") };
        assert_eq!(barrier.pass(1, LIMIT, failing).await, Err("broken"));
        assert_eq!(barrier.pass(1, LIMIT, |_| async { Ok::<_, &str>(1) }).await, Ok(1));
    }
}
