//! The backend: the five calls of the seam, and what they share.

pub(crate) mod acquire;
pub(crate) mod create;
pub(crate) mod diagnose;
pub(crate) mod inspect;
pub(crate) mod leases;
pub(crate) mod list;
pub(crate) mod registers;
pub(crate) mod release;
pub(crate) mod renew;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_backend::url::warn_of_exposed_password;
use leasehold_core::{
    Backend, Claim, Durability, Failure, FenceGrade, Finding, Liveness, LockSupport, Patience, Profile,
    QueueOrder, Registers, Release, Renew, Renewal, Resource, ResourceSummary, Share, Snapshot,
    SnapshotVersion, Step, WaitMode,
};

use crate::backend::renew::LOOKS_MAX;
use crate::client::Ensemble;
use crate::config::ZooKeeperConfig;
use crate::net::four_letter;
use crate::net::session::Sessions;
use crate::protocol::dialect::Dialect;
use crate::protocol::names::Names;
use crate::state::claim_table::ClaimTable;
use crate::state::leftovers::Leftovers;
use crate::state::recent::Recent;
use crate::state::session_pool::SessionPool;
use crate::state::uncontended::Uncontended;
use crate::state::validity::Validity;

/// Locks in one ZooKeeper ensemble.
///
/// Promises what its [`Profile`] says; this module's documentation explains each promise. All claims of
/// one value live in one session, and so in one connection, up to some ten thousand; there is one more
/// for each that many.
///
/// # Does not promise
/// A claim's ttl has no meaning here: what keeps claims is the session, whose timeout is the option
/// `session` of the URL, as far as the servers allow it.
///
/// # Cancel safety
/// Dropping a future of [`Backend::contend`] may leave a place in the queue until the claim is released,
/// or the backend is dropped.
#[derive(Debug)]
pub struct ZooKeeperBackend {
    pub(crate) ensemble: Arc<Ensemble>,
    profile: Profile,
}

impl ZooKeeperBackend {
    /// Connects, logs in, and opens a session. Nothing is written before the first claim.
    ///
    /// # Errors
    /// `Unavailable` where no server of the ensemble gives a session in time, `Denied` where they
    /// refuse the login, `Invalid` where the password cannot be read, or where the sessions are shorter
    /// than a tick of the servers.
    pub async fn connect(config: ZooKeeperConfig) -> Result<ZooKeeperBackend, Failure> {
        if config.exposes_password() {
            warn_of_exposed_password(&config, "use zks://");
        }
        let names =
            Names::new(config.base(), config.dialect, config.user().is_some()).with_mutexes(config.mutexes);
        let (sessions, first) = Sessions::start(config.clone()).await?;
        let tick = four_letter::tick(&sessions.addresses(&config), config.timeout).await;
        let validity = Validity::of(first.timeout, tick)?;
        let session_pool = SessionPool::new(config.clone(), first.timeout, sessions.clone());
        let ensemble = Arc::new(Ensemble {
            config,
            validity,
            session_pool,
            names,
            sessions,
            claims: ClaimTable::default(),
            uncontended: Uncontended::default(),
            recent: Recent::default(),
            leftovers: Leftovers::default(),
        });
        leasehold_machine::spawn(release::end_leftovers(Arc::downgrade(&ensemble)));
        let profile = profile(validity, ensemble.names.admission());
        Ok(ZooKeeperBackend { ensemble, profile })
    }

    /// Returns how long the servers keep a session from which they receive nothing, as they said when the
    /// first was opened.
    pub fn session_timeout(&self) -> Duration {
        self.ensemble.validity.session
    }
}

#[async_trait]
impl Backend for ZooKeeperBackend {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn unsupported_reason(&self, share: Share) -> Option<&'static str> {
        self.ensemble.names.unsupported_reason(share)
    }

    fn registers(&self) -> Option<&dyn Registers> {
        // Other libraries define a form for locks only; registers have
        // none.
        (self.ensemble.names.dialect() == Dialect::Native).then_some(self)
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.ensemble.contend(claim, patience).await
    }

    /// Returns the session of the claim: each has a connection of its own.
    fn part(&self, claim: &Claim) -> u64 {
        self.ensemble.claims.session(claim.id).unwrap_or_default().cast_unsigned()
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        // A third of the validity of a renewal: a question that is repeated after that is still in
        // time.
        let limit = self.ensemble.config.timeout.min(self.ensemble.validity.valid / 3);
        self.ensemble.renew(batch, limit).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        self.ensemble.release(batch).await
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.ensemble.inspect(resource, seen, patience).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.ensemble.list(prefix, after, limit).await
    }

    async fn diagnose(&self, _ttl: Duration) -> Vec<Finding> {
        self.ensemble.diagnose(self.ensemble.validity).await
    }
}

fn profile(validity: Validity, admission: LockSupport) -> Profile {
    Profile::new("zk", Liveness::Heartbeat { valid: validity.valid })
        .admission(admission)
        .order(QueueOrder::Fifo)
        .waiting(WaitMode::Notifies)
        .fencing(FenceGrade::Strict)
        .durability(Durability::Strict)
        .place_ttl(validity.session)
        .renew_batch_max(LOOKS_MAX)
        .note_max(leasehold_core::Note::MAX_BYTES)
}
