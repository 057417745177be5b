//! Queues in which waiters died, in virtual time: how long the live ones wait for it, and what it costs
//! them.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const PLACE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(3600);
/// Pauses between two calls of a waiter when nothing else is due, as in the stores that are polled.
const PAUSES: [u64; 5] = [300, 400, 325, 375, 350];
/// A call in the very instant of an end comes too early.
const TICK: Duration = Duration::from_millis(2);

/// A queue behind one holder, of which some waiters are dead.
struct VirtualQueue {
    ledger: Ledger,
    now: Moment,
    /// The waiters, and when each looks next; never, where it is dead.
    looks: Vec<(ClaimId, Share, Moment)>,
    asked: usize,
}

fn id(n: usize) -> ClaimId {
    let mut bytes = [0; 16];
    bytes[8..].copy_from_slice(&(n as u64 + 1).to_be_bytes());
    ClaimId::from_bytes(bytes)
}

fn ask(id: ClaimId, share: Share, wait: Wait) -> Ask {
    Ask { id, share, lease: LEASE, wait, note: Note::default() }
}

const HOLDER: usize = 1 << 20;

impl VirtualQueue {
    /// Queues the waiters one after the other, and lets them wait for long; then the dead ones died.
    fn behind(holder: Share, waiters: &[(Share, bool)]) -> VirtualQueue {
        let mut line = VirtualQueue {
            ledger: Ledger::default(),
            now: Moment::from_millis(1),
            looks: Vec::new(),
            asked: 0,
        };
        let held = line.ledger.contend(&ask(id(HOLDER), holder, Wait::No), line.now);
        assert!(matches!(held, Verdict::Granted(_)));
        for (n, (share, lives)) in waiters.iter().enumerate() {
            let asked = line.ledger.contend(&ask(id(n), *share, Wait::Queued(PLACE)), line.now);
            assert!(matches!(asked, Verdict::Busy { .. }), "{share} is admitted");
            let next =
                if *lives { line.now.after(Duration::from_millis(n as u64 % 400)) } else { Moment::NEVER };
            line.looks.push((id(n), *share, next));
            line.now = line.now.after(Duration::from_millis(1));
        }
        line.run(line.now.after(Duration::from_secs(10)));
        line.asked = 0;
        line
    }

    /// Lets all waiters call when they are due, until `end`. Returns which were granted, and when; each
    /// leaves at once.
    fn run(&mut self, end: Moment) -> Vec<(ClaimId, Moment)> {
        let mut granted = Vec::new();
        // Dead waiters never call again.
        while let Some(at) = (0..self.looks.len()).min_by_key(|at| self.looks[*at].2)
            && self.looks[at].2 <= end
        {
            let (id, share, due) = self.looks[at];
            self.now = self.now.max(due);
            self.asked += 1;
            let pause = Duration::from_millis(PAUSES[self.asked % PAUSES.len()]);
            match self.ledger.contend(&ask(id, share, Wait::Queued(PLACE)), self.now) {
                Verdict::Granted(_) => {
                    granted.push((id, self.now));
                    self.looks.remove(at);
                    assert!(self.ledger.release(id, self.now));
                }
                Verdict::Busy { earliest, .. } => {
                    let next = self.now.until(earliest).saturating_add(TICK).min(pause);
                    self.looks[at].2 = self.now.after(next);
                }
                Verdict::Full => unreachable!("the line has room"),
            }
        }
        self.now = self.now.max(end);
        granted
    }
}

/// Returns a queue of mutexes whose holder released now, after all its waiters were silent for a second.
fn silent_queue(waiters: usize) -> (Ledger, Moment) {
    let mut ledger = Ledger::default();
    let start = Moment::from_millis(1);
    for n in 0..=waiters {
        ledger.contend(&ask(id(n), Share::MUTEX, Wait::Queued(PLACE)), start);
    }
    let freed = start.after(Duration::from_secs(1));
    assert!(ledger.release(id(0), freed));
    (ledger, freed)
}

/// Asks for the last claim of the queue. Returns the verdict, and how many claims are called.
fn ask_last(ledger: &mut Ledger, now: Moment) -> (Verdict, usize) {
    let last = ledger.entries().last().unwrap().id;
    let verdict = ledger.contend(&ask(last, Share::MUTEX, Wait::Queued(PLACE)), now);
    let called = ledger.entries().iter().filter(|entry| entry.until <= now.after(CALL_GRACE));
    (verdict, called.count())
}

#[test]
fn more_of_the_queue_is_called_for_each_silent_claim() {
    let (mut ledger, freed) = silent_queue(40);
    let busy = |earliest| Verdict::Busy { ahead: 39, earliest };
    let early = freed.after(PROBE_AFTER / 2);
    assert_eq!(ask_last(&mut ledger, early), (busy(freed.after(PROBE_AFTER)), 1));
    // The first has not answered: the time of the next step is that at which its silence counts.
    let probed = freed.after(PROBE_AFTER);
    assert_eq!(ask_last(&mut ledger, probed), (busy(freed.after(SILENT_AFTER)), PROBED_PER_SILENT));
    // It is one silent claim as before; those called after it are silent next.
    let silent = freed.after(SILENT_AFTER);
    assert_eq!(ask_last(&mut ledger, silent), (busy(probed.after(SILENT_AFTER)), PROBED_PER_SILENT));
    // All are called but the one that asks, so no further step follows.
    let all = probed.after(SILENT_AFTER);
    assert_eq!(ask_last(&mut ledger, all), (busy(freed.after(CALL_GRACE)), 39));
}

#[test]
fn nothing_is_called_again_once_all_that_were_silent_are_called() {
    let (mut ledger, freed) = silent_queue(3);
    let called = ask_last(&mut ledger, freed.after(PROBE_AFTER));
    assert_eq!(called, (Verdict::Busy { ahead: 2, earliest: freed.after(CALL_GRACE) }, 2));
}

#[test]
fn end_of_a_lease_calls_the_next_claim_at_a_renewal() {
    let mut ledger = Ledger::default();
    let start = Moment::from_millis(1);
    let permit = Share::permits(1, 2).unwrap();
    let short = Duration::from_secs(1);
    ledger.contend(&ask(id(0), permit, Wait::No), start);
    ledger.contend(&Ask { lease: short, ..ask(id(1), permit, Wait::No) }, start);
    ledger.contend(&ask(id(2), permit, Wait::Queued(PLACE)), start);
    let ended = start.after(short);
    assert!(ledger.renew(id(0), LEASE, ended));
    let waiter = ledger.called().next().unwrap();
    assert_eq!((waiter.id, waiter.until), (id(2), ended.after(CALL_GRACE)));
}

/// Releases the holder, and returns in which order, and how late, the live waiters are granted.
fn released(holder: Share, waiters: &[(Share, bool)]) -> (Vec<ClaimId>, Duration, usize) {
    let mut line = VirtualQueue::behind(holder, waiters);
    let freed = line.now;
    assert!(line.ledger.release(id(HOLDER), line.now));
    let granted = line.run(freed.after(Duration::from_secs(120)));
    let late = granted.last().map_or(Duration::ZERO, |(_, at)| at.since(freed));
    (granted.into_iter().map(|(id, _)| id).collect(), late, line.asked)
}

#[test]
fn live_waiter_behind_dead_ones_waits_at_most_two_seconds() {
    for dead in [1, 2, 12, 33, 100, 1_000, 2_000] {
        let mut waiters = vec![(Share::MUTEX, false); dead];
        waiters.push((Share::MUTEX, true));
        let (order, late, _) = released(Share::MUTEX, &waiters);
        assert_eq!(order, [id(dead)]);
        assert!(late <= Duration::from_secs(2), "{dead} died: {late:?}");
    }
}

#[test]
fn permits_and_readers_behind_dead_waiters_are_granted() {
    let three = |k| Share::permits(k, 3).unwrap();
    let line = |dead: Share, live: Share| [vec![(dead, false); 100], vec![(live, true)]].concat();
    for (holder, waiters) in [
        (Share::WRITER, line(Share::READER, Share::WRITER)),
        (Share::WRITER, line(Share::WRITER, Share::READER)),
        (three(3), line(three(2), three(2))),
        (three(3), line(three(1), three(3))),
    ] {
        let (order, late, _) = released(holder, &waiters);
        assert_eq!(order, [id(100)], "{holder}");
        assert!(late <= Duration::from_secs(2), "{holder}: {late:?}");
    }
}

#[test]
fn dead_writers_that_block_a_reader_are_passed_over_together() {
    let mut line = VirtualQueue::behind(Share::READER, &[(Share::WRITER, false); 100]);
    let came = line.now;
    line.looks.push((id(200), Share::READER, came));
    let granted = line.run(came.after(Duration::from_secs(60)));
    assert_eq!(granted.len(), 1);
    assert!(granted[0].1.since(came) <= Duration::from_secs(2), "{:?}", granted[0].1.since(came));
}

#[test]
fn dead_waiter_costs_the_others_a_bounded_number_of_calls() {
    let mut waiters = vec![(Share::MUTEX, true); 1_000];
    let mut idle = VirtualQueue::behind(Share::MUTEX, &waiters);
    waiters[0].1 = false;
    let mut line = VirtualQueue::behind(Share::MUTEX, &waiters);
    for line in [&mut idle, &mut line] {
        assert!(line.ledger.release(id(HOLDER), line.now));
    }
    // The first live waiter calls more of the queue.
    line.ledger.contend(&ask(id(999), Share::MUTEX, Wait::Queued(PLACE)), line.now.after(PROBE_AFTER));
    let called = |line: &VirtualQueue, after: Duration| {
        let by = line.now.after(after + CALL_GRACE);
        line.ledger.entries().iter().filter(|entry| entry.until <= by).count()
    };
    assert_eq!(called(&line, PROBE_AFTER), PROBED_PER_SILENT);
    // If the first answers, no other waiter is called.
    assert!(matches!(
        idle.ledger.contend(&ask(id(0), Share::MUTEX, Wait::Queued(PLACE)), idle.now),
        Verdict::Granted(_)
    ));
    idle.ledger.contend(&ask(id(999), Share::MUTEX, Wait::Queued(PLACE)), idle.now.after(PROBE_AFTER));
    assert_eq!(called(&idle, PROBE_AFTER), 0);
}

#[test]
fn waiter_that_answers_is_not_called_again_at_once() {
    let mut line = VirtualQueue::behind(
        Share::MUTEX,
        &[(Share::MUTEX, false), (Share::MUTEX, true), (Share::MUTEX, true)],
    );
    assert!(line.ledger.release(id(HOLDER), line.now));
    let wait = Wait::Queued(PLACE);
    let probed = line.now.after(PROBE_AFTER);
    line.ledger.contend(&ask(id(2), Share::MUTEX, wait), probed);
    assert_eq!(line.ledger.entries()[1].until, probed.after(CALL_GRACE));
    let answered = probed.after(Duration::from_millis(3));
    line.ledger.contend(&ask(id(1), Share::MUTEX, wait), answered);
    assert_eq!(line.ledger.entries()[1].until, answered.after(PLACE));
    line.ledger.contend(&ask(id(2), Share::MUTEX, wait), answered.after(SILENT_AFTER));
    assert_eq!(line.ledger.entries()[1].until, answered.after(PLACE));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn live_waiters_are_granted_in_order_within_seconds(lives in proptest::collection::vec(any::<bool>(), 1..80)) {
        let waiters: Vec<(Share, bool)> = lives.iter().map(|lives| (Share::MUTEX, *lives)).collect();
        let (order, late, _) = released(Share::MUTEX, &waiters);
        let expected: Vec<ClaimId> = (0..lives.len()).filter(|n| lives[*n]).map(id).collect();
        prop_assert_eq!(order.clone(), expected);
// Each hand-over waits for the next call of a polling waiter, and some dead waiters are called later
        // than others.
        let polls = Duration::from_millis(400) * u32::try_from(order.len()).unwrap();
        prop_assert!(late <= Duration::from_secs(5) + polls, "{late:?} for {} of {}", order.len(), lives.len());
    }
}
