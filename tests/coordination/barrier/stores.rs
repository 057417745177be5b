//! Barriers: no client passes early, and the death of a waiter is reported to the others.

use std::time::Duration;

use futures_util::FutureExt;
use leasehold::{Barrier, Client, ErrorKind, LockSupport};

use crate::fixture::{Fixture, LIMIT, LIVING, Part, Primitive, assert_unsupported, within_limit};
use crate::player::Victim;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "barrier",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[Part {
        name: "party",
        steps: 2,
        play: |stage, locks, name| {
            async move {
                stage.at("has not arrived").await;
                stage.during("waits for the others", barrier(locks, name, stage.ttl()).wait()).await?;
                Ok(())
            }
            .boxed()
        },
        around: |fixture, victim| somebody_dies(fixture, victim).boxed(),
    }],
};

fn barrier(locks: &Client, name: &str, ttl: Duration) -> Barrier {
    locks.barrier(name, 3).ttl(ttl)
}

fn is_carried_by(fixture: &Fixture) -> bool {
    fixture.keeps_values() && fixture.admits(LockSupport::SharedExclusive)
}

async fn somebody_dies(fixture: &Fixture, victim: Victim) {
    if !is_carried_by(fixture) {
        return;
    }
    let (one, two) =
        (barrier(&fixture.one, &victim.name(), LIVING), barrier(&fixture.two, &victim.name(), LIVING));
    match victim.step() {
        0 => {
            victim.dies().await;
            // The process never arrived, so no client can know that it is dead.
            let alone = one.wait_for(Duration::from_millis(500)).await.unwrap_err();
            assert_eq!(alone.kind(), ErrorKind::Timeout);
        }
        1 => {
            let dying = victim.reaches_its_end().await;
            let arrived = async {
                while one.arrived().await.unwrap() == 0 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            within_limit("the process arrives", arrived).await;
            dying.killed().await;
            let error = one.wait_for(LIMIT).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
        }
        _ => {
            let (first, second, ()) = tokio::join!(one.wait_for(LIMIT), two.wait_for(LIMIT), victim.dies());
            assert_eq!(first.unwrap().generation, second.unwrap().generation);
            return;
        }
    }
    assert!(two.is_broken().await.unwrap());
    two.reset().await.unwrap();
    assert!(!one.is_broken().await.unwrap());
}

async fn rules(fixture: &Fixture) {
    let (ours, theirs) = (fixture.one.barrier("barrier/1", 2), fixture.two.barrier("barrier/1", 2));
    if !is_carried_by(fixture) {
        return assert_unsupported(ours.wait().await);
    }
    for _ in 0..2 {
        let early = tokio::spawn({
            let ours = ours.clone();
            async move { within_limit("the other", ours.wait()).await.unwrap() }
        });
        let arrived = async {
            while theirs.arrived().await.unwrap() == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within_limit("one arrives", arrived).await;
        assert!(!early.is_finished(), "it passed before the other arrived");
        let last = within_limit("the first", theirs.wait()).await.unwrap();
        let first = early.await.unwrap();
        assert_eq!(first.generation, last.generation);
        assert!(last.is_leader() && !first.is_leader());
    }
}
