//! The locks: constants of the one admission rule, with the words that people know them by.

mod again;
mod guard;
mod handover;
mod mutex;
mod notices;
mod part;
mod revocation;
mod run;
mod rwlock;
mod semaphore;
mod upgradable;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Grade, Liveness, Note, Order, Resource, Safety, Share, Snapshot, Version};

use crate::engine::{Engine, Manner, Owner, Wait, Want};
use crate::error::{Error, ErrorKind, Result};

pub use guard::Guard;
pub use handover::Handover;
pub use mutex::Mutex;
pub use part::Part;
pub use revocation::Revocation;
pub(crate) use revocation::ask_back;
pub(crate) use run::while_held;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use upgradable::Upgradable;

use again::Terms;

/// What kind of lock a [`Lock`] is.
pub mod kind {
    /// One holder: see [`Mutex`](crate::Mutex).
    #[derive(Clone, Copy, Debug)]
    pub struct Exclusive;
    /// Many readers or one writer: see [`RwLock`](crate::RwLock).
    #[derive(Clone, Copy, Debug)]
    pub struct Shared;
    /// A number of permits: see [`Semaphore`](crate::Semaphore).
    #[derive(Clone, Copy, Debug)]
    pub struct Counted {
        pub(crate) permits: u32,
    }
}

/// A lock by name, with its settings. Making and cloning it costs nothing and sends nothing.
///
/// Use it through its names: [`Mutex`], [`RwLock`], [`Semaphore`].
///
/// # Waiting for oneself
/// A task that asks again for a lock that it holds waits, as two tasks would: leasehold cannot know whether another
/// part of the same task is about to let go. It says so in the log, at level `warn`, wherever
/// a tokio runtime drives both requests. To re-enter, use an
/// [`Owner`]; one that asks for more than it holds gets a `Deadlock` error.
/// Those who wait for each other, in one process or in several, are told by [`Lock::detect_deadlocks`].
#[derive(Clone, Debug)]
pub struct Lock<K> {
    engine: Arc<Engine>,
    name: Result<Resource>,
    kind: K,
    ttl: Duration,
    max_hold: Option<Duration>,
    at_least: Duration,
    quiet: Duration,
    manner: Manner,
    note: Note,
    owner: Option<Owner>,
}

impl<K> Lock<K> {
    /// The engine that it asks.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Makes every call on it fail with this error.
    pub(crate) fn refusing(self, error: crate::error::Error) -> Self {
        Lock { name: Err(error), ..self }
    }

    pub(crate) fn new(engine: Arc<Engine>, name: &str, kind: K, note: Note) -> Self {
        let ttl = match engine.profile().liveness {
            Liveness::Lease { min, max } => TTL.clamp(min, max),
            _ => TTL,
        };
        let name = Resource::new(name).map_err(Error::from);
        Lock {
            engine,
            name,
            kind,
            ttl,
            max_hold: None,
            at_least: Duration::ZERO,
            quiet: Duration::ZERO,
            manner: Manner::default(),
            note,
            owner: None,
        }
    }

    /// How long the server keeps the lock after this process was last heard of. 30 s unless set.
    ///
    /// This is for recovery from crashes: while the process lives, the lock is renewed in the background. It is no
    /// limit to how long one may hold, see [`Lock::max_hold`].
    ///
    /// On a store that keeps locks by sessions or connections the ttl is not asked for and shortens nothing, however short it is. On ZooKeeper the lock of a process
    /// that was killed is free when its session ends: up to the session's timeout later, `session` in the URL, 30 s unless set.
    /// On the others the server notices the end of the connection, and [`Profile::liveness`](leasehold_core::Profile::liveness) says which stores these are.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// What [`Lock::ttl`] was set to.
    pub(crate) fn lease(&self) -> Duration {
        self.ttl
    }

    /// How long one may hold at most; no limit unless set. At its end the lock counts as lost.
    #[must_use]
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// How long it is held at least; no minimum unless set. Whoever lets go earlier gives it back when that time is over.
    ///
    /// For jobs that several machines start by their clocks: the one whose clock is a little behind must still find the
    /// lock taken. [`Guard::release`] waits for that time; a dropped guard does not, and the lock is given back
    /// in the background. A client that is closed gives it back at once, and a process that ends leaves it to its ttl.
    #[must_use]
    pub fn at_least(mut self, time: Duration) -> Self {
        self.at_least = time;
        self
    }

    /// For how long nobody is granted the lock after it was lost; not at all unless set. Also called lock-delay.
    ///
    /// For resources that do not check fences: what a holder that has lost the lock had sent already gets so much time to
    /// arrive, or to be given up, before its successor begins. After a proper release the next one is granted at once.
    ///
    /// # Promises
    /// After the end of the lock's validity, by the clock of this process, the store keeps it for `time` at least, less
    /// the drift between two clocks; also where this process is killed. It asks the store for `ttl` and `time` together,
    /// and relies on `ttl`.
    ///
    /// # Does not promise
    /// That it is free as soon as `time` is over: counted from the last renewal it is kept for `ttl` and `time`. A claim
    /// that an operator breaks, and one that the store forgets, is free at once. A client that is closed gives back all it holds
    /// properly. Each holder says it for itself: all who use one lock should say the same.
    ///
    /// # Errors
    /// When it is locked: `Unsupported` on a store that keeps locks by sessions or connections, since these end without it: on ZooKeeper up to
    /// the session's timeout after the process, elsewhere as soon as the server notices that the connection is gone;
    /// `Invalid` where `ttl` and `time` are longer than the longest ttl of the store.
    #[must_use]
    pub fn quiet(mut self, time: Duration) -> Self {
        self.quiet = time;
        self
    }

    /// Who of this client comes first: the greater number, and of two equal ones whoever came first. Zero unless set.
    ///
    /// # Does not promise
    /// Anything between processes: a store grants in the order of its own line, or in none, and this client stands there
    /// once, whoever of it is served then. Those who want another share, another ttl or another note do not take the
    /// place of one who stands there already, unless that one waits for what this process holds and they need not. Where some with a greater number always wait, the others never get it.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.manner.priority = priority;
        self
    }

    /// What others see of who holds or waits.
    #[must_use]
    pub fn note(mut self, note: Note) -> Self {
        self.note = note;
        self
    }

    /// Asks in the name of an owner, who may ask again for what he holds.
    #[must_use]
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Whoever has waited for `after` looks whether he waits for ever: where owners wait for each other in a circle, one of
    /// them is told `Deadlock`, with who holds what and who waits for what. Nobody looks unless it is set; a second suits most.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::{ErrorKind, Leasehold, Owner};
    /// # use std::time::Duration;
    /// # let patient = Duration::from_millis(50);
    /// let locks = Leasehold::open("mem:").await?;
    /// let (ann, ben) = (Owner::new(), Owner::new());
    /// let lock = |name: &str, owner| locks.mutex(name).owner(owner).detect_deadlocks(patient);
    /// let has_ann = lock("from", &ann).lock().await?;
    /// let has_ben = lock("to", &ben).lock().await?;
    /// let ben_waits = async {
    ///     let refused = lock("from", &ben).lock().await;
    ///     drop(has_ben); // so that the other can go on
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
    /// No false alarm, as long as an owner is one thread of control: whoever is told waits in a circle of owners of which none
    /// can go on before another has. Permits and readers are counted: where others can still let go of enough, it is no
    /// deadlock. On a store that grants in order, a reader behind a writer waits for whom the writer waits.
    ///
    /// One of each circle is told: whoever was the last to begin to wait, as far as that is known. Nothing is taken from those
    /// who hold; the others go on as soon as he lets go. [`Leasehold::deadlocks`](crate::Leasehold::deadlocks) sees the same
    /// from outside. A process that dies is out of the circle when its leases end.
    ///
    /// # Does not promise
    /// That each deadlock is found. All in the circle must say this, and be on one store: who holds without an owner, or does
    /// not say it when he waits, counts as one who goes on. Of each owner 16 locks of this client are known, of a store 256
    /// waits; 32 where locks cannot be shared. That somebody in the circle, or ahead in the line, would have given up by himself at the limit of his wait is
    /// not counted on.
    ///
    /// # Cost
    /// Nothing for an owner who holds nothing else, or who waits for less than `after`. Who holds and waits takes one more
    /// lock, as a reader of `leasehold!waits`, with a note that says so. He looks at who has it and at what they wait for: at
    /// once, again after half a second at least, and later every 2.5 to 5 s. A look is a request, and up to two more for each
    /// lock that is waited for so; 32 more where locks cannot be shared, and each wait is announced under a name of its own. When the wait ends that lock is given back first: a round trip, and where the server does not answer up to 10 s,
    /// also beyond the limit of the wait.
    ///
    /// # Cancel safety
    /// As that of the wait. What was announced is withdrawn in the background; until then the owner counts as one who waits.
    ///
    /// # Errors
    /// When it is locked: `Deadlock`; what was held before is held still, and nothing more. `Lost` where it was granted, and lost
    /// before the announcement was withdrawn. Before anything is sent:
    /// `Unsupported` where the store may cut off notes, `Invalid` without an [`Lock::owner`]. When it looks: `Denied` where the
    /// store does not let this client have or see `leasehold!waits`.
    #[must_use]
    pub fn detect_deadlocks(mut self, after: Duration) -> Self {
        self.manner.looks_after = Some(after);
        self
    }

    /// Demands that its fences can be trusted so far at least.
    ///
    /// # Errors
    /// `Unsupported` where this connection cannot give it. Nothing is sent.
    pub fn fenced(self, grade: Grade) -> Result<Self> {
        self.engine.profile().fences(grade)?;
        Ok(self)
    }

    /// Demands that those who wait are granted in this order.
    ///
    /// # Does not promise
    /// Anything about tasks of one client. It has one place at a time in the line of the store, for the first of its tasks that
    /// wait; the others get one when they are first. Two tasks that want the same take turns under one claim, within what
    /// [`Tuning`](crate::Tuning) allows for a hand-over, and the one that waits for that has no place of its own in the line of the
    /// store until it is over. A place is the client's: where the task it was taken for leaves, the next one that wants the same has
    /// it, unless one that came before that and wants less would be granted without it.
    ///
    /// # Errors
    /// `Unsupported` where this connection cannot give it. Nothing is sent.
    pub fn require(self, order: Order) -> Result<Self> {
        self.engine.profile().orders(order)?;
        Ok(self)
    }

    /// Demands that what is held is kept so well at least.
    ///
    /// # Errors
    /// `Unsupported` where this connection cannot give it. Nothing is sent.
    pub fn kept(self, safety: Safety) -> Result<Self> {
        self.engine.profile().keeps(safety)?;
        Ok(self)
    }

    /// Who holds it, and who waits for it.
    ///
    /// # Errors
    /// As [`Leasehold::inspect`](crate::Leasehold::inspect).
    pub async fn inspect(&self) -> Result<Snapshot> {
        self.engine.look(&self.name.clone()?, None, Duration::ZERO).await
    }

    /// Waits up to `limit` until it is in another state than `seen`, and tells how it stands then.
    ///
    /// # Errors
    /// As [`Leasehold::inspect`](crate::Leasehold::inspect).
    pub async fn changed(&self, seen: &Version, limit: Duration) -> Result<Snapshot> {
        self.engine.look(&self.name.clone()?, Some(seen), limit).await
    }

    async fn try_hold(&self, share: Share, wait: Wait) -> Result<Option<Guard>> {
        let want = self.want(share)?;
        let hold = self.engine.acquire(want, self.owner.as_ref(), wait, self.manner).await?;
        Ok(hold.map(|hold| Guard::new(hold, self.terms())))
    }

    fn terms(&self) -> Terms {
        Terms {
            max_hold: self.max_hold,
            at_least: self.at_least,
            quiet: self.quiet,
            manner: self.manner,
            owner: self.owner.clone(),
        }
    }

    async fn hold(&self, share: Share, wait: Wait) -> Result<Guard> {
        match self.try_hold(share, wait).await? {
            Some(guard) => Ok(guard),
            None => Err(Error::timeout(Duration::ZERO, &self.name.clone()?)),
        }
    }

    /// Another lock of the same client with the same settings; without an owner, a minimum or a maximum of time.
    fn of_kind<L>(&self, name: &str, kind: L) -> Lock<L> {
        Lock {
            ttl: self.ttl,
            quiet: self.quiet,
            manner: Manner { looks_after: None, ..self.manner },
            ..Lock::new(self.engine.clone(), name, kind, self.note.clone())
        }
    }

    /// Checks everything that can be checked without sending anything.
    fn want(&self, share: Share) -> Result<Want> {
        let resource = self.name.clone()?;
        let profile = self.engine.profile();
        profile.admits(share).map_err(|unmet| {
            let text = match self.engine.backend().why_not(share) {
                Some(why) => format!("{unmet}: {why}"),
                None => unmet.to_string(),
            };
            Error::new(ErrorKind::Unsupported, "lock", text).on(&resource)
        })?;
        if self.manner.looks_after.is_some() {
            self.engine.announces_waits("lock").map_err(|error| error.on(&resource))?;
        }
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, "lock", text).on(&resource));
        let name = profile.name;
        match profile.liveness {
            Liveness::Lease { min, max } => {
                if !(min..=max).contains(&self.ttl) {
                    let ttl = hours(self.ttl);
                    return invalid(format!(
                        "a ttl of {ttl} is out of range: {name} takes {min:?} to {}",
                        hours(max)
                    ));
                }
                if self.quiet > max - self.ttl {
                    let (ttl, quiet) = (self.ttl, self.quiet);
                    let text = format!(
                        "a ttl of {ttl:?} and a quiet time of {quiet:?} are too long together: {name} takes {max:?}"
                    );
                    return invalid(text);
                }
            }
            _ if !self.quiet.is_zero() => {
                let text = format!(
                    "a `{name}` store frees a lock when its holder's session or connection ends, so no quiet time can follow a loss"
                );
                return Err(Error::new(ErrorKind::Unsupported, "lock", text).on(&resource));
            }
            _ => {}
        }
        if self.ttl < TTL_MIN {
            return invalid(format!("a ttl of {:?} is too short: take {TTL_MIN:?} at least", self.ttl));
        }
        if !self.engine.is_useful(self.ttl) {
            return invalid(format!(
                "of a ttl of {:?} less than a tenth is left on this connection, after the drift between two clocks and the \
                 coarseness of the server's are taken off: take a longer one",
                self.ttl
            ));
        }
        if self.max_hold.is_some_and(|limit| limit.is_zero()) {
            return invalid("a max_hold of zero leaves no time to hold it".to_owned());
        }
        if self.manner.looks_after.is_some() && self.owner.is_none() {
            return invalid(
                "a deadlock is one of owners, and here nobody says who asks: add an `owner`, one for each thread of control"
                    .to_owned(),
            );
        }
        Ok(Want {
            resource,
            share,
            ttl: self.ttl,
            quiet: self.quiet,
            max_hold: self.max_hold,
            note: self.note.clone(),
        })
    }
}

const TTL: Duration = Duration::from_secs(30);
const TTL_MIN: Duration = Duration::from_millis(20);

/// A length for people: whole hours as hours, others as seconds.
fn hours(length: Duration) -> String {
    match length.as_secs() {
        seconds if seconds >= 3600 && seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        _ => format!("{length:?}"),
    }
}
