//! Rate limits: never more grants in any period, by the clock of the store, even if the processes that
//! used it up are dead.
//!
//! All bounds are from below: a grant comes no sooner than the law says, on however busy a machine.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use leasehold::backend::Liveness;
use leasehold::{ErrorKind, LockSupport};

use crate::fixture::{Fixture, Part, Primitive, assert_unsupported, not_before, within_limit};
use crate::player::Victim;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "rate",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[Part {
        name: "user",
        steps: 2,
        play: |stage, locks, name| {
            async move {
                let rate = locks.rate_limit(name, 2, PERIOD);
                stage.during("uses it up", rate.acquire_many(2)).await?;
                stage.at("has used it up").await;
                Ok(())
            }
            .boxed()
        },
        around: |fixture, victim| somebody_dies(fixture, victim).boxed(),
    }],
};

const PERIOD: Duration = Duration::from_secs(3);

fn is_carried_by(fixture: &Fixture) -> bool {
    let has_leases = matches!(fixture.one.profile().liveness, Liveness::Lease { .. });
    has_leases && fixture.admits(LockSupport::Counted)
}

async fn somebody_dies(fixture: &Fixture, victim: Victim) {
    if !is_carried_by(fixture) {
        return;
    }
    let rate = fixture.one.rate_limit(victim.name(), 2, PERIOD);
    let (begun, has_used_it_up) = (Instant::now(), victim.step() > 0);
    victim.dies().await;
    within_limit("the rate", rate.acquire_many(2)).await.unwrap();
    if has_used_it_up {
        not_before("the death of the process gave it back", begun, PERIOD);
    }
}

async fn rules(fixture: &Fixture) {
    let (ours, theirs) =
        (fixture.one.rate_limit("rate/1", 2, PERIOD), fixture.two.rate_limit("rate/1", 2, PERIOD));
    if !is_carried_by(fixture) {
        assert_unsupported(ours.acquire().await);
        return assert_unsupported(ours.try_acquire().await);
    }
    assert_eq!(ours.acquire_many(3).await.unwrap_err().kind(), ErrorKind::Invalid);
    let begun = Instant::now();
    for granted in 1..=5_u32 {
        let rate = if granted % 2 == 0 { &ours } else { &theirs };
        within_limit("the rate", rate.acquire()).await.unwrap();
        // The first two come at once, and each later one a period after the one before the last.
        not_before("more than two in one period", begun, PERIOD * ((granted - 1) / 2));
    }
}
