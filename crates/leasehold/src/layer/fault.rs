//! Faults on the way to a backend, for the tests of this library and of its users.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    AtOnce, Backend, BreakOutcome, Claim, DirectAnswer, DirectRelease, DirectReply, DirectRequests,
    Durability, Effect, Failure, FailureKind, Finding, Moment, Patience, Profile, Put, RegisterPromise,
    Registered, Registers, Release, Renew, Renewal, Resource, ResourceSummary, Share, Snapshot,
    SnapshotVersion, Stamp, Step, WaitMode,
};
use tokio::sync::watch;

/// A backend whose requests and answers can be lost, delayed and refused on demand.
///
/// It shows how your critical section behaves when the lock service fails, without a server:
///
/// ```
/// use leasehold::layer::{Fault, Mode, Verb};
/// use leasehold::{Client, local::MemoryBackend};
/// use std::{sync::Arc, time::Duration};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let fault = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
/// let locks = Client::builder().over(fault.clone())?;
/// let guard = locks.mutex("job").ttl(Duration::from_millis(200)).lock().await?;
/// fault.set(Verb::Renew, Mode::Hang);
/// guard.lost().await; // reported in time, without an answer
/// # Ok(())
/// # }
/// ```
///
/// It also works under a paused time: an hour passes at once there, and a lease that is not renewed is
/// lost when its time is over by the clock of the runtime. See [`TokioClock`](crate::TokioClock) for
/// the clock that the store needs for that.
#[derive(Debug)]
pub struct Fault {
    inner: Arc<dyn Backend>,
    verbs: [Wire; Verb::ALL.len()],
}

/// A kind of request to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// One step towards holding.
    Contend,
    /// Extending leases.
    Renew,
    /// Ending claims.
    Release,
    /// Inspecting, and listing.
    Inspect,
    /// Reading a register, and waiting for its change.
    Read,
    /// Writing a register.
    Swap,
}

impl Verb {
    /// All of them.
    pub const ALL: [Verb; 6] =
        [Verb::Contend, Verb::Renew, Verb::Release, Verb::Inspect, Verb::Read, Verb::Swap];
}

/// The fate of the requests of one verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Requests pass.
    Pass,
    /// Requests are not sent: nothing happens, and that is known.
    Refuse,
    /// Requests are lost on the way: nothing happens, and that is not known.
    LoseRequest,
    /// Requests arrive and take effect, and the answers are lost.
    LoseReply,
    /// Requests arrive and take effect, and the answers are delayed by this time.
    LateReply(Duration),
    /// Requests wait until the mode changes, and then follow the new mode.
    Hang,
}

#[derive(Debug)]
struct Wire {
    mode: watch::Sender<Mode>,
    calls: AtomicU64,
}

impl Fault {
    /// Wraps `inner`, with no fault yet.
    pub fn over(inner: Arc<dyn Backend>) -> Self {
        let wire = || Wire { mode: watch::Sender::new(Mode::Pass), calls: AtomicU64::new(0) };
        Fault { inner, verbs: Verb::ALL.map(|_| wire()) }
    }

    /// Sets the mode of requests of this verb from now on, also of those that hang.
    pub fn set(&self, verb: Verb, mode: Mode) {
        self.wire(verb).mode.send_replace(mode);
    }

    /// Sets the mode of all verbs.
    pub fn set_all(&self, mode: Mode) {
        for verb in Verb::ALL {
            self.set(verb, mode);
        }
    }

    /// Returns the number of requests of this verb so far; a batch counts as one.
    pub fn calls(&self, verb: Verb) -> u64 {
        self.wire(verb).calls.load(Ordering::SeqCst)
    }

    fn wire(&self, verb: Verb) -> &Wire {
        &self.verbs[verb as usize]
    }

    /// Makes a call that is decided at once. It counts as a request if it is.
    fn pass_at_once<T>(&self, verb: Verb, call: impl FnOnce(&dyn AtOnce) -> Option<T>) -> Option<T> {
        let wire = self.wire(verb);
        let inner = self.inner.at_once().filter(|_| *wire.mode.borrow() == Mode::Pass)?;
        let answer = call(inner)?;
        wire.calls.fetch_add(1, Ordering::SeqCst);
        Some(answer)
    }

    /// Applies the mode: returns the fate of the answer, or the failure of a request that does not arrive.
    async fn pass(&self, verb: Verb, patience: Option<&Patience>) -> Result<Answer, Failure> {
        let wire = self.wire(verb);
        wire.calls.fetch_add(1, Ordering::SeqCst);
        let mut mode = wire.mode.subscribe();
        let moved = mode.wait_for(|mode| *mode != Mode::Hang);
        let now = match patience {
            None => moved.await.map_or(Mode::Pass, |mode| *mode),
            Some(patience) => tokio::select! {
                biased;
                moved = moved => moved.map_or(Mode::Pass, |mode| *mode),
                () = patience.ended() => return Err(Failure::unanswered("the request hangs (injected)")),
            },
        };
        match now {
            Mode::Refuse => Err(Failure::unavailable("the server cannot be reached (injected)")),
            Mode::LoseRequest => Err(lost()),
            Mode::LoseReply => Ok(Answer::Lost),
            Mode::LateReply(by) => Ok(Answer::Late(by)),
            Mode::Pass | Mode::Hang => Ok(Answer::Prompt),
        }
    }
}

/// The fate of the answer to a request that took effect.
enum Answer {
    Prompt,
    Late(Duration),
    Lost,
}

impl Answer {
    async fn deliver<T>(self, answer: T) -> Result<T, Failure> {
        match self {
            Answer::Prompt => Ok(answer),
            Answer::Late(by) => {
                tokio::time::sleep(by).await;
                Ok(answer)
            }
            Answer::Lost => Err(lost()),
        }
    }
}

fn lost() -> Failure {
    Failure::unanswered("no answer (injected)")
}

// A wrapper that keeps a default method hides what the wrapped backend does.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Fault {
    fn profile(&self) -> &Profile {
        self.inner.profile()
    }

    fn unsupported_reason(&self, share: Share) -> Option<&'static str> {
        self.inner.unsupported_reason(share)
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        self.inner.at_once().map(|_| self as &dyn AtOnce)
    }

    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        self.inner.direct_requests().map(|_| self as &dyn DirectRequests)
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.inner.registers().map(|_| self as &dyn Registers)
    }

    fn supports_transfer(&self) -> bool {
        self.inner.supports_transfer()
    }

    fn detach(&self, claim: &Claim) {
        self.inner.detach(claim);
    }

    fn part(&self, claim: &Claim) -> u64 {
        self.inner.part(claim)
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let answer = self.pass(Verb::Contend, Some(patience)).await?;
        answer.deliver(self.inner.contend(claim, patience).await?).await
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        let answered = match self.pass(Verb::Renew, None).await {
            Err(failure) => Err(failure),
            Ok(answer) => answer.deliver(self.inner.renew(batch).await).await,
        };
        answered.unwrap_or_else(|failure| Renewal::unknown_for(batch.len(), &failure))
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        let answered = match self.pass(Verb::Release, None).await {
            Err(failure) => Err(failure),
            Ok(answer) => answer.deliver(self.inner.release(batch).await).await,
        };
        answered.unwrap_or_else(|failure| Release::unknown_for(batch.len(), &failure))
    }

    async fn break_claim(&self, claim: &Claim) -> Result<BreakOutcome, Failure> {
        let answer = self.pass(Verb::Release, None).await?;
        answer.deliver(self.inner.break_claim(claim).await).await?
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        let answer = self.pass(Verb::Inspect, Some(patience)).await?;
        answer.deliver(self.inner.inspect(resource, seen, patience).await?).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        let answer = self.pass(Verb::Inspect, None).await?;
        answer.deliver(self.inner.list(prefix, after, limit).await?).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        self.inner.diagnose(ttl).await
    }
}

/// Requests that pass are sent directly if the wrapped backend does so. Every other mode takes the slow path.
#[deny(clippy::missing_trait_methods)]
impl DirectRequests for Fault {
    fn ask_directly(&self, claim: &Claim, asked_at: Moment) -> Option<DirectAnswer> {
        let wire = self.wire(Verb::Contend);
        let inner = self.inner.direct_requests().filter(|_| *wire.mode.borrow() == Mode::Pass)?;
        let answer = inner.ask_directly(claim, asked_at)?;
        wire.calls.fetch_add(1, Ordering::SeqCst);
        Some(answer)
    }

    fn release_directly(&self, claim: &Claim) -> Option<DirectRelease> {
        let wire = self.wire(Verb::Release);
        let inner = self.inner.direct_requests().filter(|_| *wire.mode.borrow() == Mode::Pass)?;
        let answer = inner.release_directly(claim)?;
        wire.calls.fetch_add(1, Ordering::SeqCst);
        Some(answer)
    }
}

/// Calls that pass are decided at once if the wrapped backend does so. Every other mode takes the slow path.
#[deny(clippy::missing_trait_methods)]
impl AtOnce for Fault {
    fn grant_now(&self, claim: &Claim, asked_at: Moment) -> DirectReply {
        let reply = self.pass_at_once(Verb::Contend, |inner| match inner.grant_now(claim, asked_at) {
            DirectReply::Busy { .. } | DirectReply::Declined => None,
            reply => Some(reply),
        });
        reply.unwrap_or(DirectReply::Declined)
    }

    fn release_now(&self, claim: &Claim) -> Option<Release> {
        self.pass_at_once(Verb::Release, |inner| inner.release_now(claim))
    }
}

/// The registers of a backend that has none: they are never handed out.
const NONE: RegisterPromise = RegisterPromise::new(0, WaitMode::Polls, Durability::Evictable);

impl Fault {
    fn inner_registers(&self) -> Result<&dyn Registers, Failure> {
        let none = || Failure::new(FailureKind::Unsupported, Effect::None, "this store has no registers");
        self.inner.registers().ok_or_else(none)
    }
}

// A wrapper that keeps a default method hides what the wrapped backend does.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Registers for Fault {
    fn promise(&self) -> &RegisterPromise {
        self.inner.registers().map_or(&NONE, Registers::promise)
    }

    async fn read(&self, at: &Resource) -> Result<Registered, Failure> {
        let answer = self.pass(Verb::Read, None).await?;
        answer.deliver(self.inner_registers()?.read(at).await?).await
    }

    async fn swap(&self, at: &Resource, seen: &Stamp, put: &Put) -> Result<Option<Stamp>, Failure> {
        let answer = self.pass(Verb::Swap, None).await?;
        answer.deliver(self.inner_registers()?.swap(at, seen, put).await?).await
    }

    async fn changed(&self, at: &Resource, seen: &Stamp, patience: &Patience) -> Result<Registered, Failure> {
        let answer = self.pass(Verb::Read, Some(patience)).await?;
        answer.deliver(self.inner_registers()?.changed(at, seen, patience).await?).await
    }
}
