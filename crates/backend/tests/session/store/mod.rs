//! A server in the memory of this process whose sessions hold locks, with its faults as methods.
//!
//! As real ones do, it lets one session take one lock again and again: which claims exclude each other
//! within a client is not its business.

#![allow(clippy::unwrap_used, dead_code, reason = "test support; not each test uses all of it")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::session::{
    Answer, Capacity, Holder, Session, SessionBackend, SessionRequest, Sessions, Sharing,
};
use leasehold_backend::sql::dial_in_turn;
use leasehold_core::{
    Claim, ClaimId, ClaimInfo, Clock, Durability, Failure, Fence, FenceGrade, Finding, Liveness, LockSupport,
    Moment, Profile, Resource, ResourceSummary, Severity, WaitMode,
};
use tokio::sync::watch;

pub(crate) const SILENCE: Duration = Duration::from_millis(400);
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// More requests for a lock than any test has a reason for.
const REQUESTS_MAX: usize = 200_000;

/// A client of the server.
pub(crate) type MemoryBackend = SessionBackend<MemorySessions>;

/// The time of the runtime, which a test may have paused.
#[derive(Debug)]
pub(crate) struct RuntimeClock(tokio::time::Instant);

impl RuntimeClock {
    pub(crate) fn new() -> RuntimeClock {
        RuntimeClock(tokio::time::Instant::now())
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Moment {
        Moment::START.after(self.0.elapsed())
    }
}

/// The server.
#[derive(Debug)]
pub(crate) struct Server {
    state: Mutex<State>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Which sessions have which lock: alone, or with other readers.
    locks: HashMap<String, Vec<(u64, bool)>>,
    rows: BTreeMap<(String, u64), (u64, ClaimInfo)>,
    /// Holders are shown by a request of its own, as long as it takes. Else by that for the lock.
    shows_later: Option<Duration>,
    /// The next showing of holders panics.
    panics: bool,
    /// The name of which no holder can be shown.
    unshowable: Option<String>,
    open: HashSet<u64>,
    silent: bool,
    /// The next request fails, and no other.
    fails_once: bool,
    /// The next request for a lock is refused without effect.
    refuses_once: bool,
    /// The next request that releases a lock fails.
    fails_a_release: bool,
    /// A request for a lock that is held is answered at once, even if it may wait.
    never_waits: bool,
    /// The time that any answer takes.
    answering: Duration,
    /// The number of requests.
    requests: u64,
    /// The times for which requests for a lock might wait.
    waits: Vec<Duration>,
    /// The number of signs of life that were asked for while a request waited in the same session.
    pings_in_waits: u64,
    /// The number of looks at the holders of a resource.
    looks: u64,
    /// The number of releases that also removed what shows the holder.
    removals: u64,
    /// Runs when the key of a resource is asked for the next time.
    at_next_key: Hook,
    /// Runs when a lock was given the next time: before its client knows.
    at_next_grant: Hook,
    /// Runs when a sign of life is asked for the next time: before it is sent.
    at_next_ping: Hook,
    /// Runs when a session was found open the next time: before its client knows.
    at_next_check: Hook,
    /// Runs when a client closes a session the next time.
    at_next_close: Hook,
    /// Runs when a claim is evicted the next time: before it is looked for.
    at_next_eviction: Hook,
    /// The time that a wait takes to return after it was cancelled.
    slowness: Duration,
    /// The time that it takes to open a session.
    opening: Duration,
    /// Nothing answers where the server should be.
    is_unreachable: bool,
    /// The number of attempts to open a session.
    attempts: u64,
    fence: u64,
    opened: u64,
    most_open: usize,
}

/// The work of a test at one point of a request.
#[derive(Default)]
struct Hook(Option<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hook({})", self.0.is_some())
    }
}

impl Server {
    pub(crate) fn new() -> Arc<Server> {
        Arc::new(Server { state: Mutex::default(), changes: watch::Sender::new(0) })
    }

    /// Returns a client of this server.
    pub(crate) fn client(
        self: &Arc<Self>,
        capacity: Capacity,
        waiting: WaitMode,
    ) -> SessionBackend<MemorySessions> {
        self.client_by(capacity, waiting, Arc::new(RuntimeClock::new()))
    }

    /// Returns a client with this clock.
    pub(crate) fn client_by(
        self: &Arc<Self>,
        capacity: Capacity,
        waiting: WaitMode,
        clock: Arc<dyn Clock>,
    ) -> SessionBackend<MemorySessions> {
        let profile = Profile::new("memory", Liveness::Heartbeat { valid: SILENCE })
            .admission(LockSupport::SharedExclusive)
            .waiting(waiting)
            .fencing(FenceGrade::Strict)
            .durability(Durability::LostOnFailover)
            .place_ttl(SILENCE * 2)
            .renew_batch_max(1_000)
            .note_max(leasehold_core::Note::MAX_BYTES);
        SessionBackend::new(MemorySessions { server: self.clone(), profile, capacity }, clock)
    }

    /// Ends every session, as a restart does.
    pub(crate) fn end_all(&self) {
        self.change(|state| {
            let sessions: Vec<u64> = state.open.iter().copied().collect();
            sessions.into_iter().for_each(|session| state.close(session));
        });
    }

    /// Answers no request any more, and keeps what is held.
    pub(crate) fn fall_silent(&self) {
        self.change(|state| state.silent = true);
    }

    /// Does this work when a client asks for the key of a resource the next time: before it asks for the lock.
    pub(crate) fn at_next_key(&self, work: impl FnOnce() + Send + 'static) {
        self.change(|state| state.at_next_key = Hook(Some(Box::new(work))));
    }

    /// Does this work when a lock was given the next time: before its client knows.
    pub(crate) fn at_next_grant(&self, work: impl FnOnce() + Send + 'static) {
        self.change(|state| state.at_next_grant = Hook(Some(Box::new(work))));
    }

    /// Does this work when a sign of life is asked for the next time: before it is sent.
    pub(crate) fn at_next_ping(&self, work: impl FnOnce() + Send + 'static) {
        self.change(|state| state.at_next_ping = Hook(Some(Box::new(work))));
    }

    /// Does this work when a session was found open the next time: before its client knows.
    pub(crate) fn at_next_check(&self, work: impl FnOnce() + Send + 'static) {
        self.change(|state| state.at_next_check = Hook(Some(Box::new(work))));
    }

    /// Does this work when a client closes a session the next time: before its locks are free.
    pub(crate) fn at_next_close(&self, work: impl FnOnce() + Send + 'static) {
        self.change(|state| state.at_next_close = Hook(Some(Box::new(work))));
    }

    /// Lets the next request fail, and no other.
    pub(crate) fn fail_once(&self) {
        self.change(|state| state.fails_once = true);
    }

    /// Refuses the next request for a lock, without effect.
    pub(crate) fn refuse_once(&self) {
        self.change(|state| state.refuses_once = true);
    }

    /// Lets the next request fail that releases a lock.
    pub(crate) fn fail_a_release(&self) {
        self.change(|state| state.fails_a_release = true);
    }

    /// Lets no request wait from now on.
    pub(crate) fn never_wait(&self) {
        self.change(|state| state.never_waits = true);
    }

    /// Takes so long from now on for each answer.
    pub(crate) fn answer_in(&self, duration: Duration) {
        self.change(|state| state.answering = duration);
    }

    /// Takes a lock, as another program does without this library.
    pub(crate) fn occupy(&self, name: &str) {
        self.change(|state| _ = state.locks.insert(name.to_owned(), vec![(0, false)]));
    }

    /// Takes so long from now on to end a wait that is cancelled.
    pub(crate) fn slow_down(&self, slowness: Duration) {
        self.change(|state| state.slowness = slowness);
    }

    /// Takes so long from now on to open a session.
    pub(crate) fn open_in(&self, duration: Duration) {
        self.change(|state| state.opening = duration);
    }

    /// Answers nobody who opens a session from now on, or does so again.
    pub(crate) fn set_unreachable(&self, is_unreachable: bool) {
        self.change(|state| state.is_unreachable = is_unreachable);
    }

    /// Forgets all locks, but ends no session.
    pub(crate) fn forget(&self) {
        self.change(|state| state.locks.clear());
    }

    /// Shows holders by a request of its own from now on, which takes so long.
    pub(crate) fn show_later(&self, duration: Duration) {
        self.change(|state| state.shows_later = Some(duration));
    }

    /// Shows no holder of this name from now on; of each without one.
    pub(crate) fn refuse_to_show(&self, name: Option<&str>) {
        self.change(|state| state.unshowable = name.map(str::to_owned));
    }

    /// Does this work when a claim is evicted the next time: before it is looked for.
    pub(crate) fn at_next_eviction(&self, work: impl FnOnce() + Send + 'static) {
        self.change(|state| state.at_next_eviction = Hook(Some(Box::new(work))));
    }

    /// Lets the next request that shows holders panic.
    pub(crate) fn panic_once(&self) {
        self.change(|state| state.panics = true);
    }

    /// Returns `true` until that request has come.
    pub(crate) fn will_panic(&self) -> bool {
        self.state.lock().unwrap().panics
    }

    /// The names of which a holder is shown.
    pub(crate) fn shown(&self) -> Vec<String> {
        self.state.lock().unwrap().rows.keys().map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn sessions(&self) -> usize {
        self.state.lock().unwrap().open.len()
    }

    /// Returns the number of sessions that were ever opened.
    pub(crate) fn opened(&self) -> u64 {
        self.state.lock().unwrap().opened
    }

    /// Returns the number of attempts to open a session.
    pub(crate) fn attempts(&self) -> u64 {
        self.state.lock().unwrap().attempts
    }

    pub(crate) fn locks(&self) -> usize {
        self.state.lock().unwrap().locks.len()
    }

    /// Returns the number of requests in sessions.
    pub(crate) fn requests(&self) -> u64 {
        self.state.lock().unwrap().requests
    }

    /// Returns the times for which requests for a lock might wait, since this was asked before.
    pub(crate) fn waits(&self) -> Vec<Duration> {
        self.change(|state| std::mem::take(&mut state.waits))
    }

    /// Returns the number of signs of life that were asked for while a request waited in the same session.
    pub(crate) fn pings_in_waits(&self) -> u64 {
        self.state.lock().unwrap().pings_in_waits
    }

    /// Returns the number of looks at the holders of a resource.
    pub(crate) fn looks(&self) -> u64 {
        self.state.lock().unwrap().looks
    }

    /// Returns the number of releases that also removed what shows the holder.
    pub(crate) fn removals(&self) -> u64 {
        self.state.lock().unwrap().removals
    }

    /// Does the work that a test has for one point of a request.
    fn run(&self, hook: impl FnOnce(&mut State) -> &mut Hook) {
        let work = hook(&mut self.state.lock().unwrap()).0.take();
        if let Some(work) = work {
            work();
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock().unwrap());
        self.changes.send_modify(|count| *count += 1);
        changed
    }
}

impl State {
    fn close(&mut self, session: u64) {
        self.open.remove(&session);
        self.locks.retain(|_, holders| {
            holders.retain(|(holder, _)| *holder != session);
            !holders.is_empty()
        });
        self.rows.retain(|_, (holder, _)| *holder != session);
    }

    /// Returns the names that are held, and of which no holder is shown yet.
    fn unshown(&self) -> impl Iterator<Item = &String> {
        let held = self.locks.iter().filter(|(_, holders)| !holders.is_empty()).map(|(name, _)| name);
        held.filter(|name| !self.rows.keys().any(|(shown, _)| shown == *name))
    }
}

#[derive(Debug)]
pub(crate) struct MemorySessions {
    server: Arc<Server>,
    profile: Profile,
    capacity: Capacity,
}

#[async_trait]
impl Sessions for MemorySessions {
    type Session = MemorySession;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn answer_limit(&self) -> Duration {
        ANSWER_LIMIT
    }

    fn key(&self, resource: &Resource) -> String {
        self.server.run(|state| &mut state.at_next_key);
        // Two names may meet, so that it can be seen to be reported.
        resource.as_str().trim_start_matches("alias of ").to_owned()
    }

    async fn open(&self) -> Result<MemorySession, Failure> {
        let (opening, is_unreachable) = self.server.change(|state| {
            state.attempts += 1;
            (state.opening, state.is_unreachable)
        });
        if is_unreachable {
            let silent = |_: &&str| std::future::pending();
            return dial_in_turn(&["the server"], ANSWER_LIMIT, silent).await;
        }
        if !opening.is_zero() {
            tokio::time::sleep(opening).await;
        }
        let number = self.server.change(|state| {
            state.opened += 1;
            state.open.insert(state.opened);
            state.most_open = state.most_open.max(state.open.len());
            state.opened
        });
        Ok(MemorySession {
            server: self.server.clone(),
            number,
            turn: tokio::sync::Mutex::new(()),
            waits: AtomicBool::new(false),
            calls: watch::Sender::new(0),
        })
    }

    async fn holders(&self, resource: &Resource, is_last: bool) -> Result<Option<Vec<ClaimInfo>>, Failure> {
        let mut state = self.server.state.lock().unwrap();
        state.looks += 1;
        if !is_last && state.unshown().any(|name| name == resource.as_str()) {
            return Ok(None);
        }
        let rows = state.rows.iter().filter(|((name, _), _)| name == resource.as_str());
        Ok(Some(rows.map(|(_, (_, info))| info.clone()).collect()))
    }

    async fn unshown(&self) -> Result<HashSet<String>, Failure> {
        Ok(self.server.state.lock().unwrap().unshown().cloned().collect())
    }

    async fn evict(&self, claim: &Claim) -> Result<Option<Vec<Resource>>, Failure> {
        self.server.run(|state| &mut state.at_next_eviction);
        Ok(self.server.change(|state| {
            let session = state.rows.values().find(|(_, info)| info.id == claim.id)?.0;
            let others = state.rows.iter().filter(|(_, (at, info))| *at == session && info.id != claim.id);
            let others = others.map(|((name, _), _)| Resource::new(name).unwrap()).collect();
            state.close(session);
            Some(others)
        }))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let mut found: BTreeMap<String, u32> = BTreeMap::new();
        for (name, _) in self.server.state.lock().unwrap().rows.keys() {
            if name.starts_with(prefix) && after.is_none_or(|after| name.as_str() > after.as_str()) {
                *found.entry(name.clone()).or_default() += 1;
            }
        }
        let summary =
            |(name, holders): (String, u32)| ResourceSummary::new(Resource::new(&name).unwrap(), holders, 0);
        Ok(found.into_iter().take(limit).map(summary).collect())
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        vec![Finding::new("memory", Severity::Good, format!("a ttl of {ttl:?}"))]
    }
}

#[derive(Debug)]
pub(crate) struct MemorySession {
    server: Arc<Server>,
    number: u64,
    /// A request that waits keeps all others of the session waiting.
    turn: tokio::sync::Mutex<()>,
    /// A request waits for its lock.
    waits: AtomicBool,
    calls: watch::Sender<u32>,
}

impl MemorySession {
    /// Sends a request as soon as none waits in the session any more.
    async fn request(&self) -> Result<(), Failure> {
        let _turn = self.turn.lock().await;
        self.server.state.lock().unwrap().requests += 1;
        self.check().await
    }

    async fn check(&self) -> Result<(), Failure> {
        tokio::task::yield_now().await;
        let (silent, answering) = {
            let state = self.server.state.lock().unwrap();
            (state.silent, state.answering)
        };
        if !answering.is_zero() {
            tokio::time::sleep(answering).await;
        }
        if silent {
            tokio::time::sleep(SILENCE * 3).await;
            return Err(Failure::unanswered("the server is silent"));
        }
        if std::mem::take(&mut self.server.state.lock().unwrap().fails_once) {
            return Err(Failure::unanswered("the request that the test asked for fails"));
        }
        if self.is_open() { Ok(()) } else { Err(Failure::unanswered("the session has ended")) }
    }

    fn try_lock(&self, request: &SessionRequest<'_>, key: &str) -> Answer {
        let (number, share) = (self.number, request.claim.share);
        // Nothing waits for this change.
        let state = &mut *self.server.state.lock().unwrap();
        let holders = state.locks.entry(key.to_owned()).or_default();
        if request.sharing == Sharing::None {
            let shared = !share.is_exclusive();
            if holders.iter().any(|(other, theirs)| *other != number && !(shared && *theirs)) {
                return Answer::Busy;
            }
            holders.push((number, shared));
        }
        state.fence += 1;
        let fence = Fence::new(1, state.fence, 0);
        let is_shown = state.shows_later.is_none();
        if is_shown {
            add_row(state, number, request.claim, fence);
        }
        Answer::Taken { fence: Some(fence), is_shown }
    }
}

#[async_trait]
impl Session for MemorySession {
    async fn lock(&self, request: &SessionRequest<'_>) -> Result<Answer, Failure> {
        let key = request.claim.resource.as_str().trim_start_matches("alias of ").to_owned();
        let until = tokio::time::Instant::now() + request.wait;
        let (mut changes, mut calls) = (self.server.changes.subscribe(), self.calls.subscribe());
        let waits = !request.wait.is_zero();
        let _turn = if waits { Some(self.turn.lock().await) } else { None };
        let _waiting = waits.then(|| Waiting::begin(&self.waits));
        let (refuses, never_waits) = {
            let state = &mut *self.server.state.lock().unwrap();
            state.requests += 1;
            state.waits.push(request.wait);
            assert!(state.waits.len() < REQUESTS_MAX, "a request is repeated without a pause");
            (std::mem::take(&mut state.refuses_once), state.never_waits)
        };
        loop {
            changes.borrow_and_update();
            self.check().await?;
            if refuses {
                return Err(Failure::unavailable("the test wants this refused"));
            }
            let answer = self.try_lock(request, &key);
            if answer != Answer::Busy {
                self.server.run(|state| &mut state.at_next_grant);
                return Ok(answer);
            }
            if never_waits {
                return Ok(Answer::Busy);
            }
            tokio::select! {
                _ = changes.changed() => {}
                _ = calls.changed() => {
                    let slowness = self.server.state.lock().unwrap().slowness;
                    tokio::time::sleep(slowness).await;
                    return Ok(Answer::Busy);
                }
                () = tokio::time::sleep_until(until) => return Ok(Answer::Busy),
            }
        }
    }

    async fn show(&self, holders: &[Holder]) -> Result<(), Failure> {
        let duration = self.server.state.lock().unwrap().shows_later.unwrap_or_default();
        let panics = self.server.change(|state| std::mem::take(&mut state.panics));
        assert!(!panics, "the panic that the test asked for");
        let is_refused = self.server.change(|state| {
            let names = holders.iter().map(|holder| holder.claim.resource.as_str());
            if names.into_iter().any(|name| Some(name) == state.unshowable.as_deref()) {
                return true;
            }
            for Holder { claim, fence, .. } in holders {
                add_row(state, self.number, claim, fence.unwrap());
            }
            false
        });
        tokio::time::sleep(duration).await;
        match is_refused {
            true => Err(Failure::unavailable("the test wants this not shown")),
            false => self.request().await,
        }
    }

    async fn unlock(&self, claim: &Claim, sharing: Sharing, is_shown: bool) -> Result<bool, Failure> {
        self.request().await?;
        if self.server.change(|state| std::mem::take(&mut state.fails_a_release)) {
            return Err(Failure::unanswered("the release that the test asked for fails"));
        }
        let key = claim.resource.as_str().trim_start_matches("alias of ").to_owned();
        Ok(self.server.change(|state| {
            if is_shown {
                state.removals += 1;
                remove_row(state, claim.id);
            }
            if sharing == Sharing::Readers {
                return true;
            }
            let Some(holders) = state.locks.get_mut(&key) else { return false };
            let Some(at) = holders.iter().position(|(holder, _)| *holder == self.number) else {
                return false;
            };
            holders.remove(at);
            if holders.is_empty() {
                state.locks.remove(&key);
            }
            true
        }))
    }

    async fn ping(&self) -> Result<(), Failure> {
        if self.waits.load(Ordering::SeqCst) {
            self.server.state.lock().unwrap().pings_in_waits += 1;
        }
        self.server.run(|state| &mut state.at_next_ping);
        self.request().await
    }

    async fn cancel(&self) {
        self.calls.send_modify(|count| *count += 1);
    }

    async fn closed(&self) {
        let mut changes = self.server.changes.subscribe();
        while self.is_open() {
            let _ = changes.changed().await;
        }
    }

    fn is_open(&self) -> bool {
        let is_open = self.server.state.lock().unwrap().open.contains(&self.number);
        if is_open {
            self.server.run(|state| &mut state.at_next_check);
        }
        is_open
    }
}

/// A request that waits for its lock, until this is dropped.
struct Waiting<'a>(&'a AtomicBool);

impl Waiting<'_> {
    fn begin(waits: &AtomicBool) -> Waiting<'_> {
        waits.store(true, Ordering::SeqCst);
        Waiting(waits)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        self.server.run(|state| &mut state.at_next_close);
        self.server.change(|state| state.close(self.number));
    }
}

fn add_row(state: &mut State, session: u64, claim: &Claim, fence: Fence) {
    let info = ClaimInfo::new(claim.id, claim.share).fence(Some(fence)).note(claim.note.clone());
    state.rows.insert((claim.resource.as_str().to_owned(), fence.seq), (session, info));
}

fn remove_row(state: &mut State, id: ClaimId) {
    state.rows.retain(|_, (_, info)| info.id != id);
}
