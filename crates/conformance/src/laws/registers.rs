//! Registers: small values that change on a condition, whole and one after the other, and that can be
//! waited for.

mod concurrent;
mod steps;
mod time;

use std::time::Duration;

use leasehold_core::{Effect, FailureKind, Resource, Share, Stamp};

use crate::client::TestClient;
use crate::laws::view;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

pub(crate) use concurrent::{
    no_addition_is_lost, of_many_writes_on_one_state_one_succeeds, successful_writes_form_one_chain,
    values_are_never_read_by_half,
};
use steps::{present, put, read, remove, store, swap, unwritten_stamp, write};
pub(crate) use time::{
    a_value_is_forgotten_in_time_and_not_earlier, end_of_a_value_wakes_its_waiters,
    no_change_is_lost_between_check_and_wait, register_change_wakes_its_waiters,
    register_wait_returns_when_patience_ends, reported_remaining_time_never_exceeds_the_real_one,
    waiter_with_an_old_state_is_answered_at_once,
};

pub(crate) async fn promises_are_the_same_on_every_connection(trial: &Trial) -> Checked {
    let promise = store(trial.client(0))?.promise().clone();
    ensure!(promise.max_bytes >= LEAST, "values of {} bytes are too short for anything", promise.max_bytes);
    for client in trial.clients() {
        let other = store(client)?.promise();
        ensure!(*other == promise, "one connection promises {promise:?}, another {other:?}");
    }
    Ok(())
}

pub(crate) async fn value_is_kept_until_it_is_removed(trial: &Trial) -> Checked {
    let at = trial.resource("stands")?;
    let (one, other) = (trial.client(0), trial.client(1));
    let nothing = unwritten_stamp(one, &at).await?;
    for value in [&b"first"[..], b"second"] {
        let before = read(one, &at).await?.stamp;
        let stamp = swap(one, &at, &before, Some(value)).await?;
        let Some(stamp) = stamp else {
            return Err(NotKept::broken("a write on the present state was refused"));
        };
        for client in [one, other] {
            let found = read(client, &at).await?;
            ensure!(
                found.value.as_deref() == Some(value),
                "{value:?} was written, {:?} is read",
                found.value
            );
            ensure!(found.stamp == stamp, "written as {stamp:?}, read as {:?}", found.stamp);
            ensure!(found.left.is_none(), "a value for ever has {:?} left", found.left);
        }
    }
    remove(other, &at).await?;
    let found = read(one, &at).await?;
    ensure!(found.value.is_none() && found.left.is_none(), "removed, and there is {found:?}");
    // Removing nothing is a write like any other: it takes place on what was seen.
    let again = swap(one, &at, &found.stamp, None).await?;
    ensure!(again.is_some(), "the removal of nothing was refused on {:?}, at first {nothing:?}", found.stamp);
    Ok(())
}

pub(crate) async fn a_stale_stamp_never_writes(trial: &Trial) -> Checked {
    let at = trial.resource("stale")?;
    let client = trial.client(0);
    let mut past = vec![unwritten_stamp(client, &at).await?];
    for value in [Some(&b"a"[..]), Some(b"b"), None, Some(b"a"), Some(b"a")] {
        let seen = read(client, &at).await?;
        let written = swap(client, &at, &seen.stamp, value).await?;
        let Some(written) = written else {
            return Err(NotKept::broken("a write on the present state was refused"));
        };
        for stale in past.iter().filter(|stale| **stale != written) {
            for late in [Some(&b"late"[..]), None] {
                let done = swap(trial.client(1), &at, stale, late).await?;
                ensure!(done.is_none(), "{late:?} was written on {stale:?}, and {written:?} was there");
            }
        }
        let found = read(client, &at).await?;
        ensure!(found.value.as_deref() == value, "a write that was refused left {:?}", found.value);
        past.push(written);
    }
    Ok(())
}

pub(crate) async fn no_two_writes_have_one_stamp(trial: &Trial) -> Checked {
    let at = trial.resource("stamps")?;
    let mut stamps: Vec<Stamp> = Vec::new();
    for n in 0..REWRITES {
        let client = trial.client(n);
        let stamp = write(client, &at, b"the same").await?;
        ensure!(!stamps.contains(&stamp), "two writes of one value have the stamp {stamp:?}");
        stamps.push(stamp);
        if n % 2 == 0 {
            remove(client, &at).await?;
        }
    }
    Ok(())
}

pub(crate) async fn removal_leaves_a_state_of_its_own(trial: &Trial) -> Checked {
    let (at, client) = (trial.resource("removals")?, trial.client(0));
    if !store(client)?.promise().names_removals {
        return Err(NotKept::OptedOut("all its states without a value are one".to_owned()));
    }
    let mut past = vec![unwritten_stamp(client, &at).await?];
    for round in 0..REMOVALS {
        write(trial.client(round), &at, b"removed at once").await?;
        let stamp = remove(trial.client(round + 1), &at).await?;
        let found = read(client, &at).await?;
        ensure!(found.stamp == stamp, "removed as {stamp:?}, read as {:?}", found.stamp);
        for earlier in &past {
            ensure!(*earlier != stamp, "a removal leaves the state {stamp:?}, which there was before");
            // As a request that comes late, or for the second time.
            let late = swap(client, &at, earlier, Some(b"late")).await?;
            ensure!(late.is_none(), "written on {earlier:?}, after the removal that left {stamp:?}");
        }
        past.push(stamp);
    }
    Ok(())
}

pub(crate) async fn every_value_reads_back_byte_for_byte(trial: &Trial) -> Checked {
    let at = trial.resource("bytes")?;
    let max = store(trial.client(0))?.promise().max_bytes;
    let all: Vec<u8> = (0..=255).cycle().take(1021).collect();
    let longest: Vec<u8> = (0..=250).rev().cycle().take(max).collect();
    for value in [Vec::new(), vec![0], b"\r\n".to_vec(), vec![0xff; 7], all, longest] {
        write(trial.client(0), &at, &value).await?;
        let found = present(trial.client(1), &at).await?;
        ensure!(found.0 == value, "of {} bytes {} come back, or others", value.len(), found.0.len());
    }
    Ok(())
}

pub(crate) async fn a_value_that_is_too_long_is_refused(trial: &Trial) -> Checked {
    let at = trial.resource("long")?;
    let client = trial.client(0);
    let max = store(client)?.promise().max_bytes;
    let stamp = write(client, &at, b"short").await?;
    let refused = store(client)?.swap(&at, &stamp, &put(Some(&vec![b'x'; max + 1]), None)).await;
    match refused {
        Err(failure) if failure.kind == FailureKind::Invalid && failure.effect == Effect::None => {}
        other => return Err(NotKept::broken(format!("{} bytes, {max} at most: {other:?}", max + 1))),
    }
    let found = present(client, &at).await?;
    ensure!(found.0 == b"short" && found.1 == stamp, "a refused write left {:?}", found.1);
    Ok(())
}

pub(crate) async fn registers_of_different_names_are_different(trial: &Trial) -> Checked {
    store(trial.client(0))?;
    let names: Vec<Resource> =
        view::names(trial.prefix()).iter().map(|name| Resource::new(name)).collect::<Result<_, _>>()?;
    for (n, at) in names.iter().enumerate() {
        let found = read(trial.client(n), at).await?;
        let other = found.value.as_deref().map(String::from_utf8_lossy);
        ensure!(other.is_none(), "{at:?} was never written, and holds {other:?}");
        write(trial.client(n), at, at.as_str().as_bytes()).await?;
    }
    for (n, at) in names.iter().enumerate() {
        let found = present(trial.client(n + 1), at).await?.0;
        ensure!(found == at.as_str().as_bytes(), "{at:?} holds {:?}", String::from_utf8_lossy(&found));
    }
    Ok(())
}

pub(crate) async fn lock_and_register_of_one_name_are_independent(trial: &Trial) -> Checked {
    let at = trial.resource("both")?;
    let (one, other) = (trial.client(0), trial.client(1));
    write(one, &at, b"before").await?;
    one.expect_no_claims(&at, "a register was written").await?;
    let claim = trial.claim(&at, Share::MUTEX)?;
    let held = one.hold(&claim).await?;
    ensure!(present(other, &at).await?.0 == b"before", "a grant changed the register");
    let stamp = write(other, &at, b"during").await?;
    other.refused(&trial.claim(&at, Share::MUTEX)?).await?;
    one.renew(&claim, &held.proof).await?;
    let shown = other.look(&at).await?;
    ensure!(shown.holders.len() == 1, "beside a register the holders are {:?}", shown.holders);
    one.free(&claim).await?;
    let found = present(other, &at).await?;
    ensure!(found == (b"during".to_vec(), stamp), "a release changed the register to {found:?}");
    remove(one, &at).await?;
    let next = trial.claim(&at, Share::MUTEX)?;
    other.hold(&next).await?;
    other.free(&next).await
}

/// The length that a register may always hold.
const LEAST: usize = 4096;
const REWRITES: usize = 12;
const REMOVALS: usize = 3;
/// Enough for a write that others get in the way of.
const MAX_TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(2);
