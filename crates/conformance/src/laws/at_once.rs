//! At once: what a store decides on the thread of the caller, it decides as it does the longer way.

use leasehold_core::{AtOnce, Release, Renewal, Share};

use crate::client::TestClient;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

pub(crate) async fn a_decision_at_once_counts_like_any_other(trial: &Trial) -> Checked {
    let (first, second) = (trial.client(0), trial.client(1));
    for share in trial.exclusive_shares()? {
        let resource = trial.resource(&format!("counts/{share}"))?;
        let mut last = None;
        for _ in 0..ROUNDS {
            let before = trial.claim(&resource, share)?;
            let long = first.hold(&before).await?;
            let declined = trial.claim(&resource, share)?;
            let granted = at_once(second)?.grant_now(&declined, trial.clock.now());
            ensure!(granted.is_none(), "{share}: granted at once, {granted:?}, although it is held");
            first.free(&before).await?;
            second.expect_no_claims(&resource, "after a claim that was declined at once").await?;

            let claim = trial.claim(&resource, share)?;
            let asked_at = trial.clock.now();
            let Some(grant) = at_once(first)?.grant_now(&claim, asked_at) else {
                first.expect_no_claims(&resource, "after a claim that was declined at once").await?;
                continue;
            };
            ensure!(grant.asked_at == asked_at, "it counts from {:?}, not {asked_at:?}", grant.asked_at);
            ensure!(
                grant.fence.is_none() || (grant.fence > long.fence && grant.fence > last),
                "{share}: the fence {:?} after {:?}",
                grant.fence,
                long.fence
            );
            last = grant.fence;
            second.refused(&trial.claim(&resource, share)?).await?;
            let again = first.hold(&claim).await?;
            ensure!(again.fence == grant.fence, "asked again, {:?} became {:?}", grant.fence, again.fence);
            let renewed = first.renew(&claim, &grant.proof).await?;
            ensure!(matches!(renewed, Renewal::Renewed | Renewal::Alive), "its renewal answered {renewed:?}");

            let waiting = second.wait(trial.claim(&resource, share)?);
            second.wait_until_queued(&resource, 1).await?;
            match at_once(first)?.release_now(&claim) {
                Some(Release::Freed) => {}
                Some(other) => {
                    return Err(NotKept::broken(format!("{share}: its release answered {other:?}")));
                }
                None => first.free(&claim).await?,
            }
            let next = waiting.claim.clone();
            waiting.granted(trial.overdue(), "after a release at once").await?;
            let again = at_once(first)?.release_now(&claim);
            ensure!(!matches!(again, Some(Release::Freed)), "it was released twice");
            second.free(&next).await?;
            second.expect_no_claims(&resource, "after all releases").await?;
        }
    }
    Ok(())
}

pub(crate) async fn no_decision_at_once_passes_the_queue(trial: &Trial) -> Checked {
    trial.needs_fifo()?;
    let (all, one) = (Share::permits(3, 3)?, Share::permits(1, 3)?);
    trial.needs_share(all)?;
    let (first, second) = (trial.client(0), trial.client(1));
    at_once(first)?;
    let resource = trial.resource("queue")?;
    let holder = trial.claim(&resource, one)?;
    first.hold(&holder).await?;
    let waiting = second.wait(trial.claim(&resource, all)?);
    second.wait_until_queued(&resource, 1).await?;
    let late = trial.claim(&resource, one)?;
    let passed = at_once(first)?.grant_now(&late, trial.clock.now());
    ensure!(passed.is_none(), "granted at once, {passed:?}, ahead of a claim for everything that waits");
    first.free(&holder).await?;
    let next = waiting.claim.clone();
    waiting.granted(trial.overdue(), "after the release of what was in its way").await?;
    second.free(&next).await
}

fn at_once(client: &TestClient) -> Checked<&dyn AtOnce> {
    let none = || NotKept::OptedOut("it decides nothing on the thread of the caller".to_owned());
    client.backend.at_once().ok_or_else(none)
}

const ROUNDS: usize = 5;
