//! Renewing claims: by a majority, in batches.

use std::sync::Arc;

use leasehold_core::quorum::{KeepAlive, KeepOutcome, Member, RequestStamp};
use leasehold_core::{Claim, Fence, Renew, Renewal};
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
            let missing: Vec<(Arc<Claim>, Fence, RequestStamp)> = claims
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
