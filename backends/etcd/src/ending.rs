//! How claims end: keys are deleted, and requests that may still be under way are made void first.

use leasehold_core::{Claim, ClaimId, Effect, Failure, Release};

use crate::core::Core;
use crate::refusal::Refusal;
use crate::txn::Erase;

/// Ends each claim, granted, waiting or of unknown outcome alike.
pub(crate) async fn release(core: &Core, batch: &[&Claim]) -> Vec<Release> {
    let now = core.now();
    let views: Vec<_> = {
        let roster = core.roster();
        batch.iter().map(|claim| roster.view(claim.id, now)).collect()
    };
    let doubtful = views.iter().flatten().filter(|view| view.doubt).map(|view| view.lease);
    if let Err(refusal) = settle(core, doubtful).await {
        let failure = refusal.into_failure();
        return batch.iter().map(|_| Release::Unknown(failure.clone())).collect();
    }
    let keys: Vec<Erase> = batch.iter().map(|claim| core.layout.erase(claim)).collect();
    let deleted = core.delete(&keys).await;
    let mut roster = core.roster();
    let mut answers = Vec::with_capacity(batch.len());
    for ((claim, view), deleted) in batch.iter().zip(views).zip(deleted) {
        let held = view.as_ref().is_some_and(|view| view.place.is_some() && !view.expired);
        let expired = view.as_ref().is_some_and(|view| view.expired);
        answers.push(match deleted {
            Err(refusal) => Release::Unknown(refusal.into_failure()),
            Ok(answer) => {
                roster.ended(claim.id, now);
                match (answer.value, answer.doubt) {
                    // Its time was over before it was released, whether or not its key had been swept out yet.
                    _ if expired => Release::Gone,
                    (true, _) => Release::Freed,
                    // A try that was not answered may have done it, and did, unless it was lost in the same moment.
                    (false, true) if held => Release::Freed,
                    (false, _) => Release::Gone,
                }
            }
        });
    }
    answers
}

/// Ends claims of this client, for good.
pub(crate) async fn end(core: &Core, claims: &[ClaimId], keys: &[Erase]) -> Result<(), Failure> {
    let now = core.now();
    let doubtful: Vec<i64> = {
        let roster = core.roster();
        let views = claims.iter().filter_map(|claim| roster.view(*claim, now));
        views.filter(|view| view.doubt).map(|view| view.lease).collect()
    };
    settle(core, doubtful.into_iter()).await.map_err(unsettled)?;
    for (claim, deleted) in claims.iter().zip(core.delete(keys).await) {
        deleted.map_err(unsettled)?;
        core.roster().ended(*claim, now);
    }
    Ok(())
}

async fn settle(core: &Core, doubtful: impl Iterator<Item = i64>) -> Result<(), Refusal> {
    let mut leases: Vec<i64> = doubtful.collect();
    leases.sort_unstable();
    leases.dedup();
    core.move_marks(leases).await
}

/// Whatever kept the end from happening, the claim is still there.
fn unsettled(refusal: Refusal) -> Failure {
    let mut failure = refusal.into_failure();
    failure.effect = Effect::Unknown;
    failure
}
