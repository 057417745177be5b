//! Re-arming members that have lost their memory.
//!
//! A member is armed by a mark of its present run. Only the member itself could know what it has forgotten,
//! so it comes back in an **epoch that is new to it**, in which there is nothing to be forgotten yet:
//!
//! - *A majority is armed.* Any client that notices raises it to the next epoch, each member only from
//!   the state that it answered. If a majority took the step, no other client did, and a client that
//!   decided in an older epoch is refused by a majority from now on. Then those that had answered
//!   without memory, before that, are marked in the new epoch.
//! - *None was ever marked, and all answer.* They are new; or all have lost everything, which cannot be
//!   distinguished. Therefore the first epoch is the latest of their wall clocks.
//! - *Anything else* is for an operator: [`rearm`](super::Quorum::rearm).
//!
//! By itself a member is armed only after it has been known to be unarmed for longer than any lease: by
//! then its earlier locks have ended, or were locked on it again by a renewal. The time when it was
//! first seen without a mark is written on the member itself, and is lost with its next loss of memory.
//! The time since its start would not do: `FLUSHALL` forgets and runs on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::quorum::{Member, MemberState};
use leasehold_core::{Effect, Failure, FailureKind};
use leasehold_machine::Unforked;

use super::members::{MemberSet, Outcomes, Rest, some_of};

/// The task that arms members.
#[derive(Debug)]
pub(super) struct Arming {
    members: MemberSet,
    quarantine: Duration,
    busy: AtomicBool,
}

/// The report of an operator's call to arm all members.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RearmReport {
    /// The epoch in which fences continue.
    pub epoch: u64,
    /// The servers that are armed now.
    pub armed: Vec<String>,
    /// The servers that are not, each with the reason; they come back by themselves.
    pub missed: Vec<String>,
}

impl Arming {
    pub(super) fn new(members: MemberSet, max_ttl: Duration) -> Arming {
        // The server's clock may run a little faster than that of a holder.
        let quarantine = max_ttl + max_ttl / 50;
        Arming { members, quarantine, busy: AtomicBool::new(false) }
    }

    /// Reads all members for the first time.
    pub(super) async fn read_members(self: &Arc<Self>) -> Result<(), Failure> {
        let majority = self.members.majority();
        let outcomes = self.read_soon().await;
        if answered(&outcomes).count() < majority {
            return Err(self.members.failure(&outcomes));
        }
        let mut runs: Vec<&str> = answered(&outcomes).map(|(_, state)| state.run.as_str()).collect();
        runs.sort_unstable();
        if runs.windows(2).any(|pair| pair[0] == pair[1]) {
            let text =
                "two of the names lead to one server, which would have two votes: name each server once";
            return Err(Failure::new(FailureKind::Invalid, Effect::None, text));
        }
        for failure in outcomes.iter().filter_map(|outcome| outcome.as_ref()?.as_ref().err()) {
            tracing::warn!(%failure, "a server of the quorum does not serve");
        }
        if answered(&outcomes).any(|(_, state)| state.armed().is_none()) {
            self.arm(&outcomes).await;
        }
        Ok(())
    }

    /// Handles an unarmed member. Arms it in the background, one at a time.
    pub(super) fn arm_in_background(self: &Arc<Self>) {
        if self.busy.swap(true, Ordering::SeqCst) {
            return;
        }
        let arming = self.clone();
        leasehold_machine::spawn(async move {
            let outcomes = arming.read_all().await;
            arming.arm(&outcomes).await;
            // All clients notice, and one of them is enough.
            tokio::time::sleep(PAUSE / 2 + some_of(PAUSE)).await;
            arming.busy.store(false, Ordering::SeqCst);
        });
    }

    /// Arms the members that may be armed.
    async fn arm(&self, outcomes: &Outcomes<MemberState>) {
        let armed: Vec<_> = answered(outcomes).filter(|(_, state)| state.armed().is_some()).collect();
        let unarmed: Vec<_> = answered(outcomes).filter(|(_, state)| state.armed().is_none()).collect();
        let ready: Vec<_> =
            unarmed.iter().copied().filter(|(_, state)| state.unarmed_for() >= self.quarantine).collect();
        if armed.len() >= self.members.majority() && !ready.is_empty() {
            let Some(epoch) = armed.iter().filter_map(|(_, state)| state.armed()).max() else { return };
            let raised = self.mark_all(&armed, epoch + 1).await;
            // Invariant: only a client that raised a majority to an epoch brings members back in it.
            if raised.iter().filter(|(_, marked)| matches!(marked, Ok(true))).count()
                >= self.members.majority()
            {
                self.mark_all(&ready, epoch + 1).await;
                tracing::info!(
                    epoch = epoch + 1,
                    count = ready.len(),
                    "servers of the quorum are counted again"
                );
            }
            return;
        }
        let is_new = unarmed.len() == self.members.count()
            && ready.len() == unarmed.len()
            && unarmed.iter().all(|(_, state)| state.mark.is_none());
        if is_new {
            let again = self.read_unchanged(outcomes).await;
            let all: Vec<_> = answered(&again).collect();
            let Some(epoch) = all.iter().map(|(_, state)| state.unix_us).max() else { return };
            if all.len() == self.members.count() {
                self.mark_all(&all, epoch).await;
            }
        }
    }

    /// Arms all members that can be reached.
    pub(super) async fn rearm(&self) -> Result<RearmReport, Failure> {
        let first = self.read_all().await;
        let outcomes = self.read_unchanged(&first).await;
        let majority = self.members.majority();
        let all: Vec<_> = answered(&outcomes).collect();
        if all.len() < majority {
            return Err(self.members.failure(&outcomes));
        }
        let marked = all.iter().filter_map(|(_, state)| state.mark.as_ref()).map(|mark| mark.epoch + 1);
        let clocks = all.iter().map(|(_, state)| state.unix_us);
        // Members that do not answer may have been in a greater epoch than any that is left. Epochs
        // begin at the wall clock and rise by one, so it is ahead of all of them.
        let epoch = marked.chain(clocks).max().unwrap_or(1);
        let names = self.members.names();
        let outcomes = self.mark_all(&all, epoch).await;
        let mut rearmed = RearmReport { epoch, armed: Vec::new(), missed: Vec::new() };
        for (number, name) in names.iter().enumerate() {
            match outcomes.iter().find(|(marked, _)| *marked == number).map(|(_, marked)| marked) {
                Some(Ok(true)) => rearmed.armed.push(name.clone()),
                Some(Ok(false)) => rearmed.missed.push(format!("{name}: it changed meanwhile")),
                Some(Err(failure)) => rearmed.missed.push(failure.detail().to_owned()),
                None => rearmed.missed.push(format!("{name} did not answer")),
            }
        }
        if rearmed.armed.len() < majority {
            let text = format!(
                "{} of {} servers were armed, {majority} are needed: {}; try again",
                rearmed.armed.len(),
                names.len(),
                rearmed.missed.join("; ")
            );
            return Err(Failure::unanswered(text));
        }
        Ok(rearmed)
    }

    /// Returns the states of all members that answer before the rest is late.
    async fn read_soon(&self) -> Outcomes<MemberState> {
        self.read().await.0
    }

    /// Returns the states of all members that answer at all: one that is slower than the others is armed as well.
    pub(super) async fn read_all(&self) -> Outcomes<MemberState> {
        let (mut outcomes, mut rest) = self.read().await;
        while let Some((number, outcome)) = rest.recv().await {
            outcomes[number] = Some(outcome);
        }
        outcomes
    }

    async fn read(&self) -> (Outcomes<MemberState>, Rest<MemberState>) {
        let enough = |outcomes: &Outcomes<MemberState>| outcomes.iter().all(Option::is_some);
        let state = |_, member: Arc<dyn Member>| async move { member.state().await };
        self.members.gather_with_rest(state, enough).await
    }

    /// Reads all members once more, and keeps those that are unchanged. A member that answered before
    /// the others may have served with them and forgotten it; so no member is marked that has lost its
    /// memory after another one answered.
    async fn read_unchanged(&self, first: &Outcomes<MemberState>) -> Outcomes<MemberState> {
        let mut again = self.read_all().await;
        for (number, outcome) in again.iter_mut().enumerate() {
            let before = first.get(number).and_then(|outcome| outcome.as_ref()?.as_ref().ok());
            if let Some(Ok(now)) = outcome
                && before.is_none_or(|before| has_changed(before, now))
            {
                *outcome = None;
            }
        }
        again
    }

    /// Marks each of these members, from the state that it answered.
    async fn mark_all(
        &self,
        chosen: &[(usize, &MemberState)],
        epoch: u64,
    ) -> Vec<(usize, Result<bool, Failure>)> {
        let mut marking = tokio::task::JoinSet::new();
        for (number, state) in chosen {
            let (number, state, members) = (*number, (*state).clone(), self.members.clone());
            marking.spawn(Unforked::new(async move {
                let Some(member) = members.member(number) else { return (number, Ok(false)) };
                (number, member.set_epoch(&state, epoch).await)
            }));
        }
        let mut outcomes = Vec::with_capacity(chosen.len());
        while let Some(joined) = marking.join_next().await {
            outcomes.extend(joined.ok());
        }
        outcomes
    }
}

/// Returns the members that answered.
fn answered(outcomes: &Outcomes<MemberState>) -> impl Iterator<Item = (usize, &MemberState)> {
    outcomes
        .iter()
        .enumerate()
        .filter_map(|(number, outcome)| Some((number, outcome.as_ref()?.as_ref().ok()?)))
}

/// Returns `true` if a member is another than it was, or has forgotten once more. A client that asks it
/// for a lock may have written down that it is not armed; that changes nothing.
fn has_changed(before: &MemberState, now: &MemberState) -> bool {
    let forgot = before.unarmed_since.is_some() && before.unarmed_since != now.unarmed_since;
    before.run != now.run || before.mark != now.mark || forgot
}

/// The approximate pause before members that could not be armed are tried again.
const PAUSE: Duration = Duration::from_millis(500);
