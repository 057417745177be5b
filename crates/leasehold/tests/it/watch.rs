//! `Client::watch`: the states of a resource as a stream.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind};
use std::sync::Arc;

#[tokio::test]
async fn stream_shows_the_present_state_and_each_later_one() {
    let locks = Client::open("mem:").await.unwrap();
    let mut states = locks.watch("job");
    assert!(states.next().await.unwrap().unwrap().holders.is_empty());
    let guard = locks.mutex("job").lock().await.unwrap();
    assert_eq!(states.next().await.unwrap().unwrap().holders.len(), 1);
    // Nothing has changed, so nothing comes.
    tokio::time::timeout(Duration::from_millis(300), states.next()).await.unwrap_err();
    guard.release().await.unwrap();
    assert!(states.next().await.unwrap().unwrap().holders.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stream_looks_seldom_during_an_outage() {
    let wire = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
    let locks = Client::builder().over(wire.clone()).unwrap();
    wire.set(Verb::Inspect, Mode::Refuse);
    let (mut states, began) = (locks.watch("job"), tokio::time::Instant::now());
    for _ in 0..3 {
        assert_eq!(states.next().await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert_eq!(began.elapsed(), Duration::from_secs(2));
    wire.set_all(Mode::Pass);
    assert!(states.next().await.unwrap().unwrap().holders.is_empty());
}

/// The store may keep something for each that looks.
#[tokio::test(start_paused = true)]
async fn look_ends_with_its_caller() {
    let store = Arc::new(MemoryBackend::new());
    let locks = Client::builder().over(store.clone()).unwrap();
    let version = locks.inspect("job").await.unwrap().version;
    let before = Arc::strong_count(&store);
    let look = locks.changed("job", &version, Duration::from_secs(3_600));
    assert!(tokio::time::timeout(Duration::from_secs(1), look).await.is_err());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(Arc::strong_count(&store), before);
}

#[tokio::test]
async fn stream_ends_after_an_error_that_stays() {
    let locks = Client::open("mem:").await.unwrap();
    let mut states = locks.watch("");
    assert_eq!(states.next().await.unwrap().unwrap_err().kind(), ErrorKind::Invalid);
    assert!(states.next().await.is_none());

    let mut states = locks.watch("job");
    states.next().await.unwrap().unwrap();
    assert!(locks.close(Duration::from_secs(60)).await);
    assert_eq!(states.next().await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(states.next().await.is_none());
}

/// The client is closed and its runtime lives on, so nothing but the client ends these waits.
#[tokio::test(start_paused = true)]
async fn waits_for_a_change_end_when_the_client_closes() {
    let wire = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
    let locks = Client::builder().over(wire.clone()).unwrap();
    let mut observer = locks.election("boss").observe();
    assert_eq!(observer.next().await.unwrap(), None);
    let version = locks.inspect("job").await.unwrap().version;
    let observing = tokio::spawn(async move { observer.next().await.unwrap_err() });
    let changing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.changed("job", &version, Duration::from_secs(3_600)).await.unwrap_err() }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = wire.calls(Verb::Inspect);
    locks.close(Duration::ZERO).await;
    // A wait that asks again without a pause leaves this runtime no time to move its clock.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    for wait in [observing, changing] {
        assert!(wait.is_finished(), "it still waits, after {} looks", wire.calls(Verb::Inspect) - asked);
        let error = wait.await.unwrap();
        assert_eq!((error.kind(), error.resource().is_some()), (ErrorKind::Closed, true), "{error}");
    }
    assert_eq!(wire.calls(Verb::Inspect), asked);
}
