//! The backend: the five calls of the seam, and what they share.

pub(crate) mod acquire;
mod diagnose;
mod direct;
mod doubts;
pub(crate) mod inspect;
mod registers;
pub(crate) mod release;
mod renew;
pub(crate) mod sweep;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use leasehold_backend::pollers::Pollers;
use leasehold_backend::url::warn_of_exposed_password;
use leasehold_core::{
    Backend, Claim, DirectAnswer, DirectRelease, DirectRequests, Failure, Finding, Moment, Patience, Profile,
    RegisterPromise, Registers, Release, Renew, Renewal, Resource, ResourceSummary, Snapshot,
    SnapshotVersion, Step,
};
use redis::Value;

use self::diagnose::diagnose;
use self::doubts::Doubts;
use crate::config::{Deployment, RedisConfig, Wait};
use crate::net::command_conn::CommandConn;
use crate::net::connection::Dialer;
use crate::net::endpoint::{Fixed, Source};
use crate::net::replicas::Confirm;
use crate::net::subscriber::Subscriber;
use crate::protocol::channel_scope::ChannelScope;
use crate::protocol::keys::Keys;
use crate::topology::cluster::Cluster;
use crate::topology::sentinel::Sentinels;
use crate::topology::server_info::{MIN_TTL, RENEW_BATCH_MAX, ServerInfo};
use crate::topology::servers::Servers;
use crate::topology::subscribers::Subscribers;
use crate::wait::keepalive::WaitKeepalive;

/// Locks on one Redis or Valkey server, or on a cluster of them.
///
/// Promises what its [`Profile`] says, which depends on how the server is set up; this module's
/// documentation explains each promise. All clones of an `Arc` of it share two connections at most to
/// each server: one for commands, and one for subscriptions while any claim waits.
///
/// # Cancel safety
/// Dropping a future of [`Backend::contend`] may leave a place in the queue, which ends by itself:
/// within the grace of a call once its turn comes, and within the profile's `place_ttl` otherwise.
pub struct RedisBackend {
    pub(crate) config: RedisConfig,
    pub(crate) servers: Arc<Servers>,
    pub(crate) subscribers: Subscribers,
    /// The servers that a notification of a release reaches.
    pub(crate) scope: ChannelScope,
    pub(crate) keepalive: WaitKeepalive,
    pub(crate) pollers: Pollers,
    server_info: ServerInfo,
    profile: Profile,
    pub(crate) registers: RegisterPromise,
    pub(crate) doubts: Doubts,
}

impl RedisBackend {
    /// Connects, logs in, and asks what the server is. Locks are written in the native dialect;
    /// [`connect`](crate::connect) speaks the others too.
    ///
    /// # Errors
    /// `Invalid` where the configuration names another dialect, `Unavailable` where it cannot be
    /// reached, `Denied` where it refuses the login or the commands that are needed, `Unsupported`
    /// where it is older than Redis 6.2. The text says what to do.
    pub async fn connect(config: RedisConfig) -> Result<RedisBackend, Failure> {
        config.must_be_native()?;
        if config.exposes_password() {
            warn_of_exposed_password(&config, "use rediss://");
        }
        let source: Arc<dyn Source> = match &config.deployment {
            Deployment::Single => Arc::new(Fixed::new(config.endpoint.clone())),
            Deployment::Sentinel(group) => Arc::new(Sentinels::new(config.clone(), group.clone())),
            Deployment::Cluster(_) => return RedisBackend::connect_cluster(config).await,
        };
        RedisBackend::connect_via(source, config).await
    }

    /// Connects to the server that `source` names.
    pub(crate) async fn connect_via(
        source: Arc<dyn Source>,
        config: RedisConfig,
    ) -> Result<RedisBackend, Failure> {
        let dialer = Arc::new(Dialer::new(config.clone(), source));
        let conn = Arc::new(CommandConn::new(dialer.clone()));
        let server_info = ServerInfo::ask(&conn, config.timeout).await?;
        server_info.refuse_cluster(&conn.address())?;
        let subscribers = Subscribers::One(Subscriber::new(dialer, ChannelScope::Everywhere));
        Ok(RedisBackend::of(config, Servers::One(conn), subscribers, ChannelScope::Everywhere, server_info))
    }

    /// Connects to a cluster.
    async fn connect_cluster(config: RedisConfig) -> Result<RedisBackend, Failure> {
        let cluster = Cluster::connect(config.clone()).await?;
        let server_info = ServerInfo::weakest(cluster.server_infos().await?)
            .ok_or_else(|| Failure::unavailable("no server of the cluster serves any slot: assign them"))?;
        let servers = Arc::new(Servers::Cluster(cluster));
        let subscribers = Subscribers::BySlot(servers.clone(), ChannelScope::Slot);
        Ok(RedisBackend::of(config, servers, subscribers, ChannelScope::Slot, server_info))
    }

    fn of(
        config: RedisConfig,
        servers: impl Into<Arc<Servers>>,
        subscribers: Subscribers,
        scope: ChannelScope,
        server_info: ServerInfo,
    ) -> RedisBackend {
        let servers = servers.into();
        let profile = server_info.profile(&config);
        RedisBackend {
            keepalive: WaitKeepalive::new(servers.clone(), config.timeout),
            subscribers,
            scope,
            pollers: Pollers::default(),
            config,
            servers,
            server_info,
            registers: registers::promise(&profile),
            doubts: Doubts::default(),
            profile,
        }
    }

    /// Returns what the server reported of itself when the connection was made.
    pub fn server_info(&self) -> &ServerInfo {
        &self.server_info
    }

    /// Returns how long to wait for an answer about a lease of `ttl`: a later answer is worth nothing.
    pub(crate) fn limit_for(&self, ttl: Duration) -> Duration {
        self.config.timeout.min(ttl.max(MIN_TTL))
    }

    /// Returns the end of the channel on which the scripts name the waiters that they call; it is empty where
    /// nothing may be published.
    pub(crate) fn wake_scope(&self) -> &'static str {
        match self.config.wait {
            Wait::Pubsub => self.scope.part(),
            Wait::Poll => "",
        }
    }

    /// Returns the channel of that end, empty where nothing may be published.
    pub(crate) fn wake_channel(&self, keys: &Keys) -> String {
        match self.config.wait {
            Wait::Pubsub => keys.channel(self.scope),
            Wait::Poll => String::new(),
        }
    }

    /// Returns `true` if a request has to name all keys that it may use: those of a resource may be on
    /// different servers while a slot moves, which a proxy may hide.
    pub(crate) fn names_all_keys(&self) -> bool {
        matches!(self.config.deployment, Deployment::Cluster(_)) || self.config.wait == Wait::Poll
    }

    /// Returns the required confirmation by replicas of answers for which `applies_to` is `true`.
    pub(crate) fn confirm(&self, applies_to: fn(&Value) -> bool) -> Option<Confirm> {
        let replicas = self.config.replicas;
        (replicas > 0).then_some(Confirm { replicas, applies_to })
    }

    /// Groups the keys that may go in one request together, by their positions.
    pub(crate) fn groups(&self, keys: &[String]) -> Vec<Vec<usize>> {
        match self.config.wait {
            Wait::Pubsub => self.servers.group_by_slot(keys),
            // A proxy may share the resources out to several servers, by the first key of a request.
            Wait::Poll => (0..keys.len()).map(|position| vec![position]).collect(),
        }
    }
}

/// Shows the connection and how much is under way, but no claim: the id of a claim is enough to end it.
impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("config", &format_args!("{}", self.config))
            .field("server_info", &self.server_info)
            .field("keepalive", &self.keepalive)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        // What replicas have to confirm is more than one request, and holds a permit meanwhile.
        (self.config.replicas == 0).then_some(self)
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    fn supports_transfer(&self) -> bool {
        true
    }

    fn part(&self, claim: &Claim) -> u64 {
        self.servers.part(&Keys::of(&self.config.prefix, &claim.resource).held())
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.contend_step(claim, patience).await
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        join_all(batch.chunks(RENEW_BATCH_MAX).map(|chunk| self.renew_batch(chunk))).await.concat()
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        for claim in batch {
            self.pollers.forget(claim.id);
        }
        join_all(batch.chunks(RELEASE_BATCH_MAX).map(|chunk| self.release_batch(chunk))).await.concat()
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&SnapshotVersion>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.inspect_until(resource, seen, patience).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>, Failure> {
        self.list_resources(prefix, after, limit).await
    }

    async fn diagnose(&self, _ttl: Duration) -> Vec<Finding> {
        diagnose(self).await
    }
}

impl DirectRequests for RedisBackend {
    fn ask_directly(&self, claim: &Claim, asked_at: Moment) -> Option<DirectAnswer> {
        self.ask_for(claim, asked_at)
    }

    fn release_directly(&self, claim: &Claim) -> Option<DirectRelease> {
        self.send_release(claim, self.release_request(claim), |failure| failure)
    }
}

/// The most claims that are released by one pipeline.
const RELEASE_BATCH_MAX: usize = 500;
