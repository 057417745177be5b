//! The state that all calls of one client share, and the steps that more than one of them takes.
//!
//! Ground rules: each extension of a lease is counted from before it was asked for, and only when the
//! raft term proves that the leader that extended it was the leader (see [`Core::round`]). No lock is
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
use crate::net::limiter::Gate;
use crate::net::member::{Kept, Line, term};
use crate::net::watcher::Watcher;
use crate::protocol::key_slots::{KeyRef, Slot, Whose};
use crate::protocol::layout::{Layout, look_up};
use crate::protocol::proto::{
    DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse, Request, Response,
    ResponseOp, TxnRequest, TxnResponse,
};
use crate::protocol::queue::Entry;
use crate::protocol::txn::{Erase, created_at, into_range, op};
use crate::protocol::version::Watches;
use crate::state::lease::{Lease, Purpose, length_for};
use crate::state::lease_table::{Access, LeaseChoice, LeaseTable};

/// The state of one client.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) layout: Layout,
    pub(crate) watcher: Watcher,
    pub(crate) watches: Watches,
    /// Wakes the tender, when something is due earlier than it knows.
    pub(crate) nudge: Arc<Notify>,
    roster: Mutex<LeaseTable>,
    /// The engine's clock; known from the first claim on, and before that there is nothing to count.
    clock: OnceLock<Arc<dyn Clock>>,
    /// A lease was opened, or was not.
    opened: Notify,
    /// The queue of renewals, the one whose claims end first in front.
    pub(crate) renewals: Gate,
    /// The queue of claims that want a lock, so that for any number of them, the server has little to
    /// do before it comes to a renewal.
    pub(crate) entries: Gate,
    /// The queue of releases.
    exits: Gate,
    operations_max: AtomicUsize,
}

/// The findings of one round of keeping and looking.
#[derive(Debug)]
pub(crate) struct Round {
    /// The leases that do not exist any more.
    pub(crate) ended: Vec<i64>,
    /// The answer of each check, in order.
    pub(crate) found: Vec<RangeResponse>,
    /// `true` if the leases that do exist are extended for certain.
    pub(crate) confirmed: bool,
}

impl Core {
    pub(crate) fn new(cluster: Arc<Cluster>, layout: Layout, watches: Watches) -> Core {
        Core {
            watches,
            watcher: Watcher::start(cluster.clone()),
            cluster,
            layout,
            nudge: Arc::default(),
            roster: Mutex::default(),
            clock: OnceLock::new(),
            opened: Notify::new(),
            renewals: Gate::new(RENEWALS_AT_ONCE),
            entries: Gate::new(ENTRIES_AT_ONCE),
            exits: Gate::new(EXITS_AT_ONCE),
            operations_max: AtomicUsize::new(OPERATIONS_MAX),
        }
    }

    pub(crate) fn roster(&self) -> Access<'_> {
        Access::to(&self.roster)
    }

    /// Takes over the engine's clock.
    pub(crate) fn adopt(&self, clock: &Arc<dyn Clock>) {
        self.clock.get_or_init(|| clock.clone());
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.get().map_or(Moment::START, |clock| clock.now())
    }

    /// Notes that something is due at that moment. The task that tends to it is woken only where it
    /// would look too late.
    fn nudge_before(&self, due: Option<Moment>) {
        if due.is_some_and(|due| due < self.now().after(LONGEST_PAUSE)) {
            self.nudge.notify_one();
        }
    }

    /// Returns a lease for a claim of this ttl.
    pub(crate) async fn lease_for(&self, ttl: Duration) -> Result<Lease, Refusal> {
        self.lease_of(Purpose::Hold(length_for(ttl))).await
    }

    pub(crate) async fn lease_of(&self, purpose: Purpose) -> Result<Lease, Refusal> {
        loop {
            let opened = self.opened.notified();
            let room = self.roster().room(purpose, self.now());
            match room {
                LeaseChoice::On(lease) => return Ok(lease),
                LeaseChoice::Open => return self.open_lease(purpose).await,
                // Bounded by the limit of the request that they wait for.
                LeaseChoice::Soon => tokio::select! {
                    () = opened => {}
                    () = tokio::time::sleep(GLANCE) => {}
                },
            }
        }
    }

    async fn open_lease(&self, purpose: Purpose) -> Result<Lease, Refusal> {
        // Released on every way out, after the lease is known to others.
        let _reservation = Reservation { core: self, purpose };
        let seconds = purpose.seconds();
        let mut last = Refusal::LeaseExists;
        for _ in 0..OPENINGS {
            // A number of our own makes the request repeatable.
            let id = (getrandom::u64().unwrap_or(seconds) >> 1).max(1) as i64;
            let request = LeaseGrantRequest { ttl: seconds as i64, id };
            let asked_at = self.now();
            let granted = self.cluster.ask(|line| {
                let request = request.clone();
                async move { line.grant(request).await }
            });
            match granted.await {
                Ok(granted) => {
                    let ttl = Duration::from_secs(granted.value.ttl.unsigned_abs());
                    return Ok(self.roster().opened(granted.value.id, purpose, ttl, asked_at));
                }
                // It was granted to an earlier try, or the number was taken: its ttl is not known, so
                // another is asked for.
                Err(Refusal::LeaseExists) => last = Refusal::LeaseExists,
                Err(refusal) => return Err(refusal),
            }
        }
        Err(last)
    }

    /// Runs one transaction of one claim on its lease, which is kept alive beside it where it would not
    /// cover the claim.
    ///
    /// Returns when it was asked, too.
    pub(crate) async fn step(
        &self,
        claim: &Claim,
        lease: &Lease,
        request: TxnRequest,
    ) -> Result<(Answer<TxnResponse>, Moment), Refusal> {
        let asked_at = self.now();
        let keep = lease.is_short_of(claim.ttl, asked_at);
        let id = lease.id;
        let answer = self.cluster.ask(|line| {
            let request = request.clone();
            async move {
                if !keep {
                    return Ok((line.txn(request).await?, None));
                }
                let (done, kept) = join(line.txn(request), line.keep(vec![id])).await;
                Ok((done?, kept.ok()))
            }
        });
        let Answer { value: (done, kept), doubt } = answer.await?;
        if let Some(kept) = kept {
            let term = term(done.header);
            self.take_in(&kept, term, asked_at);
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
        let idle = [look_up(&self.layout.probe())];
        let checks = if checks.is_empty() { &idle[..] } else { checks };
        let mut tries = 0;
        loop {
            tries += 1;
            let asked_at = self.now();
            let most = self.operations_max();
            let asked = self.cluster.ask_to_keep(limit, |line| round_on(line, leases, checks, most)).await;
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
            let confirmed = self.take_in(&kept, term, asked_at);
            if confirmed || tries == ROUNDS {
                let gone = kept.ttls.iter().filter(|(_, ttl)| confirmed && **ttl <= 0);
                return Ok(Round { ended: gone.map(|(id, _)| *id).collect(), found, confirmed });
            }
        }
    }

    /// Notes what a keep-alive did. Returns whether it counts.
    fn take_in(&self, kept: &Kept, term: u64, asked_at: Moment) -> bool {
        let confirmed = kept.term == term && term != 0;
        if !confirmed {
            return false;
        }
        let now = self.now();
        let mut roster = self.roster();
        for (id, ttl) in &kept.ttls {
            match *ttl {
                ..=0 => roster.lease_ended(*id, now),
                ttl => roster.kept(*id, asked_at, Duration::from_secs(ttl.unsigned_abs())),
            }
        }
        true
    }

    /// Returns where a claim is; under its own key where this client knows nothing of it.
    pub(crate) fn spot(&self, claim: &Claim) -> KeyRef {
        let known = self.roster().spot(claim);
        known.unwrap_or_else(|| self.spot_in(claim, Slot::Own))
    }

    pub(crate) fn spot_in(&self, claim: &Claim, slot: Slot) -> KeyRef {
        let whose = if self.layout.has_slots() { Whose::Ours } else { Whose::Nobodys };
        KeyRef { slot, erase: self.layout.erase(claim, slot), whose }
    }

    /// Takes a claim out of a queue in which this client has no seat for it: an operator's word, or a
    /// second release.
    ///
    /// It may be in a slot of another client, which only the value under that shows. Returns whether it
    /// was there.
    pub(crate) async fn delete_from_slot(&self, claim: &Claim) -> Result<Answer<bool>, Refusal> {
        let Some(entry) = self.line(&claim.resource).await?.into_iter().find(|entry| entry.id == claim.id)
        else {
            return Ok(Answer { value: false, doubt: false });
        };
        // Only as long as it is that claim's turn.
        let erase = Erase { only_if: vec![created_at(&entry.key, entry.place)], key: entry.key };
        self.delete(&[erase]).await.pop().unwrap_or(Ok(Answer { value: false, doubt: false }))
    }

    /// Returns all claims in a queue, with their ids.
    async fn line(&self, resource: &Resource) -> Result<Vec<Entry>, Refusal> {
        let request = self.layout.look_at_all(&self.layout.line(resource));
        let asked = self.cluster.ask(|line| {
            let request = request.clone();
            async move { line.range(request).await }
        });
        self.layout.read_line(resource, &asked.await?.value.kvs).map_err(Refusal::Failed)
    }

    /// Moves the marks of leases on, so that requests that were sent under the old ones do nothing when
    /// they arrive.
    pub(crate) async fn move_marks(&self, leases: impl IntoIterator<Item = i64>) -> Result<(), Refusal> {
        for lease in leases {
            let mark = self.layout.mark(lease);
            let put = PutRequest { key: mark.clone(), lease, ..PutRequest::default() };
            let request = TxnRequest {
                success: vec![op(Request::Put(put)), op(Request::Range(look_up(&mark)))],
                ..TxnRequest::default()
            };
            let moved = self.cluster.ask(|line| {
                let request = request.clone();
                async move { line.txn(request).await }
            });
            match moved.await {
                Ok(answer) => {
                    let found = answer.value.responses.into_iter().filter_map(into_range).next();
                    let version = found.and_then(|found| found.kvs.first().map(|kv| kv.version));
                    self.roster().marked(lease, version.unwrap_or_default());
                }
                // Nothing can be put under a lease that ended.
                Err(Refusal::NoSuchLease) => {
                    let now = self.now();
                    self.roster().lease_ended(lease, now);
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
        let pass = self.exits.pass(self.now()).await;
        let asked = self.cluster.ask(|line| {
            let request = request.clone();
            async move { line.txn(request).await }
        });
        let asked = asked.await;
        drop(pass);
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
    core: &'a Core,
    purpose: Purpose,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.core.roster().opening_ended(self.purpose);
        self.core.opened.notify_waiters();
    }
}

/// A visit of a claim, which is counted; the claim ends with its last visit unless it was granted.
pub(crate) struct WaitScope<'a> {
    core: &'a Core,
    claim: ClaimId,
}

impl<'a> WaitScope<'a> {
    /// Enters, and seats a claim that has no seat yet.
    pub(crate) async fn enter(core: &'a Core, claim: &Claim) -> Result<WaitScope<'a>, Refusal> {
        let seated = core.roster().visit(claim.id);
        if !seated {
            let lease = core.lease_for(claim.ttl).await?;
            let mut roster = core.roster();
            // A second call of the same claim may have come first meanwhile.
            if !roster.visit(claim.id) {
                let slot = if core.layout.has_slots() { roster.slot(claim, fresh()) } else { Slot::Own };
                roster.seat(claim, core.spot_in(claim, slot), lease.id);
            }
        }
        let kept_by = core.roster().kept_by(claim.id);
        core.nudge_before(kept_by);
        Ok(WaitScope { core, claim: claim.id })
    }

    /// Returns the lease of the claim; another one where it ended.
    pub(crate) async fn lease(&self, claim: &Claim) -> Result<Lease, Refusal> {
        if let Some(lease) = self.core.roster().lease_of(claim.id) {
            return Ok(lease);
        }
        let lease = self.core.lease_for(claim.ttl).await?;
        self.core.roster().reseat(claim.id, lease.id);
        Ok(lease)
    }
}

impl Drop for WaitScope<'_> {
    fn drop(&mut self) {
        let now = self.core.now();
        let end = self.core.roster().leave(self.claim, now);
        self.core.nudge_before(end);
    }
}

/// Draws a new id for a slot, as random as those of claims.
fn fresh() -> Option<ClaimId> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(ClaimId::from_bytes(bytes))
}

/// Carries out one server's part of a round.
fn round_on(
    line: Line,
    leases: &[i64],
    checks: &[RangeRequest],
    most: usize,
) -> impl Future<Output = Result<(Option<Kept>, Vec<TxnResponse>), Status>> + use<> {
    let txns: Vec<TxnRequest> = checks
        .chunks(most)
        .map(|checks| TxnRequest {
            success: checks.iter().map(|check| op(Request::Range(check.clone()))).collect(),
            ..TxnRequest::default()
        })
        .collect();
    let leases = leases.to_vec();
    async move {
        let looking = try_join_all(txns.into_iter().map(|txn| line.txn(txn)));
        if leases.is_empty() {
            return Ok((None, looking.await?));
        }
        let keeping = try_join_all(leases.chunks(KEPT_TOGETHER).map(|leases| line.keep(leases.to_vec())));
        let (kept, looked) = join(keeping, looking).await;
        let mut all = Kept { term: u64::MAX, ttls: HashMap::new() };
        for kept in kept? {
            all.term = all.term.min(kept.term);
            all.ttls.extend(kept.ttls);
        }
        Ok((Some(all), looked?))
    }
}

/// The longest pause of the task that tends to what is due.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The number of operations that etcd allows in one transaction by default.
const OPERATIONS_MAX: usize = 128;
/// The most transactions of renewals that are under way together. Each looks at as many keys as one
/// may. A hundred thousand claims of 30 s are 79 of them in a second, and where each has to wait for a
/// disk that takes its time, that second has to be enough for most.
const RENEWALS_AT_ONCE: usize = 64;
/// The most requests of claims that want a lock that are under way together.
const ENTRIES_AT_ONCE: usize = 256;
/// The most transactions of releases that are under way together.
const EXITS_AT_ONCE: usize = 32;
/// The most leases on one keep-alive stream: a server takes them one after the other.
const KEPT_TOGETHER: usize = 64;
const OPENINGS: usize = 4;
/// The number of times that a round is repeated because the term changed.
const ROUNDS: u32 = 3;
const GLANCE: Duration = Duration::from_millis(50);
