//! Optimistic updates: none is lost, even if requests and answers are.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::Store;
use futures_util::FutureExt;
use leasehold::backend::{Put, Resource};
use leasehold::layer::{Mode, Verb};
use leasehold::{Client, ErrorKind, Tuning, Versioned};

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.unwrap_or_else(|_| panic!("it takes too long"))
}

fn number(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(0, |bytes| String::from_utf8(bytes.to_vec()).unwrap().parse().unwrap())
}

async fn add_one(value: &Versioned) -> leasehold::Result<leasehold::UpdateOutcome> {
    value.update(|old| Some((number(old) + 1).to_string().into_bytes())).await
}

#[tokio::test]
async fn concurrent_updates_lose_none_and_count_conflicts() {
    let store = Store::new();
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (locks, _) = store.client();
        tasks.push(tokio::spawn(async move {
            let value = locks.versioned("stock");
            let mut conflicts = 0;
            for _ in 0..50 {
                conflicts += add_one(&value).await.unwrap().conflicts;
            }
            conflicts
        }));
    }
    let mut conflicts = 0;
    for task in tasks {
        conflicts += task.await.unwrap();
    }
    let (locks, fault) = store.client();
    assert_eq!(number(locks.versioned("stock").read().await.unwrap().value()), 400);
    // Each conflict costs the writer one more request; a lone one has none.
    assert_eq!(add_one(&locks.versioned("stock")).await.unwrap().conflicts, 0);
    assert_eq!((fault.calls(Verb::Read), fault.calls(Verb::Swap)), (2, 1));
    assert!(conflicts > 0, "eight writers never met");
}

/// The ticket is taken once: a removal that never arrived must not count as made because another client
/// removed the value.
#[tokio::test]
async fn two_removals_of_one_value_are_not_both_made() {
    let store = Store::new();
    let (locks, fault) = store.client();
    let (others, _) = store.client();
    add_one(&locks.versioned("ticket")).await.unwrap();
    fault.set(Verb::Swap, Mode::LoseRequest);
    let before = fault.calls(Verb::Swap);
    let late = tokio::spawn(async move { locks.versioned("ticket").update(|_| None).await });
    while fault.calls(Verb::Swap) == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    others.versioned("ticket").update(|_| None).await.unwrap();
    fault.set(Verb::Swap, Mode::Pass);
    let outcome = soon(late).await.unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
}

#[tokio::test]
async fn an_update_whose_answer_is_lost_is_made_once() {
    let store = Store::new();
    let (locks, fault) = store.client();
    let (others, _) = store.client();
    let (value, other) = (locks.versioned("stock"), others.versioned("stock"));
    add_one(&value).await.unwrap();
    fault.set(Verb::Swap, Mode::LoseReply);
    let updating = tokio::spawn({
        let value = value.clone();
        async move { add_one(&value).await }
    });
    // The update took effect, and others continue from there before the writer finds out.
    let mut seen = other.read().await.unwrap();
    while number(seen.value()) < 2 {
        seen = other.changed(&seen, Duration::from_secs(10)).await.unwrap();
    }
    add_one(&other).await.unwrap();
    fault.set(Verb::Swap, Mode::Pass);
    let done = updating.await.unwrap().unwrap();
    assert_eq!(number(done.value.as_deref()), 2);
    assert_eq!(number(other.read().await.unwrap().value()), 3);
}

#[tokio::test]
async fn unanswered_update_is_reported_as_outcome_unknown() {
    let store = Store::new();
    let (locks, fault) = store.tuned(Tuning::default().outage(Duration::from_millis(100)));
    fault.set(Verb::Swap, Mode::LoseRequest);
    let error = add_one(&locks.versioned("stock")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    fault.set(Verb::Swap, Mode::Refuse);
    let error = add_one(&locks.versioned("stock")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn after_so_many_conflicts_it_takes_the_lock() {
    let store = Store::new();
    let (locks, _) = store.client();
    let (others, _) = store.client();
    let value = locks.versioned("stock").escalate_after(3);
    let holder = others.mutex("stock!updating").lock().await.unwrap();
    let mut asked = 0;
    let updating = value.update(|old| {
        asked += 1;
        if asked <= 3 {
            write_first(&others).now_or_never().unwrap();
        }
        Some((number(old) + 1).to_string().into_bytes())
    });
    let (done, ()) = tokio::join!(
        soon(updating),
        soon(async {
            while locks.inspect("stock!updating").await.unwrap().waiting.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            holder.release().await.unwrap();
        })
    );
    let done = done.unwrap();
    assert!(done.escalated);
    assert_eq!(done.conflicts, 3);
}

/// Changes the value just before another client writes it.
async fn write_first(locks: &Client) {
    let (registers, at) = (locks.backend().registers().unwrap(), Resource::new("stock").unwrap());
    let seen = registers.read(&at).await.unwrap();
    let put = Put { value: seen.value.or(Some(vec![0, b'5'])), keep: None };
    assert!(registers.swap(&at, &seen.stamp, &put).await.unwrap().is_some());
}

#[tokio::test]
async fn removed_value_is_absent_and_can_be_written_again() {
    let locks = Client::open("mem:").await.unwrap();
    let value = locks.versioned("stock");
    assert_eq!(value.update(|_| None).await.unwrap().value, None);
    add_one(&value).await.unwrap();
    let seen = value.read().await.unwrap();
    value.update(|_| None).await.unwrap();
    assert_eq!(value.changed(&seen, Duration::from_secs(10)).await.unwrap().value(), None);
    add_one(&value).await.unwrap();
    assert_ne!(value.read().await.unwrap(), seen, "another writing of the same value is another state");
}

/// A thousand histories under random faults. `LEASEHOLD_SEED` repeats those of one run, which prints its
/// seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_random_schedule_of_faults_loses_or_doubles_an_update() {
    let first = match std::env::var("LEASEHOLD_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => getrandom::u32().map(u64::from).unwrap(),
    };
    println!("seeds from {first} on");
    let mut unknown = 0;
    for some in (first..first + SCHEDULES).collect::<Vec<u64>>().chunks(AT_ONCE) {
        let running: Vec<_> = some.iter().map(|seed| tokio::spawn(schedule(*seed))).collect();
        for schedule in running {
            unknown += soon(schedule).await.unwrap();
        }
    }
    assert!(unknown > 0, "no fault ever left anything unknown, so nothing was tried");
}

/// Writers over wires that fail at random, by one seed. Returns how many outcomes stayed unknown.
async fn schedule(seed: u64) -> u64 {
    let store = Store::new();
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let tuning = Tuning::default().outage(Duration::from_millis(20));
    let mut writers = Vec::new();
    let mut faults = Vec::new();
    for _ in 0..WRITERS {
        let (locks, fault) = store.tuned(tuning.clone());
        faults.push(fault);
        writers.push(tokio::spawn(async move {
            let value = locks.versioned("stock").escalate_after(100);
            let (mut made, mut unknown) = (0, 0);
            for _ in 0..UPDATES {
                match add_one(&value).await {
                    Ok(_) => made += 1,
                    Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown += 1,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "seed {seed}: {error}"),
                }
            }
            (made, unknown)
        }));
    }
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        let fault = &faults[chance.below(WRITERS) as usize];
        let verb = if chance.below(3) == 0 { Verb::Read } else { Verb::Swap };
        let modes = [Mode::Pass, Mode::Refuse, Mode::LoseRequest, Mode::LoseReply, Mode::Hang];
        fault.set(verb, modes[chance.below(modes.len() as u64) as usize]);
        tokio::time::sleep(Duration::from_millis(chance.below(8))).await;
        // No client is cut off for ever.
        fault.set(verb, Mode::Pass);
    }
    let (mut made, mut unknown) = (0, 0);
    for writer in writers {
        let (some, others) = writer.await.unwrap();
        (made, unknown) = (made + some, unknown + others);
    }
    let (locks, _) = store.client();
    let found = number(locks.versioned("stock").read().await.unwrap().value());
    assert!(
        (made..=made + unknown).contains(&found),
        "seed {seed}: {found}, of {made} made and {unknown} unknown"
    );
    unknown
}

/// Numbers that a seed gives.
struct Chance(u64);

impl Chance {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

const SCHEDULES: u64 = 1000;
const AT_ONCE: usize = 100;
const WRITERS: u64 = 3;
const UPDATES: u32 = 3;

#[tokio::test]
async fn error_of_an_invalid_name_has_the_operation_that_was_called() {
    let (locks, _) = Store::new().client();
    let long = "n".repeat(600);
    let update = locks.versioned(&long).read().await.unwrap_err();
    let wait = locks.latch(&long, 1).wait().await.unwrap_err();
    let inspect = locks.mutex(&long).inspect().await.unwrap_err();
    let lock = locks.mutex(&long).lock().await.unwrap_err();
    for (error, op) in [(update, "read"), (wait, "wait"), (inspect, "inspect"), (lock, "lock")] {
        assert_eq!((error.op(), error.kind()), (op, ErrorKind::Invalid), "{error}");
        assert!(error.to_string().contains("512"), "{error}");
    }
}
