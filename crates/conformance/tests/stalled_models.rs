//! The suite on right models of which one call comes late or fails late, once: no law takes that for a breach.

#[allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "the model is part of the test")]
mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::{Around, Outcome, Subject, TakerCommand, Wrapped, laws, taker};
use leasehold_core::{
    Backend, Claim, DirectAnswer, DirectRelease, DirectRequests, Failure, Moment, Patience, Profile, Release,
    Renew, Renewal, Resource, Snapshot, SnapshotVersion, Step, WaitMode,
};
use model::{Models, polling, remote::Remote, strong};

/// The call that is late.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Late {
    Wait,
    Look,
    Renewal,
    /// Not sent at all: its client leaves the server after a while.
    UnansweredRenewal,
    Release,
    /// Sent by itself, as always, but some time after its caller was answered.
    DirectRelease,
}

/// The call that is late once, in a model that promises as the profile says, and a law that it must not break.
type Case = (Late, fn() -> Profile, &'static str);

const CASES: &[Case] = &[
    (Late::Wait, polling, "processes::a_killed_holder_is_succeeded"),
    (Late::Look, strong, "view::end_of_a_lease_wakes_a_watcher"),
    (Late::Release, strong, "renewal::a_renewal_extends_the_lease"),
    (Late::UnansweredRenewal, strong, "renewal::a_renewal_extends_the_lease"),
    (Late::Renewal, strong, "renewal::a_renewed_lease_ends_with_its_ttl"),
    (Late::Look, strong, "renewal::a_renewed_lease_ends_with_its_ttl"),
    (Late::Renewal, strong, "renewal::a_renewal_never_shortens_the_lease"),
    (Late::Release, strong, "renewal::a_renewal_never_shortens_the_lease"),
    (Late::DirectRelease, strong, "direct::a_direct_release_needs_no_caller_that_waits_for_it"),
];

/// Longer than any lease that a law lets run out.
const STALL: Duration = Duration::from_secs(2);
const SOME_TIME: Duration = Duration::from_millis(200);

#[test]
#[allow(clippy::expect_used, clippy::panic, reason = "a step of tests")]
fn a_call_that_is_late_once_breaks_no_law() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let checks: Vec<_> = CASES
        .iter()
        .map(|(late, profile, name)| {
            let law = laws().iter().find(|law| law.name == *name).unwrap_or_else(|| panic!("no law {name}"));
            let models = match profile().waiting {
                WaitMode::Polls => Models::served(profile(), None),
                _ => Models::new(profile(), None),
            };
            let subject = Stalling { models, late: *late, comes: Arc::new(AtomicBool::new(true)) };
            runtime.spawn(async move {
                let outcome = law.check(&subject).await;
                (outcome, subject.comes.load(Ordering::SeqCst))
            })
        })
        .collect();
    let mut broken = Vec::new();
    for ((late, _, name), check) in CASES.iter().zip(checks) {
        match runtime.block_on(check).expect("a law does not panic") {
            (Outcome::Kept, false) => {}
            other => broken.push(format!("{name}, {late:?}: {other:?}")),
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// A right model, of which the first call of one kind is late.
struct Stalling {
    models: Models,
    late: Late,
    comes: Arc<AtomicBool>,
}

#[async_trait]
impl Subject for Stalling {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        let inner = self.models.open().await?;
        Some(Arc::new(Wrapped(Connection { inner, late: self.late, comes: self.comes.clone() })))
    }

    fn taker(&self) -> Option<TakerCommand> {
        self.models.taker()
    }

    fn ttl(&self) -> Duration {
        self.models.ttl()
    }
}

#[derive(Debug)]
struct Connection {
    inner: Arc<dyn Backend>,
    late: Late,
    comes: Arc<AtomicBool>,
}

impl Connection {
    fn is_late(&self, call: Late) -> bool {
        self.late == call && self.comes.swap(false, Ordering::SeqCst)
    }

    async fn before(&self, call: Late) {
        if self.is_late(call) {
            tokio::time::sleep(STALL).await;
        }
    }
}

#[async_trait]
impl Around for Connection {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        self.inner.direct_requests().is_some().then_some(self)
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        if !patience.is_ended() {
            self.before(Late::Wait).await;
        }
        self.inner.contend(claim, patience).await
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        if self.is_late(Late::UnansweredRenewal) {
            tokio::time::sleep(SOME_TIME).await;
            return Renewal::unknown_for(batch.len(), &Failure::unanswered("a silent server"));
        }
        self.before(Late::Renewal).await;
        self.inner.renew(batch).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        self.before(Late::Release).await;
        self.inner.release(batch).await
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.before(Late::Look).await;
        self.inner.inspect(resource, seen, patience).await
    }
}

impl DirectRequests for Connection {
    fn ask_directly(&self, claim: &Claim, asked_at: Moment) -> Option<DirectAnswer> {
        self.inner.direct_requests()?.ask_directly(claim, asked_at)
    }

    fn release_directly(&self, claim: &Claim) -> Option<DirectRelease> {
        if !self.is_late(Late::DirectRelease) {
            return self.inner.direct_requests()?.release_directly(claim);
        }
        let (inner, claim) = (self.inner.clone(), claim.clone());
        let sent = tokio::spawn(async move {
            tokio::time::sleep(SOME_TIME).await;
            inner.release(&[&claim]).await.pop()
        });
        Some(Box::pin(async { sent.await.ok().flatten().unwrap_or(Release::Gone) }))
    }
}

/// Runs the other process of the laws about crashes.
#[test]
fn taker() {
    taker::serve_if_asked(async |place| Remote::open(place));
}
