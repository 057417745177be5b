//! Helpers of this crate's tests: claims, patience and a clock.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test program uses its own part")]

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use leasehold_conformance::calls::in_the_end;
use leasehold_core::{
    Backend, CALL_GRACE, Claim, ClaimId, Clock, FailureKind, Fence, Grant, Moment, Note, Patience, Proof,
    Release, Renew, Renewal, Resource, Share, Step,
};
use leasehold_redis::{RedisBackend, RedisConfig};
use leasehold_testkit::{RedisServer, Reply};

pub const TTL: Duration = Duration::from_secs(10);

/// A clock that is good enough where nothing sleeps.
#[derive(Debug)]
struct Ticking(Instant);

impl Clock for Ticking {
    fn now(&self) -> Moment {
        Moment::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap()).after(Duration::from_secs(1))
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(Ticking(Instant::now()))
}

/// Opens a URL. Tries again where the servers are late: the time limit of the URL may be short.
pub async fn connect(url: &str) -> RedisBackend {
    in_the_end(|| RedisBackend::connect(RedisConfig::parse(url).unwrap())).await
}

/// Opens a URL of any dialect.
pub async fn open(url: &str) -> Arc<dyn Backend> {
    in_the_end(|| leasehold_redis::connect(RedisConfig::parse(url).unwrap())).await
}

/// Tries until it is granted, as the engine does. Only what passes may come in between.
pub async fn persist(backend: &RedisBackend, claim: &Claim) -> Fence {
    let begun = Instant::now();
    loop {
        if let Step::Granted(grant) = in_the_end(async || backend.contend(claim, &no_patience()).await).await
        {
            return grant.fence.unwrap();
        }
        assert!(begun.elapsed() < LIMIT, "not granted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns whether a waiter whose turn came after `since` may have lost its place because the machine was late.
pub fn may_be_passed_over(since: Instant) -> bool {
    let took = since.elapsed();
    if took >= CALL_GRACE {
        println!("the machine was too slow for a waiter that was called: {took:?}");
    }
    took >= CALL_GRACE
}

pub fn no_patience() -> Patience {
    Patience::none(clock())
}

pub fn endless() -> Patience {
    Patience::unlimited(clock())
}

pub fn patience(limit: Duration) -> Patience {
    let clock = clock();
    let deadline = clock.now().after(limit);
    Patience::until(clock, deadline)
}

pub fn random_id() -> ClaimId {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).unwrap();
    ClaimId::from_bytes(bytes)
}

pub fn resource(name: &str) -> Resource {
    Resource::new(name).unwrap()
}

pub fn claim_of(name: &str, share: Share, ttl: Duration) -> Claim {
    Claim::new(random_id(), resource(name), share, ttl).note(Note::new("a test").unwrap())
}

pub fn mutex(name: &str) -> Claim {
    claim_of(name, Share::MUTEX, TTL)
}

/// Asks until there is an answer, as the engine does with a backend that polls.
pub async fn take(backend: &RedisBackend, claim: &Claim, patience: &Patience) -> Option<Grant> {
    any::take(backend, claim, patience).await
}

/// Looks once.
pub async fn try_take(backend: &RedisBackend, claim: &Claim) -> Option<Fence> {
    take(backend, claim, &no_patience()).await.map(|grant| grant.fence.unwrap())
}

pub async fn release(backend: &RedisBackend, claim: &Claim) -> Release {
    any::release(backend, claim).await
}

pub async fn freed(backend: &RedisBackend, claim: &Claim) -> bool {
    any::freed(backend, claim).await
}

pub async fn renew(backend: &RedisBackend, claim: &Claim) -> Renewal {
    any::renew(backend, claim).await
}

pub async fn renewed(backend: &RedisBackend, claim: &Claim) -> bool {
    any::renewed(backend, claim).await
}

/// No machine is so busy.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Returns `true` if somebody waits for the resource of a claim.
pub async fn is_awaited(backend: &RedisBackend, claim: &Claim) -> bool {
    !backend.inspect(&claim.resource, None, &no_patience()).await.unwrap().waiting.is_empty()
}

/// Waits until somebody listens for notifications at the server.
pub async fn until_subscribed(server: &RedisServer) {
    let subscribed = async {
        while matches!(&server.command(&["PUBSUB", "CHANNELS"]).await, Ok(Reply::Many(all)) if all.is_empty())
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, subscribed).await.expect("nobody listens");
}

/// Longer than any machine takes to notify a waiter. One that nobody notifies looks after 15 seconds at the
/// earliest.
pub const NOTIFIED: Duration = Duration::from_secs(8);

/// Renews until the answer is known. Returns `true` if the claim is held.
pub async fn still_held(backend: &RedisBackend, claim: &Claim) -> bool {
    any::still_held(backend, claim).await
}

/// Returns `true` if the server is a Redis before 7.0: without channels of slots, `PEXPIRETIME`, `PEXPIREAT … GT` and
/// selectors of rights.
pub async fn is_before_7(server: &RedisServer) -> bool {
    let info = server.command(&["INFO", "server"]).await.unwrap().into_text().unwrap();
    info.contains("redis_version:6.")
}

/// Returns the end of a key's life in milliseconds since 1970, as its server tells it, to a millisecond or two.
pub async fn end_of(server: &RedisServer, key: &str) -> i64 {
    const NOW_AND_LEFT: &str = "local now = redis.call('TIME') \
                                local left = redis.call('PTTL', KEYS[1]) \
                                if left < 0 then return left end \
                                return now[1] * 1000 + math.floor(now[2] / 1000) + left";
    let asked = match is_before_7(server).await {
        true => server.command(&["EVAL", NOW_AND_LEFT, "1", key]).await,
        false => server.command(&["PEXPIRETIME", key]).await,
    };
    match asked.unwrap() {
        Reply::Int(end) if end > 0 => end,
        other => panic!("{key} has no end: {other:?}"),
    }
}

/// The same for any backend, in any dialect.
pub mod any {
    use super::*;

    /// Asks until there is an answer, as the engine does with a backend that polls.
    pub async fn take(backend: &dyn Backend, claim: &Claim, patience: &Patience) -> Option<Grant> {
        loop {
            match backend.contend(claim, patience).await.unwrap() {
                Step::Granted(grant) => return Some(grant),
                Step::Busy(_) if patience.is_ended() => return None,
                Step::Busy(hint) => tokio::time::sleep(hint.ask_again_in.unwrap_or_default()).await,
            }
        }
    }

    /// Looks once.
    pub async fn got(backend: &dyn Backend, claim: &Claim) -> bool {
        take(backend, claim, &no_patience()).await.is_some()
    }

    pub async fn release(backend: &dyn Backend, claim: &Claim) -> Release {
        backend.release(&[claim]).await.pop().unwrap()
    }

    /// Releases a claim as the engine does, until there is an answer.
    pub async fn release_until_answered(backend: &dyn Backend, claim: &Claim) {
        let begun = Instant::now();
        while let Release::Unknown(failure) = release(backend, claim).await {
            assert!(failure.is_transient(), "{failure}");
            assert!(begun.elapsed() < LIMIT, "{failure}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn freed(backend: &dyn Backend, claim: &Claim) -> bool {
        match release(backend, claim).await {
            Release::Freed => true,
            Release::Gone => false,
            Release::Unknown(failure) => panic!("{failure}"),
        }
    }

    pub async fn renew(backend: &dyn Backend, claim: &Claim) -> Renewal {
        backend.renew(&[Renew { claim, proof: &Proof::none() }]).await.pop().unwrap()
    }

    pub async fn renewed(backend: &dyn Backend, claim: &Claim) -> bool {
        match renew(backend, claim).await {
            Renewal::Renewed => true,
            Renewal::Lost => false,
            other => panic!("{other:?}"),
        }
    }

    /// Renews until the answer is known. Returns `true` if the claim is held.
    pub async fn still_held(backend: &dyn Backend, claim: &Claim) -> bool {
        let begun = Instant::now();
        loop {
            match renew(backend, claim).await {
                Renewal::Renewed => return true,
                Renewal::Lost => return false,
                Renewal::Unknown(failure) => assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}"),
                other => panic!("{other:?}"),
            }
            assert!(begun.elapsed() < LIMIT, "nothing is known");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
