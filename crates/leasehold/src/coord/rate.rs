//! A rate limit: a number of permits in any period, by the clock of the server.
//!
//! Ground rules: a grant is a permit of a semaphore whose lease is the period, and which is never renewed
//! or released. The server itself ends it, so no clock of a client takes part (etcd's clients end their own
//! claims, a whole period after the grant had arrived), and a client that dies frees nothing early.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Liveness, MAX_QUEUE};

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Guard, Semaphore};

/// A limit of a number of permits in any period, across all processes that use the same store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
///
/// let locks = leasehold::Client::open("mem:").await?;
/// let mails = locks.rate_limit("mails", 2, Duration::from_millis(200));
/// mails.acquire().await?;
/// mails.acquire().await?;
/// assert!(!mails.try_acquire().await?); // two in this period already
/// mails.acquire().await?; // waits until the first of them is a period old
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// The server grants at most that number in *any* window of a period, wherever it begins: not twice as
/// many around the end of a counted minute. It measures the period by its own clock. On etcd
/// the client that got the grant measures it, from the arrival of the grant, while that client runs.
/// Grants to a process that has died count, too. If the store keeps a queue, requests of all processes are
/// served in order of arrival.
///
/// # Does not promise
/// The actions may not keep the distance of their grants: between a grant and its action the network or
/// the process may pause. The [`Durability`](crate::Durability) of the store's locks applies here: a
/// store that loses a grant in a failover may grant once more. A part of the rate may stay unused: a
/// grant counts for some milliseconds longer than the period, and for up to five seconds longer on
/// memcached, which counts in seconds.
///
/// # Price
/// Each grant of the last period is a claim in the store: suitable for limits of some hundreds in a period,
/// not for tens of thousands. Divide such a period into smaller ones: 100 in 100 ms for 1,000 in a second.
#[derive(Clone, Debug)]
pub struct RateLimit {
    engine: Arc<Engine>,
    permits: Semaphore,
    count: u32,
}

impl RateLimit {
    pub(crate) fn new(engine: Arc<Engine>, permits: Semaphore, period: Duration, count: u32) -> RateLimit {
        // A server whose clock is coarse may end a claim that much early.
        let lease = period.saturating_add(engine.profile().granularity);
        RateLimit { engine, permits: permits.ttl(lease), count }
    }

    /// Returns the name of the resource whose permits are granted.
    pub(crate) fn permits_name(name: &str) -> String {
        format!("{name}!rate")
    }

    /// Waits in the queue until one permit is granted.
    ///
    /// # Cancel safety
    /// If the future is dropped, no permit is used up.
    ///
    /// # Errors
    /// `Unsupported` on a store whose claims end with their process, before anything is sent, and if it
    /// does not count permits; `Invalid` if the period is not a valid ttl of this store, or for a limit
    /// of zero or of more than nine thousand; otherwise as
    /// [`Semaphore::acquire`](crate::Semaphore::acquire).
    pub async fn acquire(&self) -> Result<()> {
        self.acquire_many(1).await
    }

    /// Takes one permit if it is granted now; `false` if it is not.
    ///
    /// # Cancel safety
    /// If the future is dropped, no permit is used up.
    ///
    /// # Errors
    /// As [`RateLimit::acquire`] and [`Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    pub async fn try_acquire(&self) -> Result<bool> {
        self.try_acquire_many(1).await
    }

    /// Waits in the queue for up to `limit` for one permit; `false` if none is granted by then.
    ///
    /// # Cancel safety
    /// If the future is dropped, no permit is used up.
    ///
    /// # Errors
    /// As [`RateLimit::acquire`] and [`Semaphore::try_acquire_for`](crate::Semaphore::try_acquire_for).
    pub async fn try_acquire_for(&self, limit: Duration) -> Result<bool> {
        self.try_acquire_many_for(1, limit).await
    }

    /// Waits in the queue until `weight` permits are granted together, for actions that cost more.
    ///
    /// # Cancel safety
    /// If the future is dropped, no permit is used up.
    ///
    /// # Errors
    /// As [`RateLimit::acquire`]; `Invalid` for zero, or for more than the limit.
    pub async fn acquire_many(&self, weight: u32) -> Result<()> {
        self.check()?;
        // A permit that was lost before it arrived here was released, perhaps early: it counts
        // as never granted.
        while !self.permits.acquire_many(weight).await?.leave_to_lease() {}
        Ok(())
    }

    /// Takes `weight` permits if they are granted now; `false` if they are not.
    ///
    /// # Cancel safety
    /// If the future is dropped, no permit is used up.
    ///
    /// # Errors
    /// As [`RateLimit::acquire_many`] and [`Semaphore::try_acquire_many`](crate::Semaphore::try_acquire_many).
    pub async fn try_acquire_many(&self, weight: u32) -> Result<bool> {
        self.check()?;
        let granted = self.permits.try_acquire_many(weight).await?;
        Ok(granted.is_some_and(Guard::leave_to_lease))
    }

    /// Waits in the queue for up to `limit` for `weight` permits; `false` if they are not granted by then.
    ///
    /// # Cancel safety
    /// If the future is dropped, no permit is used up.
    ///
    /// # Errors
    /// As [`RateLimit::acquire_many`] and
    /// [`Semaphore::try_acquire_many_for`](crate::Semaphore::try_acquire_many_for).
    pub async fn try_acquire_many_for(&self, weight: u32, limit: Duration) -> Result<bool> {
        self.check()?;
        let clock = self.engine.clock();
        let end = clock.now().after(limit);
        while let Some(granted) = self.permits.try_acquire_many_for(weight, clock.now().until(end)).await? {
            if granted.leave_to_lease() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks everything that can be refused without a request.
    fn check(&self) -> Result<()> {
        let profile = self.engine.profile();
        if !matches!(profile.liveness, Liveness::Lease { .. }) {
            let text = format!(
                "a `{}` store ends the grants of a process together with the process, so the limit would not hold; \
                 use a store with leases",
                profile.name
            );
            return Err(Error::new(ErrorKind::Unsupported, "rate limit", text));
        }
        if usize::try_from(self.count).is_ok_and(|count| count > MAX_LIMIT) {
            let text =
                format!("a limit of {} is too many: {MAX_LIMIT} at most; take a shorter period", self.count);
            return Err(Error::new(ErrorKind::Invalid, "rate limit", text));
        }
        Ok(())
    }
}

/// The largest limit: each grant of the last period is in the queue of claims, and places for a
/// thousand waiters are left.
const MAX_LIMIT: usize = MAX_QUEUE - 1_000;
