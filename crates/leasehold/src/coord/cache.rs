//! A cache for loaded values, if they are not kept in the store of the locks.

use std::error::Error as StdError;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Durability, Effect, Failure, FailureKind, Patience, Put, RegisterPromise, Registered, Registers,
    Resource, Stamp, WaitMode,
};

/// A custom cache, for [`SingleFlight::cache`](crate::SingleFlight::cache): a table, a cache in memory,
/// another service.
///
/// It needs a version for each value that is never used twice, and must put a value only if the version
/// that was seen is still current: that keeps a slow loader from overwriting a newer value. The keys are
/// those of the flights. The values start with some bytes of leasehold, and other programs cannot use them.
///
/// ```
/// use async_trait::async_trait;
/// use leasehold::{Cache, CacheError, Cached, Client};
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex};
/// use std::time::{Duration, Instant};
///
/// /// Values of this process, each with the number of its putting.
/// #[derive(Debug, Default)]
/// struct Memory(Mutex<(u64, HashMap<String, (Vec<u8>, u64, Instant)>)>);
///
/// #[async_trait]
/// impl Cache for Memory {
///     async fn get(&self, key: &str) -> Result<Option<Cached>, CacheError> {
///         let memory = self.0.lock().unwrap();
///         Ok(memory.1.get(key).and_then(|(value, number, end)| {
///             let left = end.checked_duration_since(Instant::now())?;
///             Some(Cached { value: value.clone(), version: number.to_string(), left })
///         }))
///     }
///
///     async fn put(
///         &self,
///         key: &str,
///         seen: Option<&str>,
///         value: &[u8],
///         keep: Duration,
///     ) -> Result<Option<String>, CacheError> {
///         let (last, values) = &mut *self.0.lock().unwrap();
///         let now = Instant::now();
///         let there = values.get(key).filter(|(.., end)| *end > now).map(|(_, number, _)| number.to_string());
///         if there.as_deref() != seen {
///             return Ok(None); // somebody was first
///         }
///         *last += 1;
///         values.insert(key.to_owned(), (value.to_owned(), *last, now + keep));
///         Ok(Some(last.to_string()))
///     }
///
///     async fn remove(&self, key: &str, seen: &str) -> Result<bool, CacheError> {
///         let (_, values) = &mut *self.0.lock().unwrap();
///         let is_there = values.get(key).is_some_and(|(_, number, _)| number.to_string() == seen);
///         Ok(is_there && values.remove(key).is_some())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = Client::open("mem:").await?;
/// let flight = locks.single_flight("prices").cache(Arc::new(Memory::default()));
/// let load = || async { Ok::<_, std::io::Error>(Some(b"12.50".to_vec())) };
/// let loaded = flight.get_or_load(Duration::from_secs(60), load).await?;
/// assert_eq!(loaded.value.as_deref(), Some(b"12.50".as_slice()));
/// assert_eq!(flight.get().await?.unwrap().value, loaded.value); // from the cache
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Cache: Debug + Send + Sync + 'static {
    /// Returns the value under `key`; `None` if there is none, or if it has expired.
    ///
    /// # Errors
    /// Any failure; the call is repeated for some seconds.
    async fn get(&self, key: &str) -> Result<Option<Cached>, CacheError>;

    /// Puts `value` for as long as `keep` says, if the current version is still `seen`, where `None`
    /// means no value. Returns the version of the value that was put, or `None` if the current version
    /// is another one and nothing was put.
    ///
    /// # Errors
    /// Any failure; the value may have been put then.
    async fn put(
        &self,
        key: &str,
        seen: Option<&str>,
        value: &[u8],
        keep: Duration,
    ) -> Result<Option<String>, CacheError>;

    /// Removes the value if its version is still `seen`, and returns whether it was.
    ///
    /// # Errors
    /// Any failure; the value may have been removed then.
    async fn remove(&self, key: &str, seen: &str) -> Result<bool, CacheError>;

    /// Returns the longest value that it takes, in bytes.
    fn max_bytes(&self) -> usize {
        MAX_BYTES
    }
}

/// A value that a [`Cache`] keeps under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The value as it was put.
    pub value: Vec<u8>,
    /// The version: it names this put, and no other.
    pub version: String,
    /// The time for which it is still kept, by the clock of the cache.
    pub left: Duration,
}

/// A failure of a [`Cache`].
pub type CacheError = Box<dyn StdError + Send + Sync>;

/// The registers that a cache provides.
#[derive(Debug)]
pub(super) struct CacheRegisters {
    cache: Arc<dyn Cache>,
    promise: RegisterPromise,
}

impl CacheRegisters {
    pub(super) fn over(cache: Arc<dyn Cache>) -> CacheRegisters {
        let max_bytes = cache.max_bytes();
        let promise = RegisterPromise::new(max_bytes, WaitMode::Polls, Durability::Evictable).forgets();
        CacheRegisters { cache, promise }
    }
}

#[async_trait]
impl Registers for CacheRegisters {
    fn promise(&self) -> &RegisterPromise {
        &self.promise
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        let found = self.cache.get(at.as_str()).await.map_err(|error| failed(&error, Effect::None))?;
        Ok(match found {
            None => Registered { value: None, stamp: nothing(), left: None },
            Some(Cached { value, version, left }) => {
                Registered { value: Some(value), stamp: Stamp::new(version), left: Some(left) }
            }
        })
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        let key = at.as_str();
        let known = (*seen != nothing()).then_some(seen.as_str());
        let put = match (&put.value, known) {
            (Some(value), known) => {
                let keep = put.keep.unwrap_or(Duration::MAX);
                self.cache.put(key, known, value, keep).await.map(|version| version.map(Stamp::new))
            }
            (None, Some(known)) => self.cache.remove(key, known).await.map(|was| was.then(nothing)),
            (None, None) => Ok(Some(nothing())),
        };
        put.map_err(|error| failed(&error, Effect::Unknown))
    }

    async fn changed(&self, at: &Resource, _: &Stamp, _: &Patience) -> Result<Registered, Failure> {
        // It polls: the engine repeats the request after a pause.
        self.read(at).await
    }
}

/// Returns the stamp of a missing value. No version of a cache is empty.
fn nothing() -> Stamp {
    Stamp::new("")
}

fn failed(error: &CacheError, effect: Effect) -> Failure {
    Failure::new(FailureKind::Unavailable, effect, format!("the cache failed: {error}"))
}

const MAX_BYTES: usize = 1024 * 1024;
