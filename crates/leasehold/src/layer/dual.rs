//! Two locks held as one, so that a fleet can move from one to the other without a gap.
//!
//! Ground rules: always the new lock first, then the old one, so that two movers never wait for each
//! other. A mover that waits for the old one keeps the new one meanwhile, and no other mover requests
//! the old. A claim holds only while both hold: the loss of one is the loss of both.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join, join_all};
use leasehold_core::{
    AtOnce, Backend, BreakOutcome, Claim, DirectRequests, Effect, Failure, FailureKind, Finding, Grant, Hint,
    Liveness, LossSignal, LossSubscription, LossTrigger, Patience, Profile, Proof, Registers, Release, Renew,
    Renewal, Resource, ResourceSummary, Share, Snapshot, SnapshotVersion, Step,
};

use crate::clock::SystemClock;

/// A backend that holds each lock in two stores, an old and a new one.
///
/// While a fleet moves, some of its processes take the old lock, some take both, and at last some take
/// the new one. Processes of all three kinds exclude each other, unless one takes only the old lock
/// while another takes only the new one.
///
/// # Promises
/// The common promises of both stores; fences and the way of waiting are those of the new one. Both
/// locks carry the same claim.
///
/// # Does not promise
/// - Order: a client that takes the old lock alone has no place in the queue.
/// - A fence for a holder of the old lock alone.
///
/// ```
/// use leasehold::{Client, layer::Dual, local::MemoryBackend};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (old, new) = (Arc::new(MemoryBackend::new()), Arc::new(MemoryBackend::new()));
/// let before = Client::builder().over(old.clone())?;
/// let moving = Client::builder().over(Arc::new(Dual::of(old, new.clone())?))?;
/// let after = Client::builder().over(new)?;
///
/// let guard = moving.mutex("job").lock().await?;
/// assert!(before.mutex("job").try_lock().await?.is_none());
/// assert!(after.mutex("job").try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Dual {
    old: Arc<dyn Backend>,
    new: Arc<dyn Backend>,
    profile: Profile,
}

impl Dual {
    /// Takes the locks of `new`, and those of `old` with them.
    ///
    /// # Errors
    /// `Unsupported` if one of them keeps its claims alive by sessions: both must be leases, so that
    /// one ttl is right for both.
    pub fn of(old: Arc<dyn Backend>, new: Arc<dyn Backend>) -> Result<Dual, Failure> {
        let profile = weaker(old.profile(), new.profile())?;
        Ok(Dual { old, new, profile })
    }

    /// Takes the old lock for a claim that has the new one.
    async fn take_old(&self, claim: &Claim, grant: Grant, patience: &Patience) -> Result<OldLock, Failure> {
        // Without patience it leaves no place behind: only the holder of the new lock waits for the old.
        let once = Patience::none(patience.clock().clone());
        match self.old.contend(claim, &once).await? {
            Step::Busy(_) => Ok(OldLock::Busy),
            Step::Granted(old) => {
                let (lost, losses) = either_lost(grant.lost, old.lost);
                let proof = Proof::of(Proofs { old: old.proof, new: grant.proof, _losses: losses });
                let both = Grant::new(grant.asked_at.min(old.asked_at));
                Ok(OldLock::Granted(both.fence(grant.fence).lost(lost).proof(proof)))
            }
        }
    }

    /// Releases the new lock because the old one did not come in time, or never will.
    async fn give_up(&self, claim: &Claim) -> Result<Step, Failure> {
        match self.new.release(&[claim]).await.pop() {
            Some(Release::Unknown(failure)) => Err(uncertain(failure.of_release())),
            _ => Ok(Step::Busy(Hint { ask_again_in: None, ahead: Some(1) })),
        }
    }

    async fn inspect_both(&self, resource: &Resource, patience: &Patience) -> Result<Snapshot, Failure> {
        let once = Patience::none(patience.clock().clone());
        let snapshots =
            (self.new.inspect(resource, None, &once).await?, self.old.inspect(resource, None, &once).await?);
        Ok(seen_together(snapshots.0, snapshots.1))
    }

    /// Returns those of the names that have holders or waiters.
    async fn summaries(&self, names: &[Resource]) -> Result<Vec<ResourceSummary>, Failure> {
        let once = Patience::none(Arc::new(SystemClock));
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut summaries = Vec::new();
        // A holder of the new lock alone waits for the old one, which neither list can say.
        for seen in join_all(names.iter().map(|name| self.inspect_both(name, &once))).await {
            match seen {
                Ok(seen) if !seen.holders.is_empty() || !seen.waiting.is_empty() => {
                    let (holders, waiting) = (count(seen.holders.len()), count(seen.waiting.len()));
                    summaries.push(ResourceSummary::new(seen.resource, holders, waiting));
                }
                // Ended meanwhile, or not a lock in one of the stores.
                Ok(_) => {}
                Err(failure) if failure.kind == FailureKind::Foreign => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(summaries)
    }
}

// A wrapper that keeps a default method hides what the wrapped backend does.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Dual {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        None
    }

    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        None
    }

    fn unsupported_reason(&self, share: Share) -> Option<&'static str> {
        self.new.unsupported_reason(share).or_else(|| self.old.unsupported_reason(share))
    }

    fn registers(&self) -> Option<&dyn Registers> {
        // A value in two stores cannot be changed in one step.
        None
    }

    fn supports_transfer(&self) -> bool {
        // The client that adopts a claim would have to adopt both at once.
        false
    }

    fn detach(&self, _claim: &Claim) {}

    fn part(&self, claim: &Claim) -> u64 {
        // Two that differ on either side must differ here; a collision costs isolation only.
        let (new, old) = (self.new.part(claim), self.old.part(claim));
        new.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ old
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.profile.admits(claim.share).map_err(|unmet| {
            Failure::new(
                FailureKind::Unsupported,
                Effect::None,
                format!("{unmet}, as long as both locks are taken"),
            )
        })?;
        let pause = OLD_POLL.min(claim.ttl / 4);
        let mut holds_new = false;
        loop {
            let step = self.new.contend(claim, patience).await;
            let grant = match step.map_err(|failure| if holds_new { uncertain(failure) } else { failure })? {
                Step::Granted(grant) => grant,
                Step::Busy(hint) => return Ok(Step::Busy(hint)),
            };
            holds_new = true;
            match self.take_old(claim, grant, patience).await {
                Ok(OldLock::Granted(grant)) => return Ok(Step::Granted(grant)),
                Ok(OldLock::Busy) => {}
                // It would be refused again, so nobody has to wait until the new lock is cleaned up.
                Err(failure) if failure.effect == Effect::None && !failure.is_transient() => {
                    self.give_up(claim).await?;
                    return Err(failure);
                }
                Err(failure) => return Err(uncertain(failure)),
            }
            if patience.is_ended() {
                return self.give_up(claim).await;
            }
            if self.profile.waiting == leasehold_core::WaitMode::Polls {
                return Ok(Step::Busy(Hint { ask_again_in: Some(pause), ahead: Some(1) }));
            }
            // Repeated after that, the lease of the new lock is kept while the old one is waited for.
            tokio::select! {
                () = tokio::time::sleep(pause.min(patience.left())) => {}
                () = patience.ended() => {}
            }
        }
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let none = Proof::none();
        let (mut new, mut old) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for Renew { claim, proof } in batch.iter().copied() {
            let proofs = proof.get::<Proofs>();
            new.push(Renew { claim, proof: proofs.map_or(&none, |proofs| &proofs.new) });
            old.push(Renew { claim, proof: proofs.map_or(&none, |proofs| &proofs.old) });
        }
        let (new, old) = tokio::join!(self.new.renew(&new), self.old.renew(&old));
        new.into_iter().zip(old).map(|(new, old)| both_renewed(new, old)).collect()
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        // The old one first: the next holder of the new one then finds the old one free.
        let old = self.old.release(batch).await;
        let new = self.new.release(batch).await;
        new.into_iter().zip(old).map(|(new, old)| both_released(new, old)).collect()
    }

    async fn break_claim(&self, claim: &Claim) -> Result<BreakOutcome, Failure> {
        // In the order of a release. After the first, something has been ended, whatever becomes of the second.
        let old = self.old.break_claim(claim).await?;
        let new = self.new.break_claim(claim).await.map_err(uncertain)?;
        Ok(both_broken(old, new))
    }

    async fn inspect(
        &self,
        resource: &Resource,
        _seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.inspect_both(resource, patience).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let mut summaries = Vec::new();
        let mut after = after.cloned();
        // A page without the names that have ended meanwhile would be short, as only the last one may be. Each round
        // looks at the names behind those of the round before.
        while summaries.len() < limit {
            let new = self.new.list(prefix, after.as_ref(), limit).await?;
            let old = self.old.list(prefix, after.as_ref(), limit).await?;
            let (names, is_last) = names_of_pages(new, old, limit);
            for chunk in names.chunks(LIST_BATCH_MAX) {
                if summaries.len() < limit {
                    summaries.extend(self.summaries(chunk).await?);
                }
            }
            if is_last {
                break;
            }
            after = names.into_iter().next_back();
        }
        summaries.truncate(limit);
        Ok(summaries)
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        let (mut findings, old) = join(self.new.diagnose(ttl), self.old.diagnose(ttl)).await;
        findings.extend(old);
        findings
    }
}

/// Returns the outcome of breaking a claim that may be in either store, or in both.
fn both_broken(old: BreakOutcome, new: BreakOutcome) -> BreakOutcome {
    match (old, new) {
        (BreakOutcome::Gone, other) | (other, BreakOutcome::Gone) => other,
        (BreakOutcome::Ended { mut also_released }, BreakOutcome::Ended { also_released: others }) => {
            also_released.extend(others);
            BreakOutcome::Ended { also_released }
        }
    }
}

/// The result of requesting the old lock.
enum OldLock {
    Granted(Grant),
    Busy,
}

/// The proofs of both stores.
struct Proofs {
    old: Proof,
    new: Proof,
    /// The subscriptions that pass the loss of either on. They last while the claim is held, as the proofs do.
    _losses: Option<[LossSubscription; 2]>,
}

/// Joins the loss signals of both stores, where they have any, to one.
fn either_lost(
    new: Option<LossSignal>,
    old: Option<LossSignal>,
) -> (Option<LossSignal>, Option<[LossSubscription; 2]>) {
    let (Some(one), Some(other)) = (&new, &old) else { return (new.or(old), None) };
    let (trigger, signal) = LossTrigger::new();
    let trigger = Arc::new(trigger);
    let losses = [one, other].map(|half| {
        let trigger = trigger.clone();
        half.on_loss(move |cause| trigger.fire(cause))
    });
    (Some(signal), Some(losses))
}

/// The pause between two requests of a holder of the new lock for the old one. It is the only one that polls.
const OLD_POLL: Duration = Duration::from_millis(100);

/// Names that are looked at together for a listing.
const LIST_BATCH_MAX: usize = 50;

/// Joins a page of each store: returns the names up to which both pages are complete, in order, and `true` if no names
/// follow them.
fn names_of_pages(
    new: Vec<ResourceSummary>,
    old: Vec<ResourceSummary>,
    limit: usize,
) -> (Vec<Resource>, bool) {
    // Behind the last name of a full page its store may have more.
    let full = [&new, &old].into_iter().filter(|page| page.len() >= limit);
    let end = full.filter_map(|page| Some(page.last()?.resource.clone())).min();
    let mut names: BTreeSet<Resource> = new.into_iter().chain(old).map(|summary| summary.resource).collect();
    if let Some(end) = &end {
        names.retain(|name| name <= end);
    }
    (names.into_iter().collect(), end.is_none())
}

/// Returns the promises that both keep.
fn weaker(old: &Profile, new: &Profile) -> Result<Profile, Failure> {
    let (Liveness::Lease { min: a, max: b }, Liveness::Lease { min: c, max: d }) =
        (old.liveness, new.liveness)
    else {
        let text = format!(
            "{} and {} cannot be held together: one of them keeps its locks by a session, which has no ttl",
            old.name, new.name
        );
        return Err(Failure::new(FailureKind::Unsupported, Effect::None, text));
    };
    let liveness = Liveness::Lease { min: a.max(c), max: b.min(d) };
    Ok(Profile::new("dual", liveness)
        .admission(old.admission.min(new.admission))
        .order(old.order.min(new.order))
        .waiting(new.waiting)
        .fencing(new.fencing)
        .durability(old.durability.min(new.durability))
        .place_ttl(new.place_ttl)
        .granularity(old.granularity.max(new.granularity))
        .overrun(old.overrun.max(new.overrun))
        .renew_batch_max(old.renew_batch_max.min(new.renew_batch_max))
        .note_max(old.note_max.min(new.note_max)))
}

/// Marks the effect as unknown: a request before has changed one of the stores, or may have, regardless of
/// what the failure says of the last one.
fn uncertain(failure: Failure) -> Failure {
    failure.with_effect(Effect::Unknown)
}

fn both_renewed(new: Renewal, old: Renewal) -> Renewal {
    match (new, old) {
        (Renewal::Lost, _) | (_, Renewal::Lost) => Renewal::Lost,
        (Renewal::Unknown(failure), _) | (_, Renewal::Unknown(failure)) => Renewal::Unknown(failure),
        _ => Renewal::Renewed,
    }
}

/// Returns the outcome of a release of both. The claim was held only if both stores still had it.
fn both_released(new: Release, old: Release) -> Release {
    let ends_something = [&new, &old].iter().any(|one| match one {
        Release::Freed => true,
        Release::Gone => false,
        Release::Unknown(failure) => failure.effect == Effect::Unknown,
    });
    match (new, old) {
        // The next attempt finds the other half gone, because this one ended it.
        (Release::Unknown(failure), _) | (_, Release::Unknown(failure)) if ends_something => {
            Release::Unknown(uncertain(failure))
        }
        (Release::Unknown(failure), _) | (_, Release::Unknown(failure)) => Release::Unknown(failure),
        (Release::Freed, Release::Freed) => Release::Freed,
        (Release::Gone, _) | (_, Release::Gone) => Release::Gone,
    }
}

/// Joins the two snapshots: holders have both locks, or the old one alone. A claim that has
/// only the new one waits.
fn seen_together(new: Snapshot, old: Snapshot) -> Snapshot {
    let (mut holders, mut waiting) = (Vec::new(), Vec::new());
    let version = SnapshotVersion::new(format!("{}|{}", new.version.as_str(), old.version.as_str()));
    for info in new.holders {
        let both = old.holders.iter().any(|other| other.id == info.id);
        if both { holders.push(info) } else { waiting.push(info) }
    }
    let alone = old.holders.into_iter().filter(|other| holders.iter().all(|known| known.id != other.id));
    let alone: Vec<_> = alone.collect();
    holders.extend(alone);
    waiting.extend(new.waiting);
    for info in &mut waiting {
        // The fence counts once it holds.
        info.fence = None;
    }
    Snapshot::new(new.resource, version).holders(holders).waiting(waiting).fence(new.fence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_that_either_store_had_lost_was_not_held() {
        let outcome = |new, old| match both_released(new, old) {
            Release::Freed => "freed",
            Release::Gone => "gone",
            Release::Unknown(failure) if failure.effect == Effect::None => "nothing ended",
            Release::Unknown(_) => "unknown",
        };
        let unsent = || Release::Unknown(Failure::unavailable("it is away"));
        let unanswered = || Release::Unknown(Failure::unanswered("no answer"));
        assert_eq!(outcome(Release::Freed, Release::Freed), "freed");
        assert_eq!(outcome(Release::Gone, Release::Gone), "gone");
        for (one, expected) in [(Release::Gone, "gone"), (unsent(), "unknown"), (unanswered(), "unknown")] {
            assert_eq!(outcome(one.clone(), Release::Freed), expected, "{one:?}");
            assert_eq!(outcome(Release::Freed, one.clone()), expected, "{one:?}");
        }
        for (one, expected) in [(unsent(), "nothing ended"), (unanswered(), "unknown")] {
            for other in [Release::Gone, unsent()] {
                assert_eq!(outcome(one.clone(), other.clone()), expected, "{one:?} and {other:?}");
                assert_eq!(outcome(other.clone(), one.clone()), expected, "{other:?} and {one:?}");
            }
        }
    }

    #[test]
    fn claim_broken_in_either_store_is_broken() {
        let ended = |names: &[&str]| BreakOutcome::Ended {
            also_released: names.iter().map(|name| Resource::new(name).unwrap()).collect(),
        };
        assert_eq!(both_broken(BreakOutcome::Gone, BreakOutcome::Gone), BreakOutcome::Gone);
        assert_eq!(both_broken(ended(&["a"]), BreakOutcome::Gone), ended(&["a"]));
        assert_eq!(both_broken(BreakOutcome::Gone, ended(&["b"])), ended(&["b"]));
        assert_eq!(both_broken(ended(&["a"]), ended(&["b"])), ended(&["a", "b"]));
    }
}
