//! The lock for one holder at a time.

use std::time::Duration;

use leasehold_core::Share;

use super::kind::Exclusive;
use super::{Guard, Lock, TransferToken};
use crate::engine::Wait;
use crate::error::Result;

/// A lock for one holder at a time, across all processes that use the same store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let mutex = locks.mutex("nightly");
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none()); // contention is not an error
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// No two guards are valid at the same time as long as the clocks of client and server run at nearly the
/// same rate (within 1 % unless set otherwise), the store keeps what it confirmed (see
/// [`Profile::durability`](crate::Profile::durability)), its wall clock is not stepped forward (Redis,
/// PostgreSQL, MySQL), and nobody ends a claim by hand. The holder is notified of a loss before the server
/// can grant the lock to another client. After a loss by one of these causes it is notified at its next
/// renewal. The page "What a lock can promise" of the book has the conditions of each store.
///
/// # Does not promise
/// A process can still write after the loss: no lock can stop the write of a process that is paused
/// between its check of the lock and that write. Pass the [fence](Guard::fence) to the resource that you
/// write to, and see [`fenced`](crate::fenced).
pub type Mutex = Lock<Exclusive>;

impl Lock<Exclusive> {
    /// Waits in the queue until the lock is granted.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is left behind: the place in the queue is given up, and a
    /// grant that was on its way is released.
    ///
    /// # Errors
    /// `Unavailable`, or `OutcomeUnknown` if a request was sent and not answered, if the server does not
    /// answer for longer than the configured outage tolerance; `Invalid` and `Unsupported` before anything
    /// is sent, `Denied`, `Closed`, `Deadlock`.
    pub async fn lock(&self) -> Result<Guard> {
        self.hold(Share::MUTEX, Wait::Forever).await
    }

    /// Acquires the lock if it is free now; `None` if it is not.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Errors
    /// As [`Mutex::lock`], and `OutcomeUnknown` if the server did not answer; a lock that may have been
    /// acquired is then released in the background. `Unavailable` also if each of a few answers came after the end of
    /// the lease that it granted: the lock was free, but the store is too slow for its ttl.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.try_hold(Share::MUTEX, Wait::No).await
    }

    /// Waits in the queue for up to `limit`; `None` if the lock is not free by then.
    ///
    /// `None` means that another task of this client keeps the lock, or that the store answered, in the last
    /// second of the wait or after it, that the lock is not free. At the limit the client asks the store once more,
    /// and waits up to two seconds for the answer. So the call can take up to two seconds longer than `limit`.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Errors
    /// As [`Mutex::lock`], and `Unavailable` or `OutcomeUnknown` if the store does not answer at the end
    /// of the wait: it is not known whether the lock is free.
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>> {
        self.try_hold_for(Share::MUTEX, limit).await
    }

    /// Waits like [`Mutex::try_lock_for`], but returns an error if the lock is held.
    ///
    /// # Errors
    /// As [`Mutex::try_lock_for`], and `Timeout` if the lock is held.
    pub(crate) async fn lock_within(&self, limit: Duration) -> Result<Guard> {
        self.hold(Share::MUTEX, Wait::For(limit)).await
    }

    /// Continues the lock that another process [transferred](Guard::transfer), with the settings of this lock.
    ///
    /// # Promises
    /// Of all processes that try with one token, one succeeds. No other client held the lock in
    /// between, and the fence is greater than that of the previous holder. From then on others see the
    /// note of this lock.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the token was used; a lock acquired with it is
    /// released.
    ///
    /// # Errors
    /// `Lost` if the token was used before (`Transferred`), or its time is over (`Expired`): the text
    /// says which, as far as it can be known. `Invalid` for a token of another lock. `Unsupported` if
    /// the store cannot do it. `OutcomeUnknown` if the store did not answer: the token may have been
    /// used, and the lease then ends by itself. Otherwise as [`Mutex::lock`].
    pub async fn accept_transfer(&self, token: &TransferToken) -> Result<Guard> {
        self.accept_transfer_if(token, |share| share == Share::MUTEX).await
    }
}
