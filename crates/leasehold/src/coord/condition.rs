//! Waiting under a lock until a notification says that it is worth looking again.
//!
//! Ground rules: a waiter is recorded in a register before the lock is released, so no later holder of
//! the lock can miss it. A notification belongs to a waiter until it has the lock again; if that waiter
//! dies or leaves before, the notification goes to the next. Each step is one swap of the register, so
//! no change is partial.

#[cfg(test)]
mod fuzz;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Moment, Resource};

use super::members::{Member, Members};
use crate::engine::registers::record::{Parts, Record, are_distinct, foreign};
use crate::engine::{Change, Engine, Register};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Guard, HeldUntilReleased, RwLock};

/// A condition to wait for under a lock, across all processes that use the same store.
///
/// It works like `java.util.concurrent.locks.Condition`: while holding a lock, a task finds that a
/// condition is not met and [waits](Guard::wait), which releases the lock for others. A task that
/// changes the condition notifies, while it holds the same lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use std::sync::Mutex as Local;
///
/// let locks = leasehold::Client::open("mem:").await?;
/// let (queue, not_empty) = (locks.mutex("queue"), locks.condition("queue/not empty"));
/// let jobs = Local::new(Vec::new()); // in your program a table, a file, a service
///
/// let take = async {
///     let mut guard = queue.lock().await?;
///     loop {
///         if let Some(job) = jobs.lock().unwrap().pop() {
///             return Ok::<_, leasehold::Error>(job);
///         }
///         guard = guard.wait(&not_empty).await?; // always in a loop: look again
///     }
/// };
/// let put = async {
///     let guard = queue.lock().await?;
///     jobs.lock().unwrap().push("job 42");
///     guard.notify_one(&not_empty).await?;
///     guard.release().await
/// };
/// let (taken, put) = tokio::join!(take, put);
/// put?;
/// assert_eq!(taken?, "job 42");
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// Releasing the lock and beginning to wait is one step for every user of the lock: no notification
/// that was given after it is missed. The longest waiter is notified first. A notification whose
/// receiver dies, or leaves, before it has the lock again goes to the next waiter. A notification by a
/// process that died was given whole, or not at all.
///
/// # Does not promise
/// The condition may not be met after a wake-up: another task may have been quicker, or the wake-up may
/// be spurious, as happens if a receiver that still lives was not heard of for its
/// [ttl](Condition::ttl), or if the store did not answer the release of the lock. So wait in a loop.
/// A notification may reach the next waiter late if its receiver died unnoticed: that takes up to one and a
/// third of that ttl.
///
/// # Room
/// Each waiter takes eight bytes of one value: some 65,000 fit at a time on the stores of this library, or fewer
/// on a MySQL with a small `max_allowed_packet`. A backend of another author may have room for four hundred only.
/// Each also holds a claim of a name that all share: 10,000 fit on etcd, and some thousands on memcached, SQLite and
/// MySQL.
#[derive(Clone, Debug)]
pub struct Condition {
    engine: Arc<Engine>,
    name: Result<Resource>,
    members: Members,
}

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitOutcome {
    /// A notification, or a spurious wake-up. Look again.
    Notified,
    /// The time was over before a notification.
    TimedOut,
}

impl Condition {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, liveness_lock: RwLock) -> Condition {
        let name = Resource::new(&format!("{name}!condition")).map_err(Error::from);
        Condition { engine, name, members: Members::new(liveness_lock) }
    }

    /// Returns the name of the resource on which waiters show that they live.
    pub(crate) fn liveness_name(name: &str) -> String {
        format!("{name}!waiting")
    }

    /// Sets how long a waiter still counts as alive after the last sign of life of its
    /// process. Default: 30 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.members = self.members.ttl(ttl);
        self
    }

    fn register(&self, op: &'static str) -> Result<Register> {
        Register::open(&self.engine, self.name.clone().map_err(|error| error.with_op(op))?, op)
    }

    /// Notifies up to `count` waiters, the longest waiting first.
    async fn notify(&self, guard: &Guard, count: usize) -> Result<()> {
        let register = self.register("notify")?;
        if !guard.share().is_exclusive() {
            let text = "cannot notify under a shared lock: hold the lock alone, as a mutex or a writer";
            return Err(register.error(ErrorKind::Invalid, text));
        }
        guard.check()?;
        let notify = || {
            register.ensure(|found| {
                let mut queue = WaitQueue::read(&register, found)?;
                if let Some(refused) = queue.refuses(guard) {
                    return Ok(Change::Leave(refused));
                }
                if queue.waiting.is_empty() {
                    return Ok(Change::Leave(Step::Done));
                }
                queue.notify_next(count);
                Ok(queue.written(Step::Done))
            })
        };
        let mut step = notify().await?;
        if let Step::OtherLock(_) = step {
            // Its waiters may all be dead.
            let queue = WaitQueue::present(&register).await?;
            remove_dead(&register, &self.members, None, &queue).await?;
            step = notify().await?;
        }
        step.check(&register, guard)
    }
}

/// The result of a step under a lock.
enum Step {
    Done,
    /// The register is full.
    Full,
    /// Others wait under this lock.
    OtherLock(String),
}

impl Step {
    fn check(self, register: &Register, guard: &Guard) -> Result<()> {
        let (kind, text) = match self {
            Step::Done => return Ok(()),
            Step::Full => {
                let text = "the queue of waiters is full: one value of this store holds no more; nothing \
                            was done";
                (ErrorKind::Unavailable, text.to_owned())
            }
            Step::OtherLock(lock) => {
                let held = guard.resource();
                let text = format!(
                    "the waiters of this condition use the lock `{lock}`, and this guard holds `{held}`"
                );
                (ErrorKind::Invalid, text)
            }
        };
        Err(register.error(kind, text))
    }
}

/// Waiting and notifying are methods of the guard, so that the lock is always held.
impl Guard {
    /// Releases the lock, waits for a notification, and returns with the lock, acquired again
    /// with the same settings.
    ///
    /// The new guard has a fence of its own, as after any other grant. If the lock has to be held
    /// [for some time at least](crate::Lock::min_hold), it is released after that. The store is always asked
    /// for this release: the lock does not [linger](crate::Lock::linger), and no task gets it by a local hand-off.
    ///
    /// # Cancel safety
    /// If the future is dropped, it does not wait any longer and holds nothing. A notification that it
    /// had received already goes to the next waiter.
    ///
    /// # Errors
    /// The lock is not held after any of them. `Lost` if it was lost before it could be released; the
    /// state that was read under it may have changed. `Invalid` for a reader or a permit, for a lock
    /// that its owner holds more than once, and if others wait on this condition under another lock;
    /// `Unsupported` if the store keeps no values, or has no readers, both before anything is sent.
    /// Otherwise the failure of the store or of [`Mutex::lock`](crate::Mutex::lock).
    pub async fn wait(self, condition: &Condition) -> Result<Guard> {
        self.wait_until(condition, None).await.map(|(guard, _)| guard)
    }

    /// Waits likewise for up to `limit`. The lock is acquired again in either case, and that may take longer.
    ///
    /// A future of [`Guard::wait`] that is dropped after `limit` holds nothing; this call returns the lock.
    ///
    /// # Cancel safety
    /// As [`Guard::wait`].
    ///
    /// # Errors
    /// As [`Guard::wait`].
    pub async fn wait_for(self, condition: &Condition, limit: Duration) -> Result<(Guard, WaitOutcome)> {
        self.wait_until(condition, Some(limit)).await
    }

    /// Wakes the longest waiter on this condition, if there is one. The lock stays held.
    ///
    /// # Cancel safety
    /// If the future is dropped, a waiter may or may not have been notified.
    ///
    /// # Errors
    /// `Lost` if the lock is held no longer: then no waiter was notified. `Invalid` for a reader or a
    /// permit, and if the waiters wait under another lock; otherwise the failure of the store: if the
    /// error says that the notification may have taken effect, repeating the call does no harm.
    pub async fn notify_one(&self, condition: &Condition) -> Result<()> {
        condition.notify(self, 1).await
    }

    /// Wakes all present waiters on this condition. Each gets the lock in turn.
    ///
    /// # Cancel safety
    /// As [`Guard::notify_one`].
    ///
    /// # Errors
    /// As [`Guard::notify_one`].
    pub async fn notify_all(&self, condition: &Condition) -> Result<()> {
        condition.notify(self, usize::MAX).await
    }

    async fn wait_until(
        self,
        condition: &Condition,
        limit: Option<Duration>,
    ) -> Result<(Guard, WaitOutcome)> {
        let register = condition.register("wait")?;
        let reacquire = self.reacquire("wait")?;
        self.check()?;
        let place = Place::take(condition, register, &self).await?;
        // Every later holder of the lock finds this waiter. If this task lost the lock before, its successor
        // may have missed it. Its owner may have acquired the lock once more meanwhile.
        let outcome = match self.release_to_wait("wait").await? {
            HeldUntilReleased::Yes => place.wait_notified(limit).await?,
            // A holder may have notified before this waiter was recorded, so its task looks again at once.
            HeldUntilReleased::Unknown => {
                place.leave_unless_notified().await?;
                WaitOutcome::Notified
            }
        };
        let guard = reacquire.lock().await?;
        place.leave();
        Ok((guard, outcome))
    }
}

/// A place in the queue of waiters. Dropping it leaves the queue, and hands its notification
/// on, in the background.
struct Place {
    engine: Arc<Engine>,
    register: Register,
    members: Members,
    /// The sign of life, until the place is left.
    member: Option<Member>,
    id: u64,
    /// A request may be under way by which it enters the queue.
    is_entering: bool,
    /// The notification was acted on.
    notification_used: bool,
}

impl Place {
    async fn take(condition: &Condition, register: Register, guard: &Guard) -> Result<Place> {
        let members = condition.members.clone();
        let member = members.join().await?;
        let id = member.id;
        // Made before the register is written, so that a future that is dropped meanwhile leaves again.
        let engine = condition.engine.clone();
        let (member, is_entering, notification_used) = (Some(member), true, false);
        let mut place = Place { engine, register, members, member, id, is_entering, notification_used };
        let mut step = place.enter(guard).await?;
        if !matches!(step, Step::Done) {
            // Dead waiters may still have places.
            let queue = WaitQueue::present(&place.register).await?;
            remove_dead(&place.register, &place.members, Some(id), &queue).await?;
            step = place.enter(guard).await?;
        }
        place.is_entering = false;
        step.check(&place.register, guard)?;
        Ok(place)
    }

    /// Enters the queue.
    async fn enter(&self, guard: &Guard) -> Result<Step> {
        let entering = self.register.ensure(|found| {
            let mut queue = WaitQueue::read(&self.register, found)?;
            if let Some(refused) = queue.refuses(guard) {
                return Ok(Change::Leave(refused));
            }
            if queue.has(self.id) {
                return Ok(Change::Leave(Step::Done));
            }
            queue.lock = guard.resource().as_str().to_owned();
            queue.waiting.push(self.id);
            Ok(if queue.size() > self.register.capacity() {
                Change::Leave(Step::Full)
            } else {
                queue.written(Step::Done)
            })
        });
        entering.await
    }

    /// Waits until it is notified, or the time is over; then it has left.
    async fn wait_notified(&self, limit: Option<Duration>) -> Result<WaitOutcome> {
        let clock = self.engine.clock().clone();
        let deadline = limit.map_or(Moment::NEVER, |limit| clock.now().after(limit));
        let mut next_check = None;
        let mut seen = self.register.read().await?;
        loop {
            let queue = WaitQueue::read(&self.register, seen.value.as_deref())?;
            let Some(ahead) = queue.waiting.iter().position(|id| *id == self.id) else {
                return Ok(WaitOutcome::Notified);
            };
            let now = clock.now();
            if now >= deadline {
                return self.leave_unless_notified().await;
            }
            let mut pause = CHANGE_WAIT_MAX;
            if queue.notified.is_empty() {
                next_check = None;
            } else {
                // The first of the waiters soon checks that the notified ones live. The others do so
                // only if that did not help, as when the first is dead as well.
                let patience = if ahead == 0 { FIRST_CHECK_AFTER } else { self.members.pace() };
                let due = *next_check.get_or_insert(now.after(patience));
                if now >= due {
                    if let Err(error) =
                        remove_dead(&self.register, &self.members, Some(self.id), &queue).await
                    {
                        tracing::debug!(%error, "could not check that the notified waiters are alive; the check will be repeated");
                    }
                    next_check = Some(now.after(self.members.pace()));
                    seen = self.register.read().await?;
                    continue;
                }
                pause = now.until(due);
            }
            seen = self.register.changed(&seen.stamp, pause.min(now.until(deadline))).await?;
        }
    }

    async fn leave_unless_notified(&self) -> Result<WaitOutcome> {
        let leaving = self.register.ensure(|found| {
            let mut queue = WaitQueue::read(&self.register, found)?;
            let before = queue.waiting.len();
            queue.waiting.retain(|id| *id != self.id);
            let was_waiting = queue.waiting.len() < before;
            Ok(if was_waiting { queue.written(true) } else { Change::Leave(false) })
        });
        Ok(if leaving.await? { WaitOutcome::TimedOut } else { WaitOutcome::Notified })
    }

    /// Leaves the queue, having acted on the notification.
    fn leave(mut self) {
        self.notification_used = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(member) = self.member.take() else { return };
        let (register, id) = (self.register.clone(), self.id);
        let (is_entering, notification_used) = (self.is_entering, self.notification_used);
        self.engine.spawn(async move {
            let left = register.ensure(|found| {
                let mut queue = WaitQueue::read(&register, found)?;
                if !queue.has(id) {
                    // Nothing orders this read behind a request that is under way. If the same value is written, that
                    // request finds another stamp than the one that it requires.
                    return Ok(match found {
                        Some(same) if is_entering => Change::Write(same.to_vec(), None, ()),
                        _ => Change::Leave(()),
                    });
                }
                let notified = queue.notified.len();
                queue.waiting.retain(|other| *other != id);
                queue.notified.retain(|other| *other != id);
                if queue.notified.len() < notified && !notification_used {
                    queue.notify_next(1);
                }
                Ok(queue.written(()))
            });
            if let Err(error) = left.await {
                tracing::debug!(%error, "a waiter could not leave the queue; the other waiters will notice that it is gone");
            }
            // Only now: without the sign of life the others do the same in its place.
            drop(member);
        });
    }
}

/// Removes the dead from a queue that was read, except its own waiter, and hands their notifications on.
async fn remove_dead(
    register: &Register,
    members: &Members,
    own: Option<u64>,
    seen: &WaitQueue,
) -> Result<()> {
    let living = members.living().await?;
    // A waiter is alive when it enters, so the answer is valid only for those that were in the
    // queue before that request.
    let dead = |id: &u64| own != Some(*id) && !living.contains(id);
    let dead: HashSet<u64> = seen.notified.iter().chain(&seen.waiting).copied().filter(dead).collect();
    if dead.is_empty() {
        return Ok(());
    }
    let removing = register.ensure(|found| {
        let mut queue = WaitQueue::read(register, found)?;
        let before = queue.clone();
        queue.waiting.retain(|id| !dead.contains(id));
        queue.notified.retain(|id| !dead.contains(id));
        let freed = before.notified.len() - queue.notified.len();
        queue.notify_next(freed);
        Ok(if queue == before { Change::Leave(()) } else { queue.written(()) })
    });
    removing.await
}

/// The value of the register. An empty queue has no value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct WaitQueue {
    /// The lock under which all of them wait.
    lock: String,
    /// The waiters that were notified and do not have the lock yet.
    notified: Vec<u64>,
    /// The waiters, in the order of their arrival.
    waiting: Vec<u64>,
}

impl WaitQueue {
    fn read(register: &Register, found: Option<&[u8]>) -> Result<WaitQueue> {
        let Some(found) = found else { return Ok(WaitQueue::default()) };
        WaitQueue::parsed(found).ok_or_else(|| foreign(register, "condition"))
    }

    fn parsed(found: &[u8]) -> Option<WaitQueue> {
        let mut parts = Parts::of(KIND, found)?;
        // Errors name the lock.
        let lock = Resource::new(str::from_utf8(parts.text()?).ok()?).ok()?;
        let (notified, waiting) = (parts.numbers()?, parts.numbers()?);
        let is_empty = notified.is_empty() && waiting.is_empty();
        let is_possible = !is_empty && are_distinct(notified.iter().chain(&waiting));
        let queue = WaitQueue { lock: lock.as_str().to_owned(), notified, waiting };
        (parts.is_read() && is_possible).then_some(queue)
    }

    /// Reads the present queue.
    async fn present(register: &Register) -> Result<WaitQueue> {
        WaitQueue::read(register, register.read().await?.value.as_deref())
    }

    fn written<T>(self, result: T) -> Change<T> {
        if self.notified.is_empty() && self.waiting.is_empty() {
            return Change::Remove(result);
        }
        let record = Record::of(KIND).text(self.lock.as_bytes()).numbers(&self.notified);
        Change::Write(record.numbers(&self.waiting).done(), None, result)
    }

    fn size(&self) -> usize {
        1 + 8 * (3 + self.notified.len() + self.waiting.len()) + self.lock.len()
    }

    fn has(&self, id: u64) -> bool {
        self.notified.contains(&id) || self.waiting.contains(&id)
    }

    fn notify_next(&mut self, count: usize) {
        let count = count.min(self.waiting.len());
        self.notified.extend(self.waiting.drain(..count));
    }

    /// Returns the reason why it refuses the holder of a lock.
    fn refuses(&self, guard: &Guard) -> Option<Step> {
        let is_own = self.lock.is_empty() || self.lock == guard.resource().as_str();
        (!is_own).then(|| Step::OtherLock(self.lock.clone()))
    }
}

/// A condition, in its first format.
const KIND: u8 = b'c';
/// The time for which one request waits for a change.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(30);
/// The time after which it is worth checking that a notified waiter lives.
const FIRST_CHECK_AFTER: Duration = Duration::from_millis(100);
