//! Policies of a lock: the delay after a loss, the order of the waiters of one client, and a limit of the rate.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Store, ms};
use leasehold::backend::LossCause;
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, TokioClock, Tuning};
use tokio::time::Instant;

/// After the end of its validity the lock is granted to no client for the lock delay, and then to the
/// next.
#[tokio::test(start_paused = true)]
async fn lock_delay_blocks_all_grants_after_a_loss() {
    for mode in [Mode::LoseRequest, Mode::LoseReply, Mode::Hang] {
        let store = Store::in_virtual_time();
        let ((first, wire), (second, _)) = (store.client(), store.client());
        let lock_delay = ms(400);
        let mutex = first.mutex("job").ttl(ms(200)).lock_delay(lock_delay);
        let guard = mutex.lock().await.unwrap();
        wire.set(Verb::Renew, mode);
        let successor = tokio::spawn(async move {
            let guard = second.mutex("job").ttl(ms(200)).lock().await.unwrap();
            (Instant::now(), guard)
        });
        assert_eq!(guard.lost().await, LossCause::Expired);
        let lost = Instant::now();
        // A release after the loss must not end the lock delay.
        assert!(guard.release().await.unwrap_err().is_lost());
        // The same process waits like all others.
        assert!(mutex.try_lock().await.unwrap().is_none(), "{mode:?}");
        let (granted, _guard) = successor.await.unwrap();
        // The loss is reported up to a few milliseconds after the end of validity, from which the lock
        // delay counts.
        let passed = granted.duration_since(lost);
        assert!(passed + ms(50) >= lock_delay.mul_f64(0.99), "{mode:?}: granted {passed:?} after the loss");
        assert!(passed < ms(5000), "{mode:?}: granted only {passed:?} after the loss");
    }
}

#[tokio::test(start_paused = true)]
async fn lock_delay_applies_after_max_hold() {
    let (locks, _) = Store::in_virtual_time().client();
    let mutex = locks.mutex("job").ttl(ms(200)).lock_delay(ms(300));
    let guard = mutex.clone().max_hold(ms(100)).lock().await.unwrap();
    assert_eq!(guard.lost().await, LossCause::MaxHold);
    let lost = Instant::now();
    drop(guard);
    drop(mutex.lock().await.unwrap());
    assert!(lost.elapsed() >= ms(280));
}

#[tokio::test]
async fn lock_delay_does_not_apply_after_a_release() {
    let store = Store::new();
    let ((first, _), (second, _)) = (store.client(), store.client());
    let guard = first.mutex("job").lock_delay(ms(20_000)).lock().await.unwrap();
    // It is renewed by its own ttl, not by that of the server.
    assert!(guard.remaining() <= ms(30_000));
    guard.release().await.unwrap();
    let guard =
        second.mutex("job").lock_delay(ms(20_000)).try_lock().await.unwrap().expect("it is free at once");
    drop(guard);
    let held = second.mutex("other").lock_delay(ms(20_000)).lock().await.unwrap();
    assert!(second.close(ms(60_000)).await);
    assert!(first.mutex("other").try_lock().await.unwrap().is_some(), "a closed client releases properly");
    drop(held);
}

#[tokio::test]
async fn lock_delay_that_a_store_cannot_keep_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let files = Client::open(&format!("file:{}", directory.path().display())).await.unwrap();
    let error = files.mutex("job").lock_delay(ms(100)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(files.mutex("job").try_lock().await.unwrap().is_some());
    let (locks, wire) = Store::new().client();
    let error = locks.mutex("job").lock_delay(ms(u64::MAX / 2)).lock().await.unwrap_err();
    assert_eq!((error.kind(), wire.calls(Verb::Contend)), (ErrorKind::Invalid, 0));
}

#[tokio::test]
async fn greater_priority_is_first_and_equals_keep_arrival_order() {
    let (locks, _) = Store::new().client();
    let mutex = locks.mutex("job");
    let guard = mutex.lock().await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for (name, priority) in [("a", 0), ("b", -3), ("c", 7), ("d", 0), ("e", 7)] {
        let (mutex, sender) = (mutex.clone().priority(priority), sender.clone());
        tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            sender.send(name).unwrap();
            guard.release().await.unwrap();
        });
        // Each waiter is queued before the next one comes.
        tokio::task::yield_now().await;
    }
    drop((guard, sender));
    let mut served = Vec::new();
    while let Some(name) = order.recv().await {
        served.push(name);
    }
    assert_eq!(served, ["c", "e", "a", "d", "b"]);
}

/// A permit that was granted is neither renewed nor released, and ends with its lease.
#[tokio::test(start_paused = true)]
async fn permits_of_a_rate_limit_end_with_their_period() {
    let clock = Arc::new(TokioClock::new());
    let wire = Arc::new(Fault::over(Arc::new(MemoryBackend::with_clock(clock.clone()))));
    let locks = Client::builder().clock(clock).over(wire.clone()).unwrap();
    let period = Duration::from_secs(3);
    let rate = locks.rate_limit("mails", 2, period);
    let began = tokio::time::Instant::now();
    for _ in 0..6 {
        rate.acquire().await.unwrap();
    }
    let took = began.elapsed();
    assert!((period * 2..period * 2 + Duration::from_millis(500)).contains(&took), "{took:?}");
    // No task of this client is in the way of a try, either.
    assert!(!rate.try_acquire().await.unwrap());
    tokio::time::sleep(period).await;
    assert!(rate.try_acquire().await.unwrap());
    assert_eq!((wire.calls(Verb::Renew), wire.calls(Verb::Release)), (0, 0));
}

#[tokio::test]
async fn a_tuning_out_of_its_bounds_is_refused() {
    let opens = |tuning: Tuning| {
        let store = Arc::new(MemoryBackend::new());
        Client::builder()
            .tuning(tuning)
            .over(store)
            .map(drop)
            .map_err(|error| (error.kind(), error.to_string()))
    };
    let tuning = Tuning::default;
    for good in [tuning().renew_at(0.05), tuning().renew_at(0.6), tuning().drift(0.0), tuning().drift(0.5)] {
        assert_eq!(opens(good), Ok(()));
    }
    for (bad, word) in [
        (tuning().renew_at(0.04), "renew_at"),
        (tuning().renew_at(0.61), "renew_at"),
        (tuning().renew_at(f64::NAN), "renew_at"),
        (tuning().drift(-0.01), "drift"),
        (tuning().drift(0.51), "drift"),
    ] {
        let (kind, text) = opens(bad).unwrap_err();
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(text.contains(word), "{text}");
    }
}
