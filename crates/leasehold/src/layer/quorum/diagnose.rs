//! Findings about the members: how many of them have a vote, and why the others have none.

use leasehold_core::quorum::MemberState;
use leasehold_core::{Failure, Finding, Severity};

use super::Quorum;

impl Quorum {
    /// Returns one finding about all members.
    pub(super) async fn findings(&self) -> Vec<Finding> {
        let outcomes = self.arming.read_all().await;
        let names = self.members.names();
        let missing: Vec<String> = names
            .iter()
            .zip(&outcomes)
            .filter_map(|(name, outcome)| trouble(name, outcome.as_ref()))
            .collect();
        let (count, majority) = (self.members.count(), self.members.majority());
        let armed = count - missing.len();
        let found = if missing.is_empty() {
            format!("all {count} servers are armed")
        } else {
            format!("{armed} of {count} servers are armed: {}", missing.join("; "))
        };
        let finding = if missing.is_empty() {
            let meaning = format!("{} of them may fail at any moment", count - majority);
            Finding::new("servers", Severity::Good, found).meaning(meaning)
        } else if armed >= majority {
            let meaning = format!("locks are granted; {} more may fail", armed - majority);
            let advice = "bring them back; a server that lost its memory is armed by itself once max-ttl has \
                          passed since that was seen";
            Finding::new("servers", Severity::Risk, found).meaning(meaning).advice(advice)
        } else {
            let meaning = format!("nothing is granted: {majority} are needed");
            let unarmed = outcomes.iter().filter(|outcome| is_unarmed(outcome.as_ref())).count();
            // Those that do not answer may be armed, and locks may be held on them.
            let advice = if count - unarmed >= majority {
                "bring back those that do not answer"
            } else {
                "a majority has no memory: if all are new, or when no lock of before is held any more, arm them by \
                 leasehold redlock rearm"
            };
            Finding::new("servers", Severity::Broken, found).meaning(meaning).advice(advice)
        };
        vec![finding]
    }
}

/// Returns `true` if a member answered that it has no mark of its present run.
fn is_unarmed(outcome: Option<&Result<MemberState, Failure>>) -> bool {
    matches!(outcome, Some(Ok(state)) if state.armed().is_none())
}

/// Returns why a member has no vote; `None` if it has one.
fn trouble(name: &str, outcome: Option<&Result<MemberState, Failure>>) -> Option<String> {
    match outcome {
        None => Some(format!("{name} is silent")),
        Some(Err(failure)) => Some(failure.detail().to_owned()),
        Some(Ok(state)) => state.trouble(name),
    }
}
