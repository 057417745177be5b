//! The locks: mutex, read-write lock and semaphore, each as a share that one admission rule decides on.

mod control;
#[cfg(test)]
mod fuzz;
mod guard;
mod mutex;
mod reacquire;
mod request;
mod revocation;
mod run;
mod rwlock;
mod semaphore;
mod settings;
mod transfer;
mod upgradable;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Durability, FenceGrade, Note, QueueOrder, Resource, Share, Snapshot, SnapshotVersion};

use crate::engine::{DeadlockCheck, Engine, Owner, Wait, Want};
use crate::error::{Error, Result, none_if_timed_out};

pub use guard::Guard;
pub(crate) use guard::HeldUntilReleased;
pub use mutex::Mutex;
pub use request::LockRequest;
pub use revocation::Revocation;
pub(crate) use revocation::request_release;
pub(crate) use run::while_held;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use transfer::TransferToken;
pub use upgradable::Upgradable;

use settings::Settings;

/// The kinds of a [`Lock`].
pub mod kind {
    use std::fmt::Debug;

    /// A kind of lock. Sealed: these three are all.
    pub trait Kind: sealed::Sealed + Clone + Debug + Send + Sync + 'static {}

    impl Kind for Exclusive {}
    impl Kind for Shared {}
    impl Kind for Counted {}
    // A lock whose kind does not matter any more, inside this crate.
    impl Kind for () {}

    mod sealed {
        pub trait Sealed {}

        impl Sealed for super::Exclusive {}
        impl Sealed for super::Shared {}
        impl Sealed for super::Counted {}
        impl Sealed for () {}
    }

    /// The kind for one holder: see [`Mutex`](crate::Mutex).
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct Exclusive;
    /// The kind for many readers or one writer: see [`RwLock`](crate::RwLock).
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct Shared;
    /// The kind for a number of permits: see [`Semaphore`](crate::Semaphore).
    #[derive(Clone, Copy, Debug)]
    pub struct Counted {
        pub(crate) permits: u32,
    }
}

/// A lock by name, with its settings. Creating and cloning it costs nothing and sends nothing.
///
/// Use it as a [`Mutex`], an [`RwLock`] or a [`Semaphore`].
///
/// # Waiting for oneself
/// A task that requests a lock that it already holds waits like any other task: leasehold cannot know
/// whether another part of the same task is about to release the lock. A warning is logged, at level
/// `warn`, if a tokio runtime drives both requests. To re-enter, use an [`Owner`]; an owner that requests
/// more than it holds gets a `Deadlock` error. [`Lock::detect_deadlocks`] detects circles of waiters, in
/// one process or in several.
#[derive(Clone, Debug)]
pub struct Lock<K: kind::Kind> {
    engine: Arc<Engine>,
    name: Result<Resource>,
    kind: K,
    settings: Settings,
}

impl<K: kind::Kind> Lock<K> {
    /// Returns the engine of the client.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Makes every call on this lock fail with this error.
    pub(crate) fn refusing(self, error: crate::error::Error) -> Self {
        Lock { name: Err(error), ..self }
    }

    pub(crate) fn new(engine: Arc<Engine>, name: &str, kind: K, note: Note) -> Self {
        let settings = Settings::new(engine.profile(), note);
        Lock { engine, name: Resource::new(name).map_err(Error::from), kind, settings }
    }

    /// Sets how long the server keeps the lock after the last sign of life of this process. Default: 30 s.
    ///
    /// This is for recovery from crashes: while the process lives, the lock is renewed in the
    /// background. It does not limit how long a lock may be held, see [`Lock::max_hold`].
    ///
    /// On a store that keeps locks alive by sessions or connections the ttl is not used, and a short ttl
    /// shortens nothing. On ZooKeeper the lock of a killed process becomes free when its session ends, at
    /// most the timeout of the session later (`session` in the URL, 30 s by default). On the other stores
    /// of this kind it becomes free when the server notices the end of the connection.
    /// [`Profile::liveness`](leasehold_core::Profile::liveness) says which stores these are, and
    /// [`Lock::effective_ttl`] returns the time that counts there. If such a time exists, the first acquisition
    /// of a client whose ttl was set to another value logs a warning, at level `warn`.
    ///
    /// On files the holder checks every third of the ttl that its claim still exists.
    ///
    /// # Errors
    /// When the lock is acquired: `Invalid` if the ttl is outside the limits of the store (those of
    /// [`Profile::liveness`](leasehold_core::Profile::liveness)), is shorter than 20 ms, or leaves less than a tenth
    /// of itself after the drift and the coarseness of the server's clock are subtracted. Nothing is sent then.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self.settings.is_ttl_set = true;
        self
    }

    /// Returns the time for which a holder relies on the lock, counted from the request of its last
    /// confirmed renewal, before the drift between the two clocks is subtracted. Sends nothing.
    ///
    /// On a store with leases this is the value of [`Lock::ttl`]. On a store that ends sessions after a
    /// time of silence it comes from the store or its URL, independent of the ttl. `None` if only the end of
    /// the process ends the lock, as on files.
    ///
    /// The store can keep the lock of a killed process for longer: on ZooKeeper until the session ends,
    /// which is about twice this time.
    pub fn effective_ttl(&self) -> Option<Duration> {
        self.engine.profile().liveness.valid_for(self.settings.ttl)
    }

    /// Returns the value of [`Lock::ttl`].
    pub(crate) fn requested_ttl(&self) -> Duration {
        self.settings.ttl
    }

    /// Returns the value of [`Lock::min_hold`].
    pub(crate) fn min_hold_time(&self) -> Duration {
        self.settings.guard.min_hold
    }

    /// Makes the claims of this lock last longer than those of `other` after the last sign of life.
    pub(crate) fn outliving<L: kind::Kind>(mut self, other: &Lock<L>) -> Self {
        self.settings.outlive(&other.settings, &self.engine);
        self
    }

    /// Sets the maximum time to hold the lock; no limit by default. At its end the lock counts as lost.
    ///
    /// # Errors
    /// When the lock is acquired: `Invalid` for zero.
    #[must_use]
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.settings.guard.max_hold = Some(limit);
        self
    }

    /// Sets the maximum time to hold the lock, unless the user has set one.
    pub(crate) fn max_hold_unless_set(mut self, limit: Duration) -> Self {
        self.settings.guard.max_hold.get_or_insert(limit);
        self
    }

    /// Sets the minimum time to hold the lock; none by default. A lock that is released earlier is kept
    /// until that time is over.
    ///
    /// This is for jobs that several machines start by their clocks: a machine whose clock is a little
    /// behind must still find the lock held. [`Guard::release`] waits for the end of that time. Dropping
    /// the guard does not wait, and the lock is then released in the background. A client that is closed
    /// releases the lock at once, and a process that ends leaves it to its ttl. Where a session keeps the lock
    /// instead of a lease, it ends with the session: at once on files and where a connection holds the lock, on
    /// ZooKeeper after the session's timeout.
    #[must_use]
    pub fn min_hold(mut self, time: Duration) -> Self {
        self.settings.guard.min_hold = time;
        self
    }

    /// Sets the lock delay (`lock-delay` in Consul): the time after a loss for which no client is granted
    /// the lock. None by default.
    ///
    /// This is for resources that do not check fences: writes that a holder sent before it lost the lock
    /// get this time to arrive, or to be given up, before its successor begins. After a proper release
    /// the next holder is granted the lock at once.
    ///
    /// # Promises
    /// After the validity of the lock ends, by the clock of this process, the store keeps the lock for at
    /// least `time`, less the drift between the two clocks, even if this process is killed. The client
    /// requests a lease of `ttl` plus `time` from the store, and the holder relies on `ttl` only.
    ///
    /// # Does not promise
    /// The lock need not be free as soon as `time` is over: the store keeps it for `ttl` plus `time` after
    /// the last renewal. If an operator breaks the claim, or the store loses it, the lock is free at once.
    /// A client that is closed releases all its locks properly. Each holder has its own setting, so all
    /// users of one lock should set the same time.
    ///
    /// # Errors
    /// When the lock is acquired: `Unsupported` on a store that keeps locks alive by sessions or
    /// connections, since these end without the delay: on ZooKeeper at most the timeout of the session
    /// after the process, elsewhere as soon as the server notices that the connection has ended.
    /// `Invalid` if `ttl` plus `time` is longer than the longest ttl of the store.
    #[must_use]
    pub fn lock_delay(mut self, time: Duration) -> Self {
        self.settings.lock_delay = time;
        self
    }

    /// Sets the linger time (lock caching): a lock that is released while nobody waits stays with this process for
    /// up to `time`, and the next acquisition by this process sends nothing. Zero, which is the default, switches
    /// it off.
    ///
    /// This is for a process that locks the same name again and again, while others seldom do. The idea is that of
    /// the lock managers of cluster file systems, in which a node keeps a lock until another node wants it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # use std::time::Duration;
    /// let locks = leasehold::Client::open("mem:").await?;
    /// let index = locks.mutex("index").linger(Duration::from_millis(200));
    /// let first = index.lock().await?;
    /// let fence = first.fence();
    /// first.release().await?; // the store still shows a holder
    /// let second = index.lock().await?; // without a request to the store
    /// assert!(second.fence() > fence);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Promises
    /// - Each acquisition has a greater fence than the one before: its `sub` rises, as at a local hand-off.
    /// - The linger time of a grant starts when the lock is first released, and later uses do not extend it. No task
    ///   gets the lock without the store after that, so another client waits for at most `time`, and the end of a
    ///   use that began before. A waiter of another client ends it sooner on a store that keeps a queue and
    ///   notifies observers of it: at once on etcd, ZooKeeper and in memory, within half a second on Redis and
    ///   PostgreSQL.
    /// - A task of this process waits for nothing: a request that the lock does not meet releases it first. The lock
    ///   meets a request with the same share, ttl, lock delay, linger time and note.
    /// - While the lock is not used, it is renewed. If it is lost then, or a renewal fails, that is reported to
    ///   nobody, and the next acquisition asks the store. [`Client::close`](crate::Client::close) releases it, and so
    ///   does the drop of the last handle of the client, in the background. If the process crashes, or its runtime
    ///   ends before that, it costs others what the crash of a holder does: a ttl at most. So a program that is about
    ///   to end calls `close`, also if it has awaited each release.
    ///
    /// # Does not promise
    /// Others see a lock that nobody uses as held: [`Lock::inspect`] shows it with the note of its last user, and
    /// `try_lock` of another client does not get it. A request to [release it](crate::Client::revoke) is not seen
    /// while nobody uses it. [`Guard::release`] returns without an answer of the store, so it does not find out that
    /// the store has lost the lock. If an operator breaks the lock while it is unused, acquisitions can still
    /// succeed until the next renewal detects that, just as a holder would not see it before. On a store that
    /// keeps no queue, and in whose requests no waiter blocks, no lock lingers: another client could wait for much
    /// longer than `time` there. The limits of [`Tuning`](crate::Tuning) for local hand-offs count
    /// tasks that wait, and not the acquisitions of an unused lock; if they are zero, no lock lingers.
    ///
    /// A lock whose proof was [taken](Guard::proof), or whose release another client has requested, does not linger.
    /// [`Lock::min_hold`] comes first, then the linger time. A guard of
    /// [`upgradable_read`](crate::RwLock::upgradable_read) does not linger, nor does the lock of an
    /// [`Election`](crate::Election), nor one that is released by [`Guard::wait`].
    ///
    /// # Cost
    /// Two tasks and, on a store that notifies, one observer for each grant that lingers, however often it is used
    /// meanwhile. If other clients want the lock often, each of them gets it later than without this setting.
    ///
    /// # Errors
    /// When the lock is acquired: `Invalid` if `time` is longer than the ttl; nothing is sent. `Unavailable` from a
    /// call that does not wait, if the store does not confirm within two seconds the release of what lingers in its
    /// way.
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.settings.guard.linger = time;
        self
    }

    /// Sets the priority among the waiters of this client. Waiters with a higher value are served first,
    /// those with equal values in FIFO order. Default: 0.
    ///
    /// # Does not promise
    /// The priority does not count between processes: a store grants in the order of its own queue, or
    /// in no order, and this client has one place in that queue for all its waiters. A waiter with
    /// a different share, ttl, lock delay, linger time or note does not displace the waiter that has the place, unless
    /// that waiter is blocked by this process itself and the new one is not. If there
    /// are always waiters with a higher priority, those with a lower one never get the lock.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.settings.guard.wait.priority = priority;
        self
    }

    /// Sets the note that others see on the claim, while the claim is held or waits.
    #[must_use]
    pub fn note(mut self, note: Note) -> Self {
        self.settings.note = note;
        self
    }

    /// Acquires on behalf of `owner`. An owner can re-acquire a lock that it already holds.
    #[must_use]
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.settings.guard.owner = Some(owner.clone());
        self
    }

    /// Detects deadlocks: a waiter that has waited for `after` checks whether it would wait for ever.
    /// If owners wait for each other in a circle, one of them gets `Deadlock`, with the locks that are
    /// held and awaited. Off unless set; one second suits most uses.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::{ErrorKind, Client, Owner};
    /// # use std::time::Duration;
    /// # let patient = Duration::from_millis(50);
    /// let locks = Client::open("mem:").await?;
    /// let (ann, ben) = (Owner::new(), Owner::new());
    /// let lock = |name: &str, owner| locks.mutex(name).owner(owner).detect_deadlocks(patient);
    /// let has_ann = lock("from", &ann).lock().await?;
    /// let has_ben = lock("to", &ben).lock().await?;
    /// let ben_waits = async {
    ///     let refused = lock("from", &ben).lock().await;
    ///     drop(has_ben); // so that the other can continue
    ///     refused
    /// };
    /// let ann_waits = async {
    ///     let refused = lock("to", &ann).lock().await;
    ///     drop(has_ann);
    ///     refused
    /// };
    /// let both = tokio::join!(ann_waits, ben_waits);
    /// let refused = both.0.err().or(both.1.err()).unwrap();
    /// assert_eq!(refused.kind(), ErrorKind::Deadlock);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Promises
    /// No false alarm, as long as an owner is one thread of control: an owner that gets `Deadlock`
    /// waits in a circle of owners of which none can continue before another has. Permits and readers
    /// are counted: if other holders can still release enough, it is not a deadlock. On a store that
    /// grants in order, a reader behind a writer waits for everything that the writer waits for.
    ///
    /// One owner of each circle is notified: the last one to begin to wait, as far as that is known. No
    /// lock is taken from its holder; the others continue as soon as that owner releases its locks.
    /// [`Client::deadlocks`](crate::Client::deadlocks) sees the same from outside. A process that
    /// dies leaves the circle when its leases end.
    ///
    /// # Does not promise
    /// Not every deadlock is found. All members of the circle must use this setting or
    /// [`Lock::announce_wait`], on one store: a holder without an owner, or a waiter with neither setting, counts
    /// as one that will continue.
    /// Detection knows up to 16 locks of this client for each owner, and up to 256 waits of a store, or 32
    /// if locks cannot be shared. It ignores the limits of waits, at which a member of the circle, or a
    /// waiter ahead in the queue, would give up.
    ///
    /// # Cost
    /// Nothing for an owner that holds no other lock, or that waits for less than `after`. An owner that
    /// holds and waits takes one more lock, as a reader of `leasehold!waits`, with a note that describes
    /// the wait. It reads the holders of that lock and what they wait for: at once, again after half a
    /// second at least, and later every 2.5 to 5 s. Each time takes one request, and up to two more for each
    /// lock that is waited for in this way. If locks cannot be shared, it takes 32 more, because each wait is
    /// then announced under its own name. When the wait ends, the extra lock is released first: that takes
    /// one round trip, and up to 10 s if the server does not answer, even beyond the limit of the wait. If the
    /// extra lock is still being requested then, the answer to that comes first: it may take as long as a
    /// [`try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// As that of the wait. The announcement is withdrawn in the background; until then the owner
    /// counts as a waiter.
    ///
    /// # Errors
    /// When the lock is acquired: `Deadlock`; the owner still holds its earlier locks, and not this one.
    /// `Lost` if the lock was granted, and lost before the announcement was withdrawn. Before anything is
    /// sent: `Unsupported` if the store may cut off notes, `Invalid` without a [`Lock::owner`]. When the
    /// store is read: `Denied` if it does not let this client hold or see `leasehold!waits`.
    #[must_use]
    pub fn detect_deadlocks(mut self, after: Duration) -> Self {
        self.settings.guard.wait.deadlock_check = Some(DeadlockCheck { after, gives_up: true });
        self
    }

    /// Announces a wait that has lasted for `after`, so that owners that
    /// [detect deadlocks](Lock::detect_deadlocks) and [`Client::deadlocks`](crate::Client::deadlocks) see it.
    /// Off unless set.
    ///
    /// This is for a waiter that must not give up, such as a program that runs another one and cannot decide
    /// for it. If the waiter is part of a deadlock, that is logged at level `warn`, and the wait continues. If
    /// owners in the circle detect deadlocks, one of these gives up.
    ///
    /// This setting and [`Lock::detect_deadlocks`] exclude each other: the last one that is set counts. They
    /// have the same costs, the same limits, and the same errors before anything is sent. If the store
    /// refuses the announcement, that is logged, and the wait continues.
    #[must_use]
    pub fn announce_wait(mut self, after: Duration) -> Self {
        self.settings.guard.wait.deadlock_check = Some(DeadlockCheck { after, gives_up: false });
        self
    }

    /// Requires fences of at least `grade`.
    ///
    /// # Errors
    /// `Unsupported` if this connection does not promise it. Nothing is sent.
    pub fn require_fencing(self, grade: FenceGrade) -> Result<Self> {
        self.engine.profile().fences(grade)?;
        Ok(self)
    }

    /// Requires that waiters are granted the lock in this order.
    ///
    /// # Does not promise
    /// Tasks of one client need not be served in this order. The client has one place at a time in the
    /// queue of the store, for its first waiting task; each other task gets a place when it is first.
    ///
    /// Tasks with the same share, ttl, lock delay, linger time and note take turns under one claim, by local hand-offs
    /// within the limits of [`Tuning`](crate::Tuning). A task that waits for a hand-off has no place of its
    /// own in the queue of the store until these limits are reached.
    ///
    /// A place belongs to the client. If the task for which it was taken stops waiting, the next task with
    /// the same request gets the place. The exception is an earlier task that requests less, if it would be
    /// granted the lock without that place: then the place is given up.
    ///
    /// # Errors
    /// `Unsupported` if this connection does not promise it. Nothing is sent.
    pub fn require_order(self, order: QueueOrder) -> Result<Self> {
        self.engine.profile().orders(order)?;
        Ok(self)
    }

    /// Requires at least this durability of granted locks.
    ///
    /// # Errors
    /// `Unsupported` if this connection does not promise it. Nothing is sent.
    pub fn require_durability(self, durability: Durability) -> Result<Self> {
        self.engine.profile().keeps(durability)?;
        Ok(self)
    }

    /// Returns the holders of this lock and its waiters.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Client::inspect`](crate::Client::inspect).
    pub async fn inspect(&self) -> Result<Snapshot> {
        self.engine.inspect(&self.named("inspect")?, None, Duration::ZERO).await
    }

    /// Waits up to `limit` until the state of the lock differs from `seen`, and returns its state at
    /// that time.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`Client::changed`](crate::Client::changed).
    pub async fn changed(&self, seen: &SnapshotVersion, limit: Duration) -> Result<Snapshot> {
        self.engine.inspect(&self.named("inspect")?, Some(seen), limit).await
    }

    /// Returns the resource, for this operation.
    ///
    /// # Errors
    /// `Invalid` if no resource can have this name.
    pub(crate) fn named(&self, op: &'static str) -> Result<Resource> {
        self.name.clone().map_err(|error| error.with_op(op))
    }

    async fn try_hold(&self, share: Share, wait: Wait) -> Result<Option<Guard>> {
        let want = self.want(share)?;
        let settings = &self.settings.guard;
        let hold = self.engine.acquire(want, settings.owner.as_ref(), wait, settings.wait).await?;
        Ok(hold.map(|hold| Guard::new(hold, settings.clone())))
    }

    /// Builds the request for this share, after everything that can be checked without sending anything is checked.
    fn want(&self, share: Share) -> Result<Want> {
        self.settings.want(&self.engine, self.name.clone()?, share)
    }

    async fn hold(&self, share: Share, wait: Wait) -> Result<Guard> {
        match self.try_hold(share, wait).await? {
            Some(guard) => Ok(guard),
            None => Err(Error::timeout(Duration::ZERO, &self.name.clone()?)),
        }
    }

    /// Waits for up to `limit`; `None` if the lock is not free by then.
    async fn try_hold_for(&self, share: Share, limit: Duration) -> Result<Option<Guard>> {
        none_if_timed_out(self.hold(share, Wait::For(limit)).await)
    }

    /// Returns another lock of the same client, which belongs to this one.
    fn companion<L: kind::Kind>(&self, name: &str, kind: L) -> Lock<L> {
        let lock = Lock::new(self.engine.clone(), name, kind, self.settings.note.clone());
        Lock { settings: self.settings.of_companion(), ..lock }
    }
}

/// Formats a duration for people: whole hours as hours, others as seconds.
pub(crate) fn hours(length: Duration) -> String {
    match length.as_secs() {
        seconds if seconds >= 3600 && seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        _ => format!("{length:?}"),
    }
}
