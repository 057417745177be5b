//! The claims of this client and the leases that they are attached to. Pure code: time is passed in.
//!
//! Many claims share few leases. A claim that is not renewed ends by its own ttl all the same, because
//! the client that owns the lease also ends it: each claim has a state with its end. Ground rules: what a
//! lease covers is counted from before the request that last extended it; a claim on a lease that ended is
//! gone; a request that may still be under way is remembered with the mark of its lease, until
//! the mark was advanced. Losses are collected here. [`Access`] reports them once the lease table is
//! unlocked, since a listener may need it.

mod access;
mod erasing;
mod openings;
mod parking;

pub(crate) use access::Access;
pub(crate) use erasing::PutsBefore;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, LossCause, LossSignal, LossTrigger, Moment, Resource, Share};

use crate::net::watcher::Wakeup;
use crate::protocol::key_slots::{KeyRef, ReusedBy, Slot, Slots};
use crate::protocol::txn::{Erase, is_about_a_lease, lease_is};
use crate::state::lease::{Purpose, ServerLease};
use erasing::LateErases;
use openings::Openings;

/// All claims and leases.
#[derive(Debug, Default)]
pub(crate) struct LeaseTable {
    leases: HashMap<i64, ServerLease>,
    claims: HashMap<ClaimId, ClaimState>,
    /// The ends of claims without a caller, the earliest first.
    ends: BTreeSet<(Moment, ClaimId)>,
    openings: HashMap<Purpose, Openings>,
    slots: Slots,
    late_erases: LateErases,
    /// The losses that were not reported yet.
    losses: Vec<(LossTrigger, LossCause)>,
}

/// One claim.
#[derive(Debug)]
struct ClaimState {
    resource: Resource,
    share: Share,
    key_ref: KeyRef,
    /// The lease on which it holds, or is going to.
    lease: i64,
    /// The lease on which it waits, where its key was sent there.
    parked: Option<i64>,
    /// The revision that created its key, where it is granted.
    place: Option<i64>,
    until: Moment,
    /// The time after that at which its key is removed: from before it was asked for until it was
    /// granted.
    padding: Duration,
    /// The time at which the last look was sent that found it held.
    seen_at: Moment,
    callers: usize,
    /// The mark under which a request that may still arrive was sent.
    doubt: Option<i64>,
    wakeup: Option<Arc<Wakeup>>,
    loss: Option<(LossTrigger, LossSignal)>,
    /// Nothing of it is on the server, and nothing is under way.
    clear: bool,
    /// `true` if its key did not exist by the last answer, and no request has gone out since that could
    /// have put it.
    keyless: bool,
    /// The number of requests to remove its key that may still be under way.
    erasing: usize,
    /// The number of requests that were sent to put its key.
    puts: usize,
}

/// The state of a claim, for renewing and releasing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) erase: Erase,
    pub(crate) lease: i64,
    pub(crate) place: Option<i64>,
    pub(crate) seen_at: Moment,
    pub(crate) expired: bool,
    pub(crate) doubt: bool,
}

/// The lease for a claim.
#[derive(Clone, Debug)]
pub(crate) enum LeaseChoice {
    /// This lease.
    On(ServerLease),
    /// A lease that has to be opened first.
    Open,
    /// Others are opening the first lease of this length. So many openings had failed before.
    Soon(u64),
}

/// The work that is due now, and the moment to look again at the latest.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DueWork {
    pub(crate) keep: Vec<i64>,
    /// The same for leases on which claims only wait.
    pub(crate) keep_waiting: Vec<i64>,
    pub(crate) end: Vec<ClaimId>,
    pub(crate) next: Option<Moment>,
}

impl ClaimState {
    /// Returns `true` if nothing that was ever sent for this claim can still touch its key: then
    /// another one may use it.
    fn is_key_reusable(&self) -> bool {
        self.keyless && self.erasing == 0 && self.doubt.is_none() && self.key_ref.reused_by == ReusedBy::Us
    }

    /// Returns when its key is removed, unless it is contended for before.
    fn end(&self) -> Moment {
        self.until.after(self.padding)
    }

    /// Returns `true` if no caller contends for the claim and its end has come.
    fn is_due(&self, now: Moment) -> bool {
        self.callers == 0 && self.end() <= now
    }

    /// Returns `true` if a late request could still create the key: it was sent under the present mark
    /// of a lease that lives.
    fn is_unsettled(&self, mark: Option<i64>) -> bool {
        self.doubt.is_some() && self.doubt == mark
    }
}

impl LeaseTable {
    /// Chooses a lease for a claim: the one with the fewest claims that still runs.
    ///
    /// [`LeaseChoice::Open`] has to be followed by [`LeaseTable::opening_ended`], after
    /// [`LeaseTable::opened`] where that succeeds.
    pub(crate) fn choose_lease(&mut self, purpose: Purpose, now: Moment) -> LeaseChoice {
        self.leases.retain(|_, lease| lease.claims > 0 || lease.covers() > now);
        let same = self.leases.values().filter(|lease| purpose.suits(lease, now));
        let open = same.clone().count();
        let emptiest = same.min_by_key(|lease| (lease.claims, lease.id));
        let openings = self.openings.entry(purpose).or_default();
        match emptiest {
            Some(lease) if lease.claims == 0 || open + openings.under_way >= purpose.max_leases() => {
                LeaseChoice::On(lease.clone())
            }
            None if openings.under_way > 0 => LeaseChoice::Soon(openings.failed),
            _ => {
                openings.under_way += 1;
                LeaseChoice::Open
            }
        }
    }

    pub(crate) fn opened(
        &mut self,
        id: i64,
        purpose: Purpose,
        ttl: Duration,
        asked_at: Moment,
    ) -> ServerLease {
        let lease = ServerLease {
            id,
            purpose,
            ttl,
            kept_at: asked_at,
            mark: 0,
            claims: 0,
            waiters: 0,
            keep_again_at: Moment::START,
        };
        self.leases.insert(id, lease.clone());
        lease
    }

    pub(crate) fn lease(&self, id: i64) -> Option<&ServerLease> {
        self.leases.get(&id)
    }

    /// Returns the lease of a claim, while it is known to the server.
    pub(crate) fn lease_of(&self, claim: ClaimId) -> Option<ServerLease> {
        let state = self.claims.get(&claim)?;
        self.leases.get(&state.lease).cloned()
    }

    /// Begins a call: a caller contends for the claim, which does not end meanwhile. Returns `false` where the
    /// claim is not tracked.
    pub(crate) fn begin_call(&mut self, claim: ClaimId) -> bool {
        let Some(state) = self.claims.get_mut(&claim) else { return false };
        self.ends.remove(&(state.end(), claim));
        state.callers += 1;
        if state.callers == 1
            && let Some(lease) = self.leases.get_mut(&state.lease)
        {
            lease.waiters += 1;
        }
        true
    }

    /// Returns the slot for a claim that is not tracked; `fresh` is a new id for one. [`LeaseTable::insert`] has
    /// to follow.
    pub(crate) fn slot(&mut self, claim: &Claim, fresh: Option<ClaimId>) -> Slot {
        match self.slots.take(&claim.resource, claim.share, fresh) {
            Slot::Own if self.late_erases.contains(claim.id) => fresh.map_or(Slot::Own, Slot::Reused),
            slot => slot,
        }
    }

    /// Tracks a claim that was not tracked, with one caller.
    pub(crate) fn insert(&mut self, claim: &Claim, key_ref: KeyRef, lease: i64) {
        debug_assert!(!self.claims.contains_key(&claim.id), "tracked twice: {claim:?}");
        if let Some(lease) = self.leases.get_mut(&lease) {
            lease.claims += 1;
            lease.waiters += 1;
        }
        let state = ClaimState {
            resource: claim.resource.clone(),
            share: claim.share,
            key_ref,
            lease,
            parked: None,
            place: None,
            until: Moment::START,
            padding: Duration::ZERO,
            seen_at: Moment::START,
            callers: 1,
            doubt: None,
            wakeup: None,
            loss: None,
            clear: true,
            keyless: true,
            erasing: 0,
            puts: 0,
        };
        self.claims.insert(claim.id, state);
    }

    /// Returns the key of a claim; `None` where it is not tracked, or on another resource.
    pub(crate) fn key_ref(&self, claim: &Claim) -> Option<KeyRef> {
        self.claim_state(claim).map(|state| state.key_ref.clone())
    }

    /// Records that the claim turned out to be under another key.
    pub(crate) fn move_to(&mut self, claim: &Claim, key_ref: KeyRef) {
        if let Some(state) = self.claims.get_mut(&claim.id) {
            // It may be on the server, however little of this client's is.
            (state.key_ref, state.clear) = (key_ref, false);
            if std::mem::take(&mut state.erasing) > 0 {
                self.late_erases.insert(claim.id);
            }
        }
    }

    /// Ends a call. A claim that was not granted and that is not contended for again ends soon: returns when.
    pub(crate) fn end_call(&mut self, claim: ClaimId, now: Moment) -> Option<Moment> {
        let state = self.claims.get_mut(&claim)?;
        state.callers = state.callers.saturating_sub(1);
        if state.callers > 0 {
            return None;
        }
        state.wakeup = None;
        if let Some(lease) = self.leases.get_mut(&state.lease) {
            lease.waiters = lease.waiters.saturating_sub(1);
        }
        if state.clear {
            self.remove(claim);
            return None;
        }
        if state.place.is_none() {
            (state.until, state.padding) = (now.after(KEPT_PLACE), Duration::ZERO);
        }
        let end = state.end();
        self.ends.insert((end, claim));
        Some(end)
    }

    /// Returns the moment by which the lease of a claim has to be kept alive for those that wait on it.
    pub(crate) fn keepalive_due(&self, claim: ClaimId) -> Option<Moment> {
        let state = self.claims.get(&claim)?;
        self.leases.get(&state.lease).map(ServerLease::due)
    }

    /// Moves a claim with callers whose lease ended to another one.
    pub(crate) fn move_to_lease(&mut self, claim: ClaimId, lease: i64) {
        let Some(state) = self.claims.get_mut(&claim) else { return };
        let old = std::mem::replace(&mut state.lease, lease);
        state.doubt = None;
        for (id, step) in [(old, false), (lease, true)] {
            if let Some(lease) = self.leases.get_mut(&id) {
                let change = |count: usize| if step { count + 1 } else { count.saturating_sub(1) };
                (lease.claims, lease.waiters) = (change(lease.claims), change(lease.waiters));
            }
        }
    }

    /// Records that a request that creates the key is about to be sent. Returns the argument for
    /// [`LeaseTable::answered`].
    pub(crate) fn sending(&mut self, claim: ClaimId, mark: i64) -> Option<i64> {
        let state = self.claims.get_mut(&claim)?;
        (state.clear, state.keyless) = (false, false);
        state.puts += 1;
        state.doubt.replace(mark)
    }

    /// Records that the request was answered and was sent once only.
    pub(crate) fn answered(&mut self, claim: ClaimId, before: Option<i64>) {
        if let Some(state) = self.claims.get_mut(&claim) {
            (state.doubt, state.keyless) = (before, false);
        }
    }

    /// Records that the claim holds, up to `until` unless it is renewed. Its key is removed `padding`
    /// later, so that on the server no claim follows before a whole ttl is over.
    pub(crate) fn granted(
        &mut self,
        claim: ClaimId,
        place: i64,
        until: Moment,
        padding: Duration,
    ) -> Option<LossSignal> {
        self.unpark(claim);
        let state = self.claims.get_mut(&claim)?;
        state.place = Some(place);
        (state.until, state.padding) = (state.until.max(until), state.padding.max(padding));
        // This client keeps it itself.
        state.key_ref.erase.only_if.retain(|condition| !is_about_a_lease(condition));
        Some(state.loss.get_or_insert_with(LossTrigger::new).1.clone())
    }

    /// Records that another client may continue with the claim, on a lease of its own: it ends here only
    /// as long as none does, and its key is not used again.
    pub(crate) fn detach(&mut self, claim: ClaimId) {
        if let Some(state) = self.claims.get_mut(&claim) {
            let erase = &mut state.key_ref.erase;
            let on_this_lease = lease_is(&erase.key, state.lease);
            if !erase.only_if.contains(&on_this_lease) {
                erase.only_if.push(on_this_lease);
            }
            state.key_ref.reused_by = ReusedBy::None;
        }
    }

    /// Sets the wakeup of the claim's caller while it waits.
    pub(crate) fn set_wakeup(&mut self, claim: ClaimId, wakeup: &Arc<Wakeup>) {
        if let Some(state) = self.claims.get_mut(&claim) {
            state.wakeup = Some(wakeup.clone());
        }
    }

    pub(crate) fn view(&self, claim: &Claim, now: Moment) -> Option<View> {
        self.claim_state(claim).map(|state| self.view_of(state, now))
    }

    /// Returns the lease of the claim if a late request could still put its key.
    pub(crate) fn unsettled_lease(&self, claim: ClaimId) -> Option<i64> {
        let state = self.claims.get(&claim)?;
        let mark = self.leases.get(&state.lease).map(|lease| lease.mark);
        state.is_unsettled(mark).then_some(state.lease)
    }

    fn claim_state(&self, claim: &Claim) -> Option<&ClaimState> {
        let state = self.claims.get(&claim.id)?;
        (state.resource == claim.resource && state.share == claim.share).then_some(state)
    }

    fn view_of(&self, state: &ClaimState, now: Moment) -> View {
        let mark = self.leases.get(&state.lease).map(|lease| lease.mark);
        View {
            erase: state.key_ref.erase.clone(),
            lease: state.lease,
            place: state.place,
            seen_at: state.seen_at,
            expired: state.place.is_some() && state.until <= now,
            doubt: state.is_unsettled(mark),
        }
    }

    /// Records that the claim was renewed: it lasts for another ttl from when that was asked.
    /// Returns `false` where its end came first.
    pub(crate) fn renewed(&mut self, claim: &Claim, asked_at: Moment) -> bool {
        let Some(state) = self.claims.get_mut(&claim.id) else { return false };
        // A claim whose loss was reported is being ended.
        if state.until <= asked_at || state.loss.is_none() {
            return false;
        }
        let is_due = self.ends.remove(&(state.end(), claim.id));
        state.until = state.until.max(asked_at.after(claim.ttl));
        if is_due {
            self.ends.insert((state.end(), claim.id));
        }
        true
    }

    /// Records that a look that was sent at that moment found the claim held.
    pub(crate) fn seen(&mut self, claim: ClaimId, sent_at: Moment) {
        if let Some(state) = self.claims.get_mut(&claim) {
            state.seen_at = state.seen_at.max(sent_at);
        }
    }

    /// Returns `true` if the lease of the claim is known to run for a whole ttl from then on.
    pub(crate) fn is_covered(&self, claim: &Claim, from: Moment) -> bool {
        let state = self.claims.get(&claim.id);
        let lease = state.and_then(|state| self.leases.get(&state.lease));
        lease.is_some_and(|lease| !lease.is_short_of(claim.ttl, from))
    }

    /// Records that the key of the claim is gone. Requests for it may still be under way: then the claim
    /// is ended once more.
    fn ended(&mut self, claim: ClaimId, now: Moment) {
        let Some(state) = self.claims.get_mut(&claim) else { return };
        (state.place, state.loss, state.seen_at) = (None, None, Moment::START);
        let mark = self.leases.get(&state.lease).map(|lease| lease.mark);
        state.clear = !state.is_unsettled(mark);
        match (state.callers, state.clear) {
            (0, true) => self.remove(claim),
            (0, false) => self.end_later(claim, now),
            // The caller that contends for it does the rest.
            _ => {}
        }
    }

    /// Records that the claim was found gone.
    pub(crate) fn lost(&mut self, claim: ClaimId, cause: LossCause, now: Moment) {
        if let Some((trigger, _)) = self.claims.get_mut(&claim).and_then(|state| state.loss.take()) {
            self.losses.push((trigger, cause));
        }
        self.ended(claim, now);
    }

    /// Records that a look found that nothing of the claim is in the queue, and put nothing there.
    pub(crate) fn absent(&mut self, claim: ClaimId, now: Moment) {
        if let Some(state) = self.claims.get_mut(&claim) {
            state.keyless = true;
        }
        self.lost(claim, LossCause::Gone, now);
    }

    /// Returns `true` if nothing of the claim is on the server or under way.
    pub(crate) fn is_clear(&self, claim: ClaimId) -> bool {
        self.claims.get(&claim).is_none_or(|state| state.clear)
    }

    /// Records that an attempt to end a claim that is due failed; it is tried again.
    pub(crate) fn end_again(&mut self, claim: ClaimId, now: Moment, at: Moment) {
        if self.claims.get(&claim).is_some_and(|state| state.is_due(now)) {
            self.end_later(claim, at);
        }
    }

    /// Has the claim ended at that moment, unless a caller contends for it.
    fn end_later(&mut self, claim: ClaimId, at: Moment) {
        if let Some(state) = self.claims.get_mut(&claim)
            && state.callers == 0
        {
            self.ends.remove(&(state.end(), claim));
            (state.until, state.padding) = (at, Duration::ZERO);
            self.ends.insert((at, claim));
        }
    }

    /// Records that the lease runs from `asked_at` for `ttl`.
    pub(crate) fn extended(&mut self, id: i64, asked_at: Moment, ttl: Duration) {
        if let Some(lease) = self.leases.get_mut(&id)
            && asked_at.after(ttl) >= lease.covers()
        {
            (lease.kept_at, lease.ttl) = (asked_at, ttl);
        }
    }

    /// Records that the mark of the lease was advanced.
    pub(crate) fn mark_advanced(&mut self, id: i64, mark: i64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.mark = lease.mark.max(mark);
        }
    }

    /// Records that the server does not know the lease any more: a claim that holds on it has lost, a
    /// claim that waits has to join the queue again.
    pub(crate) fn lease_ended(&mut self, id: i64, now: Moment) {
        if self.leases.remove(&id).is_none() {
            return;
        }
        let on_it: Vec<ClaimId> =
            self.claims.iter().filter(|(_, state)| state.lease == id).map(|(claim, _)| *claim).collect();
        for claim in on_it {
            // A claim that waits on another lease has its key there, and gets another lease when its turn comes.
            let is_on_it = |state: &ClaimState| state.place.is_some() || state.parked.is_none();
            if self.claims.get(&claim).is_some_and(is_on_it) {
                self.lost(claim, LossCause::SessionEnded, now);
            }
            if let Some(state) = self.claims.get(&claim)
                && let Some(wakeup) = &state.wakeup
            {
                wakeup.wake(None);
            }
        }
        self.parking_ended(id);
    }

    /// Returns the work that is due now. Leases are kept alive for those that wait; for those that
    /// hold, their renewals do it.
    pub(crate) fn due_work(&mut self, now: Moment, max_ends: usize) -> DueWork {
        let mut work = DueWork::default();
        for lease in self.leases.values_mut().filter(|lease| lease.waiters > 0) {
            let due = lease.due();
            if due <= now {
                lease.keep_again_at = now.after(lease.ttl / 20);
                match lease.purpose {
                    Purpose::Hold(_) => work.keep.push(lease.id),
                    Purpose::Wait => work.keep_waiting.push(lease.id),
                }
            }
            let due = due.max(lease.keep_again_at);
            work.next = Some(work.next.map_or(due, |next| next.min(due)));
        }
        while let Some((until, claim)) = self.ends.first().copied() {
            if until > now || work.end.len() >= max_ends {
                work.next = Some(work.next.map_or(until, |next| next.min(until)));
                break;
            }
            self.ends.pop_first();
            let Some(state) = self.claims.get_mut(&claim) else { continue };
            if let Some((trigger, _)) = state.loss.take() {
                self.losses.push((trigger, LossCause::Expired));
            }
            work.end.push(claim);
        }
        work
    }

    /// Wakes the waiters on leases that may have ended by now.
    pub(crate) fn wake_lapsed(&self, now: Moment) {
        for state in self.claims.values() {
            let on = self.leases.get(&state.parked.unwrap_or(state.lease));
            if let Some(wakeup) = &state.wakeup
                && on.is_some_and(|lease| lease.covers() <= now)
            {
                wakeup.wake(None);
            }
        }
    }

    fn remove(&mut self, claim: ClaimId) {
        self.unpark(claim);
        let Some(state) = self.claims.remove(&claim) else { return };
        self.ends.remove(&(state.end(), claim));
        if let Some(lease) = self.leases.get_mut(&state.lease) {
            lease.claims = lease.claims.saturating_sub(1);
        }
        if state.erasing > 0 {
            self.late_erases.insert(claim);
        }
        if state.is_key_reusable() {
            self.slots.put_back(&state.resource, state.share, state.key_ref.slot);
        }
    }
}

/// The time for which a place in the queue is kept for a claim whose last call failed.
pub(crate) const KEPT_PLACE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::error::Refusal;
    use leasehold_core::{Resource, Share};

    fn id(n: u8) -> ClaimId {
        ClaimId::from_bytes([n; 16])
    }

    fn key(n: u8) -> Erase {
        Erase { key: vec![n], only_if: Vec::new() }
    }

    fn key_ref(n: u8, slot: Slot) -> KeyRef {
        KeyRef { slot, erase: key(n), reused_by: ReusedBy::Us }
    }

    fn insert(table: &mut LeaseTable, n: u8, lease: i64) {
        table.insert(&claim(n, TEN), key_ref(n, Slot::Own), lease);
    }

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn claim(n: u8, ttl: Duration) -> Claim {
        let resource = Resource::new("job").unwrap();
        Claim::new(id(n), resource, Share::MUTEX, ttl)
    }

    const TEN: Duration = Duration::from_secs(10);
    const ELEVEN: Purpose = Purpose::Hold(11);

    fn table() -> LeaseTable {
        let mut table = LeaseTable::default();
        assert!(matches!(table.choose_lease(ELEVEN, at(0)), LeaseChoice::Open));
        table.opened(1, ELEVEN, Duration::from_secs(11), at(0));
        table.opening_ended(ELEVEN);
        table
    }

    /// Reports losses as [`Access`] does when it is dropped.
    fn report(table: &mut LeaseTable) {
        table.losses.drain(..).for_each(|(trigger, cause)| trigger.fire(cause));
    }

    #[test]
    fn claims_spread_over_a_bounded_number_of_leases() {
        let mut table = LeaseTable::default();
        let mut next = 0;
        for n in 0..100 {
            let lease = match table.choose_lease(ELEVEN, at(0)) {
                LeaseChoice::On(lease) => lease.id,
                LeaseChoice::Open => {
                    next += 1;
                    table.opening_ended(ELEVEN);
                    table.opened(next, ELEVEN, TEN, at(0)).id
                }
                LeaseChoice::Soon(_) => panic!("nothing is being opened"),
            };
            insert(&mut table, n, lease);
        }
        assert_eq!(next, ELEVEN.max_leases() as i64);
        let counts: Vec<usize> = table.leases.values().map(|lease| lease.claims).collect();
        assert!(counts.iter().all(|count| (12..=13).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_first_lease_is_opened_once_and_a_free_one_is_used_again() {
        let mut table = LeaseTable::default();
        assert!(matches!(table.choose_lease(ELEVEN, at(0)), LeaseChoice::Open));
        assert!(matches!(table.choose_lease(ELEVEN, at(0)), LeaseChoice::Soon(0)));
        assert!(table.opening_refusal(ELEVEN, 0).is_none());
        table.opening_failed(ELEVEN, Refusal::LeaseExists);
        table.opening_ended(ELEVEN);
        assert!(table.opening_refusal(ELEVEN, 0).is_some() && table.opening_refusal(ELEVEN, 1).is_none());
        assert!(matches!(table.choose_lease(ELEVEN, at(0)), LeaseChoice::Open));
        table.opened(1, ELEVEN, TEN, at(0));
        table.opening_ended(ELEVEN);
        assert!(matches!(table.choose_lease(ELEVEN, at(5)), LeaseChoice::On(lease) if lease.id == 1));
        assert!(matches!(table.choose_lease(ELEVEN, at(10_000)), LeaseChoice::Open), "it ran out");
    }

    #[test]
    fn unrenewed_grant_ends_after_its_own_ttl() {
        let mut table = table();
        insert(&mut table, 1, 1);
        table.sending(id(1), 0);
        table.answered(id(1), None);
        let signal = table.granted(id(1), 7, at(10_000), Duration::ZERO).unwrap();
        table.end_call(id(1), at(5));
        assert_eq!(table.due_work(at(9_999), 10).end, []);
        assert!(table.renewed(&claim(1, TEN), at(9_000)));
        assert_eq!(table.due_work(at(18_999), 10).end, []);
        assert!(!table.view(&claim(1, TEN), at(18_999)).unwrap().expired);
        assert!(table.view(&claim(1, TEN), at(19_000)).unwrap().expired);
        assert!(!table.renewed(&claim(1, TEN), at(19_000)), "what has ended is not renewed");
        assert_eq!(table.due_work(at(19_000), 10).end, [id(1)]);
        assert_eq!(signal.cause(), None, "not before the lease table is unlocked");
        report(&mut table);
        assert_eq!(signal.cause(), Some(LossCause::Expired));
        table.end_later(id(1), at(20_000));
        assert_eq!(table.due_work(at(20_000), 10).end.len(), 1);
        erase(&mut table, false, at(20_000));
        assert_eq!(table.view(&claim(1, TEN), at(20_000)), None);
    }

    #[test]
    fn a_claim_that_is_being_ended_is_not_renewed() {
        let mut table = table();
        insert(&mut table, 1, 1);
        put_key(&mut table);
        table.granted(id(1), 7, at(10_000), Duration::from_millis(5));
        table.end_call(id(1), at(5));
        assert_eq!(table.due_work(at(10_005), 10).end, [id(1)]);
        // This was asked in time, and its answer is late.
        assert!(!table.renewed(&claim(1, TEN), at(9_999)), "its loss is reported");
        assert_eq!(table.erasing_due(&[id(1)], at(10_006)).len(), 1);
        table.end_again(id(1), at(10_006), at(11_006));
        assert!(!table.renewed(&claim(1, TEN), at(9_999)));
        assert_eq!(table.due_work(at(11_006), 10).end, [id(1)]);
    }

    #[test]
    fn a_key_goes_a_whole_ttl_after_the_grant_had_arrived() {
        let mut table = table();
        insert(&mut table, 1, 1);
        table.sending(id(1), 0);
        table.answered(id(1), None);
        // Asked at 0, answered at 700 ms: on the server it may have been granted just before that.
        table.granted(id(1), 7, at(10_000), Duration::from_millis(700));
        table.end_call(id(1), at(700));
        assert!(table.view(&claim(1, TEN), at(10_000)).unwrap().expired, "the client counts from before");
        assert_eq!(table.due_work(at(10_699), 10).end, []);
        assert_eq!(table.due_work(at(10_700), 10).end, [id(1)]);
    }

    #[test]
    fn dropped_wait_is_ended_and_an_empty_one_is_forgotten() {
        let mut table = table();
        insert(&mut table, 1, 1);
        table.sending(id(1), 0);
        table.end_call(id(1), at(5));
        assert_eq!(table.due_work(at(2_004), 10).end, [], "it may be asked for again");
        assert_eq!(table.due_work(at(2_005), 10).end, [id(1)]);
        insert(&mut table, 2, 1);
        table.end_call(id(2), at(5));
        assert_eq!(table.view(&claim(2, TEN), at(5)), None);
    }

    #[test]
    fn a_request_under_way_is_remembered_until_the_mark_moves() {
        let mut table = table();
        insert(&mut table, 1, 1);
        let before = table.sending(id(1), 0);
        table.answered(id(1), before);
        assert!(!table.view(&claim(1, TEN), at(0)).unwrap().doubt);
        // One is not answered, the next one is: the first may still arrive.
        table.sending(id(1), 0);
        let before = table.sending(id(1), 0);
        table.answered(id(1), before);
        assert!(table.view(&claim(1, TEN), at(0)).unwrap().doubt);
        table.ended(id(1), at(0));
        assert!(!table.is_clear(id(1)), "its key is gone, a request may still come");
        table.mark_advanced(1, 1);
        assert!(!table.view(&claim(1, TEN), at(0)).unwrap().doubt);
        table.ended(id(1), at(0));
        assert!(table.is_clear(id(1)));
    }

    /// Removes the key of the claim 1.
    fn erase(table: &mut LeaseTable, repeated: bool, now: Moment) {
        let puts_before = table.erasing(id(1), &[1]).unwrap();
        table.erased(id(1), &[1], puts_before, repeated, now);
    }

    /// Returns `true` if the next claim on the same name gets the slot of this one.
    fn is_used_again(end: impl Fn(&mut LeaseTable)) -> bool {
        let mut table = table();
        let slot = Slot::Reused(id(9));
        table.insert(&claim(1, TEN), key_ref(1, slot), 1);
        end(&mut table);
        assert_eq!(table.view(&claim(1, TEN), at(9)), None, "it is still tracked");
        table.slot(&claim(2, TEN), Some(id(2))) == slot
    }

    fn put_key(table: &mut LeaseTable) {
        let before = table.sending(id(1), 0);
        table.answered(id(1), before);
    }

    #[test]
    fn a_key_is_used_again_once_nothing_that_was_sent_can_touch_it() {
        assert!(is_used_again(|table| {
            put_key(table);
            table.granted(id(1), 7, at(10_000), Duration::ZERO);
            table.end_call(id(1), at(5));
            erase(table, false, at(6));
        }));
        assert!(is_used_again(|table| {
            put_key(table);
            table.absent(id(1), at(5));
            table.end_call(id(1), at(5));
        }));
        let left_at_once = is_used_again(|table| {
            table.end_call(id(1), at(5));
        });
        assert!(left_at_once, "nothing was sent at all");
        let two_deletes = is_used_again(|table| {
            put_key(table);
            table.end_call(id(1), at(5));
            table.erasing(id(1), &[1]);
            erase(table, false, at(6));
        });
        assert!(!two_deletes, "one of them may still arrive");
        assert!(!is_used_again(|table| {
            put_key(table);
            table.end_call(id(1), at(5));
            erase(table, true, at(6));
        }));
        assert!(!is_used_again(|table| {
            table.sending(id(1), 0);
            table.mark_advanced(1, 1);
            table.end_call(id(1), at(5));
            erase(table, false, at(6));
        }));
        assert!(!is_used_again(|table| {
            put_key(table);
            table.granted(id(1), 7, at(10_000), Duration::ZERO);
            table.end_call(id(1), at(5));
            table.lost(id(1), LossCause::Gone, at(6));
        }));
        assert!(!is_used_again(|table| {
            put_key(table);
            table.move_to(
                &claim(1, TEN),
                KeyRef { reused_by: ReusedBy::Others, ..key_ref(1, Slot::Reused(id(9))) },
            );
            table.end_call(id(1), at(5));
            erase(table, false, at(6));
        }));
    }

    #[test]
    fn a_claim_whose_own_key_may_be_removed_late_gets_another_key() {
        let mut table = table();
        insert(&mut table, 1, 1);
        put_key(&mut table);
        table.end_call(id(1), at(0));
        assert_eq!(table.due_work(at(2_000), 10).end, [id(1)]);
        let [(due, removed, of_sweep)] = table.erasing_due(&[id(1)], at(2_000)).try_into().unwrap();
        assert_eq!((due, removed), (id(1), key(1)));
        assert!(table.begin_call(id(1)) && table.is_erasing(id(1)));
        // Its caller has its key removed, too.
        table.change_key(id(1), key_ref(2, Slot::Reused(id(2))));
        assert_eq!(table.key_ref(&claim(1, TEN)), Some(key_ref(1, Slot::Own)), "the key may exist");
        erase(&mut table, false, at(2_001));
        table.change_key(id(1), key_ref(2, Slot::Reused(id(2))));
        assert!(!table.is_erasing(id(1)));
        put_key(&mut table);
        let signal = table.granted(id(1), 7, at(12_000), Duration::ZERO).unwrap();
        table.end_call(id(1), at(2_002));
        // The answer about the key of before ends nothing, and neither does its absence.
        table.erased(id(1), &[1], of_sweep, false, at(2_003));
        table.end_again(id(1), at(2_003), at(3_003));
        assert_eq!(table.due_work(at(11_999), 10).end, []);
        assert_eq!((table.view(&claim(1, TEN), at(2_003)).unwrap().place, signal.cause()), (Some(7), None));
        // What may remove the key of before does not concern one to which the claim moved.
        assert!(table.erasing(id(1), &[2]).is_some());
        table.move_to(&claim(1, TEN), key_ref(3, Slot::Own));
        assert!(!table.is_erasing(id(1)) && table.may_be_erased_late(id(1)));
        table.move_to(&claim(1, TEN), key_ref(2, Slot::Reused(id(2))));
        // Removed for good by a request that was repeated, it is not tracked any more.
        let puts_before = table.erasing(id(1), &[2]).unwrap();
        table.erased(id(1), &[2], puts_before, true, at(2_004));
        assert_eq!(table.view(&claim(1, TEN), at(2_004)), None);
        assert_eq!(table.slot(&claim(1, TEN), Some(id(3))), Slot::Reused(id(3)));
        assert_eq!(table.slot(&claim(2, TEN), Some(id(3))), Slot::Own);
        table.erases_late(id(2));
        assert_eq!(table.slot(&claim(2, TEN), Some(id(3))), Slot::Reused(id(3)));
    }

    #[test]
    fn a_delete_ends_no_put_that_may_have_come_after_it() {
        let mut table = table();
        table.insert(&claim(1, TEN), key_ref(1, Slot::Reused(id(9))), 1);
        let delete = table.erasing(id(1), &[1]).unwrap();
        // The server carries out the delete first, and the answer to the put arrives first.
        put_key(&mut table);
        table.erased(id(1), &[1], delete, false, at(1));
        assert!(!table.is_clear(id(1)), "its key is in the queue");
        // A put that is under way as the delete is sent may also come after it.
        let before = table.sending(id(1), 0);
        let delete = table.erasing(id(1), &[1]).unwrap();
        table.answered(id(1), before);
        let signal = table.granted(id(1), 7, at(10_000), Duration::ZERO).unwrap();
        table.erased(id(1), &[1], delete, false, at(2));
        table.end_call(id(1), at(3));
        assert_eq!(table.view(&claim(1, TEN), at(3)).unwrap().place, Some(7));
        assert_eq!(table.due_work(at(10_000), 10).end, [id(1)]);
        report(&mut table);
        assert_eq!(signal.cause(), Some(LossCause::Expired));
        // A delete after all puts frees the key for the next claim.
        erase(&mut table, false, at(10_000));
        assert_eq!(table.view(&claim(1, TEN), at(10_000)), None);
        assert_eq!(table.slot(&claim(2, TEN), Some(id(2))), Slot::Reused(id(9)));
    }

    #[test]
    fn a_claim_that_is_contended_for_again_is_not_ended() {
        let mut table = table();
        insert(&mut table, 1, 1);
        put_key(&mut table);
        table.end_call(id(1), at(0));
        assert_eq!(table.due_work(at(2_000), 10).end, [id(1)]);
        table.begin_call(id(1));
        assert_eq!(table.erasing_due(&[id(1)], at(2_001)), []);
        table.granted(id(1), 7, at(12_001), Duration::ZERO);
        table.end_call(id(1), at(2_002));
        assert_eq!(table.erasing_due(&[id(1)], at(2_003)), []);
        assert_eq!(table.erasing_due(&[id(1)], at(12_001)).len(), 1);
    }

    #[test]
    fn ended_lease_ends_its_grants_and_wakes_its_waiters() {
        let mut table = table();
        insert(&mut table, 1, 1);
        table.sending(id(1), 0);
        let signal = table.granted(id(1), 7, at(10_000), Duration::ZERO).unwrap();
        table.end_call(id(1), at(5));
        insert(&mut table, 2, 1);
        let wakeup = Arc::new(Wakeup::default());
        table.set_wakeup(id(2), &wakeup);
        table.lease_ended(1, at(6));
        report(&mut table);
        assert_eq!(signal.cause(), Some(LossCause::SessionEnded));
        assert_eq!(table.view(&claim(1, TEN), at(5)), None);
        assert!(table.lease(1).is_none());
        table.opened(2, ELEVEN, TEN, at(10));
        table.move_to_lease(id(2), 2);
        assert_eq!(table.view(&claim(2, TEN), at(10)).map(|view| view.lease), Some(2));
        assert_eq!(table.leases[&2].waiters, 1);
        table.end_call(id(2), at(11));
        assert_eq!((table.leases[&2].waiters, table.leases[&2].claims), (0, 0));
    }

    #[test]
    fn a_wait_outlasts_the_lease_that_it_will_hold_on() {
        let mut table = table();
        table.opened(2, Purpose::Wait, Duration::from_secs(2), at(0));
        insert(&mut table, 1, 1);
        table.sending(id(1), 0);
        table.park(id(1), 2);
        assert_eq!(table.due_work(at(700), 10).keep_waiting, [2]);
        table.lease_ended(1, at(800));
        assert_eq!((table.parked_on(id(1)), table.is_clear(id(1))), (Some(2), false));
        table.opened(3, ELEVEN, TEN, at(900));
        table.move_to_lease(id(1), 3);
        let signal = table.granted(id(1), 7, at(10_900), Duration::ZERO).unwrap();
        assert_eq!((table.parked_on(id(1)), table.leases[&2].claims), (None, 0));
        // Another call of the same claim that still waits does not make it less of a holder.
        table.park(id(1), 2);
        table.lease_ended(3, at(1_000));
        report(&mut table);
        assert_eq!(signal.cause(), Some(LossCause::SessionEnded));
    }

    #[test]
    fn leases_are_kept_alive_while_claims_wait_on_them() {
        let mut table = table();
        insert(&mut table, 1, 1);
        assert_eq!(table.due_work(at(3_000), 10).keep, [0i64; 0]);
        assert_eq!(table.due_work(at(3_667), 10).keep, [1]);
        assert_eq!(table.due_work(at(3_668), 10).keep, [0i64; 0], "it is being done");
        table.extended(1, at(3_667), Duration::from_secs(11));
        assert_eq!(table.lease(1).unwrap().covers(), at(14_667));
        table.extended(1, at(2_000), Duration::from_secs(11));
        assert_eq!(table.lease(1).unwrap().covers(), at(14_667), "never shortened");
        table.end_call(id(1), at(4_000));
        assert_eq!(table.due_work(at(60_000), 10).keep, [0i64; 0]);
    }

    #[test]
    fn a_grant_counts_from_when_its_lease_covers_it() {
        let mut table = table();
        let lease = table.lease(1).unwrap().clone();
        assert_eq!(lease.covers_from(TEN, at(500)), at(500));
        assert_eq!(lease.covers_from(TEN, at(5_000)), at(1_000));
        assert!(lease.is_short_of(TEN, at(1_001)) && !lease.is_short_of(TEN, at(1_000)));
        table.extended(1, at(5_000), Duration::from_secs(11));
        assert_eq!(table.lease(1).unwrap().covers_from(TEN, at(5_000)), at(5_000));
    }
}
