//! Renews leases: each lease once, for any number of claims on it, and checks each claim's key in the same
//! round.
//!
//! Ground rules: `Renewed` says that the claim's own key was there, created when it was granted, and
//! that the lease it is attached to runs for another ttl from before the question. The look at the keys
//! is also the quorum that makes the keep-alive count, so it costs nothing extra, and a claim that was
//! broken is found out by its next renewal.
//!
//! However many claims are renewed at once, each transaction has a time limit of its own, its answer
//! counts independent of the others, and few are under way together: a server that is slow renews fewer
//! claims then, instead of none.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::{join, join_all};
use leasehold_core::{Claim, Effect, Failure, FailureKind, LossCause, Moment, Renew, Renewal};
use tokio::time::timeout;

use crate::client::Shared;
use crate::protocol::layout::key_request;
use crate::protocol::proof::EtcdProof;
use crate::protocol::proto::KeyValue;

/// One renewal under way.
struct Item<'a, 'b> {
    renew: &'a Renew<'b>,
    key: Vec<u8>,
    /// The revision that created its key, where that is known.
    place: i64,
    /// The lease that its key is believed to be on; 0 where that has to be seen first.
    lease: i64,
    /// `true` if the lease table of this client tracks it.
    is_tracked: bool,
    answer: Option<Renewal>,
}

pub(crate) async fn renew(shared: &Shared, batch: &[Renew<'_>]) -> Vec<Renewal> {
    let asked_at = shared.now();
    // Those of one ttl go together, the shortest first: the shortest is what bounds the wait for an answer.
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_by_key(|number| batch[*number].claim.ttl);
    let sorted: Vec<Renew<'_>> = order.iter().map(|number| batch[*number]).collect();
    let mut parts = sorted.chunks(shared.operations_max()).map(|part| renew_part(shared, part, asked_at));
    let Some(first) = parts.next() else { return Vec::new() };
    // The first one extends the leases for the others too, so they give it a little time.
    let mut first = std::pin::pin!(first);
    let head_start = shared.cluster.limit() / HEAD_START;
    let (first, others) = match timeout(head_start, first.as_mut()).await {
        Ok(first) => (first, join_all(parts).await),
        Err(_) => join(first, join_all(parts)).await,
    };
    let mut answers: Vec<Option<Renewal>> = batch.iter().map(|_| None).collect();
    for (number, answer) in order.into_iter().zip(first.into_iter().chain(others.into_iter().flatten())) {
        answers[number] = Some(answer);
    }
    answers.into_iter().map(|answer| answer.unwrap_or_else(unsteady)).collect()
}

/// Renews as many claims as one transaction can look at, when it is their turn.
async fn renew_part(shared: &Shared, part: &[Renew<'_>], asked_at: Moment) -> Vec<Renewal> {
    // A later answer would be useless.
    let shortest = part.iter().map(|renew| renew.claim.ttl).min().unwrap_or_default();
    let end = asked_at.after(shortest);
    // All answers of a batch come together: one part that waits for long would hold back what the
    // others confirmed.
    let turn_by = asked_at.after(shortest / TURN_PART);
    let Ok(_permit) = timeout(shared.now().until(turn_by), shared.renewals.acquire(end)).await else {
        let detail = "so many renewals were under way that the server did not come to this one in time: hold fewer locks in one process, or longer ones";
        return part.iter().map(|_| Renewal::Unknown(Failure::unavailable(detail))).collect();
    };
    let mut items: Vec<Item<'_, '_>> = part.iter().map(|renew| item(shared, renew, asked_at)).collect();
    let limit = shared.cluster.limit().min(shortest).max(MIN_LIMIT);
    // A key may turn out to be on another lease, which is then kept in the next turn.
    for _ in 0..MAX_ROUNDS {
        if items.iter().all(|item| item.answer.is_some()) {
            break;
        }
        renew_round(shared, &mut items, asked_at, limit).await;
    }
    items.into_iter().map(|item| item.answer.unwrap_or_else(unsteady)).collect()
}

fn unsteady() -> Renewal {
    Renewal::Unknown(Failure::unavailable("its key was moved from lease to lease meanwhile"))
}

fn item<'a, 'b>(shared: &Shared, renew: &'a Renew<'b>, asked_at: Moment) -> Item<'a, 'b> {
    let view = shared.lease_table().view(renew.claim, shared.now());
    let queue = shared.layout.queue(&renew.claim.resource);
    let proven = renew.proof.get::<EtcdProof>().filter(|proof| queue.contains(&proof.key));
    let key = match (&view, proven) {
        (Some(view), _) => view.erase.key.clone(),
        (None, Some(proof)) => proof.key.clone(),
        (None, None) => Vec::new(),
    };
    let (mut place, mut lease, mut answer) = (0, 0, None);
    let is_tracked = view.is_some();
    // A claim that asks again while its question waits for its turn is answered by one look.
    let seen = view.as_ref().is_some_and(|view| view.seen_at >= asked_at);
    match (view, proven) {
        (Some(view), proven) => match view.place {
            Some(granted) if !view.expired && proven.is_none_or(|proof| proof.create_revision == granted) => {
                (place, lease) = (granted, view.lease);
                if seen && shared.lease_table().is_covered(renew.claim, asked_at) {
                    answer = Some(renewed(shared, renew.claim, asked_at));
                }
            }
            // It waits, its time is over, or it was lost and granted once more under another fence.
            _ => answer = Some(Renewal::Lost),
        },
        // Granted by another client of the same process or before a restart of this one.
        (None, Some(proof)) => place = proof.create_revision,
        (None, None) => answer = Some(Renewal::Lost),
    }
    Item { renew, key, place, lease, is_tracked, answer }
}

async fn renew_round(shared: &Shared, items: &mut [Item<'_, '_>], asked_at: Moment, limit: Duration) {
    let mut open: Vec<&mut Item<'_, '_>> = items.iter_mut().filter(|item| item.answer.is_none()).collect();
    let leases: BTreeSet<i64> = open.iter().map(|item| item.lease).filter(|lease| *lease != 0).collect();
    let leases: Vec<i64> =
        leases.into_iter().filter(|lease| is_short(shared, *lease, &open, asked_at)).collect();
    let checks: Vec<_> = open.iter().map(|item| key_request(&item.key)).collect();
    let sent_at = shared.now();
    let round = match shared.round(&leases, &checks, limit).await {
        Ok(round) => round,
        Err(refusal) => {
            let failure = refusal.into_failure();
            open.iter_mut().for_each(|item| item.answer = Some(Renewal::Unknown(failure.clone())));
            return;
        }
    };
    let mut found = round.found.into_iter();
    for item in open {
        let kv = found.next().and_then(|found| found.kvs.into_iter().next());
        judge(shared, item, kv, &round.ended, round.confirmed, asked_at);
        if matches!(item.answer, Some(Renewal::Renewed)) {
            shared.lease_table().seen(item.renew.claim.id, sent_at);
        }
    }
}

/// Returns `true` if the lease has to be extended for any of these; one that was extended a moment ago
/// covers them already.
fn is_short(shared: &Shared, lease: i64, open: &[&mut Item<'_, '_>], asked_at: Moment) -> bool {
    let table = shared.lease_table();
    let Some(lease) = table.lease(lease) else { return true };
    open.iter().any(|item| item.lease == lease.id && lease.is_short_of(item.renew.claim.ttl, asked_at))
}

fn judge(
    shared: &Shared,
    item: &mut Item<'_, '_>,
    kv: Option<KeyValue>,
    ended: &[i64],
    confirmed: bool,
    asked_at: Moment,
) {
    let claim = item.renew.claim;
    let Some(kv) = kv.filter(|kv| kv.create_revision == item.place && !ended.contains(&kv.lease)) else {
        shared.lease_table().lost(claim.id, LossCause::Gone, asked_at);
        item.answer = Some(Renewal::Lost);
        return;
    };
    if !confirmed {
        let detail = "the cluster was electing a leader, so it is not certain that the lease was extended";
        item.answer = Some(Renewal::Unknown(Failure::unanswered(detail)));
        return;
    }
    if kv.lease != item.lease {
        item.lease = kv.lease;
        return;
    }
    let covered = shared.lease_table().lease(item.lease).map(|lease| !lease.is_short_of(claim.ttl, asked_at));
    item.answer = Some(match covered {
        Some(false) => {
            let detail = format!(
                "it was taken with a shorter ttl than {:?} and cannot be renewed for that",
                claim.ttl
            );
            Renewal::Unknown(Failure::new(FailureKind::Invalid, Effect::Unknown, detail))
        }
        _ if !item.is_tracked => Renewal::Renewed,
        _ => renewed(shared, claim, asked_at),
    });
}

fn renewed(shared: &Shared, claim: &Claim, asked_at: Moment) -> Renewal {
    match shared.lease_table().renewed(claim, asked_at) {
        true => Renewal::Renewed,
        // Its end by the local clock came while the answer was under way, and it may be swept out already.
        false => Renewal::Lost,
    }
}

/// The number of looks at a batch in one call.
const MAX_ROUNDS: u32 = 3;
/// The part of the time for a request that the first look of a batch is ahead of the others.
const HEAD_START: u32 = 8;
/// The part of its ttl for which a renewal waits for its turn. The engine asks again.
const TURN_PART: u32 = 3;
const MIN_LIMIT: Duration = Duration::from_millis(200);
