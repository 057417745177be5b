//! Ends claims: keys are deleted, and requests that may still be under way are made void first.

use futures_util::future::join_all;
use leasehold_core::{Claim, ClaimId, Effect, Failure, Release};

use crate::client::Core;
use crate::net::cluster::Answer;
use crate::net::error::Refusal;
use crate::protocol::key_slots::Slot;
use crate::protocol::txn::Erase;
use crate::state::lease_table::View;

/// Ends each claim, granted, waiting or of unknown outcome alike.
pub(crate) async fn release(core: &Core, batch: &[&Claim]) -> Vec<Release> {
    let now = core.now();
    let views: Vec<_> = {
        let roster = core.roster();
        batch.iter().map(|claim| roster.view(claim, now)).collect()
    };
    let doubtful = views.iter().flatten().filter(|view| view.doubt).map(|view| view.lease);
    if let Err(refusal) = settle(core, doubtful).await {
        let failure = refusal.into_failure();
        return batch.iter().map(|_| Release::Unknown(failure.clone())).collect();
    }
    let both = || batch.iter().zip(&views);
    let key = |(claim, view): (&&Claim, &Option<View>)| match view {
        Some(view) => view.erase.clone(),
        None => core.layout.erase(claim, Slot::Own),
    };
    let keys: Vec<Erase> = both().map(key).collect();
    let seated: Vec<Option<ClaimId>> = both().map(|(claim, view)| view.as_ref().map(|_| claim.id)).collect();
    let deleted = delete(core, &seated, &keys).await;
    let deleted = both().zip(deleted).map(async |((claim, view), deleted)| match (view, deleted) {
        (None, Ok(Answer { value: false, doubt })) if core.layout.has_slots() => {
            let found = core.delete_from_slot(claim).await?;
            Ok(Answer { doubt: doubt || found.doubt, ..found })
        }
        (_, deleted) => deleted,
    });
    let deleted = join_all(deleted).await;
    let mut answers = Vec::with_capacity(batch.len());
    for (view, deleted) in views.iter().zip(deleted) {
        let held = view.as_ref().is_some_and(|view| view.place.is_some() && !view.expired);
        let expired = view.as_ref().is_some_and(|view| view.expired);
        answers.push(match deleted {
            Err(refusal) => Release::Unknown(refusal.into_failure()),
            Ok(answer) => match (answer.value, answer.doubt) {
                // Its time was over before it was released, whether or not its key had been swept out yet.
                _ if expired => Release::Gone,
                (true, _) => Release::Freed,
                // A try that was not answered may have done it, and did, unless it was lost in the same
                // moment.
                (false, true) if held => Release::Freed,
                (false, _) => Release::Gone,
            },
        });
    }
    answers
}

/// Ends claims of this client, for good.
pub(crate) async fn end(core: &Core, claims: &[ClaimId], keys: &[Erase]) -> Result<(), Failure> {
    let doubtful: Vec<i64> = {
        let roster = core.roster();
        claims.iter().filter_map(|claim| roster.is_unsettled(*claim)).collect()
    };
    settle(core, doubtful.into_iter()).await.map_err(unsettled)?;
    let seated: Vec<Option<ClaimId>> = claims.iter().copied().map(Some).collect();
    for deleted in delete(core, &seated, keys).await {
        deleted.map_err(unsettled)?;
    }
    Ok(())
}

/// Deletes the keys of claims. Seats of those that have one are updated before the request is sent and
/// when it is answered.
async fn delete(
    core: &Core,
    seated: &[Option<ClaimId>],
    keys: &[Erase],
) -> Vec<Result<Answer<bool>, Refusal>> {
    let now = core.now();
    {
        let mut roster = core.roster();
        seated.iter().flatten().for_each(|claim| roster.erasing(*claim));
    }
    let deleted = core.delete(keys).await;
    let mut roster = core.roster();
    for (claim, deleted) in seated.iter().zip(&deleted) {
        if let (Some(claim), Ok(answer)) = (claim, deleted) {
            roster.erased(*claim, answer.doubt, now);
        }
    }
    drop(roster);
    deleted
}

async fn settle(core: &Core, doubtful: impl Iterator<Item = i64>) -> Result<(), Refusal> {
    let mut leases: Vec<i64> = doubtful.collect();
    leases.sort_unstable();
    leases.dedup();
    core.move_marks(leases).await
}

/// Returns the failure for an end that did not happen: the claim still exists.
fn unsettled(refusal: Refusal) -> Failure {
    let mut failure = refusal.into_failure();
    failure.effect = Effect::Unknown;
    failure
}
