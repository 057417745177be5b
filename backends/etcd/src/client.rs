//! The state that all calls of one client share, and the steps that more than one of them takes.
//!
//! Ground rules: each extension of a lease is counted from before it was asked for, and only when the
//! raft term proves that the leader that extended it was the leader (see [`Shared::round`]). No lock is
//! held during a request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::future::{join, join_all, try_join_all};
use leasehold_core::{Claim, ClaimId, Clock, Moment, Resource};
use tokio::sync::Notify;
use tonic::Status;

use crate::net::cluster::{Answer, Cluster};
use crate::net::error::Refusal;
use crate::net::limiter::Limiter;
use crate::net::member::{Connection, KeepAliveReply, term};
use crate::net::watcher::Watcher;
use crate::protocol::key_slots::{KeyRef, ReusedBy, Slot};
use crate::protocol::layout::{Layout, key_request};
use crate::protocol::proto::{
    DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse, Request, Response,
    ResponseOp, TxnRequest, TxnResponse,
};
use crate::protocol::queue::Entry;
use crate::protocol::txn::{Erase, created_at, into_range, op};
use crate::protocol::version::Watches;
use crate::state::lease::{Purpose, ServerLease, length_for};
use crate::state::lease_table::{Access, LeaseChoice, LeaseTable};

/// The state of one client.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) layout: Layout,
    pub(crate) watcher: Watcher,
    pub(crate) watches: Watches,
    /// Wakes the maintenance task, when something is due earlier than it knows.
    pub(crate) wake: Arc<Notify>,
    lease_table: Mutex<LeaseTable>,
    /// The engine's clock; known from the first claim on, and before that there is nothing to count.
    clock: OnceLock<Arc<dyn Clock>>,
    /// A lease was opened, or was not.
    opened: Notify,
    /// Limits renewals; those whose claims end first go first.
    pub(crate) renewals: Limiter,
    /// Limits acquisitions, so that for any number of them, the server has little to do before it comes to a
    /// renewal.
    pub(crate) acquisitions: Limiter,
    /// Limits releases.
    releases: Limiter,
    operations_max: AtomicUsize,
}

/// The result of one round of keep-alives and checks.
#[derive(Debug)]
pub(crate) struct Round {
    /// The leases that do not exist any more.
    pub(crate) ended: Vec<i64>,
    /// The answer of each check, in order.
    pub(crate) found: Vec<RangeResponse>,
    /// `true` if the leases that do exist are extended for certain.
    pub(crate) confirmed: bool,
}

impl Shared {
    pub(crate) fn new(cluster: Arc<Cluster>, layout: Layout, watches: Watches) -> Shared {
        Shared {
            watches,
            watcher: Watcher::start(cluster.clone()),
            cluster,
            layout,
            wake: Arc::default(),
            lease_table: Mutex::default(),
            clock: OnceLock::new(),
            opened: Notify::new(),
            renewals: Limiter::new(RENEWALS_AT_ONCE),
            acquisitions: Limiter::new(ACQUISITIONS_AT_ONCE),
            releases: Limiter::new(RELEASES_AT_ONCE),
            operations_max: AtomicUsize::new(OPERATIONS_MAX),
        }
    }

    pub(crate) fn lease_table(&self) -> Access<'_> {
        Access::to(&self.lease_table)
    }

    /// Takes over the engine's clock.
    pub(crate) fn adopt(&self, clock: &Arc<dyn Clock>) {
        self.clock.get_or_init(|| clock.clone());
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.get().map_or(Moment::START, |clock| clock.now())
    }

    /// Wakes the maintenance task if something is due at that moment and the task would look too late.
    fn wake_before(&self, due: Option<Moment>) {
        if due.is_some_and(|due| due < self.now().after(LONGEST_PAUSE)) {
            self.wake.notify_one();
        }
    }

    /// Returns a lease for a claim of this ttl.
    pub(crate) async fn lease_for(&self, ttl: Duration) -> Result<ServerLease, Refusal> {
        self.lease_of(Purpose::Hold(length_for(ttl))).await
    }

    pub(crate) async fn lease_of(&self, purpose: Purpose) -> Result<ServerLease, Refusal> {
        let mut waited_since = None;
        loop {
            let opened = self.opened.notified();
            let choice = {
                let mut table = self.lease_table();
                // All that wait for an opening share its failure: one after the other they would fail far too late.
                if let Some(refusal) = waited_since.and_then(|since| table.opening_refusal(purpose, since)) {
                    // Nothing was sent for this one.
                    return Err(Refusal::Failed(refusal.without_effect()));
                }
                table.choose_lease(purpose, self.now())
            };
            match choice {
                LeaseChoice::On(lease) => return Ok(lease),
                LeaseChoice::Open => {
                    // Released on every way out, after the lease or the failure is known to others.
                    let _reservation = Reservation { shared: self, purpose };
                    let opened = self.open_lease(purpose).await;
                    if let Err(refusal) = &opened {
                        self.lease_table().opening_failed(purpose, refusal.clone());
                    }
                    return opened;
                }
                // Bounded by the limit of the request that they wait for.
                LeaseChoice::Soon(failed) => {
                    waited_since.get_or_insert(failed);
                    tokio::select! {
                        () = opened => {}
                        () = tokio::time::sleep(LEASE_POLL) => {}
                    }
                }
            }
        }
    }

    async fn open_lease(&self, purpose: Purpose) -> Result<ServerLease, Refusal> {
        let seconds = purpose.seconds();
        let mut last = Refusal::LeaseExists;
        for _ in 0..OPENINGS {
            // A number of our own makes the request repeatable.
            let id = (getrandom::u64().unwrap_or(seconds) >> 1).max(1) as i64;
            let request = LeaseGrantRequest { ttl: seconds as i64, id };
            let asked_at = self.now();
            let granted = self.cluster.ask(|conn| {
                let request = request.clone();
                async move { conn.grant(request).await }
            });
            match granted.await {
                Ok(granted) => {
                    let ttl = Duration::from_secs(granted.value.ttl.unsigned_abs());
                    return Ok(self.lease_table().opened(granted.value.id, purpose, ttl, asked_at));
                }
                // It was granted to an earlier try, or the number was taken: its ttl is not known, so
                // another is asked for.
                Err(Refusal::LeaseExists) => last = Refusal::LeaseExists,
                // A lease that was opened all the same ends by itself: nothing is put on it.
                Err(refusal @ Refusal::NoSpace(_)) => return Err(Refusal::Failed(refusal.without_effect())),
                Err(refusal) => return Err(refusal),
            }
        }
        Err(last)
    }

    /// Runs one transaction of one claim on its lease, which is kept alive in parallel if it would not cover the
    /// claim.
    ///
    /// Also returns when the request was sent.
    pub(crate) async fn step(
        &self,
        claim: &Claim,
        lease: &ServerLease,
        request: TxnRequest,
    ) -> Result<(Answer<TxnResponse>, Moment), Refusal> {
        let asked_at = self.now();
        let keep = lease.is_short_of(claim.ttl, asked_at);
        let id = lease.id;
        let answer = self.cluster.ask(|conn| {
            let request = request.clone();
            async move {
                if !keep {
                    return Ok((conn.txn(request).await?, None));
                }
                let (done, kept) = join(conn.txn(request), conn.keep_alive(vec![id])).await;
                Ok((done?, kept.ok()))
            }
        });
        let Answer { value: (done, kept), doubt } = answer.await?;
        if let Some(kept) = kept {
            let term = term(done.header);
            self.record_keepalive(&kept, term, asked_at);
        }
        Ok((Answer { value: done, doubt }, asked_at))
    }

    /// Keeps leases alive and looks at keys, in one go.
    ///
    /// A leader that was deposed without knowing it answers keep-alives as before, while its successor
    /// counts the leases down. So a keep-alive counts only if a request that needs a quorum was
    /// answered *under the same term* by the same server, and was asked no earlier: had another leader
    /// been elected before the quorum answered, the term would have risen; one that is elected
    /// afterwards begins by giving every lease its full ttl.
    pub(crate) async fn round(
        &self,
        leases: &[i64],
        checks: &[RangeRequest],
        limit: Duration,
    ) -> Result<Round, Refusal> {
        // A lease without anything to look at is confirmed by a look at nothing.
        let idle = [key_request(&self.layout.probe())];
        let checks = if checks.is_empty() { &idle[..] } else { checks };
        let mut tries = 0;
        loop {
            tries += 1;
            let asked_at = self.now();
            let most = self.operations_max();
            let asked = self.cluster.ask_keepalive(limit, |conn| round_on(conn, leases, checks, most)).await;
            let (kept, looked) = match asked {
                Ok(answer) => answer.value,
                Err(Refusal::TooManyOperations) if self.fewer_operations(most) => continue,
                Err(refusal) => return Err(refusal),
            };
            let mut terms = looked.iter().map(|done| term(done.header));
            let first = terms.next().unwrap_or_default();
            let term = if terms.all(|term| term == first) { first } else { 0 };
            let found = looked.into_iter().flat_map(|done| done.responses).filter_map(into_range).collect();
            let Some(kept) = kept else { return Ok(Round { ended: Vec::new(), found, confirmed: true }) };
            let confirmed = self.record_keepalive(&kept, term, asked_at);
            if confirmed || tries == ROUNDS {
                let gone = kept.ttls.iter().filter(|(_, ttl)| confirmed && **ttl <= 0);
                return Ok(Round { ended: gone.map(|(id, _)| *id).collect(), found, confirmed });
            }
        }
    }

    /// Records the effect of a keep-alive. Returns whether it counts.
    fn record_keepalive(&self, kept: &KeepAliveReply, term: u64, asked_at: Moment) -> bool {
        let confirmed = kept.term == term && term != 0;
        if !confirmed {
            return false;
        }
        let now = self.now();
        let mut table = self.lease_table();
        for (id, ttl) in &kept.ttls {
            match *ttl {
                ..=0 => table.lease_ended(*id, now),
                ttl => table.extended(*id, asked_at, Duration::from_secs(ttl.unsigned_abs())),
            }
        }
        true
    }

    /// Returns the key of a claim; its own key where this client does not track the claim.
    pub(crate) fn key_ref(&self, claim: &Claim) -> KeyRef {
        let known = self.lease_table().key_ref(claim);
        known.unwrap_or_else(|| self.key_ref_in(claim, Slot::Own))
    }

    pub(crate) fn key_ref_in(&self, claim: &Claim, slot: Slot) -> KeyRef {
        let reused_by = if self.layout.has_slots() { ReusedBy::Us } else { ReusedBy::None };
        KeyRef { slot, erase: self.layout.erase(claim, slot), reused_by }
    }

    /// Removes a claim that this client does not track from a queue: for an operator that breaks it, or a second
    /// release.
    ///
    /// It may be in a slot of another client, which only the value shows. Returns whether it existed.
    pub(crate) async fn delete_from_slot(&self, claim: &Claim) -> Result<Answer<bool>, Refusal> {
        let Some(entry) = self.queue(&claim.resource).await?.into_iter().find(|entry| entry.id == claim.id)
        else {
            return Ok(Answer { value: false, doubt: false });
        };
        // Only as long as it is that claim's turn.
        let erase = Erase { only_if: vec![created_at(&entry.key, entry.place)], key: entry.key };
        self.delete(&[erase]).await.pop().unwrap_or(Ok(Answer { value: false, doubt: false }))
    }

    /// Returns all claims in a queue, with their ids, to end one of them.
    async fn queue(&self, resource: &Resource) -> Result<Vec<Entry>, Refusal> {
        let request = self.layout.queue_request(&self.layout.queue(resource));
        let asked = self.cluster.ask(|conn| {
            let request = request.clone();
            async move { conn.into_ending().range(request).await }
        });
        self.layout.read_queue(resource, &asked.await?.value.kvs).map_err(Refusal::Failed)
    }

    /// Moves the marks of leases on, so that requests that were sent under the old ones do nothing when
    /// they arrive.
    pub(crate) async fn move_marks(&self, leases: impl IntoIterator<Item = i64>) -> Result<(), Refusal> {
        for lease in leases {
            let mark = self.layout.mark(lease);
            let put = PutRequest { key: mark.clone(), lease, ..PutRequest::default() };
            let request = TxnRequest {
                success: vec![op(Request::Put(put)), op(Request::Range(key_request(&mark)))],
                ..TxnRequest::default()
            };
            let moved = self.cluster.ask(|conn| {
                let request = request.clone();
                async move { conn.into_ending().txn(request).await }
            });
            match moved.await {
                Ok(answer) => {
                    let found = answer.value.responses.into_iter().filter_map(into_range).next();
                    let version = found.and_then(|found| found.kvs.first().map(|kv| kv.version));
                    self.lease_table().mark_advanced(lease, version.unwrap_or_default());
                }
                // Nothing can be put under a lease that ended.
                Err(Refusal::NoSuchLease) => {
                    let now = self.now();
                    self.lease_table().lease_ended(lease, now);
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// Deletes keys. Returns in order whether each existed, and whether that may be the work of an
    /// earlier try.
    pub(crate) async fn delete(&self, keys: &[Erase]) -> Vec<Result<Answer<bool>, Refusal>> {
        let most = self.operations_max();
        // A condition holds for a whole transaction.
        let chunks = keys.chunk_by(|one, next| one.only_if.is_empty() && next.only_if.is_empty());
        let chunks: Vec<_> = chunks.flat_map(|keys| keys.chunks(most)).collect();
        let chunks = chunks.into_iter().map(|keys| self.delete_together(keys, most));
        join_all(chunks).await.into_iter().flatten().collect()
    }

    async fn delete_together(&self, keys: &[Erase], most: usize) -> Vec<Result<Answer<bool>, Refusal>> {
        let delete = |erase: &Erase| op(Request::Delete(DeleteRangeRequest { key: erase.key.clone() }));
        let request = TxnRequest {
            compare: keys.iter().flat_map(|erase| erase.only_if.clone()).collect(),
            success: keys.iter().map(delete).collect(),
            ..TxnRequest::default()
        };
        let permit = self.releases.acquire(self.now()).await;
        let asked = self.cluster.ask(|conn| {
            let request = request.clone();
            async move { conn.into_ending().txn(request).await }
        });
        let asked = asked.await;
        drop(permit);
        match asked {
            Ok(answer) => {
                let was_there = |response: ResponseOp| match response.response {
                    Some(Response::Delete(deleted)) => deleted.deleted > 0,
                    _ => false,
                };
                // If the condition was not met, the answer has no responses.
                let responses = answer.value.responses.into_iter().map(was_there);
                let found = responses.chain(std::iter::repeat(false)).take(keys.len());
                found.map(|value| Ok(Answer { value, doubt: answer.doubt })).collect()
            }
            Err(Refusal::TooManyOperations) if keys.len() > 1 && self.fewer_operations(most) => {
                Box::pin(self.delete(keys)).await
            }
            Err(refusal) => keys.iter().map(|_| Err(refusal.clone())).collect(),
        }
    }

    /// Returns how many operations go into one transaction.
    pub(crate) fn operations_max(&self) -> usize {
        self.operations_max.load(Ordering::Relaxed)
    }

    /// Halves the size of transactions, for servers that are configured to allow less than etcd's
    /// default. Returns `false` where that does not help any more.
    fn fewer_operations(&self, most: usize) -> bool {
        let fewer = most / 2;
        self.operations_max.fetch_min(fewer.max(1), Ordering::Relaxed);
        fewer > 0
    }
}

/// A lease that is being opened.
struct Reservation<'a> {
    shared: &'a Shared,
    purpose: Purpose,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.shared.lease_table().opening_ended(self.purpose);
        self.shared.opened.notify_waiters();
    }
}

/// One call of `contend`, which is counted; a claim ends with its last call unless it was granted.
pub(crate) struct WaitScope<'a> {
    shared: &'a Shared,
    claim: ClaimId,
}

impl<'a> WaitScope<'a> {
    /// Begins a call, and tracks the claim if it is not tracked yet.
    pub(crate) async fn enter(shared: &'a Shared, claim: &Claim) -> Result<WaitScope<'a>, Refusal> {
        let is_tracked = shared.lease_table().begin_call(claim.id);
        if !is_tracked {
            let lease = shared.lease_for(claim.ttl).await?;
            let mut table = shared.lease_table();
            // A second call of the same claim may have come first meanwhile.
            if !table.begin_call(claim.id) {
                let slot =
                    if shared.layout.has_slots() { table.slot(claim, random_slot_id()) } else { Slot::Own };
                table.insert(claim, shared.key_ref_in(claim, slot), lease.id);
            }
        }
        let keepalive_due = shared.lease_table().keepalive_due(claim.id);
        shared.wake_before(keepalive_due);
        Ok(WaitScope { shared, claim: claim.id })
    }

    /// Returns the lease of the claim; another one where it ended.
    pub(crate) async fn lease(&self, claim: &Claim) -> Result<ServerLease, Refusal> {
        if let Some(lease) = self.shared.lease_table().lease_of(claim.id) {
            return Ok(lease);
        }
        let lease = self.shared.lease_for(claim.ttl).await?;
        self.shared.lease_table().move_to_lease(claim.id, lease.id);
        Ok(lease)
    }
}

impl Drop for WaitScope<'_> {
    fn drop(&mut self) {
        let now = self.shared.now();
        let end = self.shared.lease_table().end_call(self.claim, now);
        self.shared.wake_before(end);
    }
}

/// Draws a new id for a slot, as random as those of claims.
pub(crate) fn random_slot_id() -> Option<ClaimId> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(ClaimId::from_bytes(bytes))
}

/// Carries out one server's part of a round.
fn round_on(
    conn: Connection,
    leases: &[i64],
    checks: &[RangeRequest],
    most: usize,
) -> impl Future<Output = Result<(Option<KeepAliveReply>, Vec<TxnResponse>), Status>> + use<> {
    let txns: Vec<TxnRequest> = checks
        .chunks(most)
        .map(|checks| TxnRequest {
            success: checks.iter().map(|check| op(Request::Range(check.clone()))).collect(),
            ..TxnRequest::default()
        })
        .collect();
    let leases = leases.to_vec();
    async move {
        let looking = try_join_all(txns.into_iter().map(|txn| conn.txn(txn)));
        if leases.is_empty() {
            return Ok((None, looking.await?));
        }
        let keeping =
            try_join_all(leases.chunks(KEPT_TOGETHER).map(|leases| conn.keep_alive(leases.to_vec())));
        let (kept, looked) = join(keeping, looking).await;
        let mut all = KeepAliveReply { term: u64::MAX, ttls: HashMap::new() };
        for kept in kept? {
            all.term = all.term.min(kept.term);
            all.ttls.extend(kept.ttls);
        }
        Ok((Some(all), looked?))
    }
}

/// The longest pause of the maintenance task.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The number of operations that etcd allows in one transaction by default.
const OPERATIONS_MAX: usize = 128;
/// The most transactions of renewals that are under way together. Each looks at as many keys as one
/// may. A hundred thousand claims of 30 s are 79 of them in a second, and where each has to wait for a
/// disk that takes its time, that second has to be enough for most.
const RENEWALS_AT_ONCE: usize = 64;
/// The most requests of acquisitions that are under way together.
const ACQUISITIONS_AT_ONCE: usize = 256;
/// The most transactions of releases that are under way together.
const RELEASES_AT_ONCE: usize = 32;
/// The most leases on one keep-alive stream: a server takes them one after the other.
const KEPT_TOGETHER: usize = 64;
const OPENINGS: usize = 4;
/// The number of times that a round is repeated because the term changed.
const ROUNDS: u32 = 3;
const LEASE_POLL: Duration = Duration::from_millis(50);
