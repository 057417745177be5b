//! The end of a wait with a limit: `Timeout` says that the store answered, anything else that it did not.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

mod common;

use std::time::Duration;

use common::{Store, ms, settles};
use leasehold::layer::{Mode, Verb};
use leasehold::{Client, ErrorKind};
use tokio::time::Instant;

/// As long as a silent server answers nothing.
const SILENT: Mode = Mode::LateReply(Duration::from_secs(3_600));

/// Returns how a wait for `job` with this limit ends, and after how long.
async fn ends(locks: &Client, limit: Duration) -> (ErrorKind, Duration) {
    let began = Instant::now();
    let error = locks.mutex("job").lock_timeout(limit).await.unwrap_err();
    assert_eq!(error.resource().map(ToString::to_string).as_deref(), Some("job"), "{error}");
    (error.kind(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_says_that_it_is_busy() {
    let store = Store::new();
    let ((locks, _), (other, _)) = (store.client(), store.client());
    let guard = other.mutex("job").lock().await.unwrap();
    for limit in [ms(1), ms(100), ms(3_000), ms(60_000)] {
        assert_eq!(ends(&locks, limit).await, (ErrorKind::Timeout, limit));
    }
    guard.release().await.unwrap();
    settles(&other, "job").await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_not_busy() {
    let (locks, wire) = Store::new().client();
    wire.set_all(SILENT);
    for limit in [ms(100), ms(3_000)] {
        let (kind, took) = ends(&locks, limit).await;
        assert_eq!((kind, took), (ErrorKind::OutcomeUnknown, limit + ms(2_000)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_falls_silent_during_the_wait_is_not_busy() {
    let store = Store::new();
    let ((locks, wire), (other, _)) = (store.client(), store.client());
    let _guard = other.mutex("job").lock().await.unwrap();
    let waits = tokio::spawn(async move { ends(&locks, ms(3_000)).await });
    common::waiting(&other, "job", 1).await;
    wire.set_all(SILENT);
    let (kind, took) = waits.await.unwrap();
    assert_eq!(kind, ErrorKind::OutcomeUnknown);
    assert!(took <= ms(5_001), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_at_the_end_is_not_busy() {
    let store = Store::new();
    for (mode, said) in [
        (Mode::Refuse, ErrorKind::Unavailable),
        (Mode::LoseRequest, ErrorKind::OutcomeUnknown),
        (Mode::LoseReply, ErrorKind::OutcomeUnknown),
    ] {
        let ((locks, wire), (other, _)) = (store.client(), store.client());
        let guard = other.mutex("job").lock().await.unwrap();
        wire.set(Verb::Contend, mode);
        let (kind, took) = ends(&locks, ms(3_000)).await;
        assert_eq!((kind, took), (said, ms(3_000)), "{mode:?}");
        wire.set_all(Mode::Pass);
        guard.release().await.unwrap();
        settles(&other, "job").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_has_two_seconds_after_a_short_wait() {
    let store = Store::new();
    let ((locks, wire), (other, _)) = (store.client(), store.client());
    let guard = other.mutex("job").lock().await.unwrap();
    wire.set(Verb::Contend, Mode::LateReply(ms(1_500)));
    assert_eq!(ends(&locks, ms(100)).await, (ErrorKind::Timeout, ms(1_600)));
    guard.release().await.unwrap();
    settles(&other, "job").await;
    let granted = locks.mutex("job").lock_timeout(ms(100)).await.unwrap();
    granted.release().await.unwrap();
    settles(&other, "job").await;
    wire.set(Verb::Contend, Mode::LateReply(ms(2_500)));
    assert_eq!(ends(&locks, ms(100)).await, (ErrorKind::OutcomeUnknown, ms(2_100)));
    // A grant that came too late for the caller has been released.
    wire.set_all(Mode::Pass);
    settles(&other, "job").await;
}

#[tokio::test(start_paused = true)]
async fn one_of_several_who_wait_hears_of_a_silent_store() {
    let store = Store::new();
    let ((locks, wire), (other, _)) = (store.client(), store.client());
    let guard = other.mutex("job").lock().await.unwrap();
    let patient = locks.mutex("job");
    let goes_on = tokio::spawn(async move { patient.lock().await });
    common::waiting(&other, "job", 1).await;
    assert_eq!(ends(&locks, ms(3_000)).await, (ErrorKind::Timeout, ms(3_000)));
    wire.set_all(SILENT);
    assert_eq!(ends(&locks, ms(3_000)).await, (ErrorKind::OutcomeUnknown, ms(5_000)));
    wire.set_all(Mode::Pass);
    guard.release().await.unwrap();
    goes_on.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_this_client_holds_is_busy_whatever_the_store_says() {
    let (locks, wire) = Store::new().client();
    let _guard = locks.mutex("job").lock().await.unwrap();
    wire.set_all(SILENT);
    assert_eq!(ends(&locks, ms(3_000)).await, (ErrorKind::Timeout, ms(3_000)));
}

#[tokio::test(start_paused = true)]
async fn upgrades_and_segments_say_it_too() {
    let store = Store::new();
    let ((locks, wire), (other, _)) = (store.client(), store.client());
    let reader = other.rwlock("job").read().await.unwrap();
    let mut guard = locks.rwlock("job").upgradable_read().await.unwrap();
    let busy = guard.upgrade_timeout(ms(3_000)).await.unwrap_err();
    assert_eq!((busy.kind(), busy.op()), (ErrorKind::Timeout, "upgrade"), "{busy}");
    common::settles(&other, "job!upgrade").await;
    let falls_silent = async {
        tokio::time::sleep(ms(1_000)).await;
        wire.set(Verb::Contend, SILENT);
    };
    let (silent, ()) = tokio::join!(guard.upgrade_timeout(ms(3_000)), falls_silent);
    let silent = silent.unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::OutcomeUnknown, "{silent}");
    let silent = locks.striped_mutex("parts", 2).lock_any_timeout(ms(3_000)).await.unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::OutcomeUnknown, "{silent}");
    drop((reader, guard));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_does_not_wait_for_the_last_word() {
    let (locks, wire) = Store::new().client();
    wire.set_all(SILENT);
    let waiter = locks.clone();
    let waits = tokio::spawn(async move { ends(&waiter, ms(1_000)).await });
    tokio::time::sleep(ms(2_000)).await;
    locks.close(ms(0)).await;
    assert_eq!(waits.await.unwrap(), (ErrorKind::Closed, ms(2_000)));
}
