//! One task at a time of this client at one resource: tasks that would only make each other lose take turns
//! instead.
//!
//! Ground rules: in a cell a turn is for contending. Renewals and releases take none, because others wait
//! for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Failure, Resource};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The turns of one client.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<Resource, Arc<Semaphore>>>);

/// The turn of one task, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    resource: &'a Resource,
    /// `None` only while it is released.
    permit: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// Waits for a turn, in the order of arrival.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place, and may leave a name behind until the next turn at it ends.
    pub(crate) async fn take<'a>(&'a self, resource: &'a Resource) -> Turn<'a> {
        let turn =
            self.turns().entry(resource.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))).clone();
        // It is never closed, so there is always a permit in the end.
        let permit = turn.acquire_owned().await.ok();
        Turn { turns: self, resource, permit }
    }

    /// Takes a turn at once; `None` where another task has it, or waits for it.
    pub(crate) fn take_now<'a>(&'a self, resource: &'a Resource) -> Option<Turn<'a>> {
        let mut turns = self.turns();
        let turn = turns.entry(resource.clone()).or_insert_with(|| Arc::new(Semaphore::new(1)));
        // Under the lock, so that the end of a turn does not count this task as one that waits.
        let permit = turn.clone().try_acquire_owned().ok()?;
        Some(Turn { turns: self, resource, permit: Some(permit) })
    }

    /// Waits for a turn as a task that only tries: behind others in the order of arrival, for 15 s at most.
    ///
    /// # Errors
    /// `Unavailable` after that, without effect: nothing was sent.
    ///
    /// # Cancel safety
    /// As [`take`](Turns::take).
    pub(crate) async fn take_to_try<'a>(&'a self, resource: &'a Resource) -> Result<Turn<'a>, Failure> {
        tokio::time::timeout(TRY_WAIT, self.take(resource)).await.map_err(|_| {
            Failure::unavailable(format!(
                "other tasks of this client have been asking for {resource:?} for {TRY_WAIT:?}: the store is slow, or somebody keeps \
                 it locked there"
            ))
        })
    }

    fn turns(&self) -> MutexGuard<'_, HashMap<Resource, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.turns.turns();
        self.permit = None;
        // Only the map has it: no task waits.
        if turns.get(self.resource).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            turns.remove(self.resource);
        }
    }
}

/// The time for which a try waits for the requests of other tasks. Three times what a statement may take
/// unless it is set.
const TRY_WAIT: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_are_taken_one_after_the_other_and_leave_nothing() {
        let turns = Turns::default();
        let (a, b) = (Resource::new("a").unwrap(), Resource::new("b").unwrap());
        let first = turns.take(&a).await;
        let elsewhere = turns.take(&b).await;
        let mut second = std::pin::pin!(turns.take(&a));
        assert!(futures_poll(second.as_mut()).is_none(), "it is not its turn");
        assert!(turns.take_now(&a).is_none(), "it has a turn");
        drop(first);
        assert!(turns.take_now(&a).is_none(), "another one waited for it");
        let second = second.await;
        drop((second, elsewhere));
        drop(turns.take_now(&a).unwrap());
        assert!(turns.turns().is_empty());
    }

    fn futures_poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}
