//! Coordination types for threads that block: each is a twin of the asynchronous type.
//!
//! Ground rules: nothing is decided here. A call clones the asynchronous value, has the runtime carry
//! out the call of the same name, and waits for the answer; so there is one shape for all types, and
//! the part of each type is the list of its calls.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::time::Duration;

use super::blocking_guard::{Leadership, MultiGuard};
use super::observer::Observer;
use super::runtime::{may_block, wait_unless};
use super::{Guard, Interrupt};
use crate::coord::{BarrierWaitResult, FlightOutcome, Leader, LoadError, UpdateOutcome, VersionedValue};
use crate::error::Result;

/// A coordination type of the asynchronous API, for threads that block.
///
/// ```
/// use leasehold::blocking::Client;
/// use std::time::Duration;
///
/// # fn main() -> leasehold::Result<()> {
/// let locks = Client::open("mem:")?;
/// let started = locks.latch("started", 2);
/// let waiter = std::thread::spawn({
///     let started = started.clone();
///     move || started.wait()
/// });
/// started.count_down()?;
/// started.count_down()?;
/// waiter.join().unwrap()?;
///
/// let mails = locks.rate_limit("mails", 100, Duration::from_secs(60));
/// assert!(mails.try_acquire()?);
///
/// let stock = locks.versioned("stock/42");
/// let done = stock.update(|old| Some([old.unwrap_or_default(), b"+1"].concat()))?;
/// assert_eq!(done.value.as_deref(), Some(b"+1".as_slice()));
/// # Ok(())
/// # }
/// ```
///
/// Promises, limits and errors of a call are those of the asynchronous call of the same name.
#[derive(Clone, Debug)]
pub struct Blocking<T> {
    inner: T,
    interrupt: Option<Interrupt>,
}

/// A one-shot latch, as [`leasehold::Latch`](crate::Latch).
pub type Latch = Blocking<crate::Latch>;
/// A reusable barrier, as [`leasehold::Barrier`](crate::Barrier). A party that is interrupted breaks it
/// for the others.
pub type Barrier = Blocking<crate::Barrier>;
/// A rate limit, as [`leasehold::RateLimit`](crate::RateLimit).
pub type RateLimit = Blocking<crate::RateLimit>;
/// A compare-and-set value, as [`leasehold::Versioned`](crate::Versioned).
pub type Versioned = Blocking<crate::Versioned>;
/// A value that one caller loads for all, as [`leasehold::SingleFlight`](crate::SingleFlight).
pub type SingleFlight = Blocking<crate::SingleFlight>;
/// An election, as [`leasehold::Election`](crate::Election).
pub type Election = Blocking<crate::Election>;
/// Several locks as one, as [`leasehold::MultiLock`](crate::MultiLock).
pub type MultiLock = Blocking<crate::MultiLock>;
/// A lock divided into stripes, as [`leasehold::StripedMutex`](crate::StripedMutex).
pub type StripedMutex = Blocking<crate::StripedMutex>;
/// One stripe of a lock, as [`leasehold::Stripe`](crate::Stripe).
pub type Stripe = Blocking<crate::Stripe>;

impl<T: Clone + Send + 'static> Blocking<T> {
    pub(super) fn new(inner: T) -> Blocking<T> {
        Blocking { inner, interrupt: None }
    }

    /// Changes its settings, which are those of the asynchronous type:
    /// `locks.barrier("b", 3).set(|barrier| barrier.ttl(ttl))`.
    #[must_use]
    pub fn set(self, setting: impl FnOnce(T) -> T) -> Blocking<T> {
        Blocking { inner: setting(self.inner), ..self }
    }

    /// Cancels waits of this value with `Interrupted` when `interrupt` is triggered.
    #[must_use]
    pub fn interrupted_by(mut self, interrupt: &Interrupt) -> Blocking<T> {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// Returns the asynchronous value, for calls that do not wait.
    pub fn asynchronous(&self) -> &T {
        &self.inner
    }

    /// Returns another one, under the same interrupt.
    fn with_inner<U>(&self, inner: U) -> Blocking<U> {
        Blocking { inner, interrupt: self.interrupt.clone() }
    }

    fn call<A, F>(&self, op: &'static str, make_future: impl FnOnce(T) -> F) -> Result<A>
    where
        A: Send + 'static,
        F: Future<Output = Result<A>> + Send + 'static,
    {
        wait_unless(self.interrupt.clone(), op, make_future(self.inner.clone()))
    }
}

/// The twins of calls whose arguments and answers are the same here and there.
macro_rules! blocking_calls {
    ($primitive:ident: $($call:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {
        impl Blocking<crate::$primitive> {$(
            #[doc = concat!(
                "Blocks until [`", stringify!($call), "`](crate::", stringify!($primitive), "::", stringify!($call), ") is done."
            )]
            ///
            /// # Errors
            /// As there, and `Interrupted`.
            pub fn $call(&self, $($argument: $kind),*) -> Result<$answer> {
                self.call(stringify!($call), move |inner| async move { inner.$call($($argument),*).await })
            }
        )*}
    };
}

blocking_calls! { Latch:
    count_down() -> ();
    remaining() -> u32;
    wait() -> ();
    reset() -> ();
}

blocking_calls! { Barrier:
    wait() -> BarrierWaitResult;
    wait_for(limit: Duration) -> BarrierWaitResult;
    arrived() -> u32;
    is_broken() -> bool;
    reset() -> ();
}

blocking_calls! { RateLimit:
    acquire() -> ();
    try_acquire() -> bool;
    try_acquire_for(limit: Duration) -> bool;
    acquire_many(weight: u32) -> ();
    try_acquire_many(weight: u32) -> bool;
    try_acquire_many_for(weight: u32, limit: Duration) -> bool;
}

blocking_calls! { Versioned:
    read() -> VersionedValue;
}

blocking_calls! { SingleFlight:
    get() -> Option<FlightOutcome>;
    invalidate() -> ();
}

blocking_calls! { Election:
    leader() -> Option<Leader>;
}

impl Blocking<crate::Latch> {
    /// Blocks for up to `limit` until it is open, as [`wait`](crate::Latch::wait); `false` if it is still
    /// closed then.
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn wait_within(&self, limit: Duration) -> Result<bool> {
        self.call("wait", move |latch| async move {
            tokio::time::timeout(limit, latch.wait()).await.map_or(Ok(false), |opened| opened.map(|()| true))
        })
    }

    /// Blocks for the result of [`count_down_as`](crate::Latch::count_down_as).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn count_down_as(&self, member: &str) -> Result<()> {
        let member = member.to_owned();
        self.call("count_down_as", move |latch| async move { latch.count_down_as(&member).await })
    }
}

impl Blocking<crate::Versioned> {
    /// Blocks for the result of [`update`](crate::Versioned::update). `new` may block, and may use this
    /// library: leases are renewed meanwhile.
    ///
    /// # Panics
    /// Panics if `new` panics, with the same payload; nothing is written then.
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn update(
        &self,
        mut new: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>> + Send + 'static,
    ) -> Result<UpdateOutcome> {
        self.call("update", move |value| async move { value.update(|old| may_block(|| new(old))).await })
    }

    /// Blocks for the result of [`changed`](crate::Versioned::changed).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn changed(&self, seen: &VersionedValue, limit: Duration) -> Result<VersionedValue> {
        let seen = seen.clone();
        self.call("changed", move |value| async move { value.changed(&seen, limit).await })
    }
}

impl Blocking<crate::Election> {
    /// Blocks until it leads, as [`campaign`](crate::Election::campaign).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn campaign(&self, value: &str) -> Result<Leadership> {
        let value = value.to_owned();
        let campaigning =
            self.call("campaign", move |election| async move { election.campaign(&value).await });
        campaigning.map(Leadership::new)
    }

    /// Follows the changes of leadership, as [`observe`](crate::Election::observe).
    pub fn observe(&self) -> Observer {
        Observer::new(self.inner.observe())
    }

    /// Leads if the election has no leader, as [`try_campaign`](crate::Election::try_campaign).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_campaign(&self, value: &str) -> Result<Option<Leadership>> {
        let value = value.to_owned();
        let campaigning =
            self.call("campaign", move |election| async move { election.try_campaign(&value).await });
        Ok(campaigning?.map(Leadership::new))
    }

    /// Blocks for up to `limit` until it leads, as [`try_campaign_for`](crate::Election::try_campaign_for).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_campaign_for(&self, value: &str, limit: Duration) -> Result<Option<Leadership>> {
        let value = value.to_owned();
        let campaigning = self
            .call("campaign", move |election| async move { election.try_campaign_for(&value, limit).await });
        Ok(campaigning?.map(Leadership::new))
    }
}

impl Blocking<crate::MultiLock> {
    /// Blocks until all are held, as [`lock`](crate::MultiLock::lock).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn lock(&self) -> Result<MultiGuard> {
        self.call("lock", |all| async move { all.lock().await }).map(MultiGuard::new)
    }

    /// Acquires all if they are free now, as [`try_lock`](crate::MultiLock::try_lock).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        Ok(self.call("lock", |all| async move { all.try_lock().await })?.map(MultiGuard::new))
    }

    /// Blocks for up to `limit` until all are held, as [`try_lock_for`](crate::MultiLock::try_lock_for).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<MultiGuard>> {
        let guard = self.call("lock", move |all| async move { all.try_lock_for(limit).await });
        Ok(guard?.map(MultiGuard::new))
    }
}

impl Blocking<crate::StripedMutex> {
    /// Returns the stripe of a key, as [`of`](crate::StripedMutex::for_key).
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Stripe {
        self.with_inner(self.inner.for_key(key))
    }

    /// Returns all stripes as one lock, as [`all`](crate::StripedMutex::all).
    pub fn all(&self) -> MultiLock {
        self.with_inner(self.inner.all())
    }

    /// Blocks until any stripe is held, as [`any`](crate::StripedMutex::lock_any).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn lock_any(&self) -> Result<Guard> {
        self.call("lock", |lock| async move { lock.lock_any().await }).map(Guard::new)
    }

    /// Acquires any stripe that is free now, as [`try_lock_any`](crate::StripedMutex::try_lock_any).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_lock_any(&self) -> Result<Option<Guard>> {
        Ok(self.call("lock", |lock| async move { lock.try_lock_any().await })?.map(Guard::new))
    }

    /// Blocks for up to `limit` until any stripe is held, as
    /// [`try_lock_any_for`](crate::StripedMutex::try_lock_any_for).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_lock_any_for(&self, limit: Duration) -> Result<Option<Guard>> {
        let guard = self.call("lock", move |lock| async move { lock.try_lock_any_for(limit).await });
        Ok(guard?.map(Guard::new))
    }
}

impl Blocking<crate::Stripe> {
    /// Blocks until it is granted, as [`lock`](crate::Stripe::lock).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn lock(&self) -> Result<Guard> {
        self.call("lock", |stripe| async move { stripe.lock().await }).map(Guard::new)
    }

    /// Acquires it if it is free now, as [`try_lock`](crate::Stripe::try_lock).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        Ok(self.call("lock", |stripe| async move { stripe.try_lock().await })?.map(Guard::new))
    }

    /// Blocks for up to `limit`, as [`try_lock_for`](crate::Stripe::try_lock_for).
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>> {
        let guard = self.call("lock", move |stripe| async move { stripe.try_lock_for(limit).await });
        Ok(guard?.map(Guard::new))
    }
}

impl Blocking<crate::SingleFlight> {
    /// Blocks for the value, as [`get_or_load`](crate::SingleFlight::get_or_load). `load` may block: it
    /// runs on a thread of its own.
    ///
    /// An interrupt ends the wait and the turn to load; `load` then continues to its end, and its
    /// result is not used.
    ///
    /// # Panics
    /// Panics if `load` panics, with the same payload.
    ///
    /// # Errors
    /// As there, and [`LoadError::Interrupted`].
    pub fn get_or_load<E>(
        &self,
        ttl: Duration,
        load: impl FnOnce() -> Result<Option<Vec<u8>>, E> + Send + 'static,
    ) -> Result<FlightOutcome, LoadError<E>>
    where
        E: fmt::Display + Send + 'static,
    {
        let on_a_thread = move || async move {
            match tokio::task::spawn_blocking(load).await {
                Ok(loaded) => loaded.map_err(Failed::Returned),
                Err(failed) => {
                    Err(Failed::Panicked(failed.try_into_panic().unwrap_or_else(|error| Box::new(error))))
                }
            }
        };
        let loaded = self.call("load", move |flight| async move {
            match flight.get_or_load(ttl, on_a_thread).await {
                Err(LoadError::Store(error) | LoadError::Interrupted(error)) => Err(error),
                Err(LoadError::Loader(failed)) => Ok(Err(failed)),
                Ok(loaded) => Ok(Ok(loaded)),
            }
        });
        match loaded? {
            Ok(loaded) => Ok(loaded),
            Err(Failed::Returned(error)) => Err(LoadError::Loader(error)),
            Err(Failed::Panicked(panic)) => resume_unwind(panic),
        }
    }
}

/// The failure of a loader on its thread.
enum Failed<E> {
    Returned(E),
    Panicked(Box<dyn Any + Send>),
}

impl<E: fmt::Display> fmt::Display for Failed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Returned(error) => error.fmt(f),
            Failed::Panicked(_) => f.write_str("the loader panicked"),
        }
    }
}
