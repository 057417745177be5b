//! `Guard::cancellation_token`: cancelled at each end of the guard, and not before.
use std::time::Duration;

use leasehold::{Client, Guard};
use tokio_util::sync::CancellationToken;

use crate::common::Store;

async fn held() -> (Client, Guard, CancellationToken) {
    let (locks, _) = Store::in_virtual_time().client();
    let guard = locks.mutex("job").ttl(Duration::from_millis(200)).lock().await.unwrap();
    let token = guard.cancellation_token();
    (locks, guard, token)
}

async fn cancelled(token: &CancellationToken) {
    tokio::time::timeout(Duration::from_secs(60), token.cancelled()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn release_and_drop_cancel_the_token() {
    let (_locks, guard, token) = held().await;
    // Longer than its ttl, so it was renewed.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(!token.is_cancelled(), "it is still held");
    guard.release().await.unwrap();
    cancelled(&token).await;

    let (_locks, guard, token) = held().await;
    drop(guard);
    cancelled(&token).await;
}

#[tokio::test(start_paused = true)]
async fn loss_cancels_the_token_while_the_guard_lives() {
    let (locks, guard, token) = held().await;
    let holder = locks.inspect("job").await.unwrap().holders.remove(0);
    locks.break_claim("job", &holder).await.unwrap();
    cancelled(&token).await;
    assert!(guard.check().is_err());
    // One that is asked for afterwards is cancelled as well.
    cancelled(&guard.cancellation_token()).await;
}

#[tokio::test(start_paused = true)]
async fn token_of_one_guard_outlives_no_other_holder() {
    let (locks, guard, token) = held().await;
    guard.release().await.unwrap();
    let next = locks.mutex("job").lock().await.unwrap();
    let of_next = next.cancellation_token();
    cancelled(&token).await;
    assert!(!of_next.is_cancelled());
    next.release().await.unwrap();
}

#[test]
fn end_of_the_runtime_cancels_the_token() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, guard, token) = runtime.block_on(held());
    runtime.shutdown_timeout(Duration::from_secs(60));
    assert!(token.is_cancelled());
    assert!(guard.cancellation_token().is_cancelled(), "no task is left that could cancel it");
    drop((guard, locks));
}

#[tokio::test]
async fn leadership_has_a_token_too() {
    let locks = Client::open("mem:").await.unwrap();
    let leadership = locks.election("leader").campaign("a").await.unwrap();
    let token = leadership.cancellation_token();
    assert!(!token.is_cancelled());
    leadership.resign().await.unwrap();
    cancelled(&token).await;
}
