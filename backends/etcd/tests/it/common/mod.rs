//! Helpers of this crate's tests: clients on one clock, and a holder that renews as the engine does.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test program uses its own part"
)]

mod mute;

pub use mute::MuteProgress;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_conformance::{SteadyClock, patience_for};
use leasehold_core::{
    Backend, Claim, ClaimId, Clock, Fence, Grant, LossCause, Moment, Note, Patience, Release, Renew, Renewal,
    Resource, Share, Step,
};
use leasehold_etcd::{EtcdBackend, EtcdConfig};
use tokio::task::JoinHandle;

pub const TTL: Duration = Duration::from_secs(10);

/// One clock for all clients of a test program, so that their times can be compared.
pub fn clock() -> Arc<dyn Clock> {
    static CLOCK: OnceLock<Arc<dyn Clock>> = OnceLock::new();
    CLOCK.get_or_init(|| Arc::new(SteadyClock::new())).clone()
}

/// Connects. Tries again while a server on a busy machine answers later than the URL allows for.
pub async fn connect(url: &str) -> Arc<EtcdBackend> {
    let config = EtcdConfig::parse(url).unwrap();
    let limit = clock().now().after(Duration::from_secs(60));
    loop {
        match EtcdBackend::connect(config.clone()).await {
            Ok(backend) => return Arc::new(backend),
            Err(failure) if failure.is_transient() && clock().now() < limit => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
}

pub fn claim_of(name: &str, share: Share, ttl: Duration) -> Claim {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).unwrap();
    let resource = Resource::new(name).unwrap();
    Claim::new(ClaimId::from_bytes(bytes), resource, share, ttl).note(Note::new("a test").unwrap())
}

pub fn mutex(name: &str) -> Claim {
    claim_of(name, Share::MUTEX, TTL)
}

/// Looks once.
pub async fn try_take(backend: &EtcdBackend, claim: &Claim) -> Option<Grant> {
    match backend.contend(claim, &Patience::none(clock())).await.unwrap() {
        Step::Granted(grant) => Some(grant),
        Step::Busy(_) => None,
    }
}

/// Repeats the request until a grant or the end of `limit`, as the engine does; failures in between are
/// ignored.
pub async fn take(backend: &EtcdBackend, claim: &Claim, limit: Duration) -> Option<Grant> {
    let patience = patience_for(&clock(), limit);
    while !patience.is_ended() {
        match backend.contend(claim, &patience).await {
            Ok(Step::Granted(grant)) => return Some(grant),
            Ok(Step::Busy(_)) => {}
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    None
}

pub fn waiting(
    backend: &Arc<EtcdBackend>,
    claim: &Claim,
    limit: Duration,
) -> JoinHandle<Option<(Grant, Moment)>> {
    let (backend, claim) = (backend.clone(), claim.clone());
    tokio::spawn(async move { take(&backend, &claim, limit).await.map(|grant| (grant, clock().now())) })
}

pub async fn release(backend: &EtcdBackend, claim: &Claim) -> Release {
    backend.release(&[claim]).await.pop().unwrap()
}

pub async fn freed(backend: &EtcdBackend, claim: &Claim) {
    let release = release(backend, claim).await;
    assert!(matches!(release, Release::Freed), "{release:?}");
}

pub async fn renew(backend: &EtcdBackend, claim: &Claim, grant: &Grant) -> Renewal {
    backend.renew(&[Renew { claim, proof: &grant.proof }]).await.pop().unwrap()
}

/// Returns the numbers of holders and of waiters.
pub async fn claim_counts(backend: &EtcdBackend, name: &str) -> (usize, usize) {
    let resource = Resource::new(name).unwrap();
    let seen = backend.inspect(&resource, None, &Patience::none(clock())).await.unwrap();
    (seen.holders.len(), seen.waiting.len())
}

/// Waits until as many wait.
pub async fn wait_for_waiters(backend: &EtcdBackend, name: &str, count: usize) {
    let limit = clock().now().after(Duration::from_secs(30));
    while claim_counts(backend, name).await.1 < count {
        assert!(clock().now() < limit, "fewer than {count} wait for {name}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A claim that is held and renewed until it is lost, and believes no more than the engine would.
pub struct Holder {
    pub fence: Fence,
    valid_until: Arc<AtomicU64>,
    task: JoinHandle<LossCause>,
}

impl Holder {
    pub fn start(backend: &Arc<EtcdBackend>, claim: &Claim, grant: Grant) -> Holder {
        let valid_until = Arc::new(AtomicU64::new(grant.asked_at.after(claim.ttl).as_nanos()));
        let fence = grant.fence.unwrap();
        let task = tokio::spawn(hold(backend.clone(), claim.clone(), grant, valid_until.clone()));
        Holder { fence, valid_until, task }
    }

    /// Up to when it believed, so far, that it holds.
    pub fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::SeqCst))
    }

    pub fn is_lost(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends the renewals, but not the claim.
    pub fn stop(self) {
        self.task.abort();
    }
}

async fn hold(
    backend: Arc<EtcdBackend>,
    claim: Claim,
    grant: Grant,
    valid_until: Arc<AtomicU64>,
) -> LossCause {
    loop {
        tokio::time::sleep(claim.ttl / 5).await;
        let asked_at = clock().now();
        let end = Moment::from_nanos(valid_until.load(Ordering::SeqCst));
        if let Some(cause) = grant.lost.as_ref().and_then(|lost| lost.cause()) {
            return cause;
        }
        if asked_at >= end {
            return LossCause::Expired;
        }
        match renew(&backend, &claim, &grant).await {
            Renewal::Renewed if clock().now() < end => {
                valid_until.fetch_max(asked_at.after(claim.ttl).as_nanos(), Ordering::SeqCst);
            }
            Renewal::Lost => return LossCause::Gone,
            _ => {}
        }
    }
}
