//! Renewing and releasing claims: by a majority, in batches.

use std::sync::Arc;

use leasehold_core::quorum::{KeepAlive, Kept, Member};
use leasehold_core::{Claim, Effect, Failure, Fence, Release, Renew, Renewal};
use leasehold_machine::Unforked;

use super::Quorum;
use super::attempt::Granted;
use super::seats::Outcomes;

/// A claim, and its fence if that is known.
type Staying = (Arc<Claim>, Option<Fence>);

impl Quorum {
    /// Extends each claim on a majority, and locks it anew on a member that has forgotten it.
    pub(super) async fn renew_all(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(batch.len());
        for some in batch.chunks(RENEW_BATCH_MAX) {
            let stays: Vec<Staying> = some
                .iter()
                .map(|renew| {
                    let fence = renew.proof.get::<Granted>().map(|granted| granted.0);
                    (Arc::new(renew.claim.clone()), fence)
                })
                .collect();
            renewals.extend(self.renew_some(&Arc::new(stays)).await);
        }
        renewals
    }

    async fn renew_some(&self, stays: &Arc<Vec<Staying>>) -> Vec<Renewal> {
        let call = |member: Arc<dyn Member>| {
            let stays = stays.clone();
            async move {
                let batch: Vec<KeepAlive<'_>> =
                    stays.iter().map(|(claim, fence)| KeepAlive { claim, fence: *fence }).collect();
                member.renew(&batch).await
            }
        };
        let (count, majority) = (stays.len(), self.seats.majority());
        let decided = |outcomes: &Outcomes<Vec<Kept>>| {
            (0..count).all(|index| {
                let tally = Tally::of(outcomes, index);
                tally.extended >= majority || tally.gone > self.seats.count() - majority
            })
        };
        let outcomes = self.seats.gather(call, decided).await;
        let renewals = (0..count).map(|index| {
            let tally = Tally::of(&outcomes, index);
            if tally.extended >= majority {
                Renewal::Renewed
            } else if tally.gone > self.seats.count() - majority {
                Renewal::Lost
            } else {
                Renewal::Unknown(self.seats.failure(&outcomes))
            }
        });
        let renewals: Vec<Renewal> = renewals.collect();
        self.seed(stays, &outcomes, &renewals).await;
        renewals
    }

    /// Locks free members for claims that are known to hold by now, never before.
    async fn seed(&self, stays: &Arc<Vec<Staying>>, outcomes: &Outcomes<Vec<Kept>>, renewals: &[Renewal]) {
        let mut seeding = tokio::task::JoinSet::new();
        for (number, outcome) in outcomes.iter().enumerate() {
            let (Some(Ok(kept)), Some(member)) = (outcome, self.seats.member(number)) else { continue };
            let missing: Vec<(Arc<Claim>, Fence)> = stays
                .iter()
                .zip(kept)
                .zip(renewals)
                .filter(|((_, kept), renewal)| **kept == Kept::Free && matches!(renewal, Renewal::Renewed))
                .filter_map(|(((claim, fence), _), _)| Some((claim.clone(), (*fence)?)))
                .collect();
            if missing.is_empty() {
                continue;
            }
            seeding.spawn(Unforked::new(async move {
                for (claim, fence) in missing {
                    if let Err(failure) = member.seed(&claim, fence).await {
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
        let claims: Arc<Vec<Claim>> = Arc::new(batch.iter().map(|claim| (*claim).clone()).collect());
        let call = |member: Arc<dyn Member>| {
            let claims = claims.clone();
            async move { Ok(member.release(&claims.iter().collect::<Vec<_>>()).await) }
        };
        let enough = |outcomes: &Outcomes<Vec<Result<bool, Failure>>>| outcomes.iter().all(Option::is_some);
        let outcomes = self.seats.gather(call, enough).await;
        let mut told: Vec<Outcomes<bool>> = Vec::with_capacity(batch.len());
        for index in 0..batch.len() {
            let of_one = |outcome: &Option<Result<Vec<Result<bool, Failure>>, Failure>>| match outcome {
                None => None,
                Some(Ok(answers)) => answers.get(index).cloned(),
                Some(Err(failure)) => Some(Err(failure.clone())),
            };
            told.push(outcomes.iter().map(of_one).collect());
        }
        told.iter().map(|outcomes| self.released(outcomes)).collect()
    }

    /// Judges a release: a claim that a majority does not have any more does not hold, wherever else it
    /// may still be locked.
    fn released(&self, outcomes: &Outcomes<bool>) -> Release {
        let answers = || outcomes.iter().filter_map(|outcome| outcome.as_ref()?.as_ref().ok());
        if answers().count() < self.seats.majority() {
            let mut failure = self.seats.failure(outcomes);
            failure.effect = Effect::Unknown;
            return Release::Unknown(failure);
        }
        // Locks that a few members still have are left of a request that came late: it never held, or
        // does not hold any more. Those that did not answer may have been the others of its majority.
        let freed = answers().filter(|freed| **freed).count();
        let silent = outcomes.len() - answers().count();
        if freed > 0 && freed + silent >= self.seats.majority() { Release::Freed } else { Release::Gone }
    }
}

/// The number of members for each answer about one claim.
struct Tally {
    extended: usize,
    gone: usize,
}

impl Tally {
    fn of(outcomes: &Outcomes<Vec<Kept>>, index: usize) -> Tally {
        let kept = || {
            outcomes.iter().filter_map(move |outcome| outcome.as_ref()?.as_ref().ok()?.get(index).copied())
        };
        let extended = kept().filter(|kept| *kept == Kept::Extended).count();
        Tally { extended, gone: kept().count() - extended }
    }
}

/// The most claims that are renewed by one request to each member.
pub(super) const RENEW_BATCH_MAX: usize = 500;
