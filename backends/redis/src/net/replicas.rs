//! Waiting until replicas have what was written over a connection.
//!
//! `WAIT` is about what was written over the same connection, so it is sent over no other; and while it
//! waits, that connection answers nothing else. So all requests that want to know at the same time
//! share one `WAIT`: at most one is under way, and requests that come meanwhile share the next.

use std::error::Error;
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
    pub(crate) counts: fn(&Value) -> bool,
}

/// An answer that too few replicas confirmed in time.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "only {had} of {wanted} replicas confirmed it in time: bring them back, or write a smaller ?replicas="
)]
pub(crate) struct Unconfirmed {
    pub(crate) value: Value,
    pub(crate) had: u32,
    pub(crate) wanted: u32,
}

impl Unconfirmed {
    /// Returns the failure for the request. The script's effect remains.
    pub(crate) fn into_failure(self) -> Failure {
        Failure::unanswered(self.to_string()).because(self)
    }

    /// Returns what `failure` is about, if it is of this kind.
    pub(crate) fn behind(failure: &Failure) -> Option<&Unconfirmed> {
        failure.source()?.downcast_ref()
    }
}

/// The requests that wait for the replicas on one connection.
#[derive(Debug)]
pub(crate) struct Barrier {
    turn: Semaphore,
    begun: AtomicU64,
    /// The number of the last question that was answered, and by how many replicas.
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
    /// Dropping the future loses nothing; the next one asks for itself.
    pub(crate) async fn pass<E, A: Future<Output = Result<u32, E>>>(
        &self,
        wanted: u32,
        limit: Duration,
        ask: impl FnOnce(Duration) -> A,
    ) -> Result<u32, E> {
        let deadline = timer::after(limit);
        // A question that has begun already may have begun before what was written.
        let earlier = self.begun.load(Ordering::Acquire);
        // The semaphore is never closed.
        let Ok(Ok(_turn)) = timeout_at(deadline, self.turn.acquire()).await else { return Ok(0) };
        let (number, had) = self.last();
        if number > earlier && had >= wanted {
            return Ok(had);
        }
        let left = deadline.saturating_duration_since(timer::now());
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let had = ask(left).await?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = (number, had);
        Ok(had)
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

    #[tokio::test]
    async fn all_who_come_while_one_waits_share_the_next() {
        let barrier = Barrier::new();
        let asked = AtomicU64::new(0);
        let ask = |_| async {
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok::<_, Infallible>(2)
        };
        let passed = join_all((0..100).map(|_| barrier.pass(2, LIMIT, ask))).await;
        assert!(passed.iter().all(|had| *had == Ok(2)));
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

    #[tokio::test]
    async fn who_is_not_satisfied_asks_for_itself_within_its_limit() {
        let barrier = Barrier::new();
        let slow = |left| async move {
            tokio::time::sleep(left).await;
            Ok::<_, Infallible>(0)
        };
        let begun = Instant::now();
        let passed = join_all((0..50).map(|_| barrier.pass(1, LIMIT, slow))).await;
        assert!(passed.iter().all(|had| *had == Ok(0)));
        assert!(begun.elapsed() < 3 * LIMIT, "{:?}", begun.elapsed());
        let failing = |_| async { Err("broken") };
        assert_eq!(barrier.pass(1, LIMIT, failing).await, Err("broken"));
        assert_eq!(barrier.pass(1, LIMIT, |_| async { Ok::<_, &str>(1) }).await, Ok(1));
    }
}
