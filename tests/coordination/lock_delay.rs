//! The lock delay: after a loss the lock is not granted for so long, even if its holder is dead; after a
//! release it is granted at once.
//!
//! All bounds are from below: a grant comes no sooner than the law says, on however busy a machine.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use leasehold::backend::{Liveness, LossCause};
use leasehold::{Client, Mutex};

use crate::ground::{Ground, LIMIT, Part, Primitive, TTL, assert_unsupported, not_before, soon};
use crate::player::Victim;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "lock-delay",
    rules: |ground| rules(ground).boxed(),
    parts: &[Part {
        name: "holder",
        steps: 2,
        play: |stage, locks, name| {
            async move {
                let guard = mutex(locks, name).lock().await?;
                stage.at("holds it").await;
                stage.during("releases it", guard.release()).await
            }
            .boxed()
        },
        around: |ground, victim| somebody_dies(ground, victim).boxed(),
    }],
};

const QUIET: Duration = Duration::from_secs(2);

fn mutex(locks: &Client, name: &str) -> Mutex {
    locks.mutex(name).ttl(TTL).lock_delay(QUIET)
}

fn is_carried_by(ground: &Ground) -> bool {
    matches!(ground.one.profile().liveness, Liveness::Lease { .. })
}

async fn somebody_dies(ground: &Ground, victim: Victim) {
    if !is_carried_by(ground) {
        return;
    }
    let mutex = mutex(&ground.one, &victim.name());
    let (begun, died_as_holder) = (Instant::now(), victim.step() == 0);
    victim.dies().await;
    let guard = mutex.try_lock_for(LIMIT).await.unwrap().unwrap();
    if died_as_holder {
        // A store that counts in whole seconds may be early by one, and its holder counts on so much less.
        let coarse = ground.one.profile().granularity;
        not_before("no lock delay after a death", begun, TTL + QUIET - coarse);
    }
    guard.release().await.unwrap();
}

async fn rules(ground: &Ground) {
    let (ours, theirs) = (mutex(&ground.one, "lock-delay/1"), mutex(&ground.two, "lock-delay/1"));
    if !is_carried_by(ground) {
        return assert_unsupported(ours.lock().await);
    }
    let most = Duration::from_millis(200);
    let begun = Instant::now();
    let guard = soon("the first", ours.clone().max_hold(most).lock()).await.unwrap();
    assert_eq!(soon("its end", guard.lost()).await, LossCause::MaxHold);
    // A release after the loss does not end the lock delay.
    assert!(guard.release().await.unwrap_err().is_lost());
    let next = soon("the next", theirs.lock()).await.unwrap();
    not_before("no lock delay after a loss", begun, most + QUIET);
    next.release().await.unwrap();
    let again = ours.try_lock().await.unwrap().expect("after a release it is free at once");
    again.release().await.unwrap();
}
