//! Uncontended locks of a store that decides at once: no other task is needed, and every other rule holds.
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::{Store, settles, waiting};
use futures_util::FutureExt;
use leasehold::backend::{AtOnce, Backend, Claim, DirectReply, Moment, Release};
use leasehold::layer::{Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind};
use leasehold_conformance::{Around, Wrapped};

#[tokio::test]
async fn uncontended_lock_needs_no_other_task() {
    let store = Store::new();
    let ((locks, wire), (other, _)) = (store.client(), store.client());
    let guard = locks.mutex("job").lock().now_or_never().expect("at once").unwrap();
    assert!(other.mutex("job").try_lock().await.unwrap().is_none());
    guard.release().now_or_never().expect("at once").unwrap();
    let guard = locks.mutex("job").try_lock().now_or_never().expect("at once").unwrap();
    drop(guard.expect("it is free"));
    // The drop has released it, without a task.
    let guard = other.mutex("job").try_lock().now_or_never().expect("at once").unwrap();
    assert!(guard.is_some());
    assert_eq!((wire.calls(Verb::Contend), wire.calls(Verb::Release)), (2, 2), "each is one request");
}

#[tokio::test]
async fn task_that_locks_in_a_loop_lets_others_run() {
    let (locks, _) = Store::new().client();
    let other = tokio::spawn(async {});
    for _ in 0..1_000 {
        locks.mutex("job").lock().await.unwrap().release().await.unwrap();
    }
    assert!(other.is_finished());
}

/// As on an executor that is not tokio's, which gives no budget.
#[tokio::test]
async fn task_without_a_budget_that_locks_in_a_loop_lets_others_run() {
    let (locks, _) = Store::new().client();
    let other = tokio::spawn(async {});
    tokio::task::unconstrained(async {
        for _ in 0..1_000 {
            locks.mutex("job").lock().await.unwrap().release().await.unwrap();
        }
    })
    .await;
    assert!(other.is_finished());
}

#[tokio::test(start_paused = true)]
async fn lock_granted_at_once_is_renewed() {
    let (locks, wire) = Store::in_virtual_time().client();
    let ttl = Duration::from_millis(300);
    let guard = locks.mutex("job").ttl(ttl).lock().now_or_never().expect("at once").unwrap();
    tokio::time::sleep(ttl * 3).await;
    assert!(wire.calls(Verb::Renew) >= 3);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn waiter_of_the_same_client_is_not_passed() {
    let store = Store::new();
    let (locks, _) = store.client();
    let seats = locks.semaphore("seats", 3);
    let held = seats.acquire_many(2).await.unwrap();
    let waiter = locks.semaphore("seats", 3);
    let waiter = tokio::spawn(async move { waiter.acquire_many(2).await });
    tokio::task::yield_now().await;
    assert!(seats.try_acquire_many(1).await.unwrap().is_none());
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    settles(&locks, "seats").await;
}

#[tokio::test]
async fn waiter_of_another_client_is_not_passed() {
    let store = Store::new();
    let ((locks, _), (other, _)) = (store.client(), store.client());
    let held = locks.rwlock("book").read().await.unwrap();
    let writer = other.rwlock("book");
    let writer = tokio::spawn(async move { writer.write().await });
    waiting(&locks, "book", 1).await;
    assert!(locks.rwlock("book").try_read().await.unwrap().is_none(), "a reader passed a writer that waits");
    let late = locks.rwlock("book");
    assert!(late.read().now_or_never().is_none(), "a reader passed a writer that waits");
    held.release().await.unwrap();
    writer.await.unwrap().unwrap().release().await.unwrap();
    settles(&locks, "book").await;
}

#[tokio::test]
async fn release_at_once_wakes_waiters_of_all_clients() {
    let store = Store::new();
    let ((locks, _), (other, _)) = (store.client(), store.client());
    for is_dropped in [false, true] {
        let guard = locks.mutex("job").lock().await.unwrap();
        let waits = other.mutex("job");
        let waits = tokio::spawn(async move { waits.lock().await });
        waiting(&locks, "job", 1).await;
        if is_dropped {
            drop(guard);
        } else {
            guard.release().await.unwrap();
        }
        let next = tokio::time::timeout(SOON, waits).await.expect("it is woken").unwrap().unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn fault_is_met_although_the_store_decides_at_once() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.client();
    wire.set(Verb::Contend, Mode::Refuse);
    let refused = locks.mutex("job").try_lock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    wire.set(Verb::Contend, Mode::Pass);
    let guard = locks.mutex("job").lock().await.unwrap();
    wire.set(Verb::Release, Mode::Hang);
    let mut release = Box::pin(guard.release());
    assert!((&mut release).now_or_never().is_none());
    wire.set(Verb::Release, Mode::Pass);
    release.await.unwrap();
    settles(&locks, "job").await;
}

#[tokio::test]
async fn closed_client_is_granted_nothing_at_once() {
    let store = Store::new();
    let ((locks, _), (other, _)) = (store.client(), store.client());
    let guard = locks.mutex("held").lock().await.unwrap();
    assert!(locks.close(SOON).await);
    assert!(guard.check().unwrap_err().is_lost());
    let refused = locks.mutex("job").lock().now_or_never().expect("at once").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    settles(&other, "job").await;
    settles(&other, "held").await;
}

#[tokio::test]
async fn panic_at_once_leaves_nothing_and_goes_the_longer_way() {
    let store = Spiteful { memory: MemoryBackend::new(), panics: AtomicU32::new(1) };
    let store = Arc::new(Wrapped(store));
    let locks = Client::builder().over(store.clone()).unwrap();
    // The panic comes after the grant, so the next claim has to wait until the first is released.
    let guard = tokio::time::timeout(SOON, locks.mutex("job").lock()).await.expect("soon").unwrap();
    store.panics.store(1, Ordering::SeqCst);
    guard.release().await.unwrap();
    settles(&locks, "job").await;
    store.panics.store(1, Ordering::SeqCst);
    // It may have been released by now, or not.
    drop(locks.mutex("other").try_lock().await.unwrap());
    settles(&locks, "other").await;
}

/// A memory store that panics after it has decided.
#[derive(Debug)]
struct Spiteful {
    memory: MemoryBackend,
    panics: AtomicU32,
}

impl Spiteful {
    fn fails(&self) {
        let left = self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "after the decision (spiteful)");
    }
}

impl AtOnce for Spiteful {
    fn grant_now(&self, claim: &Claim, asked_at: Moment) -> DirectReply {
        let reply = self.memory.grant_now(claim, asked_at);
        self.fails();
        reply
    }

    fn release_now(&self, claim: &Claim) -> Option<Release> {
        let release = self.memory.release_now(claim);
        self.fails();
        release
    }
}

impl Around for Spiteful {
    fn inner(&self) -> &dyn Backend {
        &self.memory
    }

    fn at_once(&self) -> Option<&dyn AtOnce> {
        Some(self)
    }
}

const SOON: Duration = Duration::from_secs(60);
