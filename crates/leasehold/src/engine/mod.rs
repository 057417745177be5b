//! The lock engine: local queues, acquire loop, renewer and background releases, shared by all backends.
//!
//! ```text
//!  acquire/queue.rs ───▶ acquire/contender.rs ───▶ Backend::contend
//!  (a queue per resource)  (at most one per queue)
//!      ▲                       │ grant, by hold/pending_grant.rs
//!      │ local hand-off        ▼
//!  hold.rs, hold/ ◀──────── lease.rs ◀───▶ renew/ (one renewer per client) ───▶ Backend::renew
//!      │ last handle ends
//!      ▼
//!  release/ (one reaper per client, or inline by the caller) ───▶ Backend::release
//!
//!  next to them  acquire/at_once.rs, acquire/direct.rs     fast paths: decided at once, or by one request
//!                acquire/handoff.rs                        the next user of a held claim, or its release
//!                acquire/linger.rs                         claims that stay with the process unused
//!                acquire/upgrade.rs, acquire/transfer.rs   acquisitions that bypass the local queue
//!                deadlock/                                 circles among the waits of owners
//!                registers/                                values that several parties change
//!                inspect.rs                                the state of a resource
//!                lifecycle.rs                              whether the client is open, and its end
//!  below them    backend_call.rs, retry.rs                 calls of the backend, and their repetition
//!                timer.rs, deadline.rs                     waits of callers on any executor
//! ```
//!
//! `ARCHITECTURE.md` draws the states of a local queue, and each of the paths above step by step.
//!
//! Ground rules: the engine does not know which backend it drives. A future of the backend is never
//! dropped midway: it runs in a task of the engine, and the caller's future is only a receiver. Only a
//! release may be carried out inline by its caller; the engine takes it over if the caller is dropped. The
//! answer to a direct request may be dropped, and its claim is then released. A result that a dropped
//! caller no longer wants is released by the code that fails to deliver it.
//!
//! `mutant!("name")` is a past defect that the simulation (`sim/engine`) puts back to see that it finds it. It is
//! `false` in every other build: read the code as if it were not there.

mod acquire;
mod backend_call;
pub(crate) mod deadline;
mod deadlock;
mod hold;
mod inspect;
mod lease;
mod lifecycle;
pub(crate) mod registers;
mod release;
mod renew;
mod retry;
mod timer;

use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Once};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{Backend, Claim, ClaimId, Clock, LossCause, Note, Profile, Resource, Share};
use leasehold_machine::Process;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{Error, ErrorKind, Result};
use crate::events::EventSink;
use crate::mutant::mutant;
use crate::panics::{contained, logged};
use crate::random::Stock;

#[cfg(leasehold_sim)]
pub use acquire::local_queue::Head;
pub(crate) use acquire::transfer::TransferClaim;
pub(crate) use hold::Hold;
pub(crate) use hold::handle::HoldHandle;
pub use hold::owner::Owner;
pub use inspect::Snapshots;
pub(crate) use inspect::snapshots;
pub(crate) use lease::Lease;
pub use lease::State;
pub(crate) use registers::register::{Change, Register, Seen};
pub(crate) use release::job::Released;

use acquire::in_flight::InFlight;
use acquire::lately_busy::LatelyBusy;
use acquire::queue::LocalQueues;
use acquire::span::AcquireSpan;
use deadline::Deadline;
use deadlock::detector;
use hold::owner::Owners;
use lease::Term;
use release::reaper::Reaper;
use renew::renewer::Renewer;

/// Settings of one client's engine. Every setting has a default that suits most uses.
///
/// ```
/// use leasehold::Tuning;
/// use std::time::Duration;
///
/// let tuning = Tuning::default().outage(Duration::from_secs(60));
/// assert_eq!(tuning.local_handoff_limit, 100);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tuning {
    /// The fraction of the ttl after which a lease is renewed: one third by default. Between 0.05 and
    /// 0.6. It is a fraction of what the drift, and the coarseness of the store, leave of the ttl.
    pub renew_at: f64,
    /// The assumed drift between the clocks of client and server, as a fraction of the ttl: one hundredth
    /// by default. At most 0.5.
    pub drift: f64,
    /// The maximum number of local hand-offs in a row before a held lock is released on the server, so
    /// that other processes get their turn: 100 by default.
    pub local_handoff_limit: u32,
    /// The time, from the grant, during which a held lock may be handed off inside the process: 100 ms by
    /// default.
    pub local_handoff_time: Duration,
    /// The time for which a waiting claim tolerates an unreachable server: 15 s by default.
    pub outage: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            renew_at: 1.0 / 3.0,
            drift: 0.01,
            local_handoff_limit: 100,
            local_handoff_time: Duration::from_millis(100),
            outage: Duration::from_secs(15),
        }
    }
}

impl Tuning {
    /// Sets the fraction of the ttl after which a lease is renewed.
    #[must_use]
    pub fn renew_at(self, renew_at: f64) -> Tuning {
        Tuning { renew_at, ..self }
    }

    /// Sets the assumed drift between the clocks of client and server, as a fraction of the ttl.
    #[must_use]
    pub fn drift(self, drift: f64) -> Tuning {
        Tuning { drift, ..self }
    }

    /// Sets the maximum number of local hand-offs in a row.
    #[must_use]
    pub fn local_handoff_limit(self, local_handoff_limit: u32) -> Tuning {
        Tuning { local_handoff_limit, ..self }
    }

    /// Sets the time, from the grant, during which a held lock may be handed off inside the process.
    #[must_use]
    pub fn local_handoff_time(self, local_handoff_time: Duration) -> Tuning {
        Tuning { local_handoff_time, ..self }
    }

    /// Sets the time for which a waiting claim tolerates an unreachable server.
    #[must_use]
    pub fn outage(self, outage: Duration) -> Tuning {
        Tuning { outage, ..self }
    }

    fn check(&self) -> Result<()> {
        let bad = |text: &str| Err(Error::new(ErrorKind::Invalid, "open", text));
        if !(0.05..=0.6).contains(&self.renew_at) {
            return bad("renew_at must lie between 0.05 and 0.6 of the ttl, to leave time for another try");
        }
        if !(0.0..=0.5).contains(&self.drift) {
            return bad("drift must lie between 0 and 0.5 of the ttl");
        }
        Ok(())
    }
}

/// The request of one acquisition. Equal requests are interchangeable in the local queue.
///
/// It is shared, because an acquisition keeps it in several places.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Want(Arc<Wanted>);

/// The lock that an acquisition requests, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) resource: Resource,
    pub(crate) share: Share,
    pub(crate) ttl: Duration,
    /// The lock delay: the time for which the server keeps a claim that is not renewed, beyond the time
    /// for which its holder relies on it.
    pub(crate) lock_delay: Duration,
    pub(crate) max_hold: Option<Duration>,
    /// The time for which a claim may stay with the process without a user; zero for none.
    pub(crate) linger: Duration,
    pub(crate) note: Note,
}

impl Deref for Want {
    type Target = Wanted;

    fn deref(&self) -> &Wanted {
        &self.0
    }
}

impl Want {
    pub(crate) fn of(wanted: Wanted) -> Want {
        Want(Arc::new(wanted))
    }

    /// Returns `true` if a claim that was granted for `other` is exactly what is wanted. The `max_hold`
    /// of each user is its own, so it is not compared.
    fn is_met_by(&self, other: &Want) -> bool {
        let Wanted { resource: _, share, ttl, lock_delay, max_hold: _, linger, note } = &**other;
        (self.share, self.ttl, self.lock_delay, self.linger) == (*share, *ttl, *lock_delay, *linger)
            && self.note == *note
    }
}

/// The time limit of one acquisition.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// No wait.
    No,
    /// At most this long.
    For(Duration),
    /// No limit.
    Forever,
}

/// Options of a wait other than its time limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitOptions {
    /// The priority among the local waiters of this client; greater numbers go first.
    pub(crate) priority: i32,
    /// The check for deadlocks by a waiting owner.
    pub(crate) deadlock_check: Option<DeadlockCheck>,
}

/// The check of one wait for deadlocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadlockCheck {
    /// The time after which a waiting owner starts to check.
    pub(crate) after: Duration,
    /// `true` if a wait that can never end gives up, `false` if it only says so.
    pub(crate) gives_up: bool,
}

/// The engine of one client.
pub(crate) struct Engine(
    /// `None` only while it is dropped.
    Option<Parts>,
);

/// The parts of an engine. In a fork none of them is dropped: the drop of a token locks, a map may be copied in the
/// middle of a change, and connections and files belong to the parent.
pub(crate) struct Parts {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    tuning: Tuning,
    events: EventSink,
    runtime: Handle,
    /// The process that opened the client.
    process: Process,
    queues: LocalQueues,
    owners: Owners,
    renewer: Renewer,
    reaper: Reaper,
    closed: CancellationToken,
    unused_ttl: Once,
    /// The ids of claims that a store may grant at once.
    ids: Stock,
    in_flight: InFlight,
    lately_busy: LatelyBusy,
    /// Counts the requests to a store that decides at once.
    asked_at_once: AtomicU64,
    /// The tasks and calls whose end [`Engine::close`] waits for.
    tracked: TaskTracker,
}

impl Engine {
    /// Returns the current runtime, if an engine with these settings can start on it. Nothing is asked of a store.
    pub(crate) fn runtime_for(tuning: &Tuning) -> Result<Handle> {
        tuning.check()?;
        let runtime = Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::Invalid, "open", "no tokio runtime here: open the client inside one")
        })?;
        // Creating a timer is the only way to detect that the runtime has none, and without timers no
        // lease could be renewed.
        if contained(|| drop(tokio::time::sleep(Duration::ZERO))).is_none() {
            let text = "this tokio runtime has no timers: build it with `enable_all`";
            return Err(Error::new(ErrorKind::Invalid, "open", text));
        }
        Ok(runtime)
    }

    /// Starts an engine over a backend, on the current runtime.
    pub(crate) fn start(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        tuning: Tuning,
        events: EventSink,
    ) -> Result<Arc<Engine>> {
        let runtime = Engine::runtime_for(&tuning)?;
        Ok(Arc::new_cyclic(|engine| {
            Engine(Some(Parts {
                renewer: Renewer::start(
                    &runtime,
                    backend.clone(),
                    clock.clone(),
                    &tuning,
                    events.clone(),
                    engine.clone(),
                ),
                reaper: Reaper::start(&runtime, backend.clone(), clock.clone(), engine.clone()),
                queues: LocalQueues::default(),
                owners: Owners::default(),
                closed: CancellationToken::new(),
                unused_ttl: Once::new(),
                ids: Stock::default(),
                in_flight: InFlight::default(),
                lately_busy: LatelyBusy::default(),
                asked_at_once: AtomicU64::new(0),
                tracked: TaskTracker::new(),
                runtime,
                process: Process::this(),
                backend,
                clock,
                tuning,
                events,
            }))
        }))
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(crate) fn profile(&self) -> &Profile {
        self.backend.profile()
    }

    /// Returns `true` if a claim of this ttl leaves its holder time to work, after all deductions.
    pub(crate) fn is_useful(&self, ttl: Duration) -> bool {
        Term::of(self.profile(), ttl, self.tuning.drift).is_useful()
    }

    /// Warns, once for a client, that a ttl means nothing to this store.
    pub(crate) fn report_unused_ttl(&self, ttl: Duration, valid: Duration) {
        self.unused_ttl.call_once(|| {
            logged!(
                warn,
                "a ttl of {ttl:?} has no effect on this `{}` store: its sessions keep locks alive, and a holder relies on \
                 a lock for {valid:?} without an answer; set the time in the URL of the store",
                self.profile().name
            );
        });
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Acquires the lock. Returns `None` if it is busy and the caller does not wait.
    ///
    /// Cancel safe: a dropped future leaves nothing behind.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        want: Want,
        owner: Option<&Owner>,
        wait: Wait,
        options: WaitOptions,
    ) -> Result<Option<HoldHandle>> {
        self.check_open("lock").map_err(|error| error.on(&want.resource))?;
        let resource = want.resource.clone();
        let deadline = Deadline::of(wait, self);
        // Rare paths are boxed, so that the common future, which is moved with the caller's, stays small.
        let hold = match AcquireSpan::observed(self, &want) {
            None => self.acquire_for(want, owner, deadline, options).await,
            Some(span) => Box::pin(span.run(self.acquire_for(want, owner, deadline, options))).await,
        }?;
        // A lock that was granted while the client closed is lost by now, and is released here by its drop.
        if !mutant!("a closed client is granted") {
            self.check_open("lock").map_err(|error| error.on(&resource))?;
        }
        Ok(hold)
    }

    async fn acquire_for(
        self: &Arc<Self>,
        want: Want,
        owner: Option<&Owner>,
        deadline: Deadline,
        options: WaitOptions,
    ) -> Result<Option<HoldHandle>> {
        match owner {
            None => {
                let hold = self.acquire_unowned(want, deadline, options.priority).await?;
                Ok(hold.map(|hold| HoldHandle::new(Arc::new(hold))))
            }
            Some(owner) => Box::pin(self.acquire_owned(want, owner, deadline, options)).await,
        }
    }

    async fn acquire_owned(
        self: &Arc<Self>,
        want: Want,
        owner: &Owner,
        deadline: Deadline,
        options: WaitOptions,
    ) -> Result<Option<HoldHandle>> {
        let WaitOptions { priority, deadlock_check } = options;
        let watched = deadlock_check.filter(|_| !deadline.is_zero()).map(|check| (check, want.clone()));
        let acquiring = self.owners.acquire(self, owner, want, deadline, priority);
        match watched {
            None => acquiring.await,
            Some((check, want)) => detector::watched(self, owner, &want, check, acquiring).await,
        }
    }

    /// Creates a claim with a new random id.
    fn claim(&self, want: &Want) -> Result<Claim> {
        Ok(claim_of(want, random("lock")?))
    }

    /// Records that another client asks for the release of a claim of this process. From here on it is
    /// not handed off locally.
    pub(crate) fn revoke(self: &Arc<Self>, lease: &Lease, reason: &str) {
        lease.revoke(reason);
        self.end_handoff(&lease.claim.resource, lease.claim.id);
    }

    /// Marks a claim as lost, unless it is.
    pub(crate) fn lose(&self, lease: &Lease, cause: LossCause) {
        self.renewer.lose(lease, cause);
    }

    /// Spawns a future that must not be dropped with its caller. In a fork it is dropped: the runtime is a copy
    /// there, which another thread may have had locked.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if self.is_forked() {
            return;
        }
        // Without its type, because tokio compiles some two thousand lines for each type that is spawned.
        drop(self.tracked.spawn_on(work.boxed(), &self.runtime));
    }

    /// Starts a task that closing does not wait for. In a fork its future is dropped, as by [`Engine::spawn`].
    pub(crate) fn spawn_detached(&self, work: impl Future<Output = ()> + Send + 'static) {
        if self.is_forked() {
            return;
        }
        drop(self.runtime.spawn(work.boxed()));
    }

    /// Returns the number of resources with a waiter or a holder.
    #[cfg(leasehold_sim)]
    pub(crate) fn queues(&self) -> usize {
        self.queues.count()
    }

    /// Returns the first waiter for a resource.
    #[cfg(leasehold_sim)]
    pub(crate) fn head(&self, resource: &Resource) -> Option<Head> {
        self.queues.head(resource)
    }
}

impl Deref for Engine {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        // Invariant: only the drop takes the parts.
        match &self.0 {
            Some(parts) => parts,
            None => unreachable!("an engine that is dropped is not reachable any more"),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_forked() {
            std::mem::forget(self.0.take());
            return;
        }
        // No handle is left through which a task could get a lingering claim.
        let Some(parts) = &mut self.0 else { return };
        for lease in parts.queues.take_lingering() {
            if lease.retire() {
                parts.renewer.forget(&lease);
                parts.reaper.abandon(lease.claim.clone());
            }
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// Creates a claim whose id has these random bytes.
fn claim_of(want: &Want, id: [u8; 16]) -> Claim {
    let ttl = want.ttl + want.lock_delay;
    Claim::new(ClaimId::from_bytes(id), want.resource.clone(), want.share, ttl).note(want.note.clone())
}

/// Returns bytes of the operating system's random source.
pub(crate) fn random<const N: usize>(op: &'static str) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    crate::random::fill(&mut bytes).map_err(|error| no_random(op, &error))?;
    Ok(bytes)
}

fn no_random(op: &'static str, error: &dyn std::fmt::Display) -> Error {
    let text = format!("the operating system gives no random bytes: {error}");
    Error::new(ErrorKind::Unavailable, op, text)
}
