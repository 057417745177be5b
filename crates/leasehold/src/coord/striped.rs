//! A lock divided into stripes, so that users of different parts of a thing do not wait for each other.

mod report;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, FutureExt, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::Moment;

pub use report::{StripeReport, StripeUse};

use super::MultiLock;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Guard, Mutex};

/// A lock divided into stripes: one for each group of keys, any that is free, or all.
///
/// A stock of 1,200 pieces behind one mutex is sold one order at a time. Divided into twelve
/// stripes of a hundred it is sold twelve orders at a time, as long as each order takes from
/// the stripe that it has locked.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let stock = locks.striped_mutex("stock/42", 12);
/// let mine = stock.for_key("customer/7").lock().await?;    // always the same stripe
/// let free = stock.lock_any().await?;                      // any that is free
/// assert_ne!(mine.resource(), free.resource());
/// drop((mine, free));
/// let whole = stock.all().lock().await?;              // nobody else has any
/// # whole.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// Stripe `i` of `name` is the mutex `name#i`, counted from 0, in every process and every version. A
/// key always belongs to the same stripe as long as the number of stripes stays the same.
///
/// # Does not promise
/// Processes that use different numbers of stripes exclude each other only by stripes of the same
/// number. To change the number, stop all users of the old one first, or hold all stripes of the
/// larger number meanwhile.
#[derive(Clone, Debug)]
pub struct StripedMutex {
    name: String,
    stripes: Arc<[Counted]>,
}

/// One stripe, with the statistics of this client.
#[derive(Debug)]
struct Counted {
    mutex: Mutex,
    attempts: AtomicU64,
    taken: AtomicU64,
    waited: AtomicU64,
    wait_nanos: AtomicU64,
}

impl Counted {
    /// Creates a stripe whose statistics begin at zero.
    fn new(mutex: Mutex) -> Counted {
        Counted {
            mutex,
            attempts: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            wait_nanos: AtomicU64::new(0),
        }
    }
}

/// What the first look of an attempt finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstLook {
    Free,
    Taken,
}

impl FirstLook {
    fn of(granted: &Option<Guard>) -> FirstLook {
        if granted.is_some() { FirstLook::Free } else { FirstLook::Taken }
    }
}

/// The lock of one stripe.
#[derive(Clone, Debug)]
pub struct Stripe {
    stripes: Arc<[Counted]>,
    number: usize,
}

impl StripedMutex {
    /// Creates the stripes; `part` makes the lock of a stripe from its name.
    pub(crate) fn new(name: &str, count: u32, part: impl Fn(&str) -> Mutex) -> StripedMutex {
        let refusal = (!(1..=MAX_STRIPES).contains(&count)).then(|| {
            let text = format!("{name} cannot have {count} stripes: choose between 1 and {MAX_STRIPES}");
            Error::new(ErrorKind::Invalid, "lock", text)
        });
        // A stripe that refuses everything, so that each way to acquire it reports why.
        let count = if refusal.is_some() { 1 } else { count };
        let counted = |number| {
            Counted::new(match &refusal {
                Some(refusal) => part(name).refusing(refusal.clone()),
                None => part(&format!("{name}#{number}")),
            })
        };
        StripedMutex { name: name.to_owned(), stripes: (0..count).map(counted).collect() }
    }

    /// Returns the number of stripes. It is one, and that one refuses everything with `Invalid`, if 0
    /// or more than 65,536 were requested.
    pub fn count(&self) -> u32 {
        // Invariant: `new` makes no more than fit.
        u32::try_from(self.stripes.len()).unwrap_or(u32::MAX)
    }

    /// Returns the same lock with other settings for each stripe: a ttl, a note, an owner, a requirement.
    ///
    /// The statistics start again from zero.
    #[must_use]
    pub fn with(self, setting: impl Fn(Mutex) -> Mutex) -> StripedMutex {
        let stripes = self.stripes.iter().map(|known| Counted::new(setting(known.mutex.clone())));
        StripedMutex { stripes: stripes.collect(), name: self.name }
    }

    /// Returns the stripe to which a key belongs.
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Stripe {
        self.stripe(stripe_of(key.as_ref(), self.count()))
    }

    /// Returns a stripe by its number, counted from 0; numbers beyond the last wrap around.
    pub fn stripe(&self, number: u32) -> Stripe {
        Stripe { stripes: self.stripes.clone(), number: number as usize % self.stripes.len() }
    }

    /// Returns all stripes as one lock. For a few stripes and rare use; it waits for every holder of one.
    /// More than 4096 stripes are refused with `Invalid` when it is acquired.
    pub fn all(&self) -> MultiLock {
        self.stripes.iter().fold(MultiLock::new(), |all, stripe| all.and(&stripe.mutex))
    }

    /// Acquires a stripe that is free, or else waits for one.
    ///
    /// It tries each once, beginning anywhere; if none is free, it is queued at two of them, and
    /// tries a few of the others every second. It takes the first that is granted.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is left behind.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn lock_any(&self) -> Result<Guard> {
        // A wait without a limit ends with a guard, or with an error.
        self.acquire_any(None).await?.ok_or_else(|| Error::closed("lock"))
    }

    /// Acquires any stripe; `None` if none is granted in time.
    async fn acquire_any(&self, time: Option<WaitTime>) -> Result<Option<Guard>> {
        let (began, start) = (self.now(), random_below(self.count())?);
        let looked = self.look(start, self.count(), time).await?;
        self.stripe(start).count_attempt(FirstLook::of(&looked));
        match time.filter(|time| self.now() >= time.end) {
            _ if looked.is_some() => Ok(looked),
            Some(time) => Box::pin(self.last_tries(start, time.limit)).await,
            None => Box::pin(self.wait_for_any(start, began, time)).await,
        }
    }

    /// Waits in the queues of two stripes, and tries others now and then.
    async fn wait_for_any(&self, start: u32, began: Moment, time: Option<WaitTime>) -> Result<Option<Guard>> {
        let queued = |number: u32| async move {
            let stripe = self.stripe(number);
            let waited = match time {
                None => stripe.mutex().lock().await.map(Some),
                Some(time) => stripe.mutex().try_lock_for(stripe.now().until(time.end)).await,
            };
            waited.and_then(|guard| guard.map(|guard| stripe.finish(began, Ok(guard))).transpose())
        };
        let mut waits = FuturesUnordered::from_iter([queued(start).boxed()]);
        if self.count() > 1 {
            waits.push(queued(start.wrapping_add(self.count() / 2)).boxed());
            // The two may be held for long, by this very task perhaps, while another becomes free.
            waits.push(self.retry_others(start, time).boxed());
        }
        let mut last = Ok(None);
        while let Some(ended) = waits.next().await {
            let is_over = time.is_some_and(|time| self.now() >= time.end);
            match ended {
                Ok(None) => {}
                // Another one may be granted all the same.
                Err(error) if is_over => last = Err(graver(last.err(), error)),
                _ => return ended,
            }
        }
        last
    }

    /// Tries a few stripes now and then until one of them is free, and a last time at the end.
    async fn retry_others(&self, start: u32, time: Option<WaitTime>) -> Result<Option<Guard>> {
        let (engine, mut next) = (self.stripe(start).mutex().engine().clone(), start);
        loop {
            let left = time.map_or(Duration::MAX, |time| self.now().until(time.end));
            // If the client closes meanwhile, the next try reports it.
            engine.sleep(left.min(RETRY_INTERVAL)).await;
            if let Some(time) = time.filter(|_| left <= RETRY_INTERVAL) {
                return self.last_tries(start, time.limit).await;
            }
            next = next.wrapping_add(TRIES_PER_ROUND);
            if let Some(guard) = self.look(next, TRIES_PER_ROUND.min(self.count()), time).await? {
                return Ok(Some(guard));
            }
        }
    }

    /// Acquires a stripe that is free; `None` if none is.
    ///
    /// # Cancel safety
    /// As [`StripedMutex::lock_any`].
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_lock_any(&self) -> Result<Option<Guard>> {
        let start = random_below(self.count())?;
        let tried = self.try_some(start, self.count()).await?;
        self.stripe(start).count_attempt(FirstLook::of(&tried));
        Ok(tried)
    }

    /// Acquires a stripe as [`StripedMutex::lock_any`], waiting up to `limit`; `None` if none is free by
    /// then.
    ///
    /// At the end it tries those at which it was queued, and of many stripes up to three others, one after the other.
    /// Each of them has two seconds to answer, so a slow store may take eight seconds more than the limit. A limit of
    /// zero tries all of them once.
    ///
    /// # Cancel safety
    /// As [`StripedMutex::lock_any`].
    ///
    /// # Errors
    /// As [`StripedMutex::lock_any`] and [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub async fn try_lock_any_for(&self, limit: Duration) -> Result<Option<Guard>> {
        if limit.is_zero() {
            return self.try_lock_any().await;
        }
        self.acquire_any(Some(WaitTime { limit, end: self.now().after(limit) })).await
    }

    /// Tries a few stripes after a wait of `limit`, except for those at which it is queued: their waits ask a last time
    /// themselves, and meanwhile refuse others of the same owner. Each has the time of one answer.
    async fn last_tries(&self, start: u32, limit: Duration) -> Result<Option<Guard>> {
        let (engine, count) = (self.stripe(0).mutex().engine().clone(), self.count());
        for step in (1..TRIES_PER_ROUND.min(count)).filter(|step| *step != count / 2) {
            let last_try = Box::pin(self.try_some(start.wrapping_add(step), 1));
            if let Some(guard) = engine.with_answer_limit(limit, last_try).await? {
                return Ok(Some(guard));
            }
        }
        Ok(None)
    }

    /// Returns the statistics of this client for each stripe since the lock was made, with a
    /// recommended number of stripes.
    pub fn report(&self) -> StripeReport {
        let load = Ordering::Relaxed;
        let uses = self.stripes.iter().map(|stripe| StripeUse {
            attempts: stripe.attempts.load(load),
            taken: stripe.taken.load(load),
            waited: stripe.waited.load(load),
            wait: Duration::from_nanos(stripe.wait_nanos.load(load)),
        });
        StripeReport { name: self.name.clone(), stripes: uses.collect() }
    }

    /// Acquires the first free stripe of `count` for a caller that waits afterwards: a stripe that an outage hides
    /// counts as taken, since the wait outlasts the outage. At the end of the time no further stripe is tried.
    async fn look(&self, start: u32, count: u32, time: Option<WaitTime>) -> Result<Option<Guard>> {
        let Some(time) = time else {
            return none_in_outage(self.try_some(start, count).await);
        };
        for step in 0..count {
            let stripe = self.stripe(start.wrapping_add(step));
            let request = Box::pin(stripe.try_now());
            let answer = answered_in_time(stripe.mutex().engine(), time, request).await;
            let is_over = self.now() >= time.end;
            match answer {
                Ok(None) if !is_over => {}
                Err(error) if !is_over && error.is_outage() => return Ok(None),
                ended => return ended,
            }
        }
        Ok(None)
    }

    fn now(&self) -> Moment {
        self.stripes[0].mutex.engine().clock().now()
    }

    /// Acquires the first free stripe of `count`, beginning at `start`.
    async fn try_some(&self, start: u32, count: u32) -> Result<Option<Guard>> {
        for step in 0..count {
            if let Some(guard) = self.stripe(start.wrapping_add(step)).try_now().await? {
                return Ok(Some(guard));
            }
        }
        Ok(None)
    }
}

impl Stripe {
    /// Returns its number, counted from 0.
    pub fn number(&self) -> u32 {
        u32::try_from(self.number).unwrap_or(u32::MAX)
    }

    /// Waits in the queue until it is granted.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn lock(&self) -> Result<Guard> {
        let began = self.now();
        if let Some(ended) = self.after_first_look(began, self.mutex().try_lock().await) {
            return ended;
        }
        let waited = Box::pin(self.mutex().lock()).await;
        self.finish(began, waited)
    }

    /// Acquires it if it is free now; `None` if it is not.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        let tried = self.try_now().await?;
        self.count_attempt(FirstLook::of(&tried));
        Ok(tried)
    }

    /// Acquires it if it is free now, and counts no attempt.
    async fn try_now(&self) -> Result<Option<Guard>> {
        let began = self.now();
        let tried = self.mutex().try_lock().await?;
        tried.map(|guard| self.finish(began, Ok(guard))).transpose()
    }

    /// Waits in the queue for up to `limit`; `None` if it is not free by then.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    /// As [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<Guard>> {
        if limit.is_zero() {
            // It tries once, and that try has to be completed.
            return self.try_lock().await;
        }
        let began = self.now();
        let time = WaitTime { limit, end: began.after(limit) };
        let first_look = Box::pin(self.mutex().try_lock());
        let looked = answered_in_time(self.mutex().engine(), time, first_look).await;
        let rest = limit.saturating_sub(self.now().since(began));
        if rest.is_zero() && looked.is_err() {
            return looked;
        }
        if let Some(ended) = self.after_first_look(began, looked) {
            return ended.map(Some);
        }
        if rest.is_zero() {
            return Ok(None);
        }
        let waited = self.mutex().try_lock_for(rest).await?;
        waited.map(|guard| self.finish(began, Ok(guard))).transpose()
    }

    /// Returns the lock itself.
    pub fn mutex(&self) -> &Mutex {
        &self.stripes[self.number].mutex
    }

    /// Returns how the acquisition ends after a first look, which finds out whether another holder is in the way: that
    /// is what the report counts. `None` if a wait has to follow.
    fn after_first_look(&self, began: Moment, looked: Result<Option<Guard>>) -> Option<Result<Guard>> {
        match looked {
            Ok(Some(guard)) => {
                self.count_attempt(FirstLook::Free);
                Some(self.finish(began, Ok(guard)))
            }
            Err(error) if !error.is_outage() => Some(Err(error)),
            // The wait gives a store time to answer again.
            Ok(None) | Err(_) => {
                self.count_attempt(FirstLook::Taken);
                None
            }
        }
    }

    /// Counts an attempt by what its first look has found.
    fn count_attempt(&self, look: FirstLook) {
        let counted = &self.stripes[self.number];
        counted.attempts.fetch_add(1, Ordering::Relaxed);
        if look == FirstLook::Taken {
            counted.waited.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn now(&self) -> Moment {
        self.mutex().engine().clock().now()
    }

    fn finish(&self, began: Moment, outcome: Result<Guard>) -> Result<Guard> {
        let counted = &self.stripes[self.number];
        let nanos = u64::try_from(self.now().since(began).as_nanos()).unwrap_or(u64::MAX);
        counted.wait_nanos.fetch_add(nanos, Ordering::Relaxed);
        if outcome.is_ok() {
            counted.taken.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }
}

/// The pause between two tries of stripes at which a waiter for any stripe is not queued.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The number of stripes per round of tries: a waiter costs the server no more than this.
const TRIES_PER_ROUND: u32 = 4;
/// The most stripes of one lock.
const MAX_STRIPES: u32 = 65_536;

/// Returns the stripe from the upper bits of the hash: the same in every process and every version.
fn stripe_of(key: &[u8], count: u32) -> u32 {
    // Invariant: smaller than `count`.
    ((u128::from(hashed(key)) * u128::from(count)) >> 64) as u32
}

/// Returns FNV-1a over the key, mixed: the same in every process and every version.
fn hashed(key: &[u8]) -> u64 {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // Short keys differ in the lower bits of their hash only: mix them into the upper ones (the
    // finalizer of MurmurHash3).
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

/// The time that a wait has.
#[derive(Clone, Copy, Debug)]
struct WaitTime {
    limit: Duration,
    end: Moment,
}

/// Waits for the answer to a request. One that is under way at the end has the time of an answer: if it is granted,
/// another one is refused because of it. A client that closes reports that itself.
async fn answered_in_time(
    engine: &Engine,
    time: WaitTime,
    request: impl Future<Output = Result<Option<Guard>>> + Unpin,
) -> Result<Option<Guard>> {
    match select(request, pin!(engine.sleep_until(time.end))).await {
        Either::Left((answer, _)) => answer,
        Either::Right((false, request)) => request.await,
        Either::Right((true, request)) => engine.with_answer_limit(time.limit, request).await,
    }
}

/// Returns the error to report of two requests: one that may have taken effect is not hidden by one that did not.
fn graver(before: Option<Error>, error: Error) -> Error {
    before.filter(Error::may_have_happened).unwrap_or(error)
}

/// Returns `None` for a failure that a wait may outlast.
fn none_in_outage(tried: Result<Option<Guard>>) -> Result<Option<Guard>> {
    match tried {
        Err(error) if error.is_outage() => Ok(None),
        outcome => outcome,
    }
}

fn random_below(count: u32) -> Result<u32> {
    let random = crate::random::u32().map_err(|error| {
        Error::new(
            ErrorKind::Unavailable,
            "lock",
            format!("the operating system gives no random bytes: {error}"),
        )
    })?;
    Ok(random % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_request_that_may_have_happened_is_reported() {
        let [unknown, refused] = [ErrorKind::OutcomeUnknown, ErrorKind::Unavailable];
        for (before, error) in [(Some(unknown), refused), (Some(refused), unknown), (None, unknown)] {
            let of = |kind| Error::new(kind, "lock", "no");
            assert_eq!(graver(before.map(of), of(error)).kind(), unknown);
        }
    }

    #[test]
    fn key_always_maps_to_the_same_stripe() {
        // These are an interface: processes of different versions have to agree.
        let stripes = ["", "a", "customer/7", "käse"].map(|key| stripe_of(key.as_bytes(), 120));
        assert_eq!(stripes, SEGMENTS_OF_OLD);
    }

    const SEGMENTS_OF_OLD: [u32; 4] = [112, 61, 66, 44];

    #[test]
    fn keys_spread_evenly() {
        let mut counts = [0_u32; 12];
        for key in 0..12_000 {
            counts[stripe_of(format!("customer/{key}").as_bytes(), 12) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
