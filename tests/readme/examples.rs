//! The examples, as programs of their own, with the arguments that their first lines show.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use leasehold_testkit::{PostgresServer, RedisServer, Reply, peers, require};

/// An example takes no longer, on however busy a machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The program of an example, which is built beside the tests.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(
        program.exists(),
        "{} is not built: cargo build -p leasehold --features postgres --examples",
        program.display()
    );
    Command::new(program)
}

/// Runs programs at the same time. Returns the output of each; all have to succeed.
fn run(commands: Vec<Command>) -> Vec<String> {
    let start = |mut command: Command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let running: Vec<_> = commands.into_iter().map(start).collect();
    let began = Instant::now();
    let mut printed = Vec::new();
    for mut child in running {
        while child.try_wait().unwrap().is_none() && began.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(20));
        }
        // One that is still running is ended here, and has not succeeded.
        let _ = child.kill();
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{status}\n{stdout}\n{stderr}");
        printed.push(stdout.into_owned());
    }
    printed
}

#[test]
fn readme_program_locks_and_works() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = example("first_lock");
    command.env("XDG_STATE_HOME", folder.path());
    let printed = run(vec![command]).remove(0);
    let fence = printed.trim_end().strip_prefix("writing under fence ").unwrap_or_default();
    assert!(fence.len() == 20 && fence.bytes().all(|byte| byte.is_ascii_digit()), "{printed}");
}

#[test]
fn one_of_three_machines_does_the_nightly_job() {
    let folder = tempfile::tempdir().unwrap();
    let commands = (0..3).map(|_| {
        let mut command = example("nightly_job");
        command.env("TMPDIR", folder.path());
        command
    });
    let printed = run(commands.collect());
    let did = printed.iter().filter(|text| text.starts_with("the report is in ")).count();
    let left = printed.iter().filter(|text| text.starts_with("somebody else writes")).count();
    assert_eq!((did, left), (1, 2), "{printed:?}");
    let report = std::fs::read_to_string(folder.path().join("leasehold-nightly/report.txt")).unwrap();
    assert_eq!(report, "the days of the month are 496 in all\n");
}

#[test]
fn each_instance_of_a_service_leads_in_its_turn() {
    let printed = run(vec![example("elected_service")]).remove(0);
    for number in 1..=3 {
        for piece in 0..2 {
            let line = format!("10.0.0.{number}:80 leads, and does piece {piece}");
            assert_eq!(printed.matches(&line).count(), 1, "{printed}");
        }
    }
    assert!(printed.contains("requests go to 10.0.0."), "{printed}");
    assert!(printed.ends_with("all have led and resigned\n"), "{printed}");
}

#[test]
fn nothing_is_oversold() {
    let printed = run(vec![example("flash_sale")]).remove(0);
    for stripes in [1, 12, 120] {
        let line = printed.lines().find(|line| line.trim_start().starts_with(&format!("{stripes} ")));
        let fields: Vec<&str> = line.unwrap().split_whitespace().collect();
        assert_eq!(fields[1..3], ["1200", "0"], "{printed}");
    }
}

#[test]
fn one_loads_for_all() {
    let printed = run(vec![example("cache_stampede")]).remove(0);
    let loads = |row: &str| -> u32 {
        let line = printed.lines().find(|line| line.starts_with(row)).unwrap();
        line[row.len()..].split_whitespace().next().unwrap().parse().unwrap()
    };
    assert_eq!((loads("every caller loads"), loads("one loads for all")), (800, 1), "{printed}");
    assert_eq!(loads("the first loader dies"), 2, "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_postgres_refuses_the_holder_of_yesterday() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let mut command = example("fenced_postgres");
    command.arg(server.url());
    let printed = tokio::task::spawn_blocking(move || run(vec![command]).remove(0)).await.unwrap();
    assert!(printed.contains("the first holder wakes up and writes: 0 rows changed"), "{printed}");
    assert!(printed.contains("the second holder writes: 1 rows changed"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_moves_from_redis_py_and_loses_no_addition() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let python = tokio::task::spawn_blocking(|| peers::python(&["redis==8.1.0"])).await.unwrap();
    let Some(mut old) = require::or_skip("redis-peers", python) else { return };
    let script: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "../crates/leasehold/examples/migration_old.py"].iter().collect();
    old.arg(script).args([&server.url(), "20"]);
    let mut new = example("migration_new");
    new.args([&format!("{}?dialect=dual:plain", server.url()), "20"]);
    let printed = tokio::task::spawn_blocking(move || run(vec![old, new])).await.unwrap();
    assert_eq!(printed, ["old: added 20\n", "new: added 20\n"]);
    let counter = server.command(&["GET", "counter"]).await.unwrap();
    assert_eq!(counter, Reply::Bytes(b"40".to_vec()));
}
