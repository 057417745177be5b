//! No party passes a barrier early, and all pass or none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::layer::Verb;
use leasehold::{Barrier, BarrierWaitResult, Client, ErrorKind};

use crate::world::{Peer, clients, on_half_of_them};

fn barrier(locks: &Client, parties: u32) -> Barrier {
    locks.barrier("round", parties).ttl(TTL)
}

/// The number of parties inside at each moment, and the passages so far.
#[derive(Debug, Default)]
struct History {
    inside: u32,
    passages: BTreeMap<u64, Vec<BarrierWaitResult>>,
    /// The number of parties that went in and will not report their outcome.
    silent: u32,
}

type Shared = Arc<Mutex<History>>;

fn goes_in(history: &Shared) {
    history.lock().unwrap().inside += 1;
}

fn comes_out(history: &Shared, parties: u32, passage: Option<BarrierWaitResult>) {
    let mut history = history.lock().unwrap();
    if let Some(passage) = passage {
        // All of a generation are inside when the first of them comes out; later ones find some of them
        // outside.
        let out = history.passages.entry(passage.generation).or_default();
        out.push(passage);
        let first = out.len() == 1;
        assert!(!first || history.inside >= parties, "it passed early: {history:?}");
    }
    history.inside -= 1;
}

/// Waits round after round until the barrier breaks; how it ended.
async fn rounds(client: Peer, history: Shared, parties: u32, count: u32, start: Duration) {
    tokio::time::sleep(start).await;
    let barrier = barrier(&client.locks, parties);
    for _ in 0..count {
        goes_in(&history);
        let waited = barrier.wait().await;
        comes_out(&history, parties, waited.as_ref().ok().copied());
        match waited {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Broken => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn all_or_none(history: &Shared, parties: u32) {
    let history = history.lock().unwrap();
    for (generation, passages) in &history.passages {
        let mut indices: Vec<u32> = passages.iter().map(|passage| passage.index).collect();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), passages.len(), "two at one place of {generation}: {history:?}");
        assert!(indices.iter().all(|index| *index < parties));
        let reported = u32::try_from(passages.len()).unwrap();
        assert!(reported + history.silent >= parties, "only some passed {generation}: {history:?}");
    }
}

#[test]
fn barrier_opens_for_all_parties_and_never_early() {
    on_half_of_them(|mut world| async move {
        let parties = 1 + world.chance.below(5) as u32;
        let count = 1 + world.chance.below(4) as u32;
        let history = Shared::default();
        let tasks: Vec<_> = (0..parties)
            .map(|_| {
                let (client, start) = (world.client(), world.chance.ms(100));
                tokio::spawn(rounds(client, history.clone(), parties, count, start))
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        all_or_none(&history, parties);
        let history = history.lock().unwrap();
        let generations: Vec<u64> = history.passages.keys().copied().collect();
        assert_eq!(generations, (0..u64::from(count)).collect::<Vec<_>>(), "{history:?}");
        for passages in history.passages.values() {
            assert_eq!(passages.iter().filter(|passage| passage.is_leader()).count(), 1);
        }
    });
}

/// One party leaves, runs out of time or dies somewhere: all waiters are notified, and none waits for a
/// dead party.
#[test]
fn a_party_that_is_gone_breaks_it_for_all() {
    on_half_of_them(|mut world| async move {
        let parties = 2 + world.chance.below(4) as u32;
        let history = Shared::default();
        let quitter = world.client();
        let (start, after, way) = (world.chance.ms(60), world.chance.ms(120), world.chance.below(3));
        history.lock().unwrap().silent = 1;
        let quitting = tokio::spawn({
            let (locks, history) = (quitter.locks.clone(), history.clone());
            async move {
                tokio::time::sleep(start).await;
                let barrier = barrier(&locks, parties);
                goes_in(&history);
                match way {
                    0 => drop(barrier.wait_for(after).await),
                    _ => drop(tokio::time::timeout(after, barrier.wait()).await),
                }
                if way == 2 {
                    std::future::pending::<()>().await;
                }
            }
        });
        if way == 2 {
            tokio::time::sleep(start + after / 2).await;
            quitter.falls_silent();
            quitting.abort();
        }
        let _ = quitting.await;
        let tasks: Vec<_> = (1..parties)
            .map(|_| {
                let (client, start) = (world.client(), world.chance.ms(150));
                tokio::spawn(rounds(client, history.clone(), parties, 1, start))
            })
            .collect();
        // Long enough for any death to be noticed. Every party that still waits then lives.
        tokio::time::sleep(4 * TTL).await;
        let onlooker = world.calm_client();
        let barrier = barrier(&onlooker.locks, parties);
        let waiting = tasks.iter().filter(|task| !task.is_finished()).count();
        assert_eq!(barrier.arrived().await.unwrap() as usize, waiting, "{way} {history:?}");
        // If the party never arrived, the others rightly wait for it until the barrier is reset.
        barrier.reset().await.unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        all_or_none(&history, parties);
        assert!(!barrier.is_broken().await.unwrap());
        // The barrier can be used again.
        let again = (0..parties).map(|_| barrier.wait());
        futures_util::future::try_join_all(again).await.unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn broken_barrier_reports_its_cause_until_reset() {
    let locks = Client::open("mem:").await.unwrap();
    let barrier = barrier(&locks, 3);
    let waiting = tokio::spawn({
        let barrier = barrier.clone();
        async move { barrier.wait().await }
    });
    let error = barrier.wait_for(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    for error in [waiting.await.unwrap().unwrap_err(), barrier.wait().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
        assert!(error.to_string().contains("time was over"), "{error}");
    }
    assert!(barrier.is_broken().await.unwrap());
    barrier.reset().await.unwrap();
    let all = futures_util::future::try_join_all((0..3).map(|_| barrier.wait())).await.unwrap();
    assert_eq!(all.iter().filter(|passage| passage.is_leader()).count(), 1);
    assert_eq!(all[0].generation, 1, "breaking it took one");
}

/// Nobody looks for dead parties while one waits alone, and none waits for a pace before the last ones arrive.
#[tokio::test(start_paused = true)]
async fn party_that_died_alone_breaks_it_for_those_that_arrive_last() {
    for parties in [2, 3] {
        let [dying, later] = clients();
        let waiting = tokio::spawn({
            let barrier = barrier(&dying.locks, parties);
            async move { barrier.wait().await }
        });
        let barrier = barrier(&later.locks, parties);
        while barrier.arrived().await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        dying.falls_silent();
        waiting.abort();
        tokio::time::sleep(4 * TTL).await;
        // To the store, a program that was started again is such a client, too.
        let last = futures_util::future::join_all((1..parties).map(|_| barrier.wait_for(TTL))).await;
        for passage in last {
            let error = passage.expect_err("it waited for a party that was dead");
            assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
            assert!(error.to_string().contains("died"), "{error}");
        }
        barrier.reset().await.unwrap();
        futures_util::future::try_join_all((0..parties).map(|_| barrier.wait())).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_party_that_opens_it_asks_which_others_live() {
    let parties = clients::<3>();
    let waiting = parties.clone().map(|party| async move {
        barrier(&party.locks, 3).wait().await.unwrap();
        party.calls(Verb::Inspect)
    });
    let mut asked = futures_util::future::join_all(waiting).await;
    asked.sort_unstable();
    assert_eq!(asked, [0, 0, 1]);
}

#[tokio::test]
async fn barrier_refuses_another_party_count_while_one_waits() {
    let locks = Client::open("mem:").await.unwrap();
    let waiting = tokio::spawn({
        let barrier = barrier(&locks, 2);
        async move { barrier.wait().await }
    });
    while barrier(&locks, 2).arrived().await.unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for wrong in [0, 3, u32::MAX] {
        let error = barrier(&locks, wrong).wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    barrier(&locks, 2).wait().await.unwrap();
    waiting.await.unwrap().unwrap();
}

const TTL: Duration = Duration::from_secs(3);
