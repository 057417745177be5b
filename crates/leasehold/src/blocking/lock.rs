//! The locks, for threads that block.

use std::future::Future;
use std::time::Duration;

use leasehold_core::{Durability, FenceGrade, Note, QueueOrder};

use super::runtime::wait_unless;
use super::{Guard, Interrupt};
use crate::engine::Owner;
use crate::error::Result;
use crate::lock::TransferToken;
use crate::lock::kind::{Counted, Exclusive, Shared};

/// A lock by name, with its settings, as [`leasehold::Lock`](crate::Lock).
#[derive(Clone, Debug)]
pub struct Lock<K> {
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

impl<K: Clone + Send + Sync + 'static> Lock<K> {
    pub(super) fn new(lock: crate::lock::Lock<K>) -> Lock<K> {
        Lock { lock, is_reentrant: false, interrupt: None }
    }

    fn map(self, setting: impl FnOnce(crate::lock::Lock<K>) -> crate::lock::Lock<K>) -> Lock<K> {
        Lock { lock: setting(self.lock), ..self }
    }

    /// Sets the ttl, as [`Lock::ttl`](crate::Lock::ttl).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.map(|lock| lock.ttl(ttl))
    }

    /// Sets the maximum time to hold the lock, as [`Lock::max_hold`](crate::Lock::max_hold).
    #[must_use]
    pub fn max_hold(self, limit: Duration) -> Self {
        self.map(|lock| lock.max_hold(limit))
    }

    /// Sets the minimum time to hold the lock, as [`Lock::min_hold`](crate::Lock::min_hold).
    #[must_use]
    pub fn min_hold(self, time: Duration) -> Self {
        self.map(|lock| lock.min_hold(time))
    }

    /// Sets the lock delay after a loss, as [`Lock::lock_delay`](crate::Lock::lock_delay).
    #[must_use]
    pub fn lock_delay(self, time: Duration) -> Self {
        self.map(|lock| lock.lock_delay(time))
    }

    /// Sets the priority, as [`Lock::priority`](crate::Lock::priority).
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        self.map(|lock| lock.priority(priority))
    }

    /// Detects deadlocks as [`Lock::detect_deadlocks`](crate::Lock::detect_deadlocks), between threads
    /// if the lock is [`Lock::reentrant`].
    #[must_use]
    pub fn detect_deadlocks(self, after: Duration) -> Self {
        self.map(|lock| lock.detect_deadlocks(after))
    }

    /// Sets the note, as [`Lock::note`](crate::Lock::note).
    #[must_use]
    pub fn note(self, note: Note) -> Self {
        self.map(|lock| lock.note(note))
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

    /// Requires fences, as [`Lock::require_fencing`](crate::Lock::require_fencing).
    ///
    /// # Errors
    /// `Unsupported` if this connection cannot give it.
    pub fn require_fencing(self, grade: FenceGrade) -> Result<Self> {
        Ok(Lock { lock: self.lock.require_fencing(grade)?, ..self })
    }

    /// Requires an order of waiters, as [`Lock::require_order`](crate::Lock::require_order).
    ///
    /// # Errors
    /// `Unsupported` if this connection cannot give it.
    pub fn require_order(self, order: QueueOrder) -> Result<Self> {
        Ok(Lock { lock: self.lock.require_order(order)?, ..self })
    }

    /// Requires a durability of granted locks, as
    /// [`Lock::require_durability`](crate::Lock::require_durability).
    ///
    /// # Errors
    /// `Unsupported` if this connection cannot give it.
    pub fn require_durability(self, durability: Durability) -> Result<Self> {
        Ok(Lock { lock: self.lock.require_durability(durability)?, ..self })
    }

    /// Requires that the lock can be handed off, as [`Lock::transferable`](crate::Lock::transferable).
    ///
    /// # Errors
    /// `Unsupported` if this connection cannot give it.
    pub fn transferable(self) -> Result<Self> {
        Ok(Lock { lock: self.lock.transferable()?, ..self })
    }

    /// Requires that holders can be asked to release the lock, as
    /// [`Lock::revocable`](crate::Lock::revocable).
    ///
    /// # Errors
    /// `Unsupported` if this connection cannot give it.
    pub fn revocable(self) -> Result<Self> {
        Ok(Lock { lock: self.lock.revocable()?, ..self })
    }

    /// Runs a call, on behalf of this thread if the lock is reentrant, and blocks until it returns.
    fn call<T, F>(&self, make_future: impl FnOnce(crate::lock::Lock<K>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let lock = self.lock.clone();
        let lock = if self.is_reentrant { OF_THIS_THREAD.with(|owner| lock.owner(owner)) } else { lock };
        wait_unless(self.interrupt.clone(), "lock", make_future(lock))
    }
}

impl Lock<Exclusive> {
    /// Blocks until it is granted, as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn lock(&self) -> Result<Guard> {
        self.call(|lock| async move { lock.lock().await }).map(Guard::new)
    }

    /// Acquires it if it is free now, as [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Errors
    /// As there.
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        Ok(self.call(|lock| async move { lock.try_lock().await })?.map(Guard::new))
    }

    /// Blocks for up to `limit`, as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>> {
        Ok(self.call(move |lock| async move { lock.try_lock_for(limit).await })?.map(Guard::new))
    }

    /// Continues the lock that another process handed off, as
    /// [`Mutex::accept_transfer`](crate::Mutex::accept_transfer).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn accept_transfer(&self, token: &TransferToken) -> Result<Guard> {
        let token = token.clone();
        self.call(|lock| async move { lock.accept_transfer(&token).await }).map(Guard::new)
    }
}

impl Lock<Shared> {
    /// Blocks until it may read, as [`RwLock::read`](crate::RwLock::read).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn read(&self) -> Result<Guard> {
        self.call(|lock| async move { lock.read().await }).map(Guard::new)
    }

    /// Acquires it for reading if that is possible now, as
    /// [`RwLock::try_read`](crate::RwLock::try_read).
    ///
    /// # Errors
    /// As there.
    pub fn try_read(&self) -> Result<Option<Guard>> {
        Ok(self.call(|lock| async move { lock.try_read().await })?.map(Guard::new))
    }

    /// Blocks for up to `limit` until it may read, as
    /// [`RwLock::try_read_for`](crate::RwLock::try_read_for).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_read_for(&self, limit: Duration) -> Result<Option<Guard>> {
        Ok(self.call(move |lock| async move { lock.try_read_for(limit).await })?.map(Guard::new))
    }

    /// Blocks until it may write, as [`RwLock::write`](crate::RwLock::write).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn write(&self) -> Result<Guard> {
        self.call(|lock| async move { lock.write().await }).map(Guard::new)
    }

    /// Acquires it for writing if that is possible now, as
    /// [`RwLock::try_write`](crate::RwLock::try_write).
    ///
    /// # Errors
    /// As there.
    pub fn try_write(&self) -> Result<Option<Guard>> {
        Ok(self.call(|lock| async move { lock.try_write().await })?.map(Guard::new))
    }

    /// Blocks for up to `limit` until it may write, as
    /// [`RwLock::try_write_for`](crate::RwLock::try_write_for).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_write_for(&self, limit: Duration) -> Result<Option<Guard>> {
        Ok(self.call(move |lock| async move { lock.try_write_for(limit).await })?.map(Guard::new))
    }

    /// Continues the lock that another process handed off, as
    /// [`RwLock::accept_transfer`](crate::RwLock::accept_transfer).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn accept_transfer(&self, token: &TransferToken) -> Result<Guard> {
        let token = token.clone();
        self.call(|lock| async move { lock.accept_transfer(&token).await }).map(Guard::new)
    }
}

impl Lock<Counted> {
    /// Blocks until it has one permit, as [`Semaphore::acquire`](crate::Semaphore::acquire).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn acquire(&self) -> Result<Guard> {
        self.acquire_many(1)
    }

    /// Acquires one permit if it is free now, as
    /// [`Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        self.try_acquire_many(1)
    }

    /// Blocks for up to `limit` for one permit, as
    /// [`Semaphore::try_acquire_for`](crate::Semaphore::try_acquire_for).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_acquire_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.try_acquire_many_for(1, limit)
    }

    /// Blocks until it has several permits, as
    /// [`Semaphore::acquire_many`](crate::Semaphore::acquire_many).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn acquire_many(&self, permits: u32) -> Result<Guard> {
        self.call(move |lock| async move { lock.acquire_many(permits).await }).map(Guard::new)
    }

    /// Acquires several permits if they are free now, as
    /// [`Semaphore::try_acquire_many`](crate::Semaphore::try_acquire_many).
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>> {
        Ok(self.call(move |lock| async move { lock.try_acquire_many(permits).await })?.map(Guard::new))
    }

    /// Blocks for up to `limit` for several permits, as
    /// [`Semaphore::try_acquire_many_for`](crate::Semaphore::try_acquire_many_for).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_acquire_many_for(&self, permits: u32, limit: Duration) -> Result<Option<Guard>> {
        let guard = self.call(move |lock| async move { lock.try_acquire_many_for(permits, limit).await });
        Ok(guard?.map(Guard::new))
    }

    /// Continues the permits that another process handed off, as
    /// [`Semaphore::accept_transfer`](crate::Semaphore::accept_transfer).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn accept_transfer(&self, token: &TransferToken) -> Result<Guard> {
        let token = token.clone();
        self.call(|lock| async move { lock.accept_transfer(&token).await }).map(Guard::new)
    }
}
