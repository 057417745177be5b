//! Several locks as one: all of them are acquired, or none.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::{Fence, LossCause, Resource};

use crate::engine::Wait;
use crate::error::{Error, ErrorKind, Result, none_if_timed_out};
use crate::lock::{Guard, LockRequest, while_held};

/// Several locks, of one store or of several, that are acquired and released together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let accounts = locks.lock_all(["account/7", "account/3"]).and(locks.rwlock("rates").read_request());
/// let guard = accounts.lock().await?;
/// assert!(locks.mutex("account/3").try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// All or nothing: a caller that does not get all of them within the one deadline holds none of them. They
/// are acquired in the order of their names, regardless of the order in which they are given, so that
/// callers with overlapping sets never wait for each other in a circle. A lock that is named twice is
/// acquired once, with the larger share. The loss of one is the loss of all, and names the lost lock. A
/// [minimum time to hold](crate::Lock::min_hold) counts from when all are held. A lock that is released because
/// another one was not granted does not [linger](crate::Lock::linger).
///
/// # Does not promise
/// They are not granted in one instant: while it waits for the second, it holds the first. Locks of the same
/// name in two stores of one kind are acquired in the order in which they were given, which has to be the
/// same everywhere. A task that holds one of them already, acquired on its own, can be part of a circle.
#[derive(Clone, Debug, Default)]
pub struct MultiLock {
    parts: Vec<LockRequest>,
}

impl MultiLock {
    /// Creates a multi-lock without locks.
    pub fn new() -> MultiLock {
        MultiLock::default()
    }

    /// Adds a lock.
    #[must_use]
    pub fn and(mut self, part: impl Into<LockRequest>) -> MultiLock {
        self.parts.push(part.into());
        self
    }

    /// Waits until all are held.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is left behind: the locks held by then are released in
    /// the background.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock), of the first that fails; `Lost` if one was lost while
    /// the others were waited for; `Invalid` for more than 4096 locks, or if one is named twice with
    /// shares of which neither covers the other.
    pub async fn lock(&self) -> Result<MultiGuard> {
        self.hold(None).await
    }

    /// Acquires all of them if all are free now; `None` if one is not.
    ///
    /// As a rule the others are released when `None` is returned. Only if the store does not confirm that within two
    /// seconds, they are released in the background, as after an error.
    ///
    /// # Cancel safety
    /// As [`MultiLock::lock`].
    ///
    /// # Errors
    /// As [`MultiLock::lock`] and [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        let mut first = FirstLocks::new();
        for part in self.ordered()? {
            match part.try_hold(Wait::No).await? {
                Some(held) => first.held.guards.push(held),
                None => {
                    first.release().await;
                    return Ok(None);
                }
            }
        }
        first.complete().map(Some)
    }

    /// Waits up to `limit` until all are held; `None` if one of them is not free by then. The others were released
    /// then, as [`MultiLock::try_lock`] does it.
    ///
    /// # Cancel safety
    /// As [`MultiLock::lock`].
    ///
    /// # Errors
    /// As [`MultiLock::lock`] and [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<MultiGuard>> {
        none_if_timed_out(self.hold(Some(limit)).await)
    }

    async fn hold(&self, limit: Option<Duration>) -> Result<MultiGuard> {
        let parts = self.ordered()?;
        let mut first = FirstLocks::new();
        match first.hold(parts, limit).await {
            Ok(()) => first.complete(),
            Err(error) => {
                if error.kind() == ErrorKind::Timeout {
                    first.release().await;
                }
                Err(error)
            }
        }
    }

    /// Returns the parts without repetitions, in the order in which every client acquires them.
    fn ordered(&self) -> Result<Vec<LockRequest>> {
        if self.parts.len() > MAX_PARTS {
            let text = format!("{} locks at once are too many: take {MAX_PARTS} at most", self.parts.len());
            return Err(Error::new(ErrorKind::Invalid, "lock", text).on(self.parts[0].resource()?));
        }
        let mut parts = self.parts.clone();
        for part in &parts {
            part.check()?;
        }
        // Stable: locks with the same name stay in the order in which they were given.
        parts.sort_by(|a, b| order(a).cmp(&order(b)));
        let mut ordered: Vec<LockRequest> = Vec::with_capacity(parts.len());
        for part in parts {
            // Locks of one name are adjacent, and there are as many as there are stores.
            let same_name = ordered.iter_mut().rev().take_while(|known| order(known).0 == order(&part).0);
            match same_name.into_iter().find(|known| known.is_same_lock(&part)) {
                None => ordered.push(part),
                Some(known) => merge(known, part)?,
            }
        }
        Ok(ordered)
    }
}

/// The locks that are held before all of them are. Dropped, it releases them in the background, the last one first.
/// None is kept for a minimum hold, and none lingers.
struct FirstLocks {
    held: MultiGuard,
}

impl FirstLocks {
    fn new() -> FirstLocks {
        FirstLocks { held: MultiGuard { guards: Vec::new() } }
    }

    /// Waits for the parts, one after the other.
    async fn hold(&mut self, parts: Vec<LockRequest>, limit: Option<Duration>) -> Result<()> {
        // The parts may be of several clients; the wait as a whole is measured by the clock of the first.
        let Some(clock) = parts.first().map(|part| part.clock().clone()) else { return Ok(()) };
        let began = clock.now();
        // One watch for each lock and not for each pair of a lock and a wait.
        let mut losses = FuturesUnordered::new();
        for part in parts {
            let asking = async {
                match limit {
                    Some(limit) => part.try_hold_within(limit, clock.now().since(began)).await,
                    None => part.try_hold(Wait::Forever).await,
                }
            };
            // A lock that is held already may be lost meanwhile: then waiting longer is pointless.
            let held = tokio::select! {
                biased;
                Some(loss) = losses.next() => return Err(Loss::error(&loss, "lock")),
                // Boxed, because it is large.
                held = Box::pin(asking) => held?,
            };
            match held {
                Some(held) => {
                    let (mut changes, resource) = (held.hold().lease().watch(), held.resource().clone());
                    losses.push(async move { Loss { cause: changes.lost().await, resource } });
                    self.held.guards.push(held);
                }
                None => return Err(Error::timeout(clock.now().since(began), part.resource()?)),
            }
        }
        Ok(())
    }

    /// Returns the guard of all locks, which are all held now.
    fn complete(mut self) -> Result<MultiGuard> {
        self.held.check()?;
        let guards = std::mem::take(&mut self.held.guards);
        guards.iter().for_each(Guard::begin_min_hold);
        Ok(MultiGuard { guards })
    }

    /// Releases them, and waits for that as long as for one answer.
    async fn release(mut self) {
        let guards = std::mem::take(&mut self.held.guards);
        let Some(engine) = guards.first().map(|guard| guard.hold().engine().clone()) else { return };
        let ends: Vec<_> = guards.into_iter().rev().filter_map(Guard::end_unused).map(Box::pin).collect();
        let released = async { Ok(Some(join_all(ends).await)) };
        if let Err(error) = engine.with_answer_limit(Duration::ZERO, released).await {
            tracing::debug!(%error, "the locks that were held before another one was not are released later");
        }
    }
}

impl Drop for FirstLocks {
    fn drop(&mut self) {
        while let Some(guard) = self.held.guards.pop() {
            // Not polled, so the release is left to the client.
            drop(guard.end_unused());
        }
    }
}

/// The most locks of one multi-lock.
const MAX_PARTS: usize = 4096;

fn order(part: &LockRequest) -> (Option<&Resource>, &'static str) {
    (part.resource().ok(), part.backend_name())
}

/// Takes the larger of two shares of one lock.
fn merge(known: &mut LockRequest, part: LockRequest) -> Result<()> {
    let (one, other) = (known.share()?, part.share()?);
    if one.covers(other) {
        return Ok(());
    }
    if other.covers(one) {
        *known = part;
        return Ok(());
    }
    let text = format!(
        "it is requested as {one} and as {other}, which cannot be one claim: request only one of them"
    );
    Err(Error::new(ErrorKind::Invalid, "lock", text).on(known.resource()?))
}

/// Several locks that are held: the loss of one is the loss of all.
///
/// Promises and limits are those of [`Guard`]. Dropping it releases all of them.
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

/// The lock that was lost, and the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The lock.
    pub resource: Resource,
    /// The cause.
    pub cause: LossCause,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.resource, self.cause)
    }
}

impl Loss {
    fn error(&self, op: &'static str) -> Error {
        Error::lost(op, self.cause, &self.resource)
    }
}

impl MultiGuard {
    /// Returns the single locks, in the order of their names.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Returns the fence of one of them; `None` if it is not among them, or its store has no fences.
    pub fn fence(&self, name: &str) -> Option<Fence> {
        self.guards.iter().find(|guard| guard.resource().as_str() == name).and_then(Guard::fence)
    }

    /// Returns the loss, by the clock, if one of them is lost now.
    pub fn loss(&self) -> Option<Loss> {
        let lost = self.guards.iter().find_map(|guard| Some((guard, guard.cause()?)));
        lost.map(|(guard, cause)| Loss { resource: guard.resource().clone(), cause })
    }

    /// Checks, by the clock, that all are still held now.
    ///
    /// # Errors
    /// `Lost`, with the lock and the cause.
    pub fn check(&self) -> Result<()> {
        self.loss().map_or(Ok(()), |loss| Err(loss.error("check")))
    }

    /// Returns the time for which all are held without another renewal.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or(Duration::MAX)
    }

    /// Waits until one of them is lost; for ever if none ever is.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn lost(&self) -> Loss {
        let watches: Vec<_> = self.guards.iter().map(|guard| Box::pin(guard.lost())).collect();
        if watches.is_empty() {
            return std::future::pending().await;
        }
        let (cause, index, _) = select_all(watches).await;
        Loss { resource: self.guards[index].resource().clone(), cause }
    }

    /// Runs `work` for as long as all are held, and drops it the moment one is lost.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`; the locks stay held.
    ///
    /// # Errors
    /// `Lost`, with the lock and the cause.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        while_held(|| self.loss(), self.lost(), work).await.map_err(|loss| loss.error("run"))
    }

    /// Releases all of them, the last one first, and waits until that is confirmed. None waits for the release of
    /// another, which may be in a store that does not answer.
    ///
    /// # Cancel safety
    /// They are released even if the future is dropped.
    ///
    /// # Errors
    /// The first failure, as [`Guard::release`]; the others are released all the same.
    pub async fn release(mut self) -> Result<()> {
        let guards = std::mem::take(&mut self.guards);
        let released = join_all(guards.into_iter().rev().map(|guard| Box::pin(guard.release()))).await;
        released.into_iter().collect()
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        // The last one first, as in `release`: a waiter for the first then finds the others free.
        while self.guards.pop().is_some() {}
    }
}
