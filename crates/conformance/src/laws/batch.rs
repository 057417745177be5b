//! Batches answer in order, no matter what becomes of each claim in them.

use leasehold_core::{Claim, Proof, Release, Renew, Renewal, Share};

use crate::calls::LONG;
use crate::client::{HANG, TestClient, within};
use crate::not_kept::{Checked, NotKept, ensure};
use crate::random;
use crate::trial::Trial;

/// The state of a claim of a mixed batch, by its place in the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ClaimState {
    Held,
    Released,
    NeverSeen,
}

pub(crate) async fn three_hundred_mixed_claims_answer_in_order(trial: &Trial) -> Checked {
    let client = trial.client(0);
    let shares: Vec<Share> =
        trial.exclusive_shares()?.into_iter().chain(trial.concurrent_shares()?).collect();
    let mut batch: Vec<(ClaimState, Claim, Proof)> = Vec::new();
    for n in 0..CLAIMS {
        let resource = trial.resource(&format!("mixed/{n}"))?;
        // Hundreds of calls come before the first of them is renewed.
        let claim = trial.claim_for(&resource, shares[n % shares.len()], LONG * 10)?;
        // Not the same from behind, so that answers in the wrong order are noticed.
        let state = [
            ClaimState::Held,
            ClaimState::Held,
            ClaimState::Released,
            ClaimState::Held,
            ClaimState::NeverSeen,
        ][n % 5];
        let mut proof = Proof::none();
        if state != ClaimState::NeverSeen {
            proof = client.hold(&claim).await?.proof;
        }
        if state == ClaimState::Released {
            client.free(&claim).await?;
        }
        batch.push((state, claim, proof));
    }
    let renews: Vec<Renew<'_>> = batch.iter().map(|(_, claim, proof)| Renew { claim, proof }).collect();
    let answers = renewed(client, &renews).await?;
    ensure!(answers.len() == CLAIMS, "{} answers to {CLAIMS} renewals", answers.len());
    for (n, ((state, ..), answer)) in batch.iter().zip(&answers).enumerate() {
        let right = match state {
            ClaimState::Held => matches!(answer, Renewal::Renewed | Renewal::Alive),
            ClaimState::Released | ClaimState::NeverSeen => matches!(answer, Renewal::Lost),
        };
        ensure!(right, "claim {n} is {state:?}, its renewal answered {answer:?}");
    }
    let claims: Vec<&Claim> = batch.iter().map(|(_, claim, _)| claim).collect();
    for again in [false, true] {
        let answers = released(client, &claims).await?;
        ensure!(answers.len() == CLAIMS, "{} answers to {CLAIMS} releases", answers.len());
        for (n, ((state, ..), answer)) in batch.iter().zip(&answers).enumerate() {
            let right = match state {
                ClaimState::Held if !again => matches!(answer, Release::Freed),
                _ => matches!(answer, Release::Gone),
            };
            ensure!(right, "claim {n} is {state:?}, its release answered {answer:?} (repeated: {again})");
        }
    }
    let listed = within(HANG, "list", client.backend.list(trial.prefix(), None, 1000)).await??;
    ensure!(listed.is_empty(), "listed although everything is released: {listed:?}");
    Ok(())
}

/// Tasks of one client take and release at the same time, a lock for each, and another client has some of
/// the locks in between.
pub(crate) async fn concurrent_requests_of_tasks_get_their_own_answers(trial: &Trial) -> Checked {
    let (ours, theirs) = (trial.client(0), trial.client(1));
    for share in trial.exclusive_shares()? {
        let mut last = vec![None; TASKS];
        for round in 0..3 {
            let mut strangers = Vec::new();
            let mut tasks = Vec::new();
            for (n, last) in last.iter_mut().enumerate() {
                // Not in the order of names.
                let resource = trial.resource(&format!("{share}/{}", (n * 7) % TASKS))?;
                let is_theirs = round == 1 && n % 3 == 0;
                if is_theirs {
                    let claim = trial.claim(&resource, share)?;
                    *last = theirs.hold(&claim).await?.fence.max(*last);
                    strangers.push(claim);
                }
                let (client, claim) = (ours.clone(), trial.claim(&resource, share)?);
                tasks.push(tokio::spawn(async move {
                    if is_theirs {
                        return client.refused(&claim).await.map(|_| None);
                    }
                    let fence = client.hold(&claim).await?.fence;
                    client.free(&claim).await?;
                    Ok::<_, NotKept>(fence)
                }));
            }
            for (task, last) in tasks.into_iter().zip(&mut last) {
                let fence = task.await??;
                ensure!(fence.is_none() || fence > *last, "the fence {fence:?} came after {last:?}");
                *last = fence.max(*last);
            }
            for claim in &strangers {
                theirs.free(claim).await?;
            }
        }
    }
    Ok(())
}

/// Several claims on one resource, a stranger's among them, in one batch.
pub(crate) async fn claims_of_one_resource_share_a_batch(trial: &Trial) -> Checked {
    for share in trial.concurrent_shares()? {
        let resource = trial.resource(&format!("one/{share}"))?;
        let mut held = Vec::new();
        for _ in 0..3 {
            let claim = trial.claim(&resource, share)?;
            let grant = trial.client(0).hold(&claim).await?;
            held.push((claim, grant.proof));
        }
        let unknown = held[0].0.clone().id(random::id()?);
        let none = Proof::none();
        let mut renews: Vec<Renew<'_>> = held.iter().map(|(claim, proof)| Renew { claim, proof }).collect();
        renews.insert(1, Renew { claim: &unknown, proof: &none });
        let answers = renewed(trial.client(0), &renews).await?;
        let right = matches!(
            answers[..],
            [
                Renewal::Renewed | Renewal::Alive,
                Renewal::Lost,
                Renewal::Renewed | Renewal::Alive,
                Renewal::Renewed | Renewal::Alive
            ]
        );
        ensure!(right, "{share}: held, stranger, held, held were renewed as {answers:?}");
        // One of them twice: it can be freed once only.
        let claims = [&held[0].0, &unknown, &held[1].0, &held[0].0, &held[2].0];
        let answers = released(trial.client(0), &claims).await?;
        let right = matches!(
            answers[..],
            [Release::Freed, Release::Gone, Release::Freed, Release::Gone, Release::Freed]
        );
        ensure!(right, "{share}: held, stranger, held, the first again, held were released as {answers:?}");
        trial.client(1).expect_no_claims(&resource, "after a batch of releases").await?;
    }
    Ok(())
}

pub(crate) async fn an_empty_batch_has_no_answers(trial: &Trial) -> Checked {
    let client = trial.client(0);
    let renewals = renewed(client, &[]).await?;
    let releases = released(client, &[]).await?;
    ensure!(renewals.is_empty() && releases.is_empty(), "{renewals:?} and {releases:?} to nothing");
    Ok(())
}

/// Renews a batch; each outcome must be known.
async fn renewed(client: &TestClient, batch: &[Renew<'_>]) -> Checked<Vec<Renewal>> {
    let answers = within(HANG, "renew", client.backend.renew(batch)).await?;
    for answer in &answers {
        if let Renewal::Unknown(failure) = answer {
            return Err(failure.clone().into());
        }
    }
    Ok(answers)
}

/// Releases a batch; each outcome must be known.
async fn released(client: &TestClient, batch: &[&Claim]) -> Checked<Vec<Release>> {
    let answers = within(HANG, "release", client.backend.release(batch)).await?;
    for answer in &answers {
        if let Release::Unknown(failure) = answer {
            return Err(failure.clone().into());
        }
    }
    Ok(answers)
}

const TASKS: usize = 20;
const CLAIMS: usize = 300;
