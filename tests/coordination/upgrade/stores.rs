//! Readers that become writers and readers again: no other client writes in between, two upgrades are
//! not both granted, and dead processes block no other.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use leasehold::{Client, ErrorKind, LockSupport, RwLock, Upgradable};

use crate::fixture::{
    Fixture, LIMIT, LIVING, Part, Primitive, TTL, assert_not_granted, assert_unsupported, not_before,
    within_limit,
};
use crate::player::{Stage, Victim};

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "upgrade",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[
        Part {
            name: "upgrader",
            steps: 6,
            play: |stage, locks, name| upgrade_and_back(stage, locks, name).boxed(),
            around: |fixture, victim| {
                async move {
                    if !fixture.admits(LockSupport::Counted) {
                        return;
                    }
                    let name = victim.name();
                    victim.dies().await;
                    another_writes_by_upgrade(fixture, &name).await;
                }
                .boxed()
            },
        },
        // It reads, and waits to write while another client reads.
        Part {
            name: "waiter",
            steps: 1,
            play: |stage, locks, name| {
                async move {
                    let mut guard = rwlock(locks, name, TTL).upgradable_read().await?;
                    stage.during("waits to write", guard.upgrade()).await?;
                    guard.release().await
                }
                .boxed()
            },
            around: |fixture, victim| a_waiter_dies(fixture, victim).boxed(),
        },
    ],
};

fn rwlock(locks: &Client, name: &str, ttl: Duration) -> RwLock {
    locks.rwlock(name).ttl(ttl)
}

async fn upgrade_and_back(stage: &Stage, locks: &Client, name: &str) -> leasehold::Result<()> {
    let mut guard = rwlock(locks, name, TTL).upgradable_read().await?;
    stage.at("reads").await;
    stage.during("becomes a writer", guard.upgrade()).await?;
    stage.at("writes").await;
    stage.during("becomes a reader again", guard.downgrade()).await?;
    stage.at("reads again").await;
    stage.during("releases it", guard.release()).await
}

async fn a_waiter_dies(fixture: &Fixture, victim: Victim) {
    if !fixture.admits(LockSupport::Counted) {
        return;
    }
    let name = victim.name();
    let lock = rwlock(&fixture.one, &name, LIVING);
    let mut reader = Some(lock.try_read_for(LIMIT).await.unwrap().unwrap());
    if victim.survives() {
        drop(reader.take());
    }
    victim.dies().await;
    drop(reader);
    another_writes_by_upgrade(fixture, &name).await;
}

async fn another_writes_by_upgrade(fixture: &Fixture, name: &str) {
    let lock = rwlock(&fixture.two, name, LIVING);
    let mut guard = lock.try_upgradable_read_for(LIMIT).await.unwrap().unwrap();
    within_limit("to become a writer", become_writer(&mut guard)).await;
    assert!(lock.try_read().await.unwrap().is_none());
    guard.release().await.unwrap();
}

/// Retries while the reader of a dead process is still there, which counts as about to become a writer.
async fn become_writer(guard: &mut Upgradable) {
    while let Err(error) = guard.upgrade().await {
        assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Tries until the store has confirmed the end of the request before, which a busy machine delays.
async fn try_upgrade(guard: &mut Upgradable) -> bool {
    loop {
        let begun = Instant::now();
        match guard.try_upgrade().await {
            Ok(is_writer) => return is_writer,
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                not_before("unknown only after two seconds", begun, Duration::from_secs(2));
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn rules(fixture: &Fixture) {
    let (ours, theirs) = (fixture.one.rwlock("upgrade/1"), fixture.two.rwlock("upgrade/1"));
    if !fixture.admits(LockSupport::Counted) {
        return assert_unsupported(ours.upgradable_read().await);
    }
    a_writer_by_upgrade_is_alone_and_its_fence_is_the_newer(fixture, &ours, &theirs).await;
    nobody_writes_between_reading_and_writing(&[ours, theirs]).await;
}

async fn a_writer_by_upgrade_is_alone_and_its_fence_is_the_newer(
    fixture: &Fixture,
    ours: &RwLock,
    theirs: &RwLock,
) {
    let mut guard = within_limit("to read", ours.upgradable_read()).await.unwrap();
    let reader = within_limit("to read", theirs.read()).await.unwrap();
    let as_reader = guard.fence();
    let upgrade = async { guard.try_upgrade_for(AWHILE).await.map(|is_writer| is_writer.then_some(())) };
    assert_not_granted(AWHILE, upgrade).await;
    assert!(!within_limit("to try", Box::pin(try_upgrade(&mut guard))).await);
    assert!(!guard.is_writer() && guard.check().is_ok());
    // Its request is gone, so readers are let in again.
    theirs.try_read_for(LIMIT).await.unwrap().unwrap().release().await.unwrap();
    {
        let mut upgrade = pin!(guard.upgrade());
        assert!(tokio::time::timeout(AWHILE, &mut upgrade).await.is_err(), "a writer beside a reader");
        reader.release().await.unwrap();
        within_limit("to write", upgrade).await.unwrap();
    }
    assert!(guard.is_writer() && (guard.fence() > as_reader || !fixture.has_fences()));
    guard.upgrade().await.unwrap();
    assert!(theirs.try_read().await.unwrap().is_none());
    assert!(ours.try_read().await.unwrap().is_none());
    let as_writer = guard.fence();
    guard.downgrade().await.unwrap();
    assert!(!guard.is_writer() && guard.fence() == as_writer);
    let reader = theirs.try_read().await.unwrap().expect("readers are let in at once");
    assert!(theirs.try_write().await.unwrap().is_none());
    reader.release().await.unwrap();
    guard.release().await.unwrap();
}

async fn nobody_writes_between_reading_and_writing(locks: &[RwLock; 2]) {
    let value = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for number in 0..4 {
        let (lock, value) = (locks[number % 2].clone(), value.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..2 {
                let mut guard = within_limit("to read", lock.upgradable_read()).await.unwrap();
                let seen = value.load(Ordering::SeqCst);
                match within_limit("to write", guard.upgrade()).await {
                    Ok(()) => {
                        assert_eq!(
                            value.swap(seen + 1, Ordering::SeqCst),
                            seen,
                            "another client wrote in between"
                        );
                        guard.release().await.unwrap();
                    }
                    // Each would wait for the other: this one releases its lock, and writes like any
                    // other client.
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
                        guard.release().await.unwrap();
                        let writer = within_limit("to write", lock.write()).await.unwrap();
                        value.fetch_add(1, Ordering::SeqCst);
                        writer.release().await.unwrap();
                    }
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(value.load(Ordering::SeqCst), 8);
}

/// Long enough for a request, and for a wait to be one.
const AWHILE: Duration = Duration::from_millis(200);
