//! One server of a quorum.
//!
//! The server decides in scripts of its own, which are not those of `redis://`: a lock here is a vote,
//! and does not wait for others. The votes of several servers are counted elsewhere.

mod answers;
mod names;
mod scripts;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::quorum::{
    Answer, Member, MemberRenew, MemberRenewal, MemberState, MemberView, Notification, RequestStamp,
    Subscription,
};
use leasehold_core::{Claim, ClaimId, Effect, Failure, FailureKind, Fence, Resource};

use crate::config::RedisConfig;
use crate::net::command_conn::CommandConn;
use crate::net::connection::Dialer;
use crate::net::endpoint::Fixed;
use crate::net::request::Request;
use crate::net::subscriber::{self, Subscriber};
use crate::protocol::channel_scope::ChannelScope;
use crate::protocol::keys::Keys;
use crate::protocol::reply;
use crate::topology::server_info::{MIN_TTL, ServerInfo};

/// One Redis or Valkey server as a member of a quorum.
///
/// All clones of an `Arc` of it share two connections at most: one for commands, and one for
/// subscriptions while any claim waits. A server that cannot be reached is tried again with each new
/// request.
pub struct RedisNode {
    config: RedisConfig,
    conn: Arc<CommandConn>,
    subscriber: Subscriber,
    /// The run of the server that was diagnosed as fit.
    fit_run: Mutex<Option<String>>,
}

impl RedisNode {
    /// Creates a server that is not connected to yet.
    pub fn new(config: RedisConfig) -> RedisNode {
        let source = Arc::new(Fixed::new(config.endpoint.clone()));
        let dialer = Arc::new(Dialer::new(config.clone(), source).knowing_runs());
        let conn = Arc::new(CommandConn::new(dialer.clone()));
        RedisNode {
            config,
            conn,
            subscriber: Subscriber::new(dialer, ChannelScope::Everywhere),
            fit_run: Mutex::default(),
        }
    }

    /// Refuses a server that may forget single keys: a record that is evicted alone would be taken for
    /// one that never was. It is asked until the server is armed in its present run: a replica may take a while to
    /// come back after a restart.
    async fn diagnose(&self, state: &MemberState) -> Result<(), Failure> {
        if self.fit_run.lock().unwrap_or_else(PoisonError::into_inner).as_ref() == Some(&state.run) {
            return Ok(());
        }
        let server = ServerInfo::ask(&self.conn, self.config.timeout).await?;
        server.refuse_cluster(&self.address())?;
        if server.maxmemory_policy.as_deref() != Some("noeviction") {
            let policy = server.maxmemory_policy.as_deref().unwrap_or("unknown");
            let text = format!(
                "{} has maxmemory-policy {policy}, and may throw single keys away: set it to noeviction",
                self.address()
            );
            return Err(Failure::new(FailureKind::Unsupported, Effect::Unknown, text));
        }
        if server.replicas.is_some_and(|count| count > 0) {
            let text = format!(
                "{} has replicas: after a failover and the way back it would have forgotten grants, and nobody could see \
                 that; take its replicas away, and restart it if one of them has taken over before",
                self.address()
            );
            return Err(Failure::new(FailureKind::Unsupported, Effect::Unknown, text));
        }
        if state.armed().is_some() {
            *self.fit_run.lock().unwrap_or_else(PoisonError::into_inner) = Some(state.run.clone());
        }
        Ok(())
    }

    fn keys(&self, resource: &Resource) -> Keys {
        Keys::of(&self.config.prefix, resource)
    }

    fn mark_key(&self) -> String {
        // No resource has an empty name, so no key of one is this.
        format!("{{{}:}}:mark", self.config.prefix)
    }

    fn unarmed_key(&self) -> String {
        format!("{{{}:}}:unarmed", self.config.prefix)
    }

    /// Returns how long to wait for an answer about a lease: a later answer is worth nothing.
    fn limit_for(&self, ttl: Duration) -> Duration {
        self.config.timeout.min(ttl.max(MIN_TTL))
    }

    fn release_request(&self, claim: &Claim) -> Request {
        let keys = self.keys(&claim.resource);
        Request {
            script: &scripts::RELEASE,
            keys: vec![keys.key(LOCK)],
            args: vec![claim.id.to_hex(), keys.key(NEWS)],
            confirm: None,
        }
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisNode({})", self.config)
    }
}

#[async_trait]
impl Member for RedisNode {
    fn address(&self) -> String {
        self.conn.address()
    }

    async fn state(&self) -> Result<MemberState, Failure> {
        let request = Request {
            script: &scripts::RECALL,
            keys: vec![self.mark_key(), self.unarmed_key()],
            args: Vec::new(),
            confirm: None,
        };
        let state = answers::member_state(self.conn.run(&request, self.config.timeout).await?)?;
        self.diagnose(&state).await?;
        Ok(state)
    }

    async fn set_epoch(&self, seen: &MemberState, epoch: u64) -> Result<bool, Failure> {
        let mark = seen.mark.as_ref().map(|mark| format!("{} {}", mark.epoch, mark.run));
        let since = seen.unarmed_since.map(|since| since.to_string());
        let request = Request {
            script: &scripts::MARK,
            keys: vec![self.mark_key(), self.unarmed_key()],
            args: vec![
                seen.run.clone(),
                mark.unwrap_or_default(),
                epoch.to_string(),
                since.unwrap_or_default(),
            ],
            confirm: None,
        };
        reply::existed(self.conn.run(&request, self.config.timeout).await?)
    }

    async fn prepare(
        &self,
        claim: &Claim,
        stamp: RequestStamp,
        last: Option<Fence>,
    ) -> Result<Answer, Failure> {
        let keys = self.keys(&claim.resource);
        let request = Request {
            script: &scripts::ASK,
            keys: vec![keys.key(LOCK), keys.key(RECORD), self.mark_key(), self.unarmed_key()],
            args: vec![
                claim.id.to_hex(),
                stamp.to_string(),
                reply::millis(claim.ttl),
                claim.note.as_str().to_owned(),
                keys.hashed_name.clone(),
                keys.key(NEWS),
                last.map(|fence| fence.epoch.to_string()).unwrap_or_default(),
                last.map(answers::fence_text).unwrap_or_default(),
                last.map(|fence| answers::fence_text(following(fence))).unwrap_or_default(),
            ],
            confirm: None,
        };
        let answer = answers::answer(self.conn.run(&request, self.limit_for(claim.ttl)).await?)?;
        // One that is not armed has no vote, and is asked before it is armed.
        if answer.state.armed().is_some() {
            self.diagnose(&answer.state).await?;
        }
        Ok(answer)
    }

    async fn accept(
        &self,
        claim: &Claim,
        stamp: RequestStamp,
        run: &str,
        fence: Fence,
    ) -> Result<bool, Failure> {
        let keys = self.keys(&claim.resource);
        let request = Request {
            script: &scripts::WRITE,
            keys: vec![keys.key(LOCK), keys.key(RECORD), self.mark_key()],
            args: vec![
                stamp.to_string(),
                run.to_owned(),
                fence.epoch.to_string(),
                fence.seq.to_string(),
                keys.hashed_name.clone(),
                keys.key(NEWS),
                claim.id.to_hex(),
                format!("{:x}", claim.ttl.as_millis()),
            ],
            confirm: None,
        };
        reply::existed(self.conn.run(&request, self.limit_for(claim.ttl)).await?)
    }

    async fn renew(&self, batch: &[MemberRenew<'_>]) -> Result<Vec<MemberRenewal>, Failure> {
        let mut keys = Vec::with_capacity(batch.len());
        let mut args = Vec::with_capacity(3 * batch.len());
        let mut shortest = self.config.timeout;
        for MemberRenew { claim, fence } in batch {
            keys.push(self.keys(&claim.resource).key(LOCK));
            let fence = fence.map(answers::fence_text).unwrap_or_default();
            args.extend([claim.id.to_hex(), reply::millis(claim.ttl), fence]);
            shortest = shortest.min(claim.ttl / 3);
        }
        let request = Request { script: &scripts::RENEW, keys, args, confirm: None };
        let answer = self.conn.run(&request, self.limit_for(shortest)).await?;
        let read = |number| match number {
            1 => MemberRenewal::Extended,
            0 => MemberRenewal::Free,
            _ => MemberRenewal::Refused,
        };
        Ok(reply::numbers(answer, batch.len())?.into_iter().map(read).collect())
    }

    async fn repair(&self, claim: &Claim, fence: Fence, stamp: RequestStamp) -> Result<bool, Failure> {
        let keys = self.keys(&claim.resource);
        let request = Request {
            script: &scripts::SEED,
            keys: vec![keys.key(LOCK)],
            args: vec![
                claim.id.to_hex(),
                reply::millis(claim.ttl),
                answers::fence_text(fence),
                claim.note.as_str().to_owned(),
                keys.hashed_name.clone(),
                stamp.to_string(),
            ],
            confirm: None,
        };
        reply::existed(self.conn.run(&request, self.limit_for(claim.ttl)).await?)
    }

    async fn withdraw(&self, claim: &Claim, stamps: &[RequestStamp]) -> Result<bool, Failure> {
        if stamps.is_empty() {
            // The script would take a request without stamps as a release of any lock of the claim.
            return Ok(false);
        }
        let mut request = self.release_request(claim);
        request.args.extend(stamps.iter().map(RequestStamp::to_string));
        reply::existed(self.conn.run(&request, self.config.timeout).await?)
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Result<bool, Failure>> {
        let requests: Vec<Request> = batch.iter().map(|claim| self.release_request(claim)).collect();
        let answers = self.conn.run_all(&requests, self.config.timeout).await;
        answers.into_iter().map(|answer| answer.and_then(reply::existed)).collect()
    }

    async fn read(&self, resource: &Resource) -> Result<MemberView, Failure> {
        let keys = self.keys(resource);
        let request = Request {
            script: &scripts::LOOK,
            keys: vec![keys.key(LOCK), keys.key(RECORD)],
            args: vec![keys.hashed_name.clone()],
            confirm: None,
        };
        answers::member_view(self.conn.run(&request, self.config.timeout).await?)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(Resource, ClaimId)>, Failure> {
        names::list(&self.conn, &self.config, prefix).await
    }

    async fn subscribe(&self, resource: &Resource) -> Result<Box<dyn Subscription>, Failure> {
        let subscription = self.subscriber.subscribe(&self.keys(resource).key(NEWS)).await?;
        Ok(Box::new(NodeSubscription(subscription)))
    }
}

/// Returns the fence that the same client may take next.
fn following(last: Fence) -> Fence {
    Fence::new(last.epoch, last.seq.saturating_add(1), 0)
}

/// A subscription of this crate, as a subscription to a member's events.
struct NodeSubscription(subscriber::Subscription);

#[async_trait]
impl Subscription for NodeSubscription {
    async fn next(&mut self) -> Notification {
        match self.0.recv().await {
            subscriber::Notification::Freed => Notification::Freed,
            // Here, a claim that is called or answers was granted.
            subscriber::Notification::Called { lease, .. } => Notification::Taken { ends_in: lease },
            subscriber::Notification::Changed => Notification::Unknown,
        }
    }

    fn is_connected(&self) -> bool {
        self.0.is_active()
    }
}

/// The parts of a resource, as they end its keys.
const LOCK: &str = "vote";
const RECORD: &str = "record";
const NEWS: &str = "news";
