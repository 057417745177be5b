//! Order: fences rise strictly per resource; a backend that promises FIFO grants in queue order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::{CALL_GRACE, Fence, FenceGrade, Grant, Resource, Share};
use tokio::sync::Mutex;

use crate::client::{AT_ONCE, TestClient};
use crate::clock::STALLED;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

pub(crate) async fn fences_rise_over_two_hundred_grants(trial: &Trial) -> Checked {
    let resource = trial.resource("fences")?;
    let shares: Vec<Share> =
        trial.exclusive_shares()?.into_iter().chain(trial.concurrent_shares()?).collect();
    let mut last = None;
    for n in 0..GRANTS {
        let claim = trial.claim(&resource, shares[n % shares.len()])?;
        let client = trial.client(n / 2);
        let grant = client.hold(&claim).await?;
        rises(trial, &grant, &mut last)?;
        let seen = client.look(&resource).await?;
        ensure!(
            seen.fence.is_none() || seen.fence >= last,
            "{:?} is shown, {last:?} was granted",
            seen.fence
        );
        client.free(&claim).await?;
    }
    let seen = trial.client(1).look(&resource).await?;
    ensure!(seen.fence.is_none() || seen.fence >= last, "{:?} is shown, {last:?} was granted", seen.fence);
    Ok(())
}

pub(crate) async fn fences_rise_among_holders_together(trial: &Trial) -> Checked {
    for share in trial.concurrent_shares()? {
        let resource = trial.resource(&format!("together/{share}"))?;
        let (mut held, mut last) = (Vec::new(), None);
        for n in 0..30 {
            if held.len() == 3 {
                // By the connection that took it, since that may be what holds it.
                let (taker, leaves): (usize, leasehold_core::Claim) = held.remove(n % 3);
                trial.client(taker).free(&leaves).await?;
            }
            let claim = trial.claim(&resource, share)?;
            let grant = trial.client(n).hold(&claim).await?;
            rises(trial, &grant, &mut last)?;
            held.push((n, claim));
        }
        for (taker, claim) in &held {
            trial.client(*taker).free(claim).await?;
        }
    }
    Ok(())
}

pub(crate) async fn a_fence_survives_the_end_of_a_lease(trial: &Trial) -> Checked {
    trial.needs_lease()?;
    let resource = trial.resource("survives")?;
    let mut last = None;
    for n in 0..3 {
        let claim = trial.short(&resource, Share::MUTEX)?;
        let wait = trial.ttl() + AT_ONCE;
        let taken = trial.client(n).take_within(&claim, wait, "after the lease ran out").await?;
        rises(trial, &taken.grant, &mut last)?;
    }
    // Also if no claim contends until long after the end.
    tokio::time::sleep(trial.ttl() + trial.outlives() + Duration::from_millis(200)).await;
    let claim = trial.claim(&resource, Share::MUTEX)?;
    rises(trial, &trial.client(3).hold(&claim).await?, &mut last)
}

pub(crate) async fn queue_of_ten_is_granted_in_order(trial: &Trial) -> Checked {
    trial.needs_fifo()?;
    for share in trial.exclusive_shares()? {
        let resource = trial.resource(&format!("line/{share}"))?;
        let holder = trial.claim(&resource, share)?;
        trial.client(0).hold(&holder).await?;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for n in 0..LINE {
            let (client, order) = (trial.client(n + 1).clone(), order.clone());
            let claim = trial.claim(&resource, share)?;
            let waiting = client.wait(claim.clone());
            tasks.push(tokio::spawn(async move {
                waiting.granted(crate::client::HANG, "a place in a line of ten").await?;
                // Nobody else is granted before this release, so that the list shows the order of the grants.
                order.lock().await.push(n);
                client.free(&claim).await
            }));
            trial.client(0).wait_until_queued(&resource, n + 1).await?;
        }
        let watch = Watch::start(trial.client(0), &resource);
        trial.client(0).free(&holder).await?;
        for task in tasks {
            task.await??;
        }
        let slowest = watch.end();
        let order = order.lock().await;
        if order.iter().enumerate().any(|(n, granted)| n != *granted) {
            let what = format!("{share}: a line of {LINE} was granted in the order {order:?}");
            // A waiter that does not answer a call in time is passed over. It may have been kept from it, by
            // this machine or by a store that answered late. Where it is woken it has most of a call for that.
            let excused_from = if trial.polls() { STALLED } else { CALL_GRACE / 2 };
            return Err(if slowest >= excused_from {
                NotKept::Delayed(format!("{what}; the store or this machine was late by up to {slowest:?}"))
            } else if trial.polls() {
                NotKept::late(what)
            } else {
                NotKept::Broken(what)
            });
        }
    }
    Ok(())
}

/// A measurement of how late a store answers, and this machine runs the task that asks.
struct Watch {
    steps: Arc<Steps>,
    task: tokio::task::JoinHandle<()>,
}

/// The steps of a task, one after the other, and how late they end.
struct Steps {
    began: Instant,
    /// The earliest end of the step that is under way, from `began` on.
    due_ms: AtomicU64,
    worst_ms: AtomicU64,
}

impl Watch {
    /// Looks at the resource again and again.
    fn start(client: &TestClient, resource: &Resource) -> Watch {
        let (client, resource) = (client.clone(), resource.clone());
        let steps = Steps { began: Instant::now(), due_ms: AtomicU64::new(0), worst_ms: AtomicU64::new(0) };
        let steps = Arc::new(steps);
        let taken = steps.clone();
        let task = tokio::spawn(async move {
            loop {
                taken.next(Duration::ZERO);
                let _ = client.look(&resource).await;
                taken.next(PAUSE);
                tokio::time::sleep(PAUSE).await;
            }
        });
        Watch { steps, task }
    }

    /// Returns the longest that an answer took, or the task did not run, also where that is not over yet.
    fn end(self) -> Duration {
        self.task.abort();
        self.steps.next(Duration::ZERO);
        Duration::from_millis(self.steps.worst_ms.load(Ordering::Relaxed))
    }
}

impl Steps {
    /// Ends a step, and begins one that takes this time at least.
    fn next(&self, time: Duration) {
        let in_ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let now = self.began.elapsed();
        let due_ms = self.due_ms.swap(in_ms(now + time), Ordering::Relaxed);
        self.worst_ms.fetch_max(in_ms(now).saturating_sub(due_ms), Ordering::Relaxed);
    }
}

/// A writer that waits is not starved by readers that come later.
pub(crate) async fn readers_do_not_pass_a_waiting_writer(trial: &Trial) -> Checked {
    trial.needs_fifo()?;
    trial.needs_share(Share::READER)?;
    let resource = trial.resource("writer")?;
    let reader = trial.claim(&resource, Share::READER)?;
    trial.client(0).hold(&reader).await?;
    let mut writer = trial.client(1).wait(trial.claim(&resource, Share::WRITER)?);
    trial.client(1).wait_until_queued(&resource, 1).await?;
    // Neither one that only looks nor one that waits may pass.
    trial.client(2).refused(&trial.claim(&resource, Share::READER)?).await?;
    let mut late = trial.client(3).wait(trial.claim(&resource, Share::READER)?);
    trial.client(3).wait_until_queued(&resource, 2).await?;
    tokio::time::sleep(PAUSE).await;
    for waits in [&mut late, &mut writer] {
        waits.still_waits("granted although a reader holds and a writer waits").await?;
    }
    trial.client(0).free(&reader).await?;
    let claim = writer.claim.clone();
    let written = writer.granted(AT_ONCE, "the writer, after the reader left").await?;
    late.still_waits("a reader was granted beside or before the writer").await?;
    trial.client(1).free(&claim).await?;
    let claim = late.claim.clone();
    let read = late.granted(AT_ONCE, "the reader, after the writer left").await?;
    let rising = read.grant.fence.is_none() || read.grant.fence > written.grant.fence;
    ensure!(rising, "the reader's fence {:?} after the writer's {:?}", read.grant.fence, written.grant.fence);
    trial.client(3).free(&claim).await
}

/// A claim for few permits does not pass one that waits for many.
pub(crate) async fn small_claims_do_not_pass_a_large_one(trial: &Trial) -> Checked {
    trial.needs_fifo()?;
    trial.needs_share(Share::permits(3, 3)?)?;
    let resource = trial.resource("large")?;
    let (small, large) = (Share::permits(1, 3)?, Share::permits(3, 3)?);
    let holder = trial.claim(&resource, small)?;
    trial.client(0).hold(&holder).await?;
    let waiting = trial.client(1).wait(trial.claim(&resource, large)?);
    trial.client(1).wait_until_queued(&resource, 1).await?;
    for n in 2..5 {
        trial.client(n).refused(&trial.claim(&resource, small)?).await?;
    }
    trial.client(0).free(&holder).await?;
    let claim = waiting.claim.clone();
    waiting.granted(AT_ONCE, "the large claim, after the small one left").await?;
    trial.client(1).free(&claim).await
}

/// The hint says how many are ahead, holders included, where it says anything.
pub(crate) async fn hint_counts_the_claims_ahead(trial: &Trial) -> Checked {
    let resource = trial.resource("ahead")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    ahead(trial, &resource, 1).await?;
    if trial.is_fifo() {
        let waiting = trial.client(1).wait(trial.claim(&resource, Share::MUTEX)?);
        trial.client(1).wait_until_queued(&resource, 1).await?;
        ahead(trial, &resource, 2).await?;
        waiting.give_up(AT_ONCE, "a wait behind a holder").await?;
    }
    trial.client(0).free(&holder).await
}

async fn ahead(trial: &Trial, resource: &Resource, right: u32) -> Checked {
    let hint = trial.client(2).refused(&trial.claim(resource, Share::MUTEX)?).await?;
    ensure!(
        hint.ahead.is_none_or(|ahead| ahead == right),
        "{right} are ahead, the hint says {:?}",
        hint.ahead
    );
    Ok(())
}

/// Checks that `grant` has a fence exactly if the profile has fences, and that it is above all before.
fn rises(trial: &Trial, grant: &Grant, last: &mut Option<Fence>) -> Checked {
    let promised = trial.profile().fencing > FenceGrade::None;
    ensure!(
        grant.fence.is_some() == promised,
        "the profile says {}, the grant has {:?}",
        trial.profile().fencing,
        grant.fence
    );
    ensure!(grant.fence.is_none() || grant.fence > *last, "{:?} was granted after {last:?}", grant.fence);
    *last = grant.fence;
    Ok(())
}

const GRANTS: usize = 200;
const LINE: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_counts_before_it_is_over() {
        let steps = Steps { began: Instant::now(), due_ms: AtomicU64::new(0), worst_ms: AtomicU64::new(0) };
        steps.next(PAUSE);
        std::thread::sleep(PAUSE * 3);
        steps.next(PAUSE);
        let worst = Duration::from_millis(steps.worst_ms.load(Ordering::Relaxed));
        assert!(worst >= PAUSE * 2 - Duration::from_millis(1), "{worst:?}");
    }
}
