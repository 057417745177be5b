//! Transfer: a lock goes from one process to another, with no grant in between. Wherever one of the two
//! dies, at most one process holds the lock, and the queue continues.

use futures_util::FutureExt;
use leasehold::{Client, ErrorKind, Fence, Guard, LossCause, TransferToken};

use crate::fixture::{Fixture, LIMIT, LIVING, Part, Primitive, TTL, assert_unsupported, within_limit};
use crate::player::Victim;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "transfer",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[
        Part {
            name: "giver",
            steps: 3,
            play: |stage, locks, name| {
                async move {
                    let mutex = locks.mutex(name).ttl(TTL);
                    let guard = stage.during("locks", mutex.lock()).await?;
                    let token = stage.during("transfers", guard.transfer()).await?;
                    stage.during("leaves the token", leave(locks, name, &token)).await
                }
                .boxed()
            },
            around: |fixture, victim| transferring_process_dies(fixture, victim).boxed(),
        },
        Part {
            name: "taker",
            steps: 3,
            play: |stage, locks, name| {
                async move {
                    let token = stage.during("finds the token", found(locks, name)).await?;
                    let mutex = locks.mutex(name).ttl(TTL);
                    let guard = stage.during("accepts", mutex.accept_transfer(&token)).await?;
                    stage.during("releases", guard.release()).await
                }
                .boxed()
            },
            around: |fixture, victim| accepting_process_dies(fixture, victim).boxed(),
        },
    ],
};

/// Returns `true` if a lock can go to another process here: not if it ends with its holder's process or
/// connection.
fn is_possible(fixture: &Fixture) -> bool {
    fixture.one.mutex("transfer").transferable().is_ok()
}

/// Leaves the token where the other process looks for it.
async fn leave(locks: &Client, name: &str, token: &TransferToken) -> leasehold::Result<()> {
    let register = locks.versioned(name);
    register.update(|_| Some(token.to_string().into_bytes())).await.map(drop)
}

async fn found(locks: &Client, name: &str) -> leasehold::Result<TransferToken> {
    let register = locks.versioned(name);
    let mut seen = register.read().await?;
    while seen.value().is_none() {
        seen = register.changed(&seen, LIVING).await?;
    }
    String::from_utf8_lossy(seen.value().unwrap()).parse()
}

async fn transferring_process_dies(fixture: &Fixture, victim: Victim) {
    if !is_possible(fixture) {
        return;
    }
    let (name, survived) = (victim.name(), victim.survives());
    victim.dies().await;
    let left = fixture.one.versioned(&name).read().await.unwrap();
    assert!(left.value().is_some() || !survived);
    let mutex = fixture.one.mutex(&name).ttl(LIVING);
    let mut last: Option<Fence> = None;
    if left.value().is_some() {
        let token = found(&fixture.one, &name).await.unwrap();
        last = Some(token.fence());
        match mutex.accept_transfer(&token).await {
            Ok(guard) => {
                assert!(guard.fence() > last);
                last = guard.fence();
                others_are_refused(fixture, &name, &token).await;
                guard.release().await.unwrap();
            }
            // The machine was too busy to be in time.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Lost(LossCause::Expired), "{error}"),
        }
    }
    queue_continues(fixture, &name, last).await;
}

async fn accepting_process_dies(fixture: &Fixture, victim: Victim) {
    if !is_possible(fixture) {
        return;
    }
    let (name, step) = (victim.name(), victim.step());
    let dying = tokio::spawn(victim.dies());
    let guard = fixture.one.mutex(&name).ttl(LIVING).lock().await.unwrap();
    let token = guard.transfer().await.unwrap();
    leave(&fixture.one, &name, &token).await.unwrap();
    dying.await.unwrap();
    match fixture.two.mutex(&name).ttl(LIVING).accept_transfer(&token).await {
        Ok(guard) => {
            // Only if the dead process had not begun to.
            assert!(step < 2 && guard.fence() > Some(token.fence()), "step {step}");
            guard.release().await.unwrap();
        }
        Err(error) => assert!(error.is_lost(), "{error}"),
    }
    queue_continues(fixture, &name, Some(token.fence())).await;
}

/// A client that requests the lock is refused, and so is a client with a copy of the token.
async fn others_are_refused(fixture: &Fixture, name: &str, token: &TransferToken) {
    let mutex = fixture.two.mutex(name).ttl(LIVING);
    assert!(mutex.try_lock().await.unwrap().is_none());
    let again = mutex.accept_transfer(token).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Lost(LossCause::Transferred), "{again}");
}

async fn queue_continues(fixture: &Fixture, name: &str, last: Option<Fence>) {
    let guard = fixture.two.mutex(name).ttl(LIVING).try_lock_for(LIMIT).await.unwrap().unwrap();
    assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
    guard.release().await.unwrap();
}

async fn rules(fixture: &Fixture) {
    let name = "transfer/rules";
    let mutex = fixture.one.mutex(name).ttl(LIVING);
    if !is_possible(fixture) {
        assert_unsupported(mutex.clone().transferable());
        let guard = mutex.lock().await.unwrap();
        assert_unsupported(guard.transfer().await);
        // The lock is released, as after every error.
        return fixture.free(name).await;
    }
    let guard = mutex.lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = fixture.two.mutex(name).ttl(LIVING);
        async move { within_limit("the waiter", mutex.lock()).await.unwrap() }
    });
    let mut guards = chain(fixture, name, guard).await;
    assert!(!waiting.is_finished(), "a waiter was granted the lock in between");
    let last = guards.fence();
    guards.check().unwrap();
    // The present holder keeps the lock alive, and its former holders can no longer end it.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    guards.check().unwrap();
    guards =
        fixture.one.mutex(name).ttl(LIVING).accept_transfer(&guards.transfer().await.unwrap()).await.unwrap();
    guards.release().await.unwrap();
    let next = waiting.await.unwrap();
    assert!(next.fence() > last);
    next.release().await.unwrap();
}

/// From one to the other and back, with each token used twice.
async fn chain(fixture: &Fixture, name: &str, mut guard: Guard) -> Guard {
    for (round, locks) in [&fixture.two, &fixture.one, &fixture.two].into_iter().enumerate() {
        let fence = guard.fence();
        let token = guard.transfer().await.unwrap();
        assert_eq!(Some(token.fence()), fence);
        guard = locks.mutex(name).ttl(LIVING).accept_transfer(&token).await.unwrap();
        assert!(guard.fence() > fence, "round {round}");
        let again = fixture.one.mutex(name).accept_transfer(&token).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Lost(LossCause::Transferred), "round {round}: {again}");
    }
    guard
}
