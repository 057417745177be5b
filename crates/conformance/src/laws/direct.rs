//! Direct requests: what a caller asks by itself counts like any other request, and may be left at any time.

use std::time::Duration;

use leasehold_core::{Claim, DirectAnswer, DirectRelease, DirectReply, Grant, Moment, Release};

use super::fast_path::{Call, FastPath, counts_like_any_other, passes_no_queue};
use crate::client::{HANG, TestClient, within};
use crate::not_kept::{Checked, NotKept};
use crate::trial::Trial;

const DIRECTLY: FastPath = FastPath { name: "directly", ask, release, release_again };

pub(crate) async fn a_direct_request_counts_like_any_other(trial: &Trial) -> Checked {
    counts_like_any_other(trial, &DIRECTLY).await
}

pub(crate) async fn what_is_left_of_a_dropped_answer_can_be_released(trial: &Trial) -> Checked {
    let (first, second) = (trial.client(0), trial.client(1));
    for share in trial.exclusive_shares()? {
        let resource = trial.resource(&format!("dropped/{share}"))?;
        for _ in 0..ROUNDS {
            let claim = trial.claim(&resource, share)?;
            drop(sent(first, &claim, trial.clock.now())?);
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

pub(crate) async fn a_direct_release_needs_no_caller_that_waits_for_it(trial: &Trial) -> Checked {
    let (first, second) = (trial.client(0), trial.client(1));
    for share in trial.exclusive_shares()? {
        let resource = trial.resource(&format!("left/{share}"))?;
        // What a store has to learn at the first release does not count.
        let before = trial.claim(&resource, share)?;
        first.hold(&before).await?;
        first.free(&before).await?;
        for _ in 0..ROUNDS {
            let claim = trial.claim(&resource, share)?;
            first.hold(&claim).await?;
            let answer = released(first, &claim).ok_or_else(none)?;
            // It is sent by itself, but nothing says when: the store may be busy.
            let limit = trial.clock.now().after(HANG);
            let why = "after a direct release whose answer nobody waits for";
            while let Err(left) = second.expect_no_claims(&resource, why).await {
                if trial.clock.now() >= limit {
                    return Err(left);
                }
                tokio::time::sleep(PAUSE).await;
            }
            drop(answer);
            first.gone(&claim, "after a direct release").await?;
        }
    }
    Ok(())
}

pub(crate) async fn no_direct_request_passes_the_queue(trial: &Trial) -> Checked {
    passes_no_queue(trial, &DIRECTLY).await
}

fn ask<'a>(
    trial: &'a Trial,
    client: &'a TestClient,
    claim: &'a Claim,
    asked_at: Moment,
) -> Call<'a, Option<Grant>> {
    Box::pin(async move {
        match within(trial.overdue(), "a direct request", sent(client, claim, asked_at)?).await? {
            DirectReply::Granted(grant) => Ok(Some(grant)),
            DirectReply::Busy { .. } | DirectReply::Declined => Ok(None),
            DirectReply::Unknown => Err(NotKept::late("a direct request was not answered")),
        }
    })
}

fn release<'a>(client: &'a TestClient, claim: &'a Claim) -> Call<'a, ()> {
    Box::pin(async {
        let Some(answer) = released(client, claim) else { return client.free(claim).await };
        match within(HANG, "a direct release", answer).await? {
            Release::Freed => Ok(()),
            Release::Unknown(failure) => Err(failure.into()),
            other => Err(NotKept::broken(format!("a direct release must answer Freed, not {other:?}"))),
        }
    })
}

fn release_again<'a>(client: &'a TestClient, claim: &'a Claim) -> Call<'a, ()> {
    Box::pin(client.gone(claim, "after its release"))
}

fn sent(client: &TestClient, claim: &Claim, asked_at: Moment) -> Checked<DirectAnswer> {
    let asked = client.backend.direct_requests().and_then(|requests| requests.ask_directly(claim, asked_at));
    asked.ok_or_else(none)
}

fn released(client: &TestClient, claim: &Claim) -> Option<DirectRelease> {
    client.backend.direct_requests()?.release_directly(claim)
}

fn none() -> NotKept {
    NotKept::OptedOut("it sends no request on the thread of the caller".to_owned())
}

const ROUNDS: usize = 5;
const LATE: Duration = Duration::from_millis(30);
const PAUSE: Duration = Duration::from_millis(10);
