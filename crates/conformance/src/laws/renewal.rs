//! Renewals: a renewal extends a lease, and never resurrects, shortens or grants one.

use std::time::Duration;

use leasehold_core::{Claim, Grant, Moment, Release, Renewal, Share};

use crate::client::{AT_ONCE, TestClient};
use crate::laws::profile::{ends_by_itself, shown_to_end};
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

pub(crate) async fn a_released_claim_is_not_renewed(trial: &Trial) -> Checked {
    let resource = trial.resource("released")?;
    let (client, claim) = (trial.client(0), trial.claim(&resource, Share::MUTEX)?);
    let grant = client.hold(&claim).await?;
    client.free(&claim).await?;
    client.lost(&claim, &grant.proof, "a released claim").await?;
    client.expect_no_claims(&resource, "after the renewal of a released claim").await?;
    let next = trial.claim(&resource, Share::MUTEX)?;
    let held = trial.client(1).hold(&next).await?;
    client.lost(&claim, &grant.proof, "a released claim with a successor").await?;
    let again = trial.client(1).hold(&next).await?;
    ensure!(again.fence == held.fence, "the successor's fence changed by the renewal of its predecessor");
    trial.client(1).free(&next).await
}

pub(crate) async fn an_expired_claim_is_not_renewed(trial: &Trial) -> Checked {
    trial.needs_lease()?;
    let resource = trial.resource("expired")?;
    let (client, claim) = (trial.client(0), trial.short(&resource, Share::MUTEX)?);
    let grant = client.hold(&claim).await?;
    tokio::time::sleep(trial.ttl() + trial.outlives() + SURELY).await;
    client.lost(&claim, &grant.proof, "an expired claim that nobody succeeded").await?;
    client.gone(&claim, "an expired claim that nobody succeeded").await?;
    let next = trial.claim(&resource, Share::MUTEX)?;
    let held = trial.client(1).hold(&next).await?;
    ensure!(held.fence.is_none() || held.fence > grant.fence, "{:?} after {:?}", held.fence, grant.fence);
    client.lost(&claim, &grant.proof, "an expired claim with a successor").await?;
    client.gone(&claim, "an expired claim with a successor").await?;
    trial.client(1).free(&next).await
}

/// The answer to the renewal of a claim that only waits is the backend's affair; it must not make it a
/// holder.
pub(crate) async fn renewal_does_not_grant_a_waiting_claim(trial: &Trial) -> Checked {
    let resource = trial.resource("waiting")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let waiting = trial.client(1).wait(trial.claim(&resource, Share::MUTEX)?);
    trial.client(1).wait_until_queued(&resource, 1).await?;
    let answer = trial.client(1).renew(&waiting.claim, &leasehold_core::Proof::none()).await?;
    ensure!(
        !matches!(answer, Renewal::Renewed),
        "the renewal of a claim that only waits answered {answer:?}"
    );
    let seen = trial.client(2).look(&resource).await?;
    let holders: Vec<_> = seen.holders.iter().map(|info| info.id).collect();
    ensure!(holders == [holder.id], "held by {:?}", seen.holders);
    waiting.give_up(AT_ONCE, "a waiting claim that was renewed").await?;
    trial.client(0).free(&holder).await
}

pub(crate) async fn a_renewal_extends_the_lease(trial: &Trial) -> Checked {
    trial.needs_lease()?;
    let resource = trial.resource("extended")?;
    let (client, claim) = (trial.client(0), trial.short(&resource, Share::MUTEX)?);
    let grant = client.hold(&claim).await?;
    let mut valid_until = trial.valid_until(grant.asked_at);
    let end = trial.clock.now().after(trial.ttl() * 2);
    let other = trial.claim(&resource, Share::MUTEX)?;
    while trial.clock.now() < end {
        valid_until = renewed_in_time(trial, &claim, &grant, valid_until).await?;
        not_before(trial, &other, valid_until).await?;
    }
    free_in_time(trial, client, &claim, valid_until).await
}

pub(crate) async fn a_renewed_lease_ends_with_its_ttl(trial: &Trial) -> Checked {
    trial.needs_lease()?;
    let whole = ends_after_renewals(trial, "renewed", Share::MUTEX, Share::MUTEX);
    let Some(share) = trial.concurrent_shares()?.first().copied() else { return whole.await };
    let (others, all) = trial.fill(share)?;
    if !others.is_empty() {
        // No single claim excludes it.
        return whole.await;
    }
    let (whole, shared) = tokio::join!(whole, ends_after_renewals(trial, "renewed/shared", share, all));
    whole.and(shared)
}

/// Renews a claim of the first client after a quarter of its ttl, and returns the new end of its validity.
async fn renewed_in_time(
    trial: &Trial,
    claim: &Claim,
    grant: &Grant,
    valid_until: Moment,
) -> Checked<Moment> {
    tokio::time::sleep(trial.ttl() / 4).await;
    let asked_at = trial.clock.now();
    let answer = trial.client(0).renew(claim, &grant.proof).await?;
    if !matches!(answer, Renewal::Renewed) {
        return Err(too_early(trial, valid_until, &format!("a renewal in time answered {answer:?}")));
    }
    Ok(trial.valid_until(asked_at))
}

/// Renews a claim twice and leaves it: it ends with its ttl, from the last renewal on, for a claim of another client
/// that excludes it.
async fn ends_after_renewals(trial: &Trial, name: &str, share: Share, other: Share) -> Checked {
    let resource = trial.resource(name)?;
    let (client, claim) = (trial.client(0), trial.short(&resource, share)?);
    let grant = client.hold(&claim).await?;
    let mut valid_until = trial.valid_until(grant.asked_at);
    for _ in 0..2 {
        valid_until = renewed_in_time(trial, &claim, &grant, valid_until).await?;
    }
    let renewed_at = trial.clock.now();
    shown_to_end(trial, &resource).await?;
    ends_by_itself(trial, &trial.short(&resource, other)?, valid_until, renewed_at).await
}

pub(crate) async fn a_renewal_never_shortens_the_lease(trial: &Trial) -> Checked {
    trial.needs_lease()?;
    let resource = trial.resource("shortened")?;
    let client = trial.client(0);
    let long = trial.claim_for(&resource, Share::MUTEX, trial.ttl() * 4)?;
    let grant = client.hold(&long).await?;
    let short = long.clone().ttl(trial.ttl());
    let answer = client.renew(&short, &grant.proof).await?;
    let valid_until = trial.valid_for(long.ttl, grant.asked_at);
    if !matches!(answer, Renewal::Renewed) {
        return Err(too_early(
            trial,
            valid_until,
            &format!("the renewal of a held claim answered {answer:?}"),
        ));
    }
    let remaining = client.look(&resource).await?.holders.first().and_then(|holder| holder.remaining);
    let left = trial.clock.now().until(grant.asked_at.after(long.ttl));
    let shown = remaining.is_none_or(|shown| shown + trial.profile().granularity + SURELY > left);
    ensure!(shown, "of a lease with {left:?} left, {remaining:?} are shown after a shorter renewal");
    tokio::time::sleep(trial.ttl() + trial.ttl() / 2).await;
    let other = trial.claim(&resource, Share::MUTEX)?;
    not_before(trial, &other, valid_until).await?;
    free_in_time(trial, client, &long, valid_until).await
}

/// Ends a claim of this client, whose lease runs until `valid_until` at least.
pub(super) async fn free_in_time(
    trial: &Trial,
    client: &TestClient,
    claim: &Claim,
    valid_until: Moment,
) -> Checked {
    match client.end(claim).await? {
        Release::Freed => Ok(()),
        answer => {
            let what = format!("the release of a held claim answered {answer:?}");
            Err(too_early(trial, valid_until, &what))
        }
    }
}

/// Checks that a claim of another client is not granted before `valid_until`.
async fn not_before(trial: &Trial, other: &Claim, valid_until: Moment) -> Checked {
    match trial.client(1).try_take(other).await? {
        None => Ok(()),
        Some(_) => Err(too_early(trial, valid_until, "another claim was granted inside the lease")),
    }
}

/// Returns a breach if the lease should still run; if this task was delayed past it, nothing is proven.
fn too_early(trial: &Trial, valid_until: Moment, what: &str) -> NotKept {
    let now = trial.clock.now();
    if now < valid_until {
        return NotKept::broken(format!("{what}, {:?} before its end", now.until(valid_until)));
    }
    NotKept::Delayed(format!("{what}, but the test was late itself by {:?}", now.since(valid_until)))
}

/// Beyond what the clocks of client and server may differ in one short lease.
const SURELY: Duration = Duration::from_millis(100);
