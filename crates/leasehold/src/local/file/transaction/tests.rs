//! Interleavings of steps with releases and breaks of the same claim.

use leasehold_core::{Backend, ClaimId, Release, Resource, Share, Step};
use tempfile::TempDir;

use super::*;
use crate::SystemClock;
use crate::local::{FileBackend, FileConfig};

/// Opens a store of its own, and patience without an end.
fn store() -> (TempDir, FileBackend, Patience) {
    let base = tempfile::tempdir().unwrap();
    let backend = FileBackend::open(FileConfig::new(base.path().join("store"))).unwrap();
    (base, backend, Patience::unlimited(Arc::new(SystemClock)))
}

/// Returns a claim for the one resource.
fn claim(id: u8) -> Claim {
    let resource = Resource::new("a").unwrap();
    Claim::new(ClaimId::from_bytes([id; 16]), resource, Share::MUTEX, Duration::from_secs(1))
}

/// A `contend` whose future was dropped continues on its thread, and may get the short lock after the
/// release of its claim.
#[tokio::test]
async fn late_step_of_a_released_claim_leaves_the_next_claim_alone() {
    let (_base, backend, patience) = store();
    for id in 1..4 {
        backend.contend(&claim(id), &patience).await.unwrap();
        backend.release(&[&claim(id)]).await;
    }
    let (late, next) = (claim(4), claim(5));
    backend.contend(&late, &patience).await.unwrap();
    let seen = backend.inner.claims.fifo(&late).unwrap();
    backend.release(&[&late]).await;
    assert!(matches!(backend.contend(&next, &patience).await, Ok(Step::Granted(_))));
    let reused = backend.inner.claims.fifo(&next).unwrap();
    assert!(Arc::ptr_eq(&seen, &reused), "the next claim has the FIFO of the released one");
    let mut step = Transaction::begin(&backend.inner, &late, &Limit::of(&patience)).unwrap();
    step.contend(Some(seen), false).unwrap_err();
    drop(step);
    assert!(backend.still_holds(&next).unwrap(), "its FIFO is in place");
}

/// A release may find the claim unknown to this process, and wait for the short lock that the last step of a
/// dropped `contend` has.
#[tokio::test]
async fn release_ends_what_a_step_of_a_dropped_call_enters_meanwhile() {
    for (is_known, is_granted) in [(false, false), (false, true), (true, false), (true, true)] {
        let (_base, backend, patience) = store();
        let (holder, late, next) = (claim(1), claim(2), claim(3));
        assert!(matches!(backend.contend(&holder, &patience).await, Ok(Step::Granted(_))));
        let limit = Limit::of(&patience);
        if is_known {
            Transaction::begin(&backend.inner, &late, &limit).unwrap().contend(None, false).unwrap();
        }
        if is_granted {
            backend.release(&[&holder]).await;
        }
        let own = backend.inner.claims.fifo(&late);
        let mut step = Transaction::begin(&backend.inner, &late, &limit).unwrap();
        let releases = [&late];
        let mut releasing = backend.release(&releases);
        let waker = std::task::Waker::noop();
        let early = releasing.as_mut().poll(&mut std::task::Context::from_waker(waker));
        assert!(early.is_pending(), "it waits for the short lock");
        // The step is past its look at the own FIFO, which the release may have removed by now.
        step.enter(own, false).unwrap();
        drop(step);
        let (released, case) = (releasing.await, format!("known: {is_known}, granted: {is_granted}"));
        assert!(matches!(released[..], [Release::Freed]), "{case}: {released:?}");
        assert!(backend.inner.claims.fifo(&late).is_none(), "{case}: nothing is left in the process");
        backend.release(&[&holder]).await;
        let granted = backend.contend(&next, &Patience::none(Arc::new(SystemClock))).await;
        assert!(matches!(granted, Ok(Step::Granted(_))), "{case}: {granted:?}");
    }
}

/// A call that waits reads the queue again, and may be granted, while its claim is broken by its own process.
#[tokio::test]
async fn claim_that_is_granted_during_its_break_is_notified() {
    let (_base, backend, patience) = store();
    let (holder, waiter) = (claim(1), claim(2));
    assert!(matches!(backend.contend(&holder, &patience).await, Ok(Step::Granted(_))));
    let limit = Limit::of(&patience);
    Transaction::begin(&backend.inner, &waiter, &limit).unwrap().contend(None, false).unwrap();
    backend.release(&[&holder]).await;
    let mut step = Transaction::begin(&backend.inner, &waiter, &limit).unwrap();
    // The break has taken it out of the table of this process, and waits for the short lock.
    let own = backend.inner.claims.forget(&waiter).unwrap();
    own.life.fifo.remove().unwrap();
    assert!(matches!(step.contend(None, false), Ok(Attempt::Granted)));
    let grant = backend.grant(&waiter, patience.now()).unwrap();
    drop(step);
    release(&backend.inner, &waiter, own).unwrap();
    assert!(grant.lost.unwrap().cause().is_some(), "another claim can be granted now");
}

/// The first step of a dropped `contend` may get the short lock after the next call for the same claim began.
#[tokio::test]
async fn second_call_for_a_claim_takes_over_the_place_of_the_first() {
    let (_base, backend, patience) = store();
    let claim = claim(1);
    let own = backend.inner.claims.fifo(&claim);
    let limit = Limit::of(&patience);
    Transaction::begin(&backend.inner, &claim, &limit).unwrap().contend(None, false).unwrap();
    let mut second = Transaction::begin(&backend.inner, &claim, &limit).unwrap();
    assert!(matches!(second.contend(own, false), Ok(Attempt::Granted)));
}

#[tokio::test]
async fn late_step_of_a_dropped_call_takes_no_place() {
    let (_base, backend, patience) = store();
    let claim = claim(1);
    contend(&backend.inner, &claim, &patience, false, &Weak::new()).unwrap_err();
    let seen = backend.inspect(&claim.resource, None, &patience).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiting.len()), (0, 0), "nobody would release it");
}
