//! Wake: a waiter learns of a release within the profile's promise, and no wake-up is lost between check and
//! wait.

use std::time::Duration;

use leasehold_core::{CALL_GRACE, Claim, Resource, Share, Step};

use crate::client::{AT_ONCE, Waiting};
use crate::clock::briefly;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::random::Random;
use crate::trial::Trial;

pub(crate) async fn a_release_wakes_a_waiter(trial: &Trial) -> Checked {
    for share in trial.exclusive_shares()? {
        let mut delays = Vec::new();
        for n in 0..ROUNDS {
            let resource = trial.resource(&format!("release/{share}/{n}"))?;
            let holder = trial.claim(&resource, share)?;
            trial.client(0).hold(&holder).await?;
            let waiting = trial.client(1).wait(trial.claim(&resource, share)?);
            trial.client(1).wait_until_queued(&resource, 1).await?;
            // Long enough that it is asleep, and not about to check once more.
            tokio::time::sleep(ASLEEP).await;
            let released_at = trial.clock.now();
            trial.client(0).free(&holder).await?;
            let claim = waiting.claim.clone();
            let taken = waiting.granted(trial.overdue(), "after the release").await?;
            let delay = taken.at.since(released_at);
            let limit = trial.promise(taken.longest_hint);
            if delay > limit {
                return Err(NotKept::late(format!(
                    "{share}: woken {delay:?} after the release, not in {limit:?}"
                )));
            }
            delays.push(delay);
            trial.client(1).free(&claim).await?;
        }
        delays.sort_unstable();
        let median = delays[delays.len() / 2];
        if !trial.polls() && median > PROMPT {
            return Err(NotKept::late(format!(
                "{share}: half of the waiters are woken later than {median:?}"
            )));
        }
    }
    Ok(())
}

pub(crate) async fn no_release_is_lost_between_check_and_wait(trial: &Trial) -> Checked {
    let resource = trial.resource("between")?;
    let mut random = Random::new()?;
    let mut slow = 0;
    let rounds = if trial.polls() { RACES / 10 } else { RACES };
    for n in 0..rounds {
        let holder = trial.claim(&resource, Share::MUTEX)?;
        trial.client(n).hold(&holder).await?;
        let waiting = trial.client(n + 1).wait(trial.claim(&resource, Share::MUTEX)?);
        briefly(Duration::from_micros(random.below(2500))).await;
        let released_at = trial.clock.now();
        trial.client(n).free(&holder).await?;
        let claim = waiting.claim.clone();
        let taken = waiting.granted(trial.overdue(), "a release between look and wait").await?;
        let delay = taken.at.since(released_at);
        // A backend may check again from time to time; its waiters must not depend on that.
        slow += usize::from(delay > trial.promise(taken.longest_hint) / 2);
        trial.client(n + 1).free(&claim).await?;
    }
    if slow > rounds / 20 {
        return Err(NotKept::late(format!(
            "{slow} of {rounds} releases between look and wait were noticed late"
        )));
    }
    Ok(())
}

pub(crate) async fn three_readers_wake_when_a_writer_leaves(trial: &Trial) -> Checked {
    for share in trial.concurrent_shares()? {
        let resource = trial.resource(&format!("readers/{share}"))?;
        // One that excludes all others; or as many as fit.
        let (beside, all) = trial.fill(share)?;
        let shares = if beside.is_empty() { vec![all] } else { [beside, vec![share]].concat() };
        let mut writers = Vec::new();
        for share in shares {
            writers.push(trial.claim(&resource, share)?);
            trial.client(0).hold(&writers[writers.len() - 1]).await?;
        }
        let mut waits = Vec::new();
        for n in 1..4 {
            waits.push(trial.client(n).wait(trial.claim(&resource, share)?));
            trial.client(n).wait_until_queued(&resource, n).await?;
        }
        let released_at = trial.clock.now();
        for writer in &writers {
            trial.client(0).free(writer).await?;
        }
        let mut held = Vec::new();
        // None of them releases before all have been granted: they hold together.
        for (n, waiting) in waits.into_iter().enumerate() {
            let claim = waiting.claim.clone();
            let taken = waiting.granted(trial.overdue(), "one of three, after the writer left").await?;
            trial.in_time(&taken, released_at, "one of three")?;
            held.push((n + 1, claim));
        }
        for (n, claim) in held {
            trial.client(n).free(&claim).await?;
        }
    }
    Ok(())
}

/// A claim that leaves the queue without ever holding makes way for those behind it.
pub(crate) async fn leaving_waiter_wakes_the_waiters_behind_it(trial: &Trial) -> Checked {
    trial.needs_fifo()?;
    let permits = [Share::permits(2, 3)?, Share::permits(3, 3)?, Share::permits(1, 3)?];
    let sets = [[Share::READER, Share::WRITER, Share::READER], permits];
    for (n, [held, blocked, behind]) in sets.into_iter().enumerate() {
        if trial.needs_share(held).is_err() {
            continue;
        }
        let resource = trial.resource(&format!("leaves/{n}"))?;
        let holder = trial.claim(&resource, held)?;
        trial.client(0).hold(&holder).await?;
        let leaver = trial.client(1).wait_only(trial.claim(&resource, blocked)?);
        trial.client(1).wait_until_queued(&resource, 1).await?;
        let mut stays = trial.client(2).wait(trial.claim(&resource, behind)?);
        trial.client(2).wait_until_queued(&resource, 2).await?;
        tokio::time::sleep(ASLEEP).await;
        stays.still_waits(&format!("{behind} passed {blocked}")).await?;
        let left_at = trial.clock.now();
        leaver.give_up(AT_ONCE, "a wait in the middle of the line").await?;
        let claim = stays.claim.clone();
        let taken = stays.granted(trial.overdue(), "the one behind a waiter that left").await?;
        trial.in_time(&taken, left_at, "the one behind a waiter that left")?;
        trial.client(2).free(&claim).await?;
        trial.client(0).free(&holder).await?;
    }
    Ok(())
}

pub(crate) async fn release_wakes_the_next_waiter_if_the_first_left(trial: &Trial) -> Checked {
    let resource = trial.resource("next")?;
    let (holder, first, second) = two_queued(trial, &resource).await?;
    first.give_up(AT_ONCE, "the first of two").await?;
    let released_at = trial.clock.now();
    trial.client(0).free(&holder).await?;
    let claim = second.claim.clone();
    let taken = second.granted(trial.overdue(), "the second, after the first left").await?;
    trial.in_time(&taken, released_at, "the second, after the first left")?;
    trial.client(2).free(&claim).await
}

/// The notification of a release reaches a waiter that leaves at the same instant: it must not end there.
pub(crate) async fn leaving_waiter_passes_its_wake_up_on(trial: &Trial) -> Checked {
    let resource = trial.resource("passed")?;
    let mut random = Random::new()?;
    let rounds = if trial.polls() { PASSES / 10 } else { PASSES };
    for _ in 0..rounds {
        let (holder, first, second) = two_queued(trial, &resource).await?;
        let claim = first.claim.clone();
        trial.race(&holder, &first.patience, &mut random).await?;
        if first.outcome(AT_ONCE, "the first, which leaves").await?.is_some() {
            trial.client(1).free(&claim).await?;
        }
        let free_at = trial.clock.now();
        let claim = second.claim.clone();
        let taken = second.granted(trial.overdue(), "the second of two").await?;
        trial.in_time(&taken, free_at, "the second of two")?;
        trial.client(2).free(&claim).await?;
    }
    Ok(())
}

/// A silent holder blocks no waiter beyond its ttl.
pub(crate) async fn the_end_of_a_lease_wakes_a_waiter(trial: &Trial) -> Checked {
    trial.needs_lease()?;
    for share in trial.exclusive_shares()? {
        let resource = trial.resource(&format!("lease/{share}"))?;
        let holder = trial.short(&resource, share)?;
        let grant = trial.client(0).hold(&holder).await?;
        let ends_at = trial.clock.now().after(trial.ttl());
        let waiting = trial.client(1).wait(trial.claim(&resource, share)?);
        let claim = waiting.claim.clone();
        let taken = waiting.granted(trial.ttl() + trial.overdue(), "after the end of the lease").await?;
        let earliest = trial.valid_until(grant.asked_at);
        ensure!(
            taken.at >= earliest,
            "{share}: granted {:?} before the end of another's lease",
            taken.at.until(earliest)
        );
        trial.in_time(&taken, ends_at.after(trial.outlives()), "the end of a lease")?;
        trial.client(1).free(&claim).await?;
    }
    Ok(())
}

/// A client that polls may die between two polls: its place must not block the queue for good.
pub(crate) async fn abandoned_place_does_not_block_the_queue(trial: &Trial) -> Checked {
    trial.needs_fifo()?;
    trial.needs_polling()?;
    if trial.profile().place_ttl.is_zero() {
        return Err(NotKept::OptedOut("its places do not end by time".to_owned()));
    }
    let resource = trial.resource("silent")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let silent = trial.claim(&resource, Share::MUTEX)?;
    let forever = leasehold_core::Patience::unlimited(trial.clock.clone());
    let step = trial.client(1).contend(&silent, &forever).await?;
    ensure!(matches!(step, Step::Busy(_)), "granted although it is held: {step:?}");
    let waiting = trial.client(2).wait(trial.claim(&resource, Share::MUTEX)?);
    trial.client(2).wait_until_queued(&resource, 2).await?;
    let released_at = trial.clock.now();
    trial.client(0).free(&holder).await?;
    let claim = waiting.claim.clone();
    let taken = waiting.granted(trial.overdue(), "the one behind a silent place").await?;
    let until = released_at.after(trial.profile().place_ttl.max(CALL_GRACE));
    trial.in_time(&taken, until, "the one behind a silent place")?;
    trial.client(2).free(&claim).await?;
    trial.client(1).end(&silent).await?;
    trial.client(0).expect_no_claims(&resource, "after all releases").await
}

/// Returns a mutex that is held, and two claims that wait for it.
async fn two_queued(trial: &Trial, resource: &Resource) -> Checked<(Claim, Waiting, Waiting)> {
    let holder = trial.claim(resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let first = trial.client(1).wait_only(trial.claim(resource, Share::MUTEX)?);
    trial.client(1).wait_until_queued(resource, 1).await?;
    let second = trial.client(2).wait(trial.claim(resource, Share::MUTEX)?);
    trial.client(2).wait_until_queued(resource, 2).await?;
    Ok((holder, first, second))
}

const ROUNDS: usize = 7;
const RACES: usize = 200;
const PASSES: usize = 60;
const ASLEEP: Duration = Duration::from_millis(30);
/// Far above what a notification takes on a busy machine, far below what polling or a lease would take.
const PROMPT: Duration = Duration::from_millis(250);
