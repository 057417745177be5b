//! A mutex for each resource, among the tasks of one client: tasks that would only make each other lose enter one
//! after the other instead.
//!
//! Ground rules: in a cell it is held for contending. Renewals and releases do without, because others wait
//! for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Failure, Resource};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The mutexes of one client, by resource.
#[derive(Debug, Default)]
pub(crate) struct KeyedMutex(Mutex<HashMap<Resource, Arc<Semaphore>>>);

/// A mutex that one task has locked, until it is dropped.
#[derive(Debug)]
pub(crate) struct KeyedGuard<'a> {
    mutex: &'a KeyedMutex,
    resource: &'a Resource,
    /// `None` only while it is released.
    permit: Option<OwnedSemaphorePermit>,
}

impl KeyedMutex {
    /// Locks the mutex of this resource, in the order of arrival.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place, and may leave a name behind until the next guard of it is dropped.
    pub(crate) async fn lock<'a>(&'a self, resource: &'a Resource) -> KeyedGuard<'a> {
        let semaphore =
            self.entries().entry(resource.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))).clone();
        // It is never closed, so there is always a permit in the end.
        let permit = semaphore.acquire_owned().await.ok();
        KeyedGuard { mutex: self, resource, permit }
    }

    /// Locks it at once; `None` where another task has locked it, or waits for it.
    pub(crate) fn try_lock<'a>(&'a self, resource: &'a Resource) -> Option<KeyedGuard<'a>> {
        let mut entries = self.entries();
        let semaphore = entries.entry(resource.clone()).or_insert_with(|| Arc::new(Semaphore::new(1)));
        // While the entries are locked, so that the end of a guard does not count this task as one that waits.
        let permit = semaphore.clone().try_acquire_owned().ok()?;
        Some(KeyedGuard { mutex: self, resource, permit: Some(permit) })
    }

    /// Locks it for a task that only tries: behind others in the order of arrival, after 15 s at most.
    ///
    /// # Errors
    /// `Unavailable` after that, without effect: nothing was sent.
    ///
    /// # Cancel safety
    /// As [`KeyedMutex::lock`].
    pub(crate) async fn lock_to_try<'a>(&'a self, resource: &'a Resource) -> Result<KeyedGuard<'a>, Failure> {
        tokio::time::timeout(TRY_WAIT, self.lock(resource)).await.map_err(|_| {
            Failure::unavailable(format!(
                "other tasks of this client have been asking for {resource:?} for {TRY_WAIT:?}: the store is slow, or somebody keeps \
                 it locked there"
            ))
        })
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Resource, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeyedGuard<'_> {
    fn drop(&mut self) {
        let mut entries = self.mutex.entries();
        self.permit = None;
        // Only the map has it: no task waits.
        if entries.get(self.resource).is_some_and(|semaphore| Arc::strong_count(semaphore) == 1) {
            entries.remove(self.resource);
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
    async fn tasks_lock_one_after_the_other_and_leave_nothing() {
        let mutex = KeyedMutex::default();
        let (a, b) = (Resource::new("a").unwrap(), Resource::new("b").unwrap());
        let first = mutex.lock(&a).await;
        let elsewhere = mutex.lock(&b).await;
        let mut second = std::pin::pin!(mutex.lock(&a));
        assert!(futures_poll(second.as_mut()).is_none(), "the first has locked it");
        assert!(mutex.try_lock(&a).is_none(), "the first has locked it");
        drop(first);
        assert!(mutex.try_lock(&a).is_none(), "another one waited for it");
        let second = second.await;
        drop((second, elsewhere));
        drop(mutex.try_lock(&a).unwrap());
        assert!(mutex.entries().is_empty());
    }

    fn futures_poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}
