//! Renewing and releasing claims: by a majority, in batches.

use std::sync::Arc;

use leasehold_core::quorum::{KeepAlive, KeepOutcome, Member, Stamp};
use leasehold_core::{Claim, Effect, Failure, Fence, Release, Renew, Renewal};
use leasehold_machine::Unforked;

use super::Quorum;
use super::attempt::GrantedFence;
use super::members::Outcomes;

/// A claim, and its fence if that is known.
type RenewedClaim = (Arc<Claim>, Option<Fence>);

impl Quorum {
    /// Extends each claim on a majority, and locks it anew on a member that has forgotten it.
    pub(super) async fn renew_all(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(batch.len());
        for some in batch.chunks(RENEW_BATCH_MAX) {
            let claims: Vec<RenewedClaim> = some
                .iter()
                .map(|renew| {
                    let fence = renew.proof.get::<GrantedFence>().map(|granted| granted.0);
                    (Arc::new(renew.claim.clone()), fence)
                })
                .collect();
            renewals.extend(self.renew_some(&Arc::new(claims)).await);
        }
        renewals
    }

    async fn renew_some(&self, claims: &Arc<Vec<RenewedClaim>>) -> Vec<Renewal> {
        let call = |member: Arc<dyn Member>| {
            let claims = claims.clone();
            async move {
                let batch: Vec<KeepAlive<'_>> =
                    claims.iter().map(|(claim, fence)| KeepAlive { claim, fence: *fence }).collect();
                member.renew(&batch).await
            }
        };
        let (count, majority) = (claims.len(), self.members.majority());
        let decided = |outcomes: &Outcomes<Vec<KeepOutcome>>| {
            (0..count).all(|index| {
                let counts = AnswerCounts::of(outcomes, index);
                counts.extended >= majority || counts.gone > self.members.count() - majority
            })
        };
        let outcomes = self.members.gather(call, decided).await;
        let renewals = (0..count).map(|index| {
            let counts = AnswerCounts::of(&outcomes, index);
            if counts.extended >= majority {
                Renewal::Renewed
            } else if counts.gone > self.members.count() - majority {
                Renewal::Lost
            } else {
                Renewal::Unknown(self.members.failure(&outcomes))
            }
        });
        let renewals: Vec<Renewal> = renewals.collect();
        self.seed(claims, &outcomes, &renewals).await;
        renewals
    }

    /// Locks free members for claims that are known to hold by now, never before.
    async fn seed(
        &self,
        claims: &Arc<Vec<RenewedClaim>>,
        outcomes: &Outcomes<Vec<KeepOutcome>>,
        renewals: &[Renewal],
    ) {
        let mut seeding = tokio::task::JoinSet::new();
        for (number, outcome) in outcomes.iter().enumerate() {
            let (Some(Ok(kept)), Some(member)) = (outcome, self.members.member(number)) else { continue };
            let missing: Vec<(Arc<Claim>, Fence, Stamp)> = claims
                .iter()
                .zip(kept)
                .zip(renewals)
                .filter(|((_, kept), renewal)| {
                    **kept == KeepOutcome::Free && matches!(renewal, Renewal::Renewed)
                })
                .filter_map(|(((claim, fence), _), _)| Some((claim.clone(), (*fence)?, self.stamps.next())))
                .collect();
            if missing.is_empty() {
                continue;
            }
            seeding.spawn(Unforked::new(async move {
                for (claim, fence, stamp) in missing {
                    if let Err(failure) = member.repair(&claim, fence, stamp).await {
                        // The next renewal tries again.
                        tracing::debug!(%failure, "could not write a lock to a server of the quorum; the next renewal tries again");
                        return;
                    }
                }
            }));
        }
        // Waited for, so that no release overtakes it. A member answered just now, and has a
        // limit of its own.
        while seeding.join_next().await.is_some() {}
    }

    /// Ends each claim on all members; the answer of a majority is enough.
    pub(super) async fn release_all(&self, batch: &[&Claim]) -> Vec<Release> {
        // Before the release is sent: a request of the claim that it overtakes ends its own lock.
        batch.iter().for_each(|claim| self.unanswered.end(&claim.id));
        let claims: Arc<Vec<Claim>> = Arc::new(batch.iter().map(|claim| (*claim).clone()).collect());
        let call = |member: Arc<dyn Member>| {
            let claims = claims.clone();
            async move { Ok(member.release(&claims.iter().collect::<Vec<_>>()).await) }
        };
        let enough = |outcomes: &Outcomes<Vec<Result<bool, Failure>>>| outcomes.iter().all(Option::is_some);
        let outcomes = self.members.gather(call, enough).await;
        let mut outcomes_by_claim: Vec<Outcomes<bool>> = Vec::with_capacity(batch.len());
        for index in 0..batch.len() {
            let of_one = |outcome: &Option<Result<Vec<Result<bool, Failure>>, Failure>>| match outcome {
                None => None,
                Some(Ok(answers)) => answers.get(index).cloned(),
                Some(Err(failure)) => Some(Err(failure.clone())),
            };
            outcomes_by_claim.push(outcomes.iter().map(of_one).collect());
        }
        outcomes_by_claim.iter().map(|outcomes| self.released(outcomes)).collect()
    }

    /// Judges a release: a claim that a majority does not have any more does not hold, wherever else it
    /// may still be locked.
    fn released(&self, outcomes: &Outcomes<bool>) -> Release {
        let answers = || outcomes.iter().filter_map(|outcome| outcome.as_ref()?.as_ref().ok());
        if answers().count() < self.members.majority() {
            let mut failure = self.members.failure(outcomes);
            failure.effect = Effect::Unknown;
            return Release::Unknown(failure);
        }
        // Locks that a few members still have are left of a request that came late: it never held, or
        // does not hold any more. Those that did not answer may have been the others of its majority.
        let freed = answers().filter(|freed| **freed).count();
        let silent = outcomes.len() - answers().count();
        if freed > 0 && freed + silent >= self.members.majority() { Release::Freed } else { Release::Gone }
    }
}

/// The number of members for each answer about one claim.
struct AnswerCounts {
    extended: usize,
    gone: usize,
}

impl AnswerCounts {
    fn of(outcomes: &Outcomes<Vec<KeepOutcome>>, index: usize) -> AnswerCounts {
        let kept = || {
            outcomes.iter().filter_map(move |outcome| outcome.as_ref()?.as_ref().ok()?.get(index).copied())
        };
        let extended = kept().filter(|kept| *kept == KeepOutcome::Extended).count();
        AnswerCounts { extended, gone: kept().count() - extended }
    }
}

/// The most claims that are renewed by one request to each member.
pub(super) const RENEW_BATCH_MAX: usize = 500;
