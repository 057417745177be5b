//! Holders that are paused past their lease, at random: the fence keeps every acknowledged update.

use std::time::Duration;

use leasehold_tests::{Actor, Outcome, Store};

const ACTORS: usize = 6;
const ROUNDS: u32 = 40;
const TTL: Duration = Duration::from_millis(300);

/// Runs actors, of which one at a time is stopped for longer than its lease. Returns what each acknowledged,
/// the final counter, and the number of pauses.
async fn run(store: &Store, rounds: u32) -> (Vec<Vec<Outcome>>, u64, u32) {
    let dir = tempfile::tempdir().unwrap();
    let counter = dir.path().join("counter");
    let program = env!("CARGO_BIN_EXE_actor");
    let mut actors: Vec<_> =
        (0..ACTORS).map(|_| Actor::start(program, &store.url(), &counter, rounds, TTL)).collect();
    let mut pauses = 0;
    while actors.iter_mut().any(Actor::is_running) && pauses < 200 {
        let chance = getrandom::u32().unwrap();
        let victim = chance as usize % ACTORS;
        if !actors[victim].is_running() {
            continue;
        }
        tokio::time::sleep(Duration::from_millis(u64::from(chance >> 16) % 40)).await;
        actors[victim].stop();
        pauses += 1;
        tokio::time::sleep(TTL + Duration::from_millis(u64::from(chance >> 20) % 200)).await;
        actors[victim].resume();
    }
    let outcomes = actors.into_iter().map(Actor::finish).collect();
    let total = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
    (outcomes, total, pauses)
}

fn check(outcomes: &[Vec<Outcome>], total: u64, rounds: u32) {
    for own in outcomes {
        let fences: Vec<_> = own.iter().filter_map(|outcome| outcome.fence()).collect();
        assert_eq!(fences.len(), rounds as usize);
        assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "fences of one process fall: {fences:?}");
    }
    let mut fences: Vec<_> = outcomes.iter().flatten().filter_map(|outcome| outcome.fence()).collect();
    fences.sort_unstable();
    assert!(fences.windows(2).all(|pair| pair[0] != pair[1]), "a fence was given twice");
    assert_eq!(total, (ACTORS as u64) * u64::from(rounds), "an acknowledged update was lost");
}

/// A pause past the lease breaks what exclusion rests on: the fence has to keep every update.
async fn no_acknowledged_update_is_lost(store: &Store, rounds: u32) {
    // The paused actor is random, and so is whether it holds the lock then: a run in which none did
    // shows nothing.
    for _ in 0..MAX_RUNS {
        let (outcomes, total, pauses) = run(store, rounds).await;
        check(&outcomes, total, rounds);
        let refused = outcomes.iter().flatten().filter(|outcome| **outcome == Outcome::Refused).count();
        let late =
            outcomes.iter().flatten().filter(|outcome| matches!(outcome, Outcome::DoneButLost(_))).count();
        println!("{pauses} pauses, {refused} refused by the fence, {late} saw their loss after the write");
        if refused + late > 0 {
            return;
        }
    }
    panic!("no actor was paused while it held the lock: the test showed nothing");
}

const MAX_RUNS: u32 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_no_acknowledged_update_is_lost() {
    let Some(store) = Store::redis().await else { return };
    no_acknowledged_update_is_lost(&store, ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_five_redis_servers_no_acknowledged_update_is_lost() {
    let Some(store) = Store::redlock().await else { return };
    no_acknowledged_update_is_lost(&store, ROUNDS / 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_files_a_paused_holder_keeps_the_lock() {
    let store = Store::file();
    let (outcomes, total, pauses) = run(&store, ROUNDS).await;
    check(&outcomes, total, ROUNDS);
    println!("{pauses} pauses");
    assert!(
        outcomes.iter().flatten().all(|outcome| matches!(outcome, Outcome::Done(_))),
        "the kernel keeps the lock of a stopped process, so no write is refused"
    );
}
