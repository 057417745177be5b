//! Lines in which waiters died, in virtual time: how long those that live wait for it, and what it costs
//! them.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const PLACE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(3600);
/// Between the answer to a look and the next one, where nothing else is due: as the stores do that are
/// polled.
const PAUSES: [u64; 5] = [300, 400, 325, 375, 350];
/// A look in the very instant of an end is one too early.
const TICK: Duration = Duration::from_millis(2);

/// A line behind one holder, of which some are dead.
struct Line {
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

impl Line {
    /// Returns all of them came one after the other and waited for long; then the dead ones died.
    fn behind(holder: Share, waiters: &[(Share, bool)]) -> Line {
        let mut line =
            Line { ledger: Ledger::default(), now: Moment::from_millis(1), looks: Vec::new(), asked: 0 };
        let held = line.ledger.contend(&ask(id(HOLDER), holder, Wait::No), line.now);
        assert!(matches!(held, Verdict::Granted(_)));
        for (n, (share, lives)) in waiters.iter().enumerate() {
            let asked = line.ledger.contend(&ask(id(n), *share, Wait::InLine(PLACE)), line.now);
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

    /// Lets all look when they are due, until `end`. Answers who was granted, and when; each leaves at
    /// once.
    fn run(&mut self, end: Moment) -> Vec<(ClaimId, Moment)> {
        let mut granted = Vec::new();
        // Those that are dead never look again.
        while let Some(at) = (0..self.looks.len()).min_by_key(|at| self.looks[*at].2)
            && self.looks[at].2 <= end
        {
            let (id, share, due) = self.looks[at];
            self.now = self.now.max(due);
            self.asked += 1;
            let pause = Duration::from_millis(PAUSES[self.asked % PAUSES.len()]);
            match self.ledger.contend(&ask(id, share, Wait::InLine(PLACE)), self.now) {
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

/// Returns the holder leaves: in which order, and how late, are those granted that live?
fn released(holder: Share, waiters: &[(Share, bool)]) -> (Vec<ClaimId>, Duration, usize) {
    let mut line = Line::behind(holder, waiters);
    let freed = line.now;
    assert!(line.ledger.release(id(HOLDER), line.now));
    let granted = line.run(freed.after(Duration::from_secs(120)));
    let late = granted.last().map_or(Duration::ZERO, |(_, at)| at.since(freed));
    (granted.into_iter().map(|(id, _)| id).collect(), late, line.asked)
}

#[test]
fn however_many_died_the_next_that_lives_waits_two_seconds() {
    for dead in [1, 2, 12, 33, 100, 1_000, 2_000] {
        let mut waiters = vec![(Share::MUTEX, false); dead];
        waiters.push((Share::MUTEX, true));
        let (order, late, _) = released(Share::MUTEX, &waiters);
        assert_eq!(order, [id(dead)]);
        assert!(late <= Duration::from_secs(2), "{dead} died: {late:?}");
    }
}

#[test]
fn permits_and_readers_are_found_behind_the_dead_as_well() {
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
    let mut line = Line::behind(Share::READER, &[(Share::WRITER, false); 100]);
    let came = line.now;
    line.looks.push((id(200), Share::READER, came));
    let granted = line.run(came.after(Duration::from_secs(60)));
    assert_eq!(granted.len(), 1);
    assert!(granted[0].1.since(came) <= Duration::from_secs(2), "{:?}", granted[0].1.since(came));
}

#[test]
fn one_that_died_costs_the_others_a_bounded_number_of_looks() {
    let mut waiters = vec![(Share::MUTEX, true); 1_000];
    let mut idle = Line::behind(Share::MUTEX, &waiters);
    waiters[0].1 = false;
    let mut line = Line::behind(Share::MUTEX, &waiters);
    for line in [&mut idle, &mut line] {
        assert!(line.ledger.release(id(HOLDER), line.now));
    }
    // The first that lives looks, and calls more of the queue.
    line.ledger.contend(&ask(id(999), Share::MUTEX, Wait::InLine(PLACE)), line.now.after(PROBE_AFTER));
    let called = |line: &Line, after: Duration| {
        let by = line.now.after(after + CALL_GRACE);
        line.ledger.entries().iter().filter(|entry| entry.until <= by).count()
    };
    assert_eq!(called(&line, PROBE_AFTER), PROBED_PER_SILENT);
    // Where the first answers, nobody else is called.
    assert!(matches!(
        idle.ledger.contend(&ask(id(0), Share::MUTEX, Wait::InLine(PLACE)), idle.now),
        Verdict::Granted(_)
    ));
    idle.ledger.contend(&ask(id(999), Share::MUTEX, Wait::InLine(PLACE)), idle.now.after(PROBE_AFTER));
    assert_eq!(called(&idle, PROBE_AFTER), 0);
}

#[test]
fn one_that_answers_is_not_called_again_for_the_same_silence() {
    let mut line =
        Line::behind(Share::MUTEX, &[(Share::MUTEX, false), (Share::MUTEX, true), (Share::MUTEX, true)]);
    assert!(line.ledger.release(id(HOLDER), line.now));
    let wait = Wait::InLine(PLACE);
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
    fn those_that_live_are_granted_in_order_and_soon(lives in proptest::collection::vec(any::<bool>(), 1..80)) {
        let waiters: Vec<(Share, bool)> = lives.iter().map(|lives| (Share::MUTEX, *lives)).collect();
        let (order, late, _) = released(Share::MUTEX, &waiters);
        let expected: Vec<ClaimId> = (0..lives.len()).filter(|n| lives[*n]).map(id).collect();
        prop_assert_eq!(order.clone(), expected);
        // Each hand-over waits for the next look of one that polls, and some of the dead are called later
        // than others.
        let polls = Duration::from_millis(400) * u32::try_from(order.len()).unwrap();
        prop_assert!(late <= Duration::from_secs(5) + polls, "{late:?} for {} of {}", order.len(), lives.len());
    }
}
