//! Direct requests: what a caller asks by itself counts like any other request, and may be left at any time.

use std::time::Duration;

use leasehold_core::{Claim, DirectAnswer, DirectReply, Grant, Moment, Renewal, Share};

use crate::client::{TestClient, within};
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

pub(crate) async fn a_direct_request_counts_like_any_other(trial: &Trial) -> Checked {
    let (first, second) = (trial.client(0), trial.client(1));
    for share in trial.exclusive_shares()? {
        let resource = trial.resource(&format!("counts/{share}"))?;
        let mut last = None;
        for _ in 0..ROUNDS {
            let before = trial.claim(&resource, share)?;
            let long = first.hold(&before).await?;
            let refused = trial.claim(&resource, share)?;
            let granted = granted(trial, second, &refused).await?;
            ensure!(granted.is_none(), "{share}: granted {granted:?}, although it is held");
            first.free(&before).await?;
            second.expect_no_claims(&resource, "after a direct request that was refused").await?;

            let claim = trial.claim(&resource, share)?;
            let asked_at = trial.clock.now();
            let Some(grant) = granted_at(trial, first, &claim, asked_at).await? else {
                first.expect_no_claims(&resource, "after a direct request that was declined").await?;
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
            first.free(&claim).await?;
            let next = waiting.claim.clone();
            waiting.granted(trial.overdue(), "after the release of what was requested directly").await?;
            second.free(&next).await?;
            second.expect_no_claims(&resource, "after all releases").await?;
        }
    }
    Ok(())
}

pub(crate) async fn what_is_left_of_a_dropped_answer_can_be_released(trial: &Trial) -> Checked {
    let (first, second) = (trial.client(0), trial.client(1));
    for share in trial.exclusive_shares()? {
        let resource = trial.resource(&format!("dropped/{share}"))?;
        for _ in 0..ROUNDS {
            let claim = trial.claim(&resource, share)?;
            drop(ask(first, &claim, trial.clock.now())?);
            first.end(&claim).await?;
            // Long enough for a request that comes behind its release.
            tokio::time::sleep(LATE).await;
            second
                .expect_no_claims(&resource, "after the release of a claim whose answer was dropped")
                .await?;
            let next = trial.claim(&resource, share)?;
            second.hold(&next).await?;
            second.free(&next).await?;
        }
    }
    Ok(())
}

pub(crate) async fn no_direct_request_passes_the_queue(trial: &Trial) -> Checked {
    trial.needs_fifo()?;
    let (all, one) = (Share::permits(3, 3)?, Share::permits(1, 3)?);
    trial.needs_share(all)?;
    let (first, second) = (trial.client(0), trial.client(1));
    let resource = trial.resource("queue")?;
    let holder = trial.claim(&resource, one)?;
    first.hold(&holder).await?;
    let waiting = second.wait(trial.claim(&resource, all)?);
    second.wait_until_queued(&resource, 1).await?;
    let late = trial.claim(&resource, one)?;
    let passed = granted(trial, first, &late).await?;
    ensure!(passed.is_none(), "granted {passed:?}, ahead of a claim for everything that waits");
    first.free(&holder).await?;
    let next = waiting.claim.clone();
    waiting.granted(trial.overdue(), "after the release of what was in its way").await?;
    second.free(&next).await
}

async fn granted(trial: &Trial, client: &TestClient, claim: &Claim) -> Checked<Option<Grant>> {
    granted_at(trial, client, claim, trial.clock.now()).await
}

async fn granted_at(
    trial: &Trial,
    client: &TestClient,
    claim: &Claim,
    asked_at: Moment,
) -> Checked<Option<Grant>> {
    let answer = ask(client, claim, asked_at)?;
    match within(trial.overdue(), "a direct request", answer).await? {
        DirectReply::Granted(grant) => Ok(Some(grant)),
        DirectReply::Busy { .. } | DirectReply::Declined => Ok(None),
        DirectReply::Unknown => Err(NotKept::broken("a direct request was not answered")),
    }
}

fn ask(client: &TestClient, claim: &Claim, asked_at: Moment) -> Checked<DirectAnswer> {
    let none = || NotKept::OptedOut("it sends no request on the thread of the caller".to_owned());
    let asked = client.backend.direct_requests().and_then(|requests| requests.ask_directly(claim, asked_at));
    asked.ok_or_else(none)
}

const ROUNDS: usize = 5;
const LATE: Duration = Duration::from_millis(30);
