//! The guard of a held lock.

use std::future::Future;
use std::time::Duration;

use leasehold_core::{Fence, LossCause, Proof, Resource, Share};
use tokio_util::sync::CancellationToken;

use super::reacquire::Reacquire;
use super::run::while_held;
use super::settings::GuardSettings;
use crate::engine::{Hold, HoldHandle, Released, State};
use crate::error::{Error, ErrorKind, Result};

/// A guard of a held lock. It is valid at first, and can become suspect and then lost.
///
/// # Promises
/// [`Guard::lost`], [`Guard::check`] and [`Guard::run`] report the loss before the server can grant the
/// lock to another client, even if the network fails. They read the clock of this machine, and count
/// from before the granted request was sent. A process that was stopped past its lease sees the loss
/// before anything else. To report the end of a lease, these three need neither the runtime of the
/// client nor its tasks. Dropping the guard never blocks, and always releases the lock in the background.
///
/// # Does not promise
/// If the store loses the grant, as at a failover without replicated data, the guard stays valid until its
/// next renewal, at most a third of its ttl later, and until then another client can be granted the lock.
///
/// A loss interrupts no code outside [`Guard::run`], and no write that has already left the process.
/// A check of fences at writes only still loses updates: open the resource with the fence before the first
/// read, see [`FencedFile`](crate::fenced::FencedFile) and [`FenceGate`](crate::fenced::FenceGate).
///
/// While nothing drives the [runtime of the client](crate::Client#runtime), such as a `current_thread`
/// runtime between two calls of `block_on`, no lease is renewed.
///
/// If the guard is dropped after the runtime of its client has ended, the lock is not released. It then
/// ends with its ttl. If the store watches a process or a connection instead, as files do, the lock ends
/// with that process or connection, or with the client.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::{Client, fenced::FenceGate};
///
/// let locks = Client::open("mem:").await?;
/// let stock = FenceGate::new(7); // refuses older fences
/// let guard = locks.mutex("stock/42").lock().await?;
/// let pass = stock.open(guard.fence()).unwrap(); // before the first read
/// let sold = guard.run(async { pass.access(|left| *left -= 1) }).await?; // dropped when the lock is lost
/// assert!(sold.is_ok());
/// guard.check()?; // still held, by the clock
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    hold: HoldHandle,
    settings: GuardSettings,
}

impl Guard {
    pub(crate) fn new(hold: HoldHandle, settings: GuardSettings) -> Guard {
        let guard = Guard::before_min_hold(hold, settings);
        guard.begin_min_hold();
        guard
    }

    /// Creates a guard whose minimum hold has not begun.
    pub(super) fn before_min_hold(hold: HoldHandle, settings: GuardSettings) -> Guard {
        Guard { hold, settings }
    }

    /// Begins the minimum hold.
    pub(crate) fn begin_min_hold(&self) {
        self.extend_min_hold(self.settings.min_hold);
    }

    /// Makes the minimum hold last for this time from now at least.
    pub(crate) fn extend_min_hold(&self, min_hold: Duration) {
        if !min_hold.is_zero() {
            let end = self.hold.now().after(min_hold);
            self.hold.extend_min_hold(end);
        }
    }

    /// Ends a guard that was never used, without a linger time. Returns the rest of its release, if that is at hand: it
    /// is not if the guards of its owner keep the lock.
    pub(crate) fn end_unused(self) -> Option<impl Future<Output = Result<()>> + Send> {
        // In a fork the clock is not read.
        if !self.hold.is_only() || self.hold.engine().is_forked() {
            return None;
        }
        self.hold.pin();
        self.hold.min_hold_end(self.hold.now()).is_none().then(|| self.release())
    }

    /// Returns the lock with its settings, to be acquired again after it was released.
    ///
    /// # Errors
    /// `Invalid` if the lock would still be held then: by the other holders of a shared lock,
    /// or by the same owner.
    pub(crate) fn reacquire(&self, op: &'static str) -> Result<Reacquire> {
        if !self.share().is_exclusive() {
            let text = "the lock is held as a shared one; wait under a mutex or a writer";
            return Err(Error::new(ErrorKind::Invalid, op, text).on(self.resource()));
        }
        if !self.hold.is_only() {
            return Err(held_more_than_once(op, self.resource()));
        }
        let hold = self.hold();
        Ok(Reacquire::of(hold.engine().clone(), hold.lease(), self.settings.clone()))
    }

    /// Returns the hold if no other guard shares it, to be ended without a release.
    pub(super) fn into_hold(self) -> Option<Hold> {
        self.hold.into_hold()
    }

    pub(crate) fn hold(&self) -> &HoldHandle {
        &self.hold
    }

    /// Returns the fencing token, a number that rises with every grant of this resource; `None` if the
    /// backend has no fences.
    ///
    /// To be sure that there is a fence, require it with [`Lock::require_fencing`](crate::Lock::require_fencing).
    pub fn fence(&self) -> Option<Fence> {
        self.hold().fence()
    }

    /// Returns the resource that is held.
    pub fn resource(&self) -> &Resource {
        &self.hold().lease().claim.resource
    }

    /// Returns the share that is held.
    pub fn share(&self) -> Share {
        self.hold().lease().claim.share
    }

    /// Returns the proof that the backend keeps with the grant, for callers that know its type.
    ///
    /// A condition that is made from the proof holds for as long as the claim does, so after this call the
    /// claim stays with this guard: its release goes to the server, the next task of this process is
    /// granted another claim, and the lock cannot be [transferred](Guard::transfer). An empty proof changes
    /// nothing.
    pub fn proof(&self) -> &Proof {
        self.hold().proof()
    }

    /// Returns a public name of this hold: the same for every guard that holds it by re-entering. It
    /// cannot be used to end the hold.
    pub fn tag(&self) -> String {
        self.hold().lease().claim.id.tag()
    }

    /// Returns the state of the lock now, by the clock: valid, suspect or lost.
    pub fn state(&self) -> State {
        self.hold().lease().state()
    }

    /// Checks, by the clock, that the lock is still held now.
    ///
    /// # Errors
    /// `Lost`, with the cause.
    pub fn check(&self) -> Result<()> {
        match self.state() {
            State::Lost(cause) => Err(Error::lost("check", cause, self.resource())),
            _ => Ok(()),
        }
    }

    /// Returns the cause of the loss, if the lock is lost.
    pub(crate) fn cause(&self) -> Option<LossCause> {
        match self.state() {
            State::Lost(cause) => Some(cause),
            _ => None,
        }
    }

    /// Returns the time until the lock is lost if no renewal succeeds. It is the least of what is left of its lease,
    /// of the time for which its session may be silent, and of [`max_hold`](crate::Lock::max_hold). Zero when the
    /// lock is lost; `Duration::MAX` if no time ends it, as on files without `max_hold`.
    pub fn remaining(&self) -> Duration {
        self.hold().lease().peek_remaining()
    }

    /// Waits until the lock is lost; for ever if it never is. Works under any executor, even while
    /// nothing drives the runtime of the client.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn lost(&self) -> LossCause {
        if let State::Lost(cause) = self.state() {
            return cause;
        }
        self.hold().lease().watch().lost().await
    }

    /// Waits until the hold ends, and returns the cause of a loss, or `None` after a release. The future does
    /// not keep the lock held.
    pub(crate) fn ending(&self) -> impl Future<Output = Option<LossCause>> + Send + 'static {
        self.hold().ending()
    }

    /// Returns a token that is cancelled when this guard ends: the lock is lost, or the guard is released or
    /// dropped. Each call returns another token; none of them keeps the lock held.
    ///
    /// A task of the [client's runtime](crate::Client#runtime) cancels the token, so the cancellation is late
    /// if that runtime is busy. When the runtime ends, the token is cancelled. [`Guard::run`] and
    /// [`Guard::check`] do not depend on that task. With [`min_hold`](crate::Lock::min_hold), dropping the guard
    /// cancels the token at once, and [`Guard::release`] cancels it when that time is over. In a forked
    /// process no task cancels a token that was created before the fork.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::Client::open("mem:").await?;
    /// let guard = locks.mutex("report").lock().await?;
    /// let token = guard.cancellation_token();
    /// let worker = tokio::spawn(async move { token.run_until_cancelled(std::future::pending::<()>()).await });
    /// guard.release().await?;
    /// assert!(worker.await.unwrap().is_none()); // cancelled
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancellation_token(&self) -> CancellationToken {
        let token = CancellationToken::new();
        if let State::Lost(_) = self.state() {
            // In a forked process, whose guards are all lost, no task could cancel it.
            token.cancel();
            return token;
        }
        let (ending, cancel) = (self.ending(), token.clone().drop_guard());
        self.hold().engine().spawn_detached(async move {
            ending.await;
            drop(cancel);
        });
        token
    }

    /// Waits until the state differs from `seen`.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn changed(&self, seen: State) -> State {
        // In a fork the state can be read, and not be watched: another thread may have had it locked.
        let forked = State::Lost(LossCause::Forked);
        if self.state() == forked {
            return if seen == forked { std::future::pending().await } else { forked };
        }
        self.hold().lease().watch().other_than(seen).await
    }

    /// Runs `work` for as long as the lock is held, and drops it the moment the lock is lost.
    ///
    /// Reads the clock before each poll of `work`, so a process that wakes up after its lease does no more
    /// work.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`; the lock stays held.
    ///
    /// # Errors
    /// `Lost` if the lock was lost before `work` was done, even during its last poll.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let check = || self.cause();
        let done = while_held(check, self.lost(), work).await;
        done.map_err(|cause| Error::lost("run", cause, self.resource()))
    }

    /// Leaves the lock to its lease: neither renewed nor released, it ends on the server when its ttl
    /// is over. Returns `false` if it had been released before, or if another guard holds it as well.
    pub(crate) fn leave_to_lease(self) -> bool {
        self.into_hold().is_some_and(Hold::leave_to_lease)
    }

    /// Ends this guard. If another task of this client waits for the same lock, that task may get it at once, by a
    /// local hand-off. Otherwise the lock is released, and the call waits until the server confirms the release. If a
    /// [minimum time to hold](crate::Lock::min_hold) is set, it first waits until that time is over.
    ///
    /// If another guard of the same [`Owner`](crate::Owner) still holds the lock, only this guard ends, at once.
    /// The last of them then waits for the minimum times of all.
    ///
    /// # Cancel safety
    /// The lock is released even if the future is dropped.
    ///
    /// # Does not promise
    /// After a local hand-off, or if the lock [lingers](crate::Lock::linger), the store is not asked. `Ok` then says
    /// that the lock was valid by the clock, and not that the store still had it.
    ///
    /// # Errors
    /// `Lost` if the lock had been lost before: the work under it may have overlapped with that of another
    /// holder. `OutcomeUnknown` if the server did not answer for as long as the lease could last, or if the connection
    /// that held the lock ended before it answered.
    pub async fn release(self) -> Result<()> {
        let resource = self.resource().clone();
        GuardEnd::of(self.hold.release().await, &resource).map(drop)
    }

    /// Releases the lock as [`Guard::release`] does, for a wait until it is re-acquired. The store is asked in
    /// any case: the lock is neither handed off nor does it linger, since a loss that only the store knows would
    /// not be seen. Returns whether the lock was held until then.
    ///
    /// # Errors
    /// `Invalid` if another guard of the same owner still holds the lock; otherwise as [`Guard::release`].
    pub(crate) async fn release_to_wait(self, op: &'static str) -> Result<HeldUntilReleased> {
        self.hold().pin();
        let resource = self.resource().clone();
        let end = GuardEnd::of(self.hold.release().await, &resource);
        match end.map_err(|error| error.with_op(op))? {
            GuardEnd::Freed(held) => Ok(held),
            GuardEnd::Shared => Err(held_more_than_once(op, &resource)),
        }
    }
}

/// The state of a lock at the time of its release, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldUntilReleased {
    Yes,
    /// Not known: another client may have held the lock before.
    Unknown,
}

/// The end of a guard that was not lost.
enum GuardEnd {
    /// The lock is free.
    Freed(HeldUntilReleased),
    /// Another guard of the same owner still holds the lock.
    Shared,
}

impl GuardEnd {
    fn of(ended: (State, Option<Released>), resource: &Resource) -> Result<GuardEnd> {
        match ended {
            (State::Lost(cause), _) => Err(Error::lost("release", cause, resource)),
            (_, None) => Ok(GuardEnd::Shared),
            (_, Some(Released::Freed)) => Ok(GuardEnd::Freed(HeldUntilReleased::Yes)),
            (_, Some(Released::PresumablyFreed)) => Ok(GuardEnd::Freed(HeldUntilReleased::Unknown)),
            (_, Some(Released::Gone)) => Err(Error::lost("release", LossCause::Gone, resource)),
            (_, Some(Released::Unknown(failure))) => {
                Err(Error::new(ErrorKind::OutcomeUnknown, "release", failure.detail()).on(resource))
            }
        }
    }
}

fn held_more_than_once(op: &'static str, resource: &Resource) -> Error {
    let text = "its owner holds it more than once; release the others first";
    Error::new(ErrorKind::Invalid, op, text).on(resource)
}
