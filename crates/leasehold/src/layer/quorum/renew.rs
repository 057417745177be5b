//! Renewing claims: by a majority, in batches.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use leasehold_core::quorum::{Member, MemberRenew, MemberRenewal};
use leasehold_core::{Claim, Fence, Renew, Renewal};

use super::Quorum;
use super::attempt::GrantedFence;
use super::late::AttemptMark;
use super::members::{MemberSet, Outcomes, Rest};
use super::stamps::StampSeries;

/// A claim, and its fence if that is known.
type RenewedClaim = (Arc<Claim>, Option<Fence>);

impl Quorum {
    /// Extends each claim on a majority, and locks it anew on a member that has forgotten it.
    pub(super) async fn renew_all(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        // Before anything is sent, so that a release that comes meanwhile is seen.
        let marks = batch.iter().map(|renew| self.unanswered.attempt(renew.claim.id));
        let mut marks: Vec<Arc<AttemptMark>> = marks.collect();
        let mut parts = Vec::with_capacity(batch.len().div_ceil(RENEW_BATCH_MAX));
        for (number, some) in batch.chunks(RENEW_BATCH_MAX).enumerate() {
            let marks = marks.drain(..some.len()).collect();
            parts.push(async move { (number, self.renew_some(some, marks).await) });
        }
        // In any order, so that a part without an answer does not hold up those behind it.
        let mut renewals: Vec<_> = stream::iter(parts).buffer_unordered(AT_ONCE).collect().await;
        renewals.sort_unstable_by_key(|(number, _)| *number);
        renewals.into_iter().flat_map(|(_, some)| some).collect()
    }

    async fn renew_some(&self, batch: &[Renew<'_>], marks: Vec<Arc<AttemptMark>>) -> Vec<Renewal> {
        let claims: Vec<RenewedClaim> = batch
            .iter()
            .map(|renew| {
                let fence = renew.proof.get::<GrantedFence>().map(|granted| granted.0);
                (Arc::new(renew.claim.clone()), fence)
            })
            .collect();
        let claims = Arc::new(claims);
        let call = |_, member: Arc<dyn Member>| {
            let claims = claims.clone();
            async move {
                let batch: Vec<MemberRenew<'_>> =
                    claims.iter().map(|(claim, fence)| MemberRenew { claim, fence: *fence }).collect();
                member.renew(&batch).await
            }
        };
        let count = claims.len();
        let decided = |outcomes: &Outcomes<Vec<MemberRenewal>>| {
            (0..count).all(|index| self.is_renewed(outcomes, index).is_some())
        };
        let (mut outcomes, mut rest) = self.members.gather_with_rest(call, decided).await;
        // The answer of a member that is only slow may be the one that a lease lacks, if another one has forgotten it.
        while !decided(&outcomes) && self.members.are_some_expected(&outcomes) {
            let Some((number, outcome)) = rest.recv().await else { break };
            outcomes[number] = Some(outcome);
        }
        let renewals = (0..count).map(|index| match self.is_renewed(&outcomes, index) {
            Some(true) => Renewal::Renewed,
            Some(false) => Renewal::Lost,
            None => Renewal::Unknown(self.members.failure(&outcomes)),
        });
        let renewals: Vec<Renewal> = renewals.collect();
        let renewed = renewals.iter().map(|renewal| matches!(renewal, Renewal::Renewed)).collect();
        let repair = Repair {
            members: self.members.clone(),
            stamps: self.stamps.clone(),
            claims: claims.clone(),
            marks,
            renewed,
        };
        repair.start(outcomes, rest);
        renewals
    }

    /// Returns whether a claim holds; `None` if the answers do not decide it.
    fn is_renewed(&self, outcomes: &Outcomes<Vec<MemberRenewal>>, index: usize) -> Option<bool> {
        let majority = self.members.majority();
        let counts = AnswerCounts::of(outcomes, index);
        if counts.extended >= majority {
            Some(true)
        } else if counts.gone > self.members.count() - majority {
            Some(false)
        } else {
            None
        }
    }
}

/// Locking renewed claims on members that have forgotten them.
struct Repair {
    members: MemberSet,
    stamps: Arc<StampSeries>,
    claims: Arc<Vec<RenewedClaim>>,
    marks: Vec<Arc<AttemptMark>>,
    /// The claims that are known to hold by now.
    renewed: Vec<bool>,
}

impl Repair {
    /// Locks the claims on each member that answers, in tasks: the renewal does not wait, because a member that
    /// has forgotten everything takes a request for each claim.
    fn start(self, outcomes: Outcomes<Vec<MemberRenewal>>, mut rest: Rest<Vec<MemberRenewal>>) {
        let repair = Arc::new(self);
        let is_complete = outcomes.iter().all(Option::is_some);
        for (number, outcome) in outcomes.into_iter().enumerate() {
            let Some(Ok(answers)) = outcome else { continue };
            if repair.missing(&answers).next().is_some() {
                let repair = repair.clone();
                leasehold_machine::spawn(async move { repair.on(number, &answers).await });
            }
        }
        if !is_complete && repair.renewed.contains(&true) {
            // A member that is always the slowest would have the claim never again.
            leasehold_machine::spawn(async move {
                while let Some((number, outcome)) = rest.recv().await {
                    if let Ok(answers) = outcome {
                        repair.on(number, &answers).await;
                    }
                }
            });
        }
    }

    /// Locks the claims on one member, which answered this.
    async fn on(&self, number: usize, answers: &[MemberRenewal]) {
        let Some(member) = self.members.member(number) else { return };
        for index in self.missing(answers) {
            let (claim, Some(fence)) = &self.claims[index] else { continue };
            let request = self.marks[index].request(number);
            if self.marks[index].is_ended() {
                continue;
            }
            let stamp = self.stamps.next();
            let repaired = member.repair(claim, *fence, stamp).await;
            if request.answered() {
                // It was released meanwhile. If this fails, the lock ends with its ttl.
                let _ = member.withdraw(claim, &[stamp]).await;
            }
            if let Err(failure) = repaired {
                tracing::debug!(%failure, "could not write a lock to a server of the quorum; the next renewal tries again");
                return;
            }
        }
    }

    /// Returns the claims that hold, and that the member has forgotten.
    fn missing(&self, answers: &[MemberRenewal]) -> impl Iterator<Item = usize> {
        let is_missing = |(index, answer): &(usize, &MemberRenewal)| {
            **answer == MemberRenewal::Free && self.renewed[*index]
        };
        answers.iter().take(self.renewed.len()).enumerate().filter(is_missing).map(|(index, _)| index)
    }
}

/// The number of members for each answer about one claim.
struct AnswerCounts {
    extended: usize,
    gone: usize,
}

impl AnswerCounts {
    fn of(outcomes: &Outcomes<Vec<MemberRenewal>>, index: usize) -> AnswerCounts {
        let answers = || {
            outcomes.iter().filter_map(move |outcome| outcome.as_ref()?.as_ref().ok()?.get(index).copied())
        };
        let extended = answers().filter(|answer| *answer == MemberRenewal::Extended).count();
        AnswerCounts { extended, gone: answers().count() - extended }
    }
}

/// The most claims that are renewed by one request to each member.
pub(super) const RENEW_BATCH_MAX: usize = 500;
/// The most requests to each member that one renewal sends without waiting for their answers.
const AT_ONCE: usize = 16;
