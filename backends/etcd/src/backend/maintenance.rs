//! The task that does what is due: leases that waiters need, claims whose own ttl has ended, places
//! that were abandoned.
//!
//! Ground rules: it decides nothing, the lease table does. Its requests run in tasks of their own, so that
//! a server that hangs delays neither the next look nor another piece of work.

use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::ClaimId;

use crate::client::{LONGEST_PAUSE, Shared};

/// Starts the task. It ends when the client is gone.
pub(crate) fn start(shared: &Arc<Shared>) {
    drop(leasehold_machine::spawn(run(Arc::downgrade(shared))));
}

async fn run(shared: Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let now = shared.now();
        let work = shared.lease_table().due_work(now, ENDS_TOGETHER);
        if !work.keep_waiting.is_empty() {
            drop(leasehold_machine::spawn(keep_waiting(shared.clone(), work.keep_waiting)));
        }
        if !work.keep.is_empty() {
            drop(leasehold_machine::spawn(keep(shared.clone(), work.keep)));
        }
        if !work.end.is_empty() {
            drop(leasehold_machine::spawn(end(shared.clone(), work.end)));
        }
        let pause = work.next.map_or(LONGEST_PAUSE, |next| now.until(next)).clamp(SHORTEST, LONGEST_PAUSE);
        let wake = shared.wake.clone();
        // The client may go meanwhile: this task does not keep it alive.
        drop(shared);
        let woken = tokio::time::timeout(pause, wake.notified()).await.is_ok();
        if woken {
            // Many wakeups at once count as one.
            tokio::time::sleep(SHORTEST).await;
        }
    }
}

async fn keep(shared: Arc<Shared>, leases: Vec<i64>) {
    let round = shared.round(&leases, &[], shared.cluster.limit()).await;
    if !matches!(round, Ok(ref round) if round.confirmed) {
        tracing::debug!(?round, "leases of waiting claims were not confirmed");
        // A waiter on a lease that may have ended must not sleep any longer.
        let now = shared.now();
        shared.lease_table().wake_lapsed(now);
    }
}

/// Keeps the leases alive on which claims only wait. No claim relies on them, so the answer of any
/// server will do, and there is little time: one that does not answer soon is left for the next one.
async fn keep_waiting(shared: Arc<Shared>, leases: Vec<i64>) {
    let asked_at = shared.now();
    let kept = shared.cluster.ask_keepalive(WAIT_LIMIT, |conn| {
        let leases = leases.clone();
        async move { conn.keep_alive(leases).await }
    });
    let kept = kept.await;
    let now = shared.now();
    let mut table = shared.lease_table();
    match kept {
        Ok(kept) => {
            for (id, ttl) in kept.value.ttls {
                match ttl {
                    ..=0 => table.lease_ended(id, now),
                    ttl => table.extended(id, asked_at, Duration::from_secs(ttl.unsigned_abs())),
                }
            }
        }
        Err(refusal) => {
            tracing::debug!(?refusal, "the lease of waiting claims was not kept alive");
            table.wake_lapsed(now);
        }
    }
}

async fn end(shared: Arc<Shared>, claims: Vec<ClaimId>) {
    if let Err(failure) = crate::backend::release::end_due(&shared, &claims).await {
        tracing::debug!(%failure, "claims at their end are still there");
        let now = shared.now();
        let mut table = shared.lease_table();
        claims.iter().for_each(|claim| table.end_again(*claim, now, now.after(AGAIN)));
    }
}

/// The most claims that are ended in one go; what is left follows at once.
const ENDS_TOGETHER: usize = 1_024;
/// Three servers are asked within it, and it ends before a lease for waiting does that was kept alive
/// when it was due.
const WAIT_LIMIT: Duration = Duration::from_millis(1_200);
const SHORTEST: Duration = Duration::from_millis(5);
const AGAIN: Duration = Duration::from_secs(1);
