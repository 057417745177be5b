//! The lock delay: after a loss the lock is not granted for so long, even if its holder is dead; after a
//! release it is granted at once.
//!
//! All bounds are from below: a grant comes no sooner than the law says, on however busy a machine.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use leasehold::backend::{Liveness, LossCause};
use leasehold::{Client, Mutex};

use crate::fixture::{Fixture, LIMIT, Part, Primitive, TTL, assert_unsupported, not_before, within_limit};
use crate::player::Victim;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "lock-delay",
    rules: |fixture| rules(fixture).boxed(),
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
        around: |fixture, victim| somebody_dies(fixture, victim).boxed(),
    }],
};

const LOCK_DELAY: Duration = Duration::from_secs(2);

fn mutex(locks: &Client, name: &str) -> Mutex {
    locks.mutex(name).ttl(TTL).lock_delay(LOCK_DELAY)
}

fn is_carried_by(fixture: &Fixture) -> bool {
    matches!(fixture.one.profile().liveness, Liveness::Lease { .. })
}

async fn somebody_dies(fixture: &Fixture, victim: Victim) {
    if !is_carried_by(fixture) {
        return;
    }
    let mutex = mutex(&fixture.one, &victim.name());
    let (begun, died_as_holder) = (Instant::now(), victim.step() == 0);
    victim.dies().await;
    let guard = mutex.try_lock_for(LIMIT).await.unwrap().unwrap();
    if died_as_holder {
        // A store that counts in whole seconds may be early by one, and its holder counts on so much less.
        let coarse = fixture.one.profile().granularity;
        not_before("no lock delay after a death", begun, TTL + LOCK_DELAY - coarse);
    }
    guard.release().await.unwrap();
}

async fn rules(fixture: &Fixture) {
    let (ours, theirs) = (mutex(&fixture.one, "lock-delay/1"), mutex(&fixture.two, "lock-delay/1"));
    if !is_carried_by(fixture) {
        return assert_unsupported(ours.lock().await);
    }
    let most = Duration::from_millis(200);
    let begun = Instant::now();
    let guard = within_limit("the first", ours.clone().max_hold(most).lock()).await.unwrap();
    assert_eq!(within_limit("its end", guard.lost()).await, LossCause::MaxHold);
    // A release after the loss does not end the lock delay.
    assert!(guard.release().await.unwrap_err().is_lost());
    let next = within_limit("the next", theirs.lock()).await.unwrap();
    not_before("no lock delay after a loss", begun, most + LOCK_DELAY);
    next.release().await.unwrap();
    let again = ours.try_lock().await.unwrap().expect("after a release it is free at once");
    again.release().await.unwrap();
}
