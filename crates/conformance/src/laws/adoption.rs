//! Adoption: another client adopts a granted claim, where the backend says that it may.

use std::time::Duration;

use leasehold_core::{Moment, Note, Renewal, Share};

use super::renewal::free_in_time;
use crate::client::AT_ONCE;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

pub(crate) async fn another_client_adopts_a_claim(trial: &Trial) -> Checked {
    trial.needs_adoption()?;
    let shares = [trial.exclusive_shares()?, trial.concurrent_shares()?].concat();
    futures_util::future::try_join_all(shares.into_iter().map(|share| adopted(trial, share))).await?;
    Ok(())
}

async fn adopted(trial: &Trial, share: Share) -> Checked {
    let resource = trial.resource(&format!("adopted/{share}"))?;
    let (first, second) = (trial.client(0), trial.client(1));
    // What a client leaves for its own next claim is not to be mistaken for one that it has handed on.
    for _ in 0..2 {
        let before = trial.claim(&resource, share)?;
        first.hold(&before).await?;
        first.free(&before).await?;
    }
    // A machine that is busy renews within it. All shares are tried at once, so that it costs no more time.
    let mut claim = trial.claim_for(&resource, share, trial.ttl() * 4)?;
    let ttl = claim.ttl;
    let valid_until = |asked_at: Moment| trial.valid_for(ttl, asked_at);
    let in_time = |until: Moment, what: &str| match trial.clock.now() < until {
        true => Ok(()),
        false => Err(NotKept::late(format!("the machine was too busy to {what} in time"))),
    };
    let granted = first.hold(&claim).await?;
    first.backend.detach(&claim);
    claim.note = Note::new("the next client")?;
    let adopted = second.hold(&claim).await?;
    in_time(valid_until(granted.asked_at), "adopt a claim")?;
    ensure!(adopted.fence == granted.fence, "{:?} became {:?}", granted.fence, adopted.fence);
    let mut until = valid_until(adopted.asked_at);
    if share.is_exclusive() {
        let refused = first.refused(&trial.claim(&resource, share)?).await;
        in_time(until, "ask beside a claim that is adopted")?;
        refused?;
    }
    // Past the time at which what the first client knows of it would have ended it.
    let end = trial.clock.now().after(ttl + ttl / 2);
    while trial.clock.now() < end {
        tokio::time::sleep(ttl / 5).await;
        let asked_at = trial.clock.now();
        let answer = second.renew(&claim, &adopted.proof).await?;
        if !matches!(answer, Renewal::Renewed) {
            // The store may have carried it out just before it answered.
            in_time(until, "renew")?;
            ensure!(false, "{share}: a renewal by the client that adopted a claim answered {answer:?}");
        }
        until = valid_until(asked_at);
    }
    let seen = second.look(&resource).await?;
    in_time(until, "look")?;
    let notes: Vec<_> = seen.holders.iter().map(|info| info.note.as_str()).collect();
    ensure!(notes == ["the next client"], "{share}: seen as holders: {notes:?}");
    free_in_time(trial, second, &claim, until).await?;
    second.expect_no_claims(&resource, "after the release by the client that adopted it").await
}

/// Beside another claim of the same client, which is kept alive meanwhile: what they may share must not
/// keep both.
pub(crate) async fn claim_that_is_not_adopted_ends_with_its_lease(trial: &Trial) -> Checked {
    trial.needs_adoption()?;
    let (resource, beside) = (trial.resource("forgone")?, trial.resource("beside")?);
    let (claim, other) = (trial.short(&resource, Share::MUTEX)?, trial.short(&beside, Share::MUTEX)?);
    let client = trial.client(0);
    client.hold(&claim).await?;
    let kept = client.hold(&other).await?;
    client.backend.detach(&claim);
    let next = trial.client(1).wait(trial.claim(&resource, Share::MUTEX)?);
    let limit = trial.clock.now().after(trial.ttl() + trial.profile().overrun + AT_ONCE);
    while !next.is_over() && trial.clock.now() < limit {
        tokio::time::sleep(trial.ttl() / 5).await;
        client.renew(&other, &kept.proof).await?;
    }
    let successor = next.claim.clone();
    next.granted(Duration::from_millis(1), "a claim behind one that nobody adopts").await?;
    client.end(&other).await?;
    trial.client(1).free(&successor).await
}
