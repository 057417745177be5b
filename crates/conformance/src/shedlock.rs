//! Checks of a backend over ShedLock's table beside a scheduler that sends ShedLock's documented statements
//! through another client.
//!
//! Ground rules: for tests only, so what must not fail panics. A database brings its statements; what is
//! expected of them is written here, once.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_core::{
    Backend, Claim, FailureKind, FenceGrade, Finding, Note, Patience, Release, Renewal, Severity, Share, Step,
};

use crate::calls::{
    LONG, claim, clock, hold, look_once, must, release, renew, renew_until_known, resource, take,
};

/// A provider with `usingDbTime()`, whose `locked_by` is [`HOST`]. The count of changed rows is its answer.
#[async_trait]
pub trait Scheduler: Sync {
    /// Takes a row that is free, for so long at most.
    async fn lock(&self, name: &str, at_most: Duration) -> bool;

    /// Moves the end of what it holds.
    async fn extend(&self, name: &str, at_most: Duration) -> bool;

    /// Ends what it holds, or lets it end when it was held for so long.
    async fn unlock(&self, name: &str, at_least: Duration) -> bool;

    /// Deletes all rows, and counts them.
    async fn empty(&self) -> usize;
}

/// The holder that the scheduler writes into `locked_by`.
pub const HOST: &str = "app-1";

/// Checks that a lock that one leaves behind is taken by the other when its time is over, or when it is
/// broken; and that no row is ever deleted.
///
/// # Panics
/// If that is not so.
pub async fn abandoned_lock_is_taken_over(backend: &dyn Backend, java: &impl Scheduler) {
    the_next_one_takes_what_is_over(backend, java).await;
    assert_eq!(java.empty().await, 2, "no row is deleted");
    what_was_seen_can_be_broken(backend, java).await;
    java.empty().await;
    each_claim_of_a_batch_is_answered(backend, java).await;
}

/// Checks that a row whose name is not one of a resource is passed over in a listing, and that the rows behind
/// it are found.
///
/// # Panics
/// If that is not so.
pub async fn impossible_name_hides_no_later_row(backend: &dyn Backend, java: &impl Scheduler) {
    for name in ["job\t1", "job\t2", "job\t3", "job/4", "job/5"] {
        assert!(java.lock(name, LONG).await);
    }
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let listed = must(backend.list("job", after.as_ref(), 1).await);
        let Some(summary) = listed.into_iter().next() else { break };
        found.push(summary.resource.as_str().to_owned());
        after = Some(summary.resource);
    }
    assert_eq!(found, ["job/4", "job/5"]);
}

/// Checks that neither takes, extends or ends what the other one holds.
///
/// # Panics
/// If one does.
pub async fn scheduler_and_backend_exclude_each_other(backend: &dyn Backend, java: &impl Scheduler) {
    assert!(java.lock("report", LONG).await);
    let ours = claim("report", LONG);
    assert!(is_busy(backend, &ours).await, "it is the scheduler's");
    let seen = backend.inspect(&resource("report"), None, &Patience::none(clock())).await;
    let holder = &seen.as_ref().unwrap_or_else(|failure| panic!("{failure}")).holders[0];
    assert_eq!(holder.note.as_str(), HOST);
    assert!(holder.remaining.is_some_and(|left| left > LONG / 2 && left <= LONG), "{seen:?}");
    assert!(matches!(renew(backend, &ours).await, Renewal::Lost));
    assert!(matches!(release(backend, &ours).await, Release::Gone), "it is not ours");
    assert!(java.extend("report", LONG).await, "nobody touched it");
    assert!(java.unlock("report", Duration::ZERO).await);

    hold(backend, &ours).await;
    assert!(!java.lock("report", LONG).await, "it is ours");
    assert!(!java.unlock("report", Duration::ZERO).await && !java.extend("report", LONG).await);
    assert!(matches!(renew(backend, &ours).await, Renewal::Renewed));
    let listed = backend.list("rep", None, 10).await;
    assert!(matches!(&listed.as_deref(), Ok([one]) if one.resource.as_str() == "report"), "{listed:?}");
    assert!(matches!(release(backend, &ours).await, Release::Freed));
    assert!(java.lock("report", LONG).await, "it is free");

    // What holds for a while at least stays held after it was unlocked.
    assert!(java.unlock("report", LONG / 2).await);
    assert!(is_busy(backend, &ours).await, "at least for half a minute");
}

/// Checks that a lock that one side leaves behind is taken by the other when its time is over, and that late
/// statements of the one do not affect the other.
///
/// # Panics
/// If it does not.
async fn the_next_one_takes_what_is_over(backend: &dyn Backend, java: &impl Scheduler) {
    let brief = Duration::from_millis(400);
    assert!(java.lock("a", brief).await);
    let waiting = claim("a", LONG);
    let began = Instant::now();
    take(backend, &waiting).await;
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    assert!(!java.unlock("a", Duration::ZERO).await, "a late unlock spares the next holder");

    let short = claim("b", brief);
    hold(backend, &short).await;
    let since = Instant::now();
    while !java.lock("b", LONG).await {
        assert!(since.elapsed() < LONG / 2, "its time is over");
        tokio::time::sleep(PAUSE).await;
    }
    assert!(matches!(renew(backend, &short).await, Renewal::Lost));
    assert!(matches!(release(backend, &short).await, Release::Gone));
    assert!(java.extend("b", LONG).await, "a late release spares the next holder");
}

/// Checks that a client that saw a lock of the others may end it.
///
/// # Panics
/// If it stays.
async fn what_was_seen_can_be_broken(backend: &dyn Backend, java: &impl Scheduler) {
    assert!(java.lock("a", LONG).await);
    let seen = backend.inspect(&resource("a"), None, &Patience::none(clock())).await;
    let id = seen.unwrap_or_else(|failure| panic!("{failure}")).holders[0].id;
    let claim = claim("a", LONG).id(id);
    assert!(matches!(release(backend, &claim).await, Release::Freed));
    assert!(!java.extend("a", LONG).await, "it was ended");
    assert!(java.lock("a", LONG).await);
}

/// Checks that the columns of the documented table have room for the longest names and notes.
///
/// # Panics
/// If they have not, or where two long names are one.
pub async fn longest_names_and_notes_fit(backend: &dyn Backend) {
    let (one, two) = ("x".repeat(511) + "1", "x".repeat(511) + "2");
    let note = Note::clipped(&"é".repeat(512));
    let one = claim(&one, LONG).note(note);
    hold(backend, &one).await;
    hold(backend, &claim(&two, LONG)).await;
    assert!(is_busy(backend, &claim(one.resource.as_str(), LONG)).await);
    assert!(matches!(renew(backend, &one).await, Renewal::Renewed));
    assert!(matches!(release(backend, &one).await, Release::Freed));
}

/// Checks that many are renewed and released at once, each by its own holder.
///
/// # Panics
/// If one is confused with another.
pub async fn each_claim_of_a_batch_is_answered(backend: &dyn Backend, java: &impl Scheduler) {
    let ours: Vec<Claim> = ["b", "d", "a"].map(|name| claim(name, LONG)).into();
    for claim in &ours {
        hold(backend, claim).await;
    }
    assert!(java.lock("c", LONG).await);
    let unknown = claim("c", LONG);
    let mixed = [&ours[0], &unknown, &ours[1], &ours[2]];
    let proof = leasehold_core::Proof::none();
    let batch = mixed.map(|claim| leasehold_core::Renew { claim, proof: &proof });
    let renewals = backend.renew(&batch).await;
    let renewed = renewals.iter().map(|renewal| matches!(renewal, Renewal::Renewed));
    assert_eq!(renewed.collect::<Vec<_>>(), [true, false, true, true], "{renewals:?}");
    let releases = backend.release(&mixed).await;
    let freed = releases.iter().map(|release| matches!(release, Release::Freed));
    assert_eq!(freed.collect::<Vec<_>>(), [true, false, true, true], "{releases:?}");
    assert!(java.extend("c", LONG).await, "it was not touched");
    assert!(java.lock("d", LONG).await, "it is free");
}

/// Checks that a weight is refused, and that no fence is promised.
///
/// # Panics
/// If that is not so.
pub async fn unsupported_shares_and_fences_are_refused(backend: &dyn Backend) {
    assert_eq!(backend.profile().fencing, FenceGrade::None);
    let shared = claim("a", LONG).share(Share::READER);
    let refused = backend.contend(&shared, &Patience::none(clock())).await;
    assert!(matches!(&refused, Err(failure) if failure.kind == FailureKind::Unsupported), "{refused:?}");
}

/// Returns the finding of an examination on this topic.
///
/// # Panics
/// If it says nothing of it.
pub async fn finding(backend: &dyn Backend, topic: &str) -> Finding {
    let findings = backend.diagnose(LONG).await;
    let found = findings.into_iter().find(|finding| finding.topic == topic);
    found.unwrap_or_else(|| panic!("nothing is said of {topic}"))
}

/// Checks that a row that was written in local time, east of Greenwich, is found: `write` puts it there.
///
/// # Panics
/// If it is not, or one is found before.
pub async fn rows_from_the_future_are_found(backend: &dyn Backend, write: impl AsyncFnOnce()) {
    assert_eq!(finding(backend, "clock").await.severity, Severity::Good);
    write().await;
    let found = finding(backend, "clock").await;
    assert!(found.severity == Severity::Risk && found.advice.contains("usingDbTime"), "{found:?}");
}

/// Checks that a restart that keeps the data keeps what is held, and that one that loses them is a loss.
///
/// # Panics
/// If that is not so.
pub async fn restart_keeps_the_lock_and_table_loss_loses_it(
    backend: &dyn Backend,
    restart: impl AsyncFnOnce(),
    lose: impl AsyncFnOnce(),
) {
    let held = claim("job", LONG);
    hold(backend, &held).await;
    restart().await;
    assert!(matches!(renew_until_known(backend, &held).await, Renewal::Renewed));
    let step = backend.contend(&held, &Patience::none(clock())).await;
    assert!(matches!(step, Ok(Step::Granted(_))), "its own request, repeated: {step:?}");
    lose().await;
    assert!(matches!(renew_until_known(backend, &held).await, Renewal::Lost));
    take(backend, &claim("job", LONG)).await;
}

async fn is_busy(backend: &dyn Backend, claim: &Claim) -> bool {
    match look_once(backend, claim).await {
        Ok(grant) => grant.is_none(),
        Err(failure) => panic!("{failure}"),
    }
}

const PAUSE: Duration = Duration::from_millis(50);
