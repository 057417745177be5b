//! Several locks as one, with settings that keep a lock beyond its guard.

use std::time::Duration;

use crate::common::{self, Store, ms};
use leasehold::layer::{Mode, Verb};
use leasehold::{Client, MultiLock, Mutex};
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);
const LINGER: Duration = Duration::from_secs(20);

/// A name, and what it sets.
type Setting = (&'static str, fn(Mutex) -> Mutex);
const SETTINGS: [Setting; 3] = [
    ("plain", |lock| lock),
    ("minimum", |lock| lock.min_hold(MINUTE)),
    ("lingers", |lock| lock.linger(LINGER)),
];

async fn assert_free(other: &Client, name: &str, when: &str) {
    let granted = other.mutex(name).try_lock().await.unwrap();
    granted.unwrap_or_else(|| panic!("{name} is kept: {when}")).release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn caller_that_does_not_get_all_keeps_none() {
    let store = Store::in_virtual_time();
    let ((locks, _), (far, wire), (other, _)) = (store.client(), store.client(), store.client());
    for (name, set) in SETTINGS {
        let busy = other.mutex("b").lock().await.unwrap();
        let first = || MultiLock::new().and(set(locks.mutex("a")));
        let both = first().and(locks.mutex("b"));
        assert!(both.try_lock().await.unwrap().is_none());
        assert_free(&other, "a", &format!("{name}, at once")).await;
        assert!(both.try_lock_for(ms(100)).await.unwrap().is_none());
        assert_free(&other, "a", &format!("{name}, in time")).await;

        let began = Instant::now();
        let cancelled = tokio::time::timeout(ms(100), both.lock()).await;
        assert!(cancelled.is_err());
        common::settles(&other, "a").await;
        assert!(began.elapsed() < ms(1_000), "{name}: kept for {:?} after a dropped wait", began.elapsed());

        wire.set(Verb::Contend, Mode::Refuse);
        let began = Instant::now();
        first().and(far.mutex("b")).try_lock().await.map(drop).unwrap_err();
        common::settles(&other, "a").await;
        assert!(began.elapsed() < ms(1_000), "{name}: kept for {:?} after a failure", began.elapsed());
        wire.set(Verb::Contend, Mode::Pass);
        busy.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn caller_that_gets_all_keeps_each_as_it_is_set() {
    let store = Store::in_virtual_time();
    let ((locks, wire), (other, _)) = (store.client(), store.client());
    let both = MultiLock::new().and(locks.mutex("a").min_hold(MINUTE)).and(locks.mutex("b").linger(LINGER));
    let busy = other.mutex("b").lock().await.unwrap();
    let (all, ()) = tokio::join!(both.lock(), async {
        tokio::time::sleep(MINUTE).await;
        busy.release().await.unwrap();
    });
    let began = Instant::now();
    drop(all.unwrap());
    let asked = wire.calls(Verb::Contend);
    locks.mutex("b").linger(LINGER).try_lock().await.unwrap().expect("it lingers").release().await.unwrap();
    assert_eq!(wire.calls(Verb::Contend), asked);
    common::settles(&other, "a").await;
    assert!(began.elapsed() >= MINUTE - ms(100), "kept for {:?} only", began.elapsed());
}
