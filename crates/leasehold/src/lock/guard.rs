//! What the user holds.

use std::future::Future;
use std::time::Duration;

use leasehold_core::{Fence, LossCause, Proof, Resource, Share};

use super::again::{Again, Terms};
use super::run::while_held;
use crate::engine::{Hold, HoldHandle, Released, State};
use crate::error::{Error, ErrorKind, Result};

/// A lock that is held: valid, then perhaps suspect, then perhaps lost.
///
/// # Promises
/// It is lost, by [`Guard::lost`], [`Guard::check`] and [`Guard::run`] alike, before the server could grant the lock
/// to somebody else: by the clock of this machine, counted from before the request that was granted, whatever the
/// network says. A process that was stopped past its lease sees the loss before anything else. These three need neither the
/// runtime of the client nor its tasks to tell of the end of a lease. Dropping the guard never blocks and never forgets: the lock
/// is given back in the background.
///
/// # Does not promise
/// That a loss interrupts what is running outside [`Guard::run`], or a write that has left the process already. Fencing
/// only the writes still loses updates; open the resource with the fence before the first read, see
/// [`FencedFile`](crate::fenced::FencedFile) and [`FenceGate`](crate::fenced::FenceGate).
///
/// That a lease is renewed while nothing drives the [runtime of the client](crate::Leasehold#runtime), such as a `current_thread`
/// runtime between two `block_on`.
///
/// Dropped after the runtime of its client has ended, the lock is not given back. It ends with its ttl; where the store watches a
/// process or a connection instead, such as files, with that one or with the client.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::{Leasehold, fenced::FenceGate};
///
/// let locks = Leasehold::open("mem:").await?;
/// let stock = FenceGate::new(7); // what is protected refuses whoever comes with an older fence
/// let guard = locks.mutex("stock/42").lock().await?;
/// let pass = stock.open(guard.fence()).unwrap(); // before the first look
/// let sold = guard.run(async { pass.access(|left| *left -= 1) }).await?; // dropped the moment the lock is lost
/// assert!(sold.is_ok());
/// guard.check()?; // still held, by the clock
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard {
    hold: HoldHandle,
    terms: Terms,
}

impl Guard {
    pub(crate) fn new(mut hold: HoldHandle, terms: Terms) -> Guard {
        if !terms.at_least.is_zero() {
            let end = hold.now().after(terms.at_least);
            hold.keep_until(end);
        }
        Guard { hold, terms }
    }

    /// How to get it again, on the same terms, after it was given back.
    ///
    /// # Errors
    /// `Invalid` where others would still hold it then: those beside whom it is shared, or the same owner.
    pub(crate) fn again(&self, op: &'static str) -> Result<Again> {
        let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, op, text).on(self.resource()));
        if !self.share().is_exclusive() {
            return invalid("it is held beside others; only a mutex or a writer can be waited under");
        }
        if !self.hold.is_only() {
            return invalid("its owner holds it more than once; give the others back first");
        }
        let hold = self.hold();
        Ok(Again::of(hold.engine().clone(), &hold.held().claim, self.terms.clone()))
    }

    /// The hold, where nobody else has it, to be ended otherwise than by giving it back.
    pub(super) fn into_hold(self) -> Option<Hold> {
        self.hold.into_hold()
    }

    pub(crate) fn hold(&self) -> &HoldHandle {
        &self.hold
    }

    /// The number that rises with every grant of this resource; `None` where the backend has none.
    ///
    /// Demand it with [`Lock::fenced`](crate::Lock::fenced), and it is there.
    pub fn fence(&self) -> Option<Fence> {
        self.hold().fence()
    }

    /// What is held.
    pub fn resource(&self) -> &Resource {
        &self.hold().held().claim.resource
    }

    /// How much of it is held.
    pub fn share(&self) -> Share {
        self.hold().held().claim.share
    }

    /// What the backend keeps with the grant, for those who know its type.
    ///
    /// A condition that is made of it holds for as long as the claim does, so from here on the claim stays with this guard: its
    /// release goes to the server, and the next task of this process is granted another claim; and it cannot be
    /// [handed off](Guard::hand_off). An empty proof changes nothing.
    pub fn proof(&self) -> &Proof {
        self.hold().proof()
    }

    /// A public name of this hold: the same for everybody who holds it by re-entering, of no use to end it.
    pub fn tag(&self) -> String {
        self.hold().held().claim.id.tag()
    }

    /// How sure one may be to hold it, by the clock, now.
    pub fn state(&self) -> State {
        self.hold().held().state()
    }

    /// Whether it is still held, by the clock, now.
    ///
    /// # Errors
    /// `Lost`, with the cause.
    pub fn check(&self) -> Result<()> {
        match self.state() {
            State::Lost(cause) => Err(Error::lost("check", cause, self.resource())),
            _ => Ok(()),
        }
    }

    /// Why it is lost, where it is.
    pub(crate) fn cause(&self) -> Option<LossCause> {
        match self.state() {
            State::Lost(cause) => Some(cause),
            _ => None,
        }
    }

    /// For how long it is held without another renewal: zero when it is lost, `Duration::MAX` where a session keeps it.
    pub fn remaining(&self) -> Duration {
        self.hold().held().remaining()
    }

    /// Waits until it is lost; for ever where it never is. It works under any executor, and although nothing drives the runtime
    /// of the client.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn lost(&self) -> LossCause {
        if let State::Lost(cause) = self.state() {
            return cause;
        }
        self.hold().held().watch().lost().await
    }

    /// How it ends: lost, or given back (`None`). It does not keep the lock held.
    pub(crate) fn ending(&self) -> impl Future<Output = Option<LossCause>> + Send + 'static {
        self.hold().ending()
    }

    /// Waits until the state is another one than `seen`.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn changed(&self, seen: State) -> State {
        self.hold().held().watch().other_than(seen).await
    }

    /// Runs `work` for as long as the lock is held, and drops it the moment the lock is lost.
    ///
    /// The clock is read before `work` gets to run, each time, so a process that wakes up after its lease does nothing more.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`; the lock stays held.
    ///
    /// # Errors
    /// `Lost` where the lock was lost before `work` was done, even in its last step.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let check = || self.cause();
        let done = while_held(check, self.lost(), work).await;
        done.map_err(|cause| Error::lost("run", cause, self.resource()))
    }

    /// Leaves it to its lease: neither renewed nor given back, it ends on the server when its ttl is over. `false` where it
    /// had been given back before, or is held by somebody else as well.
    pub(crate) fn spend(self) -> bool {
        self.into_hold().is_some_and(Hold::spend)
    }

    /// Gives the lock back and waits until that is confirmed; before that, until it was held
    /// [as long as it had to be](crate::Lock::at_least).
    ///
    /// Where another guard of the same [`Owner`](crate::Owner) still holds it, this gives back only this one.
    ///
    /// # Cancel safety
    /// The lock is given back even where the future is dropped.
    ///
    /// # Errors
    /// `Lost` where it had been lost before: what was done under it may not have been alone. `OutcomeUnknown` where the
    /// server did not answer for as long as the lease could last.
    pub async fn release(self) -> Result<()> {
        let resource = self.resource().clone();
        match self.hold.give_back().await {
            (State::Lost(cause), _) => Err(Error::lost("release", cause, &resource)),
            // Where it is `None`, another guard of the same owner is still there.
            (_, None | Some(Released::Freed)) => Ok(()),
            (_, Some(Released::Gone)) => Err(Error::lost("release", LossCause::Gone, &resource)),
            (_, Some(Released::Unknown(failure))) => {
                Err(Error::new(ErrorKind::OutcomeUnknown, "release", failure.detail()).on(&resource))
            }
        }
    }
}
