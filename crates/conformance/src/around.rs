//! A backend around another one, for tests that change some of its calls.
//!
//! Ground rule: a call that a test does not change goes to the inner backend, those with a default in the seam as well.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Deref;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    AtOnce, Backend, BreakOutcome, Claim, DirectRequests, Failure, Finding, Patience, Profile, Registers,
    Release, Renew, Renewal, Resource, ResourceSummary, Share, Snapshot, SnapshotVersion, Step,
};

/// The part of a [`Backend`] that a test writes: the inner backend, and the calls that differ from it.
///
/// [`Wrapped`] makes a backend of it. Each method answers a call of the method of `Backend` of the same name, and has a
/// default that calls it on the inner backend. The exceptions are [`at_once`](Around::at_once) and
/// [`direct_requests`](Around::direct_requests).
///
/// ```
/// use std::sync::Arc;
/// use leasehold_conformance::{Around, Wrapped};
/// use leasehold_core::{Backend, Claim, Release};
///
/// /// A store that answers to no release.
/// #[derive(Debug)]
/// struct Forgetful(Arc<dyn Backend>);
///
/// #[async_trait::async_trait]
/// impl Around for Forgetful {
///     fn inner(&self) -> &dyn Backend {
///         &*self.0
///     }
///
///     async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
///         vec![Release::Gone; batch.len()]
///     }
/// }
///
/// fn forgetful(store: Arc<dyn Backend>) -> Arc<dyn Backend> {
///     Arc::new(Wrapped(Forgetful(store)))
/// }
/// ```
#[async_trait]
pub trait Around: Any + Debug + Send + Sync {
    /// Returns the backend that answers the calls that are not changed.
    fn inner(&self) -> &dyn Backend;

    /// Answers a call of [`Backend::profile`].
    fn profile(&self) -> &Profile {
        self.inner().profile()
    }

    /// Answers a call of [`Backend::unsupported_reason`].
    fn unsupported_reason(&self, share: Share) -> Option<&'static str> {
        self.inner().unsupported_reason(share)
    }

    /// Answers a call of [`Backend::at_once`]. The default is `None`: the calls of the inner backend would pass by
    /// [`contend`](Around::contend) and [`release`](Around::release).
    fn at_once(&self) -> Option<&dyn AtOnce> {
        None
    }

    /// Answers a call of [`Backend::direct_requests`]. The default is `None`, as that of [`at_once`](Around::at_once).
    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        None
    }

    /// Answers a call of [`Backend::registers`].
    fn registers(&self) -> Option<&dyn Registers> {
        self.inner().registers()
    }

    /// Answers a call of [`Backend::supports_transfer`].
    fn supports_transfer(&self) -> bool {
        self.inner().supports_transfer()
    }

    /// Answers a call of [`Backend::detach`].
    fn detach(&self, claim: &Claim) {
        self.inner().detach(claim);
    }

    /// Answers a call of [`Backend::contend`].
    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.inner().contend(claim, patience).await
    }

    /// Answers a call of [`Backend::part`].
    fn part(&self, claim: &Claim) -> u64 {
        self.inner().part(claim)
    }

    /// Answers a call of [`Backend::renew`].
    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        self.inner().renew(batch).await
    }

    /// Answers a call of [`Backend::release`].
    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        self.inner().release(batch).await
    }

    /// Answers a call of [`Backend::break_claim`]. The default calls the inner backend, and not
    /// [`release`](Around::release).
    async fn break_claim(&self, claim: &Claim) -> Result<BreakOutcome, Failure> {
        self.inner().break_claim(claim).await
    }

    /// Answers a call of [`Backend::inspect`].
    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.inner().inspect(resource, seen, patience).await
    }

    /// Answers a call of [`Backend::list`].
    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.inner().list(prefix, after, limit).await
    }

    /// Answers a call of [`Backend::diagnose`].
    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        self.inner().diagnose(ttl).await
    }
}

/// The backend that an [`Around`] describes. It dereferences to what it is made of. No field will be added.
#[derive(Debug)]
pub struct Wrapped<A>(pub A);

impl<A> Deref for Wrapped<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.0
    }
}

// A method that is missing here would hide what the inner backend does.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<A: Around> Backend for Wrapped<A> {
    fn profile(&self) -> &Profile {
        self.0.profile()
    }

    fn unsupported_reason(&self, share: Share) -> Option<&'static str> {
        self.0.unsupported_reason(share)
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        self.0.at_once()
    }

    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        self.0.direct_requests()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.0.registers()
    }

    fn supports_transfer(&self) -> bool {
        self.0.supports_transfer()
    }

    fn detach(&self, claim: &Claim) {
        self.0.detach(claim);
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.0.contend(claim, patience).await
    }

    fn part(&self, claim: &Claim) -> u64 {
        self.0.part(claim)
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        self.0.renew(batch).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        self.0.release(batch).await
    }

    async fn break_claim(&self, claim: &Claim) -> Result<BreakOutcome, Failure> {
        self.0.break_claim(claim).await
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.0.inspect(resource, seen, patience).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.0.list(prefix, after, limit).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        self.0.diagnose(ttl).await
    }
}
