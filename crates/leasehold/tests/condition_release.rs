//! A wait on a condition whose release of the lock was repeated misses no wake-up.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, TokioClock};

const TTL: Duration = Duration::from_secs(1);

/// The repeated release finds no claim, as after a release whose answer was lost. But the lock may have been lost
/// before, and the next holder may have notified before this task entered the queue of waiters.
#[tokio::test(start_paused = true)]
async fn wait_whose_release_was_repeated_misses_no_wake_up() {
    for mode in [Mode::LoseRequest, Mode::LoseReply] {
        let clock = Arc::new(TokioClock::new());
        let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
        let fault = Arc::new(Fault::over(store.clone()));
        let ours = Client::builder().clock(clock.clone()).over(fault.clone()).unwrap();
        let theirs = Client::builder().clock(clock).over(store).unwrap();
        let condition = ours.condition("not empty").ttl(TTL);
        let guard = ours.mutex("queue").ttl(TTL).lock().await.unwrap();
        let holder = theirs.inspect("queue").await.unwrap().holders[0].clone();
        theirs.break_claim("queue", &holder).await.unwrap();
        let next = theirs.mutex("queue").ttl(TTL).lock().await.unwrap();
        next.notify_one(&theirs.condition("not empty")).await.unwrap();
        next.release().await.unwrap();
        fault.set(Verb::Release, mode);
        let before = fault.calls(Verb::Release);
        let waiting = tokio::spawn(async move { guard.wait(&condition).await });
        while fault.calls(Verb::Release) == before {
            tokio::task::yield_now().await;
        }
        fault.set(Verb::Release, Mode::Pass);
        let waited = tokio::time::timeout(20 * TTL, waiting).await;
        let guard = waited.expect("it sleeps, and was notified before").unwrap().unwrap();
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}
