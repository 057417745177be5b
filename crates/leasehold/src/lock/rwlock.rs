//! Many readers or one writer.

use std::time::Duration;

use leasehold_core::Share;

use super::kind::Shared;
use super::{Guard, Lock};
use crate::engine::Wait;
use crate::error::Result;

/// A lock for many readers or one writer, over all processes that use the same store.
///
/// On a store that grants in order, readers that come after a waiting writer wait behind it: neither side starves.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Leasehold::open("mem:").await?;
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
/// Promises, limits, errors and cancel safety are those of [`Mutex`](crate::Mutex). A reader is never turned into a
/// writer: give the one back and ask for the other.
pub type RwLock = Lock<Shared>;

impl Lock<Shared> {
    /// Waits in line to read.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<Guard> {
        self.hold(Share::READER, Wait::Forever).await
    }

    /// Reads if that may be now; `None` where it may not.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.try_hold(Share::READER, Wait::No).await
    }

    /// Waits in line for up to `limit` to read.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub async fn read_timeout(&self, limit: Duration) -> Result<Guard> {
        self.hold(Share::READER, Wait::For(limit)).await
    }

    /// Waits in line to write.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn write(&self) -> Result<Guard> {
        self.hold(Share::WRITER, Wait::Forever).await
    }

    /// Writes if that may be now; `None` where it may not.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.try_hold(Share::WRITER, Wait::No).await
    }

    /// Waits in line for up to `limit` to write.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub async fn write_timeout(&self, limit: Duration) -> Result<Guard> {
        self.hold(Share::WRITER, Wait::For(limit)).await
    }
}
