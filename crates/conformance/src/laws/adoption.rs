//! Adoption: another client adopts a granted claim, where the backend says that it may.

use std::time::Duration;

use leasehold_core::{Note, Renewal, Share};

use crate::client::AT_ONCE;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

pub(crate) async fn another_client_adopts_a_claim(trial: &Trial) -> Checked {
    needs_adoption(trial)?;
    let shares = [trial.exclusive_shares()?, trial.concurrent_shares()?].concat();
    for share in shares {
        let resource = trial.resource(&format!("adopted/{share}"))?;
        let (first, second) = (trial.client(0), trial.client(1));
        // What a client leaves for its own next claim is not to be mistaken for one that it has handed on.
        for _ in 0..2 {
            let before = trial.claim(&resource, share)?;
            first.hold(&before).await?;
            first.free(&before).await?;
        }
        let mut claim = trial.short(&resource, share)?;
        let granted = first.hold(&claim).await?;
        first.backend.detach(&claim);
        claim.note = Note::new("the next client")?;
        let adopted = second.hold(&claim).await?;
        if trial.clock.now() >= trial.valid_until(granted.asked_at) {
            return Err(NotKept::late("the machine was too busy to adopt a claim in time".to_owned()));
        }
        ensure!(adopted.fence == granted.fence, "{:?} became {:?}", granted.fence, adopted.fence);
        if share.is_exclusive() {
            first.refused(&trial.claim(&resource, share)?).await?;
        }
        // Past the time at which what the first client knows of it would have ended it.
        let mut valid_until = trial.valid_until(adopted.asked_at);
        let end = trial.clock.now().after(trial.ttl() + trial.ttl() / 2);
        while trial.clock.now() < end {
            tokio::time::sleep(trial.ttl() / 5).await;
            let asked_at = trial.clock.now();
            let answer = second.renew(&claim, &adopted.proof).await?;
            let kept = matches!(answer, Renewal::Renewed);
            if !kept && asked_at >= valid_until {
                return Err(NotKept::late("the machine was too busy to renew in time".to_owned()));
            }
            ensure!(kept, "{share}: a renewal by the client that adopted a claim answered {answer:?}");
            valid_until = trial.valid_until(asked_at);
        }
        let seen = second.look(&resource).await?;
        if trial.clock.now() >= valid_until {
            return Err(NotKept::late(
                "the machine was too busy to look before the lease was over".to_owned(),
            ));
        }
        let notes: Vec<_> = seen.holders.iter().map(|info| info.note.as_str()).collect();
        ensure!(notes == ["the next client"], "{share}: seen as holders: {notes:?}");
        second.free(&claim).await?;
        second.expect_no_claims(&resource, "after the release by the client that adopted it").await?;
    }
    Ok(())
}

/// Beside another claim of the same client, which is kept alive meanwhile: what they may share must not
/// keep both.
pub(crate) async fn claim_that_is_not_adopted_ends_with_its_lease(trial: &Trial) -> Checked {
    needs_adoption(trial)?;
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

fn needs_adoption(trial: &Trial) -> Checked {
    match trial.client(0).backend.supports_transfer() {
        true => Ok(()),
        false => Err(NotKept::OptedOut("no other client can adopt a granted claim".to_owned())),
    }
}
