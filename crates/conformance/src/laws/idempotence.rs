//! Idempotence: any call may be repeated with the same claim.

use leasehold_core::{Renewal, Share, Step};

use crate::client::AT_ONCE;
use crate::not_kept::{Checked, ensure};
use crate::trial::Trial;

pub(crate) async fn repeated_contend_returns_the_same_grant(trial: &Trial) -> Checked {
    for share in trial.exclusive_shares()?.into_iter().chain(trial.concurrent_shares()?) {
        let resource = trial.resource(&format!("again/{share}"))?;
        let (client, claim) = (trial.client(0), trial.claim(&resource, share)?);
        let first = client.hold(&claim).await?;
        for _ in 0..3 {
            let again = client.hold(&claim).await?;
            ensure!(again.fence == first.fence, "{share}: {:?} became {:?}", first.fence, again.fence);
        }
        let seen = client.look(&resource).await?;
        ensure!(seen.holders.len() == 1, "{share}: one claim holds {} times: {seen:?}", seen.holders.len());
        client.free(&claim).await?;
        client.expect_no_claims(&resource, "after one release of a claim that asked four times").await?;
    }
    Ok(())
}

pub(crate) async fn a_repeated_claim_takes_its_weight_once(trial: &Trial) -> Checked {
    let third = Share::permits(1, 3)?;
    trial.needs_share(third)?;
    let resource = trial.resource("weight")?;
    let claim = trial.claim(&resource, third)?;
    for _ in 0..4 {
        trial.client(0).hold(&claim).await?;
    }
    let two = Share::permits(2, 3)?;
    let rest = if trial.profile().admits(two).is_ok() { vec![two] } else { vec![third; 2] };
    for share in rest {
        trial.client(1).hold(&trial.claim(&resource, share)?).await?;
    }
    trial.client(2).refused(&trial.claim(&resource, third)?).await?;
    Ok(())
}

pub(crate) async fn second_release_answers_gone(trial: &Trial) -> Checked {
    for share in trial.exclusive_shares()?.into_iter().chain(trial.concurrent_shares()?) {
        let resource = trial.resource(&format!("twice/{share}"))?;
        let (client, claim) = (trial.client(0), trial.claim(&resource, share)?);
        client.gone(&claim, "a claim that never arrived").await?;
        client.hold(&claim).await?;
        client.free(&claim).await?;
        client.gone(&claim, "a claim released before").await?;
        client.expect_no_claims(&resource, "after two releases").await?;
    }
    Ok(())
}

pub(crate) async fn a_second_renewal_answers_the_same(trial: &Trial) -> Checked {
    let resource = trial.resource("renewed")?;
    let (client, claim) = (trial.client(0), trial.claim(&resource, Share::MUTEX)?);
    let grant = client.hold(&claim).await?;
    for _ in 0..3 {
        let answer = client.renew(&claim, &grant.proof).await?;
        let kept = matches!(answer, Renewal::Renewed | Renewal::Alive);
        ensure!(kept, "the renewal of a held claim answered {answer:?}");
    }
    let again = client.hold(&claim).await?;
    ensure!(again.fence == grant.fence, "a renewal changed the fence {:?} to {:?}", grant.fence, again.fence);
    client.free(&claim).await
}

/// However often the loop of a waiting claim asks, it is queued once.
pub(crate) async fn a_waiting_claim_keeps_one_place(trial: &Trial) -> Checked {
    let resource = trial.resource("place")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let mut first = trial.client(1).wait(trial.claim(&resource, Share::MUTEX)?);
    trial.client(1).wait_until_queued(&resource, 1).await?;
    let mut second = trial.client(2).wait(trial.claim(&resource, Share::MUTEX)?);
    trial.client(2).wait_until_queued(&resource, 2).await?;
    for _ in 0..20 {
        let seen = trial.client(3).look(&resource).await?;
        let places = |id| seen.waiting.iter().filter(|info| info.id == id).count();
        ensure!(
            seen.waiting.len() <= 2,
            "two claims wait in {} places: {:?}",
            seen.waiting.len(),
            seen.waiting
        );
        for waiting in [&mut first, &mut second] {
            let count = places(waiting.claim.id);
            ensure!(count <= 1, "one claim has {count} places: {:?}", seen.waiting);
            waiting.still_waits("a waiting claim came back although the mutex is held").await?;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    trial.client(0).free(&holder).await?;
    trial.drain(vec![first, second], AT_ONCE, "after the release").await?;
    trial.client(0).expect_no_claims(&resource, "after all releases").await
}

/// A claim whose first answer was lost repeats its request while it is already queued, and keeps its place.
pub(crate) async fn a_repeated_wait_keeps_its_place(trial: &Trial) -> Checked {
    trial.needs_fifo()?;
    trial.needs_polling()?;
    let resource = trial.resource("repeat")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let (first, second) = (trial.claim(&resource, Share::MUTEX)?, trial.claim(&resource, Share::MUTEX)?);
    let forever = leasehold_core::Patience::unlimited(trial.clock.clone());
    // Not in turns, or a line in which each goes to the end would look right again.
    for (client, claim) in [(1, &first), (2, &second), (1, &first), (1, &first), (2, &second), (1, &first)] {
        let step = trial.client(client).contend(claim, &forever).await?;
        ensure!(matches!(step, Step::Busy(_)), "granted although it is held: {step:?}");
    }
    let seen = trial.client(0).look(&resource).await?;
    let line: Vec<_> = seen.waiting.iter().map(|info| info.id).collect();
    ensure!(line == [first.id, second.id], "the line changed: {:?}", seen.waiting);
    for (client, claim) in [(1, &first), (2, &second), (0, &holder)] {
        trial.client(client).free(claim).await?;
    }
    trial.client(0).expect_no_claims(&resource, "after all releases").await
}
