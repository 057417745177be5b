//! A reader that can become a writer, and a reader again, without a release in between.
//!
//! Ground rules: the guard always keeps its claim as a reader. As a writer it holds a second claim, for all
//! the shares except its own. So the one admission rule excludes others, on every store that counts shares,
//! and to become a reader again is to release the second claim. A loss of one claim is marked on the other before
//! either is released.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use leasehold_core::{Fence, LossCause, Resource, Share, jittered};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot};

use super::kind::{Exclusive, Shared};
use super::settings::GuardSettings;
use super::{Guard, Lock, while_held};
use crate::engine::deadline::Deadline;
use crate::engine::{Engine, Lease, State, Wait, Want, Wanted};
use crate::error::{Error, ErrorKind, Result, none_if_timed_out};
use crate::mutant::mutant;
use crate::panics::in_this_span;
use crate::random;

/// A reader that can become a writer, from [`RwLock::upgradable_read`](crate::RwLock::upgradable_read).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Client::open("mem:").await?;
/// let prices = locks.rwlock("prices");
/// let mut guard = prices.upgradable_read().await?; // beside other readers
/// guard.upgrade().await?; // waits until they are gone; no other client wrote meanwhile
/// assert!(prices.try_read().await?.is_none());
/// guard.downgrade().await?;
/// assert!(prices.try_read().await?.is_some());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// The guard holds the lock without a gap: between reading and writing, in both directions, no other client
/// writes. As a writer it is the only holder. Of several readers that want to write, one succeeds, and the
/// others get `Deadlock` at once; so does a reader that would wait behind a writer that waits for this
/// reader. A reader that gets this error is still a reader. The claims as a reader and as a writer are
/// lost together. The fence is that of the latest grant, and does not fall with a downgrade. The
/// [maximum time to hold](crate::Lock::max_hold) counts from the grant as a reader. After the loss of a writer
/// the [lock delay](crate::Lock::lock_delay) excludes readers, too.
///
/// # Does not promise
/// An upgrade is not always possible: if a writer already waits, even one of this process, only a release
/// of the reader resolves that. If the store does not confirm the end of an upgrade, other readers can get
/// `Deadlock` for up to its ttl, although no reader is upgrading. Readers that come while the guard waits to
/// write are queued behind it on a store that keeps a queue, and pass it on a store that does not.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct Upgradable {
    // Dropped before the reader, so that it is never a writer that does not read.
    write: Option<Writer>,
    /// The fence of the last claim as a writer that was given up.
    wrote: Option<Fence>,
    read: Guard,
    lock: Lock<Shared>,
    gate: Lock<Exclusive>,
    /// Locked from before the gate is requested until its release is confirmed: the next upgrade would take
    /// a gate that is still being released for that of another reader.
    gate_use: Arc<AsyncMutex<()>>,
}

/// The claim as a writer.
#[derive(Debug)]
struct Writer {
    // Dropped before the claim is released.
    pair: Pair,
    guard: Guard,
}

impl Writer {
    async fn release(self) -> Result<()> {
        let Writer { pair, guard } = self;
        drop(pair);
        guard.release().await
    }
}

/// The claims of a writer, which are lost together. Its drop marks a loss of one on the other.
#[derive(Debug)]
struct Pair(Arc<PairedClaims>);

#[derive(Debug)]
struct PairedClaims {
    read: Arc<Lease>,
    write: Arc<Lease>,
    engine: Arc<Engine>,
}

impl Pair {
    /// Pairs the claims, and marks a loss of one on the other as soon as it happens: what is lost is not renewed.
    fn of(read: &Guard, write: &Guard, engine: &Arc<Engine>) -> Pair {
        let [read, write] = [read, write].map(|guard| guard.hold().lease().clone());
        let (mut read_changes, mut write_changes) = (read.watch(), write.watch());
        let claims = Arc::new(PairedClaims { read, write, engine: engine.clone() });
        // After a release a claim may belong to another user.
        let paired = Arc::downgrade(&claims);
        engine.spawn_detached(async move {
            select(Box::pin(read_changes.ended()), Box::pin(write_changes.ended())).await;
            if let Some(claims) = paired.upgrade() {
                claims.cause();
            }
        });
        Pair(claims)
    }
}

impl PairedClaims {
    /// Returns the cause of the loss of either claim, and marks it on the other.
    fn cause(&self) -> Option<LossCause> {
        for (claim, other) in [(&self.read, &self.write), (&self.write, &self.read)] {
            if let State::Lost(cause) = claim.state() {
                self.engine.lose(other, cause);
                return Some(cause);
            }
        }
        None
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.0.cause();
    }
}

/// The lock that one reader holds while it becomes a writer. Dropping it releases it in the background.
struct Gate {
    held: Option<(Guard, Option<OwnedMutexGuard<()>>)>,
    engine: Arc<Engine>,
}

impl Gate {
    fn cause(&self) -> Option<LossCause> {
        self.held.as_ref().and_then(|(guard, _)| guard.cause())
    }

    async fn lost(&self) -> LossCause {
        match &self.held {
            Some((guard, _)) => guard.lost().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let Some((guard, in_use)) = self.held.take() else { return };
        self.engine.spawn(async move {
            if let Err(error) = guard.release().await {
                tracing::debug!(%error, "the lock that keeps others from upgrading is left to its ttl");
            }
            drop(in_use);
        });
    }
}

impl Upgradable {
    pub(super) async fn read(lock: &Lock<Shared>, wait: Wait) -> Result<Upgradable> {
        let resource = lock.name.clone()?;
        if lock.settings.guard.owner.is_some() {
            let text = "a reader that may become a writer cannot be re-entered: acquire it without an owner";
            return Err(Error::new(ErrorKind::Invalid, "lock", text).on(&resource));
        }
        lock.want(rest()?)?;
        let gate = lock.companion(&format!("{resource}!upgrade"), Exclusive);
        gate.want(Share::MUTEX)?;
        // The two claims of an upgrade belong together, so neither stays behind alone.
        let lock = &lock.clone().linger(Duration::ZERO);
        let read = match lock.try_hold(Share::READER, wait).await? {
            Some(read) => read,
            None => return Err(Error::timeout(Duration::ZERO, &resource)),
        };
        let gate_use = Arc::new(AsyncMutex::new(()));
        Ok(Upgradable { write: None, wrote: None, read, lock: lock.clone(), gate, gate_use })
    }

    /// Becomes a writer: waits until all other readers are gone. A writer stays a writer.
    ///
    /// # Cancel safety
    /// If the future is dropped, the guard stays a reader, or has become a writer.
    ///
    /// # Errors
    /// `Deadlock` if another reader is about to become a writer, or a writer waits already: each would wait
    /// for the other, so release the reader and acquire for writing. `Lost` if the reader was lost meanwhile.
    /// Otherwise as [`Mutex::lock`](crate::Mutex::lock). Unless the lock is lost, the guard is still
    /// a reader.
    pub async fn upgrade(&mut self) -> Result<()> {
        self.become_writer(Wait::Forever).await
    }

    /// Becomes a writer if this is the only reader now; `false` if other readers exist. A writer stays a writer.
    ///
    /// # Cancel safety
    /// As [`Upgradable::upgrade`].
    ///
    /// # Errors
    /// As [`Upgradable::try_upgrade_for`].
    pub async fn try_upgrade(&mut self) -> Result<bool> {
        self.try_upgrade_for(Duration::ZERO).await
    }

    /// Becomes a writer, and waits up to `limit` until all other readers are gone; `false` if they are
    /// not gone by then. A writer stays a writer.
    ///
    /// # Cancel safety
    /// As [`Upgradable::upgrade`].
    ///
    /// # Errors
    /// As [`Upgradable::upgrade`] and [`Mutex::try_lock_for`](crate::Mutex::try_lock_for). Also `Unavailable` if the
    /// store has not confirmed by then the end of an earlier upgrade, of this guard or of a reader that is gone.
    pub async fn try_upgrade_for(&mut self, limit: Duration) -> Result<bool> {
        Ok(none_if_timed_out(self.become_writer(Wait::For(limit)).await)?.is_some())
    }

    /// Becomes a reader again, and waits until the server confirms it. A reader stays a reader.
    ///
    /// # Cancel safety
    /// The guard becomes a reader even if the future is dropped.
    ///
    /// # Errors
    /// `Lost` if the lock was lost before; `OutcomeUnknown` if the server did not answer: the guard is a
    /// reader, and others may have to wait for up to the ttl.
    pub async fn downgrade(&mut self) -> Result<()> {
        // A claim as a writer that was lost is not given up: the guard stays lost.
        self.check()?;
        let Some(write) = self.write.take() else { return Ok(()) };
        // A resource that the writer has opened would refuse the older fence of the reader.
        self.wrote = write.guard.fence();
        let released = write.release().await;
        // Another reader that finds the gate in use takes this one for about to write again.
        drop(self.unused_gate().await);
        released
    }

    async fn become_writer(&mut self, wait: Wait) -> Result<()> {
        self.check()?;
        if self.is_writer() {
            return Ok(());
        }
        let engine = &self.lock.engine;
        let deadline = Deadline::of(wait, engine);
        // After the deadline all requests of the upgrade together have the time of one answer.
        let unanswered = async {
            deadline.passed().await;
            engine.with_answer_limit(deadline.waited(), std::future::pending::<Result<Option<()>>>()).await
        };
        let granted = tokio::select! {
            biased;
            // Boxed, because it is large, and a user may move it about.
            granted = Box::pin(self.ask_to_write(&deadline)) => granted,
            Err(error) = unanswered => Err(error.with_op("upgrade").on(self.resource())),
        };
        let (guard, gate) = granted?;
        // What the writer opens refuses the older fence of the reader, so no other task is given the reader's claim.
        if !mutant!("the claim of a reader that wrote is handed off") {
            self.read.hold().pin();
        }
        self.write = Some(Writer { pair: Pair::of(&self.read, &guard, engine), guard });
        // No other reader is left now, so none can want to upgrade: the gate is not needed any more.
        drop(gate);
        self.check()
    }

    /// Acquires the claim as a writer, and the gate before it.
    async fn ask_to_write(&self, deadline: &Deadline) -> Result<(Guard, Gate)> {
        let resource = self.resource();
        // Without the reader there is nothing to upgrade.
        let entered = while_held(|| self.read.cause(), self.read.lost(), self.wait_for_gate(deadline)).await;
        let gate = entered.map_err(|cause| Error::lost("upgrade", cause, resource))??;
        let wait = deadline.left();
        // The reader ensures the longest and the shortest time to hold.
        let want = Want::of(Wanted { max_hold: None, ..(*self.lock.want(rest()?)?).clone() });
        let asking = self.lock.engine.acquire_alongside(want, Share::READER, wait);
        let lost = async {
            match select(Box::pin(self.read.lost()), Box::pin(gate.lost())).await {
                Either::Left((cause, _)) | Either::Right((cause, _)) => cause,
            }
        };
        // Without the gate two readers could wait for each other.
        let asked = while_held(|| self.read.cause().or_else(|| gate.cause()), lost, asking).await;
        let hold = match (asked, self.read.cause()) {
            (_, Some(cause)) => return Err(Error::lost("upgrade", cause, resource)),
            (Err(cause), None) => {
                let text = format!(
                    "the claim that keeps others from upgrading was lost: {cause}; nothing \
                             changed; try again"
                );
                return Err(Error::new(ErrorKind::Unavailable, "upgrade", text).on(resource));
            }
            (Ok(outcome), None) => outcome?,
        };
        let settings = self.lock.settings.guard.clone();
        let settings = GuardSettings { max_hold: None, min_hold: Duration::ZERO, ..settings };
        Ok((Guard::new(hold, settings), gate))
    }

    /// Acquires the gate. Waits up to the deadline while an earlier upgrade, of this guard or of a reader that is
    /// gone, has it still.
    ///
    /// No place in the queue of the gate is waited for: it could be granted while another reader wants to write, which
    /// is a deadlock.
    async fn wait_for_gate(&self, deadline: &Deadline) -> Result<Gate> {
        let engine = &self.lock.engine;
        let mut pause = GATE_FIRST;
        loop {
            // If the store does not answer the release, the request for the gate fails with the reason.
            let in_use = self.unused_gate().await;
            let is_own = in_use.is_none();
            if let Some(gate) = self.enter_gate(in_use).await? {
                return Ok(gate);
            }
            if !is_own && self.is_beside_another().await? {
                let text = "another reader is about to become a writer, so each would wait for the other; \
                            nothing changed; release the lock, then acquire it as a writer";
                return Err(Error::new(ErrorKind::Deadlock, "upgrade", text).on(self.resource()));
            }
            if deadline.is_over() {
                let whose = if is_own { "this guard" } else { "a reader that is gone" };
                let text = format!(
                    "the store has not confirmed the end of an earlier upgrade of {whose}; nothing changed; try again"
                );
                return Err(Error::new(ErrorKind::Unavailable, "upgrade", text).on(self.resource()));
            }
            tokio::select! {
                biased;
                () = deadline.passed() => {}
                slept = engine.sleep(jittered(pause, random::chance())) => if !slept {
                    return Err(Error::closed("upgrade").on(self.resource()));
                },
            }
            pause = (pause * 2).min(GATE_LAST);
        }
    }

    /// Waits until no gate of this guard is in use; `None` if the store does not confirm its release.
    async fn unused_gate(&self) -> Option<OwnedMutexGuard<()>> {
        let unused = async { Ok(Some(self.gate_use.clone().lock_owned().await)) };
        self.lock.engine.with_answer_limit(Duration::ZERO, unused).await.unwrap_or_default()
    }

    /// Returns `true` if another client or guard holds the lock as well.
    async fn is_beside_another(&self) -> Result<bool> {
        let seen = self.lock.engine.inspect(self.resource(), None, Duration::ZERO).await;
        let seen = seen.map_err(|error| error.with_op("upgrade"))?;
        let own = self.read.tag();
        Ok(seen.holders.iter().any(|holder| holder.id.tag() != own))
    }

    /// Acquires the gate; `None` if another reader has it.
    ///
    /// A task of its own does so: if this future is dropped meanwhile, the gate may be granted and released
    /// later, and is in use until then.
    async fn enter_gate(&self, in_use: Option<OwnedMutexGuard<()>>) -> Result<Option<Gate>> {
        let (lock, engine, (reply, entered)) =
            (self.gate.clone(), self.lock.engine.clone(), oneshot::channel());
        self.lock.engine.spawn(in_this_span(async move {
            let tried = lock.try_hold(Share::MUTEX, Wait::No).await;
            let gate = tried.map(|held| held.map(|guard| Gate { held: Some((guard, in_use)), engine }));
            // A gate that cannot be delivered is dropped here, which releases it.
            drop(reply.send(gate));
        }));
        entered.await.unwrap_or_else(|_| Err(Error::closed("upgrade").on(self.resource())))
    }

    /// Returns `true` if the guard is a writer now.
    pub fn is_writer(&self) -> bool {
        self.write.is_some()
    }

    /// Returns the fence of the latest grant, which is the writer's from the first upgrade on, also after a downgrade.
    /// `None` if the store has no fences.
    pub fn fence(&self) -> Option<Fence> {
        match &self.write {
            Some(write) => write.guard.fence(),
            None => self.wrote.or_else(|| self.read.fence()),
        }
    }

    /// Returns the resource that is held.
    pub fn resource(&self) -> &Resource {
        self.read.resource()
    }

    /// Checks, by the clock, that the lock is still held now.
    ///
    /// # Errors
    /// `Lost`, with the cause.
    pub fn check(&self) -> Result<()> {
        self.cause().map_or(Ok(()), |cause| Err(Error::lost("check", cause, self.resource())))
    }

    /// Returns the time for which the lock is held without another renewal.
    pub fn remaining(&self) -> Duration {
        let write = self.write.as_ref().map_or(Duration::MAX, |write| write.guard.remaining());
        self.read.remaining().min(write)
    }

    /// Waits until the lock is lost; for ever if it never is.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn lost(&self) -> LossCause {
        let write = async {
            match &self.write {
                Some(write) => write.guard.lost().await,
                None => std::future::pending().await,
            }
        };
        match select(Box::pin(self.read.lost()), Box::pin(write)).await {
            Either::Left((cause, _)) | Either::Right((cause, _)) => cause,
        }
    }

    /// Runs `work` for as long as the lock is held, and drops it the moment the lock is lost, as [`Guard::run`].
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`; the lock stays held.
    ///
    /// # Errors
    /// `Lost`, with the cause.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let done = while_held(|| self.cause(), self.lost(), work).await;
        done.map_err(|cause| Error::lost("run", cause, self.resource()))
    }

    /// Releases the lock, as a reader and as a writer, and waits until the server confirms it.
    ///
    /// # Cancel safety
    /// The lock is released even if the future is dropped.
    ///
    /// # Errors
    /// The first failure, as [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        let Upgradable { write, read, .. } = self;
        let wrote = match write {
            Some(write) => write.release().await,
            None => Ok(()),
        };
        wrote.and(read.release().await)
    }

    fn cause(&self) -> Option<LossCause> {
        self.write.as_ref().map_or_else(|| self.read.cause(), |write| write.pair.0.cause())
    }
}

/// Returns the share of a writer without that of one reader.
fn rest() -> Result<Share> {
    let all = Share::WRITER.weight();
    Ok(Share::permits(all - Share::READER.weight(), all)?)
}

/// The first pause before the gate is tried again: its release is on its way as a rule.
const GATE_FIRST: Duration = Duration::from_millis(1);
const GATE_LAST: Duration = Duration::from_millis(500);
