//! At once: what a store decides on the thread of the caller, it decides as on the slow path.

use std::future::ready;

use leasehold_core::{AtOnce, Claim, DirectReply, Grant, Moment, Release};

use super::fast_path::{Call, FastPath, counts_like_any_other, passes_no_queue};
use crate::client::TestClient;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

const AT_ONCE: FastPath = FastPath { name: "at once", ask, release, release_again };

pub(crate) async fn a_decision_at_once_counts_like_any_other(trial: &Trial) -> Checked {
    counts_like_any_other(trial, &AT_ONCE).await
}

pub(crate) async fn no_decision_at_once_passes_the_queue(trial: &Trial) -> Checked {
    trial.needs_fifo()?;
    at_once(trial.client(0))?;
    passes_no_queue(trial, &AT_ONCE).await
}

fn ask<'a>(
    _trial: &'a Trial,
    client: &'a TestClient,
    claim: &'a Claim,
    asked_at: Moment,
) -> Call<'a, Option<Grant>> {
    Box::pin(ready(at_once(client).and_then(|store| match store.grant_now(claim, asked_at) {
        DirectReply::Granted(grant) => Ok(Some(grant)),
        DirectReply::Busy { .. } | DirectReply::Declined => Ok(None),
        DirectReply::Unknown => Err(NotKept::late("it does not know whether it granted a claim")),
    })))
}

fn release<'a>(client: &'a TestClient, claim: &'a Claim) -> Call<'a, ()> {
    Box::pin(async move {
        match at_once(client)?.release_now(claim) {
            Some(Release::Freed) => Ok(()),
            Some(Release::Unknown(failure)) => Err(failure.into()),
            Some(other) => Err(NotKept::broken(format!("{}: its release answered {other:?}", claim.share))),
            None => client.free(claim).await,
        }
    })
}

fn release_again<'a>(client: &'a TestClient, claim: &'a Claim) -> Call<'a, ()> {
    Box::pin(async move {
        let again = at_once(client)?.release_now(claim);
        ensure!(!matches!(again, Some(Release::Freed)), "it was released twice");
        Ok(())
    })
}

fn at_once(client: &TestClient) -> Checked<&dyn AtOnce> {
    let none = || NotKept::OptedOut("it decides nothing on the thread of the caller".to_owned());
    client.backend.at_once().ok_or_else(none)
}
