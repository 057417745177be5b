//! The client: one connection to one store, and everything that is locked through it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::deadlock::Deadlock;
use leasehold_core::{
    Backend, Broken, Claim, Clock, Finding, Note, Profile, Resource, Snapshot, Standing, Summary, Version,
};

use crate::clock::{Bridged, LeaseClock};
use crate::coord::{
    Barrier, Condition, Election, Flights, Latch, MultiLock, RateLimit, Segmented, SingleFlight, Versioned,
};
use crate::engine::{Engine, Tuning};
use crate::error::{Error, Result};
use crate::lock::{Lock, Mutex, RwLock, Semaphore, ask_back, kind};
use crate::open::open_backend;
use crate::witness::{Telling, Witness};

/// A client of one lock store. Clones share one engine: one connection, one watchdog, one line per resource.
///
/// # Promises
/// However many tasks of this client wait for a resource, one claim stands on the server. All leases are renewed
/// by one watchdog, in batches.
///
/// # Runtime
/// The client belongs to the tokio runtime that it is opened in, which needs its timers enabled: there it renews leases, asks the
/// store and gives locks back. Its futures may be polled by any executor, for as long as that runtime is driven. Where the runtime
/// ends, the client is closed: every call fails with `Closed`, and what is held is lost. A `current_thread` runtime is driven
/// only inside of `block_on`: between two of them nothing is renewed, and no call of the client goes on. [`Guard::check`],
/// [`Guard::lost`] and [`Guard::run`](crate::Guard::run) tell of a loss by the clock all the same.
///
/// A panic of a witness, of a `tracing` subscriber, of the clock or of the backend ends that one call. If the task that renews
/// leases ends all the same, everything held is lost, with [`LossCause::RenewalEnded`](crate::LossCause::RenewalEnded), and the
/// client is closed.
///
/// A process that is forked off holds nothing of its parent's: there the client is closed, and neither renews nor releases, and
/// what it has of the store is left as it was copied, also where it is dropped. Use it in one of the two only: their connections are
/// the same. A child that drives its copy of the runtime takes events of sockets from its parent, whose locks may then be lost by
/// time. Where a store watches a process or a connection, what a dead parent held stays until its child has ended, too.
///
/// # Does not promise
/// Dropping the client does not wait for anything. What is still being given back goes on in the background as
/// long as the runtime lives; use [`Leasehold::close`] to wait for it.
///
/// [`Guard::check`]: crate::Guard::check
/// [`Guard::lost`]: crate::Guard::lost
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::Leasehold;
/// use std::time::Duration;
///
/// let locks = Leasehold::open("mem:").await?;
/// let guard = locks.mutex("orders/42").lock().await?;
/// let seen = locks.inspect("orders/42").await?;
/// assert_eq!(seen.holders[0].fence, guard.fence());
/// assert!(locks.close(Duration::from_secs(5)).await); // all that was held is given back
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Leasehold {
    engine: Arc<Engine>,
    note: Note,
    flights: Arc<Flights>,
}

/// Settings of a client, before it is opened.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::{Leasehold, Note, Tuning};
///
/// let tuning = Tuning { handover_count: 1, ..Tuning::default() }; // other processes after each task
/// let locks = Leasehold::builder().tuning(tuning).note(Note::new("billing, blue")?).open("mem:").await?;
/// let _guard = locks.mutex("orders/42").lock().await?;
/// assert_eq!(locks.inspect("orders/42").await?.holders[0].note.as_str(), "billing, blue");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Builder {
    tuning: Tuning,
    note: Option<Note>,
    clock: Option<Arc<dyn Clock>>,
    witness: Option<Arc<dyn Witness>>,
}

impl Leasehold {
    /// Opens the store that `url` names.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `mem:` | this client's memory; `mem:name` is shared by all clients of the process |
    /// | `file:` or `file:/a/directory` | files, for all processes of one machine |
    /// | `redis://host:6379`, `rediss://…`, `redis+unix:///a/socket` | a Redis or Valkey server |
    /// | `redis+sentinel://h1,h2,h3/name`, `rediss+sentinel://…` | whatever primary Redis Sentinel elects |
    /// | `redis+cluster://h1,h2,h3`, `rediss+cluster://…` | a Redis or Valkey cluster |
    /// | `redlock://h1,h2,h3`, `redlocks://…` | a majority of independent Redis or Valkey servers |
    /// | `etcd://host:2379,host:2379`, `etcds://…` (feature `etcd`) | an etcd cluster |
    /// | `zk://host:2181,host:2181`, `zks://…` (feature `zookeeper`) | a ZooKeeper ensemble |
    /// | `postgres://user@host/database` (feature `postgres`) | a PostgreSQL database |
    /// | `mysql://user@host/database` (feature `mysql`) | a MySQL or MariaDB database |
    /// | `sqlite:/a/file.db` (feature `sqlite`) | a database file, for all processes of one machine |
    /// | `memcached://host:11211`, `memcacheds://…` (feature `memcached`) | memcached servers |
    ///
    /// # Errors
    /// `Invalid` where the URL cannot be understood, `Unavailable` where the server does not answer, `Denied`
    /// where it refuses the credentials. Passwords are never part of the text.
    pub async fn open(url: &str) -> Result<Leasehold> {
        Leasehold::builder().open(url).await
    }

    /// Settings for a client that is opened afterwards.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// What this connection promises.
    pub fn profile(&self) -> &Profile {
        self.engine.profile()
    }

    /// The backend, for those who know which it is.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        self.engine.backend()
    }

    /// Everything that the backend has to say of its server.
    pub(crate) async fn findings(&self, ttl: Duration) -> Result<Vec<Finding>> {
        let backend = self.backend().clone();
        let found = self.engine.peek(async move { Ok(backend.examine(ttl).await) }).await;
        found.map_err(|failure| Error::failed("examine", failure))
    }

    #[cfg(leasehold_sim)]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.engine.clock()
    }

    /// A lock for one holder at a time.
    pub fn mutex(&self, name: &str) -> Mutex {
        self.lock(name, kind::Exclusive)
    }

    /// A lock for many readers or one writer.
    pub fn rwlock(&self, name: &str) -> RwLock {
        self.lock(name, kind::Shared)
    }

    /// A lock for up to `permits` holders at a time.
    ///
    /// All who use one name should say the same number; where they differ, the smallest among those that
    /// hold or wait counts.
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        self.lock(name, kind::Counted { permits })
    }

    /// Several mutexes as one: all of them, or none. Locks of other kinds, and of other stores, are added by
    /// [`MultiLock::and`].
    pub fn lock_all(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> MultiLock {
        names.into_iter().fold(MultiLock::new(), |all, name| all.and(self.mutex(name.as_ref())))
    }

    /// A lock cut into `count` segments, 1 to 65,536.
    pub fn segmented(&self, name: &str, count: u32) -> Segmented {
        Segmented::new(name, count, |segment| self.mutex(segment))
    }

    /// An election: one of many leads, and all know who.
    pub fn election(&self, name: &str) -> Election {
        Election::new(self.mutex(name), self.rwlock(&Election::board_of(name)))
    }

    /// A value that whoever saw it last may change.
    pub fn versioned(&self, name: &str) -> Versioned {
        Versioned::new(self.engine.clone(), name, self.mutex(&Versioned::gate_of(name)))
    }

    /// A place to wait under a lock until somebody notifies.
    pub fn condition(&self, name: &str) -> Condition {
        Condition::new(self.engine.clone(), name, self.rwlock(&Condition::signs_of(name)))
    }

    /// What opens, for all and for good, when it was counted down `count` times.
    pub fn latch(&self, name: &str, count: u32) -> Latch {
        Latch::new(self.engine.clone(), name, count)
    }

    /// Where `parties` wait for each other, again and again.
    pub fn barrier(&self, name: &str, parties: u32) -> Barrier {
        Barrier::new(self.engine.clone(), name, parties, self.rwlock(&Barrier::signs_of(name)))
    }

    /// Up to `count` permits in any `period`.
    pub fn rate_limit(&self, name: &str, count: u32, period: Duration) -> RateLimit {
        let permits = self.semaphore(&RateLimit::permits_of(name), count);
        RateLimit::new(self.engine.clone(), permits, period, count)
    }

    /// A value that one loads for all who want it.
    pub fn single_flight(&self, key: &str) -> SingleFlight {
        let turn = self.mutex(&SingleFlight::turn_of(key));
        SingleFlight::new(self.engine.clone(), self.flights.clone(), key, turn)
    }

    fn lock<K>(&self, name: &str, kind: K) -> Lock<K> {
        Lock::new(self.engine.clone(), name, kind, self.note.clone())
    }

    /// Who holds a resource, and who waits for it.
    ///
    /// # Errors
    /// `Invalid` for a name that no resource can have; else as the server failed.
    pub async fn inspect(&self, name: &str) -> Result<Snapshot> {
        let resource = Resource::new(name).map_err(|error| Error::from(error).with_op("inspect"))?;
        self.engine.look(&resource, None, Duration::ZERO).await
    }

    /// Waits up to `limit` until a resource is in another state than `seen`, and tells how it stands then.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Leasehold::inspect`].
    pub async fn changed(&self, name: &str, seen: &Version, limit: Duration) -> Result<Snapshot> {
        let resource = Resource::new(name).map_err(|error| Error::from(error).with_op("inspect"))?;
        self.engine.look(&resource, Some(seen), limit).await
    }

    /// Up to `limit` resources that are held or waited for and whose names begin with `prefix`, in the order of
    /// their names, beginning behind `after`.
    ///
    /// # Errors
    /// As the server failed.
    pub async fn list(&self, prefix: &str, after: Option<&Resource>, limit: usize) -> Result<Vec<Summary>> {
        let (backend, prefix, after) = (self.backend().clone(), prefix.to_owned(), after.cloned());
        let listed =
            self.engine.peek(async move { backend.list(&prefix, after.as_ref(), limit).await }).await;
        listed.map_err(|failure| Error::failed("list", failure))
    }

    /// Who waits for each other so that none of them can ever go on: two looks at the store, a quarter of a second apart,
    /// have to find the same.
    ///
    /// # Promises
    /// As [`Lock::detect_deadlocks`]: no false alarm. Nothing on the store is changed.
    ///
    /// # Does not promise
    /// To see more than those waits that say [`Lock::detect_deadlocks`]. Of those who wait behind a deadlock, and of a
    /// deadlock that waits for another one, it tells nothing.
    ///
    /// # Errors
    /// `Unsupported` where the store does not show whole notes; nothing is sent. Else as the server failed.
    pub async fn deadlocks(&self) -> Result<Vec<Deadlock>> {
        self.engine.deadlocks().await
    }

    /// Ends somebody else's claim, as seen in a [`Snapshot`]. For operators.
    ///
    /// # Promises
    /// It ends this claim and no other that came in its place. Where a connection keeps what it holds, that connection is
    /// ended, and with it all else that it holds: the answer names it.
    ///
    /// # Does not promise
    /// The holder learns of it at its next renewal, a third of its ttl later at most, or at the next sign of life of a
    /// connection; until then both it and its successor act. Only a fenced resource tells them apart.
    ///
    /// # Errors
    /// `Denied` where this user may not do it, `Unsupported` where nobody can by way of this store. Else as the server
    /// failed; it may have happened where the error says so.
    pub async fn break_claim(&self, name: &str, standing: &Standing) -> Result<Broken> {
        let resource = Resource::new(name).map_err(|error| Error::from(error).with_op("break"))?;
        let claim = Claim {
            id: standing.id,
            resource: resource.clone(),
            share: standing.share,
            ttl: Duration::ZERO,
            note: Note::default(),
        };
        let backend = self.backend().clone();
        let broken = self.engine.call(async move { backend.break_claim(&claim).await }).await;
        broken.map_err(|failure| Error::failed("break", failure).on(&resource))
    }

    /// Asks all who hold a lock to let go, for a reason of up to 256 bytes, and tells who was asked; nobody, where nobody holds it.
    ///
    /// A holder that [listens](crate::Guard::revoked) hears of it, and decides what to do. For force see
    /// [`Leasehold::break_claim`].
    ///
    /// # Promises
    /// When it comes back the request stands in the store: a holder hears of it even if whoever asked is gone. It is
    /// meant for those who hold now; who gets the lock later is not asked. Made again, it is one request.
    ///
    /// # Does not promise
    /// That anybody listens, or lets go. Watch the lock with [`Leasehold::changed`], or just wait for it.
    ///
    /// # Cancel safety
    /// Of a dropped future the request is made or not.
    ///
    /// # Errors
    /// `Unsupported` where the store keeps no values beside its locks, `Invalid` for a reason or a name that is too long, or for more
    /// holders than the store can note at once. Else as the server failed.
    pub async fn revoke(&self, name: &str, reason: &str) -> Result<Vec<Standing>> {
        let resource = Resource::new(name).map_err(|error| Error::from(error).with_op("revoke"))?;
        ask_back(&self.engine, &resource, reason).await
    }

    /// Ends every wait with `Closed`, marks everything held as lost and gives it back, and waits up to `limit`
    /// for the server's answers. `true` where all were answered; a server that hung before, and answers from now on, is asked
    /// anew, so its earlier silence makes no difference. What was given up before without an answer does not count: that ends
    /// with its lease. What is granted meanwhile is given back as well, and its caller
    /// gets `Closed`.
    ///
    /// # Cancel safety
    /// A dropped future stops the waiting only; the client is closed all the same.
    pub async fn close(&self, limit: Duration) -> bool {
        self.engine.close(limit).await
    }
}

impl Builder {
    /// What inspectors see of every claim of this client, unless a lock says otherwise.
    ///
    /// The host name, the process id and the program's name unless set.
    #[must_use]
    pub fn note(mut self, note: Note) -> Self {
        self.note = Some(note);
        self
    }

    /// How the engine behaves.
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// The clock that leases are measured by; for simulation. It must run as the tokio timers do: [`TokioClock`](crate::TokioClock)
    /// does.
    ///
    /// Unless set it is the clock of this machine, which counts suspend; where a test pauses the time of its runtime, leases end
    /// by the time of the runtime as soon as that is ahead.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Tells `witness` what happens to the locks of this client: times, losses, waits.
    ///
    /// Without one nothing is measured. [`layer::Metrics`](crate::layer) is one, for the facade of the `metrics` crate.
    #[must_use]
    pub fn witness(mut self, witness: Arc<dyn Witness>) -> Self {
        self.witness = Some(witness);
        self
    }

    /// Opens the store that `url` names.
    ///
    /// # Errors
    /// As [`Leasehold::open`].
    pub async fn open(self, url: &str) -> Result<Leasehold> {
        let backend = open_backend(url).await?;
        self.over(backend)
    }

    /// Uses a backend that was made elsewhere. It must be called inside a tokio runtime.
    ///
    /// # Errors
    /// `Invalid` where a setting is out of its range, or there is no runtime, or one without timers.
    pub fn over(self, backend: Arc<dyn Backend>) -> Result<Leasehold> {
        let clock: Arc<dyn Clock> = match self.clock {
            Some(clock) => Arc::new(Bridged::over(clock)),
            None => Arc::new(LeaseClock::new()),
        };
        let engine = Engine::start(backend, clock, self.tuning, Telling::to(self.witness))?;
        let note = self.note.unwrap_or_else(own_note);
        Ok(Leasehold { engine, note, flights: Arc::default() })
    }
}

/// Who this process is, for those who look.
fn own_note() -> Note {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let program = std::env::args_os().next().map(|path| {
        let path = std::path::PathBuf::from(path);
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    });
    Note::clipped(&format!("host={host} pid={} cmd={}", std::process::id(), program.unwrap_or_default()))
}
