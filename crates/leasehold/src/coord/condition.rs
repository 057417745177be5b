//! Waiting under a lock until somebody says that it is worth looking again.
//!
//! Ground rules: who waits stands in a register before the lock is given back, so nobody who gets the lock afterwards can
//! miss him. A notification belongs to one who waits until he has the lock again; if he dies or leaves before, it goes to
//! the next. Each step is one swap of the register, so nothing is ever done by half.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Moment, Resource};

use super::members::{Member, Members};
use crate::engine::record::{Parts, Record, foreign};
use crate::engine::{Change, Engine, Register};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::{Guard, RwLock};

/// A place to wait under a lock, over all processes that use the same store.
///
/// It is used as the conditions of `java.util.concurrent` are: whoever holds a lock finds that what he needs is not there,
/// [waits](Guard::wait) and so lets others get the lock; whoever changes that notifies, while he holds the same lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use std::sync::Mutex as Local;
///
/// let locks = leasehold::Leasehold::open("mem:").await?;
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
/// To give the lock back and to begin to wait is one step for everybody who uses the lock: no notification that was given
/// after it is missed. Whoever waited longest is notified first. A notification whose receiver dies, or leaves, before
/// he has the lock again goes to the next who waits. One that was given by a process that died was given whole, or not at
/// all.
///
/// # Does not promise
/// That what was waited for is there: another may have been quicker, or the wake-up was one too many, as happens where a
/// receiver was not heard of for its [ttl](Condition::ttl) and yet lives. So wait in a loop. That a notification reaches the next
/// at once where its receiver died unnoticed: it takes up to one and a third of that ttl.
///
/// # Room
/// Some hundred can wait at a time on the stores whose registers are smallest; each waits with a claim of his own.
#[derive(Clone, Debug)]
pub struct Condition {
    engine: Arc<Engine>,
    name: Result<Resource>,
    members: Members,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitOutcome {
    /// Somebody notified, or the wake-up was one too many. Look again.
    Notified,
    /// The time was over before.
    TimedOut,
}

impl Condition {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, signs: RwLock) -> Condition {
        let name = Resource::new(&format!("{name}!condition")).map_err(Error::from);
        Condition { engine, name, members: Members::new(signs) }
    }

    /// The name of the resource on which those who wait show that they live.
    pub(crate) fn signs_of(name: &str) -> String {
        format!("{name}!waiting")
    }

    /// How long one who waits still counts as alive after his process was last heard of. 30 s unless set.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.members = self.members.ttl(ttl);
        self
    }

    fn register(&self, op: &'static str) -> Result<Register> {
        Register::open(&self.engine, self.name.clone()?, op)
    }

    /// Notifies as many of those who wait, the longest waiting first.
    async fn notify(&self, guard: &Guard, count: usize) -> Result<()> {
        let register = self.register("notify")?;
        if !guard.share().is_exclusive() {
            let text = "whoever notifies must hold the lock alone, as a mutex or a writer";
            return Err(register.error(ErrorKind::Invalid, text));
        }
        guard.check()?;
        let told = register.ensure(|found| {
            let mut line = Line::read(&register, found)?;
            line.belongs_to(&register, guard)?;
            if line.waiting.is_empty() {
                return Ok(Change::Leave(()));
            }
            let count = count.min(line.waiting.len());
            line.notified.extend(line.waiting.drain(..count));
            Ok(line.written(()))
        });
        told.await
    }
}

/// Waiting and notifying is done with what is held: so nobody can forget to hold it.
impl Guard {
    /// Gives the lock back, waits until somebody notifies, and comes back with the lock, asked for on the same terms.
    ///
    /// The new guard has a fence of its own, as after any other grant. Where the lock has to be held
    /// [for some time at least](crate::Lock::at_least), it is given back after that.
    ///
    /// # Cancel safety
    /// A dropped future waits no longer and holds nothing. A notification that it had got already goes to the next.
    ///
    /// # Errors
    /// The lock is not held after any of them. `Lost` where it was lost before it could be given back; what was looked at
    /// may have changed. `Invalid` for a reader or a permit, for a lock that its owner holds more than once, and where
    /// others wait on this condition under another lock; `Unsupported` where the store keeps no values, or knows no
    /// readers, both before anything is sent. Else as the store, or [`Mutex::lock`](crate::Mutex::lock), failed.
    pub async fn wait(self, condition: &Condition) -> Result<Guard> {
        self.wait_until(condition, None).await.map(|(guard, _)| guard)
    }

    /// The same for up to `limit`. The lock is got back in either case, and that may take longer.
    ///
    /// # Cancel safety
    /// As [`Guard::wait`].
    ///
    /// # Errors
    /// As [`Guard::wait`].
    pub async fn wait_timeout(self, condition: &Condition, limit: Duration) -> Result<(Guard, WaitOutcome)> {
        self.wait_until(condition, Some(limit)).await
    }

    /// Wakes the one who has waited on this condition for longest, if any does. The lock stays held.
    ///
    /// # Cancel safety
    /// Of a dropped future somebody may be notified or not.
    ///
    /// # Errors
    /// `Lost` where the lock is held no longer: then nobody was notified. `Invalid` for a reader or a permit, and where those
    /// who wait do so under another lock; else as the store failed: where the error says that it may have happened, to
    /// repeat it does no harm.
    pub async fn notify_one(&self, condition: &Condition) -> Result<()> {
        condition.notify(self, 1).await
    }

    /// Wakes all who wait on this condition now. Each gets the lock in turn.
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
        let again = self.again("wait")?;
        self.check()?;
        let place = Place::take(condition, register, &self).await?;
        // Whoever gets the lock from here on finds the place. One who lost the lock before may have been missed.
        self.release().await.map_err(|error| error.with_op("wait"))?;
        let outcome = place.woken(limit).await?;
        let guard = again.lock().await?;
        place.leave();
        Ok((guard, outcome))
    }
}

/// A place among those who wait. Dropping it leaves, and hands on what was notified to it, in the background.
struct Place {
    engine: Arc<Engine>,
    register: Register,
    members: Members,
    /// There until the place is left.
    member: Option<Member>,
    id: u64,
    /// What was notified to it was acted on.
    used: bool,
}

impl Place {
    async fn take(condition: &Condition, register: Register, guard: &Guard) -> Result<Place> {
        let members = condition.members.clone();
        let member = members.join().await?;
        let id = member.id;
        // Made before the register is written, so that a future that is dropped meanwhile leaves again.
        let engine = condition.engine.clone();
        let place = Place { engine, register, members, member: Some(member), id, used: false };
        if !place.enter(guard).await? {
            // There is no room: those who died in the line may still take it.
            let line = Line::read(&place.register, place.register.read().await?.value.as_deref())?;
            place.hand_on(&line).await?;
            if !place.enter(guard).await? {
                let text = "as many wait already as fit into one value of this store; nothing was done";
                return Err(place.register.error(ErrorKind::Unavailable, text));
            }
        }
        Ok(place)
    }

    /// `false` where there is no room.
    async fn enter(&self, guard: &Guard) -> Result<bool> {
        let entering = self.register.ensure(|found| {
            let mut line = Line::read(&self.register, found)?;
            line.belongs_to(&self.register, guard)?;
            if line.has(self.id) {
                return Ok(Change::Leave(true));
            }
            line.lock = guard.resource().as_str().to_owned();
            line.waiting.push(self.id);
            Ok(if line.size() > self.register.room() { Change::Leave(false) } else { line.written(true) })
        });
        entering.await
    }

    /// Waits until it is notified, or the time is over; then it has left.
    async fn woken(&self, limit: Option<Duration>) -> Result<WaitOutcome> {
        let clock = self.engine.clock().clone();
        let deadline = limit.map_or(Moment::NEVER, |limit| clock.now().after(limit));
        let mut look_at = None;
        let mut seen = self.register.read().await?;
        loop {
            let line = Line::read(&self.register, seen.value.as_deref())?;
            let Some(ahead) = line.waiting.iter().position(|id| *id == self.id) else {
                return Ok(WaitOutcome::Notified);
            };
            let now = clock.now();
            if now >= deadline {
                return self.leave_unless_notified().await;
            }
            let mut pause = LOOK;
            if line.notified.is_empty() {
                look_at = None;
            } else {
                // The first of those who wait soon asks whether those who were told live. The others do so only where that
                // did not help, as when the first is dead as well.
                let patience = if ahead == 0 { SOON } else { self.members.pace() };
                let due = *look_at.get_or_insert(now.after(patience));
                if now >= due {
                    if let Err(error) = self.hand_on(&line).await {
                        tracing::debug!(%error, "whether those who were notified live is asked again");
                    }
                    look_at = Some(now.after(self.members.pace()));
                    seen = self.register.read().await?;
                    continue;
                }
                pause = now.until(due);
            }
            seen = self.register.changed(&seen.stamp, pause.min(now.until(deadline))).await?;
        }
    }

    /// Takes the dead out of a line that was seen, and hands on what was notified to them.
    async fn hand_on(&self, seen: &Line) -> Result<()> {
        let living = self.members.living().await?;
        // Only who was in the line before that question can be told dead by its answer: one enters it alive.
        let dead = |id: &u64| *id != self.id && !living.contains(id);
        let dead: HashSet<u64> = seen.notified.iter().chain(&seen.waiting).copied().filter(dead).collect();
        if dead.is_empty() {
            return Ok(());
        }
        let handing = self.register.ensure(|found| {
            let mut line = Line::read(&self.register, found)?;
            let before = line.clone();
            line.waiting.retain(|id| !dead.contains(id));
            line.notified.retain(|id| !dead.contains(id));
            let freed = before.notified.len() - line.notified.len();
            line.tell(freed);
            Ok(if line == before { Change::Leave(()) } else { line.written(()) })
        });
        handing.await
    }

    async fn leave_unless_notified(&self) -> Result<WaitOutcome> {
        let leaving = self.register.ensure(|found| {
            let mut line = Line::read(&self.register, found)?;
            let before = line.waiting.len();
            line.waiting.retain(|id| *id != self.id);
            let was_waiting = line.waiting.len() < before;
            Ok(if was_waiting { line.written(true) } else { Change::Leave(false) })
        });
        Ok(if leaving.await? { WaitOutcome::TimedOut } else { WaitOutcome::Notified })
    }

    /// Leaves, having acted on what was notified.
    fn leave(mut self) {
        self.used = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(member) = self.member.take() else { return };
        let (register, id, used) = (self.register.clone(), self.id, self.used);
        self.engine.spawn(async move {
            let left = register.ensure(|found| {
                let mut line = Line::read(&register, found)?;
                if !line.has(id) {
                    return Ok(Change::Leave(()));
                }
                let notified = line.notified.len();
                line.waiting.retain(|other| *other != id);
                line.notified.retain(|other| *other != id);
                if line.notified.len() < notified && !used {
                    line.tell(1);
                }
                Ok(line.written(()))
            });
            if let Err(error) = left.await {
                tracing::debug!(%error, "who waited could not leave; the others will find him gone");
            }
            // Only now: without the sign of life the others do the same in his place.
            drop(member);
        });
    }
}

/// What stands in the register. An empty line is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Line {
    /// The lock under which all of them wait.
    lock: String,
    /// Who was notified and does not have the lock yet.
    notified: Vec<u64>,
    /// Who waits, in the order of coming.
    waiting: Vec<u64>,
}

impl Line {
    fn read(register: &Register, found: Option<&[u8]>) -> Result<Line> {
        let Some(found) = found else { return Ok(Line::default()) };
        let read = || {
            let mut parts = Parts::of(KIND, found)?;
            let lock = String::from_utf8(parts.text()?.to_vec()).ok()?;
            let line = Line { lock, notified: parts.numbers()?, waiting: parts.numbers()? };
            parts.is_read().then_some(line)
        };
        read().ok_or_else(|| foreign(register, "condition"))
    }

    fn written<T>(self, told: T) -> Change<T> {
        if self.notified.is_empty() && self.waiting.is_empty() {
            return Change::Remove(told);
        }
        let record = Record::of(KIND).text(self.lock.as_bytes()).numbers(&self.notified);
        Change::Write(record.numbers(&self.waiting).done(), None, told)
    }

    fn size(&self) -> usize {
        1 + 8 * (3 + self.notified.len() + self.waiting.len()) + self.lock.len()
    }

    fn has(&self, id: u64) -> bool {
        self.notified.contains(&id) || self.waiting.contains(&id)
    }

    fn tell(&mut self, count: usize) {
        let count = count.min(self.waiting.len());
        self.notified.extend(self.waiting.drain(..count));
    }

    fn belongs_to(&self, register: &Register, guard: &Guard) -> Result<()> {
        let lock = guard.resource().as_str();
        if self.lock.is_empty() || self.lock == lock {
            return Ok(());
        }
        let text = format!("those who wait here do so under the lock `{}`, and this is `{lock}`", self.lock);
        Err(register.error(ErrorKind::Invalid, text))
    }
}

/// Condition, written in its first way.
const KIND: u8 = b'c';
/// How long one question waits for a change.
const LOOK: Duration = Duration::from_secs(30);
/// How long one who was notified may take until it is worth asking whether he lives.
const SOON: Duration = Duration::from_millis(100);
