//! The seam: everything that differs from one lock service to the next.
//!
//! A backend does only what its server alone can decide. Waiting lines inside the process, renewal, local
//! expiry, retries and cancellation are the engine's, written once. The laws that every backend keeps are
//! executable in the `leasehold-conformance` crate.

use std::any::Any;
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use crate::{
    Claim, Failure, Finding, Grant, Patience, Profile, Proof, Registers, Resource, ResourceSummary, Share,
    Snapshot, SnapshotVersion,
};

/// One lock service, seen through four verbs and a look: contend, renew, release, inspect, list.
///
/// Promises, each a law of the conformance suite:
/// 1. **Safety**: the weights of live granted claims never exceed the capacity.
/// 2. **Idempotence**: any call may be repeated with the same claim after any failure.
/// 3. **Finality**: `renew` never resurrects and never shortens; once gone, only a new claim can hold.
/// 4. **No residue**: after `Busy` with ended patience, and after `release`, nothing of the claim remains.
/// 5. **Honesty**: an answer that may have taken effect is [`Effect::Unknown`](crate::Effect::Unknown).
/// 6. **Order**: fences rise strictly per resource; a backend that promises FIFO grants in queue order.
/// 7. **Own only**: a release or renewal never touches another's claim.
/// 8. **Wake**: a waiter learns of a release within the profile's promise; no wake-up is lost between look
///    and wait.
///
/// The engine never drops a future of this trait midway; a backend need not be cancel safe.
#[async_trait]
pub trait Backend: Any + Debug + Send + Sync {
    /// Returns the promises of this connection. Constant for its life.
    fn profile(&self) -> &Profile;

    /// Explains why claims of this share are not admitted, where the profile alone does not say enough for
    /// a person.
    fn unsupported_reason(&self, _share: Share) -> Option<&'static str> {
        None
    }

    /// Returns the registers of the same store, where it has them; see [`Registers`].
    fn registers(&self) -> Option<&dyn Registers> {
        None
    }

    /// Returns `true` if another client can adopt a granted claim by contending for it: the answer has the
    /// fence of the grant, the other client's note is shown from then on, and the end of the first client
    /// does not end the claim.
    ///
    /// Not where a connection or a process keeps what it holds.
    fn supports_transfer(&self) -> bool {
        false
    }

    /// Notes that this client has finished with a granted claim that another client may adopt. If none
    /// does, the claim ends with its lease; if one does, nothing of this client ends it.
    ///
    /// Only for backends that [adopt](Backend::supports_transfer), and only those have something to do
    /// here whose client itself ends what it does not renew.
    fn detach(&self, _claim: &Claim) {}

    /// Takes one step towards holding the claim.
    ///
    /// May block until `patience` ends, and returns as soon as anything changed. A poller answers at once and
    /// says when to ask again; a notifier subscribes, then looks, then waits; a queue keeps its place between
    /// calls. With patience that ended before the call it looks exactly once and leaves no place behind.
    /// When patience ends during the call the place is given up before it returns `Busy`.
    ///
    /// # Errors
    /// A [`Failure`] whose effect is `Unknown` may have left a place, or even a grant: the same claim is then
    /// contended for again, or released.
    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure>;

    /// Names the part of the store that answers for this claim: a server of several, a shard, a session.
    ///
    /// Claims of different parts never go in one call of [`renew`](Backend::renew) or
    /// [`release`](Backend::release), so a part that hangs holds back the answers for its own claims only,
    /// and the engine limits the calls in flight of each part by itself. It is asked before each call, so
    /// it may change, and a wrong answer costs isolation, not safety. It must not block, and should have
    /// few different values: each one is a call of its own. Leave it as it is where one server answers for
    /// everything.
    fn part(&self, _claim: &Claim) -> u64 {
        0
    }

    /// Extends each claim by its ttl from now; never shortens, never resurrects. Answers in order.
    ///
    /// A batch may be larger than the profile's maximum; the backend cuts it. All claims of a batch are of
    /// one [part](Backend::part).
    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal>;

    /// Ends each claim: granted, waiting or of unknown outcome alike. Answers in order. All are of one
    /// [part](Backend::part).
    async fn release(&self, batch: &[&Claim]) -> Vec<Release>;

    /// Takes a claim away from the client that has it, for an operator who has seen it.
    ///
    /// Unlike a release it may be of another client, and end more: where a connection keeps what it holds,
    /// only its end takes a claim away, and all else that it holds goes along. It ends nothing where the
    /// claim is not there any more.
    ///
    /// # Errors
    /// `Denied` where the server does not let this user do it, `Unsupported` where nobody can by way of
    /// this store. Another [`Failure`] whose effect is `Unknown` may have ended it.
    async fn break_claim(&self, claim: &Claim) -> Result<BreakOutcome, Failure> {
        match self.release(&[claim]).await.pop() {
            Some(Release::Freed) => Ok(BreakOutcome::Ended { also_released: Vec::new() }),
            Some(Release::Gone) => Ok(BreakOutcome::Gone),
            Some(Release::Unknown(failure)) => Err(failure),
            None => Err(Failure::unanswered("the store did not answer a release")),
        }
    }

    /// Holders and line of a resource. With `seen`, waits until the version is another one or patience ends,
    /// and answers with what there is then.
    ///
    /// A backend without change notifications answers at once with the version that was seen; the engine
    /// asks again after a pause.
    ///
    /// # Errors
    /// A [`Failure`]; looking changes nothing.
    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure>;

    /// Resources whose name begins with `prefix` and that have holders or waiters, in the order of their
    /// names, beginning behind `after`, at most `limit`.
    ///
    /// # Errors
    /// A [`Failure`]; looking changes nothing.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure>;

    /// Examines which settings of this store help or harm locks with leases of `ttl`, for a person to read.
    ///
    /// It asks the server and changes nothing on it, and it does not fail: what may not be asked, or was
    /// not answered, is a finding of its own. What can be found out over the seam, such as how long a round
    /// trip takes, is not looked for in here. Without anything of its own to say a backend leaves this as
    /// it is.
    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        _ = ttl;
        Vec::new()
    }
}

/// The outcome of one step.
#[derive(Clone, Debug)]
pub enum Step {
    /// The claim holds.
    Granted(Grant),
    /// The claim is not admitted yet.
    Busy(Hint),
}

/// A hint about a claim that is not yet granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// The time after which to call `contend` again; at once where it is `None`.
    pub ask_again_in: Option<Duration>,
    /// The number of claims ahead, holders included, where it is known.
    pub ahead: Option<u32>,
}

/// One claim to be renewed, with what its grant left behind.
#[derive(Clone, Copy, Debug)]
pub struct Renew<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// The proof of its grant.
    pub proof: &'a Proof,
}

/// The outcome of one renewal.
#[derive(Clone, Debug)]
pub enum Renewal {
    /// The lease runs for another ttl from when the call was made.
    Renewed,
    /// A session keeps the claim, and both are alive.
    Alive,
    /// The claim is gone for good.
    Lost,
    /// No answer; the lease may or may not have been extended, and counts as not extended.
    Unknown(Failure),
}

/// The outcome of one release.
#[derive(Clone, Debug)]
pub enum Release {
    /// The claim was there and is ended.
    Freed,
    /// The claim was not there: it was released before, or lost, or never arrived.
    Gone,
    /// No answer; the claim may still be there until its ttl ends.
    Unknown(Failure),
}

/// The outcome of taking a claim away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakOutcome {
    /// The claim existed and is ended.
    Ended {
        /// The other resources that were freed with it, as far as they are known: those that its connection
        /// held beside it.
        also_released: Vec<Resource>,
    },
    /// The claim no longer existed; nothing was ended.
    Gone,
}
