//! A server in the memory of this process whose sessions hold locks, with its faults as methods.
//!
//! As real ones do, it lets one session take one lock again and again: which claims exclude each other
//! within a client is not its business.

#![allow(clippy::unwrap_used, dead_code, reason = "test support; not each test uses all of it")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::session::{
    Answer, Capacity, Holder, LockRequest, Session, SessionBackend, Sessions, Sharing,
};
use leasehold_conformance::SteadyClock;
use leasehold_core::{
    Claim, ClaimId, ClaimInfo, Clock, Durability, Failure, Fence, FenceGrade, Liveness, LockSupport, Moment,
    Profile, Resource, ResourceSummary, WaitMode,
};
use tokio::sync::watch;

pub(crate) const SILENCE: Duration = Duration::from_millis(400);
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);

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
    /// The next eviction comes a moment before its holder is shown.
    misses_an_eviction: bool,
    open: HashSet<u64>,
    silent: bool,
    /// The next request fails, and no other.
    fails_once: bool,
    /// Runs when the key of a resource is asked for the next time.
    at_next_key: Hook,
    /// Runs when a lock was given the next time: before its client knows.
    at_next_grant: Hook,
    /// Runs when a client closes a session the next time.
    at_next_close: Hook,
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
        self.client_by(capacity, waiting, Arc::new(SteadyClock::new()))
    }

    /// Returns a client with a clock of its own.
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

    /// Does this work when a client closes a session the next time: before its locks are free.
    pub(crate) fn at_next_close(&self, work: impl FnOnce() + Send + 'static) {
        self.change(|state| state.at_next_close = Hook(Some(Box::new(work))));
    }

    /// Lets the next request fail, and no other.
    pub(crate) fn fail_once(&self) {
        self.change(|state| state.fails_once = true);
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

    /// Lets the next eviction come a moment before its holder is shown.
    pub(crate) fn miss_an_eviction(&self) {
        self.change(|state| state.misses_an_eviction = true);
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
        let work = self.server.state.lock().unwrap().at_next_key.0.take();
        if let Some(work) = work {
            work();
        }
        // Two names may meet, so that it can be seen to be reported.
        resource.as_str().trim_start_matches("alias of ").to_owned()
    }

    async fn open(&self) -> Result<MemorySession, Failure> {
        let (opening, is_unreachable) = self.server.change(|state| {
            state.attempts += 1;
            (state.opening, state.is_unreachable)
        });
        if is_unreachable {
            tokio::time::sleep(ANSWER_LIMIT).await;
            return Err(Failure::unavailable("the server does not answer"));
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
        Ok(MemorySession { server: self.server.clone(), number, calls: watch::Sender::new(0) })
    }

    async fn holders(&self, resource: &Resource, _: bool) -> Result<Option<Vec<ClaimInfo>>, Failure> {
        let state = self.server.state.lock().unwrap();
        let rows = state.rows.iter().filter(|((name, _), _)| name == resource.as_str());
        Ok(Some(rows.map(|(_, (_, info))| info.clone()).collect()))
    }

    async fn unshown(&self) -> Result<HashSet<String>, Failure> {
        Ok(HashSet::new())
    }

    async fn evict(&self, claim: &Claim) -> Result<Option<Vec<Resource>>, Failure> {
        Ok(self.server.change(|state| {
            if std::mem::take(&mut state.misses_an_eviction) {
                return None;
            }
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
}

#[derive(Debug)]
pub(crate) struct MemorySession {
    server: Arc<Server>,
    number: u64,
    calls: watch::Sender<u32>,
}

impl MemorySession {
    async fn check(&self) -> Result<(), Failure> {
        tokio::task::yield_now().await;
        let silent = self.server.state.lock().unwrap().silent;
        if silent {
            tokio::time::sleep(SILENCE * 3).await;
            return Err(Failure::unanswered("the server is silent"));
        }
        if self.server.change(|state| std::mem::take(&mut state.fails_once)) {
            return Err(Failure::unanswered("the request that the test asked for fails"));
        }
        if self.is_open() { Ok(()) } else { Err(Failure::unanswered("the session has ended")) }
    }

    fn try_lock(&self, request: &LockRequest<'_>, key: &str) -> Answer {
        let (number, share) = (self.number, request.claim.share);
        self.server.change(|state| {
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
        })
    }
}

#[async_trait]
impl Session for MemorySession {
    async fn lock(&self, request: &LockRequest<'_>) -> Result<Answer, Failure> {
        let key = request.claim.resource.as_str().trim_start_matches("alias of ").to_owned();
        let until = tokio::time::Instant::now() + request.wait;
        let (mut changes, mut calls) = (self.server.changes.subscribe(), self.calls.subscribe());
        loop {
            changes.borrow_and_update();
            self.check().await?;
            let answer = self.try_lock(request, &key);
            if answer != Answer::Busy {
                let work = self.server.state.lock().unwrap().at_next_grant.0.take();
                if let Some(work) = work {
                    work();
                }
                return Ok(answer);
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
        self.server.change(|state| {
            for Holder { claim, fence, .. } in holders {
                add_row(state, self.number, claim, fence.unwrap());
            }
        });
        tokio::time::sleep(duration).await;
        self.check().await
    }

    async fn unlock(&self, claim: &Claim, sharing: Sharing, is_shown: bool) -> Result<bool, Failure> {
        self.check().await?;
        let key = claim.resource.as_str().trim_start_matches("alias of ").to_owned();
        Ok(self.server.change(|state| {
            if is_shown {
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
        self.check().await
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
        self.server.state.lock().unwrap().open.contains(&self.number)
    }
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        let work = self.server.state.lock().unwrap().at_next_close.0.take();
        if let Some(work) = work {
            work();
        }
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
