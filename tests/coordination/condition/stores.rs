//! Conditions: no wake-up is lost, not even on a waiter that died before it could use it.

use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use leasehold::{Client, LockSupport};

use crate::fixture::{Fixture, LIVING, Part, Primitive, TTL, assert_unsupported, within_limit};
use crate::player::{Stage, Victim};

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "condition",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[Part {
        name: "waiter",
        steps: 3,
        play: |stage, locks, name| wait(stage, locks, name).boxed(),
        around: |fixture, victim| somebody_dies(fixture, victim).boxed(),
    }],
};

async fn wait(stage: &Stage, locks: &Client, name: &str) -> leasehold::Result<()> {
    let condition = locks.condition(name).ttl(TTL);
    let guard = locks.mutex(name).ttl(TTL).lock().await?;
    stage.at("holds the lock").await;
    let guard = stage.during("waits", guard.wait(&condition)).await?;
    stage.at("was woken, and holds the lock again").await;
    guard.release().await
}

fn is_carried_by(fixture: &Fixture) -> bool {
    fixture.keeps_values() && fixture.admits(LockSupport::SharedExclusive)
}

async fn somebody_dies(fixture: &Fixture, victim: Victim) {
    if !is_carried_by(fixture) {
        return;
    }
    let (name, step) = (victim.name(), victim.step());
    let reaching = pin!(victim.reaches_its_end());
    let dying = if step < 2 {
        reaching.await
    } else {
        // This client has to wake the waiter; when the wait begins is not visible from here.
        let waking = pin!(async {
            loop {
                notify(&fixture.two, &name, true).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        match select(reaching, waking).await {
            Either::Left((dying, _)) => dying,
            Either::Right((never, _)) => never,
        }
    };
    dying.killed().await;
    waiter_is_notified(fixture, &name).await;
}

async fn notify(locks: &Client, name: &str, all: bool) {
    let condition = locks.condition(name).ttl(LIVING);
    let guard = within_limit("to notify", locks.mutex(name).lock()).await.unwrap();
    match all {
        true => guard.notify_all(&condition).await.unwrap(),
        false => guard.notify_one(&condition).await.unwrap(),
    }
    guard.release().await.unwrap();
}

/// A single wake-up reaches a live waiter, even if dead ones are queued before it.
async fn waiter_is_notified(fixture: &Fixture, name: &str) {
    let condition = fixture.one.condition(name).ttl(LIVING);
    let guard = within_limit("the lock", fixture.one.mutex(name).lock()).await.unwrap();
    // The notifier is granted the lock once the waiter has released it to wait.
    let (woken, ()) =
        tokio::join!(within_limit("a wake-up", guard.wait(&condition)), notify(&fixture.two, name, false));
    woken.unwrap().release().await.unwrap();
}

async fn rules(fixture: &Fixture) {
    if !is_carried_by(fixture) {
        let guard = within_limit("the lock", fixture.one.mutex("condition/1").lock()).await.unwrap();
        return assert_unsupported(guard.wait(&fixture.one.condition("condition/1")).await);
    }
    for _ in 0..3 {
        waiter_is_notified(fixture, "condition/1").await;
    }
}
