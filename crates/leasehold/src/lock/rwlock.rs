//! The lock for many readers or one writer.

use std::time::Duration;

use leasehold_core::Share;

use super::kind::Shared;
use super::{Guard, Lock, TransferToken, Upgradable};
use crate::engine::Wait;
use crate::error::{Result, none_if_timed_out};

/// A lock for many readers or one writer, across all processes that use the same store.
///
/// On a store that grants in order, readers that come after a waiting writer wait behind it, whether they
/// are in the same process or in another one: neither readers nor writers starve.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let prices = locks.rwlock("prices");
/// let (one, two) = (prices.read().await?, prices.read().await?);
/// assert!(prices.try_write().await?.is_none());
/// drop((one, two));
/// let writer = prices.write().await?;
/// writer.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// Promises, limits, errors and cancel safety are those of [`Mutex`](crate::Mutex). A reader that may
/// have to write later begins with [`RwLock::upgradable_read`].
pub type RwLock = Lock<Shared>;

impl Lock<Shared> {
    /// Waits in the queue to read.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<Guard> {
        self.hold(Share::READER, Wait::Forever).await
    }

    /// Acquires the lock for reading if that is possible now; `None` if it is not.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.try_hold(Share::READER, Wait::No).await
    }

    /// Waits in the queue for up to `limit` to read; `None` if that is not possible by then.
    ///
    /// # Errors
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub async fn try_read_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.try_hold_for(Share::READER, limit).await
    }

    /// Waits in the queue to read, as a reader that can become a writer, and a reader again, without a gap.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock). `Unsupported` on a store that does not count shares, and
    /// `Invalid` if the lock has an owner, or a name of more than 504 bytes; nothing is sent.
    pub async fn upgradable_read(&self) -> Result<Upgradable> {
        Upgradable::read(self, Wait::Forever).await
    }

    /// Acquires the lock to read as [`RwLock::upgradable_read`] does if that is possible now; `None` if it is not.
    ///
    /// # Errors
    /// As [`RwLock::upgradable_read`] and [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_upgradable_read(&self) -> Result<Option<Upgradable>> {
        none_if_timed_out(Upgradable::read(self, Wait::No).await)
    }

    /// Waits in the queue for up to `limit` to read as [`RwLock::upgradable_read`] does; `None` if that
    /// is not possible by then.
    ///
    /// # Errors
    /// As [`RwLock::upgradable_read`] and [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub async fn try_upgradable_read_for(&self, limit: Duration) -> Result<Option<Upgradable>> {
        none_if_timed_out(Upgradable::read(self, Wait::For(limit)).await)
    }

    /// Waits in the queue to write.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn write(&self) -> Result<Guard> {
        self.hold(Share::WRITER, Wait::Forever).await
    }

    /// Acquires the lock for writing if that is possible now; `None` if it is not.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.try_hold(Share::WRITER, Wait::No).await
    }

    /// Waits in the queue for up to `limit` to write; `None` if that is not possible by then.
    ///
    /// # Errors
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub async fn try_write_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.try_hold_for(Share::WRITER, limit).await
    }

    /// Continues as the reader or the writer that another process [transferred](Guard::transfer).
    ///
    /// # Errors
    /// As [`Mutex::accept_transfer`](crate::Mutex::accept_transfer), with the same promises and cancel
    /// safety.
    pub async fn accept_transfer(&self, token: &TransferToken) -> Result<Guard> {
        self.accept_transfer_if(token, |share| share == Share::READER || share == Share::WRITER).await
    }
}
