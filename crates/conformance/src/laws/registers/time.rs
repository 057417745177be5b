//! Waits for a change of a register, and values that end by themselves.

use std::time::Duration;

use leasehold_core::{Effect, FailureKind, Moment, Patience, Registered, Resource, Stamp, WaitMode};
use tokio::task::JoinHandle;

use super::steps::{present, put, read, remove, store, swap, write};
use crate::client::{AT_ONCE, TestClient, within};
use crate::clock::{briefly, patience_for};
use crate::not_kept::{Checked, NotKept, ensure};
use crate::random::Random;
use crate::trial::Trial;

pub(crate) async fn register_change_wakes_its_waiters(trial: &Trial) -> Checked {
    let at = trial.resource("wakes")?;
    for round in 0..WAKES {
        let seen = read(trial.client(1), &at).await?;
        let waiting = wait(trial.client(1), &at, &seen.stamp, Patience::unlimited(trial.clock.clone()))?;
        tokio::time::sleep(ASLEEP).await;
        let changed_at = trial.clock.now();
        // A removal is a change like any other.
        let value = if round % 2 == 0 { Some(&b"new"[..]) } else { None };
        let stamp = swap(trial.client(0), &at, &seen.stamp, value).await?;
        let (found, at_last) = reported_within(waiting, trial).await?;
        ensure!(Some(&found.stamp) == stamp.as_ref(), "{stamp:?} was written, and {found:?} is reported");
        ensure!(found.value.as_deref() == value, "{value:?} was written, and {:?} is reported", found.value);
        let delay = at_last.since(changed_at);
        if delay > WAKE {
            return Err(NotKept::late(format!("a change was reported after {delay:?}")));
        }
    }
    Ok(())
}

pub(crate) async fn no_change_is_lost_between_check_and_wait(trial: &Trial) -> Checked {
    let at = trial.resource("between")?;
    let polls = store(trial.client(0))?.promise().waiting == WaitMode::Polls;
    let (rounds, mut random, mut slow) = (if polls { RACES / 10 } else { RACES }, Random::new()?, 0);
    for n in 0..rounds {
        let seen = read(trial.client(n), &at).await?.stamp;
        let waiting = wait(trial.client(n + 1), &at, &seen, Patience::unlimited(trial.clock.clone()))?;
        briefly(Duration::from_micros(random.below(2500))).await;
        let value = n.to_string();
        swap(trial.client(n), &at, &seen, Some(value.as_bytes())).await?;
        let changed_at = trial.clock.now();
        let (found, at_last) = reported_within(waiting, trial).await?;
        ensure!(
            found.value.as_deref() == Some(value.as_bytes()),
            "{value} was written, {found:?} is reported"
        );
        // A backend may check again from time to time; its waiters must not depend on that.
        slow += usize::from(at_last.since(changed_at) > WAKE / 2);
    }
    if slow > rounds / 20 {
        return Err(NotKept::late(format!(
            "{slow} of {rounds} changes between look and wait were noticed late"
        )));
    }
    Ok(())
}

pub(crate) async fn waiter_with_an_old_state_is_answered_at_once(trial: &Trial) -> Checked {
    let (at, client) = (trial.resource("past")?, trial.client(0));
    let mut past = vec![read(client, &at).await?.stamp];
    past.push(write(trial.client(1), &at, b"one").await?);
    let last = write(trial.client(1), &at, b"two").await?;
    for seen in past {
        let patience = Patience::unlimited(trial.clock.clone());
        let found = within(AT_ONCE, "changed", store(client)?.changed(&at, &seen, &patience)).await??;
        ensure!(found.stamp == last, "{last:?} is the present state, and {found:?} is reported");
    }
    Ok(())
}

pub(crate) async fn register_wait_returns_when_patience_ends(trial: &Trial) -> Checked {
    let at = trial.resource("patience")?;
    let stamp = write(trial.client(0), &at, b"stays").await?;
    for client in trial.clients() {
        let none = Patience::none(trial.clock.clone());
        let found = within(AT_ONCE, "changed", store(client)?.changed(&at, &stamp, &none)).await??;
        ensure!(found.stamp == stamp, "nothing was written, and {found:?} is reported");
    }
    // Once by the clock, and once by a call.
    for by_call in [false, true] {
        let begun = trial.clock.now();
        let patience = match by_call {
            false => patience_for(&trial.clock, PATIENT),
            true => Patience::unlimited(trial.clock.clone()),
        };
        let waiting = wait(trial.client(1), &at, &stamp, patience.clone())?;
        if by_call {
            tokio::time::sleep(PATIENT).await;
            patience.end();
        }
        let (found, at_last) = reported_within(waiting, trial).await?;
        ensure!(found.stamp == stamp, "nothing was written, and {found:?} is reported");
        let waited = at_last.since(begun);
        ensure!(waited + SLACK >= PATIENT, "nothing changed, and it came back after {waited:?}");
        if waited > PATIENT + WAKE {
            return Err(NotKept::late(format!("a wait of {PATIENT:?} took {waited:?}")));
        }
    }
    Ok(())
}

pub(crate) async fn a_value_is_forgotten_in_time_and_not_earlier(trial: &Trial) -> Checked {
    let (at, client) = (trial.resource("forgets")?, trial.client(0));
    let keep = trial.ttl();
    let lasting = write(client, &at, b"lasting").await?;
    if !store(client)?.promise().forgets {
        let refused = store(client)?.swap(&at, &lasting, &put(Some(b"short"), Some(keep))).await;
        return match refused {
            Err(failure) if failure.kind == FailureKind::Unsupported && failure.effect == Effect::None => {
                ensure!(present(client, &at).await?.1 == lasting, "a refused write took place");
                Ok(())
            }
            other => Err(NotKept::broken(format!("it says that it does not forget, and answers {other:?}"))),
        };
    }
    let asked_at = trial.clock.now();
    let stamp = store(client)?.swap(&at, &lasting, &put(Some(b"short"), Some(keep))).await?;
    let written_at = trial.clock.now();
    let Some(stamp) = stamp else { return Err(NotKept::broken("a write on the present state was refused")) };
    let (mut last_present, limit) = (written_at, keep + lateness(trial));
    loop {
        let asking_at = trial.clock.now();
        let found = read(trial.client(1), &at).await?;
        let age = trial.clock.now().since(asked_at);
        if found.value.is_none() {
            ensure!(age >= keep, "a value for {keep:?} was forgotten {age:?} after it was written");
            break;
        }
        ensure!(found.stamp == stamp, "nobody wrote, and the stamp is {:?}, not {stamp:?}", found.stamp);
        let Some(left) = found.left else { return Err(NotKept::broken("a value for a while has no end")) };
        let most = keep + trial.profile().granularity;
        ensure!(left <= most, "a value for {keep:?} is to be there for {left:?} more");
        last_present = asking_at;
        if last_present.since(written_at) > limit {
            let lived = last_present.since(written_at);
            return Err(NotKept::late(format!(
                "a value for {keep:?} is there {lived:?} after it was written"
            )));
        }
        tokio::time::sleep(POLL_PAUSE).await;
    }
    let late = swap(client, &at, &stamp, Some(b"late")).await?;
    ensure!(late.is_none(), "what was forgotten at {last_present:?} was overwritten as if it were there");
    // A value for ever, in the place of one for a while, stays.
    short(client, &at, keep).await?;
    write(client, &at, b"lasting").await?;
    tokio::time::sleep(keep + lateness(trial)).await;
    let found = read(client, &at).await?;
    ensure!(found.value.is_some() && found.left.is_none(), "a value for ever became {found:?}");
    remove(client, &at).await.map(drop)
}

pub(crate) async fn reported_remaining_time_never_exceeds_the_real_one(trial: &Trial) -> Checked {
    let (at, client) = (trial.resource("left")?, trial.client(0));
    let promise = store(client)?.promise();
    if !promise.forgets {
        return Err(NotKept::OptedOut("it forgets nothing".to_owned()));
    }
    let exact = trial.profile().granularity;
    // A store may keep a long value for longer still.
    for keep in LONG_KEEPS {
        let asked_at = trial.clock.now();
        keep_for(client, &at, keep).await?;
        let left = left_of(trial.client(1), &at).await?;
        ensure!(left <= keep + exact, "a value for {keep:?} is to be there for {left:?}");
        let lived = trial.clock.now().since(asked_at);
        let least = keep.saturating_sub(lived + promise.rounding + exact);
        ensure!(left >= least, "{lived:?} after a value for {keep:?} was written {left:?} are left");
    }
    // It is written again with what is left, as a single flight does, and lives no longer for that.
    let (keep, written_at) = (LONG_KEEPS[0], keep_for(client, &at, LONG_KEEPS[0]).await?);
    let mut writing = Duration::ZERO;
    for _ in 0..REWRITES {
        tokio::time::sleep(REWRITE_PAUSE).await;
        let asked_at = trial.clock.now();
        let left = left_of(client, &at).await?;
        // On the way from the read to the write nothing is taken off.
        writing += keep_for(client, &at, left).await?.since(asked_at);
    }
    let lived = trial.clock.now().since(written_at);
    let (left, most) = (left_of(client, &at).await?, keep + exact * (REWRITES + 1) + writing);
    ensure!(
        left + lived <= most,
        "written {REWRITES} times, a value for {keep:?} has {left:?} left after {lived:?}"
    );
    remove(client, &at).await.map(drop)
}

pub(crate) async fn end_of_a_value_wakes_its_waiters(trial: &Trial) -> Checked {
    let (at, keep) = (trial.resource("end")?, trial.ttl());
    if !store(trial.client(0))?.promise().forgets {
        return Err(NotKept::OptedOut("it forgets nothing".to_owned()));
    }
    let stamp = short(trial.client(0), &at, keep).await?;
    let written_at = trial.clock.now();
    let waiting = wait(trial.client(1), &at, &stamp, Patience::unlimited(trial.clock.clone()))?;
    let (found, at_last) = reported_within(waiting, trial).await?;
    ensure!(found.value.is_none(), "nobody wrote, and {found:?} is reported");
    let (waited, limit) = (at_last.since(written_at), keep + lateness(trial));
    if waited > limit {
        return Err(NotKept::late(format!("the end of a value for {keep:?} was reported after {waited:?}")));
    }
    Ok(())
}

/// Writes a value for this time, over any present one. Returns when it was written.
async fn keep_for(client: &TestClient, at: &Resource, keep: Duration) -> Checked<Moment> {
    short(client, at, keep).await?;
    Ok(client.clock.now())
}

async fn left_of(client: &TestClient, at: &Resource) -> Checked<Duration> {
    let found = read(client, at).await?;
    found.left.ok_or_else(|| NotKept::broken(format!("a value for a while has no end: {found:?}")))
}

/// Writes a value for a while, over any present one.
async fn short(client: &TestClient, at: &Resource, keep: Duration) -> Checked<Stamp> {
    let seen = read(client, at).await?.stamp;
    let written = store(client)?.swap(at, &seen, &put(Some(b"short"), Some(keep))).await?;
    written.ok_or_else(|| NotKept::broken("a write on the present state was refused"))
}

/// Waits in a task of its own, as the engine does: a poller asks again.
fn wait(
    client: &TestClient,
    at: &Resource,
    seen: &Stamp,
    patience: Patience,
) -> Checked<JoinHandle<Checked<(Registered, Moment)>>> {
    let polls = store(client)?.promise().waiting == WaitMode::Polls;
    let (client, at, seen) = (client.clone(), at.clone(), seen.clone());
    Ok(tokio::spawn(async move {
        loop {
            let looking = store(&client)?.changed(&at, &seen, &patience);
            let found = if polls { within(AT_ONCE, "changed", looking).await?? } else { looking.await? };
            if found.stamp != seen || patience.is_ended() {
                return Ok((found, client.clock.now()));
            }
            ensure!(polls, "it came back with what was seen, and patience has not ended");
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }))
}

/// Returns what was reported, and when; it must come in the end.
async fn reported_within(
    waiting: JoinHandle<Checked<(Registered, Moment)>>,
    trial: &Trial,
) -> Checked<(Registered, Moment)> {
    let limit = WAKE * 3 + trial.ttl() + lateness(trial);
    match tokio::time::timeout(limit, waiting).await {
        Ok(reported) => reported?,
        Err(_) => Err(NotKept::late(format!("nothing was reported within {limit:?}"))),
    }
}

/// Returns how much later than asked for a value may be gone.
fn lateness(trial: &Trial) -> Duration {
    trial.profile().granularity * 2 + trial.profile().overrun + WAKE
}

const WAKES: usize = 4;
const RACES: usize = 40;
/// A pause that is long enough that the waiter is asleep.
const ASLEEP: Duration = Duration::from_millis(60);
/// A minute, above which a store may count in larger steps, and ten of them.
const LONG_KEEPS: [Duration; 2] = [Duration::from_secs(65), Duration::from_secs(601)];
const REWRITES: u32 = 4;
/// With the number of times, longer than a step of a store that counts seconds.
const REWRITE_PAUSE: Duration = Duration::from_millis(400);
const PATIENT: Duration = Duration::from_millis(300);
/// Timers may be this much early.
const SLACK: Duration = Duration::from_millis(5);
const POLL_PAUSE: Duration = Duration::from_millis(10);
const WAKE: Duration = Duration::from_secs(1);
