//! What the tests of this backend share.

#![allow(dead_code, unreachable_pub, reason = "not each test uses all of it")]
#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::SteadyClock;
use leasehold_core::{
    Backend, Claim, ClaimId, Clock, Failure, Grant, Note, Patience, Proof, Release, Renew, Renewal, Resource,
    Share, Step,
};
use leasehold_postgres::PostgresConfig;

pub const LONG: Duration = Duration::from_secs(60);

pub async fn connect(url: &str) -> Result<Arc<dyn Backend>, Failure> {
    leasehold_postgres::connect(PostgresConfig::parse(url)?, Arc::new(SteadyClock::new())).await
}

pub async fn open(url: &str) -> Arc<dyn Backend> {
    connect(url).await.unwrap()
}

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(SteadyClock::new())
}

pub fn resource(name: &str) -> Resource {
    Resource::new(name).unwrap()
}

pub fn claim(name: &str, ttl: Duration) -> Claim {
    let mut id = [0; 16];
    getrandom::fill(&mut id).unwrap();
    let id = ClaimId::from_bytes(id);
    Claim { id, resource: resource(name), share: Share::MUTEX, ttl, note: Note::default() }
}

pub async fn look_once(backend: &dyn Backend, claim: &Claim) -> Result<Option<Grant>, Failure> {
    match backend.contend(claim, &Patience::none(clock())).await? {
        Step::Granted(grant) => Ok(Some(grant)),
        Step::Busy(_) => Ok(None),
    }
}

pub async fn hold(backend: &dyn Backend, claim: &Claim) -> Grant {
    look_once(backend, claim).await.unwrap().unwrap()
}

/// Waits as the engine does: with the same claim after every failure that may pass.
pub async fn take(backend: &dyn Backend, claim: &Claim) -> Grant {
    let patience = Patience::unlimited(clock());
    for _ in 0..3_000 {
        match backend.contend(claim, &patience).await {
            Ok(Step::Granted(grant)) => return grant,
            Ok(Step::Busy(hint)) => tokio::time::sleep(hint.ask_again_in.unwrap_or_default()).await,
            Err(failure) if failure.is_transient() => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(failure) => panic!("{failure}"),
        }
    }
    panic!("never granted");
}

pub async fn release(backend: &dyn Backend, claim: &Claim) -> Release {
    backend.release(&[claim]).await.pop().unwrap()
}

pub async fn renew(backend: &dyn Backend, claim: &Claim) -> Renewal {
    backend.renew(&[Renew { claim, proof: &Proof::none() }]).await.pop().unwrap()
}

/// Renews as the engine does, until there is an answer.
pub async fn renew_at_last(backend: &dyn Backend, claim: &Claim) -> Renewal {
    for _ in 0..500 {
        match renew(backend, claim).await {
            Renewal::Unknown(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            answer => return answer,
        }
    }
    panic!("never answered");
}
