//! One caller loads a value for all callers that want it.
//!
//! Ground rules: the turn to load is a lock, so later callers are queued and take over in order; but
//! they wait for the value, and leave the queue when it exists. A caller that begins to load writes
//! that down in the place of the value, and writes the value only if that mark still exists: so an
//! earlier load never replaces a later one.

mod entry;
mod local;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::FutureExt;
use leasehold_core::{Registers, Resource, Stamp};

use super::cache::{Cache, CacheRegisters};
use crate::engine::{Change, Engine, Register, Seen};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Guard, Mutex};
use entry::{Entry, Times, Use};
pub(crate) use local::Flights;
use local::{JoinedFlight, SlotRef};

/// A value by key that one caller loads for all callers, across all processes that use the same store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let locks = leasehold::Client::open("mem:").await?;
/// let page = locks.single_flight("page/42").stale_for(Duration::from_secs(30));
/// let load = || async { Ok::<_, std::io::Error>(Some(b"<html>".to_vec())) }; // slow, and asked once
/// let (one, two) = tokio::join!(
///     page.get_or_load(Duration::from_secs(60), load),
///     page.get_or_load(Duration::from_secs(60), load),
/// );
/// assert_eq!(one?.value, two?.value);
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// Of all callers that want a missing value, one loads it; the others get the result, each a moment
/// after it is written. If the loader fails or dies, the next in the queue loads; a failure is reported
/// only to the caller whose loader failed. If the store does not answer, all callers of one process get
/// that error together. A loader that was overtaken, because its lock was lost or the value was
/// [invalidated](SingleFlight::invalidate) meanwhile, cannot replace later values. Within one process
/// all callers of a key are one.
///
/// # Does not promise
/// A loader may be called twice for one value: a loader without a sign of life for the
/// [ttl](SingleFlight::with) of its lock counts as dead, and both load then; one of the results is kept.
/// A value may be older than the source, by as much as the settings allow, and a value that the store
/// loses is loaded again. A caller that comes during a flight may get a value that was loaded before it
/// came, unless the value was [invalidated](SingleFlight::invalidate) before it came.
///
/// # Freshness
/// The store measures ages. A value is fresh for its ttl and then *stale* for
/// [a configured time](SingleFlight::stale_for): a stale one is returned at once, while one caller has
/// it loaded in the background. Shortly before its end a fresh value is loaded anew by chance, the
/// sooner the longer loading takes, so that not all callers load at the end: the method of Vattani,
/// Chierichetti and Lowenstein, "Optimal Probabilistic Cache Stampede Prevention" (2015), see
/// [`SingleFlight::early`].
#[derive(Clone, Debug)]
pub struct SingleFlight {
    engine: Arc<Engine>,
    flights: Arc<Flights>,
    key: Result<Resource>,
    turn: Mutex,
    cache: Option<Arc<CacheRegisters>>,
    /// The number of the cache; zero is the store of the client.
    cache_id: usize,
    stale: Duration,
    negative: Option<Duration>,
    early: f64,
    within: Duration,
}

/// The value that was requested, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlightOutcome {
    /// The value; `None` if the source has no such value.
    pub value: Option<Vec<u8>>,
    /// The origin of the value.
    pub origin: ValueSource,
}

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueSource {
    /// A fresh value that was kept, or that the loader of another caller returned.
    Kept,
    /// A kept value that is older than its ttl, and is being loaded anew.
    Stale,
    /// A value of the caller's loader, which is kept for the others.
    Loaded,
    /// A loaded value that is not kept: the loader was overtaken, took too long, or the value
    /// is not to be kept.
    NotKept,
}

/// The reason why a call returns no value.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError<E> {
    /// The caller's own loader failed with this error.
    Loader(E),
    /// The store failed, or the request is invalid.
    Store(Error),
    /// An `Interrupt` of the module `blocking` ended the wait of a thread.
    Interrupted(Error),
}

impl<E: fmt::Display> fmt::Display for LoadError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Loader(error) => write!(f, "load: {error}"),
            LoadError::Store(error) | LoadError::Interrupted(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for LoadError<E> {}

impl<E> From<Error> for LoadError<E> {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Interrupted => LoadError::Interrupted(error),
            _ => LoadError::Store(error),
        }
    }
}

impl SingleFlight {
    pub(crate) fn new(engine: Arc<Engine>, flights: Arc<Flights>, key: &str, turn: Mutex) -> SingleFlight {
        let key = Resource::new(&format!("{key}!loaded")).map_err(Error::from);
        SingleFlight {
            engine,
            flights,
            key,
            turn,
            cache: None,
            cache_id: 0,
            stale: Duration::ZERO,
            negative: None,
            early: 1.0,
            within: WITHIN,
        }
    }

    /// Returns the name of the lock of the loader.
    pub(crate) fn turn_name(key: &str) -> String {
        format!("{key}!loading")
    }

    /// Sets for how long a value may be returned after its ttl, while it is loaded anew. Default: zero.
    /// Like all times of a flight it is thirty years at most, and no longer than the store keeps a value: memcached
    /// keeps one for 29 days, its ttl first and as much of this time as is left.
    #[must_use]
    pub fn stale_for(mut self, time: Duration) -> Self {
        self.stale = time.min(TIME_MAX);
        self
    }

    /// Sets for how long a missing value is kept as missing, when a loader says so. By default as long
    /// as a value; zero does not keep it, so that each caller loads, one after the other.
    #[must_use]
    pub fn negative_for(mut self, time: Duration) -> Self {
        self.negative = Some(time);
        self
    }

    /// Sets how eagerly a fresh value is loaded anew before its end: a caller does it if less is left
    /// than `eagerness` times the time that the last load took, times a random number of mean one.
    /// Default: 1; 0 never does.
    #[must_use]
    pub fn early(mut self, eagerness: f64) -> Self {
        self.early = eagerness;
        self
    }

    /// Sets how long a loader may take. Default: one minute. A slower result is returned to its caller
    /// and not kept, and the next in the queue loads meanwhile. A loader that is not polled, or that
    /// blocks its thread, keeps the others waiting for up to twice this time and the outage tolerance: that is
    /// the [`max_hold`](crate::Lock::max_hold) of the lock of the loader, unless [`SingleFlight::with`] sets another.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = limit.min(TIME_MAX);
        self
    }

    /// Changes the settings of the lock of the loader: above all its ttl, after which a loader without
    /// a sign of life counts as dead.
    ///
    /// # Errors
    /// Any error of `setting`.
    pub fn with(mut self, setting: impl FnOnce(Mutex) -> Result<Mutex>) -> Result<Self> {
        self.turn = setting(self.turn)?;
        Ok(self)
    }

    /// Keeps the values in a custom cache instead of the store of the locks.
    #[must_use]
    pub fn cache(mut self, cache: Arc<dyn Cache>) -> Self {
        self.cache_id = Arc::as_ptr(&cache).addr();
        self.cache = Some(Arc::new(CacheRegisters::over(cache)));
        self
    }

    /// Returns the value, if it is kept, or as `load` or the loader of another caller returns it; fresh
    /// for `ttl` from when it is written. On etcd and memcached, which count seconds, it is fresh for up to a second
    /// more, and each load that begins before its end may take up to a second off.
    ///
    /// `load` is called at most once, and not if another caller loads the value. `Ok(None)`
    /// means that the source has no such value. It may continue in the background after the
    /// caller has received a stale value.
    ///
    /// # Cancel safety
    /// If a future that was loading is dropped, it stops loading, and the next in the queue loads.
    /// Otherwise nothing is lost.
    ///
    /// # Errors
    /// [`LoadError::Loader`] if `load` was called and failed. [`LoadError::Store`] otherwise:
    /// `Unsupported` if the store has no expiring values and no [cache](SingleFlight::cache) was given,
    /// before anything is sent; `Invalid` for a `ttl` or a time to load of zero, and for a value that is
    /// longer than the cache takes; otherwise the failure of the store or of
    /// [`Mutex::lock`](crate::Mutex::lock).
    pub async fn get_or_load<L, F, E>(&self, ttl: Duration, load: L) -> Result<FlightOutcome, LoadError<E>>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>, E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let register = self.register("load")?;
        let has_no_time = ttl.is_zero() || self.within.is_zero();
        if has_no_time || !self.early.is_finite() || self.early < 0.0 {
            let text = "`ttl` and `within` take a time above zero, and `early` a number that is not negative";
            return Err(register.error(ErrorKind::Invalid, text).into());
        }
        let mut slot_ref = self.slot_ref()?;
        let turn = loop {
            let limit = self.engine.sleep(self.turn_limit());
            match slot_ref.wait_turn_or_result(limit.map(drop)).await {
                JoinedFlight::Turn(turn) => break turn,
                JoinedFlight::Finished(outcome) => return Ok(outcome?),
                JoinedFlight::Overdue => {}
            }
            // Nobody polls the caller whose turn it is, perhaps. All that come now share another slot.
            slot_ref.abandon();
            slot_ref = self.slot_ref()?;
        };
        let (mut turn, mut began) = (Some(turn), 0);
        let stages = |stage| match stage {
            Stage::Begins => began = slot_ref.joined(),
            Stage::Overdue => drop(turn.take()),
        };
        let outcome = self.get_or_load_alone(&register, ttl, load, stages).await;
        // Before the turn is over, so that no waiter for it loads as well. A slow loader has no turn
        // any more, and another may have written a later value.
        if turn.is_some() {
            match &outcome {
                Ok(loaded) => slot_ref.publish(loaded, began),
                // The others waited with this one for the store to answer: they do not each wait again,
                // one after the other.
                Err(LoadError::Store(error)) if error.is_outage() => slot_ref.fail(error),
                Err(_) => {}
            }
        }
        outcome
    }

    /// Returns the value that is kept now, fresh or stale, without loading; `None` if none is.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// The failure of the store.
    pub async fn get(&self) -> Result<Option<FlightOutcome>> {
        let register = self.register("load")?;
        let loaded = |value, origin| Some(FlightOutcome { value, origin });
        Ok(match Entry::read(&register, &register.read().await?)?.r#use() {
            Use::Fresh { value, .. } => loaded(value, ValueSource::Kept),
            Use::Stale(value) => loaded(value, ValueSource::Stale),
            Use::Nothing => None,
        })
    }

    /// Removes the kept value. A loader that is already running is not stopped. Its result is returned to its caller
    /// and to the callers of its process that waited when the loader began, and is not kept. Callers that come after
    /// the removal do not get it, in this process or another: they wait for that loader to end, and one of them
    /// loads.
    ///
    /// # Does not promise
    /// Callers of one process share the answer of a request that is under way. Those that come within such a request
    /// may get a value that another process has just removed; the next ones do not.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not have been removed.
    ///
    /// # Errors
    /// The failure of the store.
    pub async fn invalidate(&self) -> Result<()> {
        let register = self.register("invalidate")?;
        let removing = register.ensure(|found| match found {
            None => Ok(Change::Leave(())),
            Some(_) => Ok(Change::Remove(())),
        });
        let removed = removing.await;
        // A flight of this process that is under way may bring an older value.
        self.flights.abandon(&(self.key.clone()?, self.cache_id));
        removed
    }

    /// Finds, waits for, or loads the value, alone in this process; `stages` is called at each stage of a load.
    async fn get_or_load_alone<L, F, E>(
        &self,
        register: &Register,
        ttl: Duration,
        load: L,
        stages: impl FnMut(Stage),
    ) -> Result<FlightOutcome, LoadError<E>>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>, E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let seen = register.read().await?;
        match Entry::read(register, &seen)?.r#use() {
            Use::Fresh { value, left, took } => {
                if self.is_early(left, took) {
                    self.refresh_in_background(register, seen.stamp, ttl, load)?;
                }
                Ok(FlightOutcome { value, origin: ValueSource::Kept })
            }
            Use::Stale(value) => {
                self.refresh_in_background(register, seen.stamp, ttl, load)?;
                Ok(FlightOutcome { value, origin: ValueSource::Stale })
            }
            Use::Nothing => {
                let turn = self.turn();
                let turn = pin!(turn.lock());
                let value = pin!(wait_until_loaded(register, seen));
                let guard = tokio::select! {
                    biased;
                    loaded = value => return Ok(loaded?),
                    guard = turn => guard?,
                };
                self.load(register, guard, ttl, load, None, stages).await
            }
        }
    }

    /// Has the value loaded anew by a task, unless another client is already loading it.
    fn refresh_in_background<L, F, E>(
        &self,
        register: &Register,
        seen: Stamp,
        ttl: Duration,
        load: L,
    ) -> Result<()>
    where
        L: FnOnce() -> F + Send + 'static,
        F: Future<Output = Result<Option<Vec<u8>>, E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let slot_ref = self.slot_ref()?;
        if slot_ref.slot.refreshing.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        // Before the task: one that never runs must not leave the mark.
        let refreshing = RefreshGuard(slot_ref);
        let (flight, register, engine) = (self.clone(), register.clone(), self.engine.clone());
        self.engine.spawn(async move {
            let renewed = async {
                match flight.turn().try_lock().await? {
                    Some(guard) => {
                        flight.load(&register, guard, ttl, load, Some(&seen), |_| {}).await.map(drop)
                    }
                    None => Ok(()),
                }
            };
            tokio::select! {
                () = engine.closing() => {}
                // A slower result is not kept, and no other caller wants it.
                _ = engine.sleep(flight.within) => {}
                renewed = renewed => if let Err(error) = renewed {
                    tracing::debug!(%error, "a value could not be loaded anew; the old one is used for now");
                }
            }
            drop(refreshing);
        });
        Ok(())
    }

    /// Loads, with the turn to do so. A loader that takes too long, or whose lock is lost, continues
    /// for its own caller, and does not block any other.
    async fn load<L, F, E>(
        &self,
        register: &Register,
        guard: Guard,
        ttl: Duration,
        load: L,
        refreshes: Option<&Stamp>,
        mut stages: impl FnMut(Stage),
    ) -> Result<FlightOutcome, LoadError<E>>
    where
        L: FnOnce() -> F,
        F: Future<Output = Result<Option<Vec<u8>>, E>>,
    {
        let loader = draw_loader_id(register)?;
        if let Some(value) = self.begin(register, loader, refreshes).await? {
            return Ok(FlightOutcome { value, origin: ValueSource::Kept });
        }
        let clock = self.engine.clock();
        let began = clock.now();
        stages(Stage::Begins);
        let mut loading = pin!(load());
        let in_time = tokio::select! {
            biased;
            value = &mut loading => Some(value),
            _ = guard.lost() => None,
            _ = self.engine.sleep(self.within) => None,
        };
        let Some(value) = in_time else {
            drop(guard);
            stages(Stage::Overdue);
            let value = loading.await.map_err(LoadError::Loader)?;
            return Ok(FlightOutcome { value, origin: ValueSource::NotKept });
        };
        let value = value.map_err(LoadError::Loader)?;
        let took = clock.now().since(began);
        let capacity = register.capacity().saturating_sub(entry::HEADER);
        if let Some(long) = value.as_ref().map(Vec::len).filter(|length| *length > capacity) {
            let text = format!("a value of {long} bytes is too long for this cache: {capacity} at most");
            return Err(register.error(ErrorKind::Invalid, text).into());
        }
        let origin = match self.keep(register, loader, value.as_deref(), ttl, took).await {
            Ok(true) => ValueSource::Loaded,
            Ok(false) => ValueSource::NotKept,
            Err(error) => {
                tracing::debug!(%error, "a loaded value could not be kept");
                ValueSource::NotKept
            }
        };
        drop(guard);
        Ok(FlightOutcome { value, origin })
    }

    /// Writes down the loader, unless there is a fresh value that is not the one to be renewed:
    /// then returns that.
    async fn begin(
        &self,
        register: &Register,
        loader: u64,
        refreshes: Option<&Stamp>,
    ) -> Result<Option<Option<Vec<u8>>>> {
        let beginning = register.ensure_seen(|seen| {
            let entry = Entry::read(register, seen)?;
            if entry.loading == loader {
                return Ok(Change::Leave(None));
            }
            match entry.clone().r#use() {
                // Another loader wrote it before this one had the turn.
                Use::Fresh { value, .. } if refreshes != Some(&seen.stamp) => Ok(Change::Leave(Some(value))),
                _ => {
                    let (entry, keep) = entry.with_loader(loader, self.within.min(register.max_keep()));
                    Ok(Change::Write(entry, Some(keep), None))
                }
            }
        });
        beginning.await
    }

    /// Keeps the loaded value, if no later load has begun. Returns whether it is kept.
    async fn keep(
        &self,
        register: &Register,
        loader: u64,
        value: Option<&[u8]>,
        ttl: Duration,
        took: Duration,
    ) -> Result<bool> {
        let fresh_for = if value.is_some() { ttl } else { self.negative.unwrap_or(ttl) }.min(TIME_MAX);
        if fresh_for.is_zero() {
            return Ok(false);
        }
        let times = Times::within(register.max_keep(), register.rounding(), fresh_for, self.stale);
        let keeping = register.update_seen(CONFLICTS, |seen| {
            if Entry::read(register, seen)?.loading != loader {
                return Ok(Change::Leave(false));
            }
            let (entry, keep) = entry::loaded(loader, value, times, took);
            Ok(Change::Write(entry, Some(keep), true))
        });
        Ok(keeping.await?.result)
    }

    /// Returns `true` if this caller is the one to load a fresh value anew.
    fn is_early(&self, left: Duration, took: Duration) -> bool {
        // From one down to nearly zero, so the logarithm is that of a random time of mean one.
        let chance =
            (f64::from(crate::random::u32().unwrap_or(u32::MAX)) + 1.0) / (f64::from(u32::MAX) + 1.0);
        left.as_secs_f64() < took.as_secs_f64() * self.early * -chance.ln()
    }

    /// Returns the lock of the loader. A loader that is not polled loses it in time.
    fn turn(&self) -> Mutex {
        self.turn.clone().max_hold_unless_set(self.turn_limit())
    }

    /// Returns how long a turn lasts at most: it includes the ways to the store before and after the load, and those
    /// may last as long as an outage that is tolerated.
    fn turn_limit(&self) -> Duration {
        self.within.saturating_add(self.engine.tuning().outage).saturating_mul(2)
    }

    fn slot_ref(&self) -> Result<SlotRef> {
        self.flights.join((self.key.clone()?, self.cache_id))
    }

    fn register(&self, op: &'static str) -> Result<Register> {
        let key = self.key.clone().map_err(|error| error.with_op(op))?;
        let register = match &self.cache {
            Some(cache) => {
                let cache: Arc<dyn Registers> = cache.clone();
                Register::in_store(&self.engine, cache, key, op)
            }
            None => Register::open(&self.engine, key, op)?,
        };
        if !register.forgets() {
            let text = "this store never forgets a value by itself; give the flight a cache that does";
            return Err(register.error(ErrorKind::Unsupported, text));
        }
        Ok(register)
    }
}

/// A stage of a load.
enum Stage {
    /// The loader is called next.
    Begins,
    /// It takes too long: others are to continue without it.
    Overdue,
}

/// Reports when it is over that this process has a value loaded anew.
struct RefreshGuard(SlotRef);

impl Drop for RefreshGuard {
    fn drop(&mut self) {
        self.0.slot.refreshing.store(false, Ordering::SeqCst);
    }
}

/// Waits until a loader has written the value.
async fn wait_until_loaded(register: &Register, mut seen: Seen) -> Result<FlightOutcome> {
    loop {
        seen = register.changed(&seen.stamp, CHANGE_WAIT_MAX).await?;
        match Entry::read(register, &seen)?.r#use() {
            Use::Fresh { value, .. } => return Ok(FlightOutcome { value, origin: ValueSource::Kept }),
            Use::Stale(value) => return Ok(FlightOutcome { value, origin: ValueSource::Stale }),
            Use::Nothing => {}
        }
    }
}

/// Returns a number that no other loader draws; never zero, which means no loader.
fn draw_loader_id(register: &Register) -> Result<u64> {
    Ok(register.draw()?.max(1))
}

const WITHIN: Duration = Duration::from_secs(60);
/// The longest time. Servers keep a value for a hundred years at most, which two of these do not reach.
const TIME_MAX: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
/// The time for which one request waits for a change.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(30);
/// The number of conflicting writers: only those whose lock was lost, or that invalidate.
const CONFLICTS: u32 = 1_000;
