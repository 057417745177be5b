//! Ten thousand acquisitions dropped at random points leave no key, file, task or connection behind.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::Leasehold;
use leasehold_testkit::Reply;
use leasehold_tests::{Store, settled};

const DROPPED: u32 = 10_000;
const NAMES: u32 = 50;
/// So many at the same time.
const CROWD: u32 = 500;

/// Drops acquisitions of all kinds at random points, while others come through.
async fn cancel_at_random(clients: &[Leasehold]) {
    for round in 0..DROPPED / CROWD {
        let tasks: Vec<_> = (0..CROWD)
            .map(|n| tokio::spawn(one(clients[n as usize % clients.len()].clone(), round + n)))
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
}

async fn one(locks: Leasehold, n: u32) {
    let chance = getrandom::u32().unwrap();
    let name = format!("job/{}", chance % NAMES);
    let patience = Duration::from_micros(u64::from(chance >> 8) % 30_000);
    let acquire = async {
        match n % 4 {
            0 => locks.mutex(&name).lock().await.map(Some),
            1 => locks.rwlock(&name).read().await.map(Some),
            2 => locks
                .semaphore(&name, 3)
                .acquire_timeout(Duration::from_millis(10))
                .await
                .map(Some)
                .or(Ok(None)),
            _ => locks.rwlock(&name).try_write().await,
        }
    };
    if let Ok(Ok(Some(guard))) = tokio::time::timeout(patience, acquire).await {
        tokio::time::sleep(Duration::from_micros(u64::from(chance >> 20))).await;
        drop(guard);
    }
}

/// Waits until as many tasks live as before.
async fn tasks_end(before: usize) {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..500 {
        if alive() <= before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} tasks live, {before} did before", alive());
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The signs of life of claims, which are FIFOs.
fn fifos(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(fifos(&entry.path()));
        } else if kind.is_fifo() {
            found.push(entry.path());
        }
    }
    found
}

/// One test for all stores: what a process has open is counted, so nothing else may run in it meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_dropped_acquisitions_leave_nothing() {
    let file = Store::file();
    leaves_nothing(&file).await;
    let Store::File(dir) = &file else { unreachable!() };
    let held = file.client().await.mutex("one").lock().await.unwrap();
    assert_eq!(fifos(dir.path()).len(), 1, "what is counted is what a claim makes");
    held.release().await.unwrap();
    assert_eq!(fifos(dir.path()), Vec::<PathBuf>::new());

    let Some(redis) = Store::redis().await else { return };
    leaves_nothing(&redis).await;
    let Store::Redis(server) = &redis else { unreachable!() };
    let keys = server.command(&["KEYS", "*"]).await.unwrap();
    let Reply::Many(keys) = keys else { panic!("{keys:?}") };
    let fences =
        keys.iter().filter(|key| matches!(key, Reply::Bytes(key) if key.ends_with(b":fence"))).count();
    assert_eq!(fences, keys.len(), "only fences may stay: {keys:?}");
    assert!(fences <= NAMES as usize + 1);
}

async fn leaves_nothing(store: &Store) {
    let clients = [store.client().await, store.client().await];
    // The first wait of a client opens what it needs for waiting, which stays.
    let third = store.client().await;
    let held = third.mutex("warm").lock().await.unwrap();
    for locks in &clients {
        locks.mutex("warm").lock_timeout(Duration::from_millis(50)).await.unwrap_err();
    }
    held.release().await.unwrap();
    settled(&third).await;
    let (tasks, open) = (tokio::runtime::Handle::current().metrics().num_alive_tasks(), descriptors());
    cancel_at_random(&clients).await;
    settled(&third).await;
    tasks_end(tasks).await;
    assert!(descriptors() <= open, "{} descriptors are open, {open} were before", descriptors());
}
