//! The sign of life of a granted claim, for those who want another process to hold it as well.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use super::pulse::Pulse;

/// What keeps a claim of a file store alive: the [`Proof`](leasehold_core::Proof) of its grant.
///
/// A claim counts as alive for as long as any process has its descriptor open. Handed to a process that ends what was
/// started under the lock, a copy makes sure of the order: first that ends, then the lock is free.
///
/// ```no_run
/// # fn hand_over(guard: &leasehold::Guard) -> std::io::Result<()> {
/// use leasehold::local::Life;
///
/// if let Some(copy) = guard.proof().get::<Life>().and_then(Life::copy) {
///     std::process::Command::new("overseer").stdout(copy).spawn()?;
/// }
/// # Ok(()) }
/// ```
///
/// # Promises
/// A release, or the end of the guard, ends the claim whoever still has a copy.
///
/// # Does not promise
/// That a process with a copy can tell how the claim stands, or write to the descriptor; it is to be held, and no more.
#[derive(Clone, Debug)]
pub struct Life(Weak<Pulse>);

impl Life {
    pub(super) fn of(pulse: &Arc<Pulse>) -> Life {
        Life(Arc::downgrade(pulse))
    }

    /// A copy of the descriptor, which is closed by an `exec`; `None` where the claim has ended, or this process has no
    /// descriptor left.
    pub fn copy(&self) -> Option<OwnedFd> {
        let pulse = self.0.upgrade()?;
        pulse.as_fd().try_clone_to_owned().ok()
    }
}
