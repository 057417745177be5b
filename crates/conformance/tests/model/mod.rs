//! A small backend over the ledger of the contract, right in every way but the defect that it is given.
//!
//! It is the negative control of the suite: a law that no defect breaks proves nothing. Where a defect
//! needs its own path through the code, the sound path stays the shortest.

mod defect;
mod registers;
pub mod remote;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::{SteadyClock, Subject, TakerCommand};
use leasehold_core::{
    Ask, AtOnce, Backend, Claim, ClaimId, ClaimInfo, Clock, DirectAnswer, DirectRelease, DirectReply,
    DirectRequests, Durability, Effect, Entry, Failure, FailureKind, Fence, FenceGrade, Grant, Hint, Ledger,
    Liveness, LockSupport, Moment, Note, Patience, Profile, Proof, QueueOrder, RegisterPromise, Registers,
    Release, Renew, Renewal, Resource, ResourceSummary, Share, Snapshot, SnapshotVersion, Step, Verdict,
    Wait, WaitMode,
};
use tokio::sync::Notify;

pub use defect::Defect;

/// One store, and what it promises.
pub struct Store {
    pub profile: Profile,
    pub defect: Option<Defect>,
    clock: SteadyClock,
    state: Mutex<State>,
    registers: registers::Slots,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<Resource, Ledger>,
    idle: HashMap<Resource, Fence>,
    /// The last number that was drawn for a grant that was still to be decided.
    drawn: HashMap<Resource, u64>,
    wakeups: HashMap<ClaimId, Arc<Notify>>,
    arrivals: VecDeque<ClaimId>,
    watchers: Arc<Notify>,
    asked: Vec<ClaimId>,
}

/// A connection to a store.
#[derive(Clone)]
pub struct Model {
    pub store: Arc<Store>,
    profile: Profile,
    promise: RegisterPromise,
}

/// The store as the suite sees it.
pub struct Models {
    store: Arc<Store>,
    opened: Mutex<usize>,
    server: Option<remote::Server>,
}

/// Returns the promises that the backend of memory has, too.
pub fn strong() -> Profile {
    Profile::new("model", Liveness::Lease { min: Duration::from_millis(100), max: Duration::from_secs(3600) })
        .admission(LockSupport::Counted)
        .order(QueueOrder::Fifo)
        .waiting(WaitMode::Notifies)
        .fencing(FenceGrade::Strict)
        .durability(Durability::Strict)
        .renew_batch_max(64)
        .note_max(leasehold_core::Note::MAX_BYTES)
}

/// Returns a strong store for callers that poll.
pub fn polling() -> Profile {
    strong().waiting(WaitMode::Polls).place_ttl(Duration::from_secs(2))
}

/// Returns a store in which a session keeps the claims, for callers that poll.
pub fn session() -> Profile {
    polling().liveness(Liveness::Session).place_ttl(Duration::ZERO)
}

/// Returns a strong store that admits permits one by one only.
pub fn single_permits() -> Profile {
    strong().admission(LockSupport::Permits)
}

/// Returns a store that promises as little as a profile can.
pub fn weak() -> Profile {
    polling().admission(LockSupport::Exclusive).order(QueueOrder::Unordered).fencing(FenceGrade::None)
}

impl Models {
    pub fn new(profile: Profile, defect: Option<Defect>) -> Models {
        let (clock, state, registers) = (SteadyClock::new(), Mutex::default(), registers::Slots::default());
        let store = Store { profile, defect, clock, state, registers };
        Models { store: Arc::new(store), opened: Mutex::new(0), server: None }
    }

    /// Creates models also for other processes, by the one test of this program that is a taker.
    pub fn served(profile: Profile, defect: Option<Defect>) -> Models {
        let mut models = Models::new(profile, defect);
        models.server = Some(remote::Server::start(models.store.clone()).unwrap());
        models
    }
}

#[async_trait]
impl Subject for Models {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let mut opened = self.opened.lock().unwrap();
        *opened += 1;
        let mut profile = self.store.profile.clone();
        if self.store.is(Defect::ProfilesDiffer) {
            profile.renew_batch_max += *opened;
        }
        let promise = self.store.promise(*opened);
        Some(Arc::new(Model { store: self.store.clone(), profile, promise }))
    }

    fn taker(&self) -> Option<TakerCommand> {
        let address = self.server.as_ref()?.address();
        Some(TakerCommand::test("taker", address).unwrap())
    }

    fn ttl(&self) -> Duration {
        TTL
    }
}

/// The ttl of the claims that are left to run out.
const TTL: Duration = Duration::from_millis(400);

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({:?})", self.store.defect)
    }
}

/// A copy of a queue at one instant, for all inspections.
pub struct Seen {
    pub fence: Option<Fence>,
    pub entries: Vec<Entry>,
    pub now: Moment,
}

impl Store {
    fn is(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_session(&self) -> bool {
        self.profile.liveness == Liveness::Session
    }

    fn lease(&self, ttl: Duration) -> Duration {
        if self.is(Defect::LeaseNeverEnds) || (self.is_session() && !self.is(Defect::SessionRunsOut)) {
            Duration::MAX
        } else if self.is(Defect::LeaseEndsEarly) {
            // So early that a machine which pauses for a moment does not hide it.
            ttl / 4
        } else {
            ttl
        }
    }

    fn name(&self, resource: &Resource) -> Resource {
        if self.is(Defect::FoldsNames) {
            return Resource::new(&resource.as_str().to_lowercase()).unwrap();
        }
        if self.is(Defect::CutsNames) {
            return Resource::new(&resource.as_str().chars().take(100).collect::<String>()).unwrap();
        }
        resource.clone()
    }

    pub fn refuse(&self, claim: &Claim) -> Result<(), Failure> {
        let refused = |kind, why: String| Err(Failure::new(kind, Effect::None, why));
        if let Err(unmet) = self.profile.admits(claim.share)
            && !self.is(Defect::AdmitsWhatItExcludes)
        {
            return refused(FailureKind::Unsupported, unmet.to_string());
        }
        if let Liveness::Lease { max, .. } = self.profile.liveness
            && claim.ttl > max
            && !self.is(Defect::CutsTheTtl)
        {
            return refused(FailureKind::Invalid, format!("{:?} is beyond {max:?}", claim.ttl));
        }
        Ok(())
    }

    /// Asks the ledger once, wrongly where the defect says so.
    pub fn ask(&self, claim: &Claim, patient: bool, process: u64) -> Verdict {
        let mut state = self.state();
        let now = self.clock.now();
        let resource = self.name(&claim.resource);
        if self.is(Defect::FirstCallIsBusy) && !state.asked.contains(&claim.id) {
            state.asked.push(claim.id);
            return Verdict::Busy { ahead: 0, earliest: now.after(Duration::from_millis(5)) };
        }
        let last = state.idle.remove(&resource).unwrap_or_default();
        let ledger = state.queues.entry(resource.clone()).or_insert_with(|| Ledger::new(last));
        ledger.expire(now);
        if !patient && self.is(Defect::PassesTheQueueAtOnce) {
            let ask = Ask { wait: Wait::Barging, ..self.ask_of(claim, patient) };
            return ledger.contend(&ask, now);
        }
        if self.is(Defect::FenceBeginsAgain) && ledger.entries().is_empty() {
            *ledger = Ledger::default();
        }
        let before = ledger.last_fence();
        let waits = ledger.entries().iter().any(|entry| entry.id == claim.id && entry.granted.is_none());
        let verdict = self.verdict(ledger, claim, patient, now, process);
        let verdict = match verdict {
            Verdict::Granted(_) if !patient && waits && self.is(Defect::GrantIsDroppedAtTheEnd) => {
                Verdict::Busy { ahead: 0, earliest: now }
            }
            Verdict::Granted(fence)
                if self.is(Defect::FenceRepeats) && fence > before && fence.seq % 2 == 0 =>
            {
                Verdict::Granted(before)
            }
            Verdict::Granted(fence) if self.is(Defect::FencesPerProcess) => {
                Verdict::Granted(Fence::new(0, fence.seq / 2 + process, 0))
            }
            other => other,
        };
        if !self.is(Defect::WakesOneOnly) {
            self.wake_called(&mut state, &resource);
        }
        verdict
    }

    fn verdict(
        &self,
        ledger: &mut Ledger,
        claim: &Claim,
        patient: bool,
        now: Moment,
        process: u64,
    ) -> Verdict {
        let mut ask = self.ask_of(claim, patient);
        let known = ledger.entries().iter().find(|entry| entry.id == claim.id).cloned();
        let waits = known.as_ref().is_some_and(|known| known.granted.is_none());
        match self.defect {
            Some(Defect::AdmitsOneTooMany) => {
                ask.share =
                    Share::permits(ask.share.weight(), ask.share.capacity().saturating_add(1)).unwrap();
            }
            Some(Defect::WriterLeavesRoom) if ask.share == Share::WRITER => {
                ask.share = Share::permits(u32::MAX - 1, u32::MAX).unwrap();
            }
            Some(Defect::OwnCapacityOnly) if known.is_none() => {
                let held: u64 = ledger.entries().iter().map(|entry| u64::from(entry.share.weight())).sum();
                if held + u64::from(ask.share.weight()) <= u64::from(ask.share.capacity()) {
                    return Verdict::Granted(force(ledger, &ask, now));
                }
            }
            Some(Defect::ForgetsOtherCapacities) if known.is_none() => {
                let same = |entry: &Entry| entry.share.capacity() == ask.share.capacity();
                if !ledger.entries().iter().any(same) {
                    return Verdict::Granted(force(ledger, &ask, now));
                }
            }
            Some(Defect::PassesTheQueue) if known.is_none() => {
                let passing = ledger.contend(&Ask { wait: Wait::Barging, ..ask.clone() }, now);
                if matches!(passing, Verdict::Granted(_)) {
                    return passing;
                }
            }
            Some(Defect::SecondAskIsSecondClaim) if known.is_some() => ask.id = other_id(),
            Some(Defect::EveryCallTakesAPlace) if waits => {
                ledger.contend(&Ask { id: other_id(), ..ask.clone() }, now);
            }
            Some(Defect::RepeatGoesLast) if waits => {
                ledger.release(ask.id, now);
            }
            Some(Defect::DoubleGrantsAcrossProcesses) if known.is_none() => {
                // Every process keeps an eye only on what it granted itself.
                let theirs = ledger.last_fence().sub;
                if theirs != 0 && u64::from(theirs) != process + 1 {
                    let fence = force(ledger, &ask, now);
                    ledger.raise_fence(Fence { sub: process as u32 + 1, ..fence });
                    return Verdict::Granted(fence);
                }
            }
            _ => {}
        }
        let verdict = ledger.contend(&ask, now);
        self.distort_verdict(ledger, ask.id, verdict, process)
    }

    /// Applies what is wrong only after the ledger has decided.
    fn distort_verdict(&self, ledger: &mut Ledger, id: ClaimId, verdict: Verdict, process: u64) -> Verdict {
        match self.defect {
            Some(Defect::LastComesFirst) if matches!(verdict, Verdict::Busy { .. }) => {
                let mut entries = ledger.entries().to_vec();
                let held = entries.iter().filter(|entry| entry.granted.is_some()).count();
                if let Some(at) = entries.iter().position(|entry| entry.id == id)
                    && at == entries.len() - 1
                {
                    let newest = entries.remove(at);
                    entries.insert(held, newest);
                }
                *ledger = Ledger::restore(entries, ledger.last_fence());
            }
            Some(Defect::DoubleGrantsAcrossProcesses) => {
                if let Verdict::Granted(fence) = verdict {
                    ledger.raise_fence(Fence { sub: process as u32 + 1, ..fence });
                }
            }
            Some(Defect::CountsOnlyHolders) => {
                if let Verdict::Busy { earliest, .. } = verdict {
                    let held = ledger.entries().iter().filter(|entry| entry.granted.is_some()).count();
                    return Verdict::Busy { ahead: held as u32, earliest };
                }
            }
            _ => {}
        }
        verdict
    }

    fn ask_of(&self, claim: &Claim, patient: bool) -> Ask {
        let place = match self.profile.waiting {
            _ if self.is(Defect::PlaceIsForEver) || self.is_session() => Duration::MAX,
            WaitMode::Polls => self.profile.place_ttl,
            _ => Duration::MAX,
        };
        let wait = match (patient, self.profile.order) {
            (false, _) if self.is(Defect::BusyLeavesAPlace) => Wait::Queued(place),
            (_, QueueOrder::Unordered) => Wait::Barging,
            (true, _) => Wait::Queued(place),
            (false, _) => Wait::No,
        };
        let note = match claim.note.as_str() {
            _ if self.is(Defect::HidesTheNote) => Default::default(),
            text if self.is(Defect::CutsTheNote) => {
                Note::clipped(&text.chars().take(255).collect::<String>())
            }
            _ => claim.note.clone(),
        };
        Ask { id: claim.id, share: claim.share, lease: self.lease(claim.ttl), wait, note }
    }

    pub fn renew(&self, claim: &Claim) -> bool {
        let mut state = self.state();
        let now = self.clock.now();
        let resource = self.name(&claim.resource);
        let ledger = state.queues.entry(resource.clone()).or_default();
        ledger.expire(now);
        let ask = self.ask_of(claim, false);
        let known = ledger.entries().iter().find(|entry| entry.id == claim.id).cloned();
        let renewed = match (self.defect, known) {
            (Some(Defect::RenewalResurrects), None) => {
                force(ledger, &ask, now);
                true
            }
            (Some(Defect::RenewalGrants), Some(known)) if known.granted.is_none() => {
                force(ledger, &ask, now);
                true
            }
            (Some(Defect::RenewalReplacesFence), Some(_)) => {
                force(ledger, &ask, now);
                true
            }
            (Some(Defect::RenewalDoesNothing), known) => known.is_some(),
            (Some(Defect::RenewalShortens), Some(known)) if known.granted.is_some() => {
                let mut entries = ledger.entries().to_vec();
                let mine = entries.iter_mut().filter(|entry| entry.id == claim.id);
                mine.for_each(|entry| entry.until = now.after(ask.lease));
                *ledger = Ledger::restore(entries, ledger.last_fence());
                true
            }
            (Some(Defect::RenewalLastsTooLong | Defect::RenewalNeverEnds), _) => {
                ledger.renew(claim.id, ask.lease * 100, now)
            }
            _ => ledger.renew(claim.id, ask.lease, now),
        };
        self.wake_called(&mut state, &resource);
        renewed
    }

    pub fn release(&self, claim: &Claim) -> bool {
        let mut state = self.state();
        let now = self.clock.now();
        let mut resource = self.name(&claim.resource);
        let holds = |ledger: &Ledger| ledger.entries().iter().any(|entry| entry.id == claim.id);
        if self.is(Defect::ReleasesOnAnyResource)
            && let Some((other, _)) = state.queues.iter().find(|(_, ledger)| holds(ledger))
        {
            resource = other.clone();
        }
        let Some(ledger) = state.queues.get_mut(&resource) else { return self.is(Defect::ReleasesForEver) };
        ledger.expire(now);
        let known = ledger.entries().iter().find(|entry| entry.id == claim.id).cloned();
        let waits = known.as_ref().is_some_and(|known| known.granted.is_none());
        let first = ledger.entries().first().map(|entry| entry.id);
        let also = match self.defect {
            Some(Defect::ReleasesAnyClaim | Defect::ReleasesInSilence) if known.is_none() => first,
            Some(Defect::WaiterEndsTheHolder) if waits => first,
            _ => None,
        };
        let freed = match self.defect {
            Some(Defect::ReleaseIgnoresWaiting) if waits => false,
            Some(Defect::ReleaseEndsAll) if known.is_some() => {
                *ledger = Ledger::new(ledger.last_fence());
                true
            }
            Some(Defect::ReleasesForEver) => ledger.release(claim.id, now) || known.is_none(),
            _ => ledger.release(claim.id, now),
        };
        let also = also.is_some_and(|other| ledger.release(other, now));
        let freed = freed | (also && !self.is(Defect::ReleasesInSilence));
        self.wake_called(&mut state, &resource);
        freed
    }

    /// Ends a claim whose process is gone.
    pub fn end_session_claim(&self, claim: &Claim) {
        if !self.is(Defect::DeathGoesUnnoticed) {
            self.release(claim);
        }
    }

    pub fn look(&self, resource: &Resource) -> Seen {
        let mut state = self.state();
        let now = self.clock.now();
        let resource = self.name(resource);
        let there = |state: &State| state.queues.get(&resource).map_or(0, |ledger| ledger.entries().len());
        let before = there(&state);
        if let Some(ledger) = state.queues.get_mut(&resource) {
            ledger.expire(now);
        }
        if there(&state) != before && !self.is(Defect::WatchersMissTheEnd) {
            self.wake_called(&mut state, &resource);
        }
        let entries = state.queues.get(&resource).map(|ledger| ledger.entries().to_vec()).unwrap_or_default();
        let known =
            state.queues.get(&resource).map(Ledger::last_fence).or(state.idle.get(&resource).copied());
        Seen { fence: known.filter(|fence| *fence != Fence::default()), entries, now }
    }

    /// Wakes those that a change concerns.
    fn wake_called(&self, state: &mut State, resource: &Resource) {
        let Some(ledger) = state.queues.get(resource) else { return };
        let mut called: Vec<ClaimId> = ledger.called().map(|entry| entry.id).collect();
        if self.is(Defect::WakesOneOnly) {
            called.truncate(1);
        }
        if self.is(Defect::WakesTheFirstArrival) {
            let first = (!called.is_empty()).then(|| state.arrivals.pop_front()).flatten();
            called = first.into_iter().collect();
        }
        if self.is(Defect::NeverWakes) {
            called.clear();
        }
        for id in called {
            if let Some(wakeup) = state.wakeups.get(&id) {
                wakeup.notify_waiters();
            }
        }
        if !self.is(Defect::WatchersSleep) {
            state.watchers.notify_waiters();
        }
        if ledger.entries().is_empty() && !self.is(Defect::ListsWhatIsIdle) {
            let last = if self.is(Defect::FenceBeginsAgain) { Fence::default() } else { ledger.last_fence() };
            state.idle.insert(resource.clone(), last);
            state.queues.remove(resource);
        }
    }
}

impl Model {
    fn wakeup(&self, claim: &Claim) -> Arc<Notify> {
        Arc::clone(self.store.state().wakeups.entry(claim.id).or_default())
    }

    /// Draws the fence of a grant in a step of its own, if that is the defect. Every second one is decided later than
    /// the one after it.
    async fn draw(&self, claim: &Claim) -> Option<Fence> {
        if !self.store.is(Defect::FenceDrawnBeforeTheGrant) {
            return None;
        }
        let drawn = {
            let mut state = self.store.state();
            let last = state.drawn.entry(claim.resource.clone()).or_default();
            *last += 1;
            *last
        };
        if drawn % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Some(Fence::new(0, drawn, 0))
    }

    fn earliest(&self, earliest: Moment) -> Duration {
        if self.store.is(Defect::NeverChecksAgain) {
            return Duration::from_secs(3600);
        }
        self.store.clock.now().until(earliest).clamp(Duration::from_millis(1), Duration::from_secs(3600))
    }
}

impl Model {
    /// Answers a direct request, which is decided now.
    fn answer_directly(&self, claim: &Claim, asked_at: Moment) -> DirectReply {
        let store = &self.store;
        if store.refuse(claim).is_err() {
            return DirectReply::Declined;
        }
        match store.ask(claim, store.is(Defect::DirectRequestLeavesAPlace), 0) {
            Verdict::Granted(fence) => {
                if store.is(Defect::GrantsDirectlyInSecret) {
                    store.release(claim);
                }
                let fence = (self.profile.fencing > FenceGrade::None).then_some(fence);
                DirectReply::Granted(Grant::new(asked_at).fence(fence))
            }
            Verdict::Busy { ahead, .. } => DirectReply::Busy { ahead: Some(ahead) },
            Verdict::Full => DirectReply::Declined,
        }
    }
}

impl DirectRequests for Model {
    fn ask_directly(&self, claim: &Claim, asked_at: Moment) -> Option<DirectAnswer> {
        let (model, claim) = (self.clone(), claim.clone());
        let is_late = self.store.is(Defect::DirectRequestComesLate);
        let asking = move || model.answer_directly(&claim, asked_at);
        if !is_late {
            let reply = asking();
            return Some(Box::pin(async { reply }));
        }
        let task = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            asking()
        });
        Some(Box::pin(async { task.await.unwrap_or(DirectReply::Unknown) }))
    }

    fn release_directly(&self, claim: &Claim) -> Option<DirectRelease> {
        let (model, claim) = (self.clone(), claim.clone());
        let store = &self.store;
        if store.is(Defect::DirectReleaseFreesNothing) {
            return Some(Box::pin(async { Release::Freed }));
        }
        let is_lazy = store.is(Defect::DirectReleaseWaitsForItsCaller);
        let releasing = move || if model.store.release(&claim) { Release::Freed } else { Release::Gone };
        if is_lazy {
            return Some(Box::pin(async move { releasing() }));
        }
        let release = releasing();
        Some(Box::pin(async { release }))
    }
}

impl AtOnce for Model {
    fn grant_now(&self, claim: &Claim, asked_at: Moment) -> DirectReply {
        let store = &self.store;
        if store.refuse(claim).is_err() {
            return DirectReply::Declined;
        }
        let Verdict::Granted(fence) = store.ask(claim, false, 0) else {
            if store.is(Defect::DeclinesWithAPlace) {
                store.ask(claim, true, 0);
            }
            return DirectReply::Declined;
        };
        if store.is(Defect::GrantsAtOnceInSecret) {
            store.release(claim);
        }
        let fence = (self.profile.fencing > FenceGrade::None).then_some(fence);
        DirectReply::Granted(Grant::new(asked_at).fence(fence))
    }

    fn release_now(&self, claim: &Claim) -> Option<Release> {
        Some(if self.store.release(claim) { Release::Freed } else { Release::Gone })
    }
}

#[async_trait]
impl Backend for Model {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        (self.profile.waiting != WaitMode::Polls).then_some(self)
    }

    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        (self.profile.waiting != WaitMode::Polls).then_some(self)
    }

    fn registers(&self) -> Option<&dyn Registers> {
        // One that promises little has none.
        (self.profile.admission > LockSupport::Exclusive).then_some(self)
    }

    fn supports_transfer(&self) -> bool {
        matches!(self.profile.liveness, Liveness::Lease { .. })
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let store = &self.store;
        store.refuse(claim)?;
        let drawn = self.draw(claim).await;
        let wakeup = self.wakeup(claim);
        let mut waited = false;
        loop {
            let mut change = std::pin::pin!(wakeup.notified());
            if !store.is(Defect::ChecksBeforeItSubscribes) {
                change.as_mut().enable();
            }
            let patient = !patience.is_ended();
            let mut asked_at = patience.now();
            let (ahead, earliest) = match store.ask(claim, patient, 0) {
                Verdict::Granted(fence) => {
                    let fence = drawn.unwrap_or(fence);
                    if store.is(Defect::AskedAtTheAnswer) {
                        asked_at = asked_at.after(Duration::from_secs(1));
                    }
                    let fenced =
                        self.profile.fencing > FenceGrade::None && !store.is(Defect::ForgetsTheFence);
                    let (fence, proof) = (fenced.then_some(fence), Proof::none());
                    return Ok(Step::Granted(Grant::new(asked_at).fence(fence).proof(proof)));
                }
                Verdict::Busy { ahead, earliest } => (ahead, earliest),
                Verdict::Full => return Err(Failure::unavailable("the line is full")),
            };
            let polls = self.profile.waiting == WaitMode::Polls || store.is(Defect::PollsInDisguise);
            if !patient || polls {
                if !patient && store.is(Defect::BlocksBeyondPatience) {
                    tokio::time::sleep(Duration::from_secs(8)).await;
                }
                let hinted = patient && !store.is(Defect::PollsWithoutHint);
                let ask_again_in = hinted.then_some(Duration::from_millis(5));
                return Ok(Step::Busy(Hint { ask_again_in, ahead: Some(ahead) }));
            }
            if store.is(Defect::ChecksBeforeItSubscribes) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                // Only a new one has received nothing yet.
                change.set(wakeup.notified());
            }
            if !waited {
                store.state().arrivals.push_back(claim.id);
            }
            waited = true;
            tokio::select! {
                () = change => {}
                () = patience.ended() => {
                    if store.is(Defect::LeavesInSilence) {
                        let mut state = store.state();
                        let now = store.clock.now();
                        state.queues.get_mut(&claim.resource).map(|ledger| ledger.release(claim.id, now));
                        return Ok(Step::Busy(Hint::default()));
                    }
                }
                () = tokio::time::sleep(self.earliest(earliest)) => {}
            }
        }
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let renewal = |renew: &Renew<'_>| match self.store.renew(renew.claim) {
            true if self.store.is_session() => Renewal::Alive,
            true => Renewal::Renewed,
            false => Renewal::Lost,
        };
        let mut answers: Vec<Renewal> = batch.iter().map(renewal).collect();
        if self.store.is(Defect::AnswersBackwards) {
            answers.reverse();
        }
        answers
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        if self.store.is(Defect::AnswersNothingWithSomething) && batch.is_empty() {
            return vec![Release::Gone];
        }
        let there = |claim: &&Claim| {
            self.store.look(&claim.resource).entries.iter().any(|entry| entry.id == claim.id)
        };
        let before: Vec<bool> = batch.iter().map(there).collect();
        let mut freed: Vec<bool> = batch.iter().map(|claim| self.store.release(claim)).collect();
        if self.store.is(Defect::DecidesBeforeItActs) {
            freed = before;
        }
        batch.iter().for_each(|claim| self.store.end_register(&claim.resource));
        freed.into_iter().map(|freed| if freed { Release::Freed } else { Release::Gone }).collect()
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        let watchers = Arc::clone(&self.store.state().watchers);
        let mut past = self.store.is(Defect::WatchersIgnoreThePast);
        loop {
            let mut change = std::pin::pin!(watchers.notified());
            change.as_mut().enable();
            let snapshot = self.snapshot(resource, self.store.look(resource));
            let ended = patience.is_ended();
            if ended && seen.is_some() && self.store.is(Defect::WatchersStay) {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            if ended || seen.is_none_or(|seen| *seen != snapshot.version && !past) {
                return Ok(snapshot);
            }
            let standing = snapshot.holders.iter().chain(&snapshot.waiting);
            let pause = standing.filter_map(|standing| standing.remaining).min().unwrap_or(Duration::MAX);
            let pause = if self.store.is(Defect::WatchersMissTheEnd) { Duration::MAX } else { pause };
            tokio::select! {
                () = change => past = false,
                () = patience.ended() => {}
                () = tokio::time::sleep(pause.clamp(Duration::from_millis(1), Duration::from_secs(3600))) => {}
            }
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let now = self.store.clock.now();
        let mut state = self.store.state();
        let after = after.filter(|_| !self.store.is(Defect::PagesBeginAgain));
        let mut found = Vec::new();
        for (resource, ledger) in &mut state.queues {
            ledger.expire(now);
            let here = resource.as_str().starts_with(prefix) && after.is_none_or(|after| resource > after);
            let idle = ledger.entries().is_empty() && !self.store.is(Defect::ListsWhatIsIdle);
            if !here || idle || found.len() == limit {
                continue;
            }
            let holders = ledger.entries().iter().filter(|entry| entry.granted.is_some()).count() as u32;
            let waiting = ledger.entries().len() as u32 - holders;
            found.push(ResourceSummary::new(resource.clone(), holders, waiting));
        }
        Ok(found)
    }
}

impl Model {
    fn snapshot(&self, resource: &Resource, seen: Seen) -> Snapshot {
        let fenced = self.profile.fencing > FenceGrade::None;
        let left = |entry: &Entry| match seen.now.until(entry.until) {
            // It is shown as if it had not been renewed.
            left if self.store.is(Defect::RenewalNeverEnds) => left.min(TTL),
            left => left,
        };
        let standing = |entry: &Entry| {
            ClaimInfo::new(entry.id, entry.share)
                .fence(entry.granted.filter(|_| fenced))
                .remaining((entry.until != Moment::NEVER).then(|| left(entry)))
                .note(entry.note.clone())
        };
        let mut holders: Vec<&Entry> = seen.entries.iter().filter(|entry| entry.granted.is_some()).collect();
        holders.sort_by_key(|entry| entry.granted);
        let is_noted = !self.store.is(Defect::AdoptionsAreNoChange);
        let state = |entry: &Entry| {
            let note = is_noted.then_some(entry.note.as_str());
            format!("{:?}{:?}{note:?}", entry.id, entry.granted)
        };
        let ids: Vec<String> = seen.entries.iter().map(state).collect();
        Snapshot::new(resource.clone(), SnapshotVersion::new(format!("{:?} {ids:?}", seen.fence)))
            .holders(holders.into_iter().map(standing).collect())
            .waiting(seen.entries.iter().filter(|entry| entry.granted.is_none()).map(standing).collect())
            .fence(seen.fence.filter(|_| fenced))
    }
}

/// Grants without asking the rule.
fn force(ledger: &mut Ledger, ask: &Ask, now: Moment) -> Fence {
    let fence = Fence::new(0, ledger.last_fence().seq + 1, 0);
    let mut entries = ledger.entries().to_vec();
    entries.retain(|entry| entry.id != ask.id);
    let (id, share, note) = (ask.id, ask.share, ask.note.clone());
    let until = now.after(ask.lease);
    entries.push(Entry { id, share, granted: Some(fence), until, since: now, beats: 0, note });
    *ledger = Ledger::restore(entries, fence);
    fence
}

fn other_id() -> ClaimId {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).unwrap();
    ClaimId::from_bytes(bytes)
}
