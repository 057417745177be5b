//! Guards of several locks, or of an election, for a thread that blocks.
//!
//! Ground rules: calls that do not wait are those of the inner guard; only calls that wait have a twin here.

use std::ops::Deref;
use std::sync::Arc;

use super::runtime::wait;
use crate::error::Result;

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
#[derive(Debug)]
#[must_use = "the guard releases what it holds when it is dropped"]
pub struct BlockingGuard<G> {
    held: Arc<G>,
}

/// Several locks that are held, as [`leasehold::MultiGuard`](crate::MultiGuard).
pub type MultiGuard = BlockingGuard<crate::MultiGuard>;
/// Leadership that is held, as [`leasehold::Leadership`](crate::Leadership).
pub type Leadership = BlockingGuard<crate::Leadership>;

impl<G> BlockingGuard<G> {
    pub(super) fn new(held: G) -> BlockingGuard<G> {
        BlockingGuard { held: Arc::new(held) }
    }

    /// Returns the inner guard, if no other call uses it.
    fn inner(self) -> Option<G> {
        // Invariant: a call of this module that keeps a handle has ended before it returns.
        debug_assert_eq!(Arc::strong_count(&self.held), 1, "something is held by a call that has ended");
        Arc::into_inner(self.held)
    }
}

impl<G> Deref for BlockingGuard<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.held
    }
}

impl BlockingGuard<crate::MultiGuard> {
    /// Releases all of them and blocks until that is confirmed, as
    /// [`release`](crate::MultiGuard::release).
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<()> {
        match self.inner() {
            Some(guard) => wait("release", guard.release())?,
            None => Ok(()),
        }
    }
}

impl BlockingGuard<crate::Leadership> {
    /// Blocks until all observers can see this value, as [`proclaim`](crate::Leadership::proclaim).
    ///
    /// # Errors
    /// As there.
    pub fn proclaim(&self, value: &str) -> Result<()> {
        let (held, value) = (self.held.clone(), value.to_owned());
        // Its handle is dropped before the answer arrives.
        wait("proclaim", async move { held.proclaim(&value).await })?
    }

    /// Stops leading and blocks until that is confirmed, as [`resign`](crate::Leadership::resign).
    ///
    /// # Errors
    /// As there.
    pub fn resign(self) -> Result<()> {
        match self.inner() {
            Some(leadership) => wait("resign", leadership.resign())?,
            None => Ok(()),
        }
    }
}
