//! The backend: the five calls of the seam, and what they share.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use leasehold_core::{
    Backend, Claim, Failure, Patience, Profile, Release, Renew, Renewal, Resource, Snapshot, Step, Summary,
    Version,
};

use crate::config::{Deployment, RedisConfig, Wait};
use crate::connection::Dialer;
use crate::keys::Keys;
use crate::lookout::Lookout;
use crate::reply;
use crate::scripts;
use crate::sentinel::Sentinels;
use crate::server::{MIN_TTL, RENEW_BATCH_MAX, Server};
use crate::subscriber::Subscriber;
use crate::target::{Fixed, Source};
use crate::waiting::Pollers;
use crate::wire::{Request, Wire};

/// Locks on one Redis or Valkey server.
///
/// Promises what its [`Profile`] says, which depends on how the server is set up; this module's documentation
/// explains each promise. All clones of an `Arc` of it share two connections at most: one for commands, and
/// one for subscriptions while anybody waits.
///
/// # Cancel safety
/// Dropping a future of [`Backend::contend`] may leave a place in the line, which ends by itself: within the grace
/// of a call once its turn comes, and within the profile's `place_ttl` otherwise.
#[derive(Debug)]
pub struct RedisBackend {
    pub(crate) config: RedisConfig,
    pub(crate) wire: Arc<Wire>,
    pub(crate) subscriber: Subscriber,
    pub(crate) lookout: Lookout,
    pub(crate) pollers: Pollers,
    server: Server,
    profile: Profile,
}

impl RedisBackend {
    /// Connects, logs in, and asks what the server is.
    ///
    /// # Errors
    /// `Unavailable` where it cannot be reached, `Denied` where it refuses the login or the commands that are
    /// needed, `Unsupported` where it is older than Redis 6.2. The text says what to do.
    pub async fn connect(config: RedisConfig) -> Result<RedisBackend, Failure> {
        if config.exposes_password() {
            tracing::warn!(server = %config, "the password crosses the network in the clear: use rediss://");
        }
        let source: Arc<dyn Source> = match &config.deployment {
            Deployment::Single => Arc::new(Fixed(config.endpoint.clone())),
            Deployment::Sentinel(group) => Arc::new(Sentinels::new(config.clone(), group.clone())),
        };
        RedisBackend::by_way_of(source, config).await
    }

    /// Connects to whatever `source` says.
    pub(crate) async fn by_way_of(
        source: Arc<dyn Source>,
        config: RedisConfig,
    ) -> Result<RedisBackend, Failure> {
        let dialer = Arc::new(Dialer::new(config.clone(), source));
        let wire = Arc::new(Wire::new(dialer.clone()));
        let server = Server::ask(&wire, config.timeout).await?;
        let profile = server.profile(&config);
        Ok(RedisBackend {
            lookout: Lookout::new(wire.clone(), config.timeout),
            subscriber: Subscriber::new(dialer),
            pollers: Pollers::default(),
            config,
            wire,
            server,
            profile,
        })
    }

    /// What the server said of itself when the connection was made.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// How long to wait for an answer about a lease of `ttl`: an answer that comes later is worth nothing.
    pub(crate) fn limit_for(&self, ttl: Duration) -> Duration {
        self.config.timeout.min(ttl.max(MIN_TTL))
    }

    /// The channel on which scripts tell whom they call; empty where nothing may be published.
    pub(crate) fn told_on(&self, keys: &Keys) -> String {
        match self.config.wait {
            Wait::Pubsub => keys.channel(),
            Wait::Poll => String::new(),
        }
    }

    /// The request that ends one claim.
    pub(crate) fn release_request(&self, claim: &Claim) -> Request {
        let keys = Keys::of(&self.config.prefix, &claim.resource);
        Request {
            script: &scripts::RELEASE,
            keys: keys.line().into(),
            args: vec![reply::member(claim), self.told_on(&keys)],
        }
    }

    fn renew_request(&self, batch: &[Renew<'_>]) -> Request {
        let mut keys = Vec::with_capacity(2 * batch.len());
        let mut args = Vec::with_capacity(2 * batch.len());
        for Renew { claim, .. } in batch {
            let names = Keys::of(&self.config.prefix, &claim.resource);
            keys.extend([names.held(), names.claims()]);
            args.extend([reply::member(claim), reply::millis(claim.ttl)]);
        }
        Request { script: &scripts::RENEW, keys, args }
    }

    async fn renew_some(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        // A third of the shortest lease: what is asked again after that is still in time.
        let shortest = batch.iter().map(|renew| renew.claim.ttl).min().unwrap_or(MIN_TTL);
        let limit = self.limit_for(shortest / 3);
        let answer = self.wire.run(&self.renew_request(batch), limit).await;
        match answer.and_then(|answer| reply::numbers(answer, batch.len())) {
            Ok(numbers) => {
                let read = |number| if number == 1 { Renewal::Renewed } else { Renewal::Lost };
                numbers.into_iter().map(read).collect()
            }
            Err(failure) => vec![Renewal::Unknown(failure); batch.len()],
        }
    }

    async fn release_some(&self, batch: &[&Claim]) -> Vec<Release> {
        let requests: Vec<Request> = batch.iter().map(|claim| self.release_request(claim)).collect();
        let answers = match &requests[..] {
            [one] => vec![self.wire.run(one, self.config.timeout).await],
            many => self.wire.run_all(many, self.config.timeout).await,
        };
        let read = |answer: Result<_, _>| match answer.and_then(reply::was_there) {
            Ok(true) => Release::Freed,
            Ok(false) => Release::Gone,
            Err(failure) => Release::Unknown(failure),
        };
        answers.into_iter().map(read).collect()
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.step(claim, patience).await
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        join_all(batch.chunks(RENEW_BATCH_MAX).map(|some| self.renew_some(some))).await.concat()
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        for claim in batch {
            self.pollers.forget(claim.id);
        }
        join_all(batch.chunks(RELEASE_BATCH_MAX).map(|some| self.release_some(some))).await.concat()
    }

    async fn inspect(
        &self,
        resource: &Resource,
        seen: Option<&Version>,
        patience: &Patience,
    ) -> Result<Snapshot, Failure> {
        self.observe(resource, seen, patience).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<Summary>, Failure> {
        self.summarize(prefix, after, limit).await
    }
}

/// The most claims that are released by one pipeline.
const RELEASE_BATCH_MAX: usize = 500;
