//! The view of a watcher: holders, queue, notes, changes, listings, and names that never collide.

use std::time::Duration;

use leasehold_core::{
    Claim, ClaimInfo, Effect, Failure, FailureKind, Moment, Note, Patience, Resource, ResourceSummary, Share,
    Snapshot, SnapshotVersion,
};
use tokio::task::JoinHandle;

use super::renewal::free_in_time;
use crate::client::{AT_ONCE, TestClient, within};
use crate::clock::patience_for;
use crate::not_kept::{Checked, NotKept, ensure};
use crate::trial::Trial;

pub(crate) async fn holders_and_queue_are_shown_as_they_are(trial: &Trial) -> Checked {
    let resource = trial.resource("shown")?;
    let share = trial.concurrent_shares()?.pop().unwrap_or(Share::MUTEX);
    let mut held = Vec::new();
    // Two that hold together and a mutex that waits; or all that hold together, and one more.
    let (holders, waits) = match trial.interact(share, Share::MUTEX) {
        true if share == Share::MUTEX => (1, share),
        true => (2, Share::MUTEX),
        false => (trial.fill(share)?.0.len() + 1, share),
    };
    for n in 0..holders {
        let note = Note::new(&format!("holder {n} — на хосте «α»"))?;
        let claim = trial.claim(&resource, share)?.note(note);
        let grant = trial.client(n).hold(&claim).await?;
        held.push((claim, grant.fence));
    }
    let note = Note::new(&"é".repeat(512))?;
    let waiting = trial.client(2).wait(trial.claim(&resource, waits)?.note(note));
    trial.client(2).wait_until_queued(&resource, 1).await?;
    let seen = trial.client(3).look(&resource).await?;
    ensure!(seen.holders.len() == held.len(), "{} hold, shown are {:?}", held.len(), seen.holders);
    for ((claim, fence), shown) in held.iter().zip(&seen.holders) {
        same(claim, shown)?;
        ensure!(shown.fence == *fence, "granted {fence:?}, shown {:?}", shown.fence);
        let left = shown.remaining.is_none_or(|left| left <= trial.shown_at_most(claim.ttl));
        ensure!(left, "a ttl of {:?} is shown with {:?} left", claim.ttl, shown.remaining);
    }
    let last = held.iter().filter_map(|(_, fence)| *fence).max();
    ensure!(seen.fence.is_none() || seen.fence == last, "the last fence is {last:?}, shown {:?}", seen.fence);
    if let Some(shown) = seen.waiting.first() {
        same(&waiting.claim, shown)?;
        ensure!(shown.fence.is_none(), "one that waits is shown with {:?}", shown.fence);
    }
    let listed = trial.client(3).backend.list(resource.as_str(), None, 10).await?;
    let right = ResourceSummary::new(resource.clone(), held.len() as u32, seen.waiting.len() as u32);
    ensure!(listed == [right.clone()], "listed {listed:?}, not {right:?}");
    waiting.give_up(AT_ONCE, "a wait that was looked at").await?;
    for (n, (claim, _)) in held.iter().enumerate() {
        trial.client(n).free(claim).await?;
    }
    trial.client(3).expect_no_claims(&resource, "after all releases").await
}

pub(crate) async fn change_wakes_a_watcher(trial: &Trial) -> Checked {
    let resource = trial.resource("watched")?;
    let mut version = trial.client(0).look(&resource).await?.version;
    let again = trial.client(1).look(&resource).await?.version;
    ensure!(version == again, "nothing changed, and {version:?} became {again:?}");
    let claim = trial.claim(&resource, Share::MUTEX)?;
    for n in 0..4 {
        let (task, until) = unfinished(trial, &resource, &mut version, n % 2).await?;
        let changed_at = trial.clock.now();
        match n % 2 {
            0 => trial.client(0).hold(&claim).await.map(drop)?,
            _ => trial.client(0).free(&claim).await?,
        }
        let snapshot = task.await??;
        let delay = trial.clock.now().since(changed_at);
        was_woken(trial, &snapshot, &version, until)?;
        let holders = snapshot.holders.len();
        ensure!(holders == 1 - n % 2, "after change {n} an observer sees {holders} holders");
        ensure!(snapshot.version != version, "a change kept the version {version:?}");
        if delay > WATCH_LIMIT {
            return Err(NotKept::late(format!("an observer learned of a change after {delay:?}")));
        }
        version = snapshot.version;
    }
    Ok(())
}

/// Starts a watcher that has seen `version`, and checks that it does not return while nothing changes. Returns the end
/// of its patience, too.
async fn unfinished(
    trial: &Trial,
    resource: &Resource,
    version: &mut SnapshotVersion,
    holders: usize,
) -> Checked<(JoinHandle<Checked<Snapshot>>, Moment)> {
    for _ in 0..ECHOES {
        let until = trial.clock.now().after(WATCH_LIMIT * 3);
        let (watcher, watched, seen) = (trial.client(2).clone(), resource.clone(), version.clone());
        let task = tokio::spawn(async move {
            let mut snapshot = watch(&watcher, &watched, &seen, WATCH_LIMIT * 3).await?;
            // A claim may be seen in the queue for a moment before it holds, which is a change of its own.
            for _ in 0..STEPS {
                if snapshot.waiting.is_empty() {
                    break;
                }
                snapshot = watch(&watcher, &watched, &snapshot.version, WATCH_LIMIT * 3).await?;
            }
            Ok::<_, NotKept>(snapshot)
        });
        tokio::time::sleep(Duration::from_millis(30)).await;
        if !task.is_finished() {
            return Ok((task, until));
        }
        // A server removes empty nodes of a session's lock some time after the change that emptied them.
        let early = task.await??;
        was_woken(trial, &early, version, until)?;
        ensure!(
            trial.is_session() && early.holders.len() == holders,
            "an observer came back although nothing changed"
        );
        *version = early.version;
    }
    Err(NotKept::broken("an observer came back again and again although nothing changed"))
}

/// Checks that a watcher of `version` did not return only because its patience ended at `until`. That began before the
/// change, so a machine that stood still may have ended it before the change as well.
fn was_woken(trial: &Trial, snapshot: &Snapshot, version: &SnapshotVersion, until: Moment) -> Checked {
    if snapshot.version == *version && trial.clock.now() >= until {
        return Err(NotKept::late("an observer's patience ended before it learned of a change"));
    }
    Ok(())
}

pub(crate) async fn watcher_of_an_old_version_is_answered_at_once(trial: &Trial) -> Checked {
    let resource = trial.resource("past")?;
    let before = trial.client(0).look(&resource).await?.version;
    let claim = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&claim).await?;
    let began = trial.clock.now();
    let snapshot = watch(trial.client(1), &resource, &before, WATCH_LIMIT * 3).await?;
    ensure!(snapshot.holders.len() == 1, "held by one, shown are {:?}", snapshot.holders);
    let took = trial.clock.now().since(began);
    if took > WATCH_LIMIT {
        return Err(NotKept::late(format!(
            "an observer that has seen an older version was answered after {took:?}"
        )));
    }
    trial.client(0).free(&claim).await
}

pub(crate) async fn watcher_returns_when_patience_ends(trial: &Trial) -> Checked {
    let resource = trial.resource("patience")?;
    let claim = trial.claim(&resource, Share::MUTEX)?;
    trial.client(0).hold(&claim).await?;
    let seen = trial.client(1).look(&resource).await?;
    let wait = Duration::from_millis(150);
    let began = trial.clock.now();
    let snapshot = watch(trial.client(1), &resource, &seen.version, wait).await?;
    let took = trial.clock.now().since(began);
    ensure!(
        took >= wait - Duration::from_millis(1),
        "nothing changed, and an observer came back after {took:?}"
    );
    if took > wait + Duration::from_secs(1) {
        return Err(NotKept::late(format!(
            "an observer with patience for {wait:?} came back after {took:?}"
        )));
    }
    ensure!(snapshot.version == seen.version, "nothing changed, and the version did");
    ensure!(snapshot.holders.len() == 1, "held by one, shown are {:?}", snapshot.holders);
    trial.client(0).free(&claim).await
}

/// Also a change that no client makes.
pub(crate) async fn end_of_a_lease_wakes_a_watcher(trial: &Trial) -> Checked {
    trial.needs_lease()?;
    let resource = trial.resource("ends")?;
    let claim = trial.short(&resource, Share::MUTEX)?;
    let grant = trial.client(0).hold(&claim).await?;
    let ends_at = trial.clock.now().after(trial.ttl() + trial.outlives());
    let seen = trial.client(1).look(&resource).await?;
    if seen.holders.is_empty() && trial.clock.now() >= trial.valid_until(grant.asked_at) {
        return Err(NotKept::Delayed("the lease ended before its holder was looked at".to_owned()));
    }
    ensure!(seen.holders.len() == 1, "held by one, shown are {:?}", seen.holders);
    let wait = trial.ttl() + WATCH_LIMIT * 3;
    let mut snapshot = watch(trial.client(1), &resource, &seen.version, wait).await?;
    // A claim that two leases keep alive is seen to lose one before the other, which is a change of its
    // own.
    for _ in 0..STEPS {
        if snapshot.holders.is_empty() {
            break;
        }
        snapshot = watch(trial.client(1), &resource, &snapshot.version, wait).await?;
    }
    ensure!(snapshot.holders.is_empty(), "after the end of the lease {:?} are shown", snapshot.holders);
    let delay = trial.clock.now().since(ends_at);
    if delay > WATCH_LIMIT {
        return Err(NotKept::late(format!("an observer learned of the end of a lease after {delay:?}")));
    }
    Ok(())
}

/// The claim, its fence and its share stay: only the client that has it is another one.
pub(crate) async fn adoption_wakes_a_watcher(trial: &Trial) -> Checked {
    trial.needs_adoption()?;
    let resource = trial.resource("handed-on")?;
    // The end of the lease is another change, and comes later.
    let mut claim = trial.claim_for(&resource, Share::MUTEX, WATCH_LIMIT * 5)?;
    let granted = trial.client(0).hold(&claim).await?;
    trial.client(0).backend.detach(&claim);
    let before = trial.client(2).look(&resource).await?.version;
    let until = trial.clock.now().after(WATCH_LIMIT * 3);
    let watching = tokio::spawn({
        let (watcher, watched, seen) = (trial.client(2).clone(), resource.clone(), before.clone());
        async move { watch(&watcher, &watched, &seen, WATCH_LIMIT * 3).await }
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    claim.note = Note::new("the next client")?;
    let adopted_at = trial.clock.now();
    let adopted = trial.client(1).hold(&claim).await?;
    if trial.clock.now() >= trial.valid_for(claim.ttl, granted.asked_at) {
        return Err(NotKept::late("the machine was too busy to adopt a claim in time".to_owned()));
    }
    let snapshot = watching.await??;
    let delay = trial.clock.now().since(adopted_at);
    was_woken(trial, &snapshot, &before, until)?;
    let valid_until = trial.valid_for(claim.ttl, adopted.asked_at);
    if trial.clock.now() >= valid_until && snapshot.version != before {
        return Err(NotKept::late(format!("an observer learned of an adoption after {delay:?}")));
    }
    ensure!(snapshot.version != before, "an adoption kept the version {before:?}");
    let notes: Vec<_> = snapshot.holders.iter().map(|info| info.note.as_str()).collect();
    ensure!(notes == ["the next client"], "after an adoption an observer sees {notes:?}");
    if delay > WATCH_LIMIT {
        return Err(NotKept::late(format!("an observer learned of an adoption after {delay:?}")));
    }
    free_in_time(trial, trial.client(1), &claim, valid_until).await
}

pub(crate) async fn listings_come_in_pages(trial: &Trial) -> Checked {
    let mut names = vec!["a", "a/1", "a/2", "ab", "b", "b ", "b/é", "c", "Ω", "z"];
    names.retain(|name| trial.writes(name));
    let mut held = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let claim = trial.claim(&trial.resource(&format!("page/{name}"))?, Share::MUTEX)?;
        trial.client(n).hold(&claim).await?;
        held.push(claim);
    }
    let mut sorted: Vec<Resource> = held.iter().map(|claim| claim.resource.clone()).collect();
    sorted.sort();
    let page = format!("{}page/", trial.prefix());
    for limit in [1, 3, 10, 100, usize::MAX] {
        let mut found: Vec<Resource> = Vec::new();
        loop {
            let listed = trial.client(limit).backend.list(&page, found.last(), limit).await?;
            ensure!(listed.len() <= limit, "{} rows of at most {limit}", listed.len());
            if listed.is_empty() {
                break;
            }
            found.extend(listed.into_iter().map(|summary| summary.resource));
            ensure!(found.len() <= names.len(), "pages of {limit} repeat themselves: {found:?}");
        }
        ensure!(found == sorted, "pages of {limit} give {found:?}, not {sorted:?}");
    }
    for prefix in ["a", "a/", "b", "é", "zz"] {
        let count = names.iter().filter(|name| name.starts_with(prefix)).count();
        let prefix = format!("{page}{prefix}");
        let listed = trial.client(0).backend.list(&prefix, None, 100).await?;
        ensure!(listed.len() == count, "{count} names begin with {prefix:?}, listed are {listed:?}");
    }
    ensure!(trial.client(0).backend.list(&page, None, 0).await?.is_empty(), "a page of none is not empty");
    for (n, claim) in held.iter().enumerate() {
        trial.client(n).free(claim).await?;
    }
    Ok(())
}

/// All names are held at once by different claims, so that any two that were one would be noticed.
pub(crate) async fn names_never_collide(trial: &Trial) -> Checked {
    let mut held = Vec::new();
    for (n, name) in names(trial.prefix()).into_iter().enumerate() {
        let note = Note::new(&format!("note {n}"))?;
        let claim = trial.claim(&Resource::new(&name)?, Share::MUTEX)?.note(note);
        if !trial.writes(&name) {
            let patience = patience_for(&trial.clock, Duration::ZERO);
            let Err(failure) = trial.client(n).backend.contend(&claim, &patience).await else {
                return Err(NotKept::broken(format!("{name:?} cannot be written, and is not refused")));
            };
            let is_clear = failure.kind == FailureKind::Invalid && failure.effect == Effect::None;
            ensure!(is_clear, "{name:?} cannot be written, and is refused by {failure:?}");
            continue;
        }
        trial.client(n).hold(&claim).await?;
        held.push(claim);
    }
    for (n, claim) in held.iter().enumerate() {
        let seen = trial.client(n + 1).look(&claim.resource).await?;
        ensure!(seen.holders.len() == 1, "{:?} is held by {:?}", claim.resource, seen.holders);
        same(claim, &seen.holders[0])?;
    }
    let listed = trial.client(0).backend.list(trial.prefix(), None, 1000).await?;
    let listed: Vec<Resource> = listed.into_iter().map(|summary| summary.resource).collect();
    let mut sorted: Vec<Resource> = held.iter().map(|claim| claim.resource.clone()).collect();
    sorted.sort();
    ensure!(listed == sorted, "held are {sorted:?}, listed {listed:?}");
    for (n, claim) in held.iter().enumerate() {
        trial.client(n).free(claim).await?;
        trial.client(n).expect_no_claims(&claim.resource, "after its release").await?;
    }
    Ok(())
}

/// Names that a store might take for one another, or for something else.
pub(crate) fn names(prefix: &str) -> Vec<String> {
    let mut names: Vec<String> = TAILS.iter().map(|tail| format!("{prefix}{tail}")).collect();
    let long = |last: &str| {
        let length = Resource::MAX_BYTES - prefix.len() - last.len();
        format!("{prefix}{}{last}", "x".repeat(length))
    };
    names.extend([long("1"), long("2"), long("/"), long("é"), long("%")]);
    // One that is as long again in bytes when escaped, and one that differs from it only at the end.
    let wide = "ü".repeat((Resource::MAX_BYTES - prefix.len()) / 2 - 1);
    names.extend([format!("{prefix}{wide}"), format!("{prefix}{wide}u"), format!("{prefix}{wide}v")]);
    names
}

async fn watch(
    client: &TestClient,
    resource: &Resource,
    seen: &SnapshotVersion,
    wait: Duration,
) -> Checked<leasehold_core::Snapshot> {
    let patience: Patience = patience_for(&client.clock, wait);
    let looking = async {
        loop {
            let snapshot = client.backend.inspect(resource, Some(seen), &patience).await?;
            if snapshot.version != *seen || patience.is_ended() {
                return Ok::<_, Failure>(snapshot);
            }
            // As the engine does over a store without change notifications.
            tokio::time::sleep(POLL_PAUSE.min(patience.left())).await;
        }
    };
    Ok(within(wait + AT_ONCE, "inspect", looking).await??)
}

fn same(claim: &Claim, shown: &ClaimInfo) -> Checked {
    let right = shown.id == claim.id && shown.share == claim.share && shown.note == claim.note;
    ensure!(right, "{:?}: {claim:?} is shown as {shown:?}", claim.resource);
    if let Some(since) = shown.since_unix_ms {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let apart = now.abs_diff(Duration::from_millis(since));
        ensure!(
            apart < Duration::from_secs(300),
            "it came just now, and is shown to have come {apart:?} apart"
        );
    }
    Ok(())
}

/// Watching has no promise of its own; a person who watches does not want to wait longer.
const WATCH_LIMIT: Duration = Duration::from_secs(2);
/// The most changes that one claim passes through until it holds.
const STEPS: usize = 3;
/// The most times that a watcher is started for one change.
const ECHOES: usize = 3;
/// The pause between two calls to a store that answers at once.
const POLL_PAUSE: Duration = Duration::from_millis(100);

/// Each of these differs from another in something that some store does not see.
const TAILS: [&str; 51] = [
    "a",
    "A",
    "a ",
    " a",
    "a/",
    "a/b",
    "a%2Fb",
    "a%2fb",
    "a%",
    "a%%",
    "a~",
    "a*",
    "a?",
    "a[b]",
    "a\\b",
    "a\\",
    "a:b",
    "a;b",
    "a'b",
    "a\"b",
    "a`b`",
    "a$b",
    "a|b",
    "a&b",
    "a<b>",
    "{a}",
    "{a",
    "a}",
    "{}",
    "a.b",
    ".",
    "..",
    "../a",
    "a/../b",
    "~",
    "-a",
    "--",
    "é",
    "e\u{301}",
    "ﬁ",
    "fi",
    "日本語",
    "🔒",
    "\u{202e}a",
    "a\u{a0}",
    "ı",
    "I",
    "ß",
    "ss",
    "CON",
    "nul",
];
