//! Reentrancy by an explicit owner, and owners that wait for themselves or for each other.
use crate::common;
use crate::common::{Store, ms, settles};
use leasehold::layer::Verb;
use leasehold::{Client, ErrorKind, Guard, Owner};

#[tokio::test]
async fn an_owner_re_enters_a_thousand_times_at_the_cost_of_one_claim() {
    let (locks, wire) = Store::new().client();
    let owner = Owner::new();
    let mutex = locks.mutex("job").owner(&owner);
    let mut guards = vec![mutex.lock().await.unwrap()];
    for _ in 0..1000 {
        guards.push(mutex.lock().await.unwrap());
    }
    guards.push(mutex.try_lock().await.unwrap().unwrap());
    assert!(guards.iter().all(|guard| guard.fence() == guards[0].fence()));
    assert_eq!(wire.calls(Verb::Contend), 1);
    while guards.len() > 1 {
        guards.pop().unwrap().release().await.unwrap();
        assert_eq!(locks.inspect("job").await.unwrap().holders.len(), 1, "the last one gives it back");
    }
    guards.pop().unwrap().release().await.unwrap();
    settles(&locks, "job").await;
}

#[tokio::test]
async fn another_owner_and_none_are_strangers() {
    let (locks, _) = Store::new().client();
    let guard = locks.mutex("job").owner(&Owner::new()).lock().await.unwrap();
    assert!(locks.mutex("job").owner(&Owner::new()).try_lock().await.unwrap().is_none());
    assert!(locks.mutex("job").try_lock().await.unwrap().is_none());
    drop(guard);
    settles(&locks, "job").await;
}

#[tokio::test]
async fn owner_upgrade_is_a_deadlock_and_a_smaller_share_is_not() {
    let (locks, _) = Store::new().client();
    let owner = Owner::new();
    let lock = locks.rwlock("prices").owner(&owner);
    let reader = lock.read().await.unwrap();
    let error = lock.write().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    assert!(error.to_string().contains("would wait for itself"), "{error}");
    reader.release().await.unwrap();
    let writer = lock.write().await.unwrap();
    let reader = lock.read().await.unwrap();
    assert_eq!(reader.fence(), writer.fence());
    drop(writer);
    assert!(
        locks.rwlock("prices").try_read().await.unwrap().is_none(),
        "the inner guard holds what the outer had"
    );
    reader.release().await.unwrap();
    settles(&locks, "prices").await;
}

#[tokio::test(start_paused = true)]
async fn try_beside_a_task_that_joins_succeeds() {
    let store = Store::in_virtual_time();
    let ((locks, _), (other, _)) = (store.client(), store.client());
    let held = other.mutex("job").lock().await.unwrap();
    let mutex = locks.mutex("job").owner(&Owner::new());
    let first = async {
        let outer = mutex.lock().await.unwrap();
        // The other task has its turn already, but has not run since.
        (mutex.try_lock().await.unwrap(), outer)
    };
    let second = async { mutex.lock().await.unwrap() };
    let frees = async {
        tokio::time::sleep(ms(10)).await;
        held.release().await.unwrap();
    };
    let ((inner, outer), joined, ()) = tokio::join!(first, second, frees);
    let inner = inner.expect("its owner holds it");
    assert!(inner.fence() == outer.fence() && joined.fence() == outer.fence());
    drop((inner, joined));
    outer.release().await.unwrap();
    settles(&locks, "job").await;
}

#[tokio::test(start_paused = true)]
async fn try_of_more_than_its_owner_holds_is_a_deadlock() {
    let store = Store::in_virtual_time();
    let ((locks, _), (other, _)) = (store.client(), store.client());
    let held = other.rwlock("prices").write().await.unwrap();
    let lock = locks.rwlock("prices").owner(&Owner::new());
    let first = async {
        let outer = lock.read().await.unwrap();
        (lock.try_write().await.map(|_| ()), outer)
    };
    let second = async { lock.read().await.unwrap() };
    let frees = async {
        tokio::time::sleep(ms(10)).await;
        held.release().await.unwrap();
    };
    let ((tried, outer), joined, ()) = tokio::join!(first, second, frees);
    assert_eq!(tried.unwrap_err().kind(), ErrorKind::Deadlock);
    drop(joined);
    outer.release().await.unwrap();
    settles(&locks, "prices").await;
}

#[tokio::test(start_paused = true)]
async fn two_tasks_of_one_owner_share_one_claim() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.client();
    let (other, _) = store.client();
    let held = other.mutex("job").lock().await.unwrap();
    let owner = Owner::new();
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let mutex = locks.mutex("job").owner(&owner);
            tokio::spawn(async move { mutex.lock().await.unwrap() })
        })
        .collect();
    common::waiting(&other, "job", 1).await;
    assert!(locks.mutex("job").owner(&owner).try_lock_for(ms(30)).await.unwrap().is_none());
    assert!(locks.mutex("job").owner(&owner).try_lock().await.unwrap().is_none());
    held.release().await.unwrap();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.unwrap());
    }
    assert!(guards.iter().all(|guard| guard.fence() == guards[0].fence()));
    assert!(wire.calls(Verb::Contend) >= 1);
    assert_eq!(other.inspect("job").await.unwrap().holders.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_itself_waits_until_its_deadline() {
    let (locks, _) = Store::in_virtual_time().client();
    let mutex = locks.mutex("job");
    let _guard = mutex.lock().await.unwrap();
    // The documented decision: without an owner it is a wait like any other.
    assert!(mutex.try_lock_for(ms(50)).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn lost_lock_is_not_reentered_by_its_owner() {
    let store = Store::in_virtual_time();
    let ((locks, _), (other, _)) = (store.client(), store.client());
    let owner = Owner::new();
    let outer = locks.mutex("job").owner(&owner).max_hold(ms(20)).lock().await.unwrap();
    outer.lost().await;
    let taken = other.mutex("job").lock().await.unwrap();
    let mutex = locks.mutex("job").owner(&owner);
    assert!(mutex.try_lock().await.unwrap().is_none(), "another client holds it");
    assert!(mutex.try_lock_for(ms(30)).await.unwrap().is_none());
    let last = taken.fence();
    taken.release().await.unwrap();
    let again = mutex.lock().await.unwrap();
    assert!(again.check().is_ok() && again.fence() > last);
    assert!(outer.check().unwrap_err().is_lost(), "lost stays lost");
    let inner = mutex.lock().await.unwrap();
    assert_eq!(inner.fence(), again.fence(), "it is held again, and re-entered");
    assert!(outer.release().await.unwrap_err().is_lost());
    assert!(inner.check().is_ok());
    drop((inner, again));
    settles(&locks, "job").await;
}

#[tokio::test(start_paused = true)]
async fn lost_lock_does_not_block_its_owner() {
    let (locks, _) = Store::in_virtual_time().client();
    let owner = Owner::new();
    let reader = locks.rwlock("prices").owner(&owner).max_hold(ms(20)).read().await.unwrap();
    reader.lost().await;
    let writer = locks.rwlock("prices").owner(&owner).write().await.unwrap();
    assert!(writer.check().is_ok() && writer.fence() > reader.fence());
    drop((reader, writer));
    settles(&locks, "prices").await;
}

#[tokio::test(start_paused = true)]
async fn releasing_one_of_two_lost_guards_says_that_it_was_lost() {
    let (locks, _wire) = Store::in_virtual_time().client();
    let owner = Owner::new();
    let outer = locks.mutex("job").owner(&owner).max_hold(ms(20)).lock().await.unwrap();
    let inner = locks.mutex("job").owner(&owner).lock().await.unwrap();
    outer.lost().await;
    assert!(inner.release().await.unwrap_err().is_lost());
    assert!(outer.release().await.unwrap_err().is_lost());
}

#[tokio::test(start_paused = true)]
async fn an_owner_waits_for_the_rest_of_a_minimum_hold() {
    const MINIMUM: std::time::Duration = ms(150);
    let (locks, _wire) = Store::in_virtual_time().client();
    let owner = Owner::new();
    let lock = || locks.rwlock("prices").owner(&owner);
    for is_released in [false, true] {
        let began = tokio::time::Instant::now();
        let reader = lock().min_hold(MINIMUM).read().await.unwrap();
        let fence = reader.fence();
        let writer = if is_released {
            let (released, writer) = tokio::join!(reader.release(), async { lock().write().await });
            released.unwrap();
            writer
        } else {
            drop(reader);
            lock().write().await
        };
        let writer = writer.unwrap();
        assert!(began.elapsed() >= MINIMUM && writer.fence() > fence, "{:?}", began.elapsed());
        writer.release().await.unwrap();
    }
    settles(&locks, "prices").await;
}

/// Otherwise the hold would not end by itself, and the task that waits for that would wait for the one that tries.
#[tokio::test(start_paused = true)]
async fn try_beside_a_wait_for_a_minimum_hold_does_not_join_it() {
    const MINIMUM: std::time::Duration = ms(150);
    let (locks, _wire) = Store::in_virtual_time().client();
    let owner = Owner::new();
    let lock = || locks.rwlock("prices").owner(&owner);
    let began = tokio::time::Instant::now();
    drop(lock().min_hold(MINIMUM).read().await.unwrap());
    let tries = async {
        tokio::time::sleep(ms(10)).await;
        lock().try_read().await.unwrap()
    };
    let (writer, tried) = tokio::join!(async { lock().write().await }, tries);
    assert!(tried.is_none(), "the task that waits has its turn first");
    assert!((MINIMUM..MINIMUM * 2).contains(&began.elapsed()), "{:?}", began.elapsed());
    writer.unwrap().release().await.unwrap();
    settles(&locks, "prices").await;
}

#[tokio::test(start_paused = true)]
async fn lock_kept_for_its_minimum_hold_is_not_a_deadlock() {
    let (locks, _wire) = Store::in_virtual_time().client();
    let owner = Owner::new();
    let lock = || locks.rwlock("prices").owner(&owner).detect_deadlocks(ms(10));
    drop(lock().min_hold(ms(60_000)).read().await.unwrap());
    assert!(lock().try_write().await.unwrap().is_none(), "it is held");
    assert!(lock().try_write_for(ms(600)).await.unwrap().is_none());
    let again = lock().read().await.unwrap();
    assert_eq!(lock().write().await.unwrap_err().kind(), ErrorKind::Deadlock, "it is in use again");
    drop(again);
    assert!(locks.close(ms(20_000)).await);
}

/// Takes `held` for one client, and makes an owner for another, as of a child process.
async fn nested(store: &Store, held: &str) -> (Guard, Owner, Client) {
    let ((parent, _), (child, _)) = (store.client(), store.client());
    let guard = parent.mutex(held).lock().await.unwrap();
    let owner = Owner::inheriting([guard.tag().as_str(), "no tag"]);
    (guard, owner, child)
}

async fn deadlocked(locks: &Client) -> usize {
    let found = locks.deadlocks().await.unwrap();
    assert!(found.len() <= 1, "{found:?}");
    found.first().map_or(0, |deadlock| deadlock.waits.len())
}

async fn until_deadlocked(locks: &Client, waits: usize) {
    while deadlocked(locks).await != waits {
        tokio::time::sleep(ms(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn announced_waits_of_a_circle_are_seen_and_never_give_up() {
    let store = Store::in_virtual_time();
    let ((has_a, on_a, one), (has_b, on_b, two)) = (nested(&store, "a").await, nested(&store, "b").await);
    let wants_b = tokio::spawn(async move { one.mutex("b").owner(&on_a).announce_wait(ms(10)).lock().await });
    let wants_a = tokio::spawn(async move { two.mutex("a").owner(&on_b).announce_wait(ms(10)).lock().await });
    let (watcher, _) = store.client();
    within(until_deadlocked(&watcher, 2)).await;
    // Several looks of both later it is still so.
    tokio::time::sleep(ms(3000)).await;
    assert_eq!(deadlocked(&watcher).await, 2);
    assert!(!wants_a.is_finished() && !wants_b.is_finished());
    has_b.release().await.unwrap();
    within(wants_b).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(deadlocked(&watcher).await, 0);
    has_a.release().await.unwrap();
    drop(within(wants_a).await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn owner_that_detects_gives_up_for_those_that_only_announce() {
    for detects_first in [true, false] {
        let store = Store::in_virtual_time();
        let (has_a, on_a, one) = nested(&store, "a").await;
        let (two, _) = store.client();
        let me = Owner::new();
        let has_b = two.mutex("b").owner(&me).lock().await.unwrap();
        let announces = async {
            tokio::time::sleep(ms(if detects_first { 300 } else { 0 })).await;
            one.mutex("b").owner(&on_a).announce_wait(ms(10)).lock().await
        };
        let detects = async {
            tokio::time::sleep(ms(if detects_first { 0 } else { 300 })).await;
            let error = two.mutex("a").owner(&me).detect_deadlocks(ms(10)).lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
            has_b.release().await.unwrap();
        };
        let (granted, ()) = within(Box::pin(async { tokio::join!(announces, detects) })).await;
        drop(granted.unwrap());
        drop(has_a);
    }
}

#[tokio::test(start_paused = true)]
async fn ended_inherited_claim_is_not_re_entered() {
    let store = Store::in_virtual_time();
    let ((has_a, on_a, one), (has_b, on_b, two)) = (nested(&store, "a").await, nested(&store, "b").await);
    assert!(one.mutex("a").owner(&on_a).try_lock().await.unwrap().is_none(), "it is held by another client");
    has_a.release().await.unwrap();
    // The claim on `a` is another one now, so its new holder does not wait for `b`.
    let (other, _) = store.client();
    let again = other.mutex("a").lock().await.unwrap();
    let wants_b = tokio::spawn(async move { one.mutex("b").owner(&on_a).announce_wait(ms(10)).lock().await });
    let wants_a = tokio::spawn(async move { two.mutex("a").owner(&on_b).announce_wait(ms(10)).lock().await });
    while other.inspect("leasehold!waits").await.unwrap().holders.len() < 2 {
        tokio::time::sleep(ms(10)).await;
    }
    assert_eq!(deadlocked(&other).await, 0);
    again.release().await.unwrap();
    drop(within(wants_a).await.unwrap().unwrap());
    has_b.release().await.unwrap();
    drop(within(wants_b).await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn wait_can_be_announced_only_for_an_owner() {
    let (locks, _) = Store::in_virtual_time().client();
    let error = locks.mutex("a").announce_wait(ms(10)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(ms(30_000), work).await.expect("it ends in time")
}
