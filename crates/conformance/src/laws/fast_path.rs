//! The checks of each fast path: a way to ask for a new claim other than `contend`.

use std::pin::Pin;

use leasehold_core::{Claim, Grant, Moment, Renewal, Share};

use crate::client::TestClient;
use crate::not_kept::{Checked, ensure};
use crate::trial::Trial;

/// A fast path. Each call opts out where the backend does not have it.
pub(super) struct FastPath {
    /// The word for it behind "granted".
    pub(super) name: &'static str,
    /// Asks for a claim that no call has named before. After `None` nothing of it exists.
    pub(super) ask: for<'a> fn(&'a Trial, &'a TestClient, &'a Claim, Moment) -> Call<'a, Option<Grant>>,
    /// Releases what was granted.
    pub(super) release: for<'a> fn(&'a TestClient, &'a Claim) -> Call<'a, ()>,
    /// Releases it once more, and checks the answer.
    pub(super) release_again: for<'a> fn(&'a TestClient, &'a Claim) -> Call<'a, ()>,
}

pub(super) type Call<'a, T> = Pin<Box<dyn Future<Output = Checked<T>> + Send + 'a>>;

/// Checks that a grant counts like one of `contend`, and that a refusal leaves nothing.
pub(super) async fn counts_like_any_other(trial: &Trial, path: &FastPath) -> Checked {
    let name = path.name;
    let (first, second) = (trial.client(0), trial.client(1));
    for share in trial.exclusive_shares()? {
        let resource = trial.resource(&format!("counts/{share}"))?;
        let mut last = None;
        for _ in 0..ROUNDS {
            let before = trial.claim(&resource, share)?;
            let long = first.hold(&before).await?;
            let declined = trial.claim(&resource, share)?;
            let granted = (path.ask)(trial, second, &declined, trial.clock.now()).await?;
            ensure!(granted.is_none(), "{share}: granted {name}, {granted:?}, although it is held");
            first.free(&before).await?;
            second.expect_no_claims(&resource, &format!("after a claim that was declined {name}")).await?;

            let claim = trial.claim(&resource, share)?;
            let asked_at = trial.clock.now();
            let Some(grant) = (path.ask)(trial, first, &claim, asked_at).await? else {
                first.expect_no_claims(&resource, &format!("after a claim that was declined {name}")).await?;
                continue;
            };
            ensure!(grant.asked_at == asked_at, "it counts from {:?}, not {asked_at:?}", grant.asked_at);
            ensure!(
                grant.fence.is_none() || (grant.fence > long.fence && grant.fence > last),
                "{share}: the fence {:?} after {:?}",
                grant.fence,
                long.fence
            );
            last = grant.fence;
            second.refused(&trial.claim(&resource, share)?).await?;
            let again = first.hold(&claim).await?;
            ensure!(
                again.fence == grant.fence,
                "a repeated request turned {:?} into {:?}",
                grant.fence,
                again.fence
            );
            let renewed = first.renew(&claim, &grant.proof).await?;
            ensure!(matches!(renewed, Renewal::Renewed | Renewal::Alive), "its renewal answered {renewed:?}");

            let waiting = second.wait(trial.claim(&resource, share)?);
            second.wait_until_queued(&resource, 1).await?;
            (path.release)(first, &claim).await?;
            let next = waiting.claim.clone();
            waiting
                .granted(trial.overdue(), &format!("after the release of a claim that was granted {name}"))
                .await?;
            (path.release_again)(first, &claim).await?;
            second.free(&next).await?;
            second.expect_no_claims(&resource, "after all releases").await?;
        }
    }
    Ok(())
}

/// Checks that no claim that waits is passed.
pub(super) async fn passes_no_queue(trial: &Trial, path: &FastPath) -> Checked {
    let name = path.name;
    trial.needs_fifo()?;
    let (all, one) = (Share::permits(3, 3)?, Share::permits(1, 3)?);
    trial.needs_share(all)?;
    let (first, second) = (trial.client(0), trial.client(1));
    let resource = trial.resource("queue")?;
    // Some backends have a fast path only to what they left before.
    for _ in 0..ROUNDS {
        let before = trial.claim(&resource, one)?;
        first.hold(&before).await?;
        first.free(&before).await?;
    }
    let holder = trial.claim(&resource, one)?;
    second.hold(&holder).await?;
    let waiting = second.wait(trial.claim(&resource, all)?);
    second.wait_until_queued(&resource, 1).await?;
    let late = trial.claim(&resource, one)?;
    let passed = (path.ask)(trial, first, &late, trial.clock.now()).await?;
    ensure!(passed.is_none(), "granted {name}, {passed:?}, ahead of a claim for everything that waits");
    second.free(&holder).await?;
    let next = waiting.claim.clone();
    waiting.granted(trial.overdue(), "after the release of what was in its way").await?;
    second.free(&next).await
}

const ROUNDS: usize = 5;
