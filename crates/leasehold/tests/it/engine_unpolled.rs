//! Lock futures that are polled once and then left: they are never a burden for other tasks, and lose nothing.

use crate::common;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::common::{Store, block_on, ms, settles, waiting};
use leasehold::layer::{Mode, Verb};
use leasehold::{ErrorKind, Note};

/// No machine is so busy.
const SOON: Duration = Duration::from_secs(60);

/// Polls a future once, which must not be ready.
fn poll_once(future: std::pin::Pin<&mut impl Future>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[tokio::test]
async fn waiter_behind_an_unpolled_lock_future_is_granted() {
    let store = Store::new();
    let (locks, _) = store.client();
    let (other, _) = store.client();
    let held = other.mutex("job").lock().await.unwrap();
    let mutex = locks.mutex("job");
    let mut unpolled = Box::pin(mutex.lock());
    poll_once(unpolled.as_mut());
    let second = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    waiting(&other, "job", 1).await;
    held.release().await.unwrap();
    // The grant is for the first of the two, which leaves.
    drop(unpolled);
    tokio::time::timeout(SOON, second).await.unwrap().unwrap().unwrap().release().await.unwrap();
    settles(&other, "job").await;
}

#[tokio::test(start_paused = true)]
async fn waiter_of_another_share_is_not_delayed_by_an_unpolled_one() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.client();
    let lock = locks.rwlock("prices");
    wire.set(Verb::Contend, Mode::Refuse);
    let mut unpolled = pin!(lock.read());
    // Its request is refused, and it pauses before the next one.
    poll_once(unpolled.as_mut());
    wire.set(Verb::Contend, Mode::Pass);
    let second = tokio::time::timeout(SOON, lock.read()).await.unwrap().unwrap();
    second.release().await.unwrap();
}

#[tokio::test]
async fn close_ends_a_lock_future_that_is_not_polled() {
    let store = Store::new();
    let (locks, _) = store.client();
    let (other, _) = store.client();
    let held = other.mutex("job").lock().await.unwrap();
    let mutex = locks.mutex("job");
    let mut unpolled = pin!(mutex.lock());
    poll_once(unpolled.as_mut());
    waiting(&other, "job", 1).await;
    let closed = tokio::time::timeout(SOON, locks.close(SOON * 2)).await;
    assert!(closed.unwrap(), "closing does not wait for the caller");
    waiting(&other, "job", 0).await;
    assert_eq!(unpolled.await.unwrap_err().kind(), ErrorKind::Closed);
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn close_ends_an_upgrade_that_is_not_polled() {
    let store = Store::in_virtual_time();
    let (locks, _) = store.client();
    let (other, _) = store.client();
    let reader = other.rwlock("job").read().await.unwrap();
    let mut guard = locks.rwlock("job").upgradable_read().await.unwrap();
    let mut unpolled = pin!(guard.upgrade());
    while other.inspect("job").await.unwrap().waiting.is_empty() {
        poll_once(unpolled.as_mut());
        tokio::time::sleep(ms(5)).await;
    }
    let closed = tokio::time::timeout(SOON, locks.close(SOON * 2)).await;
    assert!(closed.unwrap(), "closing does not wait for the caller");
    waiting(&other, "job", 0).await;
    assert!(unpolled.await.is_err());
    reader.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_no_reader_of_a_register() {
    let (locks, _) = Store::in_virtual_time().client();
    let latch = locks.latch("ready", 1);
    let mut unpolled = pin!(latch.wait());
    poll_once(unpolled.as_mut());
    // It has begun to wait for a change.
    tokio::time::sleep(ms(100)).await;
    poll_once(unpolled.as_mut());
    tokio::time::sleep(ms(100)).await;
    // A wait for a change takes at least half a minute.
    let closed = tokio::time::timeout(Duration::from_secs(20), locks.close(SOON)).await;
    assert!(closed.unwrap());
    assert_eq!(unpolled.await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn unpolled_lock_future_in_the_queue_keeps_its_grant() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.client();
    let (other, _) = store.client();
    let held = other.mutex("job").lock().await.unwrap();
    let mutex = locks.mutex("job").ttl(ms(300));
    let mut unpolled = pin!(mutex.lock());
    poll_once(unpolled.as_mut());
    waiting(&other, "job", 1).await;
    held.release().await.unwrap();
    // It is granted without a further poll, and renewed.
    common::held(&other, "job").await;
    tokio::time::sleep(ms(1000)).await;
    let guard = unpolled.await.unwrap();
    guard.check().unwrap();
    assert_eq!(wire.calls(Verb::Contend), 1, "its grant was renewed while its caller did something else");
    guard.release().await.unwrap();
}

/// The other task cannot get it by hand-off, since its note differs.
#[tokio::test(start_paused = true)]
async fn waiter_behind_a_release_that_is_not_polled_is_granted() {
    let (locks, wire) = Store::in_virtual_time().client();
    let guard = locks.mutex("job").lock().await.unwrap();
    let next = locks.mutex("job").note(Note::new("next").unwrap());
    let waits = tokio::spawn(async move { next.lock().await });
    tokio::time::sleep(ms(10)).await;
    wire.set(Verb::Release, Mode::Hang);
    let mut unpolled = pin!(guard.release());
    poll_once(unpolled.as_mut());
    wire.set(Verb::Release, Mode::Pass);
    let next = tokio::time::timeout(ms(50), waits).await.expect("it waits for the store alone");
    next.unwrap().unwrap().release().await.unwrap();
    unpolled.await.unwrap();
}

#[test]
fn lock_retries_outside_of_a_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, wire) = runtime.block_on(async { Store::new().client() });
    wire.set(Verb::Contend, Mode::Refuse);
    let waits = std::thread::spawn({
        let mutex = locks.mutex("job");
        move || block_on(mutex.lock()).map(drop)
    });
    while wire.calls(Verb::Contend) < 2 {
        std::thread::sleep(ms(1));
    }
    wire.set(Verb::Contend, Mode::Pass);
    waits.join().unwrap().unwrap();
    runtime.block_on(settles(&locks, "job"));
}
