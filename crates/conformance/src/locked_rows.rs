//! Checks of leases in rows when a transaction of another client keeps one of the rows locked.
//!
//! Ground rules: for tests only, so what must not fail panics. A server brings the stranger; what is
//! expected of a backend is written here, once.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backend, Claim, Effect, Failure, Proof, Release, Renew, Renewal};
use tokio::task::JoinSet;

use crate::calls::{LONG, claim, hold, look_once, release, renew_until_known};

/// Name of the row that the stranger keeps.
pub const LOCKED: &str = "job 333";

/// Checks that one locked row delays and fails no renewal, release or acquisition of a thousand others, and
/// that only its own claim is answered for with its name. `lock` returns when the stranger has the row, and
/// `unlock` when it has ended.
///
/// The statements of `backend` may wait for a row for longer than [`LIMIT`], so that one that waits is found.
///
/// # Panics
/// If that is not so.
pub async fn a_locked_row_delays_nothing_else(
    backend: &Arc<dyn Backend>,
    lock: impl AsyncFnOnce(),
    unlock: impl AsyncFnOnce(),
) {
    let claims: Vec<Claim> = (0..1_000).map(|n| claim(&format!("job {n}"), LONG * 20)).collect();
    for claim in &claims {
        hold(&**backend, claim).await;
    }
    let is_locked = |claim: &Claim| claim.resource.as_str() == LOCKED;
    lock().await;
    // What is known of a row that did not answer is forgotten, so the second and the third batch go other
    // ways.
    for _ in 0..3 {
        for (claim, renewal) in claims.iter().zip(renew_all(&**backend, &claims).await) {
            match renewal {
                Renewal::Renewed => assert!(!is_locked(claim), "a locked row was renewed"),
                Renewal::Unknown(failure) => assert!(is_locked(claim) && names_it(&failure), "{failure}"),
                Renewal::Alive | Renewal::Lost => panic!("{claim:?}: {renewal:?}"),
            }
        }
    }
    let (again, kept) = claims.split_at(100);
    each_task_has_its_own_turn(backend, again).await;
    // The first time they are known to be alone, the second time they are looked at.
    let batch: Vec<&Claim> = kept.iter().collect();
    for _ in 0..2 {
        for (claim, released) in kept.iter().zip(in_time(backend.release(&batch)).await) {
            match released {
                Release::Freed | Release::Gone => assert!(!is_locked(claim), "a locked row was released"),
                Release::Unknown(failure) => assert!(is_locked(claim) && names_it(&failure), "{failure}"),
            }
        }
    }
    unlock().await;
    let Some(locked) = claims.iter().find(|claim| is_locked(claim)) else { return };
    assert!(matches!(renew_until_known(&**backend, locked).await, Renewal::Renewed));
    assert!(matches!(release(&**backend, locked).await, Release::Freed));
}

/// Tasks that release and take at the same time, so that their changes go in shared commits.
async fn each_task_has_its_own_turn(backend: &Arc<dyn Backend>, claims: &[Claim]) {
    let mut tasks = JoinSet::new();
    for held in claims {
        let (backend, held) = (backend.clone(), held.clone());
        tasks.spawn(async move {
            assert!(matches!(release(&*backend, &held).await, Release::Freed));
            let next = held.id(claim("next", LONG).id);
            assert!(look_once(&*backend, &next).await.is_ok_and(|grant| grant.is_some()), "{next:?}");
        });
    }
    // One of them wants the row that is locked, and is the only one that waits for it.
    let stuck = tokio::spawn({
        let backend = backend.clone();
        async move { look_once(&*backend, &claim(LOCKED, LONG)).await }
    });
    in_time(tasks.join_all()).await;
    stuck.abort();
}

fn names_it(failure: &Failure) -> bool {
    let detail = failure.detail();
    let is_named = detail.contains(&format!("{LOCKED:?}")) && detail.contains("locked");
    is_named && failure.is_transient() && failure.effect == Effect::None
}

async fn renew_all(backend: &dyn Backend, claims: &[Claim]) -> Vec<Renewal> {
    let proof = Proof::none();
    let batch: Vec<Renew<'_>> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    in_time(backend.renew(&batch)).await
}

/// Panics where a step waits for the stranger.
async fn in_time<T>(step: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, step).await {
        Ok(done) => done,
        Err(_) => panic!("it waits for a row that a stranger keeps locked"),
    }
}

/// Limit of one step, longer than a busy machine takes.
pub const LIMIT: Duration = Duration::from_secs(60);
