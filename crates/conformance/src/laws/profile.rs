//! The profile is true: what a backend does not promise it really does not do, and the other way round.

use std::time::Duration;

use leasehold_core::{
    Claim, Effect, FailureKind, FenceGrade, Liveness, Moment, Note, Patience, Renewal, Resource, Share, Step,
    WaitMode,
};

use crate::client::{AT_ONCE, within};
use crate::clock::patience_for;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

pub(crate) async fn promises_are_the_same_on_every_connection(trial: &Trial) -> Checked {
    let profile = trial.profile();
    for client in trial.clients() {
        let other = client.backend.profile();
        ensure!(profile == other, "one connection says {profile:?}, another {other:?}");
    }
    ensure!(!profile.name.is_empty(), "the profile has no name");
    ensure!(profile.renew_batch_max > 0, "renew_batch_max is zero: nothing could be renewed");
    if let Liveness::Lease { min, max } = profile.liveness {
        ensure!(min <= max, "the shortest ttl {min:?} is longer than the longest {max:?}");
        ensure!(
            profile.granularity < min,
            "a clock as coarse as {:?} cannot keep {min:?}",
            profile.granularity
        );
    }
    Ok(())
}

pub(crate) async fn shares_beyond_the_profile_are_refused(trial: &Trial) -> Checked {
    let shares = [Share::MUTEX, Share::READER, Share::WRITER, Share::permits(1, 3)?, Share::permits(3, 3)?];
    for (n, share) in shares.into_iter().enumerate() {
        let resource = trial.resource(&format!("share/{n}"))?;
        let claim = trial.claim(&resource, share)?;
        if trial.profile().admits(share).is_ok() {
            trial.client(0).hold(&claim).await?;
            trial.client(0).free(&claim).await?;
            continue;
        }
        let patience = Patience::none(trial.clock.clone());
        match within(AT_ONCE, "contend", trial.client(0).backend.contend(&claim, &patience)).await? {
            Ok(step) => {
                return Err(NotKept::broken(format!("{share} must be refused as Unsupported, not {step:?}")));
            }
            Err(failure) => {
                let right = failure.kind == FailureKind::Unsupported && failure.effect == Effect::None;
                ensure!(right, "{share} must fail as Unsupported without effect, not as {failure:?}");
            }
        }
        trial.client(1).expect_no_claims(&resource, "after a refused share").await?;
    }
    Ok(())
}

/// A lease that is longer than the profile allows is refused: a shorter one would end before its
/// holder knows.
pub(crate) async fn a_ttl_beyond_the_profile_is_refused(trial: &Trial) -> Checked {
    let Liveness::Lease { min, max } = trial.profile().liveness else {
        return Err(NotKept::OptedOut("a session has no ttl".to_owned()));
    };
    ensure!(min <= max, "the profile's shortest ttl {min:?} is longer than its longest {max:?}");
    let Some(ttl) = max.checked_mul(2).filter(|ttl| *ttl > max) else {
        return Err(NotKept::OptedOut("it takes any ttl".to_owned()));
    };
    let resource = trial.resource("ttl")?;
    let claim = trial.claim(&resource, Share::MUTEX)?.ttl(ttl);
    let patience = Patience::none(trial.clock.clone());
    let answer = within(AT_ONCE, "contend", trial.client(0).backend.contend(&claim, &patience)).await?;
    match answer {
        Ok(Step::Granted(_)) => {
            Err(NotKept::broken(format!("{ttl:?} was granted, the longest ttl is {max:?}")))
        }
        Ok(Step::Busy(hint)) => Err(NotKept::broken(format!("what is free is busy: {hint:?}"))),
        Err(failure) => {
            let right = matches!(failure.kind, FailureKind::Invalid | FailureKind::Unsupported);
            ensure!(right, "a ttl beyond the profile must fail as Invalid, not as {failure:?}");
            ensure!(failure.effect == Effect::None, "a refused request says that it may have taken effect");
            trial.client(1).expect_no_claims(&resource, "after a refused ttl").await
        }
    }
}

pub(crate) async fn fences_exist_exactly_if_the_profile_says_so(trial: &Trial) -> Checked {
    let resource = trial.resource("fence")?;
    let (client, claim) = (trial.client(0), trial.claim(&resource, Share::MUTEX)?);
    let grant = client.hold(&claim).await?;
    let promised = trial.profile().fencing > FenceGrade::None;
    ensure!(grant.fence.is_some() == promised, "it says {}, and {:?}", trial.profile().fencing, grant.fence);
    let seen = client.look(&resource).await?;
    let shown = seen.holders.iter().find(|info| info.id == claim.id).map(|info| info.fence);
    ensure!(shown == Some(grant.fence), "granted {:?}, shown {shown:?}", grant.fence);
    client.free(&claim).await
}

pub(crate) async fn note_is_shown_up_to_its_promised_length(trial: &Trial) -> Checked {
    let promised = trial.profile().note_max;
    ensure!(promised <= Note::MAX_BYTES, "{promised} bytes are more than a note can have");
    // Of letters that a cut may halve, and of what more than one way of writing down has to write longer.
    for (n, letter) in ["é", "%", "\"", "\n", "\\"].into_iter().enumerate() {
        let resource = trial.resource(&format!("note/{n}"))?;
        for bytes in [promised, Note::MAX_BYTES] {
            let odd = "x".repeat(bytes % letter.len());
            let note = Note::new(&format!("{odd}{}", letter.repeat(bytes / letter.len())))?;
            let claim = trial.claim(&resource, Share::MUTEX)?.note(note);
            trial.client(0).hold(&claim).await?;
            let seen = trial.client(1).look(&resource).await?;
            let shown = seen.holders.iter().find(|info| info.id == claim.id);
            let shown = shown.map(|info| info.note.as_str()).unwrap_or_default();
            let whole = claim.note.as_str();
            let end = (0..=promised.min(bytes)).rev().find(|end| whole.is_char_boundary(*end));
            ensure!(
                shown.starts_with(&whole[..end.unwrap_or_default()]),
                "of a note of {bytes} bytes of {letter:?} {promised} have to be shown, and these are {}: {shown:?}",
                shown.len()
            );
            trial.client(0).free(&claim).await?;
        }
    }
    Ok(())
}

pub(crate) async fn polling_backend_answers_at_once_with_a_retry_delay(trial: &Trial) -> Checked {
    trial.needs_polling()?;
    let resource = trial.resource("polls")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let claim = trial.claim(&resource, Share::MUTEX)?;
    let forever = Patience::unlimited(trial.clock.clone());
    for _ in 0..3 {
        let began = trial.clock.now();
        match trial.client(1).contend(&claim, &forever).await? {
            Step::Granted(grant) => {
                return Err(NotKept::broken(format!("granted although it is held: {grant:?}")));
            }
            Step::Busy(hint) => {
                let again = hint.ask_again_in;
                ensure!(
                    again.is_some_and(|pause| !pause.is_zero()),
                    "a poller must say when to ask again: {hint:?}"
                );
            }
        }
        let took = trial.clock.now().since(began);
        if took > POLL_ANSWER {
            return Err(NotKept::late(format!("a poller answered after {took:?}")));
        }
    }
    trial.client(1).end(&claim).await?;
    trial.client(0).free(&holder).await
}

/// A backend that says that it waits must not make its callers ask again and again.
pub(crate) async fn notifying_backend_blocks_until_something_changes(trial: &Trial) -> Checked {
    if trial.profile().waiting == WaitMode::Polls {
        return Err(NotKept::OptedOut("it polls".to_owned()));
    }
    let resource = trial.resource("waits")?;
    let holder = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&holder).await?;
    let claim = trial.claim(&resource, Share::MUTEX)?;
    let patience = patience_for(&trial.clock, QUIET);
    let mut calls = 0;
    while !patience.is_ended() {
        let step = trial.client(1).contend(&claim, &patience).await?;
        ensure!(matches!(step, Step::Busy(_)), "granted although it is held: {step:?}");
        calls += 1;
        ensure!(calls <= CALLS, "{calls} calls in {QUIET:?} although nothing changed: this is polling");
    }
    trial.client(1).end(&claim).await?;
    trial.client(0).free(&holder).await
}

pub(crate) async fn a_session_needs_no_renewal(trial: &Trial) -> Checked {
    trial.needs_session()?;
    let resource = trial.resource("session")?;
    let claim = trial.short(&resource, Share::MUTEX)?;
    let grant = trial.client(0).hold(&claim).await?;
    tokio::time::sleep(trial.ttl() * 2).await;
    trial.client(1).refused(&trial.claim(&resource, Share::MUTEX)?).await?;
    let answer = trial.client(0).renew(&claim, &grant.proof).await?;
    ensure!(matches!(answer, Renewal::Alive | Renewal::Renewed), "a living session's claim is {answer:?}");
    let again = trial.client(0).hold(&claim).await?;
    ensure!(again.fence == grant.fence, "the fence changed from {:?} to {:?}", grant.fence, again.fence);
    let seen = trial.client(1).look(&resource).await?;
    let remaining = seen.holders.first().and_then(|holder| holder.remaining);
    ensure!(remaining.is_none(), "a session's claim is shown to run out in {remaining:?}");
    trial.client(0).free(&claim).await
}

/// Without renewal a lease lasts for its ttl and ends then, neither earlier nor never.
pub(crate) async fn a_lease_lasts_for_its_ttl(trial: &Trial) -> Checked {
    trial.needs_lease()?;
    let resource = trial.resource("lease")?;
    let claim = trial.short(&resource, Share::MUTEX)?;
    let grant = trial.client(0).hold(&claim).await?;
    let granted_at = trial.clock.now();
    shown_to_end(trial, &resource).await?;
    let other = trial.short(&resource, Share::MUTEX)?;
    ends_by_itself(trial, &other, trial.valid_until(grant.asked_at), granted_at).await
}

/// Checks that the claim that holds a resource, if one still does, is shown with no more left than its ttl and the time
/// by which it outlives that.
pub(super) async fn shown_to_end(trial: &Trial, resource: &Resource) -> Checked {
    let seen = trial.client(1).look(resource).await?;
    let remaining = seen.holders.first().and_then(|holder| holder.remaining);
    let shown = remaining.is_some_and(|shown| shown <= trial.shown_at_most(trial.ttl()));
    ensure!(
        shown || seen.holders.is_empty(),
        "a lease of {:?} is shown with {remaining:?} left",
        trial.ttl()
    );
    Ok(())
}

/// Checks that a claim which lives for [`Trial::ttl`] and was confirmed before `confirmed_at` ends by itself, not
/// before `ends` and not too late: another client's claim, which excludes it, is granted then.
pub(super) async fn ends_by_itself(
    trial: &Trial,
    other: &Claim,
    ends: Moment,
    confirmed_at: Moment,
) -> Checked {
    let surely = confirmed_at.after(trial.ttl() + trial.outlives() + TOLERANCE);
    loop {
        let asked_at = trial.clock.now();
        let other = other.clone().id(crate::random::id()?);
        let granted = trial.client(1).try_take(&other).await?.is_some();
        let now = trial.clock.now();
        if granted {
            ensure!(now >= ends, "granted {:?} before the end of the lease", now.until(ends));
            return trial.client(1).end(&other).await.map(drop);
        }
        ensure!(asked_at < surely, "held {:?} beyond its ttl without renewal", asked_at.since(ends));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A wait without end for a free lock ends at once, no matter which way of waiting the profile names.
pub(crate) async fn free_resource_is_granted_at_once(trial: &Trial) -> Checked {
    let forever = Patience::unlimited(trial.clock.clone());
    for n in 0..4 {
        let resource = trial.resource(&format!("free/{n}"))?;
        let claim = trial.claim(&resource, Share::MUTEX)?;
        let step = within(AT_ONCE, "contend", trial.client(n).backend.contend(&claim, &forever)).await??;
        ensure!(matches!(step, Step::Granted(_)), "what is free is {step:?}");
        trial.client(n).free(&claim).await?;
    }
    Ok(())
}

const POLL_ANSWER: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_millis(400);
/// The calls that may return early: once in a while is allowed; a call that returns all the time is a poll
/// in disguise.
const CALLS: u32 = 5;
const TOLERANCE: Duration = Duration::from_secs(2);
