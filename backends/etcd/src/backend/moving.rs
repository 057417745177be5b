//! Moves of a claim's key from lease to lease: to a short one while it waits, to that of its ttl when
//! it is granted.
//!
//! Ground rules: a move takes effect only if the key was not changed since it was seen, and a move is
//! itself a change. So of two moves that were made by one look at most one takes effect, whenever they
//! arrive. **A claim that was ever seen waiting is granted only by a transaction that moves its key**:
//! afterwards nothing that was sent before can take the key to a lease that is not kept alive for the
//! holder, and if the key went with its short lease, the claim is not granted.

use std::time::Duration;

use leasehold_backend::random;
use leasehold_core::{Backoff, Claim, Moment};

use crate::client::{Shared, WaitScope};
use crate::net::error::Refusal;
use crate::net::member::term;
use crate::protocol::key_slots::Slot;
use crate::protocol::proto::{Compare, PutRequest, Request, RequestOp, TxnRequest};
use crate::protocol::queue::Entry;
use crate::protocol::txn::{changed_at, op};
use crate::state::lease::{Purpose, ServerLease, is_worth_parking};

/// Puts a key on a lease; what is kept under it and its place in the queue stay.
pub(crate) fn put_on(key: &[u8], lease: i64) -> RequestOp {
    op(Request::Put(PutRequest { key: key.to_vec(), value: Vec::new(), lease, ignore_value: true }))
}

/// Moves the key of a claim whose turn has come to the lease of its ttl. Returns which one that is, and
/// when it was asked for; `None` where the key was changed since it was seen, or the lease ended: then
/// it has to be looked at again.
pub(crate) async fn hold(
    shared: &Shared,
    scope: &WaitScope<'_>,
    claim: &Claim,
    entry: &Entry,
) -> Result<Option<(i64, Moment)>, Refusal> {
    let lease = scope.lease(claim).await?;
    // Another client may have put it there, with a note of its own.
    let slot =
        if entry.key == shared.layout.key(claim, Slot::Own) { Slot::Own } else { Slot::Reused(claim.id) };
    let (key, value) = (entry.key.clone(), shared.layout.value(claim, slot));
    let put = PutRequest { key, value, lease: lease.id, ignore_value: false };
    let request = TxnRequest {
        compare: unchanged(entry),
        success: vec![op(Request::Put(put))],
        ..TxnRequest::default()
    };
    match shared.step(claim, &lease, request).await {
        Ok((answer, asked_at)) => {
            tracing::trace!(
                resource = %claim.resource, moved = answer.value.succeeded, term = term(answer.value.header), "held"
            );
            Ok(answer.value.succeeded.then_some((lease.id, asked_at)))
        }
        Err(Refusal::NoSuchLease) => {
            let now = shared.now();
            shared.lease_table().lease_ended(lease.id, now);
            Ok(None)
        }
        Err(refusal) => Err(refusal),
    }
}

/// Moves the key of a claim that waits to the client's lease for waiting, and tries until it is on it.
/// Returns at which revision the key was changed last, as far as that is known.
///
/// # Cancel safety
/// A move that was sent may take effect later, unless the key is changed before.
pub(crate) async fn park(shared: &Shared, claim: &Claim, entry: &Entry) -> i64 {
    let length = crate::state::lease::length_for(claim.ttl);
    if !is_worth_parking(length) {
        return entry.changed;
    }
    let mut backoff = Backoff::new(AGAIN, AGAIN_MOST);
    loop {
        match try_to_park(shared, claim, entry).await {
            Ok(changed) => return changed.unwrap_or(entry.changed),
            Err(refusal) => {
                tracing::debug!(resource = %claim.resource, ?refusal, "a waiting claim was not parked")
            }
        }
        tokio::time::sleep(backoff.failed(random::chance())).await;
    }
}

async fn try_to_park(shared: &Shared, claim: &Claim, entry: &Entry) -> Result<Option<i64>, Refusal> {
    let lease: ServerLease = shared.lease_of(Purpose::Wait).await?;
    // Counted before it is sent: the lease is kept alive whether or not there is an answer.
    shared.lease_table().park(claim.id, lease.id);
    if entry.lease == lease.id {
        return Ok(Some(entry.changed));
    }
    let request = TxnRequest {
        compare: unchanged(entry),
        success: vec![put_on(&entry.key, lease.id)],
        ..TxnRequest::default()
    };
    let asked = shared.cluster.ask(|conn| {
        let request = request.clone();
        async move { conn.txn(request).await }
    });
    match asked.await {
        // If the key was changed meanwhile, the waiter learns of it by the next look.
        Ok(answer) => {
            let revision = answer.value.header.map(|header| header.revision);
            Ok(revision.filter(|_| answer.value.succeeded))
        }
        Err(refusal) => {
            if matches!(refusal, Refusal::NoSuchLease) {
                let now = shared.now();
                shared.lease_table().lease_ended(lease.id, now);
            }
            Err(refusal)
        }
    }
}

fn unchanged(entry: &Entry) -> Vec<Compare> {
    vec![changed_at(&entry.key, entry.changed)]
}

const AGAIN: Duration = Duration::from_millis(100);
const AGAIN_MOST: Duration = Duration::from_secs(2);
