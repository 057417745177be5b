//! Several locks as one: all or nothing, no deadlock among waiters, and a process that dies in between
//! keeps none for long.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::{Client, ErrorKind, Event, EventSubscriber, LockSupport, MultiLock};

use crate::fixture::{
    Fixture, LIMIT, LIVING, Part, Primitive, TTL, assert_not_granted, assert_unsupported, within_limit,
};
use crate::player::Stage;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "multi",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[
        Part {
            name: "holder",
            steps: 5,
            play: |stage, locks, name| hold(stage, locks, name).boxed(),
            around: |fixture, victim| {
                async move {
                    let all = both(&fixture.one, &victim.name(), LIVING);
                    victim.dies().await;
                    all.try_lock_for(LIMIT).await.unwrap().unwrap().release().await.unwrap();
                }
                .boxed()
            },
        },
        // It holds the first, and waits for the second, which another client holds.
        Part {
            name: "waiter",
            steps: 1,
            play: |stage, locks, name| {
                async move {
                    let guard = stage.during("waits for the second", both(locks, name, TTL).lock()).await?;
                    guard.release().await
                }
                .boxed()
            },
            around: |fixture, victim| {
                async move {
                    let name = victim.name();
                    let mut busy = Some(fixture.one.mutex(format!("{name}/b")).lock().await.unwrap());
                    if victim.survives() {
                        drop(busy.take());
                    }
                    let dying = victim.reaches_its_end().await;
                    if busy.is_some() {
                        fixture.held(&format!("{name}/a")).await;
                    }
                    dying.killed().await;
                    drop(busy);
                    let all = both(&fixture.two, &name, LIVING);
                    all.try_lock_for(LIMIT).await.unwrap().unwrap().release().await.unwrap();
                }
                .boxed()
            },
        },
    ],
};

fn both(locks: &Client, name: &str, ttl: Duration) -> MultiLock {
    let part = |which: &str| locks.mutex(format!("{name}/{which}")).ttl(ttl);
    MultiLock::new().and(part("b")).and(part("a"))
}

async fn hold(stage: &Stage, locks: &Client, name: &str) -> leasehold::Result<()> {
    stage.at("holds nothing").await;
    let guard = stage.during("takes them", both(locks, name, TTL).lock()).await?;
    stage.at("holds both").await;
    stage.during("releases them", guard.release()).await?;
    stage.at("has released them").await;
    Ok(())
}

async fn rules(fixture: &Fixture) {
    locks_are_taken_in_order_and_once_each(fixture).await;
    client_that_does_not_get_all_holds_none(fixture).await;
    overlapping_sets_never_deadlock(fixture).await;
    locks_of_another_store_can_be_included(fixture).await;
    the_larger_share_of_two_is_taken(fixture).await;
}

async fn locks_are_taken_in_order_and_once_each(fixture: &Fixture) {
    let names = ["multi/1/c", "multi/1/a", "multi/1/b", "multi/1/a"];
    let guard = within_limit("three", fixture.one.lock_all(names).lock()).await.unwrap();
    let taken: Vec<_> = guard.guards().iter().map(|guard| guard.resource().as_str().to_owned()).collect();
    assert_eq!(taken, ["multi/1/a", "multi/1/b", "multi/1/c"]);
    assert_eq!(guard.fence("multi/1/b").is_some(), fixture.has_fences());
    assert!(guard.fence("multi/1/d").is_none());
    assert!(guard.check().is_ok() && guard.loss().is_none() && !guard.remaining().is_zero());
    for name in taken {
        assert!(fixture.two.mutex(&name).try_lock().await.unwrap().is_none(), "{name}");
    }
    guard.release().await.unwrap();
    for name in names {
        fixture.free(name).await;
    }
}

/// The names of the locks that were not granted.
#[derive(Debug, Default)]
struct Missed(Mutex<Vec<String>>);

impl EventSubscriber for Missed {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::AcquireFailed { resource, .. } = event {
            self.0.lock().unwrap().push(resource.to_string());
        }
    }
}

async fn client_that_does_not_get_all_holds_none(fixture: &Fixture) {
    let busy = within_limit("one", fixture.two.mutex("multi/2/b").lock()).await.unwrap();
    let names = ["multi/2/a", "multi/2/b", "multi/2/c"];
    let all = fixture.one.lock_all(names);
    let missed = Arc::<Missed>::default();
    let observed = Client::builder().subscriber(missed.clone()).over(fixture.one.backend().clone()).unwrap();
    let nothing_held = async || {
        for name in ["multi/2/a", "multi/2/c"] {
            fixture.free(name).await;
        }
    };
    assert!(all.try_lock().await.unwrap().is_none());
    nothing_held().await;
    let limit = Duration::from_millis(300);
    assert_not_granted(limit, observed.lock_all(names).try_lock_for(limit)).await;
    // On a busy machine even the first may take longer than the limit.
    let missed = missed.0.lock().unwrap().clone();
    assert!(missed.len() == 1 && missed[0].starts_with("multi/2/"), "it reports which: {missed:?}");
    nothing_held().await;
    // A caller that gives up midway leaves nothing behind.
    assert!(tokio::time::timeout(Duration::from_millis(100), all.lock()).await.is_err());
    nothing_held().await;
    busy.release().await.unwrap();
    within_limit("all", all.lock()).await.unwrap().release().await.unwrap();
}

async fn overlapping_sets_never_deadlock(fixture: &Fixture) {
    let inside: Arc<Vec<AtomicU32>> = Arc::new((0..4).map(|_| AtomicU32::new(0)).collect());
    let mut tasks = Vec::new();
    for task in 0..6_usize {
        let locks = if task % 2 == 0 { fixture.one.clone() } else { fixture.two.clone() };
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..2_usize {
                let first = task + round * 3;
                let wanted = if task % 3 == 0 { [first, first + 1] } else { [first + 1, first] };
                let wanted = wanted.map(|number| number % 4);
                let all = locks.lock_all(wanted.map(|number| format!("multi/3/{number}")));
                let guard = within_limit("two of four", all.lock()).await.unwrap();
                let mine = BTreeSet::from(wanted);
                for number in &mine {
                    assert_eq!(inside[*number].fetch_add(1, Ordering::SeqCst), 0, "two hold {number}");
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
                for number in &mine {
                    inside[*number].fetch_sub(1, Ordering::SeqCst);
                }
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn locks_of_another_store_can_be_included(fixture: &Fixture) {
    let memory = Client::open("mem:").await.unwrap();
    let all = MultiLock::new().and(memory.mutex("multi/4/b")).and(fixture.one.mutex("multi/4/a"));
    let busy = memory.mutex("multi/4/b").lock().await.unwrap();
    assert!(all.try_lock().await.unwrap().is_none());
    fixture.free("multi/4/a").await;
    busy.release().await.unwrap();
    let guard = within_limit("two stores", all.lock()).await.unwrap();
    assert!(fixture.two.mutex("multi/4/a").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
}

async fn the_larger_share_of_two_is_taken(fixture: &Fixture) {
    let table = fixture.one.rwlock("multi/5");
    let all = MultiLock::new().and(table.read_request()).and(table.write_request()).and(table.read_request());
    if !fixture.admits(LockSupport::SharedExclusive) {
        return assert_unsupported(MultiLock::new().and(table.read_request()).lock().await);
    }
    let guard = within_limit("to write", all.lock()).await.unwrap();
    assert_eq!(guard.guards().len(), 1);
    assert!(fixture.two.rwlock("multi/5").try_read().await.unwrap().is_none(), "it is held to write");
    guard.release().await.unwrap();
    if !fixture.admits(LockSupport::Counted) {
        return assert_unsupported(fixture.one.semaphore("multi/6", 3).try_acquire_many(2).await);
    }
    let mixed = MultiLock::new()
        .and(fixture.one.semaphore("multi/6", 3).permits_request(2))
        .and(fixture.one.rwlock("multi/6").read_request());
    let refusal = mixed.lock().await.unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Invalid, "{refusal}");
    fixture.free("multi/6").await;
}
