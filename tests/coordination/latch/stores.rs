//! Latches: no waiter passes before the last count, every waiter does after it, and a repeated count is one.

use std::time::Duration;

use futures_util::FutureExt;

use crate::fixture::{Fixture, Part, Primitive, assert_unsupported, within_limit};
use crate::player::Victim;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "latch",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[Part {
        name: "counter",
        steps: 3,
        play: |stage, locks, name| {
            async move {
                stage.at("has not counted").await;
                stage.during("counts", locks.latch(name, 2).count_down_as("the dead one")).await?;
                stage.at("has counted").await;
                Ok(())
            }
            .boxed()
        },
        around: |fixture, victim| somebody_dies(fixture, victim).boxed(),
    }],
};

async fn somebody_dies(fixture: &Fixture, victim: Victim) {
    if !fixture.keeps_values() {
        return;
    }
    let latch = fixture.one.latch(victim.name(), 2);
    victim.dies().await;
    // The program of the dead process is started anew, and does not know whether it had counted.
    latch.count_down_as("the dead one").await.unwrap();
    assert_eq!(latch.remaining().await.unwrap(), 1);
    latch.count_down_as("the living one").await.unwrap();
    within_limit("the latch", latch.wait()).await.unwrap();
    latch.reset().await.unwrap();
}

async fn rules(fixture: &Fixture) {
    let (ours, theirs) = (fixture.one.latch("latch/1", 2), fixture.two.latch("latch/1", 2));
    if !fixture.keeps_values() {
        return assert_unsupported(ours.count_down().await);
    }
    let waiting = tokio::spawn(async move {
        within_limit("the latch", theirs.wait()).await.unwrap();
        theirs
    });
    ours.count_down_as("a").await.unwrap();
    ours.count_down_as("a").await.unwrap();
    assert_eq!(ours.remaining().await.unwrap(), 1);
    assert!(tokio::time::timeout(Duration::from_millis(100), ours.wait()).await.is_err());
    assert!(!waiting.is_finished(), "it passed before the last count");
    ours.count_down_as("b").await.unwrap();
    let theirs = waiting.await.unwrap();
    within_limit("the open latch", theirs.wait()).await.unwrap();
    theirs.reset().await.unwrap();
}
