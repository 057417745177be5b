//! Calls of a backend, and what they are about.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use leasehold_backend::session::Capacity;
use leasehold_conformance::SteadyClock;
use leasehold_core::{
    Backend, Claim, ClaimId, Clock, Grant, Patience, Proof, Release, Renew, Renewal, Resource, Share, Step,
};

use crate::store::Server;

pub(crate) const ONE: Capacity = Capacity::One { sessions: 3, option: "sessions=" };

pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(SteadyClock::new())
}

pub(crate) fn claim_of(name: &str, share: Share) -> Claim {
    let mut id = [0; 16];
    getrandom::fill(&mut id).unwrap();
    let (id, resource) = (ClaimId::from_bytes(id), Resource::new(name).unwrap());
    Claim::new(id, resource, share, Duration::from_secs(60))
}

pub(crate) fn claim(name: &str) -> Claim {
    claim_of(name, Share::MUTEX)
}

pub(crate) async fn hold(backend: &dyn Backend, claim: &Claim) -> Grant {
    match backend.contend(claim, &Patience::none(clock())).await.unwrap() {
        Step::Granted(grant) => grant,
        Step::Busy(hint) => panic!("{hint:?}"),
    }
}

pub(crate) async fn is_refused(backend: &dyn Backend, claim: &Claim) -> bool {
    matches!(backend.contend(claim, &Patience::none(clock())).await.unwrap(), Step::Busy(_))
}

pub(crate) async fn release(backend: &dyn Backend, claim: &Claim) -> Release {
    backend.release(&[claim]).await.pop().unwrap()
}

pub(crate) async fn renew(backend: &dyn Backend, claim: &Claim) -> Renewal {
    backend.renew(&[Renew { claim, proof: &Proof::none() }]).await.pop().unwrap()
}

/// Polls a future once, which is not ready.
pub(crate) fn poll_pending<T>(future: Pin<&mut impl Future<Output = T>>) {
    let polled = future.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
}

/// Waits until so many sessions are left.
pub(crate) async fn sessions_become(server: &Server, count: usize) {
    let reached = async {
        while server.sessions() != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), reached).await.is_ok(), "{}", server.sessions());
}
