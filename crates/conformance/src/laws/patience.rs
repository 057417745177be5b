//! Patience: a wait ends with its patience, and a grant within it is reported as one.

use std::time::Duration;

use leasehold_core::{Patience, Share};

use crate::client::{AT_ONCE, HANG};
use crate::clock::patience_for;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

pub(crate) async fn ended_patience_means_one_attempt(trial: &Trial) -> Checked {
    for share in trial.exclusive_shares()? {
        let resource = trial.resource(&format!("look/{share}"))?;
        let holder = trial.claim(&resource, share)?;
        trial.client(0).hold(&holder).await?;
        for n in 1..4 {
            let began = trial.clock.now();
            trial.client(n).refused(&trial.claim(&resource, share)?).await?;
            prompt(trial.clock.now().since(began), "a look at what is held")?;
        }
        trial.client(0).free(&holder).await?;
        // A look is a real one: a free lock is granted although the patience has ended.
        let next = trial.claim(&resource, share)?;
        trial.client(1).hold(&next).await?;
        trial.client(1).free(&next).await?;
    }
    Ok(())
}

pub(crate) async fn wait_returns_when_patience_ends(trial: &Trial) -> Checked {
    let resource = trial.resource("ends")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    for n in 0..6u64 {
        let claim = trial.claim(&resource, Share::MUTEX)?;
        // Once by the deadline, once by a caller that does not want it any more.
        let wait = Duration::from_millis(20 + 30 * n);
        let began = trial.clock.now();
        let patience = match n % 2 {
            0 => patience_for(&trial.clock, wait),
            _ => Patience::unlimited(trial.clock.clone()),
        };
        let waiting = trial.client(1).wait_with(claim, patience.clone());
        tokio::time::sleep(wait).await;
        let ended_at = trial.clock.now();
        patience.end();
        let taken = waiting.outcome(HANG, "a wait whose patience ended").await?;
        ensure!(taken.is_none(), "granted although it is held: {taken:?}");
        prompt(trial.clock.now().since(ended_at), "a wait whose patience ended")?;
        ensure!(trial.clock.now().since(began) >= wait, "a wait came back before its patience ended");
    }
    trial.client(0).free(&holder).await
}

pub(crate) async fn fifty_waits_return_together(trial: &Trial) -> Checked {
    let resource = trial.resource("fifty")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let patience = Patience::unlimited(trial.clock.clone());
    let mut waits = Vec::new();
    for n in 0..WAITS {
        let claim = trial.claim(&resource, Share::MUTEX)?;
        waits.push(trial.client(n).wait_with(claim, patience.clone()));
    }
    trial.client(0).wait_until_queued(&resource, WAITS).await?;
    let ended_at = trial.clock.now();
    patience.end();
    for waiting in waits {
        let taken = waiting.outcome(HANG, "one of fifty waits").await?;
        ensure!(taken.is_none(), "granted although it is held: {taken:?}");
    }
    let took = trial.clock.now().since(ended_at);
    if took > AT_ONCE {
        return Err(NotKept::late(format!("fifty waits came back {took:?} after their patience ended")));
    }
    trial.client(0).free(&holder).await?;
    trial.client(1).expect_no_claims(&resource, "after fifty waits").await
}

/// A wait whose turn comes is granted before its patience ends, and says so.
pub(crate) async fn a_grant_in_time_is_reported(trial: &Trial) -> Checked {
    let resource = trial.resource("intime")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let before = trial.clock.now();
    let claim = trial.claim(&resource, Share::MUTEX)?;
    let waiting = trial.client(1).wait(claim.clone());
    trial.client(1).wait_until_queued(&resource, 1).await?;
    trial.client(0).free(&holder).await?;
    let taken = waiting.granted(HANG, "after the release").await?;
    // Validity is counted from there: a moment too late would count a lease as longer than it is.
    let asked_at = taken.grant.asked_at;
    ensure!(
        asked_at >= before && asked_at <= taken.at,
        "asked at {asked_at:?}, not {before:?}..{:?}",
        taken.at
    );
    let seen = trial.client(2).look(&resource).await?;
    ensure!(
        seen.holders.iter().any(|holder| holder.id == claim.id),
        "granted, and held by {:?}",
        seen.holders
    );
    trial.client(1).free(&claim).await
}

fn prompt(took: Duration, what: &str) -> Checked {
    if took > AT_ONCE {
        return Err(NotKept::late(format!("{what} came back after {took:?}")));
    }
    Ok(())
}

const WAITS: usize = 50;
