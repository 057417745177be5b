//! The task that does what is due: leases that waiters need, claims whose own ttl has ended, places
//! that were abandoned.
//!
//! Ground rules: it decides nothing, the lease table does. Its requests run in tasks of their own, so that
//! a server that hangs delays neither the next look nor another piece of work.

use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::ClaimId;

use crate::client::{Core, LONGEST_PAUSE};
use crate::protocol::txn::Erase;

/// Starts the task. It ends when the client is gone.
pub(crate) fn start(core: &Arc<Core>) {
    drop(leasehold_machine::spawn(tend(Arc::downgrade(core))));
}

async fn tend(core: Weak<Core>) {
    loop {
        let Some(core) = core.upgrade() else { return };
        let now = core.now();
        let chores = core.roster().chores(now, ENDS_TOGETHER);
        if !chores.keep_waiting.is_empty() {
            drop(leasehold_machine::spawn(keep_waiting(core.clone(), chores.keep_waiting)));
        }
        if !chores.keep.is_empty() {
            drop(leasehold_machine::spawn(keep(core.clone(), chores.keep)));
        }
        if !chores.end.is_empty() {
            drop(leasehold_machine::spawn(end(core.clone(), chores.end)));
        }
        let pause = chores.next.map_or(LONGEST_PAUSE, |next| now.until(next)).clamp(SHORTEST, LONGEST_PAUSE);
        let nudge = core.nudge.clone();
        // The client may go meanwhile: this task does not keep it alive.
        drop(core);
        let nudged = tokio::time::timeout(pause, nudge.notified()).await.is_ok();
        if nudged {
            // Many nudges at once are one.
            tokio::time::sleep(SHORTEST).await;
        }
    }
}

async fn keep(core: Arc<Core>, leases: Vec<i64>) {
    let round = core.round(&leases, &[], core.cluster.limit()).await;
    if !matches!(round, Ok(ref round) if round.confirmed) {
        tracing::debug!(?round, "leases of waiting claims were not confirmed");
        // A waiter on a lease that may have ended must not sleep on.
        let now = core.now();
        core.roster().ring_lapsed(now);
    }
}

/// Keeps the leases alive on which claims only wait. No claim counts on them, so the word of any server
/// will do, and there is little time: one that does not answer soon is left for the next one.
async fn keep_waiting(core: Arc<Core>, leases: Vec<i64>) {
    let asked_at = core.now();
    let kept = core.cluster.ask_to_keep(WAIT_LIMIT, |line| {
        let leases = leases.clone();
        async move { line.keep(leases).await }
    });
    let kept = kept.await;
    let now = core.now();
    let mut roster = core.roster();
    match kept {
        Ok(kept) => {
            for (id, ttl) in kept.value.ttls {
                match ttl {
                    ..=0 => roster.lease_ended(id, now),
                    ttl => roster.kept(id, asked_at, Duration::from_secs(ttl.unsigned_abs())),
                }
            }
        }
        Err(refusal) => {
            tracing::debug!(?refusal, "the lease of waiting claims was not kept alive");
            roster.ring_lapsed(now);
        }
    }
}

async fn end(core: Arc<Core>, claims: Vec<(ClaimId, Erase)>) {
    let (ids, keys): (Vec<ClaimId>, Vec<Erase>) = claims.into_iter().unzip();
    if let Err(failure) = crate::backend::release::end(&core, &ids, &keys).await {
        tracing::debug!(%failure, "claims at their end are still there");
        let again = core.now().after(AGAIN);
        let mut roster = core.roster();
        ids.iter().for_each(|claim| roster.end_later(*claim, again));
    }
}

/// The most claims that are ended in one go; what is left follows at once.
const ENDS_TOGETHER: usize = 1_024;
/// Three servers are asked within it, and it ends before a lease for waiting does that was kept alive
/// when it was due.
const WAIT_LIMIT: Duration = Duration::from_millis(1_200);
const SHORTEST: Duration = Duration::from_millis(5);
const AGAIN: Duration = Duration::from_secs(1);
