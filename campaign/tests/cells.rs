//! A handful of cells in each run of the tests: a worker that is paused or killed, a network that is parted, and
//! answers that are lost.

#![allow(clippy::unwrap_used, reason = "a test panics on an unexpected error")]

use std::time::Duration;

use leasehold_campaign::{Cell, CellOutcome, Fault, Record, Run, Store};
use leasehold_testkit::require;
use leasehold_torture::Program;

/// Long enough for some rounds of each fault.
const LENGTH: Duration = Duration::from_secs(5);

fn settings() -> Run {
    let mut run = Run::of(1, LENGTH);
    run.program = Some(Program::new(env!("CARGO_BIN_EXE_campaign"), ["torture-worker"]));
    // Other tests run at the same time, and a task may wait for a core.
    run.allowance = Duration::from_secs(3);
    run
}

async fn run(store: Store, fault: u8, seed: u64) -> Option<Record> {
    let settings = Run { seed, ..settings() };
    let record = Cell::new(store, Fault::number(fault)).run(&settings).await;
    if record.outcome == CellOutcome::NotRun {
        require::skip(store.word(), &record.note);
        return None;
    }
    Some(record)
}

/// Runs cells of one store, each of which has to be as expected, with grants and faults.
async fn hold(store: Store, faults: &[u8]) {
    for fault in faults {
        let Some(mut record) = run(store, *fault, 1).await else { return };
        // Whom a round hits, and whether that one holds something, is chance.
        let mut seed = 2;
        while [1, 4, 8].contains(fault) && store != Store::File && record.seen.all_hits() == 0 {
            assert!(record.expected && record.faults > 0, "{record:#?}");
            assert!(seed < 8, "no holder was hit: {record:#?}");
            let Some(again) = run(store, *fault, seed).await else { return };
            (record, seed) = (again, seed + 1);
        }
        println!("{record:?}");
        assert!(record.expected, "{record:#?}");
        assert!(record.seen.grants > 0 && record.faults > 0, "{record:#?}");
        assert!(record.did.as_ref().is_some_and(|did| did.things >= record.faults), "{record:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_hold_while_clients_are_paused_and_killed() {
    hold(Store::File, &[1, 4]).await;
}

/// The clock of leases runs apart and jumps in some of these rounds; that of SQLite is the machine's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_of_clients_run_apart_and_jump() {
    hold(Store::Sqlite, &[15]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_holds_while_clients_server_and_network_fail() {
    hold(Store::Redis, &[1, 4, 5, 8, 10]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dense_histories_carry_more_grants_beside_the_renewals() {
    let Some(usual) = run(Store::Redis, 1, 1).await else { return };
    let mut dense = settings();
    dense.is_dense = true;
    let record = Cell::new(Store::Redis, Fault::number(1)).run(&dense).await;
    println!("{record:?}");
    assert!(record.expected && record.dense && record.faults > 0, "{record:#?}");
    assert!(record.seen.grants > usual.seen.grants * 4, "{} and {record:#?}", usual.seen.grants);
    assert!(record.seen.renewals > Some(0), "nothing was renewed: {record:#?}");
    assert!(record.seen.handed_on < Some(record.seen.grants), "{record:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_holds_while_clients_and_network_fail() {
    hold(Store::Postgres, &[1, 4, 8, 10]).await;
}

/// The server that was promoted says what is left, and the fault is as large as what the failover lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_of_mariadb_is_judged_to_its_end() {
    let Some(record) = run(Store::MariaDb, 6, 1).await else { return };
    assert!(record.expected && record.faults == 1, "{record:#?}");
    let unjudged = record.unjudged.as_ref().unwrap();
    assert!(!unjudged.iter().any(|one| one == "I7" || one == "I5"), "{record:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advisory_locks_through_a_pooler_are_refused() {
    let Some(record) = run(Store::PostgresAdvisory, 19, 1).await else { return };
    assert!(record.expected && record.outcome == CellOutcome::Refused, "{record:#?}");
    assert!(record.note.contains("a pooler in between"), "{record:#?}");
}

/// Returns the processes that a process has started, and those that these have.
fn descendants(process: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let children =
        threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|line| line.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect();
    children.iter().copied().chain(children.iter().flat_map(|child| descendants(*child))).collect()
}

fn lives(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_campaign_that_is_killed_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_campaign"));
    command.args(["run", "--store", "sqlite", "--fault", "F4", "--seconds", "600", "--results"]);
    command.arg(folder.path().join("results.jsonl")).arg("--folder").arg(folder.path());
    let mut campaign = command.spawn().unwrap();
    let mut begun = Vec::new();
    wait_until("the campaign never begins", || {
        begun = descendants(campaign.id());
        begun.len() >= 4
    });
    campaign.kill().unwrap();
    campaign.wait().unwrap();
    wait_until("processes are left", || begun.iter().all(|process| !lives(*process)));
}
