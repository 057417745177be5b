//! Endurance in short: some processes on files and on Redis for seconds, with samples, plots and a verdict.

#![allow(clippy::unwrap_used, reason = "a test panics on an unexpected error")]

use std::path::Path;
use std::time::Duration;

use leasehold_campaign::Store;
use leasehold_campaign::endure::{self, Endurance, Sample};
use leasehold_testkit::require;

fn of_seconds(store: Store, seconds: u64, folder: &Path) -> Endurance {
    Endurance {
        store,
        length: Duration::from_secs(seconds),
        processes: 3,
        names: 5,
        seed: 1,
        folder: folder.to_owned(),
        publish: None,
        program: Some((env!("CARGO_BIN_EXE_campaign").into(), vec!["endure-worker".to_owned()])),
    }
}

async fn short(store: Store) {
    let folder = tempfile::tempdir().unwrap();
    let endurance = of_seconds(store, 12, folder.path());
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
    // Nor do they say that a busy machine lets each process acquire something all the time.
    let lacks =
        |one: &&String| !one.contains("in the last fifth") && !one.contains("processes acquired nothing for");
    assert_eq!(
        verdict.objections().iter().find(lacks),
        None,
        "all processes are there, and end when they are asked to"
    );
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_end_by_themselves_are_not_flat() {
    let folder = tempfile::tempdir().unwrap();
    let mut endurance = of_seconds(Store::File, 2, folder.path());
    let script = r#"read orders; echo '{"acquired":1,"failed":0,"tasks":1}'; exit 3"#;
    endurance.program = Some(("/bin/sh".into(), vec!["-c".to_owned(), script.to_owned()]));
    let verdict = endure::run(&endurance).await.unwrap();
    assert!(!verdict.is_flat(), "{verdict}");
    assert!(verdict.objections()[0].starts_with("3 processes ended by themselves"), "{verdict}");
}

/// Such a process may look for a store that it cannot open, or hang; its end is a good one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_acquire_nothing_are_not_flat() {
    let folder = tempfile::tempdir().unwrap();
    // Long enough for a process to print something on a busy machine.
    let mut endurance = of_seconds(Store::File, 8, folder.path());
    let script = r#"read orders
        mkdir "$0" 2>/dev/null && exec cat
        number=0
        while :; do
            number=$((number + 1)); echo "{\"acquired\":$number,\"failed\":0,\"tasks\":1}"; sleep 0.05
        done &
        cat; kill $!"#;
    let idle = folder.path().join("one of them is idle").display().to_string();
    endurance.program = Some(("/bin/sh".into(), vec!["-c".to_owned(), script.to_owned(), idle]));
    let verdict = endure::run(&endurance).await.unwrap();
    println!("{verdict}");
    assert!(verdict.acquired() > 0, "{verdict}");
    assert!(
        verdict.objections().iter().any(|one| one.contains("processes acquired nothing for")),
        "{verdict}"
    );
}
