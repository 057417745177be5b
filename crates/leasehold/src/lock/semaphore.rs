//! The lock for a number of permits.

use std::time::Duration;

use leasehold_core::Share;

use super::kind::Counted;
use super::{Guard, Lock, TransferToken};
use crate::engine::Wait;
use crate::error::Result;

/// A lock for up to n holders at a time, across all processes that use the same store.
///
/// A permit is a lease with an owner, not a number in a counter: the permit of a crashed holder becomes
/// free by itself, and no permit can be released twice.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let encoders = locks.semaphore("encode", 3);
/// let two = encoders.acquire_many(2).await?;
/// let one = encoders.acquire().await?;
/// assert!(encoders.try_acquire().await?.is_none());
/// drop((one, two));
/// # Ok(())
/// # }
/// ```
///
/// Promises, limits, errors and cancel safety are those of [`Mutex`](crate::Mutex). Where the profile
/// says [`LockSupport::Permits`](crate::LockSupport::Permits), a request for several permits at once is
/// refused, and the mutex of the same name is another lock.
pub type Semaphore = Lock<Counted>;

impl Lock<Counted> {
    /// Waits in the queue for one permit.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock); `Invalid` for a semaphore of no permits.
    pub async fn acquire(&self) -> Result<Guard> {
        self.acquire_many(1).await
    }

    /// Acquires one permit if it is free now; `None` if it is not.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.try_acquire_many(1).await
    }

    /// Waits in the queue for up to `limit` for one permit; `None` if none is free by then.
    ///
    /// # Errors
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub async fn try_acquire_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.try_acquire_many_for(1, limit).await
    }

    /// Waits in the queue for several permits, which are granted together.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`]; `Invalid` for zero permits, or for more than exist.
    pub async fn acquire_many(&self, permits: u32) -> Result<Guard> {
        self.hold(self.share(permits)?, Wait::Forever).await
    }

    /// Acquires several permits if they are free now; `None` if they are not.
    ///
    /// # Errors
    /// As [`Semaphore::acquire_many`] and [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>> {
        self.try_hold(self.share(permits)?, Wait::No).await
    }

    /// Waits in the queue for up to `limit` for several permits; `None` if they are not free by then.
    ///
    /// # Errors
    /// As [`Semaphore::acquire_many`] and [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub async fn try_acquire_many_for(&self, permits: u32, limit: Duration) -> Result<Option<Guard>> {
        self.try_hold_for(self.share(permits)?, limit).await
    }

    /// Continues with the permits that another process [transferred](Guard::transfer).
    ///
    /// # Errors
    /// As [`Mutex::accept_transfer`](crate::Mutex::accept_transfer), with the same promises and cancel
    /// safety; `Invalid` if the total number of permits differs.
    pub async fn accept_transfer(&self, token: &TransferToken) -> Result<Guard> {
        self.accept_transfer_if(token, |share| share.capacity() == self.kind.permits).await
    }

    fn share(&self, permits: u32) -> Result<Share> {
        Ok(Share::permits(permits, self.kind.permits)?)
    }
}
