//! One cell, decoded: the ledger with the time at which it is evaluated, and its encoding into a text.
//!
//! Ground rules: what a text says of the life of a claim is read and written by its [`Lifetime`] alone.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use leasehold_core::{
    Ask, CALL_GRACE, Claim, Effect, Entry, Failure, FailureKind, Fence, Ledger, Moment, Resource, Verdict,
    Wait,
};

use crate::cell::cells::{Call, Cell, ClockSource, Put};
use crate::cell::state::lifetime::Lifetime;
use crate::cell::state::observed_claims::ObservedClaims;
use crate::cell::wait::notifier::address;
use crate::cell::wait::timing::draw_version;

/// A cell as it was read, at one instant.
pub(crate) struct DecodedCell {
    /// The queue at that instant, on the clock of `now`. Claims whose time has passed are still in it.
    pub(crate) ledger: Ledger,
    pub(crate) now: Moment,
    pub(crate) version: u64,
    pub(crate) floor: Fence,
    lifetime: &'static dyn Lifetime,
    /// The claims as the text has them.
    raw: Vec<Entry>,
}

impl DecodedCell {
    /// Reads a cell that arrived before `local_now`, by the local clock.
    pub(crate) fn open(
        resource: &Resource,
        cell: &Cell,
        clock_source: ClockSource,
        observed: &ObservedClaims,
        local_now: Moment,
    ) -> Result<DecodedCell, Failure> {
        let lifetime = clock_source.lifetime();
        let (mut entries, last) = read_text(resource, cell, lifetime)?;
        let raw = entries.clone();
        let now = lifetime.evaluate(resource, cell, &mut entries, observed, local_now);
        let ledger = Ledger::restore(entries, last);
        Ok(DecodedCell { ledger, now, version: cell.version, floor: cell.floor, lifetime, raw })
    }

    /// Returns `true` if the claim is in the cell, as a holder or in the queue.
    pub(crate) fn has(&self, claim: &Claim) -> bool {
        self.ledger.entries().iter().any(|entry| entry.id == claim.id)
    }

    /// Returns the queue and the verdict for this request.
    pub(crate) fn contend(&self, ask: &Ask) -> (Ledger, Verdict) {
        let mut ledger = self.ledger.clone();
        ledger.raise_fence(self.raised());
        let verdict = ledger.contend(ask, self.now);
        // A floor is for the next grant. One that did not happen leaves no fence behind.
        (Ledger::restore(ledger.entries().to_vec(), self.ledger.last_fence()), verdict)
    }

    /// Returns `true` if a ledger that was made from this cell has to be written back: not where nothing
    /// but the end of this claim's place was moved, and that end is far.
    pub(crate) fn is_worth_writing(&self, ledger: &Ledger, claim: &Claim, place: Duration) -> bool {
        let old = self.ledger.entries();
        let new = ledger.entries();
        if old.len() != new.len() {
            return true;
        }
        !old.iter().zip(new).all(|(old, new)| {
            let refreshed = old.id == claim.id
                && old.id == new.id
                && old.granted.is_none()
                && new.granted.is_none()
                && self.now.until(old.until) > place / 2;
            refreshed || old == new
        })
    }

    /// Returns the value to be written for a ledger that was made from this cell.
    pub(crate) fn put(&self, resource: &Resource, ledger: &Ledger) -> Result<Put, Failure> {
        let entries: Vec<Entry> = ledger.entries().iter().map(|entry| self.to_stored(entry)).collect();
        let ends = ledger.entries().iter().map(|entry| entry.until).max();
        let keep = ends.map_or(Duration::ZERO, |ends| self.lifetime.keep(ends, self.now));
        let text = match entries.is_empty() {
            true => String::new(),
            false => {
                self.lifetime.write_text(&Ledger::restore(entries, ledger.last_fence()), resource.as_str())
            }
        };
        let (version, fence) = (draw_version()?, ledger.last_fence().max(self.raised()));
        Ok(Put { text, version, fence, keep, call: self.newly_called(ledger) })
    }

    /// Returns when the first of all claims ends unless it is renewed.
    pub(crate) fn first_end(&self) -> Duration {
        let ends = self.ledger.entries().iter().map(|entry| self.now.until(entry.until));
        ends.min().unwrap_or(Duration::MAX)
    }

    /// Returns when something happened, for display only: the wall clock decides nothing.
    pub(crate) fn unix_ms(&self, entry: &Entry) -> Option<u64> {
        let raw = self.raw.iter().find(|raw| raw.id == entry.id)?;
        let since = self.lifetime.since(entry, raw, self.now)?;
        u64::try_from(since.as_millis()).ok()
    }

    /// Returns the fence above which the next grant must be.
    fn raised(&self) -> Fence {
        let last = self.ledger.last_fence();
        let at_floor = Fence { epoch: self.floor.epoch, seq: self.floor.seq.max(last.seq), sub: 0 };
        last.max(at_floor)
    }

    /// Returns the claim as it is to be in the text.
    fn to_stored(&self, entry: &Entry) -> Entry {
        let old = self.ledger.entries().iter().find(|old| old.id == entry.id);
        self.lifetime.to_stored(entry, old, self.now)
    }

    /// Returns the waiters to notify: those whose turn has come, or that are challenged.
    fn newly_called(&self, ledger: &Ledger) -> Call {
        let ends: HashMap<_, _> = self.ledger.entries().iter().map(|old| (old.id, old.until)).collect();
        let before: HashSet<_> = self.ledger.called().map(|entry| entry.id).collect();
        let now: HashSet<_> = ledger.called().map(|entry| entry.id).collect();
        let is_shortened = |entry: &Entry| ends.get(&entry.id).is_some_and(|end| entry.until < *end);
        let waiting = ledger.entries().iter().filter(|entry| entry.granted.is_none());
        let called = waiting.filter(|entry| {
            let is_new = now.contains(&entry.id) && !before.contains(&entry.id);
            is_new || is_shortened(entry)
        });
        let called: Vec<u32> = called.map(|entry| address(entry.id)).take(MAX_CALLED + 1).collect();
        match (self.answered(ledger), called.len()) {
            (_, count) if count > MAX_CALLED => Call::All,
            (Some(answered), _) => Call::Answered(answered, called),
            (None, 0) if self.has_left(ledger) && ledger.is_mixed() => Call::Freed,
            (None, 0) => Call::None,
            (None, _) => Call::These(called),
        }
    }

    /// Returns the address of a waiter that was called and has repeated its request, or has left: no other
    /// waiter needs to check it.
    fn answered(&self, ledger: &Ledger) -> Option<u32> {
        let by = self.now.after(CALL_GRACE);
        let waited = self.ledger.entries().iter().filter(|old| old.granted.is_none());
        let mut called = waited.filter(|old| old.until > self.now && old.until <= by);
        let answers = |old: &&Entry| {
            let new = ledger.entries().iter().find(|new| new.id == old.id);
            match new {
                Some(new) => new.granted.is_some() || new.until > old.until,
                // Among different shares the waiters are to look at what became free.
                None => !ledger.is_mixed(),
            }
        };
        called.find(answers).map(|entry| address(entry.id))
    }

    /// Returns `true` if any claim has left this ledger.
    fn has_left(&self, ledger: &Ledger) -> bool {
        let present: HashSet<_> = ledger.entries().iter().map(|entry| entry.id).collect();
        self.ledger.entries().iter().any(|entry| !present.contains(&entry.id))
    }
}

/// Returns the text of a cell in which this claim is alone, from a moment that only the store will know.
pub(crate) fn alone(
    claim: &Claim,
    fence: Fence,
    last: Fence,
    held_for: Duration,
    clock_source: ClockSource,
) -> String {
    let entry = alone_in_cell(claim, fence, held_for, clock_source);
    clock_source.lifetime().write_text(&Ledger::restore(vec![entry], last), claim.resource.as_str())
}

/// Returns this claim as the text of a cell has it in which it is alone.
pub(crate) fn alone_in_cell(
    claim: &Claim,
    fence: Fence,
    held_for: Duration,
    clock_source: ClockSource,
) -> Entry {
    let (until, since) = clock_source.lifetime().alone(claim.ttl, held_for);
    let (id, share, note) = (claim.id, claim.share, claim.note.clone());
    Entry { id, share, granted: Some(fence), until, since, beats: 0, note }
}

/// Returns the request of the claim to a ledger.
pub(crate) fn ask_of(claim: &Claim, wait: Wait) -> Ask {
    Ask { id: claim.id, share: claim.share, lease: claim.ttl, wait, note: claim.note.clone() }
}

fn read_text(
    resource: &Resource,
    cell: &Cell,
    lifetime: &dyn Lifetime,
) -> Result<(Vec<Entry>, Fence), Failure> {
    if cell.text.is_empty() {
        return Ok((Vec::new(), cell.fence));
    }
    let foreign = |why: String| Failure::new(FailureKind::Foreign, Effect::None, why);
    let (ledger, name) = lifetime
        .read_text(cell.text.as_bytes())
        .map_err(|error| foreign(format!("what is stored for {resource:?} is left untouched: {error}")))?;
    if name != resource.as_str() {
        return Err(foreign(format!(
            "{resource:?} and {name:?} have the same key in this store: rename one of them"
        )));
    }
    let mut entries = ledger.entries().to_vec();
    for entry in &mut entries {
        if entry.granted == Some(BY_STORE) {
            entry.granted = Some(cell.fence);
        }
    }
    Ok((entries, ledger.last_fence()))
}

/// The placeholder in the text of a claim that seizes a cell: its fence is the one that the store keeps next
/// to the text.
pub(crate) const BY_STORE: Fence = Fence { epoch: 0, seq: 0, sub: 0 };

/// More than these are not called by name.
const MAX_CALLED: usize = 512;

#[cfg(test)]
mod tests {
    use leasehold_core::{ClaimId, Share};
    use proptest::prelude::*;

    use super::*;

    fn claim(id: u8, ttl: Duration) -> Claim {
        let resource = Resource::new("a b").unwrap();
        Claim::new(ClaimId::from_bytes([id; 16]), resource, Share::MUTEX, ttl)
    }

    fn seized(clock_source: ClockSource, ttl: Duration, age: Duration) -> Cell {
        Cell {
            text: alone(&claim(1, ttl), BY_STORE, BY_STORE, Duration::ZERO, clock_source),
            version: 7,
            fence: Fence::new(3, 9, 0),
            floor: Fence::new(4, 9, 0),
            age: (clock_source == ClockSource::Store).then_some(age),
        }
    }

    fn open(cell: &Cell, clock_source: ClockSource, observed: &ObservedClaims, now: u64) -> DecodedCell {
        let resource = Resource::new("a b").unwrap();
        DecodedCell::open(&resource, cell, clock_source, observed, Moment::from_millis(now)).unwrap()
    }

    #[test]
    fn seized_cell_has_the_fence_of_the_store_and_the_next_is_above() {
        let cell = seized(ClockSource::Store, Duration::from_secs(1), Duration::from_millis(1001));
        let decoded = open(&cell, ClockSource::Store, &ObservedClaims::default(), 0);
        assert_eq!(decoded.ledger.entries()[0].granted, Some(Fence::new(3, 9, 0)));
        let next = claim(2, Duration::from_secs(1));
        let (ledger, verdict) = decoded.contend(&ask_of(&next, Wait::No));
        assert_eq!(verdict, Verdict::Granted(Fence::new(4, 10, 0)));
        let put = decoded.put(&next.resource, &ledger).unwrap();
        assert_eq!(put.fence, Fence::new(4, 10, 0));
        assert_eq!(put.keep, Duration::from_millis(2001));
    }

    #[test]
    fn request_that_is_not_granted_anew_leaves_no_fence_behind() {
        let second = Duration::from_secs(1);
        // The store is in a later epoch than at the grant.
        let cell = seized(ClockSource::Store, second, Duration::ZERO);
        let decoded = open(&cell, ClockSource::Store, &ObservedClaims::default(), 0);
        for asking in [claim(1, second), claim(2, second)] {
            let (ledger, _) = decoded.contend(&ask_of(&asking, Wait::Queued(second)));
            assert_eq!(ledger.last_fence(), Fence::new(3, 9, 0), "{asking:?}");
        }
    }

    const HOUR: Duration = Duration::from_secs(3_600);
    const NOW: Moment = Moment::from_millis(1_000);

    /// Returns a cell with this queue, as a store that keeps time has it.
    fn with(ledger: &Ledger, now: Moment) -> DecodedCell {
        DecodedCell {
            ledger: ledger.clone(),
            now,
            version: 1,
            floor: BY_STORE,
            lifetime: ClockSource::Store.lifetime(),
            raw: ledger.entries().to_vec(),
        }
    }

    fn id(id: u8) -> ClaimId {
        ClaimId::from_bytes([id; 16])
    }

    /// Returns a queue of these claims with an hour each: the first holds, and the others wait.
    fn queue(ids: std::ops::RangeInclusive<u8>) -> Ledger {
        let mut ledger = Ledger::new(BY_STORE);
        for id in ids {
            ledger.contend(&ask_of(&claim(id, HOUR), Wait::Queued(HOUR)), NOW);
        }
        ledger
    }

    #[test]
    fn called_waiter_that_leaves_counts_as_answered() {
        let mut ledger = queue(1..=3);
        assert!(ledger.release(id(1), NOW));
        let decoded = with(&ledger, NOW);
        // The second was called by that release. It leaves, and the third is called in its place.
        assert!(ledger.release(id(2), NOW));
        assert_eq!(decoded.newly_called(&ledger), Call::Answered(address(id(2)), vec![address(id(3))]));
    }

    #[test]
    fn called_waiter_whose_lease_ends_before_its_place_has_answered() {
        let mut ledger = queue(1..=2);
        assert!(ledger.release(id(1), NOW));
        let (in_time, too_late) = (with(&ledger, NOW), with(&ledger, NOW.after(CALL_GRACE)));
        ledger.contend(&ask_of(&claim(2, CALL_GRACE / 5), Wait::Queued(HOUR)), NOW);
        assert_eq!(in_time.newly_called(&ledger), Call::Answered(address(id(2)), Vec::new()));
        // Passed over, it has not answered.
        let (ledger, _) = too_late.contend(&ask_of(&claim(3, HOUR), Wait::Queued(HOUR)));
        assert!(ledger.entries().iter().all(|entry| entry.id == id(3)));
        assert_eq!(too_late.newly_called(&ledger), Call::None);
    }

    #[test]
    fn waiter_is_called_once_however_soon_its_place_ends() {
        let mut ledger = queue(1..=1);
        ledger.contend(&ask_of(&claim(2, HOUR), Wait::Queued(CALL_GRACE / 2)), NOW);
        ledger.contend(&ask_of(&claim(3, HOUR), Wait::Queued(HOUR)), NOW);
        let decoded = with(&ledger, NOW);
        assert!(ledger.release(id(1), NOW));
        assert_eq!(decoded.newly_called(&ledger), Call::These(vec![address(id(2))]));
        let decoded = with(&ledger, NOW);
        ledger.contend(&ask_of(&claim(4, HOUR), Wait::Queued(HOUR)), NOW);
        assert_eq!(decoded.newly_called(&ledger), Call::None);
    }

    #[test]
    fn more_waiters_than_can_be_named_are_all_called() {
        for (count, is_named) in [(MAX_CALLED, true), (MAX_CALLED + 1, false)] {
            let mut ledger = queue(1..=1);
            for reader in 0..u64::try_from(count).unwrap() {
                let mut reader_id = [7; 16];
                reader_id[..8].copy_from_slice(&reader.to_be_bytes());
                let resource = Resource::new("a b").unwrap();
                let reader = Claim::new(ClaimId::from_bytes(reader_id), resource, Share::READER, HOUR);
                ledger.contend(&ask_of(&reader, Wait::Queued(HOUR)), NOW);
            }
            let decoded = with(&ledger, NOW);
            assert!(ledger.release(id(1), NOW));
            match decoded.newly_called(&ledger) {
                Call::These(called) => assert!(is_named && called.len() == count, "{}", called.len()),
                call => assert!(!is_named && call == Call::All, "{count}: {call:?}"),
            }
        }
    }

    #[test]
    fn observer_waits_a_whole_span_and_a_renewal_restarts_it() {
        let observed = ObservedClaims::default();
        let clock_source = ClockSource::Observer;
        let mut cell = seized(clock_source, Duration::from_millis(100), Duration::ZERO);
        let other = claim(2, Duration::from_millis(100));
        let busy = |decoded: &DecodedCell| {
            matches!(decoded.contend(&ask_of(&other, Wait::No)).1, Verdict::Busy { .. })
        };
        assert!(busy(&open(&cell, clock_source, &observed, 1_000)));
        let decoded = open(&cell, clock_source, &observed, 1_090);
        assert!(busy(&decoded));
        let mut renewed = decoded.ledger.clone();
        assert!(renewed.renew(ClaimId::from_bytes([1; 16]), Duration::from_millis(100), decoded.now));
        cell.text = decoded.put(&other.resource, &renewed).unwrap().text;
        assert!(busy(&open(&cell, clock_source, &observed, 1_095)));
        assert!(busy(&open(&cell, clock_source, &observed, 1_190)));
        assert!(!busy(&open(&cell, clock_source, &observed, 1_196)));
        assert!(
            busy(&open(&cell, clock_source, &ObservedClaims::default(), 1_196)),
            "a newcomer knows nothing yet"
        );
    }

    #[test]
    fn renewal_by_a_client_that_saw_no_claim_before_counts() {
        let (clock_source, lease) = (ClockSource::Observer, Duration::from_millis(100));
        let (holder, other) = (claim(1, lease), claim(2, lease));
        let renews = |decoded: &DecodedCell| {
            let mut ledger = decoded.ledger.clone();
            assert!(ledger.renew(holder.id, lease, decoded.now));
            ledger
        };
        let asks_again = |decoded: &DecodedCell| decoded.contend(&ask_of(&holder, Wait::No)).0;
        let signs: [&dyn Fn(&DecodedCell) -> Ledger; 2] = [&renews, &asks_again];
        for (sign, gives) in signs.into_iter().enumerate() {
            let observer = ObservedClaims::default();
            let mut cell = seized(clock_source, lease, Duration::ZERO);
            let busy = |cell: &Cell, now| {
                let decoded = open(cell, clock_source, &observer, now);
                matches!(decoded.contend(&ask_of(&other, Wait::No)).1, Verdict::Busy { .. })
            };
            assert!(busy(&cell, 1_000));
            for round in 1..=1_100 {
                let now = 1_000 + round * 90;
                let stranger = open(&cell, clock_source, &ObservedClaims::default(), now);
                cell.text = stranger.put(&holder.resource, &gives(&stranger)).unwrap().text;
                assert!(busy(&cell, now + 15), "two hold after sign {sign}, round {round}");
            }
            let last = 1_000 + 1_100 * 90 + 15;
            assert!(busy(&cell, last + 99) && !busy(&cell, last + 100));
        }
    }

    #[test]
    fn claim_that_left_and_returned_starts_a_new_span() {
        let (clock_source, lease) = (ClockSource::Observer, Duration::from_millis(100));
        let (observer, other) = (ObservedClaims::default(), claim(2, lease));
        let first = seized(clock_source, lease, Duration::ZERO);
        open(&first, clock_source, &observer, 1_000);
        // It left and came again, unseen: the same text, under another fence of the store.
        let again = Cell { version: 8, fence: Fence::new(3, 10, 0), ..first };
        let decoded = open(&again, clock_source, &observer, 1_101);
        let (_, verdict) = decoded.contend(&ask_of(&other, Wait::No));
        assert!(matches!(verdict, Verdict::Busy { .. }), "{verdict:?}");
    }

    #[test]
    fn joining_the_queue_restarts_no_span_of_another_claim() {
        let (mine, clock_source) = (ObservedClaims::default(), ClockSource::Observer);
        let mut cell = seized(clock_source, Duration::from_millis(100), Duration::ZERO);
        open(&cell, clock_source, &mine, 1_000);
        let decoded = open(&cell, clock_source, &mine, 1_050);
        let joining = claim(2, Duration::from_millis(100));
        let (ledger, _) = decoded.contend(&ask_of(&joining, Wait::Queued(Duration::from_secs(60))));
        cell.text = decoded.put(&joining.resource, &ledger).unwrap().text;
        let decoded = open(&cell, clock_source, &mine, 1_101);
        let (_, verdict) = decoded.contend(&ask_of(&joining, Wait::Queued(Duration::from_secs(60))));
        assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
    }

    #[test]
    fn what_short_visits_saw_of_a_silent_claim_adds_up() {
        let (clock_source, lease) = (ClockSource::Observer, Duration::from_millis(100));
        let mut cell = seized(clock_source, lease, Duration::ZERO);
        for (visit, remains) in [(0, 60), (1, 20), (2, 0)] {
            // It waits in the queue for less than a span, and no other client is there before the next one comes.
            let (visitor, now) = (ObservedClaims::default(), 1_000 + u64::from(visit) * 50);
            let waiter = claim(10 + visit, lease);
            let decoded = open(&cell, clock_source, &visitor, now);
            let (ledger, verdict) = decoded.contend(&ask_of(&waiter, Wait::Queued(Duration::from_secs(60))));
            assert!(matches!(verdict, Verdict::Busy { ahead: 1, .. }), "visit {visit}: {verdict:?}");
            cell.text = decoded.put(&waiter.resource, &ledger).unwrap().text;
            let decoded = open(&cell, clock_source, &visitor, now + 40);
            let mut left = decoded.ledger.clone();
            assert!(left.release(waiter.id, decoded.now));
            let put = decoded.put(&waiter.resource, &left).unwrap();
            cell.text = put.text;
            assert_eq!(put.keep, Duration::from_millis(remains));
        }
        assert!(cell.text.is_empty(), "the dead claim stays");
    }

    /// A step of one of several observers on one cell: what it does, how long after the step before, and for how long
    /// it stops between its look and its write.
    #[derive(Clone, Copy, Debug)]
    struct Visit {
        observer: usize,
        does: Does,
        after: u64,
        stops_for: u64,
    }

    #[derive(Clone, Copy, Debug)]
    enum Does {
        Look,
        Join,
        Leave,
        Renew,
        Forget,
    }

    fn visits() -> impl Strategy<Value = Vec<Visit>> {
        let does = prop_oneof![
            2 => Just(Does::Look),
            3 => Just(Does::Join),
            3 => Just(Does::Leave),
            1 => Just(Does::Renew),
            1 => Just(Does::Forget),
        ];
        let visit = (0..3usize, does, 0..40u64, prop_oneof![3 => Just(0), 1 => 0..60u64]);
        let visit =
            visit.prop_map(|(observer, does, after, stops_for)| Visit { observer, does, after, stops_for });
        proptest::collection::vec(visit, 1..60)
    }

    proptest! {
        #[test]
        fn no_claim_is_judged_dead_before_its_span_is_over(visits in visits()) {
            let (clock_source, lease) = (ClockSource::Observer, Duration::from_millis(100));
            let (holder, wait) = (claim(1, lease), Wait::Queued(Duration::from_secs(60)));
            let mut observers: [ObservedClaims; 3] = std::array::from_fn(|_| ObservedClaims::default());
            let mut cell = seized(clock_source, lease, Duration::ZERO);
            let (mut now, mut relies_until) = (1_000, 1_100);
            for Visit { observer, does, after, stops_for } in visits {
                now += after;
                let waiter = claim(10 + u8::try_from(observer).unwrap(), lease);
                let decoded = open(&cell, clock_source, &observers[observer], now);
                let mut ledger = decoded.ledger.clone();
                match does {
                    Does::Look => ledger.expire(decoded.now),
                    Does::Join => drop(ledger.contend(&ask_of(&waiter, wait), decoded.now)),
                    Does::Leave => drop(ledger.release(waiter.id, decoded.now)),
                    Does::Renew => {
                        if ledger.renew(holder.id, lease, decoded.now) {
                            relies_until = relies_until.max(now + 100);
                        }
                    }
                    Does::Forget => observers[observer] = ObservedClaims::default(),
                }
                let lives = ledger.entries().iter().any(|entry| entry.id == holder.id);
                prop_assert!(lives || now >= relies_until, "dead at {now}, which relies on it until {relies_until}");
                if !lives {
                    break;
                }
                now += stops_for;
                if !matches!(does, Does::Look | Does::Forget) {
                    cell.text = decoded.put(&holder.resource, &ledger).unwrap().text;
                }
            }
        }
    }

    #[test]
    fn challenged_waiter_is_notified_and_unnamed_release_wakes_all() {
        let share = |id, share| claim(id, Duration::from_secs(60)).share(share);
        let (writer, reader) = (share(2, Share::WRITER), share(3, Share::READER));
        let wait = Wait::Queued(Duration::from_secs(60));
        // Read at age zero, a cell is at its origin.
        let empty =
            Cell { text: String::new(), ..seized(ClockSource::Store, Duration::ZERO, Duration::ZERO) };
        let origin = open(&empty, ClockSource::Store, &ObservedClaims::default(), 0).now;
        let mut ledger = Ledger::new(Fence::default());
        for other in [share(1, Share::READER), share(4, Share::READER), writer.clone(), reader.clone()] {
            ledger.contend(&ask_of(&other, wait), origin);
        }
        let decode = |ledger: &Ledger, age: Duration| {
            let resource = Resource::new("a b").unwrap();
            let fence = ledger.last_fence();
            let text = ledger.to_text(resource.as_str());
            let cell = Cell { text, version: 7, fence, floor: fence, age: Some(age) };
            DecodedCell::open(&resource, &cell, ClockSource::Store, &ObservedClaims::default(), Moment::START)
                .unwrap()
        };
        let call =
            |decoded: &DecodedCell, ledger: &Ledger| decoded.put(&reader.resource, ledger).unwrap().call;
        let seen = decode(&ledger, leasehold_core::CHALLENGE_AFTER);
        let (challenged, _) = seen.contend(&ask_of(&reader, wait));
        assert_eq!(call(&seen, &challenged), Call::These(vec![address(writer.id)]));
        assert!(seen.is_worth_writing(&challenged, &reader, Duration::from_secs(60)));
        let seen = decode(&challenged, leasehold_core::CHALLENGE_AFTER);
        assert_eq!(call(&seen, &seen.contend(&ask_of(&reader, wait)).0), Call::None, "called already");
        let answered = seen.contend(&ask_of(&writer, wait)).0;
        assert_eq!(call(&seen, &answered), Call::Answered(address(writer.id), Vec::new()));
        let seen = decode(&ledger, Duration::ZERO);
        let mut left = seen.ledger.clone();
        assert!(left.release(ClaimId::from_bytes([1; 16]), seen.now));
        assert_eq!(call(&seen, &left), Call::Freed);
        assert!(left.release(writer.id, seen.now));
        assert_eq!(call(&seen, &left), Call::These(vec![address(reader.id)]));
    }

    #[test]
    fn place_is_written_again_once_half_of_its_time_is_over() {
        let (place, resource) = (Duration::from_secs(60), Resource::new("a b").unwrap());
        let (holder, waiter) = (claim(1, place * 10), claim(2, place * 10));
        // Read at age zero, a cell is at its origin.
        let decode = |text: String, age| {
            let cell = Cell { text, ..seized(ClockSource::Store, Duration::ZERO, age) };
            DecodedCell::open(&resource, &cell, ClockSource::Store, &ObservedClaims::default(), Moment::START)
                .unwrap()
        };
        let mut ledger = Ledger::new(Fence::default());
        let origin = decode(String::new(), Duration::ZERO).now;
        ledger.contend(&ask_of(&holder, Wait::No), origin);
        ledger.contend(&ask_of(&waiter, Wait::Queued(place)), origin);
        for (seconds, is_worth_it) in [(0, false), (29, false), (30, true), (59, true)] {
            let seen = decode(ledger.to_text(resource.as_str()), Duration::from_secs(seconds));
            let (asked, _) = seen.contend(&ask_of(&waiter, Wait::Queued(place)));
            assert_eq!(seen.is_worth_writing(&asked, &waiter, place), is_worth_it, "after {seconds} s");
        }
    }

    #[test]
    fn a_name_that_shares_its_key_is_refused() {
        let cell = seized(ClockSource::Store, Duration::from_secs(1), Duration::ZERO);
        let other = Resource::new("other").unwrap();
        let refused =
            DecodedCell::open(&other, &cell, ClockSource::Store, &ObservedClaims::default(), Moment::START);
        assert_eq!(refused.err().map(|failure| failure.kind), Some(FailureKind::Foreign));
    }
}
