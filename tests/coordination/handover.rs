//! Hand-over: a lock goes from one process to another, with no grant in between. Wherever one of the two
//! dies, at most one process holds the lock, and the queue continues.

use futures_util::FutureExt;
use leasehold::{Client, ErrorKind, Fence, Guard, LossCause, TransferToken};

use crate::ground::{Ground, LIMIT, LIVING, Part, Primitive, TTL, assert_unsupported, soon};
use crate::player::Victim;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "handover",
    rules: |ground| rules(ground).boxed(),
    parts: &[
        Part {
            name: "giver",
            steps: 3,
            play: |stage, locks, name| {
                async move {
                    let mutex = locks.mutex(name).ttl(TTL);
                    let guard = stage.during("locks", mutex.lock()).await?;
                    let handover = stage.during("hands off", guard.transfer()).await?;
                    stage.during("leaves the token", leave(locks, name, &handover)).await
                }
                .boxed()
            },
            around: |ground, victim| a_giver_dies(ground, victim).boxed(),
        },
        Part {
            name: "taker",
            steps: 3,
            play: |stage, locks, name| {
                async move {
                    let handover = stage.during("finds the token", found(locks, name)).await?;
                    let mutex = locks.mutex(name).ttl(TTL);
                    let guard = stage.during("takes over", mutex.accept_transfer(&handover)).await?;
                    stage.during("releases", guard.release()).await
                }
                .boxed()
            },
            around: |ground, victim| a_taker_dies(ground, victim).boxed(),
        },
    ],
};

/// Returns `true` if a lock can go to another process here: not if it ends with its holder's process or
/// connection.
fn is_possible(ground: &Ground) -> bool {
    ground.one.mutex("handover").transferable().is_ok()
}

/// Leaves the token where the other process looks for it.
async fn leave(locks: &Client, name: &str, handover: &TransferToken) -> leasehold::Result<()> {
    let token = locks.versioned(name);
    token.update(|_| Some(handover.to_string().into_bytes())).await.map(drop)
}

async fn found(locks: &Client, name: &str) -> leasehold::Result<TransferToken> {
    let token = locks.versioned(name);
    let mut seen = token.read().await?;
    while seen.value().is_none() {
        seen = token.changed(&seen, LIVING).await?;
    }
    String::from_utf8_lossy(seen.value().unwrap()).parse()
}

async fn a_giver_dies(ground: &Ground, victim: Victim) {
    if !is_possible(ground) {
        return;
    }
    let (name, came_through) = (victim.name(), victim.comes_through());
    victim.dies().await;
    let left = ground.one.versioned(&name).read().await.unwrap();
    assert!(left.value().is_some() || !came_through);
    let mutex = ground.one.mutex(&name).ttl(LIVING);
    let mut last: Option<Fence> = None;
    if left.value().is_some() {
        let handover = found(&ground.one, &name).await.unwrap();
        last = Some(handover.fence());
        match mutex.accept_transfer(&handover).await {
            Ok(guard) => {
                assert!(guard.fence() > last);
                last = guard.fence();
                nobody_else(ground, &name, &handover).await;
                guard.release().await.unwrap();
            }
            // The machine was too busy to be in time.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Lost(LossCause::Expired), "{error}"),
        }
    }
    the_line_goes_on(ground, &name, last).await;
}

async fn a_taker_dies(ground: &Ground, victim: Victim) {
    if !is_possible(ground) {
        return;
    }
    let (name, step) = (victim.name(), victim.step());
    let dying = tokio::spawn(victim.dies());
    let guard = ground.one.mutex(&name).ttl(LIVING).lock().await.unwrap();
    let handover = guard.transfer().await.unwrap();
    leave(&ground.one, &name, &handover).await.unwrap();
    dying.await.unwrap();
    match ground.two.mutex(&name).ttl(LIVING).accept_transfer(&handover).await {
        Ok(guard) => {
            // Only if the dead process had not begun to.
            assert!(step < 2 && guard.fence() > Some(handover.fence()), "step {step}");
            guard.release().await.unwrap();
        }
        Err(error) => assert!(error.is_lost(), "{error}"),
    }
    the_line_goes_on(ground, &name, Some(handover.fence())).await;
}

/// A client that requests the lock is refused, and so is a client with a copy of the token.
async fn nobody_else(ground: &Ground, name: &str, handover: &TransferToken) {
    let mutex = ground.two.mutex(name).ttl(LIVING);
    assert!(mutex.try_lock().await.unwrap().is_none());
    let again = mutex.accept_transfer(handover).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Lost(LossCause::Transferred), "{again}");
}

async fn the_line_goes_on(ground: &Ground, name: &str, last: Option<Fence>) {
    let guard = ground.two.mutex(name).ttl(LIVING).try_lock_for(LIMIT).await.unwrap().unwrap();
    assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
    guard.release().await.unwrap();
}

async fn rules(ground: &Ground) {
    let name = "handover/rules";
    let mutex = ground.one.mutex(name).ttl(LIVING);
    if !is_possible(ground) {
        assert_unsupported(mutex.clone().transferable());
        let guard = mutex.lock().await.unwrap();
        assert_unsupported(guard.transfer().await);
        // The lock is released, as after every error.
        return ground.free(name).await;
    }
    let guard = mutex.lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = ground.two.mutex(name).ttl(LIVING);
        async move { soon("the waiter", mutex.lock()).await.unwrap() }
    });
    let mut guards = chain(ground, name, guard).await;
    assert!(!waiting.is_finished(), "a waiter was granted the lock in between");
    let last = guards.fence();
    guards.check().unwrap();
    // The present holder keeps the lock alive, and its former holders can no longer end it.
    tokio::time::sleep(LIVING / 8).await;
    guards.check().unwrap();
    guards =
        ground.one.mutex(name).ttl(LIVING).accept_transfer(&guards.transfer().await.unwrap()).await.unwrap();
    guards.release().await.unwrap();
    let next = waiting.await.unwrap();
    assert!(next.fence() > last);
    next.release().await.unwrap();
}

/// From one to the other and back, with each token used twice.
async fn chain(ground: &Ground, name: &str, mut guard: Guard) -> Guard {
    for (round, locks) in [&ground.two, &ground.one, &ground.two].into_iter().enumerate() {
        let fence = guard.fence();
        let handover = guard.transfer().await.unwrap();
        assert_eq!(Some(handover.fence()), fence);
        guard = locks.mutex(name).ttl(LIVING).accept_transfer(&handover).await.unwrap();
        assert!(guard.fence() > fence, "round {round}");
        let again = ground.one.mutex(name).accept_transfer(&handover).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Lost(LossCause::Transferred), "round {round}: {again}");
    }
    guard
}
