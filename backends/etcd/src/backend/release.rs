//! Ends claims: keys are deleted, and requests that may still be under way are made void first.

use futures_util::future::join_all;
use leasehold_core::{Claim, ClaimId, Failure, Release};

use crate::client::Shared;
use crate::net::cluster::Answer;
use crate::net::error::Refusal;
use crate::protocol::key_slots::Slot;
use crate::protocol::txn::Erase;
use crate::state::lease_table::{PutsBefore, View};

/// Ends each claim, granted, waiting or of unknown outcome alike.
pub(crate) async fn release(shared: &Shared, batch: &[&Claim]) -> Vec<Release> {
    let now = shared.now();
    let views: Vec<_> = {
        let table = shared.lease_table();
        batch.iter().map(|claim| table.view(claim, now)).collect()
    };
    let doubtful = views.iter().flatten().filter(|view| view.doubt).map(|view| view.lease);
    if let Err(refusal) = settle(shared, doubtful).await {
        return Release::unknown_for(batch.len(), &refusal.into_failure());
    }
    let both = || batch.iter().zip(&views);
    let key = |(claim, view): (&&Claim, &Option<View>)| match view {
        Some(view) => view.erase.clone(),
        None => shared.layout.erase(claim, Slot::Own),
    };
    let keys: Vec<Erase> = both().map(key).collect();
    let ids: Vec<ClaimId> = batch.iter().map(|claim| claim.id).collect();
    let deleted = delete(shared, &ids, &keys).await;
    let deleted = both().zip(deleted).map(async |((claim, view), deleted)| match (view, deleted) {
        (None, Ok(Answer { value: false, doubt })) if shared.layout.has_slots() => {
            let found = shared.delete_from_slot(claim).await?;
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
pub(crate) async fn end(shared: &Shared, claims: &[ClaimId], keys: &[Erase]) -> Result<(), Failure> {
    settle_all(shared, claims).await?;
    for deleted in delete(shared, claims, keys).await {
        deleted.map_err(Refusal::into_uncertain)?;
    }
    Ok(())
}

/// Ends those of the claims that are still at their end, for good.
pub(crate) async fn end_due(shared: &Shared, claims: &[ClaimId]) -> Result<(), Failure> {
    settle_all(shared, claims).await?;
    let now = shared.now();
    let due = shared.lease_table().erasing_due(claims, now);
    let ids: Vec<ClaimId> = due.iter().map(|(claim, ..)| *claim).collect();
    let counted: Vec<_> = due.iter().map(|(.., puts_before)| Some(*puts_before)).collect();
    let keys: Vec<Erase> = due.into_iter().map(|(_, erase, _)| erase).collect();
    for deleted in delete_counted(shared, &ids, &counted, &keys).await {
        deleted.map_err(Refusal::into_uncertain)?;
    }
    Ok(())
}

/// Deletes the keys of claims. The states of tracked claims are updated before the request is
/// sent and when it is answered.
async fn delete(shared: &Shared, claims: &[ClaimId], keys: &[Erase]) -> Vec<Result<Answer<bool>, Refusal>> {
    let counted: Vec<_> = {
        let mut table = shared.lease_table();
        claims.iter().zip(keys).map(|(claim, erase)| table.erasing(*claim, &erase.key)).collect()
    };
    delete_counted(shared, claims, &counted, keys).await
}

/// Deletes the keys of claims, of which some are counted as about to be deleted.
async fn delete_counted(
    shared: &Shared,
    claims: &[ClaimId],
    counted: &[Option<PutsBefore>],
    keys: &[Erase],
) -> Vec<Result<Answer<bool>, Refusal>> {
    let now = shared.now();
    let deleted = shared.delete(keys).await;
    let mut table = shared.lease_table();
    for (((claim, erase), counted), deleted) in claims.iter().zip(keys).zip(counted).zip(&deleted) {
        match (deleted, *counted) {
            (Ok(answer), Some(puts_before)) => {
                table.erased(*claim, &erase.key, puts_before, answer.doubt, now);
            }
            (Ok(Answer { doubt: false, .. }), None) | (Err(_), Some(_)) => {}
            _ => table.erases_late(*claim),
        }
    }
    drop(table);
    deleted
}

async fn settle_all(shared: &Shared, claims: &[ClaimId]) -> Result<(), Failure> {
    let doubtful: Vec<i64> = {
        let table = shared.lease_table();
        claims.iter().filter_map(|claim| table.unsettled_lease(*claim)).collect()
    };
    settle(shared, doubtful.into_iter()).await.map_err(Refusal::into_uncertain)
}

async fn settle(shared: &Shared, doubtful: impl Iterator<Item = i64>) -> Result<(), Refusal> {
    let mut leases: Vec<i64> = doubtful.collect();
    leases.sort_unstable();
    leases.dedup();
    shared.move_marks(leases).await
}
