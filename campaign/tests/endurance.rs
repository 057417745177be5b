//! Endurance in short: some processes on files and on Redis for seconds, with samples, plots and a verdict.

#![allow(clippy::unwrap_used, reason = "a test panics on an unexpected error")]

use std::time::Duration;

use leasehold_campaign::Store;
use leasehold_campaign::endure::{self, Endurance, Sample};
use leasehold_testkit::require;

async fn short(store: Store) {
    let folder = tempfile::tempdir().unwrap();
    let endurance = Endurance {
        store,
        length: Duration::from_secs(12),
        processes: 3,
        names: 5,
        seed: 1,
        folder: folder.path().to_owned(),
        publish: None,
        program: Some((env!("CARGO_BIN_EXE_campaign").into(), vec!["endure-worker".to_owned()])),
    };
    let verdict = match endure::run(&endurance).await {
        Ok(verdict) => verdict,
        Err(error) => match error.downcast_ref::<leasehold_testkit::Error>() {
            Some(missing) if missing.is_missing() => {
                return require::skip(store.word(), &missing.to_string());
            }
            _ => panic!("{error}"),
        },
    };
    println!("{verdict}");
    // Seconds say nothing about memory that warms up for longer, and little about what varies with the locks that are
    // held. But what each of hundreds of acquisitions leaves is more than all that a process uses.
    assert!(verdict.acquired() > 300, "{verdict}");
    let leaks = verdict
        .judgements()
        .iter()
        .filter(|one| !one.quantity.starts_with("memory") && one.growth > one.median.max(one.allowed));
    assert_eq!(leaks.count(), 0, "{verdict}");
    let samples = std::fs::read_to_string(folder.path().join(format!("{store}.jsonl"))).unwrap();
    let samples: Vec<Sample> = samples.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(samples.len() > 10 && samples.iter().any(|sample| sample.residents.is_some()));
    assert!(
        std::fs::read_to_string(folder.path().join(format!("{store}.svg"))).unwrap().contains("<polyline")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_on_files_stay_flat() {
    short(Store::File).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_on_redis_stay_flat() {
    short(Store::Redis).await;
}
