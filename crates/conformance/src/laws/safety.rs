//! Safety: the weights of live granted claims never exceed the capacity.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Patience, Resource, Share};

use crate::client::TestClient;
use crate::clock::patience_for;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::random::Random;
use crate::referee::Referee;
use crate::trial::Trial;

pub(crate) async fn one_holder_among_many_takers(trial: &Trial) -> Checked {
    for share in trial.exclusive_shares()? {
        let (_, most) = storm(trial, &[share]).await?;
        ensure!(most == 1, "{most} claims of {share} were held together");
    }
    Ok(())
}

pub(crate) async fn writers_of_different_shares_exclude_each_other(trial: &Trial) -> Checked {
    let shares = trial.exclusive_shares()?;
    let (_, most) = storm(trial, &shares).await?;
    ensure!(most == 1, "{most} exclusive claims of {shares:?} were held together");
    Ok(())
}

pub(crate) async fn permits_of_several_weights(trial: &Trial) -> Checked {
    trial.needs_share(Share::permits(1, 3)?)?;
    let shares = [Share::permits(1, 3)?, Share::permits(2, 3)?, Share::permits(3, 3)?];
    let can: Vec<Share> = shares.into_iter().filter(|share| trial.profile().admits(*share).is_ok()).collect();
    storm(trial, &can).await?;
    Ok(())
}

pub(crate) async fn readers_and_writers(trial: &Trial) -> Checked {
    trial.needs_share(Share::READER)?;
    storm(trial, &[Share::READER, Share::READER, Share::READER, Share::WRITER]).await?;
    Ok(())
}

pub(crate) async fn the_smallest_capacity_counts(trial: &Trial) -> Checked {
    // Where permits are taken one by one, all claims of one name have one capacity.
    trial.needs_share(Share::permits(2, 3)?)?;
    let mixed = [
        Share::permits(1, 5)?,
        Share::permits(2, 5)?,
        Share::permits(1, 3)?,
        Share::permits(2, 3)?,
        Share::READER,
        Share::MUTEX,
    ];
    storm(trial, &mixed).await?;
    Ok(())
}

/// Every pair of shares, decided without any race: one is held, the other asked for.
pub(crate) async fn each_pair_of_shares_is_decided_by_the_rule(trial: &Trial) -> Checked {
    let shares = [
        Share::MUTEX,
        Share::READER,
        Share::WRITER,
        Share::permits(1, 3)?,
        Share::permits(2, 3)?,
        Share::permits(3, 3)?,
        Share::permits(1, 5)?,
        Share::permits(3, 5)?,
    ];
    let can: Vec<Share> = shares.into_iter().filter(|share| trial.profile().admits(*share).is_ok()).collect();
    for (n, held) in can.iter().enumerate() {
        for (m, asked) in can.iter().enumerate() {
            if !trial.interact(*held, *asked) {
                continue;
            }
            let resource = trial.resource(&format!("pair/{n}/{m}"))?;
            let (first, second) = (trial.claim(&resource, *held)?, trial.claim(&resource, *asked)?);
            trial.client(0).hold(&first).await?;
            let load = u64::from(held.weight()) + u64::from(asked.weight());
            if load <= u64::from(held.capacity().min(asked.capacity())) {
                trial.client(1).hold(&second).await?;
                trial.client(1).free(&second).await?;
            } else {
                trial.client(1).refused(&second).await?;
            }
            trial.client(0).free(&first).await?;
        }
    }
    Ok(())
}

/// The capacity is used to the last permit, and no further.
pub(crate) async fn a_capacity_fills_up_exactly(trial: &Trial) -> Checked {
    for share in trial.concurrent_shares()? {
        let resource = trial.resource(&format!("full/{}", share.capacity()))?;
        let fit = if share.is_counted() { 3 } else { 20 };
        let mut held = Vec::new();
        for n in 0..fit {
            let claim = trial.claim(&resource, share)?;
            trial.client(n).hold(&claim).await?;
            held.push(claim);
        }
        let over = trial.claim(&resource, if share.is_counted() { share } else { Share::WRITER })?;
        trial.client(1).refused(&over).await?;
        trial.client(0).free(&held[0]).await?;
        let again = trial.claim(&resource, share)?;
        trial.client(2).hold(&again).await?;
        trial.client(1).refused(&over).await?;
    }
    Ok(())
}

/// Runs many takers on one resource for a while, watched by a referee. Answers how many grants there were,
/// and how many claims were inside together.
async fn storm(trial: &Trial, shares: &[Share]) -> Checked<(usize, usize)> {
    let resource = trial.resource(&format!("storm/{shares:?}"))?;
    let referee = Arc::new(Referee::default());
    // How many come in within a time is a matter of the machine, so there are as many waves as it takes.
    for _ in 0..WAVES {
        wave(trial, &resource, shares, &referee).await?;
        let (grants, most) = referee.tally();
        if grants >= FEWEST {
            return Ok((grants, most));
        }
    }
    let (grants, _) = referee.tally();
    Err(NotKept::late(format!("{TAKERS} takers were granted {grants} claims in {:?}", STORM * WAVES)))
}

/// Lets all takers take and leave for a while.
async fn wave(trial: &Trial, resource: &Resource, shares: &[Share], referee: &Arc<Referee>) -> Checked {
    let patience = patience_for(&trial.clock, STORM);
    let mut tasks = Vec::new();
    for n in 0..TAKERS {
        let (client, referee, patience) = (trial.client(n).clone(), referee.clone(), patience.clone());
        let share = shares[n % shares.len()];
        let template = trial.claim(resource, share)?;
        tasks.push(tokio::spawn(async move {
            let mut random = Random::new()?;
            while !patience.is_ended() {
                let claim = template.clone().id(crate::random::id()?);
                round(&client, &claim, &patience, &referee, &mut random).await?;
            }
            Ok::<(), NotKept>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    trial.client(0).expect_no_claims(resource, "after the last taker has left").await
}

/// Lets one taker take, stay inside for a random time and leave.
async fn round(
    client: &TestClient,
    claim: &leasehold_core::Claim,
    patience: &Patience,
    referee: &Referee,
    random: &mut Random,
) -> Checked {
    let floor = referee.floor();
    let Some(taken) = client.take(claim, patience).await? else { return Ok(()) };
    referee.enter(claim.share, taken.grant.fence, floor)?;
    match random.below(4) {
        0 => tokio::task::yield_now().await,
        millis => tokio::time::sleep(Duration::from_millis(millis)).await,
    }
    referee.leave(claim.share)?;
    client.free(claim).await
}

const TAKERS: usize = 32;
const STORM: Duration = Duration::from_millis(1200);
/// The most waves until there are enough grants.
const WAVES: u32 = 20;
/// The fewest grants: with less it is not a lock service but a standstill.
const FEWEST: usize = 5;
