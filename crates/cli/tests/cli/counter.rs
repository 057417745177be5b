//! No update is lost, and fences rise from grant to grant.

use crate::support::{LIMIT, Redis, Sandbox, Started};

const PROCESSES: usize = 8;
const ROUNDS: usize = 12;

/// Reads, sleeps, writes: without a lock, updates are lost at once.
const ROUND: &str =
    "n=$(cat counter); sleep 0.00$(($$ % 10)); echo $((n + 1)) >counter; echo $LEASEHOLD_FENCE >>fences";

fn count(sandbox: &Sandbox) {
    std::fs::write(sandbox.path("counter"), "0\n").unwrap();
    std::fs::write(sandbox.path("round"), ROUND).unwrap();
    let script = format!("for i in $(seq {ROUNDS}); do leasehold run counter -- sh ./round || exit 1; done");
    let workers: Vec<_> = (0..PROCESSES).map(|_| Started::new(sandbox.sh(&script))).collect();
    for worker in workers {
        // The first of them ends when nearly all rounds are over.
        worker.end_within(5 * LIMIT).expect(0);
    }
    let total = std::fs::read_to_string(sandbox.path("counter")).unwrap();
    assert_eq!(total.trim(), (PROCESSES * ROUNDS).to_string());
    let fences = std::fs::read_to_string(sandbox.path("fences")).unwrap();
    let fences: Vec<_> = fences.lines().collect();
    assert_eq!(fences.len(), PROCESSES * ROUNDS);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[test]
fn on_files() {
    count(&Sandbox::new());
}

#[test]
fn on_sqlite() {
    let store = tempfile::tempdir().unwrap();
    // A busy machine may keep the database locked for longer than the default timeout.
    count(&Sandbox::on(&format!("sqlite:{}?timeout=120s", store.path().join("locks.db").display())));
}

#[test]
fn on_redis() {
    let Some(redis) = Redis::start_or_skip() else { return };
    count(&Sandbox::on(&redis.server.url()));
}
