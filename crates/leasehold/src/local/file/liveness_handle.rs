//! The sign of life of a granted claim, for programs that want another process to hold it as well.

use std::os::fd::OwnedFd;
use std::sync::Weak;

use super::local_claims::HeldSign;

/// The sign of life of a claim of a file store: the [`Proof`](leasehold_core::Proof) of its grant.
///
/// A claim counts as alive for as long as any process has its descriptor open. A copy that is passed to a
/// process which ends the work under the lock ensures the order: first the work ends, then the lock is free.
///
/// ```no_run
/// # fn hand_over(guard: &leasehold::Guard) -> std::io::Result<()> {
/// use leasehold::local::LivenessHandle;
///
/// if let Some(copy) = guard.proof().get::<LivenessHandle>().and_then(LivenessHandle::copy) {
///     std::process::Command::new("overseer").stdout(copy).spawn()?;
/// }
/// # Ok(()) }
/// ```
///
/// # Promises
/// A release, or the end of the guard, ends the claim even if other processes still have a copy.
///
/// # Does not promise
/// A process with a copy may only keep it open. It may not be able to find out the state of the claim,
/// or to write to the descriptor.
#[derive(Clone, Debug)]
pub struct LivenessHandle(pub(super) Weak<HeldSign>);

impl LivenessHandle {
    /// Returns a copy of the descriptor, which is closed by an `exec`; `None` if the claim has ended,
    /// or this process has no descriptor left.
    pub fn copy(&self) -> Option<OwnedFd> {
        let sign = self.0.upgrade()?;
        sign.0.copy()
    }
}
