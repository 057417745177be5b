//! A backend driven by hand, for its own tests of faults: single calls, and calls repeated as the engine
//! does.
//!
//! Ground rules: for tests only, so what must not fail panics. All on one steady clock of its own.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Backend, Claim, ClaimId, Clock, Failure, Grant, Patience, Proof, Release, Renew, Renewal, Resource,
    Share, Step,
};

use crate::SteadyClock;

/// A ttl that no test outlives.
pub const LONG: Duration = Duration::from_secs(60);

/// Returns a clock that counts suspend.
pub fn clock() -> Arc<dyn Clock> {
    Arc::new(SteadyClock::new())
}

/// Returns the resource of this name.
///
/// # Panics
/// If `name` is not a valid name.
pub fn resource(name: &str) -> Resource {
    must(Resource::new(name))
}

/// Returns a new claim on all of a resource.
///
/// # Panics
/// If `name` is not a valid name, or the system has no randomness.
pub fn claim(name: &str, ttl: Duration) -> Claim {
    let mut id = [0; 16];
    must(getrandom::fill(&mut id));
    let id = ClaimId::from_bytes(id);
    Claim::new(id, resource(name), Share::MUTEX, ttl)
}

/// Repeats a call while its failure is transient, as a server on a busy machine makes it.
///
/// # Panics
/// If another failure comes, or a transient one after a minute.
pub async fn in_the_end<T, F: Future<Output = Result<T, Failure>>>(mut call: impl FnMut() -> F) -> T {
    for _ in 0..MAX_STEPS {
        match call().await {
            Ok(answer) => return answer,
            Err(failure) if failure.is_transient() => tokio::time::sleep(PAUSE).await,
            Err(failure) => panic!("{failure}"),
        }
    }
    panic!("all calls of a minute failed");
}

/// Contends once, without waiting.
///
/// # Errors
/// The errors of the backend.
pub async fn look_once(backend: &dyn Backend, claim: &Claim) -> Result<Option<Grant>, Failure> {
    match backend.contend(claim, &Patience::none(clock())).await? {
        Step::Granted(grant) => Ok(Some(grant)),
        Step::Busy(_) => Ok(None),
    }
}

/// Takes a free lock.
///
/// # Panics
/// If the lock is not free.
pub async fn hold(backend: &dyn Backend, claim: &Claim) -> Grant {
    match look_once(backend, claim).await {
        Ok(Some(grant)) => grant,
        other => panic!("{:?} is not granted: {other:?}", claim.resource),
    }
}

/// Waits as the engine does: contends with the same claim after every transient failure.
///
/// # Panics
/// If a failure is not transient, or nothing is granted in the end.
pub async fn take(backend: &dyn Backend, claim: &Claim) -> Grant {
    let patience = Patience::unlimited(clock());
    for _ in 0..MAX_STEPS {
        match backend.contend(claim, &patience).await {
            Ok(Step::Granted(grant)) => return grant,
            Ok(Step::Busy(hint)) => tokio::time::sleep(hint.ask_again_in.unwrap_or_default()).await,
            Err(failure) if failure.is_transient() => tokio::time::sleep(PAUSE).await,
            Err(failure) => panic!("{failure}"),
        }
    }
    panic!("{:?} was never granted", claim.resource);
}

/// Releases a claim.
///
/// # Panics
/// If the backend does not answer.
pub async fn release(backend: &dyn Backend, claim: &Claim) -> Release {
    must(backend.release(&[claim]).await.pop().ok_or("no answer"))
}

/// Renews a claim.
///
/// # Panics
/// If the backend does not answer.
pub async fn renew(backend: &dyn Backend, claim: &Claim) -> Renewal {
    must(backend.renew(&[Renew { claim, proof: &Proof::none() }]).await.pop().ok_or("no answer"))
}

/// Renews as the engine does, until the outcome is known.
///
/// # Panics
/// If the outcome is never known.
pub async fn renew_until_known(backend: &dyn Backend, claim: &Claim) -> Renewal {
    for _ in 0..MAX_STEPS {
        match renew(backend, claim).await {
            Renewal::Unknown(_) => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
    panic!("no renewal of {:?} was ever answered", claim.resource);
}

/// Releases as the engine does, until the outcome is known.
///
/// # Panics
/// If the outcome is never known.
pub async fn release_until_known(backend: &dyn Backend, claim: &Claim) -> Release {
    for _ in 0..MAX_STEPS {
        match release(backend, claim).await {
            Release::Unknown(_) => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
    panic!("no release of {:?} was ever answered", claim.resource);
}

/// Waits until a request of this claim, whose answer is lost, has made it a holder, or has ended it.
///
/// # Panics
/// If that never happens, or the backend does not answer.
pub async fn wait_for_holder(backend: &dyn Backend, claim: &Claim, is_holder: bool) {
    for _ in 0..MAX_STEPS {
        let seen = must(backend.inspect(&claim.resource, None, &Patience::none(clock())).await);
        if seen.holders.iter().any(|holder| holder.id == claim.id) == is_holder {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("{:?} never {} a holder", claim.resource, if is_holder { "became" } else { "ceased to be" });
}

pub(crate) fn must<T, E: std::fmt::Debug>(outcome: Result<T, E>) -> T {
    match outcome {
        Ok(value) => value,
        Err(error) => panic!("{error:?}"),
    }
}

/// Calls of one wait at most: a minute of them.
const MAX_STEPS: usize = 3_000;
const PAUSE: Duration = Duration::from_millis(20);
