//! Semaphores: never more permits are granted than exist, and those of dead processes come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::{Client, ErrorKind, LockSupport, Semaphore};

use crate::fixture::{Fixture, LIMIT, LIVING, Part, Primitive, TTL, assert_unsupported, within_limit};

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "semaphore",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[
        Part {
            name: "holder",
            steps: 3,
            play: |stage, locks, name| {
                async move {
                    let guard =
                        stage.during("takes two", semaphore(locks, name, TTL).acquire_many(2)).await?;
                    stage.at("holds two").await;
                    stage.during("releases them", guard.release()).await
                }
                .boxed()
            },
            around: |fixture, victim| {
                async move {
                    if !fixture.admits(LockSupport::Counted) {
                        return;
                    }
                    let all = semaphore(&fixture.one, &victim.name(), LIVING);
                    victim.dies().await;
                    all.try_acquire_many_for(PERMITS, LIMIT).await.unwrap().unwrap().release().await.unwrap();
                }
                .boxed()
            },
        },
        // It waits for all of them, of which another client holds one.
        Part {
            name: "waiter",
            steps: 1,
            play: |stage, locks, name| {
                async move {
                    let all = semaphore(locks, name, TTL);
                    stage.during("waits for all", all.acquire_many(PERMITS)).await?.release().await
                }
                .boxed()
            },
            around: |fixture, victim| {
                async move {
                    if !fixture.admits(LockSupport::Counted) {
                        return;
                    }
                    let (here, there) = (
                        semaphore(&fixture.one, &victim.name(), LIVING),
                        semaphore(&fixture.two, &victim.name(), LIVING),
                    );
                    let mut one = Some(here.try_acquire_for(LIMIT).await.unwrap().unwrap());
                    if victim.survives() {
                        drop(one.take());
                    }
                    victim.dies().await;
                    // Two are free: the dead waiter ahead keeps no other waiter from them, even while
                    // its place in the queue is kept.
                    there
                        .try_acquire_many_for(2, PASSED_OVER)
                        .await
                        .unwrap()
                        .unwrap()
                        .release()
                        .await
                        .unwrap();
                    drop(one);
                    there
                        .try_acquire_many_for(PERMITS, LIMIT)
                        .await
                        .unwrap()
                        .unwrap()
                        .release()
                        .await
                        .unwrap();
                }
                .boxed()
            },
        },
    ],
};

const PERMITS: u32 = 3;
/// A few seconds, on however busy a machine; half of the time for which the place of a silent waiter is kept.
const PASSED_OVER: Duration = Duration::from_secs(30);

fn semaphore(locks: &Client, name: &str, ttl: Duration) -> Semaphore {
    locks.semaphore(name, PERMITS).ttl(ttl)
}

async fn rules(fixture: &Fixture) {
    let (ours, theirs) =
        (fixture.one.semaphore("semaphore/1", PERMITS), fixture.two.semaphore("semaphore/1", PERMITS));
    if !fixture.admits(LockSupport::Permits) {
        return assert_unsupported(ours.acquire().await);
    }
    if !fixture.admits(LockSupport::Counted) {
        assert_unsupported(ours.acquire_many(2).await);
        return one_by_one(&ours, &theirs).await;
    }
    assert_eq!(ours.acquire_many(PERMITS + 1).await.unwrap_err().kind(), ErrorKind::Invalid);
    let two = within_limit("two", ours.acquire_many(2)).await.unwrap();
    assert!(theirs.try_acquire_many(2).await.unwrap().is_none());
    let third = within_limit("the third", theirs.acquire()).await.unwrap();
    assert!(ours.try_acquire().await.unwrap().is_none());
    assert!(third.fence() > two.fence());
    two.release().await.unwrap();
    third.release().await.unwrap();
    let out = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for (number, permits) in [1, 2, 3, 1, 2, 1].into_iter().enumerate() {
        let semaphore = if number % 2 == 0 { ours.clone() } else { theirs.clone() };
        let out = out.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..2 {
                let guard = within_limit("permits", semaphore.acquire_many(permits)).await.unwrap();
                let now = out.fetch_add(permits, Ordering::SeqCst) + permits;
                assert!(now <= PERMITS, "{now} permits of {PERMITS} are out");
                tokio::task::yield_now().await;
                out.fetch_sub(permits, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// Checks semaphores on a store where a claim is one permit.
async fn one_by_one(ours: &Semaphore, theirs: &Semaphore) {
    let first = within_limit("the first", ours.acquire()).await.unwrap();
    let second = within_limit("the second", theirs.acquire()).await.unwrap();
    let third = within_limit("the third", ours.acquire()).await.unwrap();
    assert!(first.fence() < second.fence() && second.fence() < third.fence());
    assert!(ours.try_acquire().await.unwrap().is_none());
    assert!(theirs.try_acquire().await.unwrap().is_none());
    second.release().await.unwrap();
    let fourth = within_limit("the fourth", theirs.acquire()).await.unwrap();
    assert!(third.fence() < fourth.fence());
    for guard in [first, third, fourth] {
        guard.release().await.unwrap();
    }
}
