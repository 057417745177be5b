//! A protected counter: clients in Python that are stopped while they hold the lock lose no update.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::child::ServerProcess;

#[tokio::test(flavor = "multi_thread")]
async fn stopped_holders_lose_no_update() {
    if Command::new("python3").arg("--version").output().is_err() {
        return leasehold_testkit::require::skip("python3", "it is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let server = ServerProcess::start(&store, folder.path());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/api/counter.py");
    let database = folder.path().join("counter.db");
    let python = |code: &str| {
        let run = Command::new("python3").args(["-c", code]).arg(&database).output().unwrap();
        assert!(run.status.success(), "{run:?}");
        String::from_utf8(run.stdout).unwrap().trim().to_owned()
    };
    python(
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); \
         c.execute('CREATE TABLE counter (value INTEGER, fence TEXT)'); \
         c.execute(\"INSERT INTO counter VALUES (0, '')\"); c.commit()",
    );
    let start = |_| {
        let mut command = Command::new("python3");
        command.arg(script).arg(&database).arg(ROUNDS.to_string());
        command
            .env("LEASEHOLD_HTTP", format!("http://{}", server.address))
            .env("LEASEHOLD_TOKEN", &server.token);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let workers: Vec<_> = (0..WORKERS).map(start).collect();
    let pids: Vec<_> = workers.iter().map(Pid::from_child).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let waking = std::thread::spawn({
        let is_over = is_over.clone();
        move || {
            let mut stopped: Vec<Option<Instant>> = vec![None; pids.len()];
            while !is_over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(20));
                for (pid, since) in pids.iter().zip(&mut stopped) {
                    let began = *since.get_or_insert_with(Instant::now);
                    if !is_stopped(*pid) {
                        *since = None;
                    } else if began.elapsed() >= STOP {
                        let _ = kill_process(*pid, Signal::CONT);
                        *since = None;
                    }
                }
            }
        }
    });
    // None of them is waited for before all have ended, so a pid belongs to no other process.
    let (mut workers, texts) = tokio::task::spawn_blocking(move || {
        let mut workers = workers;
        let read = |worker: &mut std::process::Child| {
            std::io::read_to_string(worker.stdout.take().unwrap()).unwrap()
        };
        let texts: Vec<String> = workers.iter_mut().map(read).collect();
        (workers, texts)
    })
    .await
    .unwrap();
    is_over.store(true, Ordering::SeqCst);
    waking.join().unwrap();
    assert!(workers.iter_mut().all(|worker| worker.wait().unwrap().success()));
    let (mut added, mut refused) = (0, 0);
    for text in texts {
        let numbers: Vec<u32> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
        added += numbers[0];
        refused += numbers[1];
    }
    let value = python(
        "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT value FROM counter').fetchone()[0])",
    );
    assert_eq!((added, value), (WORKERS * ROUNDS, (WORKERS * ROUNDS).to_string()));
    println!("{added} updates, {refused} writes of holders that had lost the lock were refused");
    assert!(refused > 0, "no stopped holder tried to write");
}

fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// The time for which a holder that stops itself stays stopped: far longer than the ttl, so that it has lost the
/// lock when it continues.
const STOP: Duration = Duration::from_millis(1200);
const WORKERS: u32 = 4;
const ROUNDS: u32 = 10;
