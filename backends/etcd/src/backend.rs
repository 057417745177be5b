//! The backend: dispatches the calls of the seam, and states its promises.

pub(crate) mod acquire;
pub(crate) mod diagnose;
pub(crate) mod inspect;
pub(crate) mod maintenance;
pub(crate) mod moving;
mod registers;
pub(crate) mod release;
pub(crate) mod renew;
mod watch_timeout;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::url::warn_of_exposed_password;
use leasehold_core::{
    Backend, Claim, Durability, Effect, Failure, FailureKind, FenceGrade, Finding, Liveness, LockSupport,
    Patience, Profile, QueueOrder, RegisterPromise, Registers, Release, Renew, Renewal, Resource,
    ResourceSummary, Share, Snapshot, SnapshotVersion, Step, WaitMode,
};

use crate::client::Shared;
use crate::config::EtcdConfig;
use crate::net::cluster::Cluster;
use crate::net::error::Refusal;
use crate::protocol::layout::{Dialect, Layout, key_request};
use crate::protocol::version;
use crate::state::lease::length_for;
use crate::state::lease_table;

/// Locks on one etcd cluster.
///
/// See the crate's page for what it promises and what it does not.
///
/// # Cancel safety
/// A dropped `contend` leaves its place in the queue for two seconds at most, after which this client gives
/// it up. The other calls have then been carried out or not; all may be repeated.
pub struct EtcdBackend {
    profile: Profile,
    pub(crate) registers: RegisterPromise,
    /// The form in which locks are written. The other dialects define locks only: no registers.
    dialect: Dialect,
    pub(crate) shared: Arc<Shared>,
}

impl EtcdBackend {
    /// Connects, logs in, and reads a key once.
    ///
    /// It has to be called inside a tokio runtime, in which its tasks live until the backend is dropped.
    ///
    /// # Errors
    /// `Unavailable` where no server answers or the cluster has no quorum, within the timeout; `Denied`
    /// where the login or the permission is refused; `Invalid` where a file that the URL names cannot
    /// be used.
    pub async fn connect(config: EtcdConfig) -> Result<EtcdBackend, Failure> {
        if config.exposes_password() {
            warn_of_exposed_password(&config, "use etcds://");
        }
        let dialect = config.dialect;
        let layout = Layout::new(config.prefix(), dialect);
        let cluster = Arc::new(Cluster::new(config)?);
        let probe = key_request(&layout.probe());
        let asked = cluster.ask(|conn| {
            let probe = probe.clone();
            async move { conn.range(probe).await }
        });
        asked.await.map_err(Refusal::without_effect)?;
        let states = cluster.states().await?;
        let versions: Vec<Option<String>> =
            states.into_iter().map(|state| state.map(|state| state.version)).collect();
        let (durability, fencing) = (version::durability(&versions), version::fencing(&versions));
        if durability < Durability::Strict || fencing < FenceGrade::Strict {
            let versions: Vec<&str> =
                versions.iter().map(|version| version.as_deref().unwrap_or("unknown")).collect();
            tracing::warn!(
                versions = versions.join(", "),
                "this etcd can answer with old data, revoke leases that are held, or take revisions back: use 3.4.42, 3.5.28, 3.6.9 or later"
            );
        }
        let shared = Arc::new(Shared::new(cluster, layout, version::watches(&versions)));
        maintenance::start(&shared);
        let (profile, registers) = (profile(durability, fencing, dialect), registers::promise(durability));
        Ok(EtcdBackend { profile, registers, dialect, shared })
    }

    fn accept(&self, claim: &Claim) -> Result<(), Failure> {
        self.profile.admits(claim.share).map_err(|unmet| {
            Failure::new(FailureKind::Unsupported, Effect::None, format!("{unmet}: {OTHERS}"))
        })?;
        if (MIN_TTL..=MAX_TTL).contains(&claim.ttl) {
            return Ok(());
        }
        let detail =
            format!("a ttl of {:?} cannot be kept: choose between {MIN_TTL:?} and {MAX_TTL:?}", claim.ttl);
        Err(Failure::new(FailureKind::Invalid, Effect::None, detail))
    }
}

#[async_trait]
impl Backend for EtcdBackend {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn unsupported_reason(&self, share: Share) -> Option<&'static str> {
        self.profile.admits(share).is_err().then_some(OTHERS)
    }

    fn registers(&self) -> Option<&dyn Registers> {
        (self.dialect == Dialect::Native).then_some(self)
    }

    fn supports_transfer(&self) -> bool {
        self.dialect == Dialect::Native
    }

    fn detach(&self, claim: &Claim) {
        self.shared.lease_table().detach(claim.id);
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.accept(claim)?;
        acquire::contend(&self.shared, claim, patience).await
    }

    /// Claims of about the same ttl go together: a short one is not held back by what a long one has
    /// time for.
    fn part(&self, claim: &Claim) -> u64 {
        length_for(claim.ttl).ilog2().into()
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        renew::renew(&self.shared, batch).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        release::release(&self.shared, batch).await
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        inspect::inspect(&self.shared, resource, seen, patience).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        inspect::list(&self.shared, prefix, after, limit).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        diagnose::diagnose(&self.shared, ttl).await
    }
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBackend").field("profile", &self.profile).finish_non_exhaustive()
    }
}

fn profile(durability: Durability, fencing: FenceGrade, dialect: Dialect) -> Profile {
    Profile::new("etcd", Liveness::Lease { min: MIN_TTL, max: MAX_TTL })
        .admission(match dialect {
            Dialect::Native => LockSupport::Counted,
            Dialect::Concurrency | Dialect::Etcd3 => LockSupport::Exclusive,
        })
        .order(if dialect == Dialect::Etcd3 { QueueOrder::Unordered } else { QueueOrder::Fifo })
        .waiting(WaitMode::Notifies)
        .fencing(fencing)
        .durability(durability)
        .place_ttl(if dialect == Dialect::Etcd3 { Duration::ZERO } else { lease_table::KEPT_PLACE })
        // No granularity: the server counts in whole seconds, but it is asked for more of them than the holder
        // relies on.
        .overrun(OVERRUN)
        .renew_batch_max(RENEW_BATCH_MAX)
        .note_max(leasehold_core::Note::MAX_BYTES)
}

/// A lease is whole seconds and up to two longer than its claims, and the leader looks twice a second
/// which have ended. For a ttl above a minute it is an eighth of the ttl.
const OVERRUN: Duration = Duration::from_millis(2_500);
const MIN_TTL: Duration = Duration::from_secs(1);
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const RENEW_BATCH_MAX: usize = 128;
/// The reason why a dialect does not admit a share.
const OTHERS: &str =
    "the locks of etcd's other clients are mutexes: take dialect=native for readers and semaphores";
