//! The client, for threads that block.

use std::future::Future;
use std::time::Duration;

use leasehold_core::deadlock::Deadlock;
use leasehold_core::{ClaimInfo, Profile, Resource, ResourceSummary, Snapshot};

use super::lock::{Lock, Mutex, RwLock, Semaphore};
use super::primitives::{
    Barrier, Blocking, Election, Latch, MultiLock, RateLimit, SingleFlight, StripedMutex, Versioned,
};
use super::runtime::{may_block, wait};
use crate::client::ClientBuilder;
use crate::error::Result;

/// A client of one lock store, as [`leasehold::Client`](crate::Client), for threads that block.
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
}

impl Client {
    /// Opens the store that `url` names.
    ///
    /// # Errors
    /// As [`Client::open`](crate::Client::open).
    pub fn open(url: &str) -> Result<Client> {
        Client::open_with(crate::Client::builder(), url)
    }

    /// Opens the store that `url` names, with settings.
    ///
    /// # Errors
    /// As [`ClientBuilder::open`].
    pub fn open_with(settings: ClientBuilder, url: &str) -> Result<Client> {
        let url = url.to_owned();
        let client = wait("open", async move { settings.open(&url).await })??;
        Ok(Client { client })
    }

    /// Returns the promises of this connection.
    pub fn profile(&self) -> &Profile {
        self.client.profile()
    }

    /// Returns a lock for one holder at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Lock::new(self.client.mutex(name))
    }

    /// Returns a lock for many readers or one writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        Lock::new(self.client.rwlock(name))
    }

    /// Returns a lock for up to `permits` holders at a time.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Lock::new(self.client.semaphore(name, permits))
    }

    /// Combines several mutexes into one. [`MultiLock::set`] and [`and`](crate::MultiLock::and) add
    /// locks of other kinds and of other stores.
    pub fn lock_all(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> MultiLock {
        Blocking::new(self.client.lock_all(names))
    }

    /// Returns a lock that is divided into `count` stripes.
    pub fn striped_mutex(&self, name: impl AsRef<str>, count: u32) -> StripedMutex {
        Blocking::new(self.client.striped_mutex(name, count))
    }

    /// Returns an election: one of many candidates leads, and all can see which one.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Blocking::new(self.client.election(name))
    }

    /// Returns a compare-and-set value.
    pub fn versioned(&self, name: impl AsRef<str>) -> Versioned {
        Blocking::new(self.client.versioned(name))
    }

    /// Returns a condition: threads wait for it under a lock until another one notifies, by
    /// [`Guard::wait`](super::Guard::wait).
    pub fn condition(&self, name: impl AsRef<str>) -> crate::Condition {
        self.client.condition(name)
    }

    /// Returns a one-shot latch that opens for good after `count` count-downs.
    pub fn latch(&self, name: impl AsRef<str>, count: u32) -> Latch {
        Blocking::new(self.client.latch(name, count))
    }

    /// Returns a reusable barrier for `parties` participants.
    pub fn barrier(&self, name: impl AsRef<str>, parties: u32) -> Barrier {
        Blocking::new(self.client.barrier(name, parties))
    }

    /// Returns a rate limit of up to `count` permits in any `period`.
    pub fn rate_limit(&self, name: impl AsRef<str>, count: u32, period: Duration) -> RateLimit {
        Blocking::new(self.client.rate_limit(name, count, period))
    }

    /// Returns a value that one caller loads for all callers that want it.
    pub fn single_flight(&self, key: impl AsRef<str>) -> SingleFlight {
        Blocking::new(self.client.single_flight(key))
    }

    /// Returns the holders of a resource and its waiters.
    ///
    /// # Errors
    /// As [`Client::inspect`](crate::Client::inspect).
    pub fn inspect(&self, name: &str) -> Result<Snapshot> {
        let (client, name) = (self.client.clone(), name.to_owned());
        wait("inspect", async move { client.inspect(&name).await })?
    }

    /// Asks all holders of a lock to release it, and returns the holders that were asked, as
    /// [`Client::revoke`](crate::Client::revoke).
    ///
    /// # Errors
    /// As there.
    pub fn revoke(&self, name: &str, reason: &str) -> Result<Vec<ClaimInfo>> {
        let (client, name, reason) = (self.client.clone(), name.to_owned(), reason.to_owned());
        wait("revoke", async move { client.revoke(&name, &reason).await })?
    }

    /// Lists up to `limit` resources that are held or waited for.
    ///
    /// # Errors
    /// As [`Client::list`](crate::Client::list).
    pub fn list(&self, prefix: &str, after: Option<&Resource>, limit: usize) -> Result<Vec<ResourceSummary>> {
        let (client, prefix, after) = (self.client.clone(), prefix.to_owned(), after.cloned());
        wait("list", async move { client.list(&prefix, after.as_ref(), limit).await })?
    }

    /// Finds the waiters that wait for each other in a circle, so that none of them can ever continue.
    ///
    /// # Errors
    /// As [`Client::deadlocks`](crate::Client::deadlocks).
    pub fn deadlocks(&self) -> Result<Vec<Deadlock>> {
        let client = self.client.clone();
        wait("deadlocks", async move { client.deadlocks().await })?
    }

    /// Ends every wait, releases everything, and waits up to `limit` for the answers. Returns `true` if
    /// all were answered.
    ///
    /// # Errors
    /// `Closed` in a forked process.
    pub fn close(&self, limit: Duration) -> Result<bool> {
        let client = self.client.clone();
        wait("close", async move { client.close(limit).await })
    }

    /// Runs any other call of the asynchronous client, and blocks until it is done.
    ///
    /// For calls that have no blocking twin, such as a reader that becomes a writer.
    ///
    /// ```
    /// let locks = leasehold::blocking::Client::open("mem:")?;
    /// let mut guard = locks.call(|locks| async move { locks.rwlock("prices").upgradable_read().await })?;
    /// let guard = locks.call(|_| async move { guard.upgrade().await.map(|()| guard) })?;
    /// assert!(guard.is_writer());
    /// locks.call(|_| guard.release())?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// `work` runs on a thread of leasehold. It may block, and may use this library: leases are
    /// renewed meanwhile.
    ///
    /// # Panics
    /// Panics if `work` panics, with the same payload.
    ///
    /// # Errors
    /// Those of `work`, and `Closed` in a forked process.
    pub fn call<T, F>(&self, work: impl FnOnce(crate::Client) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut work = Box::pin(work(self.client.clone()));
        wait("call", std::future::poll_fn(move |context| may_block(|| work.as_mut().poll(context))))?
    }

    /// Returns the asynchronous client behind it, which shares its leases and its queues.
    pub fn asynchronous(&self) -> &crate::Client {
        &self.client
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::blocking::Stripe;
    use crate::error::ErrorKind;
    use crate::layer::{Fault, Mode};
    use crate::local::MemoryBackend;

    /// Opens a client on a wire of its own to `store`.
    fn client(store: &Arc<MemoryBackend>) -> (Client, Arc<Fault>) {
        let fault = Arc::new(Fault::over(store.clone()));
        let backend = fault.clone();
        let client = wait("open", async move { crate::Client::builder().over(backend) }).unwrap().unwrap();
        (Client { client }, fault)
    }

    type Ended = Result<bool, ErrorKind>;

    /// Waits for all three at the same time; `Ok(true)` for what is held.
    fn ended(mutex: &Mutex, several: &MultiLock, stripe: &Stripe) -> [Ended; 3] {
        let limit = Duration::from_millis(50);
        thread::scope(|scope| {
            let threads = [
                scope.spawn(|| mutex.try_lock_for(limit).map(|granted| granted.is_none())),
                scope.spawn(|| several.try_lock_for(limit).map(|granted| granted.is_none())),
                scope.spawn(|| stripe.try_lock_for(limit).map(|granted| granted.is_none())),
            ];
            threads.map(|thread| thread.join().unwrap().map_err(|error| error.kind()))
        })
    }

    #[test]
    fn a_lock_that_is_held_is_none_and_a_silent_store_is_an_error() {
        let store = Arc::new(MemoryBackend::new());
        let ((locks, wire), (other, _)) = (client(&store), client(&store));
        let held = other.lock_all(["mutex", "several", "parts#0"]).lock().unwrap();
        let (mutex, several) = (locks.mutex("mutex"), locks.lock_all(["several", "then"]));
        let stripe = locks.striped_mutex("parts", 1).for_key("key");
        assert_eq!(ended(&mutex, &several, &stripe), [Ok(true); 3]);
        wire.set_all(Mode::Hang);
        assert_eq!(ended(&mutex, &several, &stripe), [Err(ErrorKind::OutcomeUnknown); 3]);
        drop(held);
    }
}
