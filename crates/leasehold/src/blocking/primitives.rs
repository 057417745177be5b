//! Coordination types for threads that block: each is a twin of the asynchronous type.
//!
//! Ground rules: nothing is decided here. A call clones the asynchronous value, has the runtime carry
//! out the call of the same name, and waits for the answer. The calls are in the list of `mirrors.rs`; only
//! those that take code of the user are here.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::time::Duration;

use leasehold_core::Effect;

use super::Interrupt;
use super::mirror::{IntoTwin, within};
use super::runtime::{may_block, wait_unless};
use crate::coord::{FlightOutcome, LoadError, UpdateOutcome};
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

    /// Runs a call, and blocks until it returns.
    pub(super) fn block_on<A, F>(&self, op: &'static str, call: impl FnOnce(T) -> F) -> Result<A>
    where
        A: Send + 'static,
        F: Future<Output = Result<A>> + Send + 'static,
    {
        wait_unless(self.interrupt.clone(), op, Effect::None, call(self.inner.clone()))
    }

    /// Runs a call that changes a value in the store, and blocks until it returns.
    pub(super) fn block_on_change<A, F>(&self, op: &'static str, call: impl FnOnce(T) -> F) -> Result<A>
    where
        A: Send + 'static,
        F: Future<Output = Result<A>> + Send + 'static,
    {
        wait_unless(self.interrupt.clone(), op, Effect::Unknown, call(self.inner.clone()))
    }
}

impl Blocking<crate::Latch> {
    /// Blocks for up to `limit` until it is open, as [`Latch::wait`](crate::Latch::wait); `false` if it is
    /// still closed then.
    ///
    /// # Errors
    /// As there, and `Interrupted`.
    pub fn wait_within(&self, limit: Duration) -> Result<bool> {
        let opened =
            self.block_on("wait", move |latch| async move { within(limit, latch.wait()).await.transpose() });
        Ok(opened?.is_some())
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
    /// As there, and `Interrupted`: the update may then be made, or not.
    pub fn update(
        &self,
        mut new: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>> + Send + 'static,
    ) -> Result<UpdateOutcome> {
        self.block_on_change("update", move |value| async move {
            value.update(|old| may_block(|| new(old))).await
        })
    }
}

impl Blocking<crate::StripedMutex> {
    /// Returns the stripe of a key, as [`StripedMutex::for_key`](crate::StripedMutex::for_key).
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Stripe {
        self.with_inner(self.inner.for_key(key))
    }

    /// Returns all stripes as one lock, as [`StripedMutex::all`](crate::StripedMutex::all).
    pub fn all(&self) -> MultiLock {
        self.with_inner(self.inner.all())
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
        let loaded = self.block_on("load", move |flight| async move {
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

/// Types of the asynchronous API become types of this module.
macro_rules! primitives {
    ($($primitive:ident),*) => {$(
        impl IntoTwin for crate::$primitive {
            type Twin = Blocking<crate::$primitive>;

            fn into_twin(self) -> Self::Twin {
                Blocking { inner: self, interrupt: None }
            }
        }
    )*};
}

primitives!(Latch, Barrier, RateLimit, Versioned, SingleFlight, Election, MultiLock, StripedMutex, Stripe);

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
