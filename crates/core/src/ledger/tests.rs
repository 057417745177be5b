//! Property tests of the admission rule: any sequence of calls, checked after each one.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// One call in a random history.
#[derive(Clone, Debug)]
enum Call {
    Contend(u8, Share, Wait),
    Renew(u8),
    Release(u8),
    Pass(u64),
}

const LEASE: Duration = Duration::from_millis(300);
const PLACE: Duration = Duration::from_millis(200);

fn id(n: u8) -> ClaimId {
    ClaimId::from_bytes([n; 16])
}

fn ask(n: u8, share: Share, wait: Wait) -> Ask {
    Ask { id: id(n), share, lease: LEASE, wait, note: Note::default() }
}

fn shares() -> impl Strategy<Value = Share> {
    prop_oneof![
        Just(Share::MUTEX),
        Just(Share::READER),
        Just(Share::WRITER),
        (1u32..4, 3u32..5).prop_map(|(k, n)| Share::permits(k.min(n), n).unwrap()),
    ]
}

fn calls(waits: Vec<Wait>, shares: impl Strategy<Value = Share>) -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        6 => (0u8..8, shares, proptest::sample::select(waits)).prop_map(|(n, s, w)| Call::Contend(n, s, w)),
        2 => (0u8..8).prop_map(Call::Renew),
        3 => (0u8..8).prop_map(Call::Release),
        2 => (0u64..250).prop_map(Call::Pass),
    ];
    proptest::collection::vec(call, 1..60)
}

fn holders(ledger: &Ledger) -> Vec<&Entry> {
    ledger.entries().iter().filter(|entry| entry.granted.is_some()).collect()
}

fn check_capacity(ledger: &Ledger) -> Result<(), TestCaseError> {
    let held = holders(ledger);
    let load: u64 = held.iter().map(|entry| u64::from(entry.share.weight())).sum();
    let capacity = held.iter().map(|entry| entry.share.capacity()).min().unwrap_or(u32::MAX);
    prop_assert!(load <= u64::from(capacity), "{load} over {capacity}: {held:?}");
    Ok(())
}

/// Runs a history, checking capacity, fences, uniqueness and expiry after each call.
fn run(history: &[Call]) -> Result<(), TestCaseError> {
    let mut ledger = Ledger::new(Fence::default());
    let mut now = Moment::from_millis(1);
    let mut last = Fence::default();
    for call in history {
        match call {
            Call::Contend(n, share, wait) => {
                let before = ledger.entries().iter().find(|e| e.id == id(*n)).and_then(|e| e.granted);
                let verdict = ledger.contend(&ask(*n, *share, *wait), now);
                let is_queued = ledger.entries().iter().any(|entry| entry.id == id(*n));
                match verdict {
                    Verdict::Granted(fence) if before == Some(fence) => prop_assert!(fence <= last),
                    Verdict::Granted(fence) => {
                        prop_assert!(fence > last, "{fence:?} after {last:?}");
                        last = fence;
                    }
                    Verdict::Busy { .. } => prop_assert_eq!(is_queued, matches!(wait, Wait::Queued(_))),
                    Verdict::Full => prop_assert!(false, "eight claims do not fill a line"),
                }
            }
            Call::Renew(n) => {
                let until = |l: &Ledger| l.entries().iter().find(|e| e.id == id(*n)).map(|e| e.until);
                let before = until(&ledger);
                let held = holders(&ledger).iter().any(|e| e.id == id(*n) && e.until > now);
                prop_assert_eq!(ledger.renew(id(*n), LEASE, now), held);
                prop_assert!(!held || until(&ledger) >= before);
            }
            Call::Release(n) => {
                let was_queued = ledger.entries().iter().any(|e| e.id == id(*n) && e.until > now);
                prop_assert_eq!(ledger.release(id(*n), now), was_queued);
                prop_assert!(!ledger.entries().iter().any(|e| e.id == id(*n)));
            }
            Call::Pass(ms) => now = now.after(Duration::from_millis(*ms)),
        }
        check_capacity(&ledger)?;
        let line = ledger.entries();
        let is_kept_out = |at: &usize| line[*at].granted.is_none() && !ledger.admits(*at, line[*at].share);
        let first = (0..line.len()).find(is_kept_out).unwrap_or(line.len());
        prop_assert_eq!(ledger.called_up_to(), first, "one pass finds what the rule says of each");
        prop_assert_eq!(ledger.last_fence(), last);
        let mut ids: Vec<_> = ledger.entries().iter().map(|entry| entry.id).collect();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), ledger.entries().len(), "a claim stands twice");
    }
    // The queue always empties by itself once all are silent.
    ledger.expire(now.after(LEASE));
    prop_assert!(ledger.entries().is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_history_keeps_capacity_fences_and_queue(
        history in calls(vec![Wait::No, Wait::Queued(PLACE), Wait::Barging], shares())
    ) {
        run(&history)?;
    }

    #[test]
    fn admission_is_monotone(history in calls(vec![Wait::Queued(PLACE)], shares())) {
        let mut ledger = Ledger::new(Fence::default());
        let now = Moment::from_millis(1);
        for call in &history {
            let admitted: Vec<_> = ledger.entries()[..ledger.called_up_to()].iter().map(|e| e.id).collect();
            let mut gone = None;
            match call {
                Call::Contend(n, share, wait) => { ledger.contend(&ask(*n, *share, *wait), now); }
                Call::Release(n) => { ledger.release(id(*n), now); gone = Some(id(*n)); }
                Call::Renew(_) | Call::Pass(_) => {}
            }
            let after: Vec<_> = ledger.entries()[..ledger.called_up_to()].iter().map(|e| e.id).collect();
            for claim in admitted.iter().filter(|claim| Some(**claim) != gone) {
                prop_assert!(after.contains(claim), "{claim:?} was admitted before and is not now");
            }
        }
    }

    #[test]
    fn mutexes_are_granted_in_order_of_arrival(arrivals in Just((0u8..20).collect::<Vec<_>>()).prop_shuffle()) {
        let mut ledger = Ledger::new(Fence::default());
        let now = Moment::from_millis(1);
        let wait = Wait::Queued(PLACE);
        for n in &arrivals {
            ledger.contend(&ask(*n, Share::MUTEX, wait), now);
        }
        for n in &arrivals {
            let called: Vec<_> = ledger.called().map(|entry| entry.id).collect();
            prop_assert!(called.is_empty() || called == vec![id(*n)]);
            for other in &arrivals {
                let granted = matches!(ledger.contend(&ask(*other, Share::MUTEX, wait), now), Verdict::Granted(_));
                prop_assert_eq!(granted, other == n || holders(&ledger).iter().any(|e| e.id == id(*other)));
                if granted { break; }
            }
            prop_assert!(ledger.release(id(*n), now));
        }
    }

    #[test]
    fn readers_and_writers_follow_curators_predicate(line in proptest::collection::vec(any::<bool>(), 1..20)) {
        let mut ledger = Ledger::new(Fence::default());
        let now = Moment::from_millis(1);
        let writes: Vec<(u8, bool)> = (0u8..).zip(line).collect();
        for (n, write) in &writes {
            let share = if *write { Share::WRITER } else { Share::READER };
            let granted = matches!(ledger.contend(&ask(*n, share, Wait::Queued(PLACE)), now), Verdict::Granted(_));
            // A reader owns iff no writer precedes it; a writer owns iff it is first.
            let expected = if *write { *n == 0 } else { !writes[..usize::from(*n)].iter().any(|(_, w)| *w) };
            prop_assert_eq!(granted, expected, "claim {} of {:?}", n, &writes);
        }
    }
}

#[test]
fn a_waiter_that_does_not_answer_its_call_is_passed_over() {
    let long = Wait::Queued(Duration::from_secs(60));
    let mut ledger = Ledger::new(Fence::default());
    let start = Moment::from_millis(1);
    assert!(matches!(ledger.contend(&ask(1, Share::MUTEX, long), start), Verdict::Granted(_)));
    assert!(matches!(ledger.contend(&ask(2, Share::MUTEX, long), start), Verdict::Busy { ahead: 1, .. }));
    assert!(matches!(ledger.contend(&ask(3, Share::MUTEX, long), start), Verdict::Busy { ahead: 2, .. }));
    assert!(ledger.release(id(1), start));
    let verdict = ledger.contend(&ask(3, Share::MUTEX, long), start);
    assert_eq!(verdict, Verdict::Busy { ahead: 1, earliest: start.after(PROBE_AFTER) });
    let later = start.after(CALL_GRACE);
    assert!(matches!(ledger.contend(&ask(3, Share::MUTEX, long), later), Verdict::Granted(_)));
}

/// An observer without the clock of the ledger sees only this.
#[test]
fn each_sign_of_life_is_counted() {
    let now = Moment::from_millis(1);
    let mut ledger = Ledger::new(Fence::default());
    let (holder, waiter) = (ask(1, Share::MUTEX, Wait::No), ask(2, Share::MUTEX, Wait::Queued(LONG)));
    let beats = |ledger: &Ledger| ledger.entries().iter().map(|entry| entry.beats).collect::<Vec<_>>();
    ledger.contend(&holder, now);
    ledger.contend(&waiter, now);
    assert_eq!(beats(&ledger), [0, 0]);
    ledger.contend(&holder, now);
    assert_eq!(beats(&ledger), [1, 0], "it asks again, and nothing else of it changes");
    assert!(ledger.renew(id(1), Duration::ZERO, now));
    assert_eq!(beats(&ledger), [2, 0]);
    ledger.contend(&waiter, now);
    assert_eq!(beats(&ledger), [2, 1]);
    assert!(ledger.release(id(1), now));
    ledger.contend(&waiter, now);
    assert_eq!(beats(&ledger), [2], "the grant of a claim that waited");
}

#[test]
fn no_sign_of_life_shortens_a_lease() {
    let now = Moment::from_millis(1);
    let mut ledger = Ledger::new(Fence::default());
    ledger.contend(&Ask { lease: LONG, ..ask(1, Share::MUTEX, Wait::No) }, now);
    let later = now.after(LEASE);
    // Another client may continue the claim, and ask for less.
    assert!(matches!(ledger.contend(&ask(1, Share::MUTEX, Wait::No), later), Verdict::Granted(_)));
    assert_eq!(ledger.entries()[0].until, now.after(LONG));
    assert!(ledger.renew(id(1), LEASE, later));
    assert_eq!(ledger.entries()[0].until, now.after(LONG));
}

#[test]
fn each_sign_of_life_extends_the_lease_from_its_own_moment() {
    let (start, asked) = (Moment::from_millis(1), Moment::from_millis(101));
    let mut ledger = Ledger::new(Fence::default());
    ledger.contend(&ask(1, Share::MUTEX, Wait::No), start);
    let note = Note::new("of the client that continues").unwrap();
    let again = Ask { note: note.clone(), ..ask(1, Share::MUTEX, Wait::No) };
    assert!(matches!(ledger.contend(&again, asked), Verdict::Granted(_)));
    assert_eq!((ledger.entries()[0].until, &ledger.entries()[0].note), (asked.after(LEASE), &note));
    let renewed = asked.after(LEASE / 2);
    assert!(ledger.renew(id(1), LEASE, renewed));
    assert_eq!(ledger.entries()[0].until, renewed.after(LEASE));
}

#[test]
fn waiter_that_gives_up_lets_those_behind_it_be_called() {
    let start = Moment::from_millis(1);
    let mut ledger = reader_behind_a_writer(start);
    let left = ledger.contend(&ask(2, Share::WRITER, Wait::No), start);
    assert!(matches!(left, Verdict::Busy { ahead: 1, .. }), "{left:?}");
    assert_eq!(ledger.called().map(|entry| entry.id).collect::<Vec<_>>(), [id(3)]);
    assert_eq!(ledger.entries()[1].until, start.after(CALL_GRACE), "it has to answer");
}

#[test]
fn new_waiter_looks_again_when_it_may_challenge_another() {
    let start = Moment::from_millis(1);
    let mut ledger = reader_behind_a_writer(start);
    let later = start.after(CALL_GRACE / 4);
    let busy = ledger.contend(&ask(4, Share::READER, Wait::Queued(LONG)), later);
    assert_eq!(busy, Verdict::Busy { ahead: 3, earliest: start.after(CALL_GRACE) });
}

const LONG: Duration = Duration::from_secs(60);

/// Returns a ledger in which a reader holds, a writer (2) waits, and a reader (3) behind it.
fn reader_behind_a_writer(now: Moment) -> Ledger {
    let mut ledger = Ledger::new(Fence::default());
    let hold = Ask { lease: LONG, ..ask(1, Share::READER, Wait::No) };
    assert!(matches!(ledger.contend(&hold, now), Verdict::Granted(_)));
    let busy = ledger.contend(&ask(2, Share::WRITER, Wait::Queued(LONG)), now);
    assert_eq!(busy, Verdict::Busy { ahead: 1, earliest: now.after(LONG) });
    let busy = ledger.contend(&ask(3, Share::READER, Wait::Queued(LONG)), now);
    assert_eq!(busy, Verdict::Busy { ahead: 2, earliest: now.after(CALL_GRACE) });
    ledger
}

#[test]
fn silent_waiter_is_passed_over_for_one_that_can_be_granted() {
    let start = Moment::from_millis(1);
    let mut ledger = reader_behind_a_writer(start);
    let reader = ask(3, Share::READER, Wait::Queued(LONG));
    let early = start.after(CALL_GRACE / 2);
    let busy = ledger.contend(&reader, early);
    assert_eq!(busy, Verdict::Busy { ahead: 2, earliest: start.after(CHALLENGE_AFTER) });
    assert_eq!(ledger.entries()[1].until, start.after(LONG), "it was heard of not long ago");
    let challenged = start.after(CALL_GRACE);
    let over = challenged.after(CALL_GRACE);
    let probed = challenged.after(PROBE_AFTER);
    assert_eq!(ledger.contend(&reader, challenged), Verdict::Busy { ahead: 2, earliest: probed });
    // Another look does not give it more time.
    let soon = challenged.after(CALL_GRACE / 2);
    assert_eq!(ledger.contend(&reader, soon), Verdict::Busy { ahead: 2, earliest: over });
    assert!(matches!(ledger.contend(&reader, over), Verdict::Granted(_)));
}

#[test]
fn a_waiter_that_answers_a_challenge_keeps_its_place() {
    let start = Moment::from_millis(1);
    let mut ledger = reader_behind_a_writer(start);
    let (writer, reader) =
        (ask(2, Share::WRITER, Wait::Queued(LONG)), ask(3, Share::READER, Wait::Queued(LONG)));
    let challenged = start.after(CALL_GRACE);
    ledger.contend(&reader, challenged);
    let answered = challenged.after(CALL_GRACE / 2);
    ledger.contend(&writer, answered);
    let later = challenged.after(CALL_GRACE);
    let busy = ledger.contend(&reader, later);
    assert_eq!(busy, Verdict::Busy { ahead: 2, earliest: answered.after(CHALLENGE_AFTER) }, "it lives");
    assert!(ledger.release(id(1), later));
    assert!(matches!(ledger.contend(&writer, later), Verdict::Granted(_)));
}

#[test]
fn waiter_is_not_challenged_for_one_that_must_wait_anyway() {
    let start = Moment::from_millis(1);
    let mut ledger = reader_behind_a_writer(start);
    let late = start.after(CHALLENGE_AFTER * 2);
    for wait in [Wait::Queued(LONG), Wait::No] {
        // Another writer does not fit beside the reader, and a claim that does not wait loses nothing by the
        // queue.
        let share = if wait == Wait::No { Share::READER } else { Share::WRITER };
        ledger.contend(&ask(4, share, wait), late);
        assert_eq!(ledger.entries()[1].until, start.after(LONG), "{wait:?}");
    }
    let mut line = Ledger::new(Fence::default());
    let forever = Wait::Queued(Duration::MAX);
    for (n, share) in [(1, Share::READER), (2, Share::WRITER), (3, Share::READER)] {
        line.contend(&Ask { lease: Duration::MAX, ..ask(n, share, forever) }, start);
    }
    let busy = line.contend(&ask(3, Share::READER, forever), late);
    assert_eq!(busy, Verdict::Busy { ahead: 2, earliest: Moment::NEVER }, "a session keeps the place");
}

#[test]
fn queue_is_mixed_if_a_waiter_blocks_free_capacity() {
    let now = Moment::from_millis(1);
    let mut ledger = reader_behind_a_writer(now);
    assert!(ledger.is_mixed());
    ledger.release(id(3), now);
    ledger.contend(&ask(4, Share::WRITER, Wait::Queued(LONG)), now);
    assert!(!ledger.is_mixed(), "all who wait want the same");
    ledger.release(id(1), now);
    ledger.contend(&ask(5, Share::READER, Wait::Queued(LONG)), now);
    assert!(ledger.is_mixed(), "the first is called, and the second has a reader behind it");
}

#[test]
fn queue_is_mixed_if_one_behind_allows_more() {
    let now = Moment::from_millis(1);
    let permit = |n| Share::permits(1, n).unwrap();
    for (first, behind, is_mixed) in [(2, 5, true), (5, 2, false), (5, 5, false)] {
        let mut ledger = Ledger::new(Fence::default());
        let held = Share::permits(if is_mixed { 2 } else { 5 }, 5).unwrap();
        assert!(matches!(ledger.contend(&ask(1, held, Wait::No), now), Verdict::Granted(_)));
        for (n, share) in [(2, permit(first)), (3, permit(behind))] {
            assert!(matches!(ledger.contend(&ask(n, share, Wait::Queued(LONG)), now), Verdict::Busy { .. }));
        }
        assert_eq!(ledger.is_mixed(), is_mixed, "{first} and {behind}");
    }
}

#[test]
fn smallest_capacity_in_the_queue_counts() {
    let permits = |k, n| Share::permits(k, n).unwrap();
    let mut ledger = Ledger::new(Fence::default());
    let now = Moment::from_millis(1);
    let mut granted = |n, share| matches!(ledger.contend(&ask(n, share, Wait::No), now), Verdict::Granted(_));
    assert!(granted(1, permits(1, 5)));
    assert!(granted(2, permits(1, 5)));
    assert!(granted(3, permits(1, 3)));
    assert!(!granted(4, permits(1, 5)), "a holder that allows three in all is among them");
    assert!(!granted(5, Share::MUTEX) && !granted(6, Share::WRITER));
}

/// Returns the id of the claim with this number, of many.
fn numbered(n: usize) -> ClaimId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
    ClaimId::from_bytes(bytes)
}

/// If each step looked at the whole line for each of those admitted, this would take minutes.
#[test]
fn all_readers_of_a_full_queue_are_called_at_once() {
    let (now, readers) = (Moment::from_millis(1), MAX_QUEUE - 1);
    let held = Ledger::new(Fence::default()).contend(&ask(1, Share::WRITER, Wait::No), now);
    let entry = |n: usize, share, granted, until| Entry {
        id: numbered(n),
        share,
        granted,
        until,
        since: now,
        beats: 0,
        note: Note::default(),
    };
    let Verdict::Granted(fence) = held else { panic!("{held:?}") };
    let mut line = vec![entry(0, Share::WRITER, Some(fence), now.after(LEASE))];
    line.extend((1..=readers).map(|n| entry(n, Share::READER, None, now.after(2 * LEASE))));
    let mut ledger = Ledger::restore(line, fence);
    assert_eq!(ledger.called().count(), 0);
    assert!(ledger.release(numbered(0), now));
    assert_eq!(ledger.called().count(), readers);
    for n in 1..=200 {
        let ask = Ask { id: numbered(n), ..ask(0, Share::READER, Wait::Queued(PLACE)) };
        assert!(matches!(ledger.contend(&ask, now), Verdict::Granted(_)));
        assert!(ledger.release(numbered(n), now));
        assert_eq!(ledger.called().count(), readers - n);
    }
    let writer = ask(2, Share::WRITER, Wait::Queued(PLACE));
    assert!(matches!(ledger.contend(&writer, now), Verdict::Busy { .. }));
    assert_eq!(ledger.called().count(), readers - 200);
}

#[test]
fn a_floor_raises_the_next_fence_and_never_lowers_it() {
    let mut ledger = Ledger::new(Fence::new(1, 3, 0));
    ledger.raise_fence(Fence::new(1, 7, 0));
    ledger.raise_fence(Fence::new(1, 2, 0));
    let verdict = ledger.contend(&ask(1, Share::MUTEX, Wait::Barging), Moment::from_millis(1));
    assert_eq!(verdict, Verdict::Granted(Fence::new(1, 8, 0)));
}

#[test]
fn full_queue_is_reported() {
    let now = Moment::from_millis(1);
    let mut ledger = Ledger::new(Fence::default());
    for n in 0..2 {
        ledger.contend(&Ask { id: numbered(n), ..ask(0, Share::MUTEX, Wait::Queued(PLACE)) }, now);
    }
    // The rest of them at once, as each that asks looks at all before it.
    let mut entries = ledger.entries().to_vec();
    let waits = entries[1].clone();
    entries.extend((2..MAX_QUEUE - 1).map(|n| Entry { id: numbered(n), ..waits.clone() }));
    let mut ledger = Ledger::restore(entries, ledger.last_fence());
    let last = Ask { id: numbered(MAX_QUEUE - 1), ..ask(0, Share::MUTEX, Wait::Queued(PLACE)) };
    assert!(matches!(ledger.contend(&last, now), Verdict::Busy { .. }));
    assert_eq!(ledger.contend(&ask(255, Share::MUTEX, Wait::Queued(PLACE)), now), Verdict::Full);
    assert_eq!(ledger.entries().len(), MAX_QUEUE);
    assert!(matches!(ledger.contend(&last, now), Verdict::Busy { .. }), "it has its place");
}

#[test]
fn places_as_short_as_a_call_are_not_probed() {
    let now = Moment::from_millis(1);
    let mut ledger = Ledger::new(Fence::default());
    for (n, ahead) in (0..3).zip([None, Some(LEASE), Some(LEASE)]) {
        let verdict = ledger.contend(&ask(n, Share::MUTEX, Wait::Queued(CALL_GRACE)), now);
        let earliest = ahead.map(|ends| now.after(ends));
        match verdict {
            Verdict::Busy { earliest: at, .. } => assert_eq!(Some(at), earliest),
            other => assert!(earliest.is_none(), "{other:?}"),
        }
    }
    let (long, later) = (Duration::from_secs(60), now.after(Duration::from_millis(1)));
    ledger.renew(id(0), long, later);
    let verdict = ledger.contend(&ask(2, Share::MUTEX, Wait::Queued(CALL_GRACE)), later);
    assert_eq!(verdict, Verdict::Busy { ahead: 2, earliest: now.after(CALL_GRACE) });
}
