//! Helpers of the tests of this crate: clients, claims and patience.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test program uses its own part")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::SystemClock;
use leasehold_conformance::calls::in_the_end;
use leasehold_core::{
    Backend, Claim, ClaimId, Failure, Grant, Note, Patience, Proof, Release, Renew, Renewal, Resource, Share,
    Step,
};
use leasehold_memcached::MemcachedConfig;

/// A client of its own, as another process would be.
pub async fn open(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    leasehold_memcached::connect(MemcachedConfig::parse(url)?, Arc::new(SystemClock)).await
}

/// A client of its own, which must connect.
pub async fn connect(url: &str) -> Arc<dyn Backend> {
    in_the_end(|| open(url)).await
}

pub fn no_patience() -> Patience {
    Patience::none(Arc::new(SystemClock))
}

pub fn endless() -> Patience {
    Patience::unlimited(Arc::new(SystemClock))
}

/// A claim for a minute.
pub fn claim(name: &str, share: Share) -> Claim {
    let mut id = [0; 16];
    getrandom::fill(&mut id).unwrap();
    Claim::new(ClaimId::from_bytes(id), Resource::new(name).unwrap(), share, Duration::from_secs(60))
        .note(Note::new("a test").unwrap())
}

pub fn mutex(name: &str) -> Claim {
    claim(name, Share::MUTEX)
}

/// Looks once.
pub async fn try_take(backend: &dyn Backend, claim: &Claim) -> Result<Option<Grant>, Failure> {
    match backend.contend(claim, &no_patience()).await? {
        Step::Granted(grant) => Ok(Some(grant)),
        Step::Busy(_) => Ok(None),
    }
}

/// Looks once, and must be granted.
pub async fn hold(backend: &dyn Backend, claim: &Claim) -> Grant {
    try_take(backend, claim).await.unwrap().unwrap()
}

/// Asks until it is granted, while the answer is busy or a failure that may pass.
pub async fn take(backend: &dyn Backend, claim: &Claim) -> Grant {
    for _ in 0..400 {
        let pause = match backend.contend(claim, &endless()).await {
            Ok(Step::Granted(grant)) => return grant,
            Ok(Step::Busy(hint)) => hint.ask_again_in.unwrap_or_default(),
            Err(failure) if failure.is_transient() => Duration::from_millis(50),
            Err(failure) => panic!("{failure}"),
        };
        tokio::time::sleep(pause).await;
    }
    panic!("never granted");
}

pub async fn release(backend: &dyn Backend, claim: &Claim) -> Release {
    backend.release(&[claim]).await.pop().unwrap()
}

pub async fn freed(backend: &dyn Backend, claim: &Claim) -> bool {
    matches!(release(backend, claim).await, Release::Freed)
}

pub async fn renew(backend: &dyn Backend, claim: &Claim) -> Renewal {
    backend.renew(&[Renew { claim, proof: &Proof::none() }]).await.pop().unwrap()
}

/// Renews a claim, and repeats the request until the answer is known.
pub async fn renewed_at_last(backend: &dyn Backend, claim: &Claim) -> Renewal {
    for _ in 0..100 {
        match renew(backend, claim).await {
            Renewal::Unknown(failure) if failure.is_transient() => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            renewal => return renewal,
        }
    }
    panic!("never answered");
}
