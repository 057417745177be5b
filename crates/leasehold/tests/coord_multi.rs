//! Several locks as one: all or nothing, no circle of waiters, and the loss of one is the loss of all.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{ErrorKind, Leasehold, MultiLock};

const SOON: Duration = Duration::from_secs(20);

async fn memory() -> Leasehold {
    Leasehold::open("mem:").await.unwrap()
}

async fn is_free(locks: &Leasehold, name: &str) -> bool {
    locks.inspect(name).await.unwrap().holders.is_empty()
}

async fn eventually_free(locks: &Leasehold, names: &[&str]) {
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
async fn they_are_taken_in_the_order_of_their_names_and_once_each() {
    let locks = memory().await;
    let guard = locks.lock_all(["c", "a", "b", "a"]).lock().await.unwrap();
    let names: Vec<_> = guard.guards().iter().map(|guard| guard.resource().as_str().to_owned()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(guard.fence("b").is_some() && guard.fence("d").is_none());
    assert!(guard.check().is_ok() && guard.loss().is_none() && !guard.remaining().is_zero());
    guard.release().await.unwrap();
    eventually_free(&locks, &["a", "b", "c"]).await;
}

#[tokio::test]
async fn the_larger_share_of_two_is_taken_and_what_has_no_larger_is_refused() {
    let locks = memory().await;
    let table = locks.rwlock("table");
    let both = MultiLock::new().and(table.reading()).and(table.writing()).and(table.reading());
    let guard = both.lock().await.unwrap();
    assert_eq!(guard.guards().len(), 1);
    assert!(table.try_read().await.unwrap().is_none(), "it is held to write");
    drop(guard);
    eventually_free(&locks, &["table"]).await;

    let mixed = MultiLock::new().and(locks.semaphore("s", 3).taking(2)).and(locks.rwlock("s").reading());
    let refusal = mixed.lock().await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Invalid, "{refusal}");
    assert!(refusal.to_string().contains("cannot be one claim"), "{refusal}");
    assert!(is_free(&locks, "s").await);
}

#[tokio::test]
async fn whoever_does_not_get_all_holds_none() {
    let locks = memory().await;
    let busy = locks.mutex("b").lock().await.unwrap();
    let all = locks.lock_all(["a", "b", "c"]);
    assert!(all.try_lock().await.unwrap().is_none());
    eventually_free(&locks, &["a", "c"]).await;

    let refusal = all.lock_timeout(Duration::from_millis(30)).await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Timeout);
    assert!(refusal.to_string().contains(" b:"), "it says which: {refusal}");
    eventually_free(&locks, &["a", "c"]).await;

    // A caller that leaves midway leaves nothing.
    let waiting = tokio::time::timeout(Duration::from_millis(30), all.lock()).await;
    assert!(waiting.is_err());
    eventually_free(&locks, &["a", "c"]).await;
    busy.release().await.unwrap();
    assert!(all.try_lock().await.unwrap().is_some());
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_who_take_overlapping_sets_in_any_order_never_wait_in_a_circle() {
    let locks = memory().await;
    let owners: Arc<Vec<AtomicU32>> = Arc::new((0..6).map(|_| AtomicU32::new(0)).collect());
    let mut tasks = Vec::new();
    for task in 0..50_usize {
        let (locks, owners) = (locks.clone(), owners.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..20_usize {
                // Three of six, from anywhere, in either direction.
                let mut wanted: Vec<usize> =
                    (0..3).map(|step| (task + round * 7 + step * (1 + task % 2)) % 6).collect();
                if (task + round) % 3 == 0 {
                    wanted.reverse();
                }
                let guard = locks.lock_all(wanted.iter().map(|n| format!("r{n}"))).lock().await.unwrap();
                let mine: std::collections::BTreeSet<usize> = wanted.into_iter().collect();
                for resource in &mine {
                    assert_eq!(owners[*resource].fetch_add(1, Ordering::SeqCst), 0, "two hold r{resource}");
                }
                tokio::task::yield_now().await;
                for resource in &mine {
                    owners[*resource].fetch_sub(1, Ordering::SeqCst);
                }
                drop(guard);
            }
        }));
    }
    let all = async {
        for task in tasks {
            task.await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all).await.expect("they wait for each other");
}

#[tokio::test]
async fn the_loss_of_one_is_the_loss_of_all_and_says_which() {
    let fault = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
    let shaky = Leasehold::builder().over(fault.clone()).unwrap();
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
    let shaky = Leasehold::builder().over(fault.clone()).unwrap();
    let steady = memory().await;
    let busy = steady.mutex("b").lock().await.unwrap();
    fault.set(Verb::Renew, Mode::Hang);
    let all = MultiLock::new().and(shaky.mutex("a").ttl(Duration::from_millis(200))).and(steady.mutex("b"));
    let lost = tokio::time::timeout(SOON, all.lock()).await.unwrap().unwrap_err();
    assert!(matches!(lost.kind(), ErrorKind::Lost(_)) && lost.to_string().contains(" a:"), "{lost}");
    assert_eq!(steady.inspect("b").await.unwrap().waiting.len(), 0, "and its place in line is given up");
    drop(busy);
}
