//! The backend of every dialect: what differs is asked from its [`ScriptDialect`].
//!
//! It goes over the connections of the native backend, wherever they lead. Each request concerns one
//! lock, so that a server of several parts finds all of its keys in one of them; batches are pipelines.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use leasehold_backend::changes::patience_ended;
use leasehold_core::{
    Backend, Claim, DirectAnswer, DirectRelease, DirectReply, DirectRequests, Effect, Failure, FailureKind,
    Grant, Hint, Moment, Patience, Profile, Release, Renew, Renewal, Resource, ResourceSummary, Snapshot,
    SnapshotVersion, Step, WaitMode, spread,
};
use redis::Value;
use tokio::sync::Mutex;

use super::ScriptDialect;
use super::reading::{self, ContendReply};
use crate::backend::RedisBackend;
use crate::backend::acquire::check_ttl;
use crate::backend::inspect::{each_key, glob_escaped};
use crate::backend::release::outcome;
use crate::net::request::Request;
use crate::net::subscriber::Subscription;
use crate::protocol::channel_scope::ChannelScope;
use crate::protocol::reply;
use crate::topology::server_info::{MIN_TTL, RENEW_BATCH_MAX};
use crate::topology::subscribers::Subscribers;
use crate::wait::polling::{LAST_POLL, TICK, pause};

/// Locks in the dialect of another library.
#[derive(Debug)]
pub(crate) struct ScriptBackend<T> {
    native: RedisBackend,
    dialect: T,
    profile: Profile,
    /// In a cluster, what listens for messages to all of its servers: another library may publish there instead of in
    /// the slot of the lock.
    broadcasts: Option<Subscribers>,
    advice: Advice,
}

impl<T: ScriptDialect> ScriptBackend<T> {
    /// Speaks over the connections of `native`.
    pub(crate) fn new(native: RedisBackend, dialect: T, rules: String) -> ScriptBackend<T> {
        let profile = dialect.profile(native.profile().clone());
        let broadcasts = match native.scope {
            ChannelScope::Slot => Some(Subscribers::BySlot(native.servers.clone(), ChannelScope::Everywhere)),
            ChannelScope::Everywhere => None,
        };
        let advice = Advice { foreign: dialect.foreign(), rules: rules.into() };
        ScriptBackend { native, dialect, profile, broadcasts, advice }
    }

    /// Refuses what the dialect cannot do, before anything is sent.
    fn check(&self, claim: &Claim) -> Result<(), Failure> {
        check_ttl(claim.ttl)?;
        self.profile.admits(claim.share).map_err(|unmet| {
            let advice = "dialect=native admits every share";
            Failure::new(FailureKind::Unsupported, Effect::None, format!("{unmet}: {advice}"))
        })?;
        self.dialect.check(claim)
    }

    /// Asks the server once.
    async fn look(&self, claim: &Claim, patience: &Patience) -> Result<Result<Grant, Ahead>, Failure> {
        let asked_at = patience.now();
        let limit = self.native.limit_for(claim.ttl);
        let answer = self.native.servers.run(&self.dialect.contend(claim), limit).await;
        match answer.and_then(reading::contend_reply).map_err(|failure| self.advice.explain(failure))? {
            ContendReply::Granted(fence) => {
                self.native.pollers.forget(claim.id);
                Ok(Ok(Grant::new(asked_at).fence(fence)))
            }
            ContendReply::Busy { ahead, left } => Ok(Err(Ahead { ahead, left })),
        }
    }

    /// Looks, and waits for notifications, until the claim is granted or patience ends.
    async fn wait(&self, claim: &Claim, channel: &str, patience: &Patience) -> Result<Step, Failure> {
        let subscription = Mutex::new(self.native.subscribers.join(channel));
        let broadcasts = self.broadcasts.as_ref().map(|all| (all, Mutex::new(all.join(channel))));
        let mut last = None;
        for round in 0.. {
            let seen = match self.look(claim, patience).await? {
                Ok(grant) => return Ok(Step::Granted(grant)),
                Err(seen) => seen,
            };
            last = Some(seen.ahead);
            if patience.is_ended() {
                break;
            }
            let pause = |events: &Subscription| {
                let longest = if events.is_active() { SAFETY_POLL } else { LAST_POLL };
                seen.end_for(claim).min(spread(claim.id, longest, round))
            };
            let broadcast = async {
                match &broadcasts {
                    Some((all, subscription)) => all.next(subscription, channel, pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.native.subscribers.next(&subscription, channel, pause) => changed?,
                changed = broadcast => changed?,
                () = patience_ended(patience) => break,
            }
        }
        Ok(Step::Busy(Hint { ask_again_in: None, ahead: last }))
    }

    async fn inspect_once(&self, resource: &Resource) -> Result<Snapshot, Failure> {
        let answer =
            self.native.servers.run(&self.dialect.inspect(resource), self.native.config.timeout).await;
        answer
            .and_then(|answer| reading::snapshot(resource, answer))
            .map_err(|failure| self.advice.explain(failure))
    }

    async fn renew_batch(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        // A third of the shortest lease: a request that is repeated after that is still in time.
        let shortest = batch.iter().map(|renew| renew.claim.ttl).min().unwrap_or(MIN_TTL);
        let requests: Vec<Request> = batch.iter().map(|renew| self.dialect.renew(renew.claim)).collect();
        let answers = self.native.servers.run_all(&requests, self.native.limit_for(shortest / 3)).await;
        let read = |answer: Result<Value, Failure>| match answer.and_then(reply::existed) {
            Ok(true) => Renewal::Renewed,
            Ok(false) => Renewal::Lost,
            Err(failure) => Renewal::Unknown(self.advice.explain(failure)),
        };
        answers.into_iter().map(read).collect()
    }

    async fn release_batch(&self, batch: &[&Claim]) -> Vec<Release> {
        let requests: Vec<Request> = batch.iter().map(|claim| self.dialect.release(claim)).collect();
        let answers = self.native.servers.run_all(&requests, self.native.config.timeout).await;
        let explained = |failure| self.advice.explain(failure);
        answers.into_iter().map(|answer| outcome(answer.map_err(explained))).collect()
    }

    /// Returns the names under which there may be a lock.
    async fn names(&self, prefix: &str) -> Result<BTreeSet<Resource>, Failure> {
        let mut names = BTreeSet::new();
        let pattern = format!("{}*", glob_escaped(&self.dialect.key(prefix)));
        // The server may also hold locks in the native dialect.
        let native = format!("{{{}:", self.native.config.prefix);
        for conn in self.native.servers.each().await? {
            let limit = self.native.config.timeout;
            each_key(&conn, limit, &pattern, Some(self.dialect.kind()), |key| {
                let key = std::str::from_utf8(key).ok().filter(|key| !key.starts_with(&native));
                let name = key.and_then(|key| self.dialect.resource(key));
                names.extend(name.filter(|name| name.as_str().starts_with(prefix)));
                names.len()
            })
            .await?;
        }
        Ok(names)
    }
}

#[async_trait]
impl<T: ScriptDialect> Backend for ScriptBackend<T> {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        self.native.direct_requests().map(|_| self as &dyn DirectRequests)
    }

    fn part(&self, claim: &Claim) -> u64 {
        self.native.servers.part(&self.dialect.key(claim.resource.as_str()))
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.check(claim)?;
        let channel = self.dialect.channel(claim).filter(|_| self.profile.waiting > WaitMode::Polls);
        if !patience.is_ended()
            && let Some(channel) = channel
        {
            return self.wait(claim, &channel, patience).await;
        }
        match self.look(claim, patience).await? {
            Ok(grant) => Ok(Step::Granted(grant)),
            // Waiters leave nothing on the server.
            Err(seen) if patience.is_ended() => {
                self.native.pollers.forget(claim.id);
                Ok(Step::Busy(Hint { ask_again_in: None, ahead: Some(seen.ahead) }))
            }
            Err(seen) => {
                let pause = pause(claim.id, self.native.pollers.count(claim.id), seen.end_for(claim));
                Ok(Step::Busy(Hint { ask_again_in: Some(pause), ahead: Some(seen.ahead) }))
            }
        }
    }

    async fn renew(&self, batch: &[Renew<'_>]) -> Vec<Renewal> {
        join_all(batch.chunks(RENEW_BATCH_MAX).map(|chunk| self.renew_batch(chunk))).await.concat()
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        for claim in batch {
            self.native.pollers.forget(claim.id);
        }
        join_all(batch.chunks(RENEW_BATCH_MAX).map(|chunk| self.release_batch(chunk))).await.concat()
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
        let names = self.names(prefix).await?;
        let names: Vec<Resource> =
            names.into_iter().filter(|name| after.is_none_or(|after| name > after)).collect();
        let mut summaries = Vec::new();
        for chunk in names.chunks(LIST_BATCH_MAX) {
            if summaries.len() >= limit {
                break;
            }
            for seen in join_all(chunk.iter().map(|name| self.inspect_once(name))).await {
                match seen {
                    Ok(seen) if !seen.holders.is_empty() => summaries.push(ResourceSummary::new(
                        seen.resource,
                        u32::try_from(seen.holders.len()).unwrap_or(u32::MAX),
                        0,
                    )),
                    // Ended meanwhile, or not a lock.
                    Ok(_) => {}
                    Err(failure) if failure.kind == FailureKind::Foreign => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        summaries.truncate(limit);
        Ok(summaries)
    }
}

impl<T: ScriptDialect> DirectRequests for ScriptBackend<T> {
    fn ask_directly(&self, claim: &Claim, asked_at: Moment) -> Option<DirectAnswer> {
        self.check(claim).ok()?;
        self.native.send_contend(claim, &self.dialect.contend(claim), move |answer| {
            Ok(match reading::contend_reply(answer)? {
                ContendReply::Granted(fence) => DirectReply::Granted(Grant::new(asked_at).fence(fence)),
                ContendReply::Busy { ahead, .. } => DirectReply::Busy { ahead: Some(ahead) },
            })
        })
    }

    fn release_directly(&self, claim: &Claim) -> Option<DirectRelease> {
        let advice = self.advice.clone();
        self.native.send_release(claim, self.dialect.release(claim), move |failure| advice.explain(failure))
    }
}

/// The advice of a dialect about failures.
#[derive(Clone, Debug)]
struct Advice {
    /// About a key of another type.
    foreign: &'static str,
    /// The rights that the dialect needs.
    rules: Arc<str>,
}

impl Advice {
    /// Adds what this dialect has to say about the failure.
    fn explain(&self, failure: Failure) -> Failure {
        let detail = match failure.kind {
            // It names the key, and says what is wrong with it.
            FailureKind::Foreign if failure.detail().contains("(FOREIGN ") => {
                failure.detail().replace("?prefix=", "?key-prefix=")
            }
            FailureKind::Foreign => self.foreign.to_owned(),
            FailureKind::Denied => {
                // The text that follows is the advice for the native dialect.
                let refusal = failure.detail().split("; as an ACL").next().unwrap_or_default().to_owned();
                format!("{refusal}; as an ACL: {}", self.rules)
            }
            _ => return failure,
        };
        Failure::new(failure.kind, failure.effect, detail).because(failure)
    }
}

/// The claim ahead of another, and the time until which it holds.
#[derive(Debug)]
struct Ahead {
    ahead: u32,
    left: Option<Duration>,
}

impl Ahead {
    /// Returns when this claim looks whether the lease ahead has ended: a different moment for each
    /// claim, because no order is kept.
    fn end_for(&self, claim: &Claim) -> Duration {
        let spread = spread(claim.id, SPREAD, 0);
        self.left.map_or(Duration::MAX, |left| left.saturating_add(TICK + spread))
    }
}

/// Longest time between two looks of a waiter that is notified of releases. A lost message costs no more.
const SAFETY_POLL: Duration = Duration::from_secs(20);

/// Waiters for the end of the same lease look within this time, not in the same millisecond.
const SPREAD: Duration = Duration::from_millis(40);

/// Locks that are looked at together for a listing.
const LIST_BATCH_MAX: usize = 200;
