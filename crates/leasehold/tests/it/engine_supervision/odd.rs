//! A memory store whose calls a test intercepts: to fail, to hang, to panic.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use leasehold::backend::{
    Backend, BreakOutcome, Claim, Clock, Failure, Hint, Moment, Patience, Profile, Release, Renew, Renewal,
    Resource, ResourceSummary, Snapshot, SnapshotVersion, Step,
};
use leasehold::local::MemoryBackend;
use leasehold::{Client, Event, EventSubscriber};
use leasehold_conformance::{Around, Wrapped};

/// The kind of a call to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Contend,
    Renew,
    Release,
    Break,
    Inspect,
    List,
    Examine,
}

/// Called before each call: with its kind, its number among that kind, and its first resource.
type Hook = dyn Fn(Call, u64, &str) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync;

pub(crate) struct Odd {
    inner: MemoryBackend,
    hook: Box<Hook>,
    calls: [AtomicU64; 7],
    /// Answers of batches are left out.
    pub(crate) is_silent: AtomicBool,
    /// The number of the attempt that is answered at once with "held, ask again soon".
    pub(crate) busy_attempt: AtomicU64,
    /// The profile panics when it is requested.
    pub(crate) has_no_profile: AtomicBool,
}

impl Odd {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        hook: impl Fn(Call, u64, &str) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync + 'static,
    ) -> Arc<Wrapped<Odd>> {
        Arc::new(Wrapped(Odd {
            inner: MemoryBackend::with_clock(clock),
            hook: Box::new(hook),
            calls: Default::default(),
            is_silent: AtomicBool::new(false),
            busy_attempt: AtomicU64::new(0),
            has_no_profile: AtomicBool::new(false),
        }))
    }

    pub(crate) fn calls(&self, call: Call) -> u64 {
        self.calls[call as usize].load(Ordering::SeqCst)
    }

    fn ask(&self, call: Call, about: &str) -> BoxFuture<'static, Result<(), Failure>> {
        let number = self.calls[call as usize].fetch_add(1, Ordering::SeqCst) + 1;
        (self.hook)(call, number, about)
    }
}

impl fmt::Debug for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Odd")
    }
}

/// A hook that passes.
pub(crate) fn pass() -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(std::future::ready(Ok(())))
}

/// A hook that passes after a while.
pub(crate) fn late(after: Duration) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        tokio::time::sleep(after).await;
        Ok(())
    })
}

/// A hook that never answers.
pub(crate) fn hang() -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(std::future::pending())
}

/// A hook that fails before anything is sent.
pub(crate) fn refuse() -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(std::future::ready(Err(Failure::unavailable("no connection (odd)"))))
}

/// A hook that fails after a while.
pub(crate) fn fail(after: Duration) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        tokio::time::sleep(after).await;
        Err(Failure::unanswered("no answer (odd)"))
    })
}

#[async_trait]
impl Around for Odd {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    fn profile(&self) -> &Profile {
        assert!(!self.has_no_profile.load(Ordering::SeqCst), "no profile (odd)");
        self.inner.profile()
    }

    fn part(&self, claim: &Claim) -> u64 {
        u64::from(claim.resource.as_str().starts_with("dead"))
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.ask(Call::Contend, claim.resource.as_str()).await?;
        if self.calls(Call::Contend) == self.busy_attempt.load(Ordering::SeqCst) {
            return Ok(Step::Busy(Hint { ask_again_in: Some(Duration::from_millis(10)), ..Hint::default() }));
        }
        self.inner.contend(claim, patience).await
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        if let Err(failure) = self.ask(Call::Renew, batch[0].claim.resource.as_str()).await {
            return Renewal::unknown_for(batch.len(), &failure);
        }
        let answers = self.inner.renew(batch).await;
        if self.is_silent.load(Ordering::SeqCst) { Vec::new() } else { answers }
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        if let Err(failure) = self.ask(Call::Release, batch[0].resource.as_str()).await {
            return Release::unknown_for(batch.len(), &failure);
        }
        let answers = self.inner.release(batch).await;
        if self.is_silent.load(Ordering::SeqCst) { Vec::new() } else { answers }
    }

    async fn break_claim(&self, claim: &Claim) -> Result<BreakOutcome, Failure> {
        self.ask(Call::Break, claim.resource.as_str()).await?;
        self.inner.break_claim(claim).await
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.ask(Call::Inspect, resource.as_str()).await?;
        self.inner.inspect(resource, seen, patience).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.ask(Call::List, prefix).await?;
        self.inner.list(prefix, after, limit).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<leasehold::Finding> {
        drop(self.ask(Call::Examine, "").await);
        self.inner.diagnose(ttl).await
    }
}

/// The clock of the runtime, which a test lets stand still, and which a suspend of the machine moves on.
#[derive(Debug)]
pub(crate) struct Ticks {
    began: tokio::time::Instant,
    slept: AtomicU64,
}

impl Ticks {
    pub(crate) fn new() -> Arc<Ticks> {
        Arc::new(Ticks { began: tokio::time::Instant::now(), slept: AtomicU64::new(0) })
    }

    pub(crate) fn sleeps(&self, length: Duration) {
        self.slept.fetch_add(u64::try_from(length.as_nanos()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for Ticks {
    fn now(&self) -> Moment {
        let slept = Duration::from_nanos(self.slept.load(Ordering::SeqCst));
        Moment::START.after(self.began.elapsed() + slept + Duration::from_secs(1))
    }
}

/// The events in words: the event, and its resource.
#[derive(Debug, Default)]
pub(crate) struct EventLog(Mutex<Vec<(&'static str, String)>>);

impl EventLog {
    /// Returns how often the event happened to resources whose names begin with `prefix`.
    pub(crate) fn count(&self, event: &str, prefix: &str) -> usize {
        let entries = self.0.lock().unwrap();
        entries.iter().filter(|(what, resource)| *what == event && resource.starts_with(prefix)).count()
    }
}

impl EventSubscriber for EventLog {
    fn on_event(&self, event: &Event<'_>) {
        let entry = match event {
            Event::BecameSuspect { resource } => ("suspected", resource),
            Event::Lost { resource, .. } => ("lost", resource),
            Event::Renewed { resource, .. } => ("renewed", resource),
            Event::RenewalFailed { resource } => ("renewal failed", resource),
            _ => return,
        };
        self.0.lock().unwrap().push((entry.0, entry.1.to_string()));
    }
}

/// A client of an odd store in virtual time.
pub(crate) struct World {
    pub(crate) clock: Arc<Ticks>,
    pub(crate) event_log: Arc<EventLog>,
    pub(crate) store: Arc<Wrapped<Odd>>,
    pub(crate) locks: Client,
}

impl World {
    pub(crate) fn new(
        hook: impl Fn(Call, u64, &str) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync + 'static,
    ) -> World {
        let (clock, event_log) = (Ticks::new(), Arc::<EventLog>::default());
        let store = Odd::new(clock.clone(), hook);
        let locks = Client::builder().clock(clock.clone()).subscriber(event_log.clone());
        World { clock, event_log, locks: locks.over(store.clone()).unwrap(), store }
    }
}
