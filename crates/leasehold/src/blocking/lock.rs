//! The locks, for threads that block.

use std::future::Future;
use std::time::Duration;

use leasehold_core::Effect;

use super::Interrupt;
use super::mirror::IntoTwin;
use super::runtime::wait_unless;
use crate::engine::Owner;
use crate::error::Result;
use crate::lock::kind::{Counted, Exclusive, Kind, Shared};

/// A lock by name, with its settings, as [`leasehold::Lock`](crate::Lock).
#[derive(Clone, Debug)]
pub struct Lock<K: Kind> {
    lock: crate::lock::Lock<K>,
    is_reentrant: bool,
    interrupt: Option<Interrupt>,
}

/// A lock for one holder at a time.
pub type Mutex = Lock<Exclusive>;
/// A lock for many readers or one writer.
pub type RwLock = Lock<Shared>;
/// A lock for up to a number of holders at a time.
pub type Semaphore = Lock<Counted>;

thread_local! {
    static OF_THIS_THREAD: Owner = Owner::new();
}

impl<K: Kind> Lock<K> {
    pub(super) fn map(self, setting: impl FnOnce(crate::lock::Lock<K>) -> crate::lock::Lock<K>) -> Lock<K> {
        Lock { lock: setting(self.lock), ..self }
    }

    pub(super) fn try_map(
        self,
        setting: impl FnOnce(crate::lock::Lock<K>) -> Result<crate::lock::Lock<K>>,
    ) -> Result<Lock<K>> {
        Ok(Lock { lock: setting(self.lock)?, ..self })
    }

    /// Returns what [`Lock::effective_ttl`](crate::Lock::effective_ttl) does.
    pub fn effective_ttl(&self) -> Option<Duration> {
        self.lock.effective_ttl()
    }

    /// Acquires on behalf of `owner`, as [`Lock::owner`](crate::Lock::owner): the lock is reentrant for
    /// every holder of this owner.
    #[must_use]
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.is_reentrant = false;
        self.map(|lock| lock.owner(owner))
    }

    /// Makes the lock reentrant for the calling thread, as `ReentrantLock` of `java.util.concurrent`: a
    /// thread that holds it is granted it again at once, and the last guard releases it. Asking for
    /// more than the thread holds, such as to write while it reads, is refused with `Deadlock`.
    ///
    /// In the destructor of a thread-local value a thread may hold nothing any more in this sense: the lock is then
    /// acquired as for another thread.
    #[must_use]
    pub fn reentrant(mut self) -> Self {
        self.is_reentrant = true;
        self
    }

    /// Cancels waits on this lock with `Interrupted` when `interrupt` is triggered.
    #[must_use]
    pub fn interrupted_by(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// Runs a call, on behalf of this thread if the lock is reentrant, and blocks until it returns.
    pub(super) fn block_on<T, F>(
        &self,
        op: &'static str,
        call: impl FnOnce(crate::lock::Lock<K>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        wait_unless(self.interrupt.clone(), op, Effect::None, call(self.of_this_call()))
    }

    /// Runs a call that changes a value in the store likewise.
    pub(super) fn block_on_change<T, F>(
        &self,
        op: &'static str,
        call: impl FnOnce(crate::lock::Lock<K>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        wait_unless(self.interrupt.clone(), op, Effect::Unknown, call(self.of_this_call()))
    }

    fn of_this_call(&self) -> crate::lock::Lock<K> {
        let lock = self.lock.clone();
        if !self.is_reentrant {
            return lock;
        }
        // The owner of a thread that is ending may be gone.
        let owner = OF_THIS_THREAD.try_with(Owner::clone).unwrap_or_else(|_| Owner::new());
        lock.owner(&owner)
    }
}

impl<K: Kind> IntoTwin for crate::lock::Lock<K> {
    type Twin = Lock<K>;

    fn into_twin(self) -> Lock<K> {
        Lock { lock: self, is_reentrant: false, interrupt: None }
    }
}
