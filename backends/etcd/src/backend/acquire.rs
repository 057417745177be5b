//! Acquires a claim: joins the queue, looks at the claims ahead, and waits for the nearest of those that
//! block it.
//!
//! Ground rules: a grant is what one answer of a quorum shows, with the claim's own key in it: a waiter
//! whose key or lease went away never takes itself for the holder. One that had to wait is granted by a
//! transaction that moves its key to the lease of its ttl (see `moving.rs`). A claim without patience
//! takes no place at all: its key is put only under the condition that it is admitted. One transaction
//! takes what is free.

use std::collections::{HashMap, VecDeque};

use leasehold_core::{
    Claim, Effect, Failure, FailureKind, Fence, Grant, Hint, MAX_QUEUE, Moment, Patience, Proof, Step,
};

use crate::backend::moving::{hold, park, put_on};
use crate::backend::watch_timeout::WatchTimeout;
use crate::client::{Shared, WaitScope, random_slot_id};
use crate::net::error::Refusal;
use crate::net::limiter::Permit;
use crate::net::member::term;
use crate::net::watcher::{Target, Watch};
use crate::protocol::key_slots::{KeyRef, ReusedBy, Slot};
use crate::protocol::layout::key_request;
use crate::protocol::proof::EtcdProof;
use crate::protocol::proto::{
    Compare, Header, KeyValue, PutRequest, RangeRequest, RangeResponse, Request, TxnRequest, TxnResponse,
};
use crate::protocol::queue::{Entry, admits, blockers};
use crate::protocol::txn::{
    Erase, changed_at, created_at, into_range, nothing_before, nothing_since, op, version_is,
};

/// The queue as one answer showed it.
#[derive(Debug)]
struct QueueView {
    queue: Vec<Entry>,
    /// There were more than can be judged.
    full: bool,
    /// The claim's own position in it.
    own: Option<usize>,
    revision: i64,
    asked_at: Moment,
    /// The same transaction has put the claim's key on the lease of its ttl, so nothing that was sent
    /// before moves it any more.
    is_final: bool,
}

/// Carries out one call of `contend`.
pub(crate) async fn contend(shared: &Shared, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
    shared.adopt(patience.clock());
    end_leftover(shared, claim).await?;
    let scope = WaitScope::enter(shared, claim).await.map_err(Refusal::into_failure)?;
    let call = Call { shared, claim, scope: &scope, patience };
    let tries_once = patience.is_ended();
    let step = match tries_once {
        true => call.try_once().await,
        false if shared.layout.has_queue() => call.wait(patience).await,
        false => call.wait_for_key(patience).await,
    };
    if step.is_err() && !tries_once && patience.is_ended() && shared.lease_table().is_clear(claim.id) {
        // Nothing was sent for it.
        return Ok(busy(0));
    }
    step.map_err(|failure| match shared.lease_table().is_clear(claim.id) {
        true => failure,
        // The place of a former try is kept for a while, for the next one.
        false => failure.with_effect(Effect::Unknown),
    })
}

/// Ends what the same claim held until its ttl ended, and what was not removed yet: it is not granted
/// once more.
async fn end_leftover(shared: &Shared, claim: &Claim) -> Result<(), Failure> {
    let view = shared.lease_table().view(claim, shared.now());
    if let Some(view) = view.filter(|view| view.expired) {
        end(shared, claim, view.erase).await?;
    }
    Ok(())
}

/// Ends what the claim has, within a request for it.
async fn end(shared: &Shared, claim: &Claim, erase: Erase) -> Result<(), Failure> {
    let ended = crate::backend::release::end(shared, &[claim.id], &[erase]).await;
    // With slots the claim is put under another key after a delete without an answer.
    ended.map_err(
        |failure| if shared.layout.has_slots() { failure } else { failure.with_release_unanswered() },
    )
}

struct Call<'a> {
    shared: &'a Shared,
    claim: &'a Claim,
    scope: &'a WaitScope<'a>,
    patience: &'a Patience,
}

impl Call<'_> {
    /// Waits in the queue until the claim is admitted or patience ends.
    async fn wait(&self, patience: &Patience) -> Result<Step, Failure> {
        // The place of the claim when it was seen last.
        let mut at: Option<Entry> = None;
        let mut timeout = WatchTimeout::of(self.shared);
        for _ in 0..MAX_LOOKS {
            let seen = match at.take() {
                None => self.enqueue().await?,
                Some(entry) => self.look(entry).await?,
            };
            let Some(own) = seen.own else {
                // Its key is gone: the lease ended, or another client took it out of the queue. It joins
                // the queue again, at the end.
                if patience.is_ended() {
                    return self.leave(0).await;
                }
                continue;
            };
            let (ahead, entry) = (&seen.queue[..own], &seen.queue[own]);
            let waits_for = blockers(ahead, entry.share);
            if waits_for.is_empty()
                && let Some(step) = self.take(&seen, entry).await?
            {
                return Ok(step);
            }
            if patience.is_ended() {
                return self.leave(ahead.len()).await;
            }
            let mut current = entry.clone();
            if !waits_for.is_empty() {
                let keys = waits_for.iter().map(|blocker| blocker.key.clone()).chain([entry.key.clone()]);
                let watch = self.shared.watcher.watch(keys.map(Target::Gone), seen.revision + 1);
                self.shared.lease_table().set_wakeup(self.claim.id, watch.wakeup());
                current.changed = self.sleep(entry, &watch, &mut timeout).await?;
            }
            at = Some(current);
            if patience.is_ended() {
                return self.leave(ahead.len()).await;
            }
        }
        // The caller asks again; its place is kept meanwhile.
        Ok(busy(0))
    }

    /// Waits for a change, and meanwhile has the claim's key moved to the lease for waiting. Returns
    /// when the key was changed last.
    async fn sleep(&self, entry: &Entry, watch: &Watch, timeout: &mut WatchTimeout) -> Result<i64, Failure> {
        let (mut parked, mut changed) = (false, entry.changed);
        let mut parking = std::pin::pin!(park(self.shared, self.claim, entry));
        let mut timeout = std::pin::pin!(timeout.expires());
        loop {
            tokio::select! {
                woken = watch.woken() => woken?,
                () = self.patience.ended() => {}
                () = &mut timeout => {}
                at = &mut parking, if !parked => {
                    (parked, changed) = (true, at);
                    continue;
                }
            }
            return Ok(changed);
        }
    }

    /// Takes what an answer showed as free. `None` where the claim's key was changed meanwhile.
    async fn take(&self, seen: &QueueView, entry: &Entry) -> Result<Option<Step>, Failure> {
        let shared = self.shared;
        // A claim that this client was granted before was moved then, and not since.
        let is_held = {
            let table = shared.lease_table();
            let on_its_lease = table.lease_of(self.claim.id).is_some_and(|lease| lease.id == entry.lease);
            let view = table.view(self.claim, seen.asked_at);
            on_its_lease
                && (!shared.layout.has_queue() || view.is_some_and(|view| view.place == Some(entry.place)))
        };
        if seen.is_final || is_held {
            return self.granted(entry, seen.asked_at).map(Some);
        }
        let moved = hold(shared, self.scope, self.claim, entry).await.map_err(Refusal::into_uncertain)?;
        moved.map(|(lease, asked_at)| self.granted(&Entry { lease, ..entry.clone() }, asked_at)).transpose()
    }

    /// Waits until the one key of the lock is free, and puts it. The quickest client gets it.
    async fn wait_for_key(&self, patience: &Patience) -> Result<Step, Failure> {
        let mut timeout = WatchTimeout::of(self.shared);
        for _ in 0..MAX_LOOKS {
            let seen = self.put_key(None).await?;
            if let Some(own) = seen.own
                && let Some(step) = self.take(&seen, &seen.queue[own]).await?
            {
                return Ok(step);
            }
            if patience.is_ended() {
                return self.leave(1).await;
            }
            // If the key was free, the lease had ended, or a mark had moved: it is tried again.
            let Some(holder) = seen.queue.first() else { continue };
            let watch = self.shared.watcher.watch([Target::Gone(holder.key.clone())], seen.revision + 1);
            self.shared.lease_table().set_wakeup(self.claim.id, watch.wakeup());
            tokio::select! {
                woken = watch.woken() => woken?,
                () = patience.ended() => {}
                () = timeout.expires() => {}
            }
        }
        Ok(busy(1))
    }

    /// Joins the queue: puts the claim's key if it does not exist, and reads the queue.
    async fn enqueue(&self) -> Result<QueueView, Failure> {
        for _ in 0..ATTEMPTS {
            let seen = self.put_key(None).await?;
            if seen.own.is_some() {
                return Ok(seen);
            }
            if seen.full {
                self.leave(MAX_QUEUE).await?;
                let detail = format!("{MAX_QUEUE} claims are queued for it already: try again later");
                return Err(Failure::unavailable(detail));
            }
        }
        Err(self.unstable())
    }

    /// Takes what is free at once, or nothing.
    async fn try_once(&self) -> Result<Step, Failure> {
        let queue = self.shared.layout.queue(&self.claim.resource);
        // At first the queue may be empty; later, no claim may have come since the queue was seen.
        let mut since = 1;
        for _ in 0..ATTEMPTS {
            let seen = self.put_key(Some(nothing_since(&queue, since))).await?;
            if let Some(own) = seen.own {
                let (ahead, entry) = (&seen.queue[..own], &seen.queue[own]);
                if !admits(ahead, entry.share) {
                    return self.leave(own).await;
                }
                if let Some(step) = self.take(&seen, entry).await? {
                    return Ok(step);
                }
                continue;
            }
            if !admits(&seen.queue, self.claim.share) {
                return Ok(busy(seen.queue.len()));
            }
            since = seen.revision + 1;
        }
        // So many claims arrive and leave that no look is up to date: joining the queue for a moment is certain.
        let seen = self.enqueue().await?;
        if let Some(own) = seen.own
            && admits(&seen.queue[..own], seen.queue[own].share)
            && let Some(step) = self.take(&seen, &seen.queue[own]).await?
        {
            return Ok(step);
        }
        self.leave(seen.own.unwrap_or_default()).await
    }

    /// Waits until this client has few enough requests under way, for as long as patience lasts. A
    /// request without patience may wait as long as for an answer.
    async fn permit(&self) -> Result<Permit<'_>, Failure> {
        let tries_once = self.patience.is_ended();
        let late = async {
            match tries_once {
                true => tokio::time::sleep(self.shared.cluster.limit()).await,
                false => self.patience.ended().await,
            }
        };
        tokio::select! {
            biased;
            permit = self.shared.acquisitions.acquire(self.shared.now()) => Ok(permit),
            () = late => Err(Failure::unavailable(OVERLOADED)),
        }
    }

    /// Puts the key if it does not exist, perhaps under one more condition, and reads the queue in the same
    /// transaction.
    async fn put_key(&self, condition: Option<Compare>) -> Result<QueueView, Failure> {
        let (shared, claim) = (self.shared, self.claim);
        // Elsewhere a claim has one key only.
        if shared.layout.has_slots() && shared.lease_table().is_erasing(claim.id) {
            self.change_key().await?;
        }
        let key_ref = shared.key_ref(claim);
        if key_ref.reused_by == ReusedBy::Others {
            return self.find_elsewhere().await;
        }
        let permit = self.permit().await?;
        let lease = self.scope.lease(claim).await.map_err(Refusal::into_failure)?;
        let looks = shared.layout.queue_requests(&shared.layout.queue(&claim.resource), claim.share);
        let looks: Vec<_> = looks.into_iter().map(|look| op(Request::Range(look))).collect();
        let mark = shared.layout.mark(lease.id);
        let key = key_ref.erase.key;
        let absent = created_at(&key, 0);
        let put = PutRequest {
            value: shared.layout.value(claim, key_ref.slot),
            key: key.clone(),
            lease: lease.id,
            ..PutRequest::default()
        };
        let request = TxnRequest {
            compare: condition.into_iter().chain([absent, version_is(&mark, lease.mark)]).collect(),
            success: [op(Request::Put(put))].into_iter().chain(looks.clone()).collect(),
            // The value of the key shows which claim uses it.
            failure: [key_request(&mark), RangeRequest { keys_only: false, ..key_request(&key) }]
                .into_iter()
                .map(|look| op(Request::Range(look)))
                .chain(looks)
                .collect(),
        };
        let before = shared.lease_table().sending(claim.id, lease.mark);
        let stepped = shared.step(claim, &lease, request).await;
        drop(permit);
        match stepped {
            Ok((answer, asked_at)) => {
                if !answer.doubt {
                    shared.lease_table().answered(claim.id, before);
                }
                let was_put = answer.value.succeeded;
                let mut found: VecDeque<_> =
                    answer.value.responses.into_iter().filter_map(into_range).collect();
                let mut values = Vec::new();
                if !was_put {
                    let mark = found.pop_front().unwrap_or_default();
                    if let Some(kv) = mark.kvs.first() {
                        shared.lease_table().mark_advanced(lease.id, kv.version);
                    }
                    values = found.pop_front().unwrap_or_default().kvs;
                }
                let mut all = found.pop_front().unwrap_or_default();
                values.extend(found.into_iter().flat_map(|found| found.kvs));
                fill_in(&mut all.kvs, values);
                let mut seen = self.read(answer.value.header, all, asked_at)?;
                self.adopt_other(&mut seen).await?;
                seen.is_final = was_put && seen.own.is_some_and(|own| seen.queue[own].key == key);
                if seen.own.is_none() && !seen.full {
                    shared.lease_table().absent(claim.id, asked_at);
                }
                Ok(seen)
            }
            Err(Refusal::NoSuchLease) => {
                let now = shared.now();
                shared.lease_table().lease_ended(lease.id, now);
                let queue = Vec::new();
                Ok(QueueView { queue, full: false, own: None, revision: 0, asked_at: now, is_final: false })
            }
            Err(refusal) => {
                let is_over = matches!(refusal, Refusal::NoSpace(_));
                let failure = refusal.into_failure();
                if is_over || failure.effect == Effect::None {
                    shared.lease_table().answered(claim.id, before);
                }
                Err(failure)
            }
        }
    }

    /// Ends the place of a claim whose key a request may remove that is still under way, and gives the claim a key
    /// that no such request concerns.
    async fn change_key(&self) -> Result<(), Failure> {
        let (shared, claim) = (self.shared, self.claim);
        let erase = shared.key_ref(claim).erase;
        crate::backend::release::end(shared, &[claim.id], &[erase]).await?;
        if let Some(fresh) = random_slot_id() {
            let key_ref = shared.key_ref_in(claim, Slot::Reused(fresh));
            shared.lease_table().change_key(claim.id, key_ref);
        }
        Ok(())
    }

    /// Looks at those ahead of a claim that is in the queue, and at itself. Takes what it waited for in the
    /// same transaction where no claim is ahead any more.
    async fn look(&self, mut entry: Entry) -> Result<QueueView, Failure> {
        let layout = &self.shared.layout;
        let queue = layout.queue(&self.claim.resource);
        let first = vec![changed_at(&entry.key, entry.changed), nothing_before(&queue, entry.place)];
        let (answer, lease, asked_at) =
            self.fetch_queue(layout.keys_request(&queue, entry.place), Some((&entry, first))).await?;
        if answer.succeeded {
            let revision = answer.header.map_or(0, |header| header.revision);
            (entry.lease, entry.changed) = (lease, revision);
            let queue = vec![entry];
            return Ok(QueueView { queue, full: false, own: Some(0), revision, asked_at, is_final: true });
        }
        let mut seen = self.read_answer(answer, asked_at)?;
        // The id does not matter: another place than the one that was waited at is another claim's
        // history.
        let key = self.shared.key_ref(self.claim).erase.key;
        seen.own = seen.queue.iter().position(|seen| seen.place == entry.place && seen.key == key);
        Ok(seen)
    }

    /// Reads a queue from a quorum, or moves the key of the claim to the lease of its ttl if the conditions
    /// hold.
    async fn fetch_queue(
        &self,
        queue: RangeRequest,
        moves: Option<(&Entry, Vec<Compare>)>,
    ) -> Result<(TxnResponse, i64, Moment), Failure> {
        let _permit = self.permit().await?;
        let look = vec![op(Request::Range(queue))];
        for _ in 0..ATTEMPTS {
            let lease = self.scope.lease(self.claim).await.map_err(Refusal::into_failure)?;
            let request = match &moves {
                Some((entry, compare)) => TxnRequest {
                    compare: compare.clone(),
                    success: vec![put_on(&entry.key, lease.id)],
                    failure: look.clone(),
                },
                None => TxnRequest { success: look.clone(), ..TxnRequest::default() },
            };
            match self.shared.step(self.claim, &lease, request).await {
                Ok((answer, asked_at)) => return Ok((answer.value, lease.id, asked_at)),
                Err(Refusal::NoSuchLease) => {
                    let now = self.shared.now();
                    self.shared.lease_table().lease_ended(lease.id, now);
                }
                // The place in the queue is still there.
                Err(refusal) => return Err(refusal.into_uncertain()),
            }
        }
        Err(self.unstable())
    }

    /// Reads the only look of an answer.
    fn read_answer(&self, answer: TxnResponse, asked_at: Moment) -> Result<QueueView, Failure> {
        let found = answer.responses.into_iter().find_map(into_range).unwrap_or_default();
        self.read(answer.header, found, asked_at)
    }

    fn read(
        &self,
        header: Option<Header>,
        found: RangeResponse,
        asked_at: Moment,
    ) -> Result<QueueView, Failure> {
        let queue = self.shared.layout.read_queue(&self.claim.resource, &found.kvs)?;
        let own = queue.iter().position(|entry| entry.id == self.claim.id);
        tracing::trace!(resource = %self.claim.resource, len = queue.len(), ?own, term = term(header), "seen");
        let revision = header.map_or(0, |header| header.revision);
        Ok(QueueView { queue, full: found.more, own, revision, asked_at, is_final: false })
    }

    /// Adopts the key under which another client has put the same claim. Of two places the earlier one counts.
    async fn adopt_other(&self, seen: &mut QueueView) -> Result<(), Failure> {
        let shared = self.shared;
        let mine = shared.key_ref(self.claim).erase.key;
        // The queue is in order, so what was found first is the earliest.
        let Some(first) = seen.own.filter(|own| seen.queue[*own].key != mine) else { return Ok(()) };
        if let Some(entry) = seen.queue.iter().find(|entry| entry.key == mine) {
            let erase = Erase { key: mine.clone(), only_if: vec![created_at(&mine, entry.place)] };
            crate::backend::release::end(shared, &[self.claim.id], &[erase]).await?;
            seen.queue.retain(|entry| entry.key != mine);
        }
        // The other client may use its key again: it is removed only as long as it is this claim's.
        let (key, place) = (seen.queue[first].key.clone(), seen.queue[first].place);
        let erase = Erase { only_if: vec![created_at(&key, place)], key };
        let key_ref = KeyRef { slot: Slot::Own, erase, reused_by: ReusedBy::Others };
        shared.lease_table().move_to(self.claim, key_ref);
        Ok(())
    }

    /// Looks for a claim under the key where another client had put it. If it is gone, the next try is
    /// under a key of its own.
    async fn find_elsewhere(&self) -> Result<QueueView, Failure> {
        let all = self.shared.layout.queue_request(&self.shared.layout.queue(&self.claim.resource));
        let (answer, _, asked_at) = self.fetch_queue(all, None).await?;
        let seen = self.read_answer(answer, asked_at)?;
        if seen.own.is_none() {
            let late = self.shared.lease_table().may_be_erased_late(self.claim.id);
            let slot = random_slot_id().filter(|_| late).map_or(Slot::Own, Slot::Reused);
            let key_ref = self.shared.key_ref_in(self.claim, slot);
            self.shared.lease_table().move_to(self.claim, key_ref);
        }
        Ok(seen)
    }

    fn granted(&self, entry: &Entry, asked_at: Moment) -> Result<Step, Failure> {
        let mut table = self.shared.lease_table();
        let lease = table.lease_of(self.claim.id).filter(|lease| lease.id == entry.lease);
        let Some(lease) = lease else {
            drop(table);
            return Err(Failure::unanswered("the lease of the claim ended as it was granted"));
        };
        let asked_at = lease.covers_from(self.claim.ttl, asked_at);
        // On the server it may have been granted just now.
        let padding = self.shared.now().since(asked_at);
        let lost = table.granted(self.claim.id, entry.place, asked_at.after(self.claim.ttl), padding);
        drop(table);
        let seq = u64::try_from(entry.place).map_err(|_| {
            Failure::new(FailureKind::Foreign, Effect::Unknown, "the cluster's revision is below zero")
        })?;
        let proof = EtcdProof { key: entry.key.clone(), create_revision: entry.place };
        let fence = Some(Fence { epoch: 0, seq, sub: 0 });
        Ok(Step::Granted(Grant::new(asked_at).fence(fence).lost(lost).proof(Proof::of(proof))))
    }

    /// Gives the place up.
    async fn leave(&self, ahead: usize) -> Result<Step, Failure> {
        let erase = self.shared.key_ref(self.claim).erase;
        end(self.shared, self.claim, erase).await?;
        Ok(busy(ahead))
    }

    fn unstable(&self) -> Failure {
        Failure::unanswered("its lease or its key was removed each time that it was queued")
    }
}

/// Adds values that were read separately to keys.
fn fill_in(queue: &mut [KeyValue], values: Vec<KeyValue>) {
    let mut values: HashMap<Vec<u8>, Vec<u8>> = values.into_iter().map(|kv| (kv.key, kv.value)).collect();
    for kv in queue {
        if let Some(value) = values.remove(&kv.key) {
            kv.value = value;
        }
    }
}

fn busy(ahead: usize) -> Step {
    Step::Busy(Hint { ask_again_in: None, ahead: Some(u32::try_from(ahead).unwrap_or(u32::MAX)) })
}

const OVERLOADED: &str =
    "so much is asked for at once that the server did not come to this: ask for fewer locks at a time";
/// The number of looks that one call takes before it returns all the same.
const MAX_LOOKS: u32 = 1_000;
/// The number of attempts at a condition that others made untrue.
const ATTEMPTS: u32 = 4;
