//! The backend: the calls of the seam, and what they share.

use std::sync::Arc;
use std::time::Duration;

use crate::keyed_mutex::KeyedMutex;
use crate::pollers::Pollers;
use async_trait::async_trait;
use leasehold_core::{
    Backend, BreakOutcome, Claim, Clock, Failure, Finding, Patience, Profile, Release, Renew, Renewal,
    Resource, ResourceSummary, Snapshot, SnapshotVersion, Step,
};

use crate::session::session_pool::SessionPool;
use crate::session::sessions::Sessions;
use crate::session::showing::until_shown;

/// Locks that a connection holds.
///
/// # Promises
/// The promises are those of the server's [`Profile`]. The end of a connection is reported to every holder of it when
/// this client learns of it: at once where an idle connection is read, else at the next sign of life, which is asked
/// for five times in the heartbeat's `valid`. Something else than this client may have ended it, so another client may
/// hold by then. Silence is reported after `valid` at the latest, which is before the server ends the connection.
///
/// # Cancel safety
/// Dropping a future of [`Backend::contend`] while the server is asked closes the connection, and with it
/// ends every lock that the connection holds.
#[derive(Debug)]
pub struct SessionBackend<C: Sessions> {
    pub(crate) pool: SessionPool<C>,
    pub(crate) pollers: Pollers,
    pub(crate) per_resource: KeyedMutex,
}

impl<C: Sessions> SessionBackend<C> {
    /// Creates a backend over this server. `clock` is the machine's own, and counts suspend.
    pub fn new(sessions: C, clock: Arc<dyn Clock>) -> Self {
        let pool = SessionPool::new(sessions, clock);
        SessionBackend { pool, pollers: Pollers::default(), per_resource: KeyedMutex::default() }
    }

    /// Returns the server.
    pub fn sessions(&self) -> &C {
        &self.pool.sessions
    }
}

#[async_trait]
impl<C: Sessions> Backend for SessionBackend<C> {
    fn profile(&self) -> &Profile {
        self.pool.sessions.profile()
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.contend_step(claim, patience).await
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        self.renew_batch(batch).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        self.release_batch(batch).await
    }

    async fn break_claim(&self, claim: &Claim) -> Result<BreakOutcome, Failure> {
        self.break_one(claim).await
    }

    async fn inspect(
        &self,
        resource: &Resource,
        _seen: Option<&SnapshotVersion>,
        _patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.inspect_once(resource).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        until_shown(&self.pool.sessions).await?;
        self.pool.sessions.list(prefix, after, limit).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        self.pool.sessions.diagnose(ttl).await
    }
}
