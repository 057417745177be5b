//! The way of a claim to holding: join the queue, look at the claims ahead, wait for the nearest of
//! those that block.
//!
//! Ground rules: a grant is what one answer of a quorum shows, with the claim's own key in it: a waiter
//! whose key or lease went away never takes itself for the holder. One that had to wait is granted by a
//! transaction that moves its key to the lease of its ttl (see `moving.rs`). A claim without patience
//! takes no place at all: its key is put only under the condition that it is admitted. One transaction
//! takes what is free.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use leasehold_core::{
    Claim, Effect, Failure, FailureKind, Fence, Grant, Hint, MAX_LINE, Moment, Patience, Proof, Step,
};

use crate::backend::moving::{hold, park, put_on};
use crate::client::{Core, WaitScope};
use crate::net::error::Refusal;
use crate::net::limiter::Pass;
use crate::net::member::term;
use crate::net::watcher::{Target, Watch};
use crate::protocol::key_slots::{KeyRef, Slot, Whose};
use crate::protocol::layout::look_up;
use crate::protocol::proof::EtcdProof;
use crate::protocol::proto::{
    Compare, Header, KeyValue, PutRequest, RangeRequest, RangeResponse, Request, TxnRequest, TxnResponse,
};
use crate::protocol::queue::{Entry, admits, blockers};
use crate::protocol::txn::{
    Erase, changed_at, created_at, into_range, nothing_before, nothing_since, op, version_is,
};
use crate::protocol::version::Watches;

/// The queue as one answer showed it.
#[derive(Debug)]
struct Seen {
    line: Vec<Entry>,
    /// There were more than can be judged.
    endless: bool,
    /// The claim's own position in it.
    own: Option<usize>,
    revision: i64,
    asked_at: Moment,
    /// The same transaction has put the claim's key on the lease of its ttl, so nothing that was sent
    /// before moves it any more.
    firm: bool,
}

/// Carries out one call of `contend`.
pub(crate) async fn contend(core: &Core, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
    core.adopt(patience.clock());
    end_leftover(core, claim).await?;
    let visit = WaitScope::enter(core, claim).await.map_err(Refusal::into_failure)?;
    let call = Call { core, claim, visit: &visit, patience };
    let glances = patience.is_ended();
    let step = match glances {
        true => call.glance().await,
        false if core.layout.has_lines() => call.wait(patience).await,
        false => call.wait_for_the_key(patience).await,
    };
    if step.is_err() && !glances && patience.is_ended() && core.roster().is_clear(claim.id) {
        // It never came to ask.
        return Ok(busy(0));
    }
    step.map_err(|mut failure| {
        // The place of a former try is kept for a while, for the next one.
        if !core.roster().is_clear(claim.id) {
            failure.effect = Effect::Unknown;
        }
        failure
    })
}

/// Ends what the same claim held until its ttl ended, and what was not removed yet: it is not granted
/// once more.
async fn end_leftover(core: &Core, claim: &Claim) -> Result<(), Failure> {
    let view = core.roster().view(claim, core.now());
    if let Some(view) = view.filter(|view| view.expired) {
        crate::backend::release::end(core, &[claim.id], &[view.erase]).await?;
    }
    Ok(())
}

struct Call<'a> {
    core: &'a Core,
    claim: &'a Claim,
    visit: &'a WaitScope<'a>,
    patience: &'a Patience,
}

impl Call<'_> {
    /// Waits in the queue until the claim is admitted or patience ends.
    async fn wait(&self, patience: &Patience) -> Result<Step, Failure> {
        // The place of the claim when it was seen last.
        let mut at: Option<Entry> = None;
        let mut doubt = WatchTimeout::of(self.core);
        for _ in 0..STANDS {
            let seen = match at.take() {
                None => self.stand().await?,
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
            let (ahead, entry) = (&seen.line[..own], &seen.line[own]);
            let waits_for = blockers(ahead, entry.share);
            if waits_for.is_empty()
                && let Some(step) = self.take(&seen, entry).await?
            {
                return Ok(step);
            }
            if patience.is_ended() {
                return self.leave(ahead.len()).await;
            }
            let mut stand = entry.clone();
            if !waits_for.is_empty() {
                let keys = waits_for.iter().map(|blocker| blocker.key.clone()).chain([entry.key.clone()]);
                let watch = self.core.watcher.watch(keys.map(Target::Gone), seen.revision + 1);
                self.core.roster().hang(self.claim.id, watch.bell());
                stand.changed = self.rest(entry, &watch, &mut doubt).await?;
            }
            at = Some(stand);
            if patience.is_ended() {
                return self.leave(ahead.len()).await;
            }
        }
        // The caller asks again; its place is kept meanwhile.
        Ok(busy(0))
    }

    /// Waits for a change, and meanwhile has the claim's key moved to the lease for waiting. Returns
    /// when the key was changed last.
    async fn rest(&self, entry: &Entry, watch: &Watch, doubt: &mut WatchTimeout) -> Result<i64, Failure> {
        let (mut parked, mut changed) = (false, entry.changed);
        let mut parking = std::pin::pin!(park(self.core, self.claim, entry));
        let mut doubt = std::pin::pin!(doubt.grows());
        loop {
            tokio::select! {
                rung = watch.rung() => rung?,
                () = self.patience.ended() => {}
                () = &mut doubt => {}
                at = &mut parking, if !parked => {
                    (parked, changed) = (true, at);
                    continue;
                }
            }
            return Ok(changed);
        }
    }

    /// Takes what an answer showed as free. `None` where the claim's key was changed meanwhile.
    async fn take(&self, seen: &Seen, entry: &Entry) -> Result<Option<Step>, Failure> {
        let core = self.core;
        // A claim that this client was granted before was moved then, and not since.
        let is_held = {
            let roster = core.roster();
            let on_its_lease = roster.lease_of(self.claim.id).is_some_and(|lease| lease.id == entry.lease);
            let view = roster.view(self.claim, seen.asked_at);
            on_its_lease
                && (!core.layout.has_lines() || view.is_some_and(|view| view.place == Some(entry.place)))
        };
        if seen.firm || is_held {
            return self.granted(entry, seen.asked_at).map(Some);
        }
        let moved = hold(core, self.visit, self.claim, entry).await.map_err(|refusal| {
            let mut failure = refusal.into_failure();
            failure.effect = Effect::Unknown;
            failure
        })?;
        moved.map(|(lease, asked_at)| self.granted(&Entry { lease, ..entry.clone() }, asked_at)).transpose()
    }

    /// Waits until the one key of the lock is free, and puts it. The quickest client gets it.
    async fn wait_for_the_key(&self, patience: &Patience) -> Result<Step, Failure> {
        let mut doubt = WatchTimeout::of(self.core);
        for _ in 0..STANDS {
            let seen = self.place(None).await?;
            if let Some(own) = seen.own
                && let Some(step) = self.take(&seen, &seen.line[own]).await?
            {
                return Ok(step);
            }
            if patience.is_ended() {
                return self.leave(1).await;
            }
            // If the key was free, the lease had ended, or a mark had moved: it is tried again.
            let Some(holder) = seen.line.first() else { continue };
            let watch = self.core.watcher.watch([Target::Gone(holder.key.clone())], seen.revision + 1);
            self.core.roster().hang(self.claim.id, watch.bell());
            tokio::select! {
                rung = watch.rung() => rung?,
                () = patience.ended() => {}
                () = doubt.grows() => {}
            }
        }
        Ok(busy(1))
    }

    /// Puts the claim's key if it does not exist, and looks.
    async fn stand(&self) -> Result<Seen, Failure> {
        for _ in 0..ATTEMPTS {
            let seen = self.place(None).await?;
            if seen.own.is_some() {
                return Ok(seen);
            }
            if seen.endless {
                self.leave(MAX_LINE).await?;
                let detail = format!("{MAX_LINE} claims are queued for it already: try again later");
                return Err(Failure::unavailable(detail));
            }
        }
        Err(self.restless())
    }

    /// Takes what is free at once, or nothing.
    async fn glance(&self) -> Result<Step, Failure> {
        let line = self.core.layout.line(&self.claim.resource);
        // At first the queue may be empty; later, no claim may have come since the queue was seen.
        let mut since = 1;
        for _ in 0..ATTEMPTS {
            let seen = self.place(Some(nothing_since(&line, since))).await?;
            if let Some(own) = seen.own {
                let (ahead, entry) = (&seen.line[..own], &seen.line[own]);
                if !admits(ahead, entry.share) {
                    return self.leave(own).await;
                }
                if let Some(step) = self.take(&seen, entry).await? {
                    return Ok(step);
                }
                continue;
            }
            if !admits(&seen.line, self.claim.share) {
                return Ok(busy(seen.line.len()));
            }
            since = seen.revision + 1;
        }
        // So many come and go that no look is up to date: joining the queue for a moment is certain.
        let seen = self.stand().await?;
        if let Some(own) = seen.own
            && admits(&seen.line[..own], seen.line[own].share)
            && let Some(step) = self.take(&seen, &seen.line[own]).await?
        {
            return Ok(step);
        }
        self.leave(seen.own.unwrap_or_default()).await
    }

    /// Waits until this client has few enough requests under way, for as long as patience lasts. A
    /// request without patience may wait as long as for an answer.
    async fn turn(&self) -> Result<Pass<'_>, Failure> {
        let glances = self.patience.is_ended();
        let late = async {
            match glances {
                true => tokio::time::sleep(self.core.cluster.limit()).await,
                false => self.patience.ended().await,
            }
        };
        tokio::select! {
            biased;
            pass = self.core.entries.pass(self.core.now()) => Ok(pass),
            () = late => Err(Failure::unavailable(CROWDED)),
        }
    }

    /// Puts the key if it does not exist, perhaps under one more condition, and sees the queue in the
    /// same transaction.
    async fn place(&self, condition: Option<Compare>) -> Result<Seen, Failure> {
        let (core, claim) = (self.core, self.claim);
        let spot = core.spot(claim);
        if spot.whose == Whose::Others {
            return self.look_for_it().await;
        }
        let pass = self.turn().await?;
        let lease = self.visit.lease(claim).await.map_err(Refusal::into_failure)?;
        let looks = core.layout.looks_for(&core.layout.line(&claim.resource), claim.share);
        let looks: Vec<_> = looks.into_iter().map(|look| op(Request::Range(look))).collect();
        let mark = core.layout.mark(lease.id);
        let key = spot.erase.key;
        let absent = created_at(&key, 0);
        let put = PutRequest {
            value: core.layout.value(claim, spot.slot),
            key: key.clone(),
            lease: lease.id,
            ..PutRequest::default()
        };
        let request = TxnRequest {
            compare: condition.into_iter().chain([absent, version_is(&mark, lease.mark)]).collect(),
            success: [op(Request::Put(put))].into_iter().chain(looks.clone()).collect(),
            // The value of the key shows whose turn it is.
            failure: [look_up(&mark), RangeRequest { keys_only: false, ..look_up(&key) }]
                .into_iter()
                .map(|look| op(Request::Range(look)))
                .chain(looks)
                .collect(),
        };
        let before = core.roster().sending(claim.id, lease.mark);
        let stepped = core.step(claim, &lease, request).await;
        drop(pass);
        match stepped {
            Ok((answer, asked_at)) => {
                if !answer.doubt {
                    core.roster().answered(claim.id, before);
                }
                let was_put = answer.value.succeeded;
                let mut found: VecDeque<_> =
                    answer.value.responses.into_iter().filter_map(into_range).collect();
                let mut values = Vec::new();
                if !was_put {
                    let mark = found.pop_front().unwrap_or_default();
                    if let Some(kv) = mark.kvs.first() {
                        core.roster().marked(lease.id, kv.version);
                    }
                    values = found.pop_front().unwrap_or_default().kvs;
                }
                let mut all = found.pop_front().unwrap_or_default();
                values.extend(found.into_iter().flat_map(|found| found.kvs));
                fill_in(&mut all.kvs, values);
                let mut seen = self.read(answer.value.header, all, asked_at)?;
                self.join_other(&mut seen).await?;
                seen.firm = was_put && seen.own.is_some_and(|own| seen.line[own].key == key);
                if seen.own.is_none() && !seen.endless {
                    core.roster().absent(claim.id, asked_at);
                }
                Ok(seen)
            }
            Err(Refusal::NoSuchLease) => {
                let now = core.now();
                core.roster().lease_ended(lease.id, now);
                let line = Vec::new();
                Ok(Seen { line, endless: false, own: None, revision: 0, asked_at: now, firm: false })
            }
            Err(refusal) => {
                let failure = refusal.into_failure();
                if failure.effect == Effect::None {
                    core.roster().answered(claim.id, before);
                }
                Err(failure)
            }
        }
    }

    /// Looks at those ahead of a claim that is in the queue, and at itself. Takes what it waited for in the
    /// same transaction where no claim is ahead any more.
    async fn look(&self, mut entry: Entry) -> Result<Seen, Failure> {
        let layout = &self.core.layout;
        let line = layout.line(&self.claim.resource);
        let first = vec![changed_at(&entry.key, entry.changed), nothing_before(&line, entry.place)];
        let (answer, lease, asked_at) =
            self.see(layout.look_along(&line, entry.place), Some((&entry, first))).await?;
        if answer.succeeded {
            let revision = answer.header.map_or(0, |header| header.revision);
            (entry.lease, entry.changed) = (lease, revision);
            let line = vec![entry];
            return Ok(Seen { line, endless: false, own: Some(0), revision, asked_at, firm: true });
        }
        let mut seen = self.read_answer(answer, asked_at)?;
        // The id does not matter: another place than the one that was waited at is another claim's
        // history.
        let key = self.core.spot(self.claim).erase.key;
        seen.own = seen.line.iter().position(|seen| seen.place == entry.place && seen.key == key);
        Ok(seen)
    }

    /// Sees a queue as a quorum has it, or moves the key of the claim to the lease of its ttl where the
    /// conditions hold.
    async fn see(
        &self,
        line: RangeRequest,
        moves: Option<(&Entry, Vec<Compare>)>,
    ) -> Result<(TxnResponse, i64, Moment), Failure> {
        let _pass = self.turn().await?;
        let look = vec![op(Request::Range(line))];
        for _ in 0..ATTEMPTS {
            let lease = self.visit.lease(self.claim).await.map_err(Refusal::into_failure)?;
            let request = match &moves {
                Some((entry, compare)) => TxnRequest {
                    compare: compare.clone(),
                    success: vec![put_on(&entry.key, lease.id)],
                    failure: look.clone(),
                },
                None => TxnRequest { success: look.clone(), ..TxnRequest::default() },
            };
            match self.core.step(self.claim, &lease, request).await {
                Ok((answer, asked_at)) => return Ok((answer.value, lease.id, asked_at)),
                Err(Refusal::NoSuchLease) => {
                    let now = self.core.now();
                    self.core.roster().lease_ended(lease.id, now);
                }
                Err(refusal) => {
                    // The place in the queue is still there.
                    let mut failure = refusal.into_failure();
                    failure.effect = Effect::Unknown;
                    return Err(failure);
                }
            }
        }
        Err(self.restless())
    }

    /// Reads the only look of an answer.
    fn read_answer(&self, answer: TxnResponse, asked_at: Moment) -> Result<Seen, Failure> {
        let found = answer.responses.into_iter().find_map(into_range).unwrap_or_default();
        self.read(answer.header, found, asked_at)
    }

    fn read(&self, header: Option<Header>, found: RangeResponse, asked_at: Moment) -> Result<Seen, Failure> {
        let line = self.core.layout.read_line(&self.claim.resource, &found.kvs)?;
        let own = line.iter().position(|entry| entry.id == self.claim.id);
        tracing::trace!(resource = %self.claim.resource, len = line.len(), ?own, term = term(header), "seen");
        let revision = header.map_or(0, |header| header.revision);
        Ok(Seen { line, endless: found.more, own, revision, asked_at, firm: false })
    }

    /// Stands where another client has put the same claim. Of two places the earlier one counts.
    async fn join_other(&self, seen: &mut Seen) -> Result<(), Failure> {
        let core = self.core;
        let mine = core.spot(self.claim).erase.key;
        // The queue is in order, so what was found first is the earliest.
        let Some(first) = seen.own.filter(|own| seen.line[*own].key != mine) else { return Ok(()) };
        if let Some(entry) = seen.line.iter().find(|entry| entry.key == mine) {
            let erase = Erase { key: mine.clone(), only_if: vec![created_at(&mine, entry.place)] };
            crate::backend::release::end(core, &[self.claim.id], &[erase]).await?;
            seen.line.retain(|entry| entry.key != mine);
        }
        // The other client may use its key again: it is removed only as long as it is this claim's.
        let (key, place) = (seen.line[first].key.clone(), seen.line[first].place);
        let erase = Erase { only_if: vec![created_at(&key, place)], key };
        core.roster().move_to(self.claim, KeyRef { slot: Slot::Own, erase, whose: Whose::Others });
        Ok(())
    }

    /// Looks for a claim under the key where another client had put it. If it is gone, the next try is
    /// under a key of its own.
    async fn look_for_it(&self) -> Result<Seen, Failure> {
        let all = self.core.layout.look_at_all(&self.core.layout.line(&self.claim.resource));
        let (answer, _, asked_at) = self.see(all, None).await?;
        let seen = self.read_answer(answer, asked_at)?;
        if seen.own.is_none() {
            let spot = self.core.spot_in(self.claim, Slot::Own);
            self.core.roster().move_to(self.claim, spot);
        }
        Ok(seen)
    }

    fn granted(&self, entry: &Entry, asked_at: Moment) -> Result<Step, Failure> {
        let mut roster = self.core.roster();
        let lease = roster.lease_of(self.claim.id).filter(|lease| lease.id == entry.lease);
        let Some(lease) = lease else {
            drop(roster);
            return Err(Failure::unanswered("the lease of the claim ended as it was granted"));
        };
        let asked_at = lease.covers_from(self.claim.ttl, asked_at);
        // On the server it may have been granted just now.
        let padding = self.core.now().since(asked_at);
        let lost = roster.granted(self.claim.id, entry.place, asked_at.after(self.claim.ttl), padding);
        drop(roster);
        let seq = u64::try_from(entry.place).map_err(|_| {
            Failure::new(FailureKind::Foreign, Effect::Unknown, "the cluster's revision is below zero")
        })?;
        let proof = EtcdProof { key: entry.key.clone(), create_revision: entry.place };
        let fence = Some(Fence { epoch: 0, seq, sub: 0 });
        Ok(Step::Granted(Grant { asked_at, fence, lost, proof: Proof::of(proof) }))
    }

    /// Gives the place up.
    async fn leave(&self, ahead: usize) -> Result<Step, Failure> {
        let erase = self.core.spot(self.claim).erase;
        crate::backend::release::end(self.core, &[self.claim.id], &[erase]).await?;
        Ok(busy(ahead))
    }

    fn restless(&self) -> Failure {
        Failure::unanswered("its lease or its key was removed each time that it was queued")
    }
}

/// The time for which a watch is trusted on a server that may keep silent about a delete.
///
/// It does so when the watch is opened, if at all: so the first look comes early, and further ones, for
/// streams that were opened anew, more and more rarely.
struct WatchTimeout {
    watches: Watches,
    trusted: Duration,
}

impl WatchTimeout {
    fn of(core: &Core) -> WatchTimeout {
        WatchTimeout { watches: core.watches, trusted: TRUSTED }
    }

    /// Ends when it is time to look again.
    async fn grows(&mut self) {
        match self.watches {
            Watches::Whole => std::future::pending().await,
            Watches::MayMiss => tokio::time::sleep(self.trusted).await,
        }
        self.trusted = (self.trusted * TRUSTED_MORE).min(TRUSTED_MOST);
    }
}

/// Puts values that were looked at apart into a look at keys.
fn fill_in(line: &mut [KeyValue], values: Vec<KeyValue>) {
    let mut values: HashMap<Vec<u8>, Vec<u8>> = values.into_iter().map(|kv| (kv.key, kv.value)).collect();
    for kv in line {
        if let Some(value) = values.remove(&kv.key) {
            kv.value = value;
        }
    }
}

fn busy(ahead: usize) -> Step {
    Step::Busy(Hint { ask_again_in: None, ahead: Some(u32::try_from(ahead).unwrap_or(u32::MAX)) })
}

const CROWDED: &str =
    "so much is asked for at once that the server did not come to this: ask for fewer locks at a time";
const TRUSTED: Duration = Duration::from_secs(3);
const TRUSTED_MORE: u32 = 8;
const TRUSTED_MOST: Duration = Duration::from_secs(300);
/// The number of looks that one call takes before it returns all the same.
const STANDS: u32 = 1_000;
/// The number of attempts at a condition that others made untrue.
const ATTEMPTS: u32 = 4;
