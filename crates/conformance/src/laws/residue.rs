//! No residue: after `Busy` with ended patience and after a release, nothing of the claim remains.

use std::time::Duration;

use leasehold_core::{Share, Step};

use crate::client::{AT_ONCE, HANG, within};
use crate::clock::{briefly, patience_for};
use crate::not_kept::{Checked, NotKept, ensure};
use crate::random::Random;
use crate::trial::Trial;

pub(crate) async fn contend_without_patience_leaves_no_place(trial: &Trial) -> Checked {
    let resource = trial.resource("look")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    for n in 1..5 {
        trial.client(n).refused(&trial.claim(&resource, Share::MUTEX)?).await?;
        expect_no_waiters(trial, &resource, "after a look at what is held").await?;
    }
    trial.client(0).free(&holder).await?;
    trial.client(1).expect_no_claims(&resource, "after looks and a release").await?;
    let next = trial.claim(&resource, Share::MUTEX)?;
    trial.client(2).hold(&next).await?;
    trial.client(2).free(&next).await
}

pub(crate) async fn an_ended_wait_leaves_no_place(trial: &Trial) -> Checked {
    let resource = trial.resource("ended")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let claim = trial.claim(&resource, Share::MUTEX)?;
    let patience = patience_for(&trial.clock, Duration::from_millis(60));
    loop {
        let ended = patience.is_ended();
        let step = trial.client(1).contend(&claim, &patience).await?;
        ensure!(matches!(step, Step::Busy(_)), "granted although it is held: {step:?}");
        // One that waits by itself returns with nothing left; one that polls needs a last look to know the
        // end.
        if ended || (!trial.polls() && patience.is_ended()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    expect_no_waiters(trial, &resource, "after a wait whose patience ended").await?;
    trial.client(1).gone(&claim, "a wait whose patience ended").await?;
    trial.client(0).free(&holder).await?;
    trial.client(2).expect_no_claims(&resource, "after a wait and a release").await
}

pub(crate) async fn a_released_wait_leaves_no_place(trial: &Trial) -> Checked {
    let resource = trial.resource("released")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let claim = trial.claim(&resource, Share::MUTEX)?;
    trial.client(1).leave_by_release(&claim, 1).await?;
    expect_no_waiters(trial, &resource, "after the release of a waiting claim").await?;
    trial.client(1).gone(&claim, "a waiting claim released before").await?;
    trial.client(0).free(&holder).await?;
    trial.client(2).expect_no_claims(&resource, "after both releases").await
}

pub(crate) async fn two_hundred_cancelled_waits_leave_nothing(trial: &Trial) -> Checked {
    let resource = trial.resource("cancelled")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    cancel_waits(trial, &resource, WAITS).await?;
    expect_no_waiters(trial, &resource, "after two hundred cancelled waits").await?;
    trial.client(0).free(&holder).await?;
    trial.client(1).expect_no_claims(&resource, "after two hundred cancelled waits and a release").await?;
    let next = trial.claim(&resource, Share::MUTEX)?;
    trial.client(2).hold(&next).await?;
    trial.client(2).free(&next).await
}

/// Waits that end at about the time at which their turn comes: granted or not, nothing may be left.
pub(crate) async fn waits_cancelled_while_they_are_granted_leave_nothing(trial: &Trial) -> Checked {
    let resource = trial.resource("raced")?;
    let mut random = Random::new()?;
    for _ in 0..RACES {
        let holder = trial.claim(&resource, Share::MUTEX)?;
        trial.client(0).hold(&holder).await?;
        let waiting = trial.client(1).wait(trial.claim(&resource, Share::MUTEX)?);
        briefly(Duration::from_micros(random.below(2000))).await;
        let claim = waiting.claim.clone();
        trial.race(&holder, &waiting.patience, &mut random).await?;
        match waiting.outcome(AT_ONCE, "a wait that ended").await? {
            Some(_) => trial.client(1).free(&claim).await?,
            None => trial.client(1).gone(&claim, "a wait that ended without a grant").await?,
        }
        trial.client(2).expect_no_claims(&resource, "after a wait cancelled near its grant").await?;
    }
    Ok(())
}

/// When all is over, the names are gone from every listing.
pub(crate) async fn resources_without_claims_are_not_listed(trial: &Trial) -> Checked {
    let client = trial.client(0);
    let mut claims = Vec::new();
    for n in 0..20 {
        let claim = trial.claim(&trial.resource(&format!("idle/{n}"))?, Share::MUTEX)?;
        client.hold(&claim).await?;
        claims.push(claim);
    }
    for claim in &claims {
        client.free(claim).await?;
    }
    let listed = within(HANG, "list", client.backend.list(trial.prefix(), None, 1000)).await??;
    ensure!(listed.is_empty(), "listed although everything is released: {listed:?}");
    Ok(())
}

/// Ends waits at random moments, a few at a time.
async fn cancel_waits(trial: &Trial, resource: &leasehold_core::Resource, waits: usize) -> Checked {
    let mut tasks = Vec::new();
    for n in 0..TOGETHER {
        let client = trial.client(n).clone();
        let template = trial.claim(resource, Share::MUTEX)?;
        tasks.push(tokio::spawn(async move {
            let mut random = Random::new()?;
            for _ in 0..waits / TOGETHER {
                let claim = template.clone().id(crate::random::id()?);
                let patience = patience_for(&client.clock, Duration::from_micros(random.below(20_000)));
                let taken = client.take(&claim, &patience).await?;
                ensure!(taken.is_none(), "granted although it is held: {taken:?}");
            }
            Ok::<(), NotKept>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn expect_no_waiters(trial: &Trial, resource: &leasehold_core::Resource, why: &str) -> Checked {
    let seen = trial.client(3).look(resource).await?;
    ensure!(seen.waiting.is_empty(), "{why}: still waiting are {:?}", seen.waiting);
    let listed = within(HANG, "list", trial.client(3).backend.list(resource.as_str(), None, 10)).await??;
    let waiting =
        listed.iter().find(|summary| summary.resource == *resource).map_or(0, |found| found.waiting);
    ensure!(waiting == 0, "{why}: {waiting} are listed as waiting");
    Ok(())
}

const WAITS: usize = 200;
const TOGETHER: usize = 20;
const RACES: usize = 60;
