//! The seam: everything that differs from one lock service to the next.
//!
//! A backend does only what its server alone can decide. The engine implements queues inside the process,
//! renewal, local expiry, retries and cancellation, once for all backends. The crate
//! `leasehold-conformance` tests the laws that every backend keeps.

use std::any::Any;
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use crate::{
    AtOnce, Claim, DirectRequests, Failure, Finding, Grant, Patience, Profile, Proof, Registers, Resource,
    ResourceSummary, Share, Snapshot, SnapshotVersion,
};

/// A lock service, with five operations: contend, renew, release, inspect, list.
///
/// Promises, which the laws of the conformance suite check. The suite cannot lose an answer, so the tests of
/// each backend check the fifth:
/// 1. **Safety**: the weights of live granted claims never exceed the capacity.
/// 2. **Idempotence**: any call may be repeated with the same claim after any failure. The exception is a failure of
///    [`contend`](Backend::contend) with an [unanswered release](Failure::with_release_unanswered).
/// 3. **Renewal**: `renew` never resurrects and never shortens; once gone, only a new claim can hold.
/// 4. **No residue**: after `Busy` with ended patience, and after `release`, nothing of the claim remains.
/// 5. **Honesty**: an answer that may have taken effect is [`Effect::Unknown`](crate::Effect::Unknown).
/// 6. **Order**: fences rise strictly per resource; a backend that promises FIFO grants in queue order.
/// 7. **Own only**: a release or renewal never touches another's claim.
/// 8. **Wake**: a waiter learns of a release within the profile's promise; no wake-up is lost between check
///    and wait.
///
/// The engine never drops a future of this trait midway; a backend need not be cancel safe.
///
/// A default is what a store without that ability says, so a backend writes only what its server can do. A
/// backend around another one implements every method, because a default would hide what the inner one does:
/// put `#[deny(clippy::missing_trait_methods)]` on its `impl`.
#[async_trait]
pub trait Backend: Any + Debug + Send + Sync {
    /// Returns the promises of this connection, which are constant for its life.
    fn profile(&self) -> &Profile;

    /// Explains why claims of this share are not admitted, if the profile alone does not say enough for a
    /// person.
    fn unsupported_reason(&self, _share: Share) -> Option<&'static str> {
        None
    }

    /// Returns what this store decides on the thread of the caller; see [`AtOnce`]. `None` if its calls ask a
    /// server, or wait.
    fn at_once(&self) -> Option<&dyn AtOnce> {
        None
    }

    /// Returns the requests that this backend can send without a wait; see [`DirectRequests`]. `None` if it sends none
    /// in this way.
    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        None
    }

    /// Returns the registers of the same store, if it has them; see [`Registers`].
    fn registers(&self) -> Option<&dyn Registers> {
        None
    }

    /// Returns `true` if another client can adopt a granted claim by contending for it: the answer has the
    /// fence of the grant, the other client's note is shown from then on, and the end of the first client
    /// does not end the claim.
    ///
    /// Returns `false` if a connection or a process keeps what it holds.
    fn supports_transfer(&self) -> bool {
        false
    }

    /// Records that this client has finished with a granted claim that another client may adopt. If no
    /// client adopts the claim, it ends with its lease; if one does, nothing of this client ends it.
    ///
    /// The engine calls it only for backends that [adopt](Backend::supports_transfer). A backend has
    /// something to do here only if its client itself ends what it does not renew.
    fn detach(&self, _claim: &Claim) {}

    /// Takes one step towards holding the claim.
    ///
    /// May block until `patience` ends, and returns as soon as anything changed. A backend that polls answers
    /// at once and says when to call again; one with notifications subscribes, then looks, then waits; one
    /// with a queue keeps the claim's place between calls. If patience ended before the call, it looks
    /// exactly once and leaves no place behind. If patience ends during the call, it gives up the place
    /// before it returns `Busy`.
    ///
    /// # Errors
    /// A [`Failure`] whose effect is `Unknown` may have left a place, or even a grant: the engine then
    /// contends for the same claim again, or releases it. A backend that sends a release of the claim during this call
    /// and gets no answer marks the failure with [`Failure::with_release_unanswered`], unless a late release cannot end
    /// a later grant of the same claim: the engine then contends for another claim.
    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure>;

    /// Returns the part of the store that answers for this claim: a server of several, a shard, a session.
    ///
    /// Claims of different parts never go in one call of [`renew`](Backend::renew) or
    /// [`release`](Backend::release), so a part that hangs holds back the answers for its own claims only,
    /// and the engine limits the calls in flight of each part by itself. The engine asks for the part before
    /// each call, so it may change, and a wrong answer costs isolation, not safety. It must not block, and
    /// should have few different values: each one is a call of its own. Keep the default if one server
    /// answers for everything.
    fn part(&self, _claim: &Claim) -> u64 {
        0
    }

    /// Extends each claim by its ttl from now; never shortens, never resurrects. Returns the outcomes in
    /// order.
    ///
    /// A batch may be larger than the profile's maximum; the backend cuts it. All claims of a batch belong to
    /// one [part](Backend::part).
    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal>;

    /// Ends each claim: granted, waiting or of unknown outcome alike. Returns the outcomes in order. All
    /// claims belong to one [part](Backend::part).
    async fn release(&self, batch: &[&Claim]) -> Vec<Release>;

    /// Takes a claim away from the client that has it, for an operator who has seen it.
    ///
    /// Unlike a release, it may end the claim of another client, and more than one claim: if a connection
    /// keeps what it holds, only the end of the connection takes a claim away, with everything else that
    /// the connection holds. It ends nothing if the claim no longer exists.
    ///
    /// # Errors
    /// `Denied` if the server does not let this user do it, `Unsupported` if no user can do it through this
    /// store. Another [`Failure`] whose effect is `Unknown` may have ended the claim.
    async fn break_claim(&self, claim: &Claim) -> Result<BreakOutcome, Failure> {
        BreakOutcome::of_release(self.release(&[claim]).await)
    }

    /// Returns the holders and the queue of a resource. With `seen`, waits until the version is another one
    /// or patience ends, and returns the state at that time.
    ///
    /// A backend without change notifications answers at once with the version that was seen; the engine
    /// calls again after a pause.
    ///
    /// # Errors
    /// A [`Failure`]; looking changes nothing.
    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure>;

    /// Returns the resources whose name begins with `prefix` and that have holders or waiters, in the order
    /// of their names, beginning behind `after`, at most `limit`.
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
    /// It asks the server and changes nothing on it, and it does not fail: a question that is not allowed, or
    /// not answered, is a finding of its own. The engine itself measures what the seam shows, such as the
    /// time of a round trip. A backend without findings of its own keeps the default.
    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        _ = ttl;
        Vec::new()
    }
}

/// The outcome of one step. No variant will be added, so a match is complete.
#[derive(Clone, Debug)]
pub enum Step {
    /// The claim holds.
    Granted(Grant),
    /// The claim is not admitted yet.
    Busy(Hint),
}

/// A hint about a claim that is not yet granted. No field will be added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// The time after which to call `contend` again; at once if it is `None`.
    pub ask_again_in: Option<Duration>,
    /// The number of claims ahead, holders included, if it is known.
    pub ahead: Option<u32>,
}

/// A claim to renew, with the proof of its grant. No field will be added.
#[derive(Clone, Copy, Debug)]
pub struct Renew<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// The proof of its grant.
    pub proof: &'a Proof,
}

/// The outcome of one renewal. No variant will be added, so a match is complete.
#[derive(Clone, Debug)]
pub enum Renewal {
    /// The lease runs for another ttl, counted from the beginning of the call.
    Renewed,
    /// A session keeps the claim, and both are alive.
    Alive,
    /// The claim is gone for good.
    Lost,
    /// No answer; the lease may or may not have been extended, and counts as not extended.
    Unknown(Failure),
}

impl Renewal {
    /// Returns the outcomes of a call that failed as a whole: each of `count` renewals is unknown.
    pub fn unknown_for(count: usize, failure: &Failure) -> Vec<Renewal> {
        vec![Renewal::Unknown(failure.clone()); count]
    }
}

/// The outcome of one release. No variant will be added, so a match is complete.
#[derive(Clone, Debug)]
pub enum Release {
    /// The claim existed and is ended.
    Freed,
    /// The claim did not exist: it was released before, or lost, or never arrived.
    Gone,
    /// No answer; the claim may still exist until its ttl ends.
    ///
    /// A transient failure is asked again. Its effect is [`Effect::None`](crate::Effect::None) only if this attempt
    /// ends nothing, now or later. If the claim is [`Gone`](Release::Gone) after that, it was lost.
    Unknown(Failure),
}

impl Release {
    /// Returns the outcomes of a call that failed as a whole: each of `count` releases is unknown.
    pub fn unknown_for(count: usize, failure: &Failure) -> Vec<Release> {
        vec![Release::Unknown(failure.clone()); count]
    }
}

/// The outcome of taking a claim away. No variant and no field will be added, so a match is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakOutcome {
    /// The claim existed and is ended.
    Ended {
        /// The other resources that were freed with it, as far as they are known: those that its connection
        /// held as well.
        also_released: Vec<Resource>,
    },
    /// The claim no longer existed; nothing was ended.
    Gone,
}

impl BreakOutcome {
    /// Returns the outcome where a release of any client ends a claim, and nothing else: from the answer to a
    /// release of this claim alone.
    ///
    /// # Errors
    /// The failure of the release.
    pub fn of_release(mut answer: Vec<Release>) -> Result<BreakOutcome, Failure> {
        match answer.pop() {
            Some(Release::Freed) => Ok(BreakOutcome::Ended { also_released: Vec::new() }),
            Some(Release::Gone) => Ok(BreakOutcome::Gone),
            Some(Release::Unknown(failure)) => Err(failure),
            None => Err(Failure::unanswered("the store did not answer a release")),
        }
    }
}
