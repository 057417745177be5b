//! Several independent servers as one backend: a majority of them decides (Redlock), with a fence.
//!
//! An acquisition has two rounds. In the first, all members are asked for their locks at once; a
//! majority of armed ones makes the claim the only candidate, and their records say which fence is the
//! next. In the second, that fence is written to the members that answered before the decision; a
//! majority of these makes the grant. A client that returns to a resource, while nobody else was granted it,
//! needs the first round only. The model `quorum` of the `sim` crate searches, state by state,
//! the purpose of each rule and what breaks without it.
//!
//! Ground rules: nothing here knows the kind of a member. Every call to a member runs in a task of its
//! own, so a slow one delays no other; a lock that comes too late is ended if it should not stay.

mod acquire;
mod arming;
mod attempt;
mod diagnose;
mod inspect;
mod last_fences;
mod late;
mod members;
mod release;
mod renew;
mod stamps;
mod timer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::quorum::Member;
use leasehold_core::{
    AtOnce, Backend, BreakOutcome, Claim, DirectRequests, Durability, Effect, Failure, FailureKind,
    FenceGrade, Finding, Liveness, Patience, Profile, Registers, Release, Renew, Renewal, Resource,
    ResourceSummary, Share, Snapshot, SnapshotVersion, Step, WaitMode,
};

use acquire::WaiterCounts;
use arming::Arming;
use last_fences::LastFences;
use late::Unanswered;
use members::MemberSet;
use stamps::StampSeries;

pub use arming::RearmReport;

/// A majority of independent members as a backend of one holder at a time.
///
/// # Promises
/// - Two claims are never valid at once, and fences rise strictly, while the assumptions of the
///   members' kind hold; for Redis they are in the documentation of `leasehold-redis` and in
///   `docs/book/src/safety.md`.
/// - A minority that fails or is slow delays no grant, no renewal and no release. The exception is a lock that some
///   other member has forgotten: the slow one may then decide, and a request waits for it, for as long as a request to
///   a member may take.
/// - A member that has lost its memory is not counted, neither for locks nor for fences, before it is
///   armed again. A minority is armed again by itself; a majority by an operator, see
///   [`Quorum::rearm`].
/// - Every grant has a fence. If no fence can be issued, nothing is granted, whether a fence was
///   required or not.
///
/// # Does not promise
/// - Counted permits and readers: see [`Backend::unsupported_reason`].
/// - Any order among waiters.
///
/// `redlock://` opens it; its special calls are reached through the client:
///
/// ```no_run
/// use leasehold::{Client, layer::Quorum};
/// use std::any::Any;
///
/// # async fn replace() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = Client::open("redlock://a,b,c").await?;
/// // A majority was set up anew, and all earlier holders have ended:
/// let backend: &dyn Any = &**locks.backend();
/// if let Some(quorum) = backend.downcast_ref::<Quorum>() {
///     let rearmed = quorum.rearm().await?;
///     println!("{:?} serve, from epoch {} on", rearmed.armed, rearmed.epoch);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Quorum {
    members: MemberSet,
    arming: Arc<Arming>,
    waiters: WaiterCounts,
    unanswered: Unanswered,
    stamps: Arc<StampSeries>,
    last_fences: LastFences,
    profile: Profile,
}

/// The bounds of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuorumConfig {
    /// The shortest lease.
    pub min_ttl: Duration,
    /// The longest lease. A member that has lost its memory is not armed until this time has passed
    /// since the loss was seen.
    pub max_ttl: Duration,
}

impl QuorumConfig {
    /// Creates the bounds.
    pub fn new(min_ttl: Duration, max_ttl: Duration) -> QuorumConfig {
        QuorumConfig { min_ttl, max_ttl }
    }
}

impl Quorum {
    /// Reads the state of all members, and needs the answers of a majority.
    ///
    /// # Cancel safety
    /// If the future is dropped, new members may or may not be armed. That changes no lock, and fences still rise.
    ///
    /// # Errors
    /// `Invalid` if two names lead to one server, or a majority cannot vote for another reason that does
    /// not pass; `Unavailable` if a majority does not answer, or the operating system gives no random
    /// numbers. The text names the answer of each member.
    pub async fn over(
        name: &'static str,
        members: Vec<Arc<dyn Member>>,
        terms: QuorumConfig,
    ) -> Result<Quorum, Failure> {
        let members = MemberSet::new(members);
        let arming = Arc::new(Arming::new(members.clone(), terms.max_ttl));
        arming.read_members().await?;
        let profile = Profile::new(name, Liveness::Lease { min: terms.min_ttl, max: terms.max_ttl })
            .waiting(WaitMode::Notifies)
            .fencing(FenceGrade::AcrossFailover)
            .durability(Durability::LostOnFailover)
            .granularity(Duration::from_millis(2))
            .renew_batch_max(renew::RENEW_BATCH_MAX)
            .note_max(leasehold_core::Note::MAX_BYTES);
        Ok(Quorum {
            members,
            arming,
            waiters: WaiterCounts::default(),
            unanswered: Unanswered::default(),
            stamps: Arc::new(StampSeries::new()?),
            last_fences: LastFences::default(),
            profile,
        })
    }

    /// Arms the members anew, in an epoch above all that were ever used, so that fences continue to rise.
    ///
    /// For an operator, if fewer than a majority are armed, or to put new servers to use at once.
    ///
    /// # Promises
    /// Fences continue above all that were granted, as long as the wall clocks of the members were not
    /// set back since.
    ///
    /// # Does not promise
    /// Other clients may still hold locks. A lock that was granted before the members lost their memory
    /// may be valid for as long as the longest lease: an operator that calls this earlier may let a
    /// second holder in, and only the fence distinguishes the two.
    ///
    /// # Cancel safety
    /// If the future is dropped, the members may or may not be armed. Nothing is harmed; call it again.
    ///
    /// # Errors
    /// Fails if fewer than a majority could be reached, or accepted it. Nothing is harmed; call it again.
    pub async fn rearm(&self) -> Result<RearmReport, Failure> {
        self.arming.rearm().await
    }

    fn check_claim(&self, claim: &Claim) -> Result<(), Failure> {
        if let Err(unmet) = self.profile.admits(claim.share) {
            let why = self.unsupported_reason(claim.share).unwrap_or_default();
            return Err(Failure::new(FailureKind::Unsupported, Effect::None, format!("{unmet}: {why}")));
        }
        if let Liveness::Lease { min, max } = self.profile.liveness
            && !(min..=max).contains(&claim.ttl)
        {
            let text = format!("a ttl of {:?} cannot be kept: choose {min:?} to {max:?}", claim.ttl);
            return Err(Failure::new(FailureKind::Invalid, Effect::None, text));
        }
        Ok(())
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Quorum {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        // Each grant needs the answers of several members.
        None
    }

    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        None
    }

    fn registers(&self) -> Option<&dyn Registers> {
        // A value on several servers cannot be changed in one step.
        None
    }

    fn supports_transfer(&self) -> bool {
        // The client that adopts a claim would have to adopt it on a majority at once.
        false
    }

    fn detach(&self, _claim: &Claim) {}

    fn part(&self, _claim: &Claim) -> u64 {
        // A hung member delays no call: an answer of a majority is enough.
        0
    }

    fn unsupported_reason(&self, share: Share) -> Option<&'static str> {
        let counted = "a majority excludes a second holder, but it does not count: of three servers with two permits \
                       each, three claims can have two servers each, and all of them a majority";
        let readers = "a fence is kept by one lock on each server, which readers would share: two of them \
                       could get the same one";
        if self.profile.admits(share).is_ok() {
            None
        } else {
            Some(if share.is_counted() { counted } else { readers })
        }
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.check_claim(claim)?;
        self.step(claim, patience).await
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        self.renew_all(batch).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        self.release_all(batch).await
    }

    async fn break_claim(&self, claim: &Claim) -> Result<BreakOutcome, Failure> {
        // A release of any client ends the claim on each member, and nothing else.
        BreakOutcome::of_release(self.release_all(&[claim]).await)
    }

    async fn inspect(
        &self,
        resource: &Resource,
        _seen: Option<&SnapshotVersion>,
        _patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.inspect_majority(resource).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.summarize(prefix, after, limit).await
    }

    async fn diagnose(&self, _ttl: Duration) -> Vec<Finding> {
        self.findings().await
    }
}

/// The time to wait for the rest after a majority has answered and nothing is decided yet. An acquisition counts only
/// members that can vote, as long as these may become a majority. A renewal waits longer for an answer that a lease lacks.
const LATE: Duration = Duration::from_millis(50);
