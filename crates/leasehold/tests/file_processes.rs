//! The file store between real processes, some of which are killed or stopped.
#![allow(clippy::unwrap_used, reason = "a helper of tests is not a test to the linter")]

use std::time::{Duration, Instant};

use leasehold::local::FileBackend;
use leasehold_core::{Backend, Fence, Release, Share};
use rustix::process::Signal;

mod file_support;
use file_support::taker::{Taker, serve};
use file_support::*;

/// Not a test: the code of this program when it is started as a second process.
#[test]
fn taker() {
    serve();
}

#[tokio::test]
async fn the_death_of_a_holder_wakes_the_next_at_once() {
    let mut waits = Vec::new();
    for _ in 0..10 {
        let store = Store::new();
        let backend = store.open();
        let holder = Taker::hold(&store.path(), "k", Share::MUTEX);
        let first = holder.granted();
        let next = claim("k", Share::MUTEX);
        let waiter = spawn_wait(&backend, &next);
        until_waiting(&backend, "k", 1).await;
        let begun = Instant::now();
        holder.signal(Signal::KILL);
        let fence = within(LIMIT, waiter).await.unwrap();
        waits.push(begun.elapsed());
        assert!(fence > first);
        assert_eq!(claim_files(&backend, "k"), 1, "what the dead one left is removed");
    }
    waits.sort_unstable();
    println!("from the kill to the next grant: median {:?}, worst {:?}", waits[5], waits[9]);
    // The worst of them says more about the machine than about the store.
    assert!(waits[5] < Duration::from_secs(1), "{waits:?}");
}

#[tokio::test]
async fn dead_waiter_in_the_middle_of_the_queue_blocks_no_other() {
    let store = Store::new();
    let backend = store.open();
    let mut holder = Taker::hold(&store.path(), "m", Share::MUTEX);
    holder.granted();
    let mut line = Vec::new();
    for n in 1..=3 {
        line.push(Taker::hold(&store.path(), "m", Share::MUTEX));
        until_waiting(&backend, "m", n).await;
    }
    line[1].kill();
    until_waiting(&backend, "m", 2).await;
    assert!(line[2].has_no_message(), "the third does not pass the first");
    holder.release();
    let first = line[0].granted();
    assert!(line[2].has_no_message());
    line[0].release();
    assert!(line[2].granted() > first);
    line[2].release();
    assert_eq!(claim_files(&backend, "m"), 0);
}

#[tokio::test]
async fn killed_waiters_last_or_all_leave_the_store_usable() {
    let store = Store::new();
    let backend = store.open();
    let mut all = vec![Taker::hold(&store.path(), "all", Share::MUTEX)];
    let first = all[0].granted();
    for n in 1..=3 {
        all.push(Taker::hold(&store.path(), "all", Share::MUTEX));
        until_waiting(&backend, "all", n).await;
    }
    for taker in all.iter_mut().rev() {
        taker.kill();
    }
    assert_eq!(snapshot_of(&backend, "all").await.holders.len(), 0, "an observer sees no dead");
    assert_eq!(backend.list("", None, 10).await.unwrap(), []);
    let fence = within(LIMIT, granted(&backend, &claim("all", Share::MUTEX))).await;
    assert!(fence > first);
    assert_eq!(claim_files(&backend, "all"), 1, "what the dead left is removed");
}

#[tokio::test]
async fn eight_processes_lose_no_update_and_see_rising_fences() {
    const PROCESSES: u32 = 8;
    const ROUNDS: u32 = 60;
    let store = Store::new();
    let arena = tempfile::tempdir().unwrap();
    let inside = arena.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    let begun = Instant::now();
    let takers: Vec<Taker> =
        (0..PROCESSES).map(|_| Taker::rounds(&store.path(), "c", Share::MUTEX, ROUNDS, &inside)).collect();
    for taker in &takers {
        assert_eq!(taker.next_message(), "done");
    }
    println!("{PROCESSES} processes × {ROUNDS} rounds: {:?}", begun.elapsed());
    let count = std::fs::read_to_string(inside.with_extension("counter")).unwrap();
    assert_eq!(count, (PROCESSES * ROUNDS).to_string());
    let log = std::fs::read_to_string(inside.with_extension("log")).unwrap();
    let fences: Vec<Fence> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(fences.len(), (PROCESSES * ROUNDS) as usize);
    assert!(fences.is_sorted_by(|a, b| a < b));
}

#[tokio::test]
async fn killed_processes_lose_no_update_and_leave_the_store_sound() {
    const KILLS: u32 = 40;
    let store = Store::new();
    let arena = tempfile::tempdir().unwrap();
    let mut takers: Vec<Taker> = (0..5).map(|_| Taker::storm(&store.path(), "storm", arena.path())).collect();
    let mut chance = [0; KILLS as usize];
    getrandom::fill(&mut chance).unwrap();
    println!("chance: {chance:?}");
    let rounds = || {
        std::fs::read(arena.path().join("log")).map_or(0, |log| log.split(|byte| *byte == b'\n').count() - 1)
    };
    for byte in chance {
        // However slow the machine is, work is done between two kills.
        let before = rounds();
        eventually("some rounds", || rounds() >= before + 3).await;
        std::thread::sleep(Duration::from_micros(u64::from(byte) * 300));
        let victim = usize::from(byte) % takers.len();
        takers[victim].kill();
        takers[victim] = Taker::storm(&store.path(), "storm", arena.path());
    }
    std::fs::write(arena.path().join("stop"), "").unwrap();
    for taker in &takers {
        assert_eq!(taker.next_message(), "done");
    }
    let log = std::fs::read_to_string(arena.path().join("log")).unwrap();
    let fences: Vec<Fence> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "fences rise");
    let counter =
        u64::from_be_bytes(std::fs::read(arena.path().join("counter")).unwrap().try_into().unwrap());
    let logged = fences.len() as u64;
    println!("{logged} rounds with {KILLS} kills, the last fence is {}", fences[fences.len() - 1]);
    // A process that was killed between the two writes has counted and not logged it.
    assert!(counter >= logged && counter <= logged + u64::from(KILLS), "{counter} counted, {logged} logged");
    assert!(logged >= 3 * u64::from(KILLS), "{logged}");
    let backend = store.open();
    let last = claim("storm", Share::MUTEX);
    assert!(granted(&backend, &last).await > fences[fences.len() - 1]);
    // Some may have been killed before they were in the ledger; their files go when the queue is built
    // again.
    std::fs::remove_file(backend.path_of(&last.resource).join("ledger")).unwrap();
    assert_busy(&backend, &claim("storm", Share::MUTEX)).await;
    assert_eq!(claim_files(&backend, "storm"), 1);
}

#[tokio::test]
async fn permits_and_readers_hold_together_across_processes() {
    let permits = |weight| Share::permits(weight, 3).unwrap();
    let cases: [&[Share]; 2] = [
        &[permits(1), permits(1), permits(2), permits(1), permits(3), permits(2)],
        &[Share::READER, Share::WRITER, Share::READER, Share::READER, Share::WRITER, Share::READER],
    ];
    for shares in cases {
        let store = Store::new();
        let arena = tempfile::tempdir().unwrap();
        let inside = arena.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        let takers: Vec<Taker> =
            shares.iter().map(|share| Taker::rounds(&store.path(), "s", *share, 40, &inside)).collect();
        for taker in &takers {
            assert_eq!(taker.next_message(), "done", "{shares:?}");
        }
        let backend = store.open();
        let left = snapshot_of(&backend, "s").await;
        assert_eq!((left.holders.len(), left.waiting.len()), (0, 0));
        assert!(claim_files(&backend, "s") <= takers.len(), "each process keeps one FIFO at most");
        let wholes = shares.iter().filter(|share| share.is_exclusive()).count();
        assert_eq!(
            std::fs::read_to_string(inside.with_extension("counter")).unwrap(),
            (wholes * 40).to_string()
        );
    }
}

#[tokio::test]
async fn death_of_a_permit_holder_frees_its_permits() {
    let store = Store::new();
    let backend = store.open();
    let permit = Share::permits(1, 3).unwrap();
    let mut holders: Vec<Taker> = (0..3).map(|_| Taker::hold(&store.path(), "p", permit)).collect();
    for holder in &holders {
        holder.granted();
    }
    let (next, last) = (claim("p", permit), claim("p", permit));
    let waiter = spawn_wait(&backend, &next);
    until_waiting(&backend, "p", 1).await;
    let behind = spawn_wait(&backend, &last);
    until_waiting(&backend, "p", 2).await;
    // Which of the three holders is first is chance; the middle one dies, then another one.
    holders[1].kill();
    within(LIMIT, waiter).await.unwrap();
    assert!(!behind.is_finished());
    holders[2].kill();
    within(LIMIT, behind).await.unwrap();
    assert_eq!(snapshot_of(&backend, "p").await.holders.len(), 3);
}

#[tokio::test]
async fn a_stopped_holder_keeps_its_lock() {
    let store = Store::new();
    let backend = store.open();
    let mut holder = Taker::hold(&store.path(), "stop", Share::MUTEX);
    holder.granted();
    holder.stop();
    let next = claim("stop", Share::MUTEX);
    let waiter = spawn_wait(&backend, &next);
    // Its ttl is one second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!waiter.is_finished());
    holder.signal(Signal::CONT);
    holder.release();
    within(LIMIT, waiter).await.unwrap();
}

#[tokio::test]
async fn breaking_a_running_holder_ends_it_by_itself() {
    let store = Store::new();
    let backend = store.open();
    let holder = Taker::hold(&store.path(), "b", Share::MUTEX);
    let first = holder.granted();
    let next = claim("b", Share::MUTEX);
    let waiter = spawn_wait(&backend, &next);
    until_waiting(&backend, "b", 1).await;
    let breaking = Break::begin();
    assert!(matches!(break_holder(&backend, "b").await, Release::Freed));
    breaking.ends_without_force().await;
    assert_eq!(holder.next_message(), "lost Gone");
    assert!(within(LIMIT, waiter).await.unwrap() > first);
    assert!(matches!(backend.release(&[&next]).await[..], [Release::Freed]));
    assert_eq!(claim_files(&backend, "b"), 0);
}

#[tokio::test]
async fn break_of_a_stopped_holder_is_forced_and_the_holder_sees_it() {
    let store = Store::new();
    let backend = store.open();
    let holder = Taker::hold(&store.path(), "f", Share::MUTEX);
    let first = holder.granted();
    holder.stop();
    let next = claim("f", Share::MUTEX);
    let waiter = spawn_wait(&backend, &next);
    until_waiting(&backend, "f", 1).await;
    let begun = Instant::now();
    let breaking = {
        let backend = backend.clone();
        tokio::spawn(async move { break_holder(&backend, "f").await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    // In this order: on a machine that stood still the second time may have passed meanwhile.
    let (is_granted, so_far) = (waiter.is_finished(), begun.elapsed());
    assert!(!is_granted || so_far >= FORCE, "the holder is given time to release it");
    assert!(matches!(breaking.await.unwrap(), Release::Freed));
    assert!(begun.elapsed() >= FORCE, "{:?}", begun.elapsed());
    assert!(within(LIMIT, waiter).await.unwrap() > first);
    assert!(holder.has_no_message());
    holder.signal(Signal::CONT);
    assert_eq!(holder.next_message(), "lost Gone");
    assert_eq!(snapshot_of(&backend, "f").await.holders[0].id, next.id, "it touched no other claim");
}

#[tokio::test]
async fn a_holder_that_dies_after_it_was_revoked_is_found_dead() {
    let store = Store::new();
    let backend = store.open();
    let mut holder = Taker::hold(&store.path(), "r", Share::MUTEX);
    holder.granted();
    holder.stop();
    let next = claim("r", Share::MUTEX);
    let waiter = spawn_wait(&backend, &next);
    until_waiting(&backend, "r", 1).await;
    let request = Break::begin();
    let breaking = {
        let backend = backend.clone();
        tokio::spawn(async move { break_holder(&backend, "r").await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    holder.kill();
    within(LIMIT, waiter).await.unwrap();
    assert!(matches!(within(LIMIT, breaking).await.unwrap(), Release::Freed));
    request.ends_without_force().await;
    assert_eq!(claim_files(&backend, "r"), 1);
}

#[tokio::test]
async fn a_command_started_by_the_holder_does_not_keep_the_lock() {
    let store = Store::new();
    let backend = store.open();
    let held = claim("exec", Share::MUTEX);
    granted(&backend, &held).await;
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    drop(backend);
    let other = store.open();
    within(LIMIT, granted(&other, &claim("exec", Share::MUTEX))).await;
    assert!(child.try_wait().unwrap().is_none(), "the command still runs");
    child.kill().unwrap();
    child.wait().unwrap();
}

async fn break_holder(backend: &FileBackend, name: &str) -> Release {
    let seen = snapshot_of(backend, name).await;
    let copy = claim(name, seen.holders[0].share).id(seen.holders[0].id);
    backend.release(&[&copy]).await.remove(0)
}

/// The child of a fork has a copy of the FIFO that a waiter made, and a copy keeps a claim alive. So the FIFO
/// ends with that claim, although the claim is granted and released after the fork.
#[tokio::test]
async fn fifo_of_a_waiter_that_a_fork_copied_is_not_used_again() {
    use std::os::unix::process::CommandExt;
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    for _ in 0..3 {
        let first = claim("f", Share::MUTEX);
        granted(&one, &first).await;
        assert!(matches!(one.release(&[&first]).await[..], [Release::Freed]));
    }
    let (theirs, ours) = (claim("f", Share::MUTEX), claim("f", Share::MUTEX));
    granted(&two, &theirs).await;
    let waiter = spawn_wait(&one, &ours);
    until_waiting(&two, "f", 1).await;
    // The standard library calls `fork` for a program that gets a user.
    let user = rustix::process::geteuid().as_raw();
    assert!(std::process::Command::new("true").uid(user).status().unwrap().success());
    assert!(matches!(two.release(&[&theirs]).await[..], [Release::Freed]));
    within(LIMIT, waiter).await.unwrap();
    assert!(matches!(one.release(&[&ours]).await[..], [Release::Freed]));
    let files = std::fs::read_dir(one.path_of(&resource("f"))).unwrap();
    let kept = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .find(|name| name.contains(&ours.id.to_hex()));
    assert_eq!(kept, None, "the child may have it open");
}
