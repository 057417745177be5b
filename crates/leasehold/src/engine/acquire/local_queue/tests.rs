//! Random programs on a local queue, compared with a simple model; and queues with an injected defect,
//! which the programs find.
//!
//! Ground rules: the model knows only what an outside observer sees. The seed is fixed, so every run
//! tests the same programs.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_core::{Note, Resource};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use super::*;
use crate::engine::Wanted;

/// An injected defect: a queue that forgets the consequences of one kind of change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mutant {
    Enter,
    Leave,
    Granted,
    Ended,
    Returned,
    HandoffOver,
    Try,
    Departed,
    AddDependent,
}

impl Mutant {
    pub(super) fn forgets<W, E, L>(self, change: &Change<W, E, L>) -> bool {
        match change {
            Change::Enter { .. } => self == Mutant::Enter,
            Change::Leave(_) => self == Mutant::Leave,
            Change::Granted(..) => self == Mutant::Granted,
            Change::Ended { .. } => self == Mutant::Ended,
            Change::Returned { .. } => self == Mutant::Returned,
            Change::HandoffOver(_) => self == Mutant::HandoffOver,
            Change::Try { .. } => self == Mutant::Try,
            Change::Departed(_) => self == Mutant::Departed,
            Change::AddDependent => self == Mutant::AddDependent,
            _ => false,
        }
    }
}

/// An event of a queue. Numbers choose one of the possible ones.
#[derive(Clone, Debug)]
enum Step {
    Enter { kind: Kind, priority: i32 },
    Leave(usize),
    Try(Kind),
    Grant,
    End { failed: bool },
    GrantedOutsideQueue(Kind),
    Return { which: usize, left: u32, lingers: bool },
    EndHandoff(usize),
    ReleaseInline(usize),
    AddDependent,
    RemoveDependent,
    Depart(usize),
}

/// The requested share, and whether the request has another note.
type Kind = (Share, bool);

/// The queue, and what is known of it from outside: its waiters, what was started, what is held. Written
/// to be simple.
struct Model {
    queue: LocalQueue<u64, ClaimId, ClaimId>,
    store_has_queue: bool,
    next: u64,
    waiters: Vec<(Place, Want)>,
    contender: Option<(Want, bool)>,
    /// The claims that are held, and whether their release is under way.
    held: Vec<(ClaimId, Want, bool)>,
    /// The claims for which hand-off is over, and those that were reported as candidates.
    handoff_over: BTreeSet<ClaimId>,
    /// The lingering claims.
    lingering: Vec<ClaimId>,
    /// The claims that linger or have lingered last, and that no task has.
    unused: BTreeSet<ClaimId>,
    reported: BTreeSet<ClaimId>,
    inline_release: Option<ClaimId>,
    /// The tasks outside the queue that wait for a release.
    dependents: usize,
    is_idle: bool,
}

fn want((share, noted): Kind) -> Want {
    Want::of(Wanted {
        resource: Resource::new("r").unwrap(),
        share,
        ttl: Duration::from_secs(10),
        lock_delay: Duration::ZERO,
        max_hold: None,
        linger: Duration::ZERO,
        note: if noted { Note::new("another").unwrap() } else { Note::default() },
    })
}

/// Enters the queue at the moment whose number is that of the ticket.
fn enter(place: Place, want: Want) -> Change<u64, ClaimId, ClaimId> {
    Change::Enter { place, want, task: None, entered: Moment::from_nanos(place.ticket), handle: place.ticket }
}

fn fits(held: impl Iterator<Item = Share>, share: Share) -> bool {
    let all: Vec<Share> = held.chain([share]).collect();
    let load: u64 = all.iter().map(|share| u64::from(share.weight())).sum();
    all.iter().all(|share| load <= u64::from(share.capacity()))
}

impl Model {
    fn new(store_has_queue: bool, mutant: Option<Mutant>) -> Model {
        let mut queue = LocalQueue::new(store_has_queue, false);
        queue.mutant = mutant;
        Model {
            queue,
            store_has_queue,
            next: 0,
            waiters: Vec::new(),
            contender: None,
            held: Vec::new(),
            handoff_over: BTreeSet::new(),
            lingering: Vec::new(),
            unused: BTreeSet::new(),
            reported: BTreeSet::new(),
            inline_release: None,
            dependents: 0,
            is_idle: true,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn id(&mut self) -> ClaimId {
        ClaimId::from_bytes(u128::from(self.number()).to_be_bytes())
    }

    fn fits(&self, share: Share) -> bool {
        fits(self.held.iter().map(|(_, want, _)| want.share), share)
    }

    fn fits_beside_used(&self, share: Share) -> bool {
        let used = self.held.iter().filter(|(id, ..)| !self.unused.contains(id));
        fits(used.map(|(_, want, _)| want.share), share)
    }

    /// The waiters, in the order in which they are served.
    fn in_order(&self) -> Vec<(Place, Want)> {
        let mut waiters = self.waiters.clone();
        waiters.sort_by_key(|(place, _)| *place);
        waiters
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Enter { kind, priority } => {
                let place = Place::new(priority, self.number());
                let resumed = self.resume(&want(kind));
                if resumed.is_none() {
                    self.waiters.push((place, want(kind)));
                }
                let outcome = self.apply(enter(place, want(kind)))?;
                prop_assert_eq!(
                    outcome.resumed,
                    resumed,
                    "a lingering claim goes to the first that wants it"
                );
                prop_assert_eq!(outcome.taker, resumed.map(|_| (place.ticket, want(kind))));
            }
            Step::Leave(which) if !self.waiters.is_empty() => {
                let (place, _) = self.waiters.remove(which % self.waiters.len());
                self.apply(Change::Leave(place))?;
            }
            Step::Try(kind) => {
                let shares: Vec<Share> = self
                    .in_order()
                    .into_iter()
                    .take(1)
                    .map(|(_, first)| first.share)
                    .chain([kind.0])
                    .collect();
                let resumed = self.resume(&want(kind));
                let is_clear = self.unused.is_empty() && shares.iter().all(|share| self.fits(*share));
                let fits_beside_used = shares.iter().all(|share| self.fits_beside_used(*share));
                let allowed = resumed.is_some() || is_clear;
                let is_in_the_way = !allowed && self.inline_release.is_some();
                let outcome = self.apply(Change::Try { want: want(kind), task: None })?;
                prop_assert_eq!(outcome.is_allowed, allowed);
                prop_assert_eq!(
                    outcome.may_try_later,
                    !allowed && fits_beside_used,
                    "what no task has refuses nothing for good"
                );
                prop_assert_eq!(
                    outcome.resumed,
                    resumed,
                    "a lingering claim goes to the first that wants it"
                );
                prop_assert!(allowed || self.lingering.is_empty(), "a claim lingers, and a try is refused");
                prop_assert!(
                    !is_in_the_way || self.inline_release.is_none(),
                    "a release that is in the way is sent off"
                );
            }
            Step::Grant => self.grant()?,
            Step::End { failed } if self.contender.is_some() => {
                let (ended, _) = self.contender.take().unwrap();
                let expected: Vec<_> =
                    self.in_order().into_iter().filter(|(_, want)| failed && *want == ended).collect();
                self.waiters.retain(|waiter| !expected.contains(waiter));
                let outcome = self.apply(Change::Ended { failed, outage: None })?;
                let expected: Vec<_> = expected.into_iter().map(|(place, _)| place.ticket).collect();
                prop_assert_eq!(outcome.failed, expected);
            }
            Step::GrantedOutsideQueue(kind) => {
                let id = self.id();
                self.held.push((id, want(kind), false));
                self.apply(Change::GrantedOutsideQueue(HeldClaim::new(id, want(kind), None)))?;
            }
            Step::Return { which, left, lingers } => {
                let in_use: Vec<_> = self.in_use().cloned().collect();
                if !in_use.is_empty() {
                    self.return_claim(&in_use[which % in_use.len()], left, lingers)?;
                }
            }
            Step::EndHandoff(which) if !self.held.is_empty() => {
                let (id, _, _) = self.held[which % self.held.len()];
                self.handoff_over.insert(id);
                self.apply(Change::HandoffOver(id))?;
            }
            Step::ReleaseInline(which) => {
                let releasing: Vec<_> = self.held.iter().filter(|held| held.2).map(|held| held.0).collect();
                if !releasing.is_empty() {
                    let id = releasing[which % releasing.len()];
                    let alone = !self.is_awaited() && self.inline_release.is_none();
                    let outcome = self.apply(Change::ReleaseInline(id, id))?;
                    prop_assert_eq!(outcome.is_allowed, alone);
                    if alone {
                        self.inline_release = Some(id);
                    }
                }
            }
            Step::AddDependent => {
                self.dependents += 1;
                self.apply(Change::AddDependent)?;
            }
            Step::RemoveDependent if self.dependents > 0 => {
                self.dependents -= 1;
                self.apply(Change::RemoveDependent)?;
            }
            Step::Depart(which) if !self.held.is_empty() => {
                let (id, _, _) = self.held.remove(which % self.held.len());
                self.unused.remove(&id);
                self.inline_release.take_if(|inline_release| *inline_release == id);
                let lingered = self.lingering.contains(&id);
                let outcome = self.apply(Change::Departed(id))?;
                prop_assert_eq!(outcome.linger_over.contains(&id), lingered);
            }
            Step::Leave(_)
            | Step::End { .. }
            | Step::EndHandoff(_)
            | Step::RemoveDependent
            | Step::Depart(_) => {}
        }
        self.check()
    }

    /// Makes the server grant the contender's request.
    fn grant(&mut self) -> Result<(), TestCaseError> {
        let Some((granted, _)) = self.contender.take() else { return Ok(()) };
        let id = self.id();
        let taker = self.in_order().into_iter().find(|(_, want)| *want == granted);
        self.waiters.retain(|waiter| Some(waiter) != taker.as_ref());
        self.held.push((id, granted.clone(), taker.is_none()));
        let outcome = self.apply(Change::Granted(HeldClaim::new(id, granted, None)))?;
        prop_assert_eq!(
            outcome.taker,
            taker.map(|(place, want)| (place.ticket, want)),
            "the first who wants this"
        );
        Ok(())
    }

    /// The claims that a task uses.
    fn in_use(&self) -> impl Iterator<Item = &(ClaimId, Want, bool)> {
        self.held.iter().filter(|(id, _, is_releasing)| !is_releasing && !self.lingering.contains(id))
    }

    /// Takes the first lingering claim that meets this request.
    fn resume(&mut self, want: &Want) -> Option<ClaimId> {
        let at = self
            .lingering
            .iter()
            .position(|id| self.held.iter().any(|(held, held_as, _)| held == id && held_as == want))?;
        let id = self.lingering.remove(at);
        self.unused.remove(&id);
        Some(id)
    }

    /// Makes a user release a claim: to the next waiter, to the next user if it may linger, or to the server.
    fn return_claim(
        &mut self,
        held: &(ClaimId, Want, bool),
        left: u32,
        may_linger: bool,
    ) -> Result<bool, TestCaseError> {
        let (id, held_as, _) = held;
        let is_served =
            |(_, first): &(Place, Want)| left > 0 && first == held_as && !self.handoff_over.contains(id);
        let taker = self.in_order().into_iter().next().filter(is_served);
        self.waiters.retain(|waiter| Some(waiter) != taker.as_ref());
        let is_handed = taker.is_some();
        let is_over = self.handoff_over.contains(id);
        let lingers = may_linger && !is_handed && !is_over && !self.is_awaited();
        self.held.iter_mut().filter(|held| held.0 == *id).for_each(|held| held.2 = !is_handed && !lingers);
        if lingers {
            self.lingering.push(*id);
            self.unused.insert(*id);
        }
        if is_handed && left == 1 {
            self.handoff_over.insert(*id);
        }
        let lingering = may_linger.then_some(*id);
        let outcome = self.apply(Change::Returned { id: *id, left, lingering })?;
        prop_assert_eq!(outcome.lingers, lingers, "it lingers if nothing waits");
        prop_assert_eq!(
            outcome.taker,
            taker.map(|(place, want)| (place.ticket, want)),
            "the first, if it wants just this"
        );
        Ok(is_handed)
    }

    /// Applies the change, and carries out its consequences.
    fn apply(
        &mut self,
        change: Change<u64, ClaimId, ClaimId>,
    ) -> Result<Outcome<u64, ClaimId, ClaimId>, TestCaseError> {
        let mut outcome = self.queue.apply(change);
        for id in &outcome.linger_over {
            prop_assert!(self.lingering.contains(id), "only a lingering claim lingers no more");
            self.lingering.retain(|lingering| lingering != id);
            self.handoff_over.insert(*id);
            self.held.iter_mut().filter(|held| held.0 == *id).for_each(|held| held.2 = true);
        }
        if let Some(want) = outcome.start.take() {
            prop_assert!(self.contender.is_none(), "one contender at a time");
            self.contender = Some((want, false));
        }
        if outcome.stop {
            let (_, is_stopped) = self.contender.as_mut().unwrap();
            prop_assert!(!*is_stopped, "stopped once");
            *is_stopped = true;
        }
        for id in &outcome.handoff_candidates {
            prop_assert!(self.reported.insert(*id), "reported once");
        }
        if let Some(sent) = &outcome.detach {
            prop_assert_eq!(self.inline_release.take(), Some(*sent), "the inline release");
        }
        self.is_idle = outcome.is_idle;
        Ok(outcome)
    }

    fn is_awaited(&self) -> bool {
        !self.waiters.is_empty() || self.contender.is_some() || self.dependents > 0
    }

    /// Checks the invariants after each change.
    fn check(&self) -> Result<(), TestCaseError> {
        let waiters = self.in_order();
        match &self.contender {
            Some((want, is_stopped)) => {
                let target = waiters.iter().find(|(_, waiting)| waiting == want);
                prop_assert!(target.is_some() || *is_stopped, "a contender that no waiter needs is stopped");
                if let (Some((place, _)), Some((first_place, first))) = (target, waiters.first()) {
                    let sleeps = self.fits(first.share) && !self.fits(want.share);
                    prop_assert!(
                        !sleeps || *is_stopped,
                        "the first waiter fits, and sleeps behind a contender that does not"
                    );
                    let came_before = first_place.ticket < place.ticket;
                    let asks_for_less = first.share.weight() < want.share.weight()
                        || first.share.capacity() > want.share.capacity();
                    prop_assert!(
                        !(came_before && asks_for_less) || *is_stopped,
                        "the first waiter sleeps behind a contender for a later waiter, and asks for less"
                    );
                }
            }
            None => {
                if let Some((_, first)) = waiters.first() {
                    prop_assert!(!self.fits(first.share), "the first waiter fits, and has no contender");
                    let may_be_handed = self
                        .held
                        .iter()
                        .filter(|(id, held, _)| held == first && !self.handoff_over.contains(id));
                    let handoff_candidates: BTreeSet<_> = may_be_handed.map(|held| held.0).collect();
                    prop_assert!(
                        !self.store_has_queue || !handoff_candidates.is_empty(),
                        "the first waiter has no place on the server"
                    );
                    prop_assert!(
                        !self.store_has_queue || handoff_candidates.is_subset(&self.reported),
                        "a candidate for a hand-off was not reported"
                    );
                }
            }
        }
        prop_assert!(!self.is_awaited() || self.lingering.is_empty(), "a claim lingers, and a task waits");
        let is_over = |id: &&ClaimId| self.handoff_over.contains(id);
        prop_assert_eq!(self.lingering.iter().find(is_over), None, "a claim lingers after its time");
        prop_assert!(
            !self.is_awaited() || self.inline_release.is_none(),
            "a waiter depends on a release that its caller may leave"
        );
        prop_assert_eq!(self.is_idle, !self.is_awaited() && self.held.is_empty(), "an idle queue is removed");
        Ok(())
    }

    /// Drains the queue: no waiter enters or leaves, the server grants what it can, and all claims are
    /// released. So each waiter is served, and nothing is left.
    fn end(mut self) -> Result<(), TestCaseError> {
        for _ in 0..10_000 {
            let contender = self.contender.clone();
            let in_use = self.in_use().next().cloned();
            let releasing = self.held.iter().position(|held| held.2);
            match (contender, in_use, releasing) {
                (Some((_, true)), _, _) => self.step(Step::End { failed: false })?,
                (Some((want, false)), _, _) if self.fits(want.share) => self.step(Step::Grant)?,
                (_, _, Some(which)) => self.step(Step::Depart(which))?,
                (_, Some(held), _) => {
                    self.return_claim(&held, u32::MAX, true)?;
                    self.check()?;
                }
                (_, None, None) if self.dependents > 0 => self.step(Step::RemoveDependent)?,
                (_, None, None) if !self.lingering.is_empty() => {
                    let id = self.lingering[0];
                    let which = self.held.iter().position(|held| held.0 == id).unwrap();
                    self.step(Step::EndHandoff(which))?;
                }
                (_, None, None) => {
                    prop_assert!(
                        self.waiters.is_empty(),
                        "nothing is held, and a task waits: {:?}",
                        self.waiters
                    );
                    prop_assert!(self.is_idle);
                    return Ok(());
                }
            }
        }
        Err(TestCaseError::fail("it does not come to an end"))
    }
}

fn shares() -> impl Strategy<Value = Share> {
    let permits = |permits, of| Share::permits(permits, of).unwrap();
    prop_oneof![
        1 => Just(Share::MUTEX),
        3 => Just(Share::READER),
        2 => Just(Share::WRITER),
        1 => (1..=4u32).prop_map(move |weight| permits(weight, 4)),
        1 => (1..=3u32).prop_map(move |weight| permits(weight, 3)),
    ]
}

fn kinds() -> impl Strategy<Value = Kind> {
    (shares(), proptest::bool::weighted(0.2))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = 0..1000usize;
    let step = prop_oneof![
        6 => (kinds(), -1..=1).prop_map(|(kind, priority)| Step::Enter { kind, priority }),
        3 => which.clone().prop_map(Step::Leave),
        1 => kinds().prop_map(Step::Try),
        3 => Just(Step::Grant),
        2 => any::<bool>().prop_map(|failed| Step::End { failed }),
        1 => kinds().prop_map(Step::GrantedOutsideQueue),
        4 => (which.clone(), 0..=2u32, any::<bool>())
            .prop_map(|(which, left, lingers)| Step::Return { which, left, lingers }),
        1 => which.clone().prop_map(Step::EndHandoff),
        1 => which.clone().prop_map(Step::ReleaseInline),
        2 => Just(Step::AddDependent),
        1 => Just(Step::RemoveDependent),
        3 => which.prop_map(Step::Depart),
    ];
    proptest::collection::vec(step, 0..60)
}

/// Runs random programs on queues of both kinds of stores.
fn run(mutant: Option<Mutant>) -> Result<(), TestError<(bool, Vec<Step>)>> {
    let config = Config {
        cases: 3_000,
        failure_persistence: None,
        max_shrink_iters: if mutant.is_some() { 0 } else { 10_000 },
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, rng).run(&(any::<bool>(), steps()), |(store_has_queue, steps)| {
        let mut model = Model::new(store_has_queue, mutant);
        for step in steps {
            model.step(step)?;
        }
        model.end()
    })
}

#[test]
fn local_queue_never_sleeps_while_a_request_would_be_granted() {
    run(None).unwrap_or_else(|error| panic!("{error}"));
}

/// Checks that the test above finds defects: a queue that forgets the consequences of a change does not
/// pass it.
#[test]
fn model_detects_a_queue_that_forgets_consequences() {
    use Mutant::{AddDependent, Departed, Ended, Enter, Granted, HandoffOver, Leave, Returned, Try};
    let all = [Enter, Leave, Granted, Ended, Returned, HandoffOver, Try, Departed, AddDependent];
    for mutant in all {
        assert!(matches!(run(Some(mutant)), Err(TestError::Fail(..))), "{mutant:?} passed");
    }
}

/// Repeats the two lost wake-ups that once existed, without randomness.
#[test]
fn leaving_or_multi_permit_handoff_wakes_the_next_waiter() {
    let three = |weight| (Share::permits(weight, 3).unwrap(), false);
    let enter = |kind| Step::Enter { kind, priority: 0 };
    for store_has_queue in [false, true] {
        let mut queue = Model::new(store_has_queue, None);
        for step in [Step::GrantedOutsideQueue((Share::READER, false)), enter((Share::WRITER, false))] {
            queue.step(step).unwrap();
        }
        queue.step(enter((Share::READER, false))).unwrap();
        queue.step(Step::Leave(0)).unwrap();
        if store_has_queue {
            queue.step(Step::End { failed: false }).unwrap();
        }
        assert_eq!(queue.contender, Some((want((Share::READER, false)), false)));

        let mut queue = Model::new(store_has_queue, None);
        for step in [Step::GrantedOutsideQueue(three(2)), enter(three(2)), enter(three(1))] {
            queue.step(step).unwrap();
        }
        assert_eq!(queue.contender, None, "what is held may be handed to the first");
        queue.step(Step::Return { which: 0, left: 2, lingers: true }).unwrap();
        assert_eq!(queue.contender, Some((want(three(1)), false)));
    }
}

/// Runs steps that lead to a contender for a waiter that is not the first.
fn with_a_contender_for_another(steps: impl IntoIterator<Item = Step>) -> Model {
    let mut queue = Model::new(true, None);
    for step in steps {
        queue.step(step).unwrap();
    }
    assert!(queue.contender.as_ref().is_some_and(|(_, is_stopped)| *is_stopped), "{:?}", queue.contender);
    queue.step(Step::End { failed: false }).unwrap();
    queue
}

#[test]
fn contender_for_another_waiter_does_not_block_the_first() {
    let enter = |share, priority| Step::Enter { kind: (share, false), priority };
    let (one, two) = (Share::permits(1, 3).unwrap(), Share::permits(2, 3).unwrap());
    let granted = |share| Step::GrantedOutsideQueue((share, false));
    // The request of the first waiter, and programs in which another one contends when it becomes the first.
    let programs = [
        (
            Share::READER,
            vec![
                granted(Share::READER),
                enter(Share::WRITER, 0),
                enter(Share::READER, 0),
                enter(Share::WRITER, 0),
                Step::Leave(0),
            ],
        ),
        (one, vec![granted(one), granted(one), enter(two, 0), enter(one, 0), enter(two, 0), Step::Leave(0)]),
        (Share::READER, vec![granted(Share::READER), enter(Share::WRITER, 0), enter(Share::READER, 1)]),
        // Nothing is held here, and the server may have room for the first waiter only.
        (
            Share::READER,
            vec![enter(Share::WRITER, 0), enter(Share::READER, 0), enter(Share::WRITER, 0), Step::Leave(0)],
        ),
    ];
    for (first, program) in programs {
        let queue = with_a_contender_for_another(program);
        assert_eq!(queue.contender, Some((want((first, false)), false)));
    }
}

#[test]
fn waiter_without_possible_handoff_is_queued_on_the_server() {
    let (plain, noted) = ((Share::MUTEX, false), (Share::MUTEX, true));
    let enter = |kind| Step::Enter { kind, priority: 0 };
    let ends = [
        vec![Step::GrantedOutsideQueue(plain), enter(noted)],
        vec![Step::GrantedOutsideQueue(noted), enter(noted), Step::EndHandoff(0)],
        // The last hand-off.
        vec![
            Step::GrantedOutsideQueue(noted),
            enter(noted),
            enter(noted),
            Step::Return { which: 0, left: 1, lingers: true },
        ],
    ];
    for steps in ends {
        let mut queue = Model::new(true, None);
        for step in steps {
            assert_eq!(queue.contender, None);
            queue.step(step).unwrap();
        }
        assert_eq!(queue.contender, Some((want(noted), false)));
    }
}

#[test]
fn outage_ends_the_waits_that_are_as_long() {
    let at = Moment::from_nanos;
    let fail = |queue: &mut LocalQueue<u64, ClaimId, ClaimId>, outage| {
        let outcome = queue.apply(Change::Ended { failed: true, outage });
        (outcome.failed, outcome.start, outcome.failing_since)
    };
    let filled = || {
        let mut queue = LocalQueue::new(true, false);
        for (ticket, noted) in [(1, false), (2, true), (3, false), (4, true)] {
            queue.apply(enter(Place::new(0, ticket), want((Share::MUTEX, noted))));
        }
        queue
    };
    let other = want((Share::MUTEX, true));
    // Without an outage, only those with the same request fail.
    assert_eq!(fail(&mut filled(), None), (vec![1, 3], Some(other.clone()), None));
    let outage = |began, limit| Some(Outage { began: at(began), limit: at(limit) });
    assert_eq!(fail(&mut filled(), outage(0, 2)), (vec![1, 2, 3], Some(other.clone()), Some(at(4))));
    assert_eq!(fail(&mut filled(), outage(0, 4)), (vec![1, 2, 3, 4], None, None));
    assert_eq!(fail(&mut filled(), outage(7, 1)), (vec![1, 3], Some(other), Some(at(7))));
}

#[test]
fn closed_local_queue_stops_its_contender_and_starts_none() {
    let mut queue = LocalQueue::<u64, ClaimId, ClaimId>::new(true, false);
    let enter = |ticket| enter(Place::new(0, ticket), want((Share::MUTEX, false)));
    assert!(queue.apply(enter(1)).start.is_some());
    assert!(queue.apply(Change::Close).stop);
    assert!(!queue.apply(Change::Close).stop);
    assert!(queue.apply(Change::Ended { failed: false, outage: None }).start.is_none());
    assert!(queue.apply(enter(2)).start.is_none());
    let id = ClaimId::from_bytes([1; 16]);
    assert!(!queue.apply(Change::ReleaseInline(id, id)).is_allowed);
    assert!(!queue.apply(Change::Leave(Place::new(0, 1))).is_idle);
    assert!(queue.apply(Change::Leave(Place::new(0, 2))).is_idle);
    assert!(LocalQueue::<u64, ClaimId, ClaimId>::new(true, true).apply(enter(1)).start.is_none());
}

#[test]
fn lingering_claim_goes_to_the_next_task_or_to_the_server() {
    let (plain, noted) = ((Share::MUTEX, false), (Share::MUTEX, true));
    let lingered = || {
        let mut queue = Model::new(true, None);
        queue.step(Step::GrantedOutsideQueue(plain)).unwrap();
        queue.step(Step::Return { which: 0, left: 0, lingers: true }).unwrap();
        assert_eq!(queue.lingering.len(), 1);
        queue
    };
    let mut queue = lingered();
    queue.step(Step::Enter { kind: plain, priority: 0 }).unwrap();
    assert_eq!((queue.in_use().count(), queue.contender.is_none()), (1, true));
    let mut queue = lingered();
    queue.step(Step::Try(plain)).unwrap();
    assert_eq!(queue.in_use().count(), 1);
    // A request that it does not meet releases it; so does everything else that ends hand-offs.
    let ends =
        [Step::Enter { kind: noted, priority: 0 }, Step::Try(noted), Step::AddDependent, Step::EndHandoff(0)];
    for end in ends {
        let mut queue = lingered();
        queue.step(end.clone()).unwrap();
        assert!(queue.lingering.is_empty() && queue.held[0].2, "{end:?}");
    }
}

#[test]
fn claim_that_departs_lingers_no_more_and_others_do() {
    let permit = (Share::permits(1, 3).unwrap(), false);
    let mut queue = Model::new(true, None);
    for _ in 0..2 {
        queue.step(Step::GrantedOutsideQueue(permit)).unwrap();
        queue.step(Step::Return { which: 0, left: 0, lingers: true }).unwrap();
    }
    let [first, second] = queue.lingering[..] else { panic!("{:?}", queue.lingering) };
    assert_eq!(queue.queue.apply(Change::Departed(first)).linger_over, [first]);
    assert_eq!(queue.queue.lingering(), [(second, second)]);
}

/// Other clients may have been granted claims between the drawing of the claim and the arrival of its waiter.
#[test]
fn claim_that_was_drawn_before_its_taker_came_is_handed_on() {
    for (share, is_handed_on) in [(Share::permits(1, 3).unwrap(), true), (Share::MUTEX, false)] {
        for comes_late in [false, true] {
            let mut queue = LocalQueue::<u64, ClaimId, ClaimId>::new(true, false);
            let id = ClaimId::from_bytes([1; 16]);
            let first = Place::new(0, 1);
            queue.apply(enter(first, want((share, false))));
            if comes_late {
                queue.apply(Change::Drawn(id));
                queue.apply(enter(Place::new(0, 2), want((share, false))));
                queue.apply(Change::Leave(first));
            } else {
                queue.apply(enter(Place::new(0, 2), want((share, false))));
                queue.apply(Change::Leave(first));
                queue.apply(Change::Drawn(id));
            }
            let outcome = queue.apply(Change::Granted(HeldClaim::new(id, want((share, false)), None)));
            assert_eq!(outcome.taker.map(|(waiter, _)| waiter), Some(2));
            assert_eq!(outcome.is_handed_on, is_handed_on && comes_late, "{share}");
        }
    }
}

#[test]
fn queued_claim_is_that_of_the_same_request() {
    let mut queue = LocalQueue::<u64, ClaimId, ClaimId>::new(true, false);
    let (plain, noted) = (want((Share::READER, false)), want((Share::READER, true)));
    queue.apply(enter(Place::new(0, 1), plain.clone()));
    assert_eq!(queue.queued_claim(&plain), None, "it is not drawn yet");
    let id = ClaimId::from_bytes([1; 16]);
    queue.apply(Change::Drawn(id));
    assert_eq!((queue.queued_claim(&plain), queue.queued_claim(&noted)), (Some(id), None));
    queue.apply(Change::GrantedOutsideQueue(HeldClaim::new(ClaimId::from_bytes([2; 16]), noted, None)));
    assert_eq!(queue.queued_claim(&plain), None, "what is held here may be handed to it");
}
