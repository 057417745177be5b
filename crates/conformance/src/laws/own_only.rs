//! Own only: a release or a renewal never touches another's claim.

use leasehold_core::{Claim, Grant, Proof, Share};

use crate::client::AT_ONCE;
use crate::not_kept::{Checked, ensure};
use crate::random;
use crate::trial::Trial;

pub(crate) async fn unknown_id_ends_and_renews_nothing(trial: &Trial) -> Checked {
    for share in trial.exclusive_shares()?.into_iter().chain(trial.concurrent_shares()?) {
        let resource = trial.resource(&format!("stranger/{share}"))?;
        let claim = trial.claim(&resource, share)?;
        let grant = trial.client(0).hold(&claim).await?;
        for client in trial.clients() {
            let unknown = claim.clone().id(random::id()?);
            client.gone(&unknown, "a stranger's claim").await?;
            client.lost(&unknown, &Proof::none(), "a stranger's claim").await?;
        }
        untouched(trial, &claim, &grant).await?;
        trial.client(0).free(&claim).await?;
    }
    Ok(())
}

pub(crate) async fn a_claim_is_nothing_on_another_resource(trial: &Trial) -> Checked {
    let (here, there) = (trial.resource("here")?, trial.resource("there")?);
    let (mine, yours) = (trial.claim(&here, Share::MUTEX)?, trial.claim(&there, Share::MUTEX)?);
    let (my_grant, your_grant) = (trial.client(0).hold(&mine).await?, trial.client(0).hold(&yours).await?);
    let astray = mine.clone().resource(there.clone());
    trial.client(0).lost(&astray, &Proof::none(), "a claim of another resource").await?;
    trial.client(0).gone(&astray, "a claim of another resource").await?;
    untouched(trial, &mine, &my_grant).await?;
    untouched(trial, &yours, &your_grant).await?;
    trial.client(0).free(&mine).await?;
    trial.client(0).free(&yours).await
}

pub(crate) async fn late_release_does_not_end_the_successor(trial: &Trial) -> Checked {
    let resource = trial.resource("late")?;
    let first = trial.claim(&resource, Share::MUTEX)?;
    let old = trial.client(0).hold(&first).await?;
    trial.client(0).free(&first).await?;
    let second = trial.claim(&resource, Share::MUTEX)?;
    let grant = trial.client(0).hold(&second).await?;
    trial.client(0).gone(&first, "a predecessor").await?;
    trial.client(0).lost(&first, &old.proof, "a predecessor").await?;
    untouched(trial, &second, &grant).await?;
    trial.client(0).free(&second).await
}

pub(crate) async fn expired_holder_does_not_end_the_successor(trial: &Trial) -> Checked {
    trial.needs_lease()?;
    let resource = trial.resource("expired")?;
    let first = trial.short(&resource, Share::MUTEX)?;
    let old = trial.client(0).hold(&first).await?;
    let second = trial.claim(&resource, Share::MUTEX)?;
    let wait = trial.ttl() + AT_ONCE;
    let taken = trial.client(1).take_within(&second, wait, "after the lease ran out").await?;
    trial.client(0).lost(&first, &old.proof, "an expired holder").await?;
    trial.client(0).gone(&first, "an expired holder").await?;
    let again = trial.client(1).hold(&second).await?;
    ensure!(again.fence == taken.grant.fence, "the successor's fence changed");
    trial.client(1).free(&second).await
}

pub(crate) async fn a_waiting_claim_does_not_free_the_holder(trial: &Trial) -> Checked {
    let resource = trial.resource("waiting")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    let grant = trial.client(0).hold(&holder).await?;
    let mut other = trial.client(2).wait(trial.claim(&resource, Share::MUTEX)?);
    trial.client(2).wait_until_queued(&resource, 1).await?;
    trial.client(1).leave_by_release(&trial.claim(&resource, Share::MUTEX)?, 2).await?;
    untouched(trial, &holder, &grant).await?;
    other.still_waits("the end of one wait ended another").await?;
    if trial.is_fifo() {
        let seen = trial.client(3).look(&resource).await?;
        let line: Vec<_> = seen.waiting.iter().map(|info| info.id).collect();
        ensure!(line == [other.claim.id], "the end of one wait left the line {:?}", seen.waiting);
    }
    let claim = other.give_up(AT_ONCE, "a wait behind a holder").await?;
    trial.client(2).end(&claim).await?;
    trial.client(0).free(&holder).await
}

pub(crate) async fn release_of_one_holder_keeps_the_others(trial: &Trial) -> Checked {
    for share in trial.concurrent_shares()? {
        let resource = trial.resource(&format!("several/{share}"))?;
        let mut held = Vec::new();
        for n in 0..3 {
            let claim = trial.claim(&resource, share)?;
            let grant = trial.client(n).hold(&claim).await?;
            held.push((claim, grant));
        }
        trial.client(1).free(&held[1].0).await?;
        let seen = trial.client(3).look(&resource).await?;
        let holders: Vec<_> = seen.holders.iter().map(|info| info.id).collect();
        let stay = [held[0].0.id, held[2].0.id];
        let right = holders.len() == 2 && stay.iter().all(|id| holders.contains(id));
        ensure!(right, "after one of three left, {:?} hold", seen.holders);
        for n in [0, 2] {
            let again = trial.client(n).hold(&held[n].0).await?;
            ensure!(again.fence == held[n].1.fence, "the fence of one that stayed changed");
            trial.client(n).free(&held[n].0).await?;
        }
    }
    Ok(())
}

/// Checks that the claim holds as it did, and no other does. It is asked from the connection that holds
/// it.
async fn untouched(trial: &Trial, claim: &Claim, grant: &Grant) -> Checked {
    let seen = trial.client(1).look(&claim.resource).await?;
    let holders: Vec<_> = seen.holders.iter().map(|info| info.id).collect();
    ensure!(holders == [claim.id], "held by {:?}", seen.holders);
    let again = trial.client(0).hold(claim).await?;
    ensure!(
        again.fence == grant.fence,
        "the holder's fence changed from {:?} to {:?}",
        grant.fence,
        again.fence
    );
    if trial.interact(claim.share, Share::MUTEX) {
        let other = claim.clone().id(random::id()?).share(Share::MUTEX);
        trial.client(2).refused(&other).await?;
    }
    Ok(())
}
