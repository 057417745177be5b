//! One holder at a time.

use std::time::Duration;

use leasehold_core::Share;

use super::kind::Exclusive;
use super::{Guard, Handover, Lock};
use crate::engine::Wait;
use crate::error::Result;

/// A lock for one holder at a time, over all processes that use the same store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Leasehold::open("mem:").await?;
/// let mutex = locks.mutex("nightly");
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none()); // busy is no error
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// No two guards are valid at once as long as the clocks of client and server run at nearly the same rate (one
/// hundredth apart unless set otherwise). The holder is told before the server could grant it to another.
///
/// # Does not promise
/// That nobody acts after the loss: a process that is stopped between a check and a write cannot be helped by
/// any lock. Give the [fence](Guard::fence) to what you write to, and see [`fenced`](crate::fenced).
pub type Mutex = Lock<Exclusive>;

impl Lock<Exclusive> {
    /// Waits in line until it is granted.
    ///
    /// # Cancel safety
    /// A dropped future leaves nothing behind: the place is given up, and a grant that was on its way is given back.
    ///
    /// # Errors
    /// `Unavailable` where the server stays away for longer than the client puts up with, `Invalid` and `Unsupported`
    /// before anything is sent, `Denied`, `Closed`, `Deadlock`.
    pub async fn lock(&self) -> Result<Guard> {
        self.hold(Share::MUTEX, Wait::Forever).await
    }

    /// Takes it if it is free now; `None` where it is not.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Errors
    /// As [`Mutex::lock`], and `OutcomeUnknown` where the server did not answer; what may have been taken is then
    /// given back in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.try_hold(Share::MUTEX, Wait::No).await
    }

    /// Waits in line for up to `limit`, and then for the answer of the store to a last look, for up to two seconds.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Errors
    /// As [`Mutex::lock`], `Timeout` where the store says at the end that it is not free, and `Unavailable` or `OutcomeUnknown`
    /// where it says nothing: see [`ErrorKind::Timeout`](crate::ErrorKind::Timeout).
    pub async fn lock_timeout(&self, limit: Duration) -> Result<Guard> {
        self.hold(Share::MUTEX, Wait::For(limit)).await
    }

    /// Goes on with what another process [handed off](Guard::hand_off), on the terms of this lock.
    ///
    /// # Promises
    /// Of all who try with one token one succeeds. Nobody held it in between, and the fence is greater than the giver's. From
    /// then on the note of this lock is the one that others see.
    ///
    /// # Cancel safety
    /// Of a dropped future the token is used or not; what would have been got with it is given back.
    ///
    /// # Errors
    /// `Lost` where the token was used before (`HandedOver`), or its time is over (`Expired`): the text says which, as far as
    /// it can be known. `Invalid` for a token of another lock. `Unsupported` where the store cannot do it. `OutcomeUnknown` where
    /// the store did not answer: the token may be used, and the lease then ends by itself. Else as [`Mutex::lock`].
    pub async fn take_over(&self, handover: &Handover) -> Result<Guard> {
        self.resume(handover, |share| share == Share::MUTEX).await
    }
}
