//! A task that waits for a lock that it holds itself is warned of, on any executor.

use crate::common::{Store, ms};
use leasehold::Client;
use leasehold_testkit::Warnings;

async fn waits_for_itself(locks: &Client) {
    let mutex = locks.mutex("job");
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock_for(ms(20)).await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[test]
fn task_that_waits_for_itself_is_warned() {
    let (warnings, _listening) = Warnings::listen("leasehold");
    let warned = || warnings.count("a lock that it holds itself");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (locks, _) = Store::new().client();
        waits_for_itself(&locks).await;
        assert_eq!(warned(), 1, "in what `block_on` drives");
        let spawned = locks.clone();
        tokio::spawn(async move { waits_for_itself(&spawned).await }).await.unwrap();
        assert_eq!(warned(), 2, "in a task");
        let guard = locks.mutex("job").lock().await.unwrap();
        let handed = locks.clone();
        let next = tokio::spawn(async move {
            let guard = handed.mutex("job").lock().await.unwrap();
            assert!(handed.mutex("job").try_lock_for(ms(20)).await.unwrap().is_none());
            drop(guard);
        });
        tokio::time::sleep(ms(20)).await;
        guard.release().await.unwrap();
        next.await.unwrap();
        assert_eq!(warned(), 3, "in a task to which it was handed off");
        // Two tasks wait for each other's end, and neither for itself.
        let guard = locks.mutex("job").lock().await.unwrap();
        let other = locks.mutex("job");
        let waits = tokio::spawn(async move { other.try_lock_for(ms(20)).await });
        assert!(waits.await.unwrap().unwrap().is_none());
        drop(guard);
        assert_eq!(warned(), 3, "of another task");
    });
}
