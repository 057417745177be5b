//! Guards, for threads that block.
//!
//! Ground rules: calls that do not wait are those of the inner guard; only calls that wait have a twin here.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::LossCause;

use super::mirror::{IntoTwin, within};
use super::runtime::{act_on, wait};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::Revocation;

/// A guard for threads that block. Dropping it releases what it holds in the background.
///
/// It dereferences to the asynchronous guard: `check`, `remaining` and `fence` are those of that guard.
///
/// ```
/// let locks = leasehold::blocking::Client::open("mem:")?;
/// let both = locks.lock_all(["from/1", "to/2"]).lock()?;
/// assert!(both.check().is_ok());
/// both.release()?;
/// let leadership = locks.election("boss").campaign("ann")?;
/// leadership.proclaim("ann, at work")?;
/// assert_eq!(locks.election("boss").leader()?.unwrap().value, "ann, at work");
/// leadership.resign()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// A thread that waits for a [condition](crate::Condition) gives its guard and gets a new one:
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
#[derive(Debug)]
#[must_use = "the guard releases what it holds when it is dropped"]
pub struct BlockingGuard<G> {
    held: Arc<G>,
}

/// A lock that is held, as [`leasehold::Guard`](crate::Guard).
///
/// It may be sent to another thread and released there, even if the lock is
/// [reentrant](super::Lock::reentrant): it belongs to the owner for which it was acquired.
pub type Guard = BlockingGuard<crate::Guard>;
/// Several locks that are held, as [`leasehold::MultiGuard`](crate::MultiGuard).
pub type MultiGuard = BlockingGuard<crate::MultiGuard>;
/// Leadership that is held, as [`leasehold::Leadership`](crate::Leadership).
pub type Leadership = BlockingGuard<crate::Leadership>;

impl<G: Send + Sync + 'static> BlockingGuard<G> {
    /// Runs a call on the guard, and blocks until it returns.
    pub(super) fn block_on<A, F>(&self, op: &'static str, call: impl FnOnce(Arc<G>) -> F) -> Result<A>
    where
        A: Send + 'static,
        F: Future<Output = Result<A>> + Send + 'static,
    {
        wait(op, call(self.held.clone()))?
    }

    /// Runs a call that ends the guard, and blocks until it returns.
    pub(super) fn consume<A, F>(self, op: &'static str, call: impl FnOnce(G) -> F) -> Result<A>
    where
        A: Send + 'static,
        F: Future<Output = Result<A>> + Send + 'static,
    {
        // Invariant: a call of this module drops its handle before it returns, and no other call can run,
        // since this one has the guard itself.
        debug_assert_eq!(Arc::strong_count(&self.held), 1, "something is held by a call that has ended");
        let Some(held) = Arc::into_inner(self.held) else {
            let text = "another call still uses this guard; it is released when that call has returned";
            return Err(Error::new(ErrorKind::Invalid, op, text));
        };
        wait(op, call(held))?
    }
}

impl<G> Deref for BlockingGuard<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.held
    }
}

impl BlockingGuard<crate::Guard> {
    /// Calls `act` once, on a thread of leasehold, when the lock is lost. It is never called if the
    /// lock is released before.
    ///
    /// For stopping work that cannot check by itself: closing a socket, setting a flag. `act` may
    /// block: leases are renewed meanwhile. At most 128 such actions run at a time.
    ///
    /// # Errors
    /// `Unavailable` if the operating system gives the library no threads.
    pub fn on_lost(&self, act: impl FnOnce(LossCause) + Send + 'static) -> Result<()> {
        act_on("lost", self.ending(), act)
    }

    /// Blocks until another client requests the release of the lock, for up to `limit`; `None` if no
    /// request arrives by then. The lock stays held.
    ///
    /// If you call this between the steps of your work, let `limit` be at least the time of a round trip to the
    /// store: with less it may never see a request.
    ///
    /// # Errors
    /// As [`Guard::revoked`](crate::Guard::revoked).
    pub fn revoked_within(&self, limit: Duration) -> Result<Option<Revocation>> {
        let revoking = self.revoking();
        match wait("revoked", within(limit, revoking))? {
            Some(outcome) => outcome,
            None => Ok(None),
        }
    }

    /// Calls `act` once, on a thread of leasehold, when another client requests the release of the
    /// lock, as [`Guard::revoked`](crate::Guard::revoked). It is never called if the lock is lost or
    /// released before. It may block: leases are renewed meanwhile.
    ///
    /// # Errors
    /// `Unavailable` if the operating system gives the library no threads. If the store cannot report
    /// requests, `act` is never called; [`BlockingGuard::revoked_within`] says why.
    pub fn on_revoked(&self, act: impl FnOnce(Revocation) + Send + 'static) -> Result<()> {
        let revoking = self.revoking();
        act_on("revoked", async move { revoking.await.ok().flatten() }, act)
    }
}

/// Guards of the asynchronous API become guards of this module.
macro_rules! guards {
    ($($guard:ident),*) => {$(
        impl IntoTwin for crate::$guard {
            type Twin = BlockingGuard<crate::$guard>;

            fn into_twin(self) -> Self::Twin {
                BlockingGuard { held: Arc::new(self) }
            }
        }
    )*};
}

guards!(Guard, MultiGuard, Leadership);
