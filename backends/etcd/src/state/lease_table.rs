//! The claims of this client and the leases that they are attached to. Pure code: time is passed in.
//!
//! Many claims share few leases. A claim that is not renewed ends by its own ttl all the same, because
//! the client that shares the lease out also ends it: each claim has a seat with its end. Ground rules:
//! what a lease covers is counted from before the request that last extended it; a seat on a lease that
//! ended is gone; a request that may still be under way is remembered with the mark of its lease, until
//! the mark was advanced. Losses are collected here. [`Access`] reports them once the lease table is
//! unlocked, since a listener may need it.

mod access;
mod parking;

pub(crate) use access::Access;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, LossCause, LossSignal, LossTrigger, Moment, Resource, Share};

use crate::net::watcher::Bell;
use crate::protocol::key_slots::{KeyRef, Slot, Slots, Whose};
use crate::protocol::txn::{Erase, is_about_a_lease, lease_is};
use crate::state::lease::{Lease, Purpose};

/// All seats and leases.
#[derive(Debug, Default)]
pub(crate) struct LeaseTable {
    leases: HashMap<i64, Lease>,
    seats: HashMap<ClaimId, ClaimState>,
    /// The ends of seats without a visitor, the earliest first.
    ends: BTreeSet<(Moment, ClaimId)>,
    /// Leases that are being opened.
    opening: HashMap<Purpose, usize>,
    slots: Slots,
    /// The losses that were not reported yet.
    losses: Vec<(LossTrigger, LossCause)>,
}

/// One claim.
#[derive(Debug)]
struct ClaimState {
    resource: Resource,
    share: Share,
    spot: KeyRef,
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
    visitors: usize,
    /// The mark under which a request that may still arrive was sent.
    doubt: Option<i64>,
    bell: Option<Arc<Bell>>,
    loss: Option<(LossTrigger, LossSignal)>,
    /// Nothing of it is on the server, and nothing is under way.
    clear: bool,
    /// `true` if its key did not exist by the last answer, and no request has gone out since that could
    /// have put it.
    keyless: bool,
    /// The number of requests to remove its key that may still be under way.
    erasing: usize,
}

/// The state of a seat, for renewing and releasing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) erase: Erase,
    pub(crate) lease: i64,
    pub(crate) place: Option<i64>,
    pub(crate) seen_at: Moment,
    pub(crate) expired: bool,
    pub(crate) doubt: bool,
}

/// The room in which a claim can be seated.
#[derive(Clone, Debug)]
pub(crate) enum LeaseChoice {
    /// Room on this lease.
    On(Lease),
    /// Room on a lease that has to be opened first.
    Open,
    /// Others are opening the first lease of this length.
    Soon,
}

/// The work that is due now, and the moment to look again at the latest.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DueWork {
    pub(crate) keep: Vec<i64>,
    /// The same for leases on which claims only wait.
    pub(crate) keep_waiting: Vec<i64>,
    pub(crate) end: Vec<(ClaimId, Erase)>,
    pub(crate) next: Option<Moment>,
}

impl ClaimState {
    /// Returns `true` if nothing that was ever sent for this claim can still touch its key: then
    /// another one may use it.
    fn is_spotless(&self) -> bool {
        self.keyless && self.erasing == 0 && self.doubt.is_none() && self.spot.whose == Whose::Ours
    }

    /// Returns when its key is removed, unless it is visited before.
    fn end(&self) -> Moment {
        self.until.after(self.padding)
    }

    /// Returns `true` if a late request could still create the key: it was sent under the present mark
    /// of a lease that lives.
    fn is_unsettled(&self, mark: Option<i64>) -> bool {
        self.doubt.is_some() && self.doubt == mark
    }
}

impl LeaseTable {
    /// Finds room for a claim, on the emptiest lease that still runs.
    ///
    /// [`LeaseChoice::Open`] has to be followed by [`LeaseTable::opening_ended`], after [`LeaseTable::opened`] where that succeeds.
    pub(crate) fn room(&mut self, purpose: Purpose, now: Moment) -> LeaseChoice {
        self.leases.retain(|_, lease| lease.seats > 0 || lease.covers() > now);
        let same = self.leases.values().filter(|lease| purpose.suits(lease, now));
        let open = same.clone().count();
        let emptiest = same.min_by_key(|lease| (lease.seats, lease.id));
        let opening = self.opening.entry(purpose).or_default();
        match emptiest {
            Some(lease) if lease.seats == 0 || open + *opening >= purpose.most() => {
                LeaseChoice::On(lease.clone())
            }
            None if *opening > 0 => LeaseChoice::Soon,
            _ => {
                *opening += 1;
                LeaseChoice::Open
            }
        }
    }

    pub(crate) fn opened(&mut self, id: i64, purpose: Purpose, ttl: Duration, asked_at: Moment) -> Lease {
        let lease = Lease {
            id,
            purpose,
            ttl,
            kept_at: asked_at,
            mark: 0,
            seats: 0,
            waiters: 0,
            keep_again_at: Moment::START,
        };
        self.leases.insert(id, lease.clone());
        lease
    }

    pub(crate) fn opening_ended(&mut self, purpose: Purpose) {
        if let Some(opening) = self.opening.get_mut(&purpose) {
            *opening = opening.saturating_sub(1);
        }
    }

    pub(crate) fn lease(&self, id: i64) -> Option<&Lease> {
        self.leases.get(&id)
    }

    /// Returns the lease that a claim is seated on, while it is known to the server.
    pub(crate) fn lease_of(&self, claim: ClaimId) -> Option<Lease> {
        let seat = self.seats.get(&claim)?;
        self.leases.get(&seat.lease).cloned()
    }

    /// Begins a visit: a caller contends for the claim. Its seat does not end meanwhile. Returns
    /// `false` where it has none.
    pub(crate) fn visit(&mut self, claim: ClaimId) -> bool {
        let Some(seat) = self.seats.get_mut(&claim) else { return false };
        self.ends.remove(&(seat.end(), claim));
        seat.visitors += 1;
        if seat.visitors == 1
            && let Some(lease) = self.leases.get_mut(&seat.lease)
        {
            lease.waiters += 1;
        }
        true
    }

    /// Returns the slot for a claim that has no seat; `fresh` is a new id for one. [`LeaseTable::seat`] has
    /// to follow.
    pub(crate) fn slot(&mut self, claim: &Claim, fresh: Option<ClaimId>) -> Slot {
        self.slots.take(&claim.resource, claim.share, fresh)
    }

    /// Seats a claim that has no seat, with one visitor.
    pub(crate) fn seat(&mut self, claim: &Claim, spot: KeyRef, lease: i64) {
        debug_assert!(!self.seats.contains_key(&claim.id), "seated twice: {claim:?}");
        if let Some(lease) = self.leases.get_mut(&lease) {
            lease.seats += 1;
            lease.waiters += 1;
        }
        let seat = ClaimState {
            resource: claim.resource.clone(),
            share: claim.share,
            spot,
            lease,
            parked: None,
            place: None,
            until: Moment::START,
            padding: Duration::ZERO,
            seen_at: Moment::START,
            visitors: 1,
            doubt: None,
            bell: None,
            loss: None,
            clear: true,
            keyless: true,
            erasing: 0,
        };
        self.seats.insert(claim.id, seat);
    }

    /// Returns where a claim is; `None` where it has no seat, or one on another resource.
    pub(crate) fn spot(&self, claim: &Claim) -> Option<KeyRef> {
        self.seat_of(claim).map(|seat| seat.spot.clone())
    }

    /// Notes that the claim turned out to be under another key.
    pub(crate) fn move_to(&mut self, claim: &Claim, spot: KeyRef) {
        if let Some(seat) = self.seats.get_mut(&claim.id) {
            // It may be on the server, however little of this client's is.
            (seat.spot, seat.clear) = (spot, false);
        }
    }

    /// Ends a visit. A claim that was not granted and that is not visited again ends soon: returns
    /// when.
    pub(crate) fn leave(&mut self, claim: ClaimId, now: Moment) -> Option<Moment> {
        let seat = self.seats.get_mut(&claim)?;
        seat.visitors = seat.visitors.saturating_sub(1);
        if seat.visitors > 0 {
            return None;
        }
        seat.bell = None;
        if let Some(lease) = self.leases.get_mut(&seat.lease) {
            lease.waiters = lease.waiters.saturating_sub(1);
        }
        if seat.clear {
            self.remove(claim);
            return None;
        }
        if seat.place.is_none() {
            (seat.until, seat.padding) = (now.after(KEPT_PLACE), Duration::ZERO);
        }
        let end = seat.end();
        self.ends.insert((end, claim));
        Some(end)
    }

    /// Returns the moment by which the lease of a claim has to be kept alive for those that wait on it.
    pub(crate) fn kept_by(&self, claim: ClaimId) -> Option<Moment> {
        let seat = self.seats.get(&claim)?;
        self.leases.get(&seat.lease).map(Lease::due)
    }

    /// Gives a visited claim whose lease ended a place on another one.
    pub(crate) fn reseat(&mut self, claim: ClaimId, lease: i64) {
        let Some(seat) = self.seats.get_mut(&claim) else { return };
        let old = std::mem::replace(&mut seat.lease, lease);
        seat.doubt = None;
        for (id, step) in [(old, false), (lease, true)] {
            if let Some(lease) = self.leases.get_mut(&id) {
                let change = |count: usize| if step { count + 1 } else { count.saturating_sub(1) };
                (lease.seats, lease.waiters) = (change(lease.seats), change(lease.waiters));
            }
        }
    }

    /// Notes that a request that creates the key is about to be sent. Returns the argument for
    /// [`LeaseTable::answered`].
    pub(crate) fn sending(&mut self, claim: ClaimId, mark: i64) -> Option<i64> {
        let seat = self.seats.get_mut(&claim)?;
        (seat.clear, seat.keyless) = (false, false);
        seat.doubt.replace(mark)
    }

    /// Notes that the request was answered and was sent once only.
    pub(crate) fn answered(&mut self, claim: ClaimId, before: Option<i64>) {
        if let Some(seat) = self.seats.get_mut(&claim) {
            (seat.doubt, seat.keyless) = (before, false);
        }
    }

    /// Notes that the claim holds, up to `until` unless it is renewed. Its key is removed `padding`
    /// later, so that on the server no claim follows before a whole ttl is over.
    pub(crate) fn granted(
        &mut self,
        claim: ClaimId,
        place: i64,
        until: Moment,
        padding: Duration,
    ) -> Option<LossSignal> {
        self.unpark(claim);
        let seat = self.seats.get_mut(&claim)?;
        seat.place = Some(place);
        (seat.until, seat.padding) = (seat.until.max(until), seat.padding.max(padding));
        // This client continues with it itself.
        seat.spot.erase.only_if.retain(|condition| !is_about_a_lease(condition));
        Some(seat.loss.get_or_insert_with(LossTrigger::new).1.clone())
    }

    /// Notes that another client may continue with the claim, on a lease of its own: it ends here only
    /// as long as none does, and its key is not used again.
    pub(crate) fn detach(&mut self, claim: ClaimId) {
        if let Some(seat) = self.seats.get_mut(&claim) {
            let erase = &mut seat.spot.erase;
            let on_this_lease = lease_is(&erase.key, seat.lease);
            if !erase.only_if.contains(&on_this_lease) {
                erase.only_if.push(on_this_lease);
            }
            seat.spot.whose = Whose::Nobodys;
        }
    }

    /// Hangs the bell that rings while the claim's visitor waits.
    pub(crate) fn hang(&mut self, claim: ClaimId, bell: &Arc<Bell>) {
        if let Some(seat) = self.seats.get_mut(&claim) {
            seat.bell = Some(bell.clone());
        }
    }

    pub(crate) fn view(&self, claim: &Claim, now: Moment) -> Option<View> {
        self.seat_of(claim).map(|seat| self.view_of(seat, now))
    }

    /// Returns the mark under which a late request could still put the key of this claim, if any.
    pub(crate) fn is_unsettled(&self, claim: ClaimId) -> Option<i64> {
        let seat = self.seats.get(&claim)?;
        let mark = self.leases.get(&seat.lease).map(|lease| lease.mark);
        seat.is_unsettled(mark).then_some(seat.lease)
    }

    fn seat_of(&self, claim: &Claim) -> Option<&ClaimState> {
        let seat = self.seats.get(&claim.id)?;
        (seat.resource == claim.resource && seat.share == claim.share).then_some(seat)
    }

    fn view_of(&self, seat: &ClaimState, now: Moment) -> View {
        let mark = self.leases.get(&seat.lease).map(|lease| lease.mark);
        View {
            erase: seat.spot.erase.clone(),
            lease: seat.lease,
            place: seat.place,
            seen_at: seat.seen_at,
            expired: seat.place.is_some() && seat.until <= now,
            doubt: seat.is_unsettled(mark),
        }
    }

    /// Notes that the claim was renewed: its seat lasts for another ttl from when that was asked.
    /// Returns `false` where its end came first.
    pub(crate) fn renewed(&mut self, claim: &Claim, asked_at: Moment) -> bool {
        let Some(seat) = self.seats.get_mut(&claim.id) else { return false };
        if seat.until <= asked_at {
            return false;
        }
        let is_due = self.ends.remove(&(seat.end(), claim.id));
        seat.until = seat.until.max(asked_at.after(claim.ttl));
        if is_due {
            self.ends.insert((seat.end(), claim.id));
        }
        true
    }

    /// Notes that a look that was sent at that moment found the claim held.
    pub(crate) fn seen(&mut self, claim: ClaimId, sent_at: Moment) {
        if let Some(seat) = self.seats.get_mut(&claim) {
            seat.seen_at = seat.seen_at.max(sent_at);
        }
    }

    /// Returns `true` if the lease of the claim is known to run for a whole ttl from then on.
    pub(crate) fn is_covered(&self, claim: &Claim, from: Moment) -> bool {
        let seat = self.seats.get(&claim.id);
        let lease = seat.and_then(|seat| self.leases.get(&seat.lease));
        lease.is_some_and(|lease| !lease.is_short_of(claim.ttl, from))
    }

    /// Notes that a request to remove the key is about to be sent.
    pub(crate) fn erasing(&mut self, claim: ClaimId) {
        if let Some(seat) = self.seats.get_mut(&claim) {
            seat.erasing += 1;
        }
    }

    /// Notes that the request was answered: the key does not exist. `repeated` where it was sent more
    /// than once.
    pub(crate) fn erased(&mut self, claim: ClaimId, repeated: bool, now: Moment) {
        if let Some(seat) = self.seats.get_mut(&claim) {
            seat.keyless = true;
            // A request that was sent before may arrive later, so it is counted for good.
            seat.erasing = seat.erasing.saturating_sub(usize::from(!repeated));
        }
        self.ended(claim, now);
    }

    /// Notes that the key of the claim is gone. Requests for it may still be under way: then the claim
    /// is ended once more.
    fn ended(&mut self, claim: ClaimId, now: Moment) {
        let Some(seat) = self.seats.get_mut(&claim) else { return };
        (seat.place, seat.loss, seat.seen_at) = (None, None, Moment::START);
        let mark = self.leases.get(&seat.lease).map(|lease| lease.mark);
        seat.clear = !seat.is_unsettled(mark);
        match (seat.visitors, seat.clear) {
            (0, true) => self.remove(claim),
            (0, false) => self.end_later(claim, now),
            // The visitor that contends for it does the rest.
            _ => {}
        }
    }

    /// Notes that the claim was found gone.
    pub(crate) fn lost(&mut self, claim: ClaimId, cause: LossCause, now: Moment) {
        if let Some((trigger, _)) = self.seats.get_mut(&claim).and_then(|seat| seat.loss.take()) {
            self.losses.push((trigger, cause));
        }
        self.ended(claim, now);
    }

    /// Notes that a look found that nothing of the claim is in the queue, and put nothing there.
    pub(crate) fn absent(&mut self, claim: ClaimId, now: Moment) {
        if let Some(seat) = self.seats.get_mut(&claim) {
            seat.keyless = true;
        }
        self.lost(claim, LossCause::Gone, now);
    }

    /// Returns `true` if nothing of the claim is on the server or under way.
    pub(crate) fn is_clear(&self, claim: ClaimId) -> bool {
        self.seats.get(&claim).is_none_or(|seat| seat.clear)
    }

    /// Notes that an attempt to end the claim failed; it is tried again.
    pub(crate) fn end_later(&mut self, claim: ClaimId, at: Moment) {
        if let Some(seat) = self.seats.get_mut(&claim)
            && seat.visitors == 0
        {
            self.ends.remove(&(seat.end(), claim));
            (seat.until, seat.padding) = (at, Duration::ZERO);
            self.ends.insert((at, claim));
        }
    }

    /// Notes that the lease runs from `asked_at` for `ttl`.
    pub(crate) fn kept(&mut self, id: i64, asked_at: Moment, ttl: Duration) {
        if let Some(lease) = self.leases.get_mut(&id)
            && asked_at.after(ttl) >= lease.covers()
        {
            (lease.kept_at, lease.ttl) = (asked_at, ttl);
        }
    }

    /// Notes that the mark of the lease was advanced.
    pub(crate) fn marked(&mut self, id: i64, mark: i64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.mark = lease.mark.max(mark);
        }
    }

    /// Notes that the server does not know the lease any more: a claim that holds on it has lost, a
    /// claim that waits has to join the queue again.
    pub(crate) fn lease_ended(&mut self, id: i64, now: Moment) {
        if self.leases.remove(&id).is_none() {
            return;
        }
        let on_it: Vec<ClaimId> =
            self.seats.iter().filter(|(_, seat)| seat.lease == id).map(|(claim, _)| *claim).collect();
        for claim in on_it {
            // One that waits elsewhere has its key there, and comes for another lease when its turn comes.
            let is_on_it = |seat: &ClaimState| seat.place.is_some() || seat.parked.is_none();
            if self.seats.get(&claim).is_some_and(is_on_it) {
                self.lost(claim, LossCause::SessionEnded, now);
            }
            if let Some(seat) = self.seats.get(&claim)
                && let Some(bell) = &seat.bell
            {
                bell.ring(None);
            }
        }
        self.parking_ended(id);
    }

    /// Returns the work that is due now. Leases are kept alive for those that wait; for those that
    /// hold, their renewals do it.
    pub(crate) fn chores(&mut self, now: Moment, max_ends: usize) -> DueWork {
        let mut chores = DueWork::default();
        for lease in self.leases.values_mut().filter(|lease| lease.waiters > 0) {
            let due = lease.due();
            if due <= now {
                lease.keep_again_at = now.after(lease.ttl / 20);
                match lease.purpose {
                    Purpose::Hold(_) => chores.keep.push(lease.id),
                    Purpose::Wait => chores.keep_waiting.push(lease.id),
                }
            }
            let due = due.max(lease.keep_again_at);
            chores.next = Some(chores.next.map_or(due, |next| next.min(due)));
        }
        while let Some((until, claim)) = self.ends.first().copied() {
            if until > now || chores.end.len() >= max_ends {
                chores.next = Some(chores.next.map_or(until, |next| next.min(until)));
                break;
            }
            self.ends.pop_first();
            let Some(seat) = self.seats.get_mut(&claim) else { continue };
            if let Some((trigger, _)) = seat.loss.take() {
                self.losses.push((trigger, LossCause::Expired));
            }
            chores.end.push((claim, seat.spot.erase.clone()));
        }
        chores
    }

    /// Rings for leases that waiters depend on and that may have ended by now: those waiters have to be
    /// notified.
    pub(crate) fn ring_lapsed(&self, now: Moment) {
        for seat in self.seats.values() {
            let on = self.leases.get(&seat.parked.unwrap_or(seat.lease));
            if let Some(bell) = &seat.bell
                && on.is_some_and(|lease| lease.covers() <= now)
            {
                bell.ring(None);
            }
        }
    }

    fn remove(&mut self, claim: ClaimId) {
        self.unpark(claim);
        let Some(seat) = self.seats.remove(&claim) else { return };
        self.ends.remove(&(seat.end(), claim));
        if let Some(lease) = self.leases.get_mut(&seat.lease) {
            lease.seats = lease.seats.saturating_sub(1);
        }
        if seat.is_spotless() {
            self.slots.put_back(&seat.resource, seat.share, seat.spot.slot);
        }
    }
}

/// The time for which a place in the queue is kept for a claim whose last call failed.
pub(crate) const KEPT_PLACE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Note, Resource, Share};

    fn id(n: u8) -> ClaimId {
        ClaimId::from_bytes([n; 16])
    }

    fn key(n: u8) -> Erase {
        Erase { key: vec![n], only_if: Vec::new() }
    }

    fn spot(n: u8, slot: Slot) -> KeyRef {
        KeyRef { slot, erase: key(n), whose: Whose::Ours }
    }

    fn seat(roster: &mut LeaseTable, n: u8, lease: i64) {
        roster.seat(&claim(n, TEN), spot(n, Slot::Own), lease);
    }

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn claim(n: u8, ttl: Duration) -> Claim {
        let resource = Resource::new("job").unwrap();
        Claim { id: id(n), resource, share: Share::MUTEX, ttl, note: Note::default() }
    }

    const TEN: Duration = Duration::from_secs(10);
    const ELEVEN: Purpose = Purpose::Hold(11);

    fn roster() -> LeaseTable {
        let mut roster = LeaseTable::default();
        assert!(matches!(roster.room(ELEVEN, at(0)), LeaseChoice::Open));
        roster.opened(1, ELEVEN, Duration::from_secs(11), at(0));
        roster.opening_ended(ELEVEN);
        roster
    }

    /// Reports losses as [`Access`] does when it is dropped.
    fn report(roster: &mut LeaseTable) {
        roster.losses.drain(..).for_each(|(trigger, cause)| trigger.fire(cause));
    }

    #[test]
    fn claims_spread_over_a_bounded_number_of_leases() {
        let mut roster = LeaseTable::default();
        let mut next = 0;
        for n in 0..100 {
            let lease = match roster.room(ELEVEN, at(0)) {
                LeaseChoice::On(lease) => lease.id,
                LeaseChoice::Open => {
                    next += 1;
                    roster.opening_ended(ELEVEN);
                    roster.opened(next, ELEVEN, TEN, at(0)).id
                }
                LeaseChoice::Soon => panic!("nothing is being opened"),
            };
            seat(&mut roster, n, lease);
        }
        assert_eq!(next, ELEVEN.most() as i64);
        let counts: Vec<usize> = roster.leases.values().map(|lease| lease.seats).collect();
        assert!(counts.iter().all(|count| (12..=13).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_first_lease_is_opened_once_and_a_free_one_is_used_again() {
        let mut roster = LeaseTable::default();
        assert!(matches!(roster.room(ELEVEN, at(0)), LeaseChoice::Open));
        assert!(matches!(roster.room(ELEVEN, at(0)), LeaseChoice::Soon));
        roster.opening_ended(ELEVEN);
        assert!(matches!(roster.room(ELEVEN, at(0)), LeaseChoice::Open));
        roster.opened(1, ELEVEN, TEN, at(0));
        roster.opening_ended(ELEVEN);
        assert!(matches!(roster.room(ELEVEN, at(5)), LeaseChoice::On(lease) if lease.id == 1));
        assert!(matches!(roster.room(ELEVEN, at(10_000)), LeaseChoice::Open), "it ran out");
    }

    #[test]
    fn a_grant_that_nobody_renews_ends_by_its_own_ttl() {
        let mut roster = roster();
        seat(&mut roster, 1, 1);
        roster.sending(id(1), 0);
        roster.answered(id(1), None);
        let signal = roster.granted(id(1), 7, at(10_000), Duration::ZERO).unwrap();
        roster.leave(id(1), at(5));
        assert_eq!(roster.chores(at(9_999), 10).end, []);
        assert!(roster.renewed(&claim(1, TEN), at(9_000)));
        assert_eq!(roster.chores(at(18_999), 10).end, []);
        assert!(!roster.view(&claim(1, TEN), at(18_999)).unwrap().expired);
        assert!(roster.view(&claim(1, TEN), at(19_000)).unwrap().expired);
        assert!(!roster.renewed(&claim(1, TEN), at(19_000)), "what has ended is not renewed");
        assert_eq!(roster.chores(at(19_000), 10).end, [(id(1), key(1))]);
        assert_eq!(signal.cause(), None, "not before the lease table is unlocked");
        report(&mut roster);
        assert_eq!(signal.cause(), Some(LossCause::Expired));
        roster.end_later(id(1), at(20_000));
        assert_eq!(roster.chores(at(20_000), 10).end.len(), 1);
        roster.erasing(id(1));
        roster.erased(id(1), false, at(20_000));
        assert_eq!(roster.view(&claim(1, TEN), at(20_000)), None);
    }

    #[test]
    fn a_key_goes_a_whole_ttl_after_the_grant_had_arrived() {
        let mut roster = roster();
        seat(&mut roster, 1, 1);
        roster.sending(id(1), 0);
        roster.answered(id(1), None);
        // Asked at 0, answered at 700 ms: on the server it may have been granted just before that.
        roster.granted(id(1), 7, at(10_000), Duration::from_millis(700));
        roster.leave(id(1), at(700));
        assert!(roster.view(&claim(1, TEN), at(10_000)).unwrap().expired, "the client counts from before");
        assert_eq!(roster.chores(at(10_699), 10).end, []);
        assert_eq!(roster.chores(at(10_700), 10).end, [(id(1), key(1))]);
    }

    #[test]
    fn dropped_wait_is_ended_and_an_empty_one_is_forgotten() {
        let mut roster = roster();
        seat(&mut roster, 1, 1);
        roster.sending(id(1), 0);
        roster.leave(id(1), at(5));
        assert_eq!(roster.chores(at(2_004), 10).end, [], "it may be asked for again");
        assert_eq!(roster.chores(at(2_005), 10).end, [(id(1), key(1))]);
        seat(&mut roster, 2, 1);
        roster.leave(id(2), at(5));
        assert_eq!(roster.view(&claim(2, TEN), at(5)), None);
    }

    #[test]
    fn a_request_under_way_is_remembered_until_the_mark_moves() {
        let mut roster = roster();
        seat(&mut roster, 1, 1);
        let before = roster.sending(id(1), 0);
        roster.answered(id(1), before);
        assert!(!roster.view(&claim(1, TEN), at(0)).unwrap().doubt);
        // One is not answered, the next one is: the first may still arrive.
        roster.sending(id(1), 0);
        let before = roster.sending(id(1), 0);
        roster.answered(id(1), before);
        assert!(roster.view(&claim(1, TEN), at(0)).unwrap().doubt);
        roster.ended(id(1), at(0));
        assert!(!roster.is_clear(id(1)), "its key is gone, a request may still come");
        roster.marked(1, 1);
        assert!(!roster.view(&claim(1, TEN), at(0)).unwrap().doubt);
        roster.ended(id(1), at(0));
        assert!(roster.is_clear(id(1)));
    }

    /// Returns `true` if the next claim on the same name gets the slot of this one.
    fn is_used_again(end: impl Fn(&mut LeaseTable)) -> bool {
        let mut roster = roster();
        let slot = Slot::Shared(id(9));
        roster.seat(&claim(1, TEN), spot(1, slot), 1);
        end(&mut roster);
        assert_eq!(roster.view(&claim(1, TEN), at(9)), None, "it has a seat still");
        roster.slot(&claim(2, TEN), Some(id(2))) == slot
    }

    fn placed(roster: &mut LeaseTable) {
        let before = roster.sending(id(1), 0);
        roster.answered(id(1), before);
    }

    #[test]
    fn a_key_is_used_again_once_nothing_that_was_sent_can_touch_it() {
        assert!(is_used_again(|roster| {
            placed(roster);
            roster.granted(id(1), 7, at(10_000), Duration::ZERO);
            roster.leave(id(1), at(5));
            roster.erasing(id(1));
            roster.erased(id(1), false, at(6));
        }));
        assert!(is_used_again(|roster| {
            placed(roster);
            roster.absent(id(1), at(5));
            roster.leave(id(1), at(5));
        }));
        let left_at_once = is_used_again(|roster| {
            roster.leave(id(1), at(5));
        });
        assert!(left_at_once, "nothing was sent at all");
        let two_deletes = is_used_again(|roster| {
            placed(roster);
            roster.leave(id(1), at(5));
            roster.erasing(id(1));
            roster.erasing(id(1));
            roster.erased(id(1), false, at(6));
        });
        assert!(!two_deletes, "one of them may still arrive");
        assert!(!is_used_again(|roster| {
            placed(roster);
            roster.leave(id(1), at(5));
            roster.erasing(id(1));
            roster.erased(id(1), true, at(6));
        }));
        assert!(!is_used_again(|roster| {
            roster.sending(id(1), 0);
            roster.marked(1, 1);
            roster.leave(id(1), at(5));
            roster.erasing(id(1));
            roster.erased(id(1), false, at(6));
        }));
        assert!(!is_used_again(|roster| {
            placed(roster);
            roster.granted(id(1), 7, at(10_000), Duration::ZERO);
            roster.leave(id(1), at(5));
            roster.lost(id(1), LossCause::Gone, at(6));
        }));
        assert!(!is_used_again(|roster| {
            placed(roster);
            roster.move_to(&claim(1, TEN), KeyRef { whose: Whose::Others, ..spot(1, Slot::Shared(id(9))) });
            roster.leave(id(1), at(5));
            roster.erasing(id(1));
            roster.erased(id(1), false, at(6));
        }));
    }

    #[test]
    fn a_lease_that_ended_takes_its_grants_and_rings_its_waiters() {
        let mut roster = roster();
        seat(&mut roster, 1, 1);
        roster.sending(id(1), 0);
        let signal = roster.granted(id(1), 7, at(10_000), Duration::ZERO).unwrap();
        roster.leave(id(1), at(5));
        seat(&mut roster, 2, 1);
        let bell = Arc::new(Bell::default());
        roster.hang(id(2), &bell);
        roster.lease_ended(1, at(6));
        report(&mut roster);
        assert_eq!(signal.cause(), Some(LossCause::SessionEnded));
        assert_eq!(roster.view(&claim(1, TEN), at(5)), None);
        assert!(roster.lease(1).is_none());
        roster.opened(2, ELEVEN, TEN, at(10));
        roster.reseat(id(2), 2);
        assert_eq!(roster.view(&claim(2, TEN), at(10)).map(|view| view.lease), Some(2));
        assert_eq!(roster.leases[&2].waiters, 1);
        roster.leave(id(2), at(11));
        assert_eq!((roster.leases[&2].waiters, roster.leases[&2].seats), (0, 0));
    }

    #[test]
    fn a_wait_outlasts_the_lease_that_it_will_hold_on() {
        let mut roster = roster();
        roster.opened(2, Purpose::Wait, Duration::from_secs(2), at(0));
        seat(&mut roster, 1, 1);
        roster.sending(id(1), 0);
        roster.park(id(1), 2);
        assert_eq!(roster.chores(at(700), 10).keep_waiting, [2]);
        roster.lease_ended(1, at(800));
        assert_eq!((roster.parked_on(id(1)), roster.is_clear(id(1))), (Some(2), false));
        roster.opened(3, ELEVEN, TEN, at(900));
        roster.reseat(id(1), 3);
        let signal = roster.granted(id(1), 7, at(10_900), Duration::ZERO).unwrap();
        assert_eq!((roster.parked_on(id(1)), roster.leases[&2].seats), (None, 0));
        // Another call of the same claim that still waits does not make it less of a holder.
        roster.park(id(1), 2);
        roster.lease_ended(3, at(1_000));
        report(&mut roster);
        assert_eq!(signal.cause(), Some(LossCause::SessionEnded));
    }

    #[test]
    fn leases_are_kept_while_somebody_waits_on_them() {
        let mut roster = roster();
        seat(&mut roster, 1, 1);
        assert_eq!(roster.chores(at(3_000), 10).keep, [0i64; 0]);
        assert_eq!(roster.chores(at(3_667), 10).keep, [1]);
        assert_eq!(roster.chores(at(3_668), 10).keep, [0i64; 0], "it is being done");
        roster.kept(1, at(3_667), Duration::from_secs(11));
        assert_eq!(roster.lease(1).unwrap().covers(), at(14_667));
        roster.kept(1, at(2_000), Duration::from_secs(11));
        assert_eq!(roster.lease(1).unwrap().covers(), at(14_667), "never shortened");
        roster.leave(id(1), at(4_000));
        assert_eq!(roster.chores(at(60_000), 10).keep, [0i64; 0]);
    }

    #[test]
    fn a_grant_counts_from_when_its_lease_covers_it() {
        let mut roster = roster();
        let lease = roster.lease(1).unwrap().clone();
        assert_eq!(lease.covers_from(TEN, at(500)), at(500));
        assert_eq!(lease.covers_from(TEN, at(5_000)), at(1_000));
        assert!(lease.is_short_of(TEN, at(1_001)) && !lease.is_short_of(TEN, at(1_000)));
        roster.kept(1, at(5_000), Duration::from_secs(11));
        assert_eq!(roster.lease(1).unwrap().covers_from(TEN, at(5_000)), at(5_000));
    }
}
