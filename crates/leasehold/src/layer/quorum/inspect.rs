//! Inspecting without changing: the state that a majority shows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::quorum::{Member, MemberView, NO_FENCE, Seen};
use leasehold_core::{
    ClaimId, ClaimInfo, Failure, Resource, ResourceSummary, Share, Snapshot, SnapshotVersion,
};

use super::Quorum;
use super::members::Outcomes;

impl Quorum {
    pub(super) async fn inspect_majority(&self, resource: &Resource) -> Result<Snapshot, Failure> {
        let call = |member: Arc<dyn Member>| {
            let resource = resource.clone();
            async move { member.read(&resource).await }
        };
        let all = |outcomes: &Outcomes<MemberView>| outcomes.iter().all(Option::is_some);
        let (mut outcomes, mut rest) = self.members.gather_with_rest(|_, member| call(member), all).await;
        while self.may_have_another_holder(&outcomes) {
            let Some((number, outcome)) = rest.recv().await else { break };
            outcomes[number] = Some(outcome);
        }
        let views = answers(&outcomes);
        if views.len() < self.members.majority() {
            return Err(self.members.failure(&outcomes));
        }
        let last = views.iter().map(|view| view.last).max().filter(|last| *last > NO_FENCE);
        let holder = self.holder(&views);
        let holder_id = holder.as_ref().map(|holder| (holder.id.tag(), holder.fence));
        let version = SnapshotVersion::new(format!("{last:?} {holder_id:?}"));
        Ok(Snapshot::new(resource.clone(), version).holders(holder.into_iter().collect()).fence(last))
    }

    /// Returns `true` if the members that are late may have the locks that make a claim a holder.
    fn may_have_another_holder(&self, outcomes: &Outcomes<MemberView>) -> bool {
        let (views, late) = (answers(outcomes), late(outcomes));
        let seen = || views.iter().filter_map(|view| view.holder.as_ref().map(|seen| seen.id));
        let locks_of = |id: ClaimId| seen().filter(|other| *other == id).count();
        self.holder(&views).is_none() && seen().any(|id| locks_of(id) + late >= self.members.majority())
    }

    /// Returns the claim that has the locks of a majority, and was granted.
    fn holder(&self, views: &[&MemberView]) -> Option<ClaimInfo> {
        let seen = || views.iter().filter_map(|view| view.holder.as_ref());
        let of = |id: ClaimId| seen().filter(move |seen| seen.id == id);
        let id = seen().map(|seen| seen.id).find(|id| of(*id).count() >= self.members.majority())?;
        let fence = of(id).filter_map(|seen| seen.fence).max()?;
        let mut ends: Vec<Duration> = of(id).map(|seen| seen.ends_in).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let first: &Seen = of(id).next()?;
        let since = of(id).filter_map(|seen| seen.since_unix_ms).min();
        // It holds for as long as the last lock that makes a majority.
        let remaining = ends.get(self.members.majority() - 1).copied();
        let info = ClaimInfo::new(id, Share::MUTEX).fence(Some(fence)).since_unix_ms(since);
        Some(info.remaining(remaining).note(first.note.clone()))
    }

    /// Lists the resources that one claim has on a majority, in the order of their names.
    pub(super) async fn summarize(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let call = |member: Arc<dyn Member>| {
            let prefix = prefix.to_owned();
            async move { member.list(&prefix).await }
        };
        let all = |outcomes: &Outcomes<Locks>| outcomes.iter().all(Option::is_some);
        let (mut outcomes, mut rest) = self.members.gather_with_rest(|_, member| call(member), all).await;
        while self.may_complete_another(&outcomes, after) {
            let Some((number, outcome)) = rest.recv().await else { break };
            outcomes[number] = Some(outcome);
        }
        if answers(&outcomes).len() < self.members.majority() {
            return Err(self.members.failure(&outcomes));
        }
        let held =
            counted(&outcomes, after).into_iter().filter(|(_, count)| *count >= self.members.majority());
        let row =
            |((resource, _), _): ((&Resource, ClaimId), usize)| ResourceSummary::new(resource.clone(), 1, 0);
        Ok(held.take(limit).map(row).collect())
    }

    /// Returns `true` if the members that are late may have the locks that some claim lacks to a majority.
    fn may_complete_another(&self, outcomes: &Outcomes<Locks>, after: Option<&Resource>) -> bool {
        let (late, majority) = (late(outcomes), self.members.majority());
        counted(outcomes, after).into_values().any(|count| count < majority && count + late >= majority)
    }
}

/// The locks of one member, and the claims that have them.
type Locks = Vec<(Resource, ClaimId)>;

/// Counts on how many members each claim has its lock, in the order of names.
fn counted<'a>(
    outcomes: &'a Outcomes<Locks>,
    after: Option<&Resource>,
) -> BTreeMap<(&'a Resource, ClaimId), usize> {
    let mut locks = BTreeMap::new();
    for (resource, id) in answers(outcomes).into_iter().flatten() {
        if after.is_none_or(|after| resource > after) {
            *locks.entry((resource, *id)).or_default() += 1;
        }
    }
    locks
}

/// Returns the number of members that have not answered yet.
fn late<T>(outcomes: &Outcomes<T>) -> usize {
    outcomes.iter().filter(|outcome| outcome.is_none()).count()
}

fn answers<T>(outcomes: &Outcomes<T>) -> Vec<&T> {
    outcomes.iter().filter_map(|outcome| outcome.as_ref()?.as_ref().ok()).collect()
}
