//! Several processes: they take turns, and the others continue when one is killed or stopped.
//!
//! A waiter in this process is a client like any other; only the process that dies is a taker.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{CALL_GRACE, Claim, Clock, Fence, Moment, Resource, Share};

use crate::client::{AT_ONCE, HANG, TestClient, Waiting};
use crate::clock::patience_for;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::random::{self, Random};
use crate::referee::Referee;
use crate::subject::TakerCommand;
use crate::taker::Taker;
use crate::trial::Trial;

pub(crate) async fn processes_take_turns(trial: &Trial) -> Checked {
    let command = trial.taker()?;
    let resource = trial.resource("turns")?;
    let mut takers = [Taker::start(&command).await?, Taker::start(&command).await?];
    let mut last: Option<Fence> = None;
    for n in 0..TURNS {
        let claim = trial.claim(&resource, Share::MUTEX)?;
        let other = trial.claim(&resource, Share::MUTEX)?;
        let [first, second] = &mut takers;
        let (taker, idle) = if n % 2 == 0 { (first, second) } else { (second, first) };
        rises(taker.hold(&claim).await?, &mut last)?;
        let refused = idle.take(&other, Duration::ZERO).await?;
        ensure!(refused.is_none(), "two processes hold one mutex");
        trial.client(n).refused(&other).await?;
        ensure!(idle.look(&resource).await? == (1, 0), "a process does not see the holder in another");
        let answer = taker.release(&claim).await?;
        ensure!(answer == "freed", "the release of a held claim answered {answer:?} in another process");
        let claim = trial.claim(&resource, Share::MUTEX)?;
        rises(trial.client(n).hold(&claim).await?.fence, &mut last)?;
        let refused = idle.take(&other, Duration::ZERO).await?;
        ensure!(refused.is_none(), "a process takes what another holds");
        trial.client(n).free(&claim).await?;
    }
    trial.client(0).expect_no_claims(&resource, "after all turns").await
}

pub(crate) async fn one_holder_among_processes(trial: &Trial) -> Checked {
    let command = trial.taker()?;
    let resource = trial.resource("storm")?;
    let referee = Arc::new(Referee::default());
    let end = trial.clock.now().after(STORM);
    let mut tasks = Vec::new();
    for n in 0..3 {
        let (mutex, referee, clock) =
            (trial.claim(&resource, Share::MUTEX)?, referee.clone(), trial.clock.clone());
        tasks.push(tokio::spawn(rounds_elsewhere(
            command.clone(),
            mutex.clone(),
            referee.clone(),
            clock,
            end,
        )));
        tasks.push(tokio::spawn(rounds_here(trial.client(n).clone(), mutex, referee, end)));
    }
    for task in tasks {
        task.await??;
    }
    trial.client(0).expect_no_claims(&resource, "after the last taker has left").await
}

async fn rounds_elsewhere(
    command: TakerCommand,
    mutex: Claim,
    referee: Arc<Referee>,
    clock: Arc<dyn Clock>,
    end: Moment,
) -> Checked {
    let mut taker = Taker::start(&command).await?;
    let mut random = Random::new()?;
    while clock.now() < end {
        let claim = mutex.clone().id(random::id()?);
        let floor = referee.floor();
        let Some(fence) = taker.take(&claim, clock.now().until(end)).await? else { continue };
        referee.enter(claim.share, fence, floor)?;
        tokio::time::sleep(Duration::from_millis(random.below(3))).await;
        referee.leave(claim.share)?;
        let answer = taker.release(&claim).await?;
        ensure!(answer == "freed", "the release of a held claim answered {answer:?}");
    }
    Ok(())
}

async fn rounds_here(client: TestClient, mutex: Claim, referee: Arc<Referee>, end: Moment) -> Checked {
    let mut random = Random::new()?;
    while client.clock.now() < end {
        let claim = mutex.clone().id(random::id()?);
        let floor = referee.floor();
        let patience = patience_for(&client.clock, client.clock.now().until(end));
        let Some(taken) = client.take(&claim, &patience).await? else { continue };
        referee.enter(claim.share, taken.grant.fence, floor)?;
        tokio::time::sleep(Duration::from_millis(random.below(3))).await;
        referee.leave(claim.share)?;
        client.free(&claim).await?;
    }
    Ok(())
}

pub(crate) async fn a_release_wakes_another_process(trial: &Trial) -> Checked {
    let command = trial.taker()?;
    let resource = trial.resource("wakes")?;
    let mut taker = Taker::start(&command).await?;
    for _ in 0..3 {
        let (theirs, ours) = (trial.claim(&resource, Share::MUTEX)?, trial.claim(&resource, Share::MUTEX)?);
        taker.hold(&theirs).await?;
        let waiting = trial.client(0).wait(ours.clone());
        trial.client(0).wait_until_queued(&resource, 1).await?;
        tokio::time::sleep(ASLEEP).await;
        let released_at = trial.clock.now();
        taker.release(&theirs).await?;
        let taken = waiting.granted(HANG, "after a release in another process").await?;
        trial.in_time(&taken, released_at, "after a release in another process")?;
        let theirs = trial.claim(&resource, Share::MUTEX)?;
        taker.begin_to_take(&theirs, HANG).await?;
        trial.client(0).wait_until_queued(&resource, 1).await?;
        tokio::time::sleep(ASLEEP).await;
        let released_at = trial.clock.now();
        trial.client(0).free(&ours).await?;
        ensure!(taker.taken(HANG).await?.is_some(), "another process was not granted what was released");
        let delay = trial.clock.now().since(released_at);
        // Only the other process knows how long it was asked to pause.
        if !trial.polls() && delay > trial.promise(Duration::ZERO) {
            return Err(NotKept::late(format!("another process was woken {delay:?} after the release")));
        }
        taker.release(&theirs).await?;
    }
    trial.client(1).expect_no_claims(&resource, "after all releases").await
}

pub(crate) async fn a_killed_holder_is_succeeded(trial: &Trial) -> Checked {
    let command = trial.taker()?;
    for share in trial.exclusive_shares()?.into_iter().chain(trial.concurrent_shares()?) {
        let resource = trial.resource(&format!("holder/{share}"))?;
        let mut taker = Taker::start(&command).await?;
        let theirs = trial.short(&resource, share)?;
        let asked_at = trial.clock.now();
        let fence = taker.hold(&theirs).await?;
        let ends_at = trial.clock.now().after(trial.ttl() + trial.profile().granularity);
        let (beside, blocked) = trial.fill(share)?;
        let mut stay = Vec::new();
        for share in beside {
            stay.push(trial.claim(&resource, share)?);
            trial.client(1).hold(&stay[stay.len() - 1]).await?;
        }
        let mut waiting = trial.client(0).wait(trial.claim(&resource, blocked)?);
        queued_behind(trial, &mut waiting, asked_at).await?;
        taker.kill().await?;
        let killed_at = trial.clock.now();
        let claim = waiting.claim.clone();
        let taken =
            waiting.granted(trial.ttl() + silence(trial) + HANG, "after the holder was killed").await?;
        if trial.is_session() {
            let ends_at =
                killed_at.after(trial.lives_without_contact().map_or(Duration::ZERO, |_| silence(trial)));
            trial.in_time(&taken, ends_at, "after the holder was killed")?;
        } else {
            let earliest = trial.valid_until(asked_at);
            ensure!(taken.at >= earliest, "granted {:?} before the lease ended", taken.at.until(earliest));
            let ends_at = ends_at.after(trial.profile().overrun);
            trial.in_time(&taken, ends_at.max(killed_at), "after the lease of a killed holder")?;
        }
        let rising = taken.grant.fence.is_none() || taken.grant.fence > fence;
        ensure!(rising, "{:?} was granted after {fence:?}", taken.grant.fence);
        trial.client(0).free(&claim).await?;
        for claim in &stay {
            trial.client(1).free(claim).await?;
        }
        trial.client(1).expect_no_claims(&resource, "after the successor's release").await?;
    }
    Ok(())
}

/// Waits until a claim is queued behind a short one that another process asked for at this time. If the lease
/// of that one has ended before, nothing is proven.
async fn queued_behind(trial: &Trial, waiting: &mut Waiting, asked_at: Moment) -> Checked {
    let resource = waiting.claim.resource.clone();
    let over = async {
        while !waiting.is_over() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        queued = trial.client(0).wait_until_queued(&resource, 1) => queued?,
        () = over => {}
    }
    let Some(taken) = waiting.granted_already().await? else { return Ok(()) };
    let what = format!("granted beside a holder in another process: {taken:?}");
    if trial.is_session() || taken.at < trial.valid_until(asked_at) {
        return Err(NotKept::Broken(what));
    }
    Err(NotKept::Delayed(format!("{what}, but its lease had ended")))
}

pub(crate) async fn killed_waiter_does_not_block_the_queue(trial: &Trial) -> Checked {
    let command = trial.taker()?;
    let resource = trial.resource("waiter")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let mut waits = vec![trial.client(1).wait(trial.claim(&resource, Share::MUTEX)?)];
    trial.client(1).wait_until_queued(&resource, 1).await?;
    let mut taker = Taker::start(&command).await?;
    taker.begin_to_take(&trial.short(&resource, Share::MUTEX)?, HANG).await?;
    trial.client(1).wait_until_queued(&resource, 2).await?;
    waits.push(trial.client(2).wait(trial.claim(&resource, Share::MUTEX)?));
    trial.client(2).wait_until_queued(&resource, 3).await?;
    taker.kill().await?;
    let mut free_at = trial.clock.now();
    trial.client(0).free(&holder).await?;
    if !trial.is_fifo() {
        trial.drain(waits.split_off(0), silence(trial) + HANG, "around a waiter that was killed").await?;
    }
    for waiting in waits {
        let (client, claim) = (waiting.client.clone(), waiting.claim.clone());
        let taken = waiting.granted(silence(trial) + HANG, "around a waiter that was killed").await?;
        trial.in_time(&taken, free_at.after(silence(trial)), "around a waiter that was killed")?;
        free_at = trial.clock.now();
        client.free(&claim).await?;
    }
    // If no other claim contends, the place of the dead waiter ends by its own time.
    expect_no_claims_at_last(trial, &resource, "long after a waiter was killed").await
}

/// Waiters that died together cost the live ones the silence of one, not of each.
pub(crate) async fn killed_waiters_are_passed_over_together(trial: &Trial) -> Checked {
    trial.needs_fifo()?;
    let command = trial.taker()?;
    let resource = trial.resource("dead")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let mut takers = [Taker::start(&command).await?, Taker::start(&command).await?];
    for n in 0..DEAD_WAITERS {
        // Their own leases and places are long: only that they do not answer shows that they died.
        takers[n % 2].enqueue(&trial.claim(&resource, Share::MUTEX)?).await?;
        trial.client(1).wait_until_queued(&resource, n + 1).await?;
    }
    let lives = trial.client(1).wait(trial.claim(&resource, Share::MUTEX)?);
    trial.client(1).wait_until_queued(&resource, DEAD_WAITERS + 1).await?;
    for taker in takers {
        taker.kill().await?;
    }
    let free_at = trial.clock.now();
    trial.client(0).free(&holder).await?;
    let claim = lives.claim.clone();
    let limit =
        DEAD_WAITERS_LIMIT + if trial.is_session() { silence(trial) } else { trial.profile().overrun };
    let taken = lives.granted(limit + HANG, "behind many that were killed").await?;
    let delay = taken.at.since(free_at);
    if delay > limit {
        return Err(NotKept::late(format!(
            "{DEAD_WAITERS} waiters were killed, and the next was granted {delay:?} later"
        )));
    }
    trial.client(1).free(&claim).await?;
    trial.client(0).expect_no_claims(&resource, "after those that were killed were passed over").await
}

/// The turn of a claim that wants more than is free has not come when it dies. A claim that wants less is
/// granted nevertheless.
pub(crate) async fn killed_waiter_does_not_block_free_capacity(trial: &Trial) -> Checked {
    let command = trial.taker()?;
    trial.needs_share(Share::READER)?;
    let resource = trial.resource("room")?;
    let holder = trial.claim(&resource, Share::READER)?;
    trial.client(0).hold(&holder).await?;
    let mut taker = Taker::start(&command).await?;
    taker.begin_to_take(&trial.short(&resource, Share::WRITER)?, HANG).await?;
    trial.client(1).wait_until_queued(&resource, 1).await?;
    taker.kill().await?;
    let killed_at = trial.clock.now();
    let (beside, what) = (trial.claim(&resource, Share::READER)?, "behind a writer that was killed");
    let taken = trial.client(1).take_within(&beside, silence(trial) + HANG, what).await?;
    trial.in_time(&taken, killed_at.after(silence(trial)), what)?;
    trial.client(1).free(&beside).await?;
    trial.client(0).free(&holder).await?;
    expect_no_claims_at_last(trial, &resource, "long after a writer that waited was killed").await
}

/// Killed at any instant of taking and releasing, a process leaves the resource usable, and its fences used
/// up.
pub(crate) async fn kill_at_any_instant_leaves_no_damage(trial: &Trial) -> Checked {
    let command = trial.taker()?;
    let resource = trial.resource("instant")?;
    let mut random = Random::new()?;
    let mut last: Option<Fence> = None;
    for _ in 0..KILLS {
        let mut taker = Taker::start(&command).await?;
        let end = trial.clock.now().after(Duration::from_micros(random.below(20_000)));
        let mut claim = trial.short(&resource, Share::MUTEX)?;
        taker.begin_to_take(&claim, HANG).await?;
        while trial.clock.now() < end {
            // Some calls are awaited, so that the last one before the kill is any of them at any of its
            // steps.
            let answer = tokio::time::timeout(trial.clock.now().until(end), taker.taken(HANG)).await;
            let Ok(answer) = answer else { break };
            let fence =
                answer?.ok_or_else(|| NotKept::broken("a process alone on a resource was not granted it"))?;
            rises(fence, &mut last)?;
            taker.begin_to_release(&claim).await?;
            if tokio::time::timeout(trial.clock.now().until(end), taker.released()).await.is_err() {
                break;
            }
            claim = trial.short(&resource, Share::MUTEX)?;
            taker.begin_to_take(&claim, HANG).await?;
        }
        taker.kill().await?;
        let free_at = trial.clock.now().after(if trial.is_session() { Duration::ZERO } else { trial.ttl() });
        let ours = trial.claim(&resource, Share::MUTEX)?;
        let taken = trial
            .client(0)
            .take_within(&ours, trial.ttl() + silence(trial) + HANG, "after a process was killed")
            .await?;
        rises(taken.grant.fence, &mut last)?;
        trial.in_time(&taken, free_at.after(silence(trial)), "after a process was killed")?;
        trial.client(0).free(&ours).await?;
    }
    // What the last of them had asked for may be carried out after its death.
    expect_no_claims_at_last(trial, &resource, "long after all were killed").await
}

pub(crate) async fn a_stopped_holder_loses_its_lease(trial: &Trial) -> Checked {
    let command = trial.taker()?;
    let Some(lifetime) = trial.lives_without_contact() else {
        return Err(NotKept::OptedOut("a session keeps its claims, not a lease".to_owned()));
    };
    let resource = trial.resource("stopped")?;
    let mut taker = Taker::start(&command).await?;
    let theirs = trial.short(&resource, Share::MUTEX)?;
    let fence = taker.hold(&theirs).await?;
    taker.stop().await?;
    let ours = trial.claim(&resource, Share::MUTEX)?;
    let wait = lifetime + trial.outlives() + HANG;
    let taken = trial.client(0).take_within(&ours, wait, "after the lease of a stopped holder").await?;
    let rising = taken.grant.fence.is_none() || taken.grant.fence > fence;
    ensure!(rising, "{:?} was granted after {fence:?}", taken.grant.fence);
    taker.resume()?;
    let answer = renewed_at_last(trial, &mut taker, &theirs).await?;
    ensure!(answer == "lost", "the renewal of a lease that another has now answered {answer:?}");
    let answer = taker.release(&theirs).await?;
    ensure!(answer == "gone", "the release of a lease that another has now answered {answer:?}");
    let again = trial.client(0).hold(&ours).await?;
    ensure!(again.fence == taken.grant.fence, "the release by one that had lost it touched the successor");
    trial.client(1).refused(&trial.claim(&resource, Share::MUTEX)?).await?;
    trial.client(0).free(&ours).await
}

pub(crate) async fn a_stopped_holder_keeps_its_session(trial: &Trial) -> Checked {
    let command = trial.taker()?;
    trial.needs_session()?;
    if trial.lives_without_contact().is_some() {
        return Err(NotKept::OptedOut("its session ends unless it is heard of".to_owned()));
    }
    let resource = trial.resource("stopped")?;
    let mut taker = Taker::start(&command).await?;
    let theirs = trial.short(&resource, Share::MUTEX)?;
    taker.hold(&theirs).await?;
    taker.stop().await?;
    let mut waiting = trial.client(0).wait(trial.claim(&resource, Share::MUTEX)?);
    tokio::time::sleep(trial.ttl() * 2).await;
    waiting.still_waits("granted while the holder is only stopped").await?;
    trial.client(1).refused(&trial.claim(&resource, Share::MUTEX)?).await?;
    taker.resume()?;
    let answer = taker.renew(&theirs).await?;
    ensure!(answer == "alive" || answer == "renewed", "the renewal of a living session answered {answer:?}");
    let released_at = trial.clock.now();
    let answer = taker.release(&theirs).await?;
    ensure!(answer == "freed", "the release by a living session answered {answer:?}");
    let claim = waiting.claim.clone();
    let taken = waiting.granted(HANG, "after the release").await?;
    trial.in_time(&taken, released_at, "after the release")?;
    trial.client(0).free(&claim).await
}

/// Returns the answer to a renewal, repeated while it is not known: a connection that broke while its
/// process was stopped is found broken by the first that uses it.
async fn renewed_at_last(trial: &Trial, taker: &mut Taker, claim: &Claim) -> Checked<String> {
    let until = trial.clock.now().after(AT_ONCE);
    loop {
        let answer = taker.renew(claim).await;
        let failed = match &answer {
            Ok(answer) => answer.starts_with("failed"),
            Err(why) => matches!(why, NotKept::Late(_)),
        };
        if !trial.is_session() || !failed || trial.clock.now() >= until {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Checks that no claim is left once all claims of killed processes have ended by their own time.
async fn expect_no_claims_at_last(trial: &Trial, resource: &Resource, why: &str) -> Checked {
    let patience = patience_for(&trial.clock, silence(trial).max(trial.ttl()) + CALL_GRACE * 2);
    while !patience.is_ended() {
        // A request that is carried out late may come between two looks, so both are repeated.
        if trial.client(3).expect_no_claims(resource, why).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    trial.client(3).expect_no_claims(resource, why).await
}

/// Returns for how long a place may be in the way after its process died.
fn silence(trial: &Trial) -> Duration {
    let place = trial.profile().place_ttl;
    if place.is_zero() {
        // No place exists, but its lease may go late all the same.
        return trial.profile().overrun;
    }
    place.max(CALL_GRACE).max(trial.ttl()) + trial.profile().overrun
}

fn rises(fence: Option<Fence>, last: &mut Option<Fence>) -> Checked {
    ensure!(fence.is_none() || fence > *last, "{fence:?} was granted after {last:?}");
    *last = fence;
    Ok(())
}

const TURNS: usize = 8;
const STORM: Duration = Duration::from_millis(1200);
const ASLEEP: Duration = Duration::from_millis(30);
const KILLS: usize = 8;

/// The number of waiters that die together. One by one they would cost a second each.
const DEAD_WAITERS: usize = 16;
/// Two seconds are promised. No machine is so busy that it takes four times as long, and one by one they
/// take twice that.
const DEAD_WAITERS_LIMIT: Duration = Duration::from_secs(8);
