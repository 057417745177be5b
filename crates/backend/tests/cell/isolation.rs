//! One cell that a transaction of another client keeps locked: no other client notices. Time is paused while
//! any task has something to do.

use std::sync::Arc;
use std::time::Duration;

use crate::store::{Faults, LONG, MemoryCells, STATEMENT_TIMEOUT, Store, TABLE, claim, clock, try_take};
use leasehold_backend::cell::CellBackend;
use leasehold_core::{Backend, Claim, Effect, Failure, Patience, Proof, Release, Renew, Renewal, Step};
use tokio::task::JoinSet;

/// Within this nothing becomes suspect that is renewed in time.
const SOON: Duration = Duration::from_secs(1);

/// Returns a client that holds so many locks.
async fn holding(store: &Arc<Store>, count: usize) -> (Arc<CellBackend<MemoryCells>>, Vec<Claim>) {
    let client = Arc::new(store.open(TABLE, Faults::default()));
    let claims: Vec<Claim> = (0..count).map(|n| claim(&format!("job {n}"), LONG)).collect();
    for claim in &claims {
        assert!(try_take(&*client, claim).await.is_some());
    }
    (client, claims)
}

fn names_the_cell(failure: &Failure) -> bool {
    let names = failure.detail().contains("job 7\"") && failure.detail().contains("locked");
    names && failure.is_transient() && failure.effect == Effect::None
}

#[tokio::test(start_paused = true)]
async fn a_locked_cell_keeps_no_other_lease_from_renewal() {
    let store = Store::new();
    let (client, claims) = holding(&store, 1_000).await;
    store.lock("job 7");
    // What is known to be alone is written without a look at first, and is looked at after that.
    for _ in 0..3 {
        let began = tokio::time::Instant::now();
        let proof = Proof::none();
        let batch: Vec<Renew<'_>> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
        let renewals = client.renew(&batch).await;
        assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
        for (n, renewal) in renewals.iter().enumerate() {
            match renewal {
                Renewal::Renewed => assert_ne!(n, 7),
                Renewal::Unknown(failure) => assert!(n == 7 && names_the_cell(failure), "{n}: {failure}"),
                Renewal::Alive | Renewal::Lost => panic!("{n}: {renewal:?}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_locked_cell_keeps_no_other_lock_from_release() {
    let store = Store::new();
    let (client, claims) = holding(&store, 100).await;
    store.lock("job 7");
    // A batch is repeated by what is left of it, and as a whole where no answer arrived.
    for round in 0..2 {
        let began = tokio::time::Instant::now();
        let releases = client.release(&claims.iter().collect::<Vec<_>>()).await;
        assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
        for (n, release) in releases.iter().enumerate() {
            match release {
                Release::Freed => assert!(n != 7 && round == 0),
                Release::Gone => assert!(n != 7 && round == 1),
                Release::Unknown(failure) => assert!(n == 7 && names_the_cell(failure), "{n}: {failure}"),
            }
        }
    }
}

/// A commit that waits for a standby far away keeps its row locked for as long.
#[tokio::test(start_paused = true)]
async fn a_slow_commit_of_another_client_is_waited_for() {
    let store = Store::new();
    let (client, claims) = holding(&store, 2).await;
    let unlock_after = |name: &'static str| {
        let store = store.clone();
        store.lock(name);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            store.unlock(name);
        })
    };
    let proof = Proof::none();
    unlock_after("job 0");
    let renewed = client.renew(&[Renew { claim: &claims[0], proof: &proof }]).await;
    assert!(matches!(renewed[..], [Renewal::Renewed]), "{renewed:?}");
    unlock_after("job 1");
    let released = client.release(&[&claims[1]]).await;
    assert!(matches!(released[..], [Release::Freed]), "{released:?}");
}

/// Alone it gets nearly all tries, each of which is a look and a write.
#[tokio::test(start_paused = true)]
async fn a_cell_that_stays_locked_is_given_up() {
    let store = Store::new();
    let (_client, claims) = holding(&store, 8).await;
    let other = store.open(TABLE, Faults::default());
    store.lock("job 7");
    let (before, began) = (store.requests(), tokio::time::Instant::now());
    let released = other.release(&[&claims[7]]).await;
    assert!(matches!(&released[..], [Release::Unknown(failure)] if names_the_cell(failure)), "{released:?}");
    assert_eq!(store.requests() - before, 2 * 49);
    assert!(began.elapsed() < 2 * SOON, "{:?}", began.elapsed());
}

/// Others wait for a renewal and a release, so their pauses are shorter than those of claims.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_lost_races_is_repeated_soon() {
    let store = Store::new();
    let (client, claims) = holding(&store, 1).await;
    store.overtake("job 0", 10);
    let (proof, began) = (Proof::none(), tokio::time::Instant::now());
    let renewed = client.renew(&[Renew { claim: &claims[0], proof: &proof }]).await;
    assert!(matches!(renewed[..], [Renewal::Renewed]), "{renewed:?}");
    assert_eq!(store.still_to_overtake("job 0"), 0);
    // Nine pauses of random length: 46 ms at most, and a part of a millisecond more for each.
    assert!(began.elapsed() <= Duration::from_millis(64), "{:?}", began.elapsed());
}

/// Two hundred waiters that leave at once change a cell two hundred times, each after the other.
#[tokio::test(start_paused = true)]
async fn change_outlasts_two_hundred_other_writers() {
    let store = Store::new();
    let (client, claims) = holding(&store, 1).await;
    store.overtake("job 0", 200);
    let proof = Proof::none();
    let renewed = client.renew(&[Renew { claim: &claims[0], proof: &proof }]).await;
    assert!(matches!(renewed[..], [Renewal::Renewed]), "{renewed:?}");
    assert_eq!(store.still_to_overtake("job 0"), 0, "the crowd came first");

    store.overtake("job 0", 200);
    let wait = claim("job 0", LONG);
    let left = client
        .contend(&wait, &Patience::until(clock(), clock().now().after(Duration::from_millis(50))))
        .await;
    assert!(matches!(left, Ok(Step::Busy(ref hint)) if hint.ahead == Some(1)), "{left:?}");

    store.overtake("job 0", 200);
    let released = client.release(&[&claims[0]]).await;
    assert!(matches!(released[..], [Release::Freed]), "{released:?}");
    assert_eq!(store.still_to_overtake("job 0"), 0, "the crowd came first");
}

/// In one call with others it is not waited for as long: they have their answers within a renewal.
#[tokio::test(start_paused = true)]
async fn a_crowd_at_one_cell_delays_no_other_renewal() {
    let store = Store::new();
    let (client, claims) = holding(&store, 2).await;
    let proof = Proof::none();
    store.overtake("job 0", 1_000);
    let batch: Vec<Renew<'_>> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    let began = tokio::time::Instant::now();
    let renewals = client.renew(&batch).await;
    assert!(began.elapsed() < 2 * SOON, "{:?}", began.elapsed());
    assert!(matches!(renewals[..], [Renewal::Unknown(_), Renewal::Renewed]), "{renewals:?}");
}

#[tokio::test(start_paused = true)]
async fn a_locked_cell_delays_no_other_task_of_its_commit() {
    let store = Store::new();
    let (client, claims) = holding(&store, 20).await;
    for claim in &claims {
        assert!(matches!(client.release(&[claim]).await[..], [Release::Freed]));
    }
    store.lock("job 7");
    let mut tasks = JoinSet::new();
    for n in 0..20 {
        let client = client.clone();
        tasks.spawn(async move {
            let began = tokio::time::Instant::now();
            let patience = Patience::none(clock());
            let granted = client.contend(&claim(&format!("job {n}"), LONG), &patience).await;
            (n, granted, began.elapsed())
        });
    }
    for (n, granted, took) in tasks.join_all().await {
        match granted {
            Ok(_) => assert!(n != 7 && took < SOON, "{n} took {took:?}"),
            // It wants this very cell, and waits for it as long as a statement may.
            Err(failure) => assert!(n == 7 && took >= STATEMENT_TIMEOUT, "{n}: {failure}"),
        }
    }
}

/// A row that another program keeps locked can still be read, and shows that it is held.
#[tokio::test(start_paused = true)]
async fn try_is_not_delayed_by_a_slow_request_of_another_task() {
    let store = Store::new();
    let (_holder, _claims) = holding(&store, 8).await;
    store.lock("job 7");
    let client = Arc::new(store.open(TABLE, Faults::default()));
    let patient = client.clone();
    // It writes its place into the locked cell, which takes as long as a statement may.
    let waiter = tokio::spawn(async move {
        patient.contend(&claim("job 7", LONG), &Patience::unlimited(clock())).await.map(drop)
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let began = tokio::time::Instant::now();
    assert!(try_take(&*client, &claim("job 7", LONG)).await.is_none());
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    waiter.abort();
}

/// A claim that is queued and then only tries leaves the queue, and is not answered from a look that leaves
/// its place there.
#[tokio::test(start_paused = true)]
async fn try_of_a_queued_claim_is_not_answered_from_a_read() {
    let store = Store::new();
    let holder = store.open(crate::store::CACHE, Faults::default());
    assert!(try_take(&holder, &claim("job 7", LONG)).await.is_some());
    let client = Arc::new(store.open(crate::store::CACHE, Faults::default()));
    let waits = claim("job 7", LONG);
    let step = client.contend(&waits, &Patience::unlimited(clock())).await.unwrap();
    assert!(matches!(step, Step::Busy(_)), "{step:?}");
    store.lock("job 7");
    let other = client.clone();
    let slow = tokio::spawn(async move {
        other.contend(&claim("job 7", LONG), &Patience::unlimited(clock())).await.map(drop)
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Its place cannot be taken out of the locked cell, so the answer must not be that it is gone.
    client.contend(&waits, &Patience::none(clock())).await.unwrap_err();
    assert!(slow.await.unwrap().is_err());
}

/// A free but locked cell is waited for, by all together not much longer than by one.
#[tokio::test(start_paused = true)]
async fn tries_behind_slow_requests_end_together() {
    let store = Store::new();
    let (client, claims) = holding(&store, 8).await;
    assert!(matches!(client.release(&[&claims[7]]).await[..], [Release::Freed]));
    store.lock("job 7");
    let mut tasks = JoinSet::new();
    let began = tokio::time::Instant::now();
    for _ in 0..50 {
        let client = client.clone();
        tasks.spawn(async move {
            client.contend(&claim("job 7", LONG), &Patience::none(clock())).await.map(drop)
        });
    }
    for failure in tasks.join_all().await {
        let failure = failure.unwrap_err();
        assert!(failure.is_transient() && failure.effect == Effect::None, "{failure}");
    }
    assert!(began.elapsed() < STATEMENT_TIMEOUT * 6, "{:?}", began.elapsed());
}

/// Tries of one client at what is free: one is granted, also where each of them sees that it is free before
/// anybody writes.
#[tokio::test(start_paused = true)]
async fn exactly_one_of_many_simultaneous_tries_is_granted() {
    for kind in [TABLE, crate::store::CACHE] {
        let store = Store::new();
        let client = Arc::new(store.open(kind, Faults::default()));
        for _ in 0..20 {
            let mut tasks = JoinSet::new();
            for _ in 0..50 {
                let client = client.clone();
                tasks.spawn(async move {
                    let claim = claim("job", LONG);
                    try_take(&*client, &claim).await.map(|_| claim)
                });
            }
            let granted: Vec<Claim> = tasks.join_all().await.into_iter().flatten().collect();
            assert_eq!(granted.len(), 1);
            assert!(matches!(client.release(&[&granted[0]]).await[..], [Release::Freed]));
        }
    }
}
