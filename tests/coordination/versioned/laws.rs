//! No update is lost and none is made twice, even if requests and answers are lost.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::backend::{Put, Resource};
use leasehold::layer::{Mode, Verb};
use leasehold::{Client, ErrorKind, Tuning, Versioned};

use super::stores::{number, plus_one};
use crate::world::{Chance, Peer, World, clients, on_schedules, soon};

/// The results of the updates, and the number of updates without a result.
#[derive(Debug, Default)]
struct History {
    /// The number that each confirmed update wrote.
    written: Vec<u64>,
    /// The number of updates of which it is not known whether they were made.
    unknown: u64,
}

async fn add_one(value: &Versioned) -> leasehold::Result<leasehold::UpdateOutcome> {
    value.update(|old| Some(plus_one(old))).await
}

/// All clients add one, over wires that lose and delay; some updates are cancelled halfway, and some
/// clients fall silent. By the reported results, no two updates wrote the same number, and the last
/// number is that of the updates that were made.
#[test]
fn none_is_lost_and_none_is_made_twice() {
    on_schedules(|mut world| async move {
        let history = Arc::new(Mutex::new(History::default()));
        let escalate_after = world.chance.below(4) as u32;
        let tasks: Vec<_> = (0..2 + world.chance.below(4))
            .map(|_| {
                let (client, mut chance, history) = (world.client(), world.chance.fork(), history.clone());
                let dies = chance.below(4) == 0;
                tokio::spawn(async move {
                    let value = client.locks.versioned("stock").escalate_after(escalate_after);
                    for round in 0..5 {
                        tokio::time::sleep(chance.ms(60)).await;
                        let patience = if chance.below(4) == 0 { chance.ms(40) } else { LONG };
                        let updated = tokio::time::timeout(patience, add_one(&value)).await;
                        let mut history = history.lock().unwrap();
                        match updated {
                            Ok(Ok(update)) => history.written.push(number(update.value.as_deref())),
                            Err(_) => history.unknown += 1,
                            Ok(Err(error)) if error.kind() == ErrorKind::OutcomeUnknown => {
                                history.unknown += 1
                            }
                            // Not made, and the error says so.
                            Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                        }
                        if dies && round == 2 {
                            return client.falls_silent();
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let last = number(world.calm_client().locks.versioned("stock").read().await.unwrap().value());
        let history = history.lock().unwrap();
        let written: BTreeSet<u64> = history.written.iter().copied().collect();
        let made = history.written.len() as u64;
        assert_eq!(written.len() as u64, made, "two wrote the same number, so one is lost: {history:?}");
        assert!((made..=made + history.unknown).contains(&last), "{last}: {history:?}");
        assert!(written.last().is_none_or(|most| *most <= last), "{last}: {history:?}");
    });
}

#[tokio::test]
async fn concurrent_updates_lose_none_and_count_conflicts() {
    let store = World::at_once();
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let locks = store.calm_client().locks;
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
    let lone = store.calm_client();
    let value = lone.locks.versioned("stock");
    assert_eq!(number(value.read().await.unwrap().value()), 400);
    // Each conflict costs the writer one more request; a lone one has none.
    assert_eq!(add_one(&value).await.unwrap().conflicts, 0);
    assert_eq!((lone.calls(Verb::Read), lone.calls(Verb::Swap)), (2, 1));
    assert!(conflicts > 0, "eight writers never met");
}

/// The ticket is taken once: a removal that never arrived must not count as made because another client
/// removed the value.
#[tokio::test(start_paused = true)]
async fn two_removals_of_one_value_are_not_both_made() {
    let [client, others] = clients();
    let locks = client.locks.clone();
    add_one(&locks.versioned("ticket")).await.unwrap();
    client.fault(Verb::Swap, Mode::LoseRequest);
    let before = client.calls(Verb::Swap);
    let late = tokio::spawn(async move { locks.versioned("ticket").update(|_| None).await });
    while client.calls(Verb::Swap) == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    others.locks.versioned("ticket").update(|_| None).await.unwrap();
    client.fault(Verb::Swap, Mode::Pass);
    let outcome = soon("the removal", late).await.unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
}

#[tokio::test(start_paused = true)]
async fn an_update_whose_answer_is_lost_is_made_once() {
    let [client, others] = clients();
    let (value, other) = (client.locks.versioned("stock"), others.locks.versioned("stock"));
    add_one(&value).await.unwrap();
    client.fault(Verb::Swap, Mode::LoseReply);
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
    client.fault(Verb::Swap, Mode::Pass);
    let done = updating.await.unwrap().unwrap();
    assert_eq!(number(done.value.as_deref()), 2);
    assert_eq!(number(other.read().await.unwrap().value()), 3);
}

/// The value is written and its answer lost, and another client takes it before the writer asks again.
#[tokio::test(start_paused = true)]
async fn a_first_value_whose_answer_is_lost_is_not_written_twice() {
    let [client, others] = clients();
    let (value, other) = (client.locks.versioned("offer"), others.locks.versioned("offer"));
    let absent = other.read().await.unwrap();
    client.fault(Verb::Swap, Mode::LoseReply);
    let offering = tokio::spawn(async move { value.update(|_| Some(b"job".to_vec())).await });
    let offered = other.changed(&absent, Duration::from_secs(10)).await.unwrap();
    assert_eq!(offered.value(), Some(&b"job"[..]));
    other.update(|_| None).await.unwrap();
    client.fault(Verb::Swap, Mode::Pass);
    let outcome = soon("the offer", offering).await.unwrap();
    assert_eq!(other.read().await.unwrap().value(), None, "the job is offered again: {outcome:?}");
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
}

/// What is known not to have been sent is sent again, and what is found is made.
#[tokio::test(start_paused = true)]
async fn a_first_value_is_written_as_soon_as_it_is_known_what_became_of_it() {
    for (fault, expected) in [(Mode::Refuse, 2), (Mode::LoseReply, 1)] {
        let [client, others] = clients();
        let value = client.locks.versioned("offer");
        client.fault(Verb::Swap, fault);
        let offering = tokio::spawn(async move { value.update(|_| Some(b"job".to_vec())).await });
        while client.calls(Verb::Swap) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client.fault(Verb::Swap, Mode::Pass);
        soon("the offer", offering).await.unwrap().unwrap();
        assert_eq!(client.calls(Verb::Swap), expected, "{fault:?}");
        assert_eq!(others.locks.versioned("offer").read().await.unwrap().value(), Some(&b"job"[..]));
    }
}

#[tokio::test(start_paused = true)]
async fn unanswered_update_is_reported_as_outcome_unknown() {
    let store = World::at_once();
    let client = store.tuned_client(Tuning::default().outage(Duration::from_millis(100)));
    let locks = &client.locks;
    client.fault(Verb::Swap, Mode::LoseRequest);
    let error = add_one(&locks.versioned("stock")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    client.fault(Verb::Swap, Mode::Refuse);
    let error = add_one(&locks.versioned("stock")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(start_paused = true)]
async fn after_so_many_conflicts_it_takes_the_lock() {
    let [locks, others] = clients().map(|peer| peer.locks);
    let value = locks.versioned("stock").escalate_after(3);
    let holder = others.mutex("stock!updating").lock().await.unwrap();
    let mut asked = 0;
    let updating = value.update(|old| {
        asked += 1;
        if asked <= 3 {
            write_first(&others).now_or_never().unwrap();
        }
        Some(plus_one(old))
    });
    let (done, ()) = tokio::join!(
        soon("the update", updating),
        soon("the lock", async {
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
    // The mark of one writer, and the value.
    let first = [&[1][..], &[0; 8], b"5"].concat();
    let put = Put { value: seen.value.or(Some(first)), keep: None };
    assert!(registers.swap(&at, &seen.stamp, &put).await.unwrap().is_some());
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
            unknown += soon("a schedule", schedule).await.unwrap();
        }
    }
    assert!(unknown > 0, "no fault ever left anything unknown, so nothing was tried");
}

/// Writers over wires that fail at random, by one seed. Returns how many outcomes stayed unknown.
async fn schedule(seed: u64) -> u64 {
    let store = World::at_once();
    let mut chance = Chance::of(seed);
    let tuning = Tuning::default().outage(Duration::from_millis(20));
    let mut writers = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..WRITERS {
        let client = store.tuned_client(tuning.clone());
        let locks = client.locks.clone();
        clients.push(client);
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
        let client = &clients[chance.below(WRITERS) as usize];
        let verb = if chance.below(3) == 0 { Verb::Read } else { Verb::Swap };
        let modes = [Mode::Pass, Mode::Refuse, Mode::LoseRequest, Mode::LoseReply, Mode::Hang];
        client.fault(verb, modes[chance.below(modes.len() as u64) as usize]);
        tokio::time::sleep(Duration::from_millis(chance.below(8))).await;
        // No client is cut off for ever.
        client.fault(verb, Mode::Pass);
    }
    let (mut made, mut unknown) = (0, 0);
    for writer in writers {
        let (some, others) = writer.await.unwrap();
        (made, unknown) = (made + some, unknown + others);
    }
    let locks = store.calm_client().locks;
    let found = number(locks.versioned("stock").read().await.unwrap().value());
    assert!(
        (made..=made + unknown).contains(&found),
        "seed {seed}: {found}, of {made} made and {unknown} unknown"
    );
    unknown
}

#[tokio::test]
async fn error_of_an_invalid_name_has_the_operation_that_was_called() {
    let [Peer { locks, .. }] = clients();
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

const SCHEDULES: u64 = 1000;
const AT_ONCE: usize = 100;
const WRITERS: u64 = 3;
const UPDATES: u32 = 3;
const LONG: Duration = Duration::from_secs(500);
