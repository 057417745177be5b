//! Releasing claims: on all members, in batches.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::quorum::Member;
use leasehold_core::{Claim, Effect, Failure, Release};

use super::Quorum;
use super::members::Outcomes;
use super::timer::after;

impl Quorum {
    /// Ends each claim on all members; the answer of a majority is enough. A member that is about to answer a request
    /// for the lock is asked once it has.
    pub(super) async fn release_all(&self, batch: &[&Claim]) -> Vec<Release> {
        // Before the release is sent: a request of the claim that it overtakes ends its own lock.
        batch.iter().for_each(|claim| self.unanswered.end(&claim.id));
        let until = after(ABOUT_TO_ANSWER);
        let claims: Arc<Vec<Claim>> = Arc::new(batch.iter().map(|claim| (*claim).clone()).collect());
        let call = |number, member: Arc<dyn Member>| {
            let claims = claims.clone();
            let answers: Vec<_> =
                claims.iter().map(|claim| self.unanswered.before_release(&claim.id, number, until)).collect();
            async move {
                for answer in answers {
                    answer.await;
                }
                Ok(member.release(&claims.iter().collect::<Vec<_>>()).await)
            }
        };
        let enough = |outcomes: &Outcomes<Vec<Result<bool, Failure>>>| outcomes.iter().all(Option::is_some);
        let (outcomes, _) = self.members.gather_with_rest(call, enough).await;
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
            return Release::Unknown(self.members.failure(outcomes).with_effect(Effect::Unknown));
        }
        // Locks that a few members still have are left of a request that came late: it never held, or
        // does not hold any more. Those that did not answer may have been the others of its majority.
        let freed = answers().filter(|freed| **freed).count();
        let silent = outcomes.len() - answers().count();
        // A majority answered, so the silent ones alone are none.
        if freed + silent >= self.members.majority() { Release::Freed } else { Release::Gone }
    }
}

/// The time for which a release waits for the answer to an earlier request: a member that is well takes less, and one
/// that is not has the release behind that request all the same.
const ABOUT_TO_ANSWER: Duration = Duration::from_millis(5);
