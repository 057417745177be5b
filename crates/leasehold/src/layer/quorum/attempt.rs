//! One acquisition: ask all members, decide, and write to those that answered.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::quorum::{Counting, Member, RequestStamp, Verdict, VoteTally};
use leasehold_core::{Claim, Effect, Failure, Fence, Grant, Patience, Proof};
use tokio::sync::mpsc;

use super::late::AttemptMark;
use super::members::at;
use super::timer::after;
use super::{LATE, Quorum};

/// The result of one acquisition.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The claim holds.
    Granted(Grant),
    /// Another claim holds; nothing of this attempt is left.
    Busy {
        /// The time after which a majority is free at the earliest, unless a holder releases.
        free_in: Duration,
        /// The number of connections that listen.
        listeners: u32,
    },
    /// No claim has a majority; nothing of this attempt is left.
    Split,
    /// The outcome cannot be decided.
    Failed(Failure),
}

/// The fence of a grant, kept with it: a renewal may write it to members that locked without receiving it.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantedFence(pub(super) Fence);

impl Quorum {
    /// Repeats the rounds until the outcome is clear. A second round that a member lost is not the end:
    /// the claim has its locks and asks again.
    ///
    /// `stamps` are those of the requests to each member whose locks may not be withdrawn yet: of this
    /// attempt, and of earlier ones of the same call.
    pub(super) async fn attempt(
        &self,
        claim: &Arc<Claim>,
        patience: &Patience,
        stamps: &mut [Vec<RequestStamp>],
    ) -> Outcome {
        // One for all rounds: a lock that a late answer of any of them leaves on a member is ended.
        let mark = self.unanswered.attempt(claim.id);
        for _ in 0..ROUNDS_MAX {
            let asked_at = patience.now();
            let granted = |fence| {
                self.last_fences.set(&claim.resource, fence);
                Grant::new(asked_at).fence(Some(fence)).proof(Proof::of(GrantedFence(fence)))
            };
            let round = self.first_round(claim, &mark, stamps).await;
            match round.verdict {
                Verdict::Held(fence) => return Outcome::Granted(granted(fence)),
                Verdict::Write { fence, to } => {
                    let to = to.into_iter().filter_map(|(member, run)| {
                        let stamp = *stamps.get(member)?.last()?;
                        Some((member, stamp, run))
                    });
                    if self.second_round(claim, fence, to.collect()).await {
                        return Outcome::Granted(granted(fence));
                    }
                }
                Verdict::Busy { free_in, listeners } => {
                    self.withdraw(claim, &mark, stamps).await;
                    return Outcome::Busy { free_in, listeners };
                }
                Verdict::Failed(failure) => {
                    return Outcome::Failed(if round.saw_earlier_grant {
                        // It may hold, so its locks stay: it asks again, or is released.
                        failure.with_effect(Effect::Unknown)
                    } else if self.withdraw(claim, &mark, stamps).await {
                        failure.with_effect(Effect::None)
                    } else {
                        failure
                    });
                }
                Verdict::Split | Verdict::Undecided => {
                    self.withdraw(claim, &mark, stamps).await;
                    return Outcome::Split;
                }
            }
        }
        self.withdraw(claim, &mark, stamps).await;
        Outcome::Split
    }

    /// Runs the first round: until the answers decide, or the rest comes too late. Adds the stamp of the
    /// request to each member.
    ///
    /// Once the attempt has ended, a lock that is granted late is ended.
    async fn first_round(
        &self,
        claim: &Arc<Claim>,
        mark: &Arc<AttemptMark>,
        stamps: &mut [Vec<RequestStamp>],
    ) -> Round {
        let count = self.members.count();
        for stamps in stamps.iter_mut() {
            stamps.push(self.stamps.next());
        }
        let last = self.last_fences.get(&claim.resource);
        let (sender, mut inbox) = mpsc::channel(count.max(1));
        for (number, stamp) in stamps.iter().filter_map(|stamps| stamps.last().copied()).enumerate() {
            let (claim, sender, request) = (claim.clone(), sender.clone(), mark.request(number));
            let (permit, members, arming) =
                (self.members.permit(number), self.members.clone(), self.arming.clone());
            self.members.spawn(number, async move |member: Arc<dyn Member>| {
                let outcome = match permit {
                    Ok(_permit) => member.prepare(&claim, stamp, last).await,
                    Err(failure) => Err(failure),
                };
                members.record_answer(number, &outcome);
                // A late answer changes no decision. The lock that it may have granted stays with a
                // claim that holds.
                let may_have_locked = !matches!(&outcome, Err(failure) if failure.effect == Effect::None);
                if let Ok(answer) = &outcome
                    && answer.state.armed().is_none()
                {
                    // Also by an answer that nobody waits for: the member may always be the slowest.
                    arming.arm_in_background();
                }
                let is_late = sender.send((number, outcome)).await.is_err();
                if request.answered() && is_late && may_have_locked {
                    // If it fails, the lock ends with its ttl.
                    let _ = member.withdraw(&claim, &[stamp]).await;
                }
            });
        }
        drop(sender);
        let mut tally = VoteTally::new(self.members.names());
        let end = after(claim.ttl / 2);
        let mut late = None;
        let verdict = loop {
            match tally.verdict(Counting::Open) {
                Verdict::Undecided => {}
                verdict => break verdict,
            }
            if tally.can_close() {
                late.get_or_insert_with(|| after(LATE));
            }
            let is_missed = |number| !tally.has_replied(number) && self.members.is_expected(number);
            if tally.answered() >= tally.majority() && !(0..count).any(is_missed) {
                break tally.verdict(Counting::Closed);
            }
            tokio::select! {
                message = inbox.recv() => match message {
                    Some((number, outcome)) => tally.record(number, outcome),
                    None => break tally.verdict(Counting::Closed),
                },
                () = at(Some(late.unwrap_or(end).min(end))) => break tally.verdict(Counting::Closed),
            }
        };
        Round { verdict, saw_earlier_grant: tally.saw_earlier_grant() }
    }

    /// Runs the second round. Returns `true` if a majority has the fence now.
    async fn second_round(
        &self,
        claim: &Arc<Claim>,
        fence: Fence,
        to: Vec<(usize, RequestStamp, String)>,
    ) -> bool {
        let majority = self.members.majority();
        let (sender, mut inbox) = mpsc::channel(to.len().max(1));
        let mut pending = to.len();
        for (number, stamp, run) in to {
            let (claim, sender, permit) = (claim.clone(), sender.clone(), self.members.permit(number));
            self.members.spawn(number, async move |member: Arc<dyn Member>| {
                let taken = match permit {
                    Ok(_permit) => member.accept(&claim, stamp, &run, fence).await,
                    Err(failure) => Err(failure),
                };
                // The receiver may have enough answers.
                let _ = sender.send(matches!(taken, Ok(true))).await;
            });
        }
        drop(sender);
        let mut taken = 0;
        let mut late = None;
        while taken < majority && taken + pending >= majority {
            if taken > 0 {
                late.get_or_insert_with(|| after(LATE * 2));
            }
            tokio::select! {
                message = inbox.recv() => match message {
                    Some(took) => (taken, pending) = (taken + usize::from(took), pending - 1),
                    None => break,
                },
                () = at(late) => break,
            }
        }
        taken >= majority
    }

    /// Ends the locks of the attempt on every member, and waits for those that answer soon. Returns
    /// `true` if all of them did.
    async fn withdraw(
        &self,
        claim: &Arc<Claim>,
        mark: &AttemptMark,
        stamps: &mut [Vec<RequestStamp>],
    ) -> bool {
        mark.end();
        let enough = |outcomes: &Vec<_>| outcomes.iter().all(Option::is_some);
        let all_stamps = Arc::new(stamps.concat());
        let withdraw = |member: Arc<dyn Member>| {
            // A stamp is drawn for one member, so those of the others do nothing there.
            let (claim, stamps) = (claim.clone(), all_stamps.clone());
            async move { member.withdraw(&claim, &stamps).await }
        };
        let outcomes = self.members.gather(withdraw, enough).await;
        for (outcome, stamps) in outcomes.iter().zip(stamps) {
            match outcome {
                Some(Ok(_)) => stamps.clear(),
                // The next attempt withdraws them too. The oldest ones are left to the ttl.
                _ => drop(stamps.drain(..stamps.len().saturating_sub(STAMPS_MAX))),
            }
        }
        outcomes.iter().all(|outcome| matches!(outcome, Some(Ok(_))))
    }
}

/// The result of a first round.
struct Round {
    verdict: Verdict,
    /// `true` if the claim has a fence from before on some member.
    saw_earlier_grant: bool,
}

/// The number of times that a claim with its locks and without a fence tries to get one before
/// it lets others try.
const ROUNDS_MAX: u32 = 3;
/// The number of stamps that are remembered for a member that has not answered.
const STAMPS_MAX: usize = 16;
