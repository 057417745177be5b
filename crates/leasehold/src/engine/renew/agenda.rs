//! Agenda of the renewer: when each lease is checked next.
//!
//! A hierarchical timing wheel holds the entries, so that adding, moving and removing one costs the same
//! with one lease and with ten thousand. The wheel runs on the clock of the runtime, which stands still
//! while the machine is suspended. Leases end by the client's clock, which counts suspend.
//!
//! Ground rules: an entry keeps its moment on the client's clock, and only that clock decides whether it is
//! due. The wheel says when to compare them; [`Agenda::follow`] puts all entries into it anew when one clock
//! has gained on the other.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{ClaimId, Clock, Moment};
use tokio::task::unconstrained;
use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use crate::random::HashMap;

/// The time of the next check of each lease.
#[derive(Debug)]
pub(super) struct Agenda {
    wheel: DelayQueue<ClaimId>,
    entries: HashMap<ClaimId, Entry>,
    /// The entry that the wheel gave to [`Agenda::wait`], and [`Agenda::take_due`] has not seen yet.
    expired: Option<ClaimId>,
    /// The reading by which one clock is translated into the other.
    base: Reading,
}

/// One point in time on both clocks.
///
/// The runtime's clock is read first. If the process stops between the two, what is planned by the reading
/// comes early, which [`Agenda::take_due`] corrects, and never late.
#[derive(Clone, Copy, Debug)]
struct Reading {
    instant: Instant,
    now: Moment,
}

impl Reading {
    fn of(clock: &dyn Clock) -> Reading {
        let instant = Instant::now();
        Reading { instant, now: clock.now() }
    }

    /// Returns when the wheel has to give out what is due at this moment.
    fn instant_of(&self, due: Moment) -> Instant {
        self.instant + self.now.until(due).min(LONGEST_WAIT)
    }
}

#[derive(Debug)]
struct Entry {
    due: Moment,
    /// The place in the wheel. `None` once the wheel gave the entry out, since it uses keys again.
    key: Option<Key>,
}

impl Agenda {
    pub(super) fn new(clock: &dyn Clock) -> Agenda {
        Agenda {
            wheel: DelayQueue::new(),
            entries: HashMap::default(),
            expired: None,
            base: Reading::of(clock),
        }
    }

    /// Sets the next check of a claim, instead of the one that it has.
    pub(super) fn plan(&mut self, id: ClaimId, due: Moment) {
        // The same moment is always the same instant, so what is due together comes together.
        self.plan_at(id, due, self.base.instant_of(due));
    }

    fn plan_at(&mut self, id: ClaimId, due: Moment, at: Instant) {
        let entry = self.entries.entry(id).or_insert(Entry { due, key: None });
        entry.due = due;
        match entry.key {
            Some(key) => self.wheel.reset_at(&key, at),
            None => entry.key = Some(self.wheel.insert_at(id, at)),
        }
    }

    /// Returns the next check of a claim.
    pub(super) fn due(&self, id: ClaimId) -> Option<Moment> {
        self.entries.get(&id).map(|entry| entry.due)
    }

    pub(super) fn remove(&mut self, id: ClaimId) {
        if let Some(key) = self.entries.remove(&id).and_then(|entry| entry.key) {
            self.wheel.remove(&key);
        }
    }

    /// Removes all claims at once. One by one would take long where the wheel checks its own slots, as it does
    /// in a build without optimisation.
    pub(super) fn clear(&mut self) {
        self.wheel.clear();
        self.entries.clear();
    }

    /// Waits until a check may be due; for ever if there is none. Cancel safe: nothing is lost.
    pub(super) async fn wait(&mut self) {
        if self.expired.is_none() {
            self.expired = Some(poll_fn(|context| self.poll_wheel(context)).await);
        }
    }

    /// Removes a claim whose check is due, and returns it. Claims come in the order of their checks, but for
    /// the resolution of the wheel, a millisecond.
    pub(super) fn take_due(&mut self, clock: &dyn Clock) -> Option<ClaimId> {
        let turn = clock.now();
        loop {
            // Without a limit on what one poll does: all that is due is to be renewed in one batch.
            let polled = |agenda: &mut Agenda| {
                unconstrained(poll_fn(|context| agenda.poll_wheel(context))).now_or_never()
            };
            let id = self.expired.take().or_else(|| polled(self))?;
            // It was removed after the wheel gave it out.
            let Some(due) = self.due(id) else { continue };
            // It was moved after the wheel gave it out, it is further away than the wheel can reach, or the
            // runtime's clock has gained a little on the client's. The clocks are read anew for each entry: by
            // an old reading, the wheel would give out the same entries without end while a turn takes long.
            if due > turn {
                let reading = Reading::of(clock);
                if due > reading.now {
                    self.plan_at(id, due, reading.instant_of(due));
                    continue;
                }
            }
            self.remove(id);
            return Some(id);
        }
    }

    /// Puts all entries into the wheel anew if one clock has gained on the other, as after a suspend of the
    /// machine. Call this at each turn, and at least once a second: until then, checks are late by the gain.
    pub(super) fn follow(&mut self, clock: &dyn Clock) {
        let reading = Reading::of(clock);
        let passed = reading.now.since(self.base.now);
        let ran = reading.instant.saturating_duration_since(self.base.instant);
        if passed.abs_diff(ran) < DRIFT_MAX && ran < LONGEST_WAIT / 2 {
            return;
        }
        self.base = reading;
        // The wheel itself advances only when it gives something out, and it refuses an entry that is more than
        // two years after that. A new one begins now.
        self.wheel = DelayQueue::new();
        self.entries.values_mut().for_each(|entry| entry.key = None);
        let entries: Vec<_> = self.entries.iter().map(|(id, entry)| (*id, entry.due)).collect();
        entries.into_iter().for_each(|(id, due)| self.plan(id, due));
    }

    /// Takes one claim out of the wheel.
    fn poll_wheel(&mut self, context: &mut Context<'_>) -> Poll<ClaimId> {
        // An empty wheel ends the stream, and begins it again with the next entry.
        let Poll::Ready(Some(expired)) = self.wheel.poll_expired(context) else { return Poll::Pending };
        let id = expired.into_inner();
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.key = None;
        }
        Poll::Ready(id)
    }
}

/// The longest wait of an entry in the wheel, which refuses more than two years.
/// Later checks wait in several steps.
const LONGEST_WAIT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The difference of the clocks from which all entries are put into the wheel anew. A smaller one makes
/// checks late by no more than this.
const DRIFT_MAX: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leasehold_core::ManualClock;
    use proptest::prelude::*;

    use super::*;

    /// In milliseconds.
    const DAY: u64 = 24 * 60 * 60 * 1000;

    #[derive(Clone, Debug)]
    enum Step {
        /// Sets the check of a claim to so many milliseconds from now.
        Plan(u8, u64),
        Remove(u8),
        /// Waits for a check for so many milliseconds.
        Run(u64),
        /// The client's clock continues, the runtime's does not.
        Suspend(u64),
        /// The runtime's clock continues, the client's does not.
        Gain(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Times on all levels of the wheel, which has 64 slots a level.
        let millis = prop_oneof![0..70_u64, 0..5_000_u64, 0..300_000_u64, Just(20 * DAY), Just(100 * DAY)];
        let step = prop_oneof![
            4 => (0..12_u8, millis.clone()).prop_map(|(id, at)| Step::Plan(id, at)),
            1 => (0..12_u8).prop_map(Step::Remove),
            4 => millis.clone().prop_map(Step::Run),
            1 => millis.prop_map(Step::Suspend),
            1 => (0..5_000_u64).prop_map(Step::Gain),
        ];
        proptest::collection::vec(step, 1..60)
    }

    fn id(number: u8) -> ClaimId {
        ClaimId::from_bytes([number; 16])
    }

    async fn advance(clock: &ManualClock, by: Duration) {
        clock.advance(by);
        tokio::time::advance(by).await;
    }

    /// Runs the steps beside a sorted map: no check comes before its time, and none is missed.
    async fn compare(steps: Vec<Step>) {
        // An entry may be made with a drift in one direction and be checked with one in the other.
        let (clock, late) = (ManualClock::new(), DRIFT_MAX * 2 + Duration::from_millis(2));
        let mut agenda = Agenda::new(&clock);
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Plan(number, at) => {
                    let due = clock.now().after(Duration::from_millis(at));
                    agenda.plan(id(number), due);
                    model.insert(id(number), due);
                }
                Step::Remove(number) => {
                    agenda.remove(id(number));
                    model.remove(&id(number));
                }
                Step::Run(millis) => {
                    // A turn comes at the latest when the next check is due.
                    let most = Duration::from_millis(millis);
                    let next = model.values().map(|due| clock.now().until(*due) + late).min();
                    let nap = most.min(next.unwrap_or(most));
                    advance(&clock, nap).await;
                    if next == Some(nap) {
                        tokio::time::timeout(Duration::ZERO, agenda.wait()).await.expect("a check is due");
                    }
                }
                Step::Suspend(millis) => clock.advance(Duration::from_millis(millis)),
                Step::Gain(millis) => tokio::time::advance(Duration::from_millis(millis)).await,
            }
            let now = clock.now();
            agenda.follow(&clock);
            while let Some(id) = agenda.take_due(&clock) {
                let due = model.remove(&id).expect("no check without a plan");
                assert!(due <= now, "{id:?} came at {now:?} and is due at {due:?}");
            }
            for (id, due) in &model {
                assert!(now.before(late) < *due, "{id:?} is missing at {now:?}, it was due at {due:?}");
                assert_eq!(agenda.due(*id), Some(*due));
            }
        }
    }

    proptest! {
        #[test]
        fn agenda_gives_out_what_is_due_and_nothing_else(steps in steps()) {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
            runtime.block_on(compare(steps));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_wait_loses_no_check() {
        let clock = ManualClock::new();
        let mut agenda = Agenda::new(&clock);
        agenda.plan(id(1), clock.now().after(Duration::from_secs(1)));
        let wait = tokio::time::timeout(Duration::from_millis(999), agenda.wait());
        wait.await.expect_err("nothing is due");
        clock.advance(Duration::from_secs(2));
        agenda.wait().await;
        // The answer of the first wait is still there.
        agenda.wait().await;
        agenda.plan(id(2), Moment::START);
        assert_eq!(agenda.take_due(&clock), Some(id(1)));
    }

    /// A clock of a machine on which each reading takes a millisecond.
    #[derive(Debug, Default)]
    struct SlowClock(ManualClock);

    impl Clock for SlowClock {
        fn now(&self) -> Moment {
            let now = self.0.now();
            // The first poll moves both clocks, the rest lets other tasks run.
            let _ = advance(&self.0, Duration::from_millis(1)).now_or_never();
            now
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_turn_ends_and_gives_out_nothing_early() {
        let clock = SlowClock::default();
        let mut agenda = Agenda::new(&clock);
        let due = clock.now().after(Duration::from_secs(1));
        (0..100).for_each(|number| agenda.plan(id(number), due));
        // The wheel gives the entries out five milliseconds before they are due.
        tokio::time::advance(Duration::from_millis(5)).await;
        advance(&clock.0, clock.0.now().until(due) - Duration::from_millis(5)).await;
        agenda.follow(&clock);
        let mut taken = 0;
        while taken < 100 {
            match agenda.take_due(&clock) {
                Some(_) => taken += 1,
                None => advance(&clock.0, Duration::from_millis(1)).await,
            }
            assert!(taken == 0 || due <= clock.0.now(), "a check came early");
            assert!(clock.0.now() < due.after(Duration::from_secs(1)), "the turn does not end");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_together_comes_in_one_turn() {
        let clock = ManualClock::new();
        let mut agenda = Agenda::new(&clock);
        let due = clock.now().after(Duration::from_secs(1));
        for number in 0..=255 {
            for other in 0..4 {
                let mut bytes = [number; 16];
                bytes[0] = other;
                agenda.plan(ClaimId::from_bytes(bytes), due);
                advance(&clock, Duration::from_micros(700)).await;
            }
        }
        agenda.wait().await;
        clock.advance(Duration::from_secs(1));
        // In one poll of a task, which may take only so many results of timers.
        let taken = std::iter::from_fn(|| agenda.take_due(&clock)).count();
        assert_eq!(taken, 256 * 4);
    }

    /// Over all that time the clocks agree, so nothing is put into the wheel anew because of them.
    #[tokio::test(start_paused = true)]
    async fn check_of_a_client_that_has_run_for_months_wakes_nobody_early() {
        let (clock, day) = (ManualClock::new(), Duration::from_millis(DAY));
        let mut agenda = Agenda::new(&clock);
        for _ in 0..100 {
            advance(&clock, day).await;
            agenda.follow(&clock);
            agenda.plan(id(1), clock.now().after(Duration::from_secs(1)));
            let began = Instant::now();
            tokio::time::timeout(Duration::from_millis(900), agenda.wait()).await.expect_err("it is not due");
            clock.advance(began.elapsed());
            agenda.remove(id(1));
        }
    }

    /// Every lock was released before its first check for so long, so the wheel has given nothing out.
    #[tokio::test(start_paused = true)]
    async fn client_without_a_check_for_three_years_plans_one() {
        let clock = ManualClock::new();
        let mut agenda = Agenda::new(&clock);
        for _ in 0..11 {
            advance(&clock, Duration::from_millis(100 * DAY)).await;
            agenda.follow(&clock);
            agenda.plan(id(1), clock.now().after(Duration::from_secs(1)));
            agenda.remove(id(1));
        }
        agenda.plan(id(2), clock.now().after(Duration::from_secs(1)));
        assert_eq!(agenda.take_due(&clock), None);
        advance(&clock, Duration::from_secs(1)).await;
        agenda.wait().await;
        assert_eq!(agenda.take_due(&clock), Some(id(2)));
    }

    /// Else a client would move all of its locks at each of its turns.
    #[tokio::test(start_paused = true)]
    async fn checks_stay_where_they_are_while_the_clocks_agree() {
        let clock = ManualClock::new();
        let mut agenda = Agenda::new(&clock);
        let began = agenda.base.instant;
        for _ in 0..100 {
            advance(&clock, Duration::from_secs(1)).await;
            agenda.follow(&clock);
        }
        assert_eq!(agenda.base.instant, began);
        clock.advance(Duration::from_secs(1));
        agenda.follow(&clock);
        assert!(agenda.base.instant > began, "the machine was suspended");
    }

    /// A lock that is held for a moment leaves nothing until its first check would have been due.
    #[tokio::test(start_paused = true)]
    async fn what_is_removed_leaves_the_wheel() {
        let clock = ManualClock::new();
        let mut agenda = Agenda::new(&clock);
        let due = clock.now().after(Duration::from_secs(1));
        (0..3).for_each(|number| agenda.plan(id(number), due));
        agenda.remove(id(1));
        assert_eq!((agenda.wheel.len(), agenda.entries.len()), (2, 2));
        agenda.clear();
        assert_eq!((agenda.wheel.len(), agenda.entries.len()), (0, 0));
    }
}
