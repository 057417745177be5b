//! The client of one store, and the factory of all locks on it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::deadlock::Deadlock;
use leasehold_core::{
    Backend, BreakOutcome, Claim, ClaimInfo, Clock, Finding, Note, Profile, Resource, ResourceSummary,
    Snapshot, SnapshotVersion,
};

use crate::clock::{Bridged, default_clock};
use crate::coord::{
    Barrier, Condition, Election, Flights, Latch, MultiLock, RateLimit, SingleFlight, StripedMutex, Versioned,
};
use crate::engine::{Engine, Snapshots, Tuning, snapshots};
use crate::error::{Error, ErrorKind, Result, resource_for};
use crate::events::{EventSink, EventSubscriber};
use crate::lock::{Lock, Mutex, RwLock, Semaphore, kind, request_release};
use crate::open::open_backend;

/// A client of one lock store. Clones share one engine: the connections to the store (the page of the store says how
/// many), one task that renews all leases, and one local queue per resource.
///
/// # Promises
/// Tasks of this client that wait for one resource share a claim on the server. Leases are renewed in batches.
///
/// # Runtime
/// The client belongs to the tokio runtime in which it is opened, and this runtime needs its timers
/// enabled: there the client renews leases, sends requests to the store and releases locks. A store with a
/// server needs its I/O, too: build the runtime with `enable_all`. Any executor can poll the futures of the
/// client, as long as that runtime is driven. When the runtime ends, the client is closed: every call fails
/// with `Closed`, and all held locks are lost.
///
/// A `current_thread` runtime is driven only while a thread is inside `block_on`. Between two calls of
/// `block_on` no lease is renewed, and no call of the client that asks a server makes progress. An uncontended
/// lock in memory, on files or on SQLite needs no server, and is granted to any thread. Even then
/// [`Guard::check`], [`Guard::lost`] and [`Guard::run`](crate::Guard::run) report a loss, by the clock.
///
/// A panic of an event subscriber, of a `tracing` subscriber, of the clock or of the backend ends only
/// the call in which it happens. If the task that renews leases ends nevertheless, all held locks are
/// lost, with [`LossCause::RenewalEnded`](crate::LossCause::RenewalEnded), and the client is closed.
///
/// A forked process holds none of the locks of its parent. In the child the client is closed, and
/// neither renews nor releases. Its copies of connections and files stay open, even when the client is
/// dropped, because they belong to the parent. Use the client in one of the two processes only: both
/// share the same connections. A child that drives its copy of the runtime takes socket events from its
/// parent, whose leases can then expire. On a store that watches a process or a connection, the locks of
/// a dead parent stay until its child has ended, too.
///
/// # Does not promise
/// Dropping the client does not wait for anything. Pending releases continue in the background as long
/// as the runtime lives; use [`Client::close`] to wait for them.
///
/// [`Guard::check`]: crate::Guard::check
/// [`Guard::lost`]: crate::Guard::lost
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::Client;
/// use std::time::Duration;
///
/// let locks = Client::open("mem:").await?;
/// let guard = locks.mutex("orders/42").lock().await?;
/// let seen = locks.inspect("orders/42").await?;
/// assert_eq!(seen.holders[0].fence, guard.fence());
/// assert!(locks.close(Duration::from_secs(5)).await); // everything held is released
/// # drop(guard);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    engine: Arc<Engine>,
    note: Note,
    flights: Arc<Flights>,
}

/// The settings of a client, before it is opened.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::{Client, Note, Tuning};
///
/// let tuning = Tuning::default().local_handoff_limit(1); // other processes after each task
/// let locks = Client::builder().tuning(tuning).note(Note::new("billing, blue")?).open("mem:").await?;
/// let _guard = locks.mutex("orders/42").lock().await?;
/// assert_eq!(locks.inspect("orders/42").await?.holders[0].note.as_str(), "billing, blue");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct ClientBuilder {
    tuning: Tuning,
    note: Option<Note>,
    clock: Option<Arc<dyn Clock>>,
    subscriber: Option<Arc<dyn EventSubscriber>>,
}

impl Client {
    /// Opens the store that `url` names.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `mem:` | this client's memory; `mem:name` is shared by the clients of the process that are open together |
    /// | `file:` | files of this user, for this user's processes on one machine |
    /// | `file:/a/directory` | files in that directory, for all processes of one machine that may write there |
    /// | `redis://host:6379`, `rediss://…`, `redis+unix:///a/socket` | a Redis or Valkey server; with TLS it needs the feature `redis-tls` |
    /// | `redis+sentinel://h1,h2,h3/name`, `rediss+sentinel://…` | the primary that Redis Sentinel elects |
    /// | `redis+cluster://h1,h2,h3`, `rediss+cluster://…` | a Redis or Valkey cluster |
    /// | `redlock://h1,h2,h3`, `redlocks://…` | a majority of independent Redis or Valkey servers |
    /// | `etcd://host:2379,host:2379`, `etcds://…` (feature `etcd`) | an etcd cluster |
    /// | `zk://host:2181,host:2181`, `zks://…` (feature `zookeeper`) | a ZooKeeper ensemble |
    /// | `postgres://user@host/database` (feature `postgres`) | a PostgreSQL database |
    /// | `mysql://user@host/database` (feature `mysql`) | a MySQL or MariaDB database |
    /// | `sqlite:/a/file.db` (feature `sqlite`) | a database file, for all processes of one machine |
    /// | `memcached://host:11211`, `memcacheds://…` (feature `memcached`) | memcached servers |
    ///
    /// # Cancel safety
    /// Dropping the future affects no lock. What opening creates, such as tables, a directory or the epoch of new
    /// servers of a `redlock:`, may or may not exist.
    ///
    /// # Errors
    /// `Invalid` if the URL cannot be parsed, if the feature of its scheme is not enabled, outside a tokio runtime, or
    /// if the runtime has no timers; `Unavailable` if the server does not answer; `Denied` if it refuses the
    /// credentials; `Unsupported` if the store cannot keep locks, such as files on a network file system. Passwords
    /// are never part of the text.
    pub async fn open(url: &str) -> Result<Client> {
        Client::builder().open(url).await
    }

    /// Returns the default settings of a client, which can be changed before it is opened.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Returns the promises of this connection.
    pub fn profile(&self) -> &Profile {
        self.engine.profile()
    }

    /// Returns the backend, for callers that know its type.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        self.engine.backend()
    }

    /// Returns everything that the backend reports about its server.
    pub(crate) async fn findings(&self, ttl: Duration) -> Result<Vec<Finding>> {
        let backend = self.backend().clone();
        let questions = self.engine.run_read(async move { Ok(backend.diagnose(ttl).await) });
        tokio::select! {
            biased;
            found = questions => found.map_err(|failure| Error::failed("diagnose", failure)),
            is_open = self.engine.sleep(DIAGNOSE_LIMIT) => Err(if is_open {
                let text = format!("the server did not answer all questions within {DIAGNOSE_LIMIT:?}");
                Error::new(ErrorKind::Unavailable, "diagnose", text)
            } else {
                Error::closed("diagnose")
            }),
        }
    }

    #[cfg(any(test, leasehold_sim))]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.engine.clock()
    }

    /// Returns a lock for one holder at a time.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        self.lock(name.as_ref(), kind::Exclusive)
    }

    /// Returns a lock for many readers or one writer.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        self.lock(name.as_ref(), kind::Shared)
    }

    /// Returns a lock for up to `permits` holders at a time.
    ///
    /// All users of one name should give the same number. If the numbers differ, the smallest among
    /// the holders, the waiters ahead and the request itself counts.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        self.lock(name.as_ref(), kind::Counted { permits })
    }

    /// Combines several mutexes into one: all of them are acquired, or none. [`MultiLock::and`] adds
    /// locks of other kinds and of other stores.
    pub fn lock_all(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> MultiLock {
        names.into_iter().fold(MultiLock::new(), |all, name| all.and(self.mutex(name)))
    }

    /// Returns a lock that is divided into `count` stripes, 1 to 65,536.
    pub fn striped_mutex(&self, name: impl AsRef<str>, count: u32) -> StripedMutex {
        StripedMutex::new(name.as_ref(), count, |stripe| self.mutex(stripe))
    }

    /// Returns an election: one of many candidates leads, and all can see which one. Its name has up to 501 bytes.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        let name = name.as_ref();
        Election::new(self.mutex(name), self.rwlock(Election::value_lock_name(name)))
    }

    /// Returns a compare-and-set value. Its name has up to 503 bytes.
    pub fn versioned(&self, name: impl AsRef<str>) -> Versioned {
        let name = name.as_ref();
        Versioned::new(self.engine.clone(), name, self.mutex(Versioned::gate_name(name)))
    }

    /// Returns a condition: tasks wait for it under a lock until another task notifies.
    pub fn condition(&self, name: impl AsRef<str>) -> Condition {
        let name = name.as_ref();
        Condition::new(self.engine.clone(), name, self.rwlock(Condition::liveness_name(name)))
    }

    /// Returns a one-shot latch that opens for good after `count` count-downs.
    pub fn latch(&self, name: impl AsRef<str>, count: u32) -> Latch {
        Latch::new(self.engine.clone(), name.as_ref(), count)
    }

    /// Returns a reusable barrier for `parties` participants.
    pub fn barrier(&self, name: impl AsRef<str>, parties: u32) -> Barrier {
        let name = name.as_ref();
        Barrier::new(self.engine.clone(), name, parties, self.rwlock(Barrier::liveness_name(name)))
    }

    /// Returns a rate limit of up to `count` permits in any `period`.
    pub fn rate_limit(&self, name: impl AsRef<str>, count: u32, period: Duration) -> RateLimit {
        let permits = self.semaphore(RateLimit::permits_name(name.as_ref()), count);
        RateLimit::new(self.engine.clone(), permits, period, count)
    }

    /// Returns a value that one caller loads for all callers that want it.
    pub fn single_flight(&self, key: impl AsRef<str>) -> SingleFlight {
        let key = key.as_ref();
        let turn = self.mutex(SingleFlight::turn_name(key));
        SingleFlight::new(self.engine.clone(), self.flights.clone(), key, turn)
    }

    fn lock<K: kind::Kind>(&self, name: &str, kind: K) -> Lock<K> {
        Lock::new(self.engine.clone(), name, kind, self.note.clone())
    }

    /// Returns the holders of a resource and its waiters.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Invalid` if no resource can have this name; otherwise the failure of the server.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Snapshot> {
        let resource = resource_for("inspect", name.as_ref())?;
        self.engine.inspect(&resource, None, Duration::ZERO).await
    }

    /// Returns a stream of the states of a resource: first the current state, and then each state that differs
    /// from the one before. If states follow each other quickly, the stream can skip some of them.
    ///
    /// The stream begins a request when it is polled. The request waits up to 30 s for a change, and its answer is
    /// the next item. If the stream is polled again only much later, that item is as old as the answer.
    ///
    /// If a request fails, the item is one of the errors of [`Client::inspect`]. The stream ends after `Invalid`
    /// or `Closed`. After any other error it continues, with a new request one second later.
    ///
    /// # Cancel safety
    /// Dropping the stream, or the future of an item, loses nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use futures_util::StreamExt;
    ///
    /// let locks = leasehold::Client::open("mem:").await?;
    /// let mut states = locks.watch("report");
    /// assert!(states.next().await.unwrap()?.holders.is_empty());
    /// let guard = locks.mutex("report").lock().await?;
    /// assert_eq!(states.next().await.unwrap()?.holders.len(), 1);
    /// # guard.release().await
    /// # }
    /// ```
    pub fn watch(&self, name: impl AsRef<str>) -> Snapshots {
        snapshots(self.engine.clone(), name.as_ref())
    }

    /// Waits up to `limit` until the state of a resource differs from `seen`, and returns its state at
    /// that time.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Client::inspect`], and `Closed` if the client is closed meanwhile.
    pub async fn changed(
        &self,
        name: impl AsRef<str>,
        seen: &SnapshotVersion,
        limit: Duration,
    ) -> Result<Snapshot> {
        let resource = resource_for("inspect", name.as_ref())?;
        self.engine.inspect(&resource, Some(seen), limit).await
    }

    /// Lists up to `limit` resources that are held or waited for and whose names begin with `prefix`,
    /// ordered by name, starting after `after`.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// The failure of the server.
    pub async fn list(
        &self,
        prefix: impl AsRef<str>,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>> {
        let (backend, prefix, after) = (self.backend().clone(), prefix.as_ref().to_owned(), after.cloned());
        let listed =
            self.engine.run_read(async move { backend.list(&prefix, after.as_ref(), limit).await }).await;
        listed.map_err(|failure| Error::failed("list", failure))
    }

    /// Finds the waiters that wait for each other in a circle, so that none of them can ever continue.
    /// Reads the store twice, a quarter of a second apart, and reports a circle only if both reads find it.
    ///
    /// # Promises
    /// As [`Lock::detect_deadlocks`]: no false alarms. The call changes nothing in the store.
    ///
    /// # Does not promise
    /// Only announced waits are seen: those with [`Lock::detect_deadlocks`] or [`Lock::announce_wait`]. Claims
    /// that wait behind a deadlock, and a deadlock that waits for another one, are not reported.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Unsupported` if the store does not show whole notes; nothing is sent. Otherwise the
    /// failure of the server.
    pub async fn deadlocks(&self) -> Result<Vec<Deadlock>> {
        self.engine.deadlocks().await
    }

    /// Ends a claim of another client, as seen in a [`Snapshot`]. For operators.
    ///
    /// # Promises
    /// Only this claim ends, never another one that came in its place. If a connection keeps the claim
    /// alive, that connection is closed, and the other locks that it holds end as well: the answer names
    /// them.
    ///
    /// # Does not promise
    /// The holder sees the loss at its next renewal, at most a third of its ttl later, or at the next
    /// sign of life of a connection. Until then both the holder and its successor can act. Only a fenced
    /// resource distinguishes them.
    ///
    /// # Cancel safety
    /// The claim is ended even if the future is dropped; only the answer is lost.
    ///
    /// # Errors
    /// `Denied` if this user has no right to do it, `Unsupported` if this store offers no way to do it.
    /// Otherwise the failure of the server; the error says if the claim may have ended.
    pub async fn break_claim(&self, name: impl AsRef<str>, claim: &ClaimInfo) -> Result<BreakOutcome> {
        let resource = resource_for("break", name.as_ref())?;
        let claim = Claim::new(claim.id, resource.clone(), claim.share, Duration::ZERO);
        let backend = self.backend().clone();
        let broken = self.engine.run_write(async move { backend.break_claim(&claim).await }).await;
        broken.map_err(|failure| Error::failed("break", failure).on(&resource))
    }

    /// Asks all holders of a lock to release it, for a reason of up to 256 bytes, and returns the
    /// holders that were asked: none if the lock is free.
    ///
    /// A holder that [listens](crate::Guard::revoked) sees the request, and decides what to do. To end
    /// a claim by force see [`Client::break_claim`].
    ///
    /// # Promises
    /// When the call returns, the request is stored: a holder that listens sees it even if the caller has ended. The
    /// request is for the present holders, not for later ones. Repeating the call does not make a second
    /// request.
    ///
    /// # Does not promise
    /// A holder need not listen, and need not release the lock. Watch the lock with [`Client::changed`],
    /// or just wait for it. A store that removes values by itself keeps a request for a day: repeat it for a
    /// holder that has not listened by then.
    ///
    /// # Cancel safety
    /// If the future is dropped, it is not known whether the request was stored.
    ///
    /// # Errors
    /// `Unsupported` if the store keeps no values beside its locks, `Invalid` if the reason or
    /// the name is too long, or if there are more holders than the store can record at once.
    /// Otherwise the failure of the server.
    pub async fn revoke(&self, name: impl AsRef<str>, reason: &str) -> Result<Vec<ClaimInfo>> {
        let resource = resource_for("revoke", name.as_ref())?;
        request_release(&self.engine, &resource, |_| true, reason).await
    }

    /// Asks those holders of a lock to release it that were seen in a [`Snapshot`], and returns the holders that were
    /// asked: none if the lock is free, or has other holders by now.
    ///
    /// Everything else is as with [`Client::revoke`], which asks all holders of the moment.
    ///
    /// # Cancel safety
    /// As [`Client::revoke`].
    ///
    /// # Errors
    /// As [`Client::revoke`].
    pub async fn revoke_claims(
        &self,
        name: impl AsRef<str>,
        claims: &[ClaimInfo],
        reason: &str,
    ) -> Result<Vec<ClaimInfo>> {
        let resource = resource_for("revoke", name.as_ref())?;
        let is_meant = |holder: &ClaimInfo| claims.iter().any(|claim| claim.id == holder.id);
        request_release(&self.engine, &resource, is_meant, reason).await
    }

    /// Closes the client: ends every wait with `Closed`, and marks all held locks as lost and releases
    /// them. Waits up to `limit` for the answers of the server, and returns `true` if it answered all
    /// releases.
    ///
    /// In a fork of the process that opened the client it does nothing.
    ///
    /// A release that is still without an answer is sent at least once more, so a server that has come
    /// back can answer it. A release that the client had given up before does not change the result: that lock
    /// ends with its lease. A lock that is granted meanwhile is released as well, and its caller gets
    /// `Closed`.
    ///
    /// # Cancel safety
    /// Dropping the future ends only the wait; the client is closed nevertheless.
    pub async fn close(&self, limit: Duration) -> bool {
        self.engine.close(limit).await
    }
}

impl ClientBuilder {
    /// Sets the note that observers see on every claim of this client, unless a lock sets its own.
    ///
    /// Default: the host name, the process id and the name of the program.
    #[must_use]
    pub fn note(mut self, note: Note) -> Self {
        self.note = Some(note);
        self
    }

    /// Sets the tuning parameters of the engine.
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Sets the clock that measures leases, for simulation. It must run at the rate of the tokio
    /// timers, as [`TokioClock`](crate::TokioClock) does.
    ///
    /// Default: the clock of this machine, which also counts the time of a suspend. If a test pauses the
    /// time of its runtime, leases end by the clock that is ahead: that of the runtime or of the machine.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the event subscriber, which is notified of the waits, holds and losses of this client's locks.
    ///
    /// Without an event subscriber the client measures nothing. [`layer::Metrics`](crate::layer) is an event
    /// subscriber for the facade of the `metrics` crate.
    #[must_use]
    pub fn subscriber(mut self, subscriber: Arc<dyn EventSubscriber>) -> Self {
        self.subscriber = Some(subscriber);
        self
    }

    /// Opens the store that `url` names.
    ///
    /// # Cancel safety
    /// As [`Client::open`].
    ///
    /// # Errors
    /// As [`Client::open`] and [`ClientBuilder::over`].
    pub async fn open(self, url: &str) -> Result<Client> {
        // A store may need the runtime, too, and must not be asked in vain.
        Engine::runtime_for(&self.tuning)?;
        let backend = open_backend(url).await?;
        self.over(backend)
    }

    /// Uses an existing backend. It must be called inside a tokio runtime.
    ///
    /// # Errors
    /// `Invalid` if a setting is out of its range, outside a runtime, or in a runtime without timers.
    pub fn over(self, backend: Arc<dyn Backend>) -> Result<Client> {
        let clock: Arc<dyn Clock> = match self.clock {
            Some(clock) => Arc::new(Bridged::over(clock)),
            None => default_clock(),
        };
        let engine = Engine::start(backend, clock, self.tuning, EventSink::to(self.subscriber))?;
        let note = self.note.unwrap_or_else(own_note);
        Ok(Client { engine, note, flights: Arc::default() })
    }
}

/// Returns the default note of this process, for observers.
fn own_note() -> Note {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let program = std::env::args_os().next().map(|path| {
        let path = std::path::PathBuf::from(path);
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    });
    Note::clipped(&format!("host={host} pid={} cmd={}", std::process::id(), program.unwrap_or_default()))
}

/// The longest time in which a server answers all questions of [`Client::diagnose`]: they are asked one after the other.
const DIAGNOSE_LIMIT: Duration = Duration::from_secs(30);
