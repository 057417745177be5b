//! The guard of a thread that blocks.

use std::time::Duration;

use leasehold_core::{Fence, LossCause, Resource, Share};

use super::runtime::{act_on, wait};
use crate::coord::{Condition, WaitOutcome};
use crate::engine::State;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Revocation, TransferToken};

/// A lock that is held, as [`leasehold::Guard`](crate::Guard). Dropping it releases the lock in
/// the background.
///
/// It may be sent to another thread and released there, even if the lock is
/// [reentrant](super::Lock::reentrant): it belongs to the owner for which it was acquired.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    guard: std::sync::Arc<crate::Guard>,
}

impl Guard {
    pub(super) fn new(guard: crate::Guard) -> Guard {
        Guard { guard: std::sync::Arc::new(guard) }
    }

    /// Returns the fencing token, as [`Guard::fence`](crate::Guard::fence).
    pub fn fence(&self) -> Option<Fence> {
        self.guard.fence()
    }

    /// Returns the resource that is held.
    pub fn resource(&self) -> &Resource {
        self.guard.resource()
    }

    /// Returns the share that is held.
    pub fn share(&self) -> Share {
        self.guard.share()
    }

    /// Returns how certain it is, by the clock, that the lock is held now.
    pub fn state(&self) -> State {
        self.guard.state()
    }

    /// Checks, by the clock, that the lock is still held now. Call it between the steps of your work.
    ///
    /// # Errors
    /// `Lost`, with the cause.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// Returns the time for which it is held without another renewal.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Blocks until the lock is lost, for up to `limit`; `None` if it is still held then.
    ///
    /// # Errors
    /// `Closed` in a forked process.
    pub fn lost_within(&self, limit: Duration) -> Result<Option<LossCause>> {
        let guard = self.guard.clone();
        wait("lost", async move { tokio::time::timeout(limit, guard.lost()).await.ok() })
    }

    /// Calls `act` once, on a thread of leasehold, when the lock is lost. It is never called if the
    /// lock is released before.
    ///
    /// For stopping work that cannot check by itself: closing a socket, setting a flag. `act` may
    /// block: leases are renewed meanwhile. At most 128 such actions run at a time.
    ///
    /// # Errors
    /// `Closed` in a forked process.
    pub fn on_lost(&self, act: impl FnOnce(LossCause) + Send + 'static) -> Result<()> {
        act_on("lost", self.guard.ending(), act)
    }

    /// Releases the lock, blocks until a notification, and returns with the lock, as
    /// [`Guard::wait`](crate::Guard::wait).
    ///
    /// ```
    /// let locks = leasehold::blocking::Client::open("mem:")?;
    /// let (mutex, filled) = (locks.mutex("queue"), locks.condition("queue filled"));
    /// let guard = mutex.lock()?;
    /// let notifier = std::thread::spawn({
    ///     let (mutex, filled) = (mutex.clone(), filled.clone());
    ///     move || {
    ///         let guard = mutex.lock()?; // granted while the other waits
    ///         guard.notify_one(&filled)?;
    ///         guard.release()
    ///     }
    /// });
    /// let guard = guard.wait(&filled)?;
    /// notifier.join().unwrap()?;
    /// guard.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn wait(self, condition: &Condition) -> Result<Guard> {
        let (guard, condition) = (self.alone("wait")?, condition.clone());
        wait("wait", async move { guard.wait(&condition).await })?.map(Guard::new)
    }

    /// Waits likewise for up to `limit`, as [`Guard::wait_for`](crate::Guard::wait_for).
    ///
    /// # Errors
    /// As there.
    pub fn wait_for(self, condition: &Condition, limit: Duration) -> Result<(Guard, WaitOutcome)> {
        let (guard, condition) = (self.alone("wait")?, condition.clone());
        let waiting = async move { guard.wait_for(&condition, limit).await };
        wait("wait", waiting)?.map(|(guard, outcome)| (Guard::new(guard), outcome))
    }

    /// Wakes the longest waiter, as [`Guard::notify_one`](crate::Guard::notify_one).
    ///
    /// # Errors
    /// As there.
    pub fn notify_one(&self, condition: &Condition) -> Result<()> {
        let (guard, condition) = (self.guard.clone(), condition.clone());
        wait("notify", async move { guard.notify_one(&condition).await })?
    }

    /// Wakes all present waiters, as [`Guard::notify_all`](crate::Guard::notify_all).
    ///
    /// # Errors
    /// As there.
    pub fn notify_all(&self, condition: &Condition) -> Result<()> {
        let (guard, condition) = (self.guard.clone(), condition.clone());
        wait("notify", async move { guard.notify_all(&condition).await })?
    }

    /// Returns the guard, which no call on another thread uses any more.
    fn alone(self, op: &'static str) -> Result<crate::Guard> {
        std::sync::Arc::try_unwrap(self.guard).map_err(|guard| {
            let text = "another thread still has a call on this guard; wait when that call has returned";
            Error::new(ErrorKind::Invalid, op, text).on(guard.resource())
        })
    }

    /// Blocks until another client requests the release of the lock, for up to `limit`; `None` if no
    /// request arrives by then. The lock stays held.
    ///
    /// Between the steps of some work, `limit` has to be at least the time of a round trip to the store.
    ///
    /// # Errors
    /// As [`Guard::revoked`](crate::Guard::revoked), and `Closed` in a forked process.
    pub fn revoked_within(&self, limit: Duration) -> Result<Option<Revocation>> {
        let revoking = self.guard.revoking();
        match wait("revoked", async move { tokio::time::timeout(limit, revoking).await.ok() })? {
            Some(outcome) => outcome,
            None => Ok(None),
        }
    }

    /// Calls `act` once, on a thread of leasehold, when another client requests the release of the
    /// lock, as [`Guard::revoked`](crate::Guard::revoked). It is never called if the lock is lost or
    /// released before. It may block: leases are renewed meanwhile.
    ///
    /// # Errors
    /// `Closed` in a forked process. If the store cannot report requests, `act` is never called;
    /// [`Guard::revoked_within`] says why.
    pub fn on_revoked(&self, act: impl FnOnce(Revocation) + Send + 'static) -> Result<()> {
        let revoking = self.guard.revoking();
        act_on("revoked", async move { revoking.await.ok().flatten() }, act)
    }

    /// Stops holding the lock here, and returns a token for another process, as
    /// [`Guard::transfer`](crate::Guard::transfer).
    ///
    /// # Errors
    /// As there; `Invalid` if another thread still waits for the loss of this guard.
    pub fn transfer(self) -> Result<TransferToken> {
        let guard = self.alone("transfer")?;
        wait("transfer", guard.transfer())?
    }

    /// Releases the lock and blocks until that is confirmed.
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<()> {
        // A thread that waits for the loss keeps a handle; then that thread releases the lock.
        match std::sync::Arc::into_inner(self.guard) {
            Some(guard) => wait("release", guard.release())?,
            None => Ok(()),
        }
    }
}
