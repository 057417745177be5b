//! The client, for threads that block.

use std::future::Future;
use std::time::Duration;

use leasehold_core::{Profile, Resource, Snapshot, Summary};

use super::lock::{Lock, Mutex, RwLock, Semaphore};
use super::runtime::wait;
use crate::client::Builder;
use crate::error::Result;

/// A client of one lock store, as [`leasehold::Leasehold`](crate::Leasehold), for threads that block.
#[derive(Clone, Debug)]
pub struct Leasehold {
    client: crate::Leasehold,
}

impl Leasehold {
    /// Opens the store that `url` names.
    ///
    /// # Errors
    /// As [`Leasehold::open`](crate::Leasehold::open).
    pub fn open(url: &str) -> Result<Leasehold> {
        Leasehold::build(crate::Leasehold::builder(), url)
    }

    /// The same with settings.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn build(settings: Builder, url: &str) -> Result<Leasehold> {
        let url = url.to_owned();
        let client = wait("open", async move { settings.open(&url).await })??;
        Ok(Leasehold { client })
    }

    /// What this connection promises.
    pub fn profile(&self) -> &Profile {
        self.client.profile()
    }

    /// A lock for one holder at a time.
    pub fn mutex(&self, name: &str) -> Mutex {
        Lock::new(self.client.mutex(name))
    }

    /// A lock for many readers or one writer.
    pub fn rwlock(&self, name: &str) -> RwLock {
        Lock::new(self.client.rwlock(name))
    }

    /// A lock for up to `permits` holders at a time.
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        Lock::new(self.client.semaphore(name, permits))
    }

    /// Who holds a resource, and who waits for it.
    ///
    /// # Errors
    /// As [`Leasehold::inspect`](crate::Leasehold::inspect).
    pub fn inspect(&self, name: &str) -> Result<Snapshot> {
        let (client, name) = (self.client.clone(), name.to_owned());
        wait("inspect", async move { client.inspect(&name).await })?
    }

    /// Up to `limit` resources that are held or waited for.
    ///
    /// # Errors
    /// As [`Leasehold::list`](crate::Leasehold::list).
    pub fn list(&self, prefix: &str, after: Option<&Resource>, limit: usize) -> Result<Vec<Summary>> {
        let (client, prefix, after) = (self.client.clone(), prefix.to_owned(), after.cloned());
        wait("list", async move { client.list(&prefix, after.as_ref(), limit).await })?
    }

    /// Ends every wait, gives everything back, and waits up to `limit` for the answers. `true` where all were answered.
    ///
    /// # Errors
    /// `Closed` in a forked process.
    pub fn close(&self, limit: Duration) -> Result<bool> {
        let client = self.client.clone();
        wait("close", async move { client.close(limit).await })
    }

    /// Carries out anything else that the asynchronous client can do, and blocks until it is done.
    ///
    /// For the words that have no twin here: several locks as one, elections, values with a version.
    ///
    /// ```
    /// let locks = leasehold::blocking::Leasehold::open("mem:")?;
    /// let leadership = locks.call(|locks| async move { locks.election("boss").campaign("ann").await })?;
    /// assert!(leadership.fence().is_some());
    /// locks.call(|_| leadership.resign())?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `work`, and `Closed` in a forked process.
    pub fn call<T, F>(&self, work: impl FnOnce(crate::Leasehold) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        wait("call", work(self.client.clone()))?
    }

    /// The asynchronous client behind it, which shares its leases and its lines.
    pub fn asynchronous(&self) -> &crate::Leasehold {
        &self.client
    }
}
