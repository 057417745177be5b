//! Changes of several tasks of one client at once: one commit for all of them, and none that has to wait
//! for another long. Time is paused while any task has something to do, so that a slow machine is not one
//! that waits.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_backend::cell::CellBackend;
use leasehold_core::{Backend, Claim, FailureKind, Fence, Grant, Note, Patience, Release, Step};
use tokio::task::{JoinHandle, JoinSet};

use crate::store::{Faults, MemoryCells, Store, TABLE, claim, clock, try_take};

type Client = Arc<CellBackend<MemoryCells>>;

/// Returns a client that has left a cell for each of these tasks.
async fn client(store: &Arc<Store>, tasks: usize) -> (Client, Vec<Fence>) {
    let client = Arc::new(store.open(TABLE, Faults::default()));
    let mut fences = Vec::new();
    for n in 0..tasks {
        let claim = claim(&name(n), crate::store::LONG);
        fences.push(try_take(&*client, &claim).await.unwrap().fence.unwrap());
        assert!(matches!(client.release(&[&claim]).await[..], [Release::Freed]));
    }
    (client, fences)
}

/// Returns names that are not in their own order.
fn name(n: usize) -> String {
    format!("{}/{n}", 9 - n % 10)
}

async fn take(client: Client, claim: Claim) -> (Claim, Grant) {
    match client.contend(&claim, &Patience::none(clock())).await.unwrap() {
        Step::Granted(grant) => (claim, grant),
        Step::Busy(hint) => panic!("{claim:?} is not granted: {hint:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn requests_during_a_commit_are_grouped_into_the_next() {
    let store = Store::new();
    let (client, former) = client(&store, 8).await;
    let before = store.requests();
    let mut tasks = JoinSet::new();
    for (n, former) in former.into_iter().enumerate() {
        let client = client.clone();
        tasks.spawn(async move {
            let (claim, grant) = take(client, claim(&name(n), crate::store::LONG)).await;
            assert!(grant.fence.unwrap() > former);
            claim
        });
    }
    let claims = tasks.join_all().await;
    assert_eq!(store.requests() - before, 2, "one for the first, one for all others");

    let before = store.requests();
    let mut tasks = JoinSet::new();
    for claim in claims {
        let client = client.clone();
        tasks.spawn(async move { client.release(&[&claim]).await.pop().unwrap() });
    }
    assert!(tasks.join_all().await.iter().all(|release| matches!(release, Release::Freed)));
    assert_eq!(store.requests() - before, 2);
    assert_eq!(client.list("", None, 10).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn slow_commit_delays_no_other_task() {
    let store = Store::new();
    let (client, _) = client(&store, 4).await;
    let gates = [store.stall_a_commit(), store.stall_a_commit()];
    let stuck = [0, 1].map(|n| start(&client, n));
    until_sent(&store).await;
    // These have no answer, and those behind them have.
    let others = [2, 3].map(|n| start(&client, n));
    for other in others {
        other.await.unwrap();
    }
    assert!(stuck.iter().all(|stuck| !stuck.is_finished()));
    for (gate, stuck) in gates.iter().zip(stuck) {
        gate.add_permits(1);
        stuck.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn change_cancelled_before_its_commit_is_not_sent() {
    let store = Store::new();
    let (client, _) = client(&store, 3).await;
    let gates = [store.stall_a_commit(), store.stall_a_commit()];
    let sent = [0, 1].map(|n| start(&client, n));
    until_sent(&store).await;
    let before = store.requests();
    let leaver = start(&client, 2);
    tokio::task::yield_now().await;
    leaver.abort();
    assert!(leaver.await.unwrap_err().is_cancelled());
    for (gate, sent) in gates.iter().zip(sent) {
        gate.add_permits(1);
        sent.await.unwrap();
    }
    assert_eq!(store.requests() - before, 2, "of those that were sent");
}

#[tokio::test(start_paused = true)]
async fn lock_taken_for_a_cancelled_task_is_released() {
    let store = Store::new();
    let (client, _) = client(&store, 3).await;
    let gates = [store.stall_a_commit(), store.stall_a_commit()];
    let (first, leaver, stayer) = (start(&client, 0), start(&client, 1), start(&client, 2));
    until_sent(&store).await;
    leaver.abort();
    assert!(leaver.await.unwrap_err().is_cancelled());
    for gate in gates {
        gate.add_permits(1);
    }
    first.await.unwrap();
    stayer.await.unwrap();
    let others = store.open(TABLE, Faults::default());
    let wanted = claim(&name(1), crate::store::LONG);
    while try_take(&others, &wanted).await.is_none() {
        tokio::task::yield_now().await;
    }
    let held = others.list("", None, 10).await.unwrap();
    assert_eq!(held.len(), 3, "{held:?}");
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_commit_fails_all_waiting_tasks() {
    let store = Store::new();
    let (client, _) = client(&store, 3).await;
    let gate = store.stall_a_commit();
    store.break_a_commit();
    let first = start(&client, 0);
    let others = [1, 2].map(|n| {
        let client = client.clone();
        tokio::spawn(async move {
            client.contend(&claim(&name(n), crate::store::LONG), &Patience::none(clock())).await
        })
    });
    for other in others {
        let failure = other.await.unwrap().unwrap_err();
        assert!(failure.to_string().contains("did not answer"), "{failure}");
    }
    gate.add_permits(1);
    first.await.unwrap();
    take(client, claim(&name(2), crate::store::LONG)).await;
}

#[tokio::test(start_paused = true)]
async fn refused_change_fails_no_other_change_of_its_commit() {
    let store = Store::new();
    let (client, _) = client(&store, 4).await;
    let gate = store.stall_a_commit();
    let first = start(&client, 0);
    tokio::task::yield_now().await;
    let refused = {
        let claim = claim(&name(1), crate::store::LONG).note(Note::new(crate::store::UNWRITABLE).unwrap());
        let client = client.clone();
        tokio::spawn(async move { client.contend(&claim, &Patience::none(clock())).await })
    };
    let others = [2, 3].map(|n| start(&client, n));
    let failure = refused.await.unwrap().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Invalid);
    for other in others {
        other.await.unwrap();
    }
    gate.add_permits(1);
    first.await.unwrap();
}

/// Takes one in a task of its own.
fn start(client: &Client, n: usize) -> JoinHandle<(Claim, Grant)> {
    tokio::spawn(take(client.clone(), claim(&name(n), crate::store::LONG)))
}

/// Waits until the store has all commits whose fate was set.
async fn until_sent(store: &Store) {
    while store.commits_to_come() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Lets all tasks run until they wait, while no time passes.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_divided_among_the_commits_that_may_run() {
    let store = Store::new();
    let (client, _) = client(&store, 7).await;
    let gates = [0; 4].map(|_| store.stall_a_commit());
    let mut tasks = vec![start(&client, 0)];
    settle().await;
    tasks.extend([1, 2, 3, 4].map(|n| start(&client, n)));
    settle().await;
    assert_eq!(store.commits_to_come(), 2, "the first alone, and then the others");
    tasks.extend([5, 6].map(|n| start(&client, n)));
    gates[0].add_permits(1);
    settle().await;
    assert_eq!(store.commits_to_come(), 2, "it would have less to do than the one under way");
    gates[1].add_permits(1);
    settle().await;
    assert_eq!(store.commits_to_come(), 0, "one each");
    for gate in &gates[2..] {
        gate.add_permits(1);
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn eight_commits_are_under_way_at_most() {
    let store = Store::new();
    let (client, _) = client(&store, 9).await;
    let gates: Vec<_> = (0..9).map(|_| store.stall_a_commit()).collect();
    let mut tasks = Vec::new();
    for n in 0..9 {
        tasks.push(start(&client, n));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(store.commits_to_come(), 1);
    gates[0].add_permits(1);
    settle().await;
    assert_eq!(store.commits_to_come(), 0);
    for gate in &gates[1..] {
        gate.add_permits(1);
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// Those that were answered have new requests before the next commit begins.
#[tokio::test(start_paused = true)]
async fn tasks_that_work_in_step_stay_in_one_commit() {
    let store = Store::new();
    store.commit_alone();
    let (client, _) = client(&store, 8).await;
    let before = store.requests();
    let mut tasks = JoinSet::new();
    for n in 0..8 {
        let client = client.clone();
        tasks.spawn(async move {
            for _ in 0..10 {
                let (claim, _) = take(client.clone(), claim(&name(n), crate::store::LONG)).await;
                assert!(matches!(client.release(&[&claim]).await[..], [Release::Freed]));
            }
        });
    }
    tasks.join_all().await;
    let requests = store.requests() - before;
    assert!(requests <= 24, "{requests} for 20 steps");
}

#[tokio::test(start_paused = true)]
async fn commit_is_sent_again_only_if_one_change_is_refused() {
    let store = Store::new();
    let (client, _) = client(&store, 4).await;
    let wants = |n: usize, note: &str| {
        let (client, note) = (client.clone(), Note::new(note).unwrap());
        let claim = claim(&name(n), crate::store::LONG).note(note);
        async move { client.contend(&claim, &Patience::none(clock())).await }
    };
    let before = store.retakes();
    let failure = wants(3, crate::store::UNWRITABLE).await.unwrap_err();
    assert_eq!((failure.kind, store.retakes() - before), (FailureKind::Invalid, 1));
    let gate = store.stall_a_commit();
    let first = start(&client, 0);
    settle().await;
    store.fail_a_commit();
    let others = [1, 2].map(|n| tokio::spawn(wants(n, "x")));
    for other in others {
        let failure = other.await.unwrap().unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
    }
    gate.add_permits(1);
    first.await.unwrap();
}

/// A round of commits that was about to begin ends with its runtime.
#[test]
fn client_of_a_runtime_that_has_ended_works_in_the_next_one() {
    for is_answered in [false, true] {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (store, first) = (Store::new(), runtime());
        let (client, last) = first.block_on(async {
            let (client, _) = client(&store, 0).await;
            let claims = [0, 1, 2].map(|n| claim(&name(n), crate::store::LONG));
            for claim in &claims {
                assert!(try_take(&*client, claim).await.is_some());
            }
            let [slow, next, last] = claims;
            store.stall_a_commit();
            tokio::spawn({
                let client = client.clone();
                async move { client.release(&[&slow]).await.pop() }
            });
            until_sent(&store).await;
            if is_answered {
                assert!(matches!(client.release(&[&next]).await[..], [Release::Freed]));
            } else {
                assert!(client.release(&[&next]).now_or_never().is_none());
            }
            (client, last)
        });
        drop(first);
        let released = runtime().block_on(async {
            tokio::time::timeout(Duration::from_secs(60), client.release(&[&last])).await.unwrap()
        });
        assert!(matches!(released[..], [Release::Freed]), "{is_answered}: {released:?}");
    }
}
