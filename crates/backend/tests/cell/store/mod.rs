//! Cells in the memory of this process, with the faults of a store: lost races, lost requests, lost answers.
//!
//! Two kinds, as the crate knows two ways of keeping time: one with a clock, which keeps a fence with
//! each text and never forgets it, as a table does; and one without, which numbers its writes and forgets a
//! text when it need not be kept any longer, as a cache does.

#![allow(clippy::unwrap_used, dead_code, reason = "test support; not each test uses all of it")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_backend::cell::{
    Call, Cell, CellBackend, CellRegisters, CellStore, ClockSource, Found, Locked, MAX_TTL, MIN_TTL,
    Notifier, PLACE_TTL, Put, SentWrite, Write, WriteAnswer, WriteCondition, WriteOutcome,
};
use leasehold_conformance::SteadyClock;
use leasehold_core::{
    Backend, Claim, ClaimId, Clock, Durability, Effect, Failure, FailureKind, Fence, FenceGrade, Finding,
    Grant, Liveness, LockSupport, Patience, Profile, QueueOrder, Registers, Resource, Severity, Share, Step,
    WaitMode,
};
use tokio::sync::Semaphore;

/// A database.
pub(crate) const TABLE: Kind =
    Kind { clock_source: ClockSource::Store, waiting: WaitMode::Notifies, order: QueueOrder::Fifo };
/// A cache.
pub(crate) const CACHE: Kind =
    Kind { clock_source: ClockSource::Observer, waiting: WaitMode::Polls, order: QueueOrder::Fifo };

/// Returns a wanted mutex.
pub(crate) fn claim(name: &str, ttl: Duration) -> Claim {
    let mut id = [0; 16];
    getrandom::fill(&mut id).unwrap();
    let resource = Resource::new(name).unwrap();
    Claim::new(ClaimId::from_bytes(id), resource, Share::MUTEX, ttl)
}

pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(SteadyClock::new())
}

/// Asks once.
pub(crate) async fn try_take(backend: &dyn Backend, claim: &Claim) -> Option<Grant> {
    match backend.contend(claim, &Patience::none(clock())).await.unwrap() {
        Step::Granted(grant) => Some(grant),
        Step::Busy(_) => None,
    }
}

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The time for which a statement waits for a row.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The most requests of one test.
const MAX_REQUESTS: u64 = 1_000_000;

/// The text that the store refuses in a commit of what several tasks want.
pub(crate) const UNWRITABLE: &str = "€";

/// The server.
#[derive(Debug, Default)]
pub(crate) struct Store {
    rows: Mutex<Rows>,
    notifiers: Mutex<Vec<Notifier>>,
    requests: AtomicU64,
    seizures: AtomicU64,
    retakes: AtomicU64,
    /// `true` if it gains nothing from a second commit at the same time.
    commits_alone: AtomicBool,
    /// `true` if it removes unused cells as a whole.
    removes_unused: AtomicBool,
    next_commits: Mutex<VecDeque<Fate>>,
    /// The fates of the next writes on the thread of the caller.
    next_at_once: Mutex<VecDeque<FateAtOnce>>,
    /// The number of writes that were sent on the thread of the caller.
    sent: AtomicU64,
    /// Opened when the answer to the next write of a place in the queue may arrive.
    next_answer: Mutex<Option<Arc<Semaphore>>>,
    /// The cells that a transaction of another client keeps locked.
    locked: Mutex<BTreeSet<String>>,
    /// The number of writes to each cell that arrive too late from now on: another client changes it before.
    overtaken: Mutex<BTreeMap<String, u32>>,
    /// The cells of registers.
    registers: OnceLock<Arc<Store>>,
}

/// The fate of a commit of what several tasks want.
#[derive(Debug)]
enum Fate {
    /// The commit is carried out when this is opened.
    Waits(Arc<Semaphore>),
    /// It fails, and has no effect.
    Fails,
    Panics,
}

/// The fate of a write on the thread of the caller.
#[derive(Debug)]
pub(crate) enum FateAtOnce {
    /// It would have to wait.
    Waits,
    /// It fails, and has no effect.
    Fails,
    /// It fails after it has taken effect.
    FailsAfterwards,
    /// It takes effect, and another client changes the cell before the store looks at it for the answer.
    IsChanged,
}

#[derive(Debug, Default)]
struct Rows {
    cells: BTreeMap<String, Row>,
    writes: u64,
}

#[derive(Debug, Clone)]
struct Row {
    text: String,
    version: u64,
    fence: Fence,
    origin: Instant,
    lapses: Instant,
}

/// The faults on one connection, in parts of a thousand requests.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Faults {
    pub(crate) lost_races: u32,
    pub(crate) lost_requests: u32,
    pub(crate) lost_answers: u32,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct MemoryCells {
    store: Arc<Store>,
    profile: Profile,
    clock_source: ClockSource,
    notifier: Option<Notifier>,
    faults: Faults,
    writes_now: bool,
    /// Nothing in the cells of registers themselves, whose fences have no meaning but for their epoch.
    registers: Option<Box<CellRegisters<MemoryCells>>>,
    is_for_registers: bool,
}

impl Store {
    pub(crate) fn new() -> Arc<Store> {
        Arc::new(Store::default())
    }

    /// Returns the number of requests.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Returns the number of writes that were sent on the thread of the caller.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    /// Returns the number of requests for a cell that may have no claims.
    pub(crate) fn seizures(&self) -> u64 {
        self.seizures.load(Ordering::SeqCst)
    }

    /// Returns the number of requests for a cell that the client believed to exist and to be empty.
    pub(crate) fn retakes(&self) -> u64 {
        self.retakes.load(Ordering::SeqCst)
    }

    /// Stalls the next commit without a set fate, of cells that their client has written last: it is
    /// carried out when a permit is added.
    pub(crate) fn stall_a_commit(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.next_commits.lock().unwrap().push_back(Fate::Waits(gate.clone()));
        gate
    }

    /// Stalls the answer to the next write to a cell that its client has read: it arrives when a permit is added.
    pub(crate) fn stall_an_answer(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.next_answer.lock().unwrap() = Some(gate.clone());
        gate
    }

    /// Waits until that write was made.
    pub(crate) async fn until_answer_stalls(&self) {
        let begun = Instant::now();
        // Its clock is the machine's own: that of a test may be paused.
        while self.next_answer.lock().unwrap().is_some() {
            assert!(begun.elapsed() < Duration::from_secs(60), "no such write is made");
            tokio::task::yield_now().await;
        }
    }

    /// Returns how many of the commits whose fate was set have not arrived.
    pub(crate) fn commits_to_come(&self) -> usize {
        self.next_commits.lock().unwrap().len()
    }

    /// Makes the next such commit fail without effect.
    pub(crate) fn fail_a_commit(&self) {
        self.next_commits.lock().unwrap().push_back(Fate::Fails);
    }

    /// Makes the next such commit panic.
    pub(crate) fn break_a_commit(&self) {
        self.next_commits.lock().unwrap().push_back(Fate::Panics);
    }

    /// Sets the fate of the next write on the thread of the caller.
    pub(crate) fn next_at_once(&self, fate: FateAtOnce) {
        self.next_at_once.lock().unwrap().push_back(fate);
    }

    /// Locks a cell by a transaction of another client, which does not end.
    pub(crate) fn lock(&self, at: &str) {
        self.locked.lock().unwrap().insert(at.to_owned());
    }

    /// Changes a cell before each of the next `count` writes to it, as a crowd of other clients does.
    pub(crate) fn overtake(&self, at: &str, count: u32) {
        self.overtaken.lock().unwrap().insert(at.to_owned(), count);
    }

    /// Returns how many writes to this cell are still to be overtaken.
    pub(crate) fn still_to_overtake(&self, at: &str) -> u32 {
        self.overtaken.lock().unwrap()[at]
    }

    /// Ends the transaction that keeps it locked.
    pub(crate) fn unlock(&self, at: &str) {
        self.locked.lock().unwrap().remove(at);
    }

    fn is_locked(&self, at: &Resource) -> bool {
        self.locked.lock().unwrap().contains(at.as_str())
    }

    /// Replaces the text of a cell, as an operator can do it.
    pub(crate) fn spoil(&self, at: &str, text: &str) {
        self.rows.lock().unwrap().cells.get_mut(at).unwrap().text = text.to_owned();
    }

    /// Loses a cell, as by a restart without data.
    pub(crate) fn forget(&self, at: &str) {
        self.rows.lock().unwrap().cells.remove(at).unwrap();
    }

    /// Opens one more client.
    pub(crate) fn open(self: &Arc<Self>, kind: Kind, faults: Faults) -> CellBackend<MemoryCells> {
        CellBackend::new(self.connect(kind, faults), Arc::new(SteadyClock::new()))
    }

    /// Opens one more client, with a clock of its own.
    pub(crate) fn open_by(self: &Arc<Self>, kind: Kind, clock: Arc<dyn Clock>) -> CellBackend<MemoryCells> {
        CellBackend::new(self.connect(kind, Faults::default()), clock)
    }

    pub(crate) fn connect(self: &Arc<Self>, kind: Kind, faults: Faults) -> MemoryCells {
        let notifier = (kind.waiting == WaitMode::Notifies).then(Notifier::new);
        notifier.iter().for_each(Notifier::mark_connected);
        self.connect_with(kind, faults, notifier, false)
    }

    /// Opens one more client of a table on the same machine.
    pub(crate) fn open_local(self: &Arc<Self>) -> CellBackend<MemoryCells> {
        let notifier = Notifier::new();
        notifier.mark_connected();
        let cells = self.connect_with(TABLE, Faults::default(), Some(notifier), true);
        CellBackend::new(cells, Arc::new(SteadyClock::new()))
    }

    /// Opens one more client, which is notified of nothing until its notifier is marked as connected.
    pub(crate) fn open_unconnected(self: &Arc<Self>) -> (CellBackend<MemoryCells>, Notifier) {
        let notifier = Notifier::new();
        let cells = self.connect_with(TABLE, Faults::default(), Some(notifier.clone()), false);
        (CellBackend::new(cells, Arc::new(SteadyClock::new())), notifier)
    }

    /// Gains nothing from a second commit at the same time, for clients that are opened later.
    pub(crate) fn commit_alone(&self) {
        self.commits_alone.store(true, Ordering::SeqCst);
    }

    /// Removes unused cells as a whole from now on.
    pub(crate) fn remove_unused(&self) {
        self.removes_unused.store(true, Ordering::SeqCst);
    }

    /// Returns the cells of the registers of its clients.
    pub(crate) fn registers(&self) -> &Store {
        self.registers.get().unwrap()
    }

    /// Tells all clients that are open that notifications may be missed.
    pub(crate) fn disconnect(&self) {
        self.notifiers.lock().unwrap().iter().for_each(Notifier::mark_disconnected);
    }

    /// Notifies none of the clients that are open any more, as if their connections for it were down.
    pub(crate) fn notify_nobody(&self) {
        self.notifiers.lock().unwrap().clear();
    }

    fn connect_with(
        self: &Arc<Self>,
        kind: Kind,
        faults: Faults,
        notifier: Option<Notifier>,
        writes_now: bool,
    ) -> MemoryCells {
        self.notifiers.lock().unwrap().extend(notifier.clone());
        let profile = Profile::new("cells", Liveness::Lease { min: MIN_TTL, max: MAX_TTL })
            .admission(LockSupport::Counted)
            .order(kind.order)
            .waiting(kind.waiting)
            .fencing(FenceGrade::Strict)
            .durability(Durability::Strict)
            .place_ttl(PLACE_TTL)
            .granularity(Duration::from_millis(2))
            .renew_batch_max(100)
            .note_max(leasehold_core::Note::MAX_BYTES);
        let mut cells = MemoryCells {
            store: Arc::clone(self),
            profile,
            clock_source: kind.clock_source,
            notifier,
            faults,
            writes_now,
            registers: None,
            is_for_registers: false,
        };
        if kind.clock_source == ClockSource::Store {
            let registers = CellRegisters::new(self.registers_beside(&cells), cells.profile.durability);
            cells.registers = Some(Box::new(registers));
        }
        cells
    }

    /// Returns the cells of the registers beside these. A swap that loses a race has seen an old value, so none does
    /// by chance.
    fn registers_beside(&self, cells: &MemoryCells) -> MemoryCells {
        let store = self.registers.get_or_init(Store::new).clone();
        let notifier = cells.notifier.as_ref().map(|_| Notifier::new());
        notifier.iter().for_each(Notifier::mark_connected);
        store.notifiers.lock().unwrap().extend(notifier.clone());
        MemoryCells {
            store,
            profile: cells.profile.clone(),
            clock_source: cells.clock_source,
            notifier,
            faults: Faults { lost_races: 0, ..cells.faults },
            writes_now: false,
            registers: None,
            is_for_registers: true,
        }
    }
}

/// The way in which a client uses the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) clock_source: ClockSource,
    pub(crate) waiting: WaitMode,
    pub(crate) order: QueueOrder,
}

impl MemoryCells {
    async fn request(&self) -> Result<(), Failure> {
        let before = self.store.requests.fetch_add(1, Ordering::SeqCst);
        assert!(before < MAX_REQUESTS, "a task asks without a pause");
        // Others get a turn between any two requests, as they do over a network.
        tokio::task::yield_now().await;
        match happens(self.faults.lost_requests) {
            true => Err(Failure::unavailable("the request was lost")),
            false => Ok(()),
        }
    }

    fn answer<T>(&self, answer: T) -> Result<T, Failure> {
        match happens(self.faults.lost_answers) {
            true => Err(Failure::unanswered("the answer was lost")),
            false => Ok(answer),
        }
    }

    /// Waits for a row for as long as a statement may.
    async fn outlasted(&self) -> Failure {
        tokio::time::sleep(STATEMENT_TIMEOUT).await;
        Failure::unavailable("the statement took too long")
    }

    /// Returns `true` if claims live in the cell, so that a request to seize it writes nothing.
    fn is_held(&self, at: &Resource) -> bool {
        self.rows().cells.get(at.as_str()).is_some_and(|row| row.lapses > Instant::now())
    }

    fn is_cache(&self) -> bool {
        self.clock_source == ClockSource::Observer
    }

    fn cell(&self, row: &Row) -> Cell {
        let age = (!self.is_cache()).then(|| row.origin.elapsed());
        Cell { text: row.text.clone(), version: row.version, fence: row.fence, floor: row.fence, age }
    }

    fn put(&self, rows: &mut Rows, at: &Resource, put: &Put, fence: Option<Fence>, origin: Option<Instant>) {
        rows.writes += 1;
        let now = Instant::now();
        let kept = rows.cells.get(at.as_str()).map(|row| row.origin);
        let origin = origin.or(kept).unwrap_or(now);
        let row = match self.is_cache() {
            true if put.text.is_empty() => {
                rows.cells.remove(at.as_str());
                None
            }
            true => Some(Row {
                text: put.text.clone(),
                version: rows.writes,
                fence: Fence::new(0, rows.writes, 0),
                origin: now,
                lapses: now + put.keep,
            }),
            false => Some(Row {
                text: put.text.clone(),
                version: put.version,
                fence: fence.unwrap_or(put.fence),
                origin,
                lapses: origin + put.keep,
            }),
        };
        if let Some(row) = row {
            rows.cells.insert(at.as_str().to_owned(), row);
        }
        if put.call != Call::None {
            self.store.notifiers.lock().unwrap().iter().for_each(|notifier| notifier.notify(at, &put.call));
        }
    }

    /// Drops what a cache need not keep any longer.
    fn rows(&self) -> std::sync::MutexGuard<'_, Rows> {
        let mut rows = self.store.rows.lock().unwrap();
        if self.is_cache() {
            let now = Instant::now();
            rows.cells.retain(|_, row| row.lapses > now);
        }
        rows
    }

    /// Makes the write if its condition holds.
    fn try_write(&self, write: &Write) -> WriteOutcome {
        let Write { at, when, put, answer } = write;
        let needs_time =
            matches!(when, WriteCondition::Emptied(_) | WriteCondition::Living { epoch: None, .. });
        assert!(!needs_time || !self.is_cache(), "only a store that keeps time can do this: {write:?}");
        let mut rows = self.rows();
        let now = Instant::now();
        if matches!(when, WriteCondition::Living { .. } | WriteCondition::Seen { .. })
            && let Some(left @ 1..) = self.store.overtaken.lock().unwrap().get_mut(at.as_str())
            && let Some(row) = rows.cells.get_mut(at.as_str())
        {
            *left -= 1;
            row.version += 1;
        }
        let row = rows.cells.get(at.as_str()).cloned();
        let is_alive = row.as_ref().is_some_and(|row| row.lapses > now);
        let last = row.as_ref().map_or(Fence::default(), |row| row.fence);
        let next = Fence::new(last.epoch, last.seq + 1, 0);
        let has = |version: u64| row.as_ref().is_some_and(|row| row.version == version);
        let (holds, fence, origin) = match *when {
            WriteCondition::Free => {
                let is_empty = row.as_ref().is_some_and(|row| row.text.is_empty());
                (!is_alive || is_empty, Some(next), Some(now))
            }
            WriteCondition::Emptied(version) => {
                let holds = has(version);
                assert!(!holds || row.as_ref().unwrap().text.is_empty(), "it was not left empty: {row:?}");
                (holds, Some(next), Some(now))
            }
            WriteCondition::Living { version, .. } => (has(version) && is_alive, None, Some(now)),
            WriteCondition::Seen { version, .. } => (has(version), None, None),
        };
        if !holds || happens(self.faults.lost_races) {
            let shows = *when == WriteCondition::Free && happens(500) || *answer == WriteAnswer::Full;
            return WriteOutcome::Refused(row.filter(|_| shows).map(|row| self.cell(&row)));
        }
        let next = fence.unwrap_or(put.fence);
        let is_back = if self.is_for_registers { next.epoch < last.epoch } else { next < last };
        let is_back = is_back && !self.is_cache();
        assert!(!is_back, "a fence went back: {write:?}");
        self.put(&mut rows, at, put, fence, origin);
        match rows.cells.get(at.as_str()) {
            // A cache numbers its writes, and says so only if it is asked.
            Some(row) => WriteOutcome::Written {
                version: (!self.is_cache() || *answer == WriteAnswer::Full).then_some(row.version),
                fence: row.fence,
            },
            None => put.outcome_written(put.fence),
        }
    }

    /// Meets the fate of a commit of cells that their client has written last.
    async fn commit(&self, writes: &[&Write]) -> Result<(), Failure> {
        assert!(writes.is_sorted_by(|one, other| one.at < other.at), "not in the order of names: {writes:?}");
        let retakes = writes.iter().filter(|write| matches!(write.when, WriteCondition::Emptied(_))).count();
        self.store.retakes.fetch_add(u64::try_from(retakes).unwrap(), Ordering::SeqCst);
        let fate = self.store.next_commits.lock().unwrap().pop_front();
        match fate {
            Some(Fate::Waits(gate)) => drop(gate.acquire().await.unwrap()),
            Some(Fate::Fails) => return Err(Failure::unavailable("the commit failed")),
            Some(Fate::Panics) => panic!("as the test wants it"),
            None => {}
        }
        match writes.iter().any(|write| write.put.text.contains(UNWRITABLE)) {
            true => Err(Failure::new(FailureKind::Invalid, Effect::None, "it cannot be written")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl CellStore for MemoryCells {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock_source(&self) -> ClockSource {
        self.clock_source
    }

    fn part(&self, claim: &Claim) -> u64 {
        u64::try_from(claim.resource.as_str().len()).unwrap()
    }

    async fn diagnose(&self, _: Duration) -> Vec<Finding> {
        vec![Finding::new("memory", Severity::Risk, "it is lost with this process")]
    }

    fn commits_at_once(&self) -> Option<usize> {
        Some(if self.store.commits_alone.load(Ordering::SeqCst) { 1 } else { 2 })
    }

    fn max_text(&self) -> usize {
        1 << 20
    }

    fn notifier(&self) -> Option<&Notifier> {
        self.notifier.as_ref()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.registers.as_deref().map(|registers| registers as &dyn Registers)
    }

    fn writes_now(&self) -> bool {
        self.writes_now
    }

    fn write_now(&self, write: &Write) -> Option<Result<WriteOutcome, Failure>> {
        match self.store.next_at_once.lock().unwrap().pop_front() {
            None => Some(Ok(self.try_write(write))),
            Some(FateAtOnce::Waits) => None,
            Some(FateAtOnce::Fails) => Some(Err(Failure::unavailable("the disk is full"))),
            // A store that decides at once does not look a second time.
            Some(FateAtOnce::FailsAfterwards | FateAtOnce::IsChanged) => {
                self.try_write(write);
                Some(Err(Failure::unanswered("the disk failed")))
            }
        }
    }

    fn numbers_states(&self) -> bool {
        self.is_cache()
    }

    fn sends_now(&self) -> bool {
        self.is_cache()
    }

    fn send_now(&self, write: Write) -> Option<SentWrite> {
        let fate = self.store.next_at_once.lock().unwrap().pop_front();
        if matches!(fate, Some(FateAtOnce::Waits)) {
            return None;
        }
        self.store.sent.fetch_add(1, Ordering::SeqCst);
        let outcome = match fate {
            Some(FateAtOnce::Fails) => Err(Failure::unavailable("the memory is full")),
            Some(FateAtOnce::FailsAfterwards) => {
                self.try_write(&write);
                Err(Failure::unanswered("the connection broke"))
            }
            Some(FateAtOnce::IsChanged) => {
                self.try_write(&write);
                // What is found is not what was written, as for a second write.
                Ok(self.try_write(&write))
            }
            Some(FateAtOnce::Waits) | None => Ok(self.try_write(&write)),
        };
        let outcome = outcome.and_then(|outcome| self.answer(outcome));
        Some(Box::pin(async {
            tokio::task::yield_now().await;
            outcome
        }))
    }

    async fn write(&self, writes: &[&Write], locked: Locked) -> Vec<Result<WriteOutcome, Failure>> {
        assert!(!writes.is_empty(), "there is nothing to write");
        let seizures = writes.iter().filter(|write| write.when == WriteCondition::Free).count();
        self.store.seizures.fetch_add(u64::try_from(seizures).unwrap(), Ordering::SeqCst);
        let all = |failure: Failure| writes.iter().map(|_| Err(failure.clone())).collect();
        let is_own =
            |write: &&Write| matches!(write.when, WriteCondition::Emptied(_) | WriteCondition::Living { .. });
        let is_commit = locked == Locked::Wait && writes.iter().all(is_own);
        if is_commit && let Err(failure) = self.commit(writes).await {
            return all(failure);
        }
        if let ([one], false, Locked::Wait) = (writes, is_commit, locked) {
            let waits = one.when != WriteCondition::Free || !self.is_held(&one.at);
            if waits && self.store.is_locked(&one.at) {
                return all(self.outlasted().await);
            }
        }
        if let Err(failure) = self.request().await {
            return all(failure);
        }
        let write =
            |write: &&Write| match self.store.is_locked(&write.at) && write.when != WriteCondition::Free {
                true => WriteOutcome::Refused(None),
                false => self.try_write(write),
            };
        let outcomes: Vec<WriteOutcome> = writes.iter().map(write).collect();
        let is_place = matches!(writes, [Write { when: WriteCondition::Seen { .. }, .. }]);
        let gate = if is_place { self.store.next_answer.lock().unwrap().take() } else { None };
        if let Some(gate) = gate {
            drop(gate.acquire().await.unwrap());
        }
        outcomes.into_iter().map(|outcome| self.answer(outcome)).collect()
    }

    async fn read(&self, at: &[&Resource]) -> Vec<Result<Option<Cell>, Failure>> {
        assert!(!at.is_empty(), "there is nothing to read");
        if let Err(failure) = self.request().await {
            return at.iter().map(|_| Err(failure.clone())).collect();
        }
        let rows = self.rows();
        at.iter().map(|at| Ok(rows.cells.get(at.as_str()).map(|row| self.cell(row)))).collect()
    }

    async fn all(&self, after: Option<&Resource>, limit: usize) -> Result<Vec<Found>, Failure> {
        assert!(!self.is_cache(), "a cache forgets by itself");
        self.request().await?;
        let rows = self.rows();
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.as_str()));
        let some = rows.cells.range::<str, _>((from, Bound::Unbounded)).take(limit);
        let found = some.map(|(name, row)| {
            let idle = Instant::now().saturating_duration_since(row.lapses);
            Found { at: Resource::new(name).unwrap(), cell: self.cell(row), idle }
        });
        Ok(found.collect())
    }

    async fn forget(&self, unused: &[&Found]) -> Result<Option<usize>, Failure> {
        assert!(!unused.is_empty(), "there is nothing to remove");
        if !self.store.removes_unused.load(Ordering::SeqCst) {
            return Ok(None);
        }
        self.request().await?;
        let mut rows = self.rows();
        let before = rows.cells.len();
        rows.cells.retain(|name, row| {
            !unused.iter().any(|found| found.at.as_str() == name && found.cell.version == row.version)
        });
        Ok(Some(before - rows.cells.len()))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<(Resource, Cell)>, Failure> {
        self.request().await?;
        let rows = self.rows();
        let from = match after {
            Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix),
        };
        let named = rows.cells.range::<str, _>((from, Bound::Unbounded));
        let found =
            named.take_while(|(name, _)| name.starts_with(prefix)).filter(|(_, row)| !row.text.is_empty());
        Ok(found.take(limit).map(|(name, row)| (Resource::new(name).unwrap(), self.cell(row))).collect())
    }
}

fn happens(of_a_thousand: u32) -> bool {
    of_a_thousand > 0 && getrandom::u32().unwrap() % 1000 < of_a_thousand
}
