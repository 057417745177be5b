//! Several locks as one: refused requests, and the loss of one as the loss of all.
//!
//! The promises on every store are tested in `tests/coordination`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, MultiLock};

const SOON: Duration = Duration::from_secs(20);

async fn memory() -> Client {
    Client::open("mem:").await.unwrap()
}

async fn is_free(locks: &Client, name: &str) -> bool {
    locks.inspect(name).await.unwrap().holders.is_empty()
}

async fn eventually_free(locks: &Client, names: &[&str]) {
    for name in names {
        let freed = async {
            while !is_free(locks, name).await {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(SOON, freed).await.unwrap_or_else(|_| panic!("{name} stays held"));
    }
}

#[tokio::test]
async fn a_bad_name_is_refused_before_anything_is_taken() {
    let locks = memory().await;
    let refusal = locks.lock_all(["a", "", "b"]).lock().await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Invalid);
    assert!(is_free(&locks, "a").await);
    let many: Vec<String> = (0..5_000).map(|number| number.to_string()).collect();
    assert_eq!(locks.lock_all(many).lock().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(MultiLock::new().lock().await.unwrap().release().await.is_ok(), "nothing is held at once");
}

#[tokio::test]
async fn the_loss_of_one_is_the_loss_of_all_and_says_which() {
    let fault = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
    let shaky = Client::builder().over(fault.clone()).unwrap();
    let steady = memory().await;
    let all = MultiLock::new().and(steady.mutex("a")).and(shaky.mutex("b").ttl(Duration::from_millis(200)));
    let guard = all.lock().await.unwrap();
    fault.set(Verb::Renew, Mode::Hang);
    let lost =
        tokio::time::timeout(SOON, guard.run(std::future::pending::<()>())).await.unwrap().unwrap_err();
    assert!(matches!(lost.kind(), ErrorKind::Lost(_)) && lost.to_string().contains(" b:"), "{lost}");
    assert_eq!(guard.loss().unwrap().resource.as_str(), "b");
    assert_eq!(guard.lost().await.resource.as_str(), "b");
    assert!(guard.check().is_err() && guard.remaining().is_zero());
    fault.set(Verb::Renew, Mode::Pass);
    assert!(matches!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost(_)));
    eventually_free(&steady, &["a"]).await;
}

#[tokio::test]
async fn a_loss_while_it_waits_for_the_next_ends_the_wait() {
    let fault = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
    let shaky = Client::builder().over(fault.clone()).unwrap();
    let steady = memory().await;
    let busy = steady.mutex("b").lock().await.unwrap();
    fault.set(Verb::Renew, Mode::Hang);
    let all = MultiLock::new().and(shaky.mutex("a").ttl(Duration::from_millis(200))).and(steady.mutex("b"));
    let lost = tokio::time::timeout(SOON, all.lock()).await.unwrap().unwrap_err();
    assert!(matches!(lost.kind(), ErrorKind::Lost(_)) && lost.to_string().contains(" a:"), "{lost}");
    assert_eq!(steady.inspect("b").await.unwrap().waiting.len(), 0, "and its place in the queue is given up");
    drop(busy);
}
