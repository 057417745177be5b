//! A lock that is held for a minimum of time, even if its holder releases it earlier.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::local::MemoryBackend;
use leasehold::{Client, Owner, TokioClock};
use tokio::time::Instant;

use crate::common::Store;

const MINIMUM: Duration = Duration::from_millis(150);

fn locks() -> Client {
    Store::in_virtual_time().client().0
}

#[tokio::test(start_paused = true)]
async fn release_waits_for_the_minimum_hold_and_drop_does_not() {
    let locks = locks();
    let mutex = locks.mutex("job").min_hold(MINIMUM);
    let began = Instant::now();
    mutex.lock().await.unwrap().release().await.unwrap();
    assert!(began.elapsed() >= MINIMUM);

    let began = Instant::now();
    drop(mutex.lock().await.unwrap());
    assert!(began.elapsed() < MINIMUM, "a drop never blocks");
    assert!(mutex.try_lock().await.unwrap().is_none(), "but it is still held");
    let next = locks.mutex("job").lock().await.unwrap();
    assert!(began.elapsed() >= MINIMUM);
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropped_release_still_keeps_the_minimum_hold() {
    let locks = locks();
    let began = Instant::now();
    let guard = locks.mutex("job").min_hold(MINIMUM).lock().await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(10), guard.release()).await.is_err());
    drop(locks.mutex("job").lock().await.unwrap());
    assert!(began.elapsed() >= MINIMUM);
}

#[tokio::test(start_paused = true)]
async fn at_least_owner_re_enters_and_a_closed_client_does_not_wait() {
    let locks = locks();
    let owner = Owner::new();
    let mutex = locks.mutex("job").min_hold(Duration::from_secs(60)).owner(&owner);
    drop(mutex.lock().await.unwrap());
    let again = mutex.try_lock().await.unwrap().expect("it is the owner's still");
    drop(again);
    let began = Instant::now();
    assert!(locks.close(Duration::from_secs(20)).await);
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn minimum_hold_of_one_guard_of_an_owner_outlasts_the_release_of_another() {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let open = || Client::builder().clock(clock.clone()).over(store.clone()).unwrap();
    let (locks, other) = (open(), open());
    let owner = Owner::new();
    let mutex = locks.mutex("job").owner(&owner);
    let kept = mutex.clone().min_hold(MINIMUM);
    for is_nested in [true, false] {
        let (began, later) = (Instant::now(), Duration::from_millis(50));
        let outer = kept.lock().await.unwrap();
        tokio::time::sleep(later).await;
        let (dropped, released, least) = if is_nested {
            (kept.lock().await.unwrap(), outer, later + MINIMUM)
        } else {
            (outer, mutex.lock().await.unwrap(), MINIMUM)
        };
        drop(dropped);
        released.release().await.unwrap();
        assert!(began.elapsed() >= least, "{:?}", began.elapsed());
        let free = other.mutex("job").try_lock().now_or_never().expect("this store decides at once");
        free.unwrap().expect("it is released when the call returns").release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn owner_that_re_enters_what_is_kept_releases_it_in_the_call() {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let open = || Client::builder().clock(clock.clone()).over(store.clone()).unwrap();
    let (locks, other) = (open(), open());
    let owner = Owner::new();
    let mutex = locks.mutex("job").owner(&owner);
    let kept = mutex.clone().min_hold(MINIMUM);
    for re_enters in 1..=3 {
        let began = Instant::now();
        drop(kept.lock().await.unwrap());
        for _ in 1..re_enters {
            drop(mutex.lock().await.unwrap());
        }
        tokio::time::sleep(MINIMUM / 3).await;
        let again = mutex.lock().await.unwrap();
        tokio::time::sleep(MINIMUM / 3).await;
        again.release().await.unwrap();
        assert!(began.elapsed() >= MINIMUM, "{:?}", began.elapsed());
        let free = other.mutex("job").try_lock().now_or_never().expect("this store decides at once");
        free.unwrap().expect("it is released when the call returns").release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn longest_minimum_hold_of_the_guards_of_an_owner_counts() {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let locks = Client::builder().clock(clock).over(store).unwrap();
    let mutex = locks.mutex("job").owner(&Owner::new());
    let began = Instant::now();
    let outer = mutex.clone().min_hold(MINIMUM * 3).lock().await.unwrap();
    drop(mutex.min_hold(MINIMUM).lock().await.unwrap());
    outer.release().await.unwrap();
    assert!(began.elapsed() >= MINIMUM * 3, "{:?}", began.elapsed());
}
