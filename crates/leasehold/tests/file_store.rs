//! The file store within one process: two handles on one directory act as two processes.
#![allow(clippy::unwrap_used, reason = "a helper of tests is not a test to the linter")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::SystemClock;
use leasehold::local::{FileBackend, FileConfig, LivenessHandle};
use leasehold_core::{
    Backend, BreakOutcome, Claim, ClaimId, Effect, FailureKind, Fence, Note, Patience, Proof, Release, Renew,
    Renewal, Share, Step,
};
use leasehold_testkit::require::skip;

mod file_support;
use file_support::*;

#[tokio::test]
async fn file_store_waiter_is_woken_by_a_release() {
    let store = Store::new();
    let (first, second) = (claim("a", Share::MUTEX), claim("a", Share::MUTEX));
    let (one, two) = (store.open(), store.open());
    let fence = granted(&one, &first).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    assert!(
        (now - 60_000_000..=now + 1).contains(&u128::from(fence.seq)),
        "fences begin at the wall clock: {fence}"
    );
    assert_eq!(granted(&one, &first).await, fence, "a repeated request gets the same grant");
    assert_busy(&two, &second).await;
    let waiter = spawn_wait(&two, &second);
    until_waiting(&one, "a", 1).await;
    assert!(matches!(one.release(&[&first]).await[..], [Release::Freed]));
    assert_eq!(waiter.await.unwrap(), Fence::new(0, fence.seq + 1, 0));
    assert!(matches!(one.release(&[&first]).await[..], [Release::Gone]));
    assert!(matches!(two.release(&[&second]).await[..], [Release::Freed]));
    assert_eq!(claim_files(&one, "a"), 0);
    assert_eq!(fs::read_dir(one.path_of(&resource("a"))).unwrap().count(), 3, "lock, ledger and fence stay");
}

#[tokio::test]
async fn a_copy_of_the_sign_of_life_does_not_outlive_the_release() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    let (first, second) = (claim("a", Share::MUTEX), claim("a", Share::MUTEX));
    let life = grant(&one, &first).await.proof.get::<LivenessHandle>().cloned().unwrap();
    let copy = life.copy().unwrap();
    assert!(matches!(one.release(&[&first]).await[..], [Release::Freed]));
    within(LIMIT, granted(&two, &second)).await;
    // The task that watched over the claim drops its share of it when it next runs.
    eventually("nothing is left to be kept alive", || life.copy().is_none()).await;
    drop(copy);
}

/// A child that outlives its parent would keep the locks of the parent, and the short lock.
#[tokio::test]
async fn a_child_of_the_process_inherits_no_file_of_the_store() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    grant(&one, &claim("held", Share::MUTEX)).await;
    let waits = spawn_wait(&two, &claim("held", Share::MUTEX));
    until_waiting(&one, "held", 1).await;
    // The files of a name that is used again stay open.
    for _ in 0..3 {
        let used = claim("used again", Share::MUTEX);
        grant(&one, &used).await;
        assert!(matches!(one.release(&[&used]).await[..], [Release::Freed]));
    }
    let here = store.path().to_string_lossy().into_owned();
    let open = |process: &str| {
        let listed = std::process::Command::new("ls").args(["-l", &format!("/proc/{process}/fd")]).output();
        let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
        listed.lines().filter(|line| line.contains(&here)).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(open(&std::process::id().to_string()).len() >= 5, "what is held, waits, and is kept");
    assert_eq!(open("self"), [""; 0]);
    waits.abort();
}

#[tokio::test]
async fn file_store_queue_is_served_in_arrival_order() {
    let store = Store::new();
    let backend = store.open();
    let holder = claim("line", Share::MUTEX);
    let first = granted(&backend, &holder).await;
    let mut waiters = Vec::new();
    let mut claims = Vec::new();
    for n in 1..=20 {
        let next = claim("line", Share::MUTEX);
        let other = store.open();
        waiters.push(spawn_wait(&other, &next));
        claims.push((other, next));
        until_waiting(&backend, "line", n).await;
    }
    backend.release(&[&holder]).await;
    for (n, (waiter, (other, claim))) in waiters.into_iter().zip(&claims).enumerate() {
        assert_eq!(waiter.await.unwrap(), Fence::new(0, first.seq + n as u64 + 1, 0));
        let seen = snapshot_of(&backend, "line").await;
        assert_eq!((seen.holders.len(), seen.waiting.len()), (1, 19 - n));
        assert_eq!(seen.holders[0].id, claim.id);
        assert!(matches!(other.release(&[claim]).await[..], [Release::Freed]));
    }
}

#[tokio::test]
async fn readers_share_and_no_claim_overtakes_a_waiting_writer() {
    let store = Store::new();
    let backend = store.open();
    let (r1, r2, w, r3) = (
        claim("rw", Share::READER),
        claim("rw", Share::READER),
        claim("rw", Share::WRITER),
        claim("rw", Share::READER),
    );
    granted(&backend, &r1).await;
    granted(&backend, &r2).await;
    let writer = spawn_wait(&backend, &w);
    until_waiting(&backend, "rw", 1).await;
    let reader = spawn_wait(&backend, &r3);
    until_waiting(&backend, "rw", 2).await;
    assert_busy(&backend, &claim("rw", Share::READER)).await;
    // The writer watches the nearest reader; that the other one leaves last must be noticed all the same.
    backend.release(&[&r2]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!writer.is_finished());
    backend.release(&[&r1]).await;
    let fence = writer.await.unwrap();
    assert!(!reader.is_finished());
    backend.release(&[&w]).await;
    assert!(reader.await.unwrap() > fence);
}

#[tokio::test]
async fn permits_are_counted_and_freed_in_any_order() {
    let store = Store::new();
    let backend = store.open();
    let two = Share::permits(2, 3).unwrap();
    let one = Share::permits(1, 3).unwrap();
    let (a, b, c, d) = (claim("sem", one), claim("sem", two), claim("sem", one), claim("sem", one));
    granted(&backend, &a).await;
    granted(&backend, &b).await;
    let third = spawn_wait(&backend, &c);
    until_waiting(&backend, "sem", 1).await;
    let fourth = spawn_wait(&backend, &d);
    until_waiting(&backend, "sem", 2).await;
    // The more distant holder leaves: both waiters fit, and the second of them has to learn of it
    // through the first.
    backend.release(&[&a, &b]).await;
    third.await.unwrap();
    fourth.await.unwrap();
    assert_eq!(snapshot_of(&backend, "sem").await.holders.len(), 2);
}

#[tokio::test]
async fn a_wide_semaphore_is_watched_beyond_the_limit_of_descriptors() {
    let store = Store::new();
    let backend = store.open();
    let share = Share::permits(1, 100).unwrap();
    let claims: Vec<Claim> = (0..100).map(|_| claim("wide", share)).collect();
    for claim in &claims {
        granted(&backend, claim).await;
    }
    let next = claim("wide", share);
    let waiter = spawn_wait(&backend, &next);
    until_waiting(&backend, "wide", 1).await;
    // The first one lies beyond the 64 that are watched.
    backend.release(&[&claims[0]]).await;
    within(LIMIT, waiter).await.unwrap();
}

#[tokio::test]
async fn a_wait_that_ends_leaves_no_file_no_place_and_no_descriptor() {
    let store = Store::new();
    let backend = store.open();
    let holder = claim("cancel", Share::MUTEX);
    granted(&backend, &holder).await;
    // All files that the runtime opens for itself are open now.
    cancelled_wait(&backend, "cancel").await;
    let before = descriptors();
    for _ in 0..50 {
        cancelled_wait(&backend, "cancel").await;
    }
    eventually("descriptors are closed", || descriptors() <= before).await;
    assert_eq!(claim_files(&backend, "cancel"), 1);
    let seen = snapshot_of(&backend, "cancel").await;
    assert_eq!((seen.holders.len(), seen.waiting.len()), (1, 0));
    backend.release(&[&holder]).await;
    eventually("the holder's descriptor is closed", || descriptors() < before).await;
}

async fn cancelled_wait(backend: &Arc<FileBackend>, name: &str) {
    let (waiting, patience) = (claim(name, Share::MUTEX), patience());
    let ended = {
        let (backend, waiting, patience) = (backend.clone(), waiting.clone(), patience.clone());
        tokio::spawn(async move { backend.contend(&waiting, &patience).await })
    };
    until_waiting(backend, name, 1).await;
    patience.end();
    let step = within(LIMIT, ended).await.unwrap().unwrap();
    assert!(matches!(step, Step::Busy(hint) if hint.ahead == Some(1)));
}

#[tokio::test]
async fn dropped_backend_frees_its_claims_and_wakes_waiters() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    granted(&one, &claim("drop", Share::MUTEX)).await;
    let next = claim("drop", Share::MUTEX);
    let waiter = spawn_wait(&two, &next);
    until_waiting(&two, "drop", 1).await;
    drop(one);
    within(LIMIT, waiter).await.unwrap();
}

#[tokio::test]
async fn broken_holder_is_notified_and_ends_its_claim_itself() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    let held = claim("break", Share::MUTEX);
    let mut grant = grant(&one, &held).await;
    let next = claim("break", Share::MUTEX);
    let waiter = spawn_wait(&two, &next);
    until_waiting(&two, "break", 1).await;
    let seen = snapshot_of(&two, "break").await;
    let copy = held.clone().id(seen.holders[0].id);
    let breaking = Break::begin();
    assert!(matches!(two.release(&[&copy]).await[..], [Release::Freed]));
    breaking.ends_without_force().await;
    let lost = grant.lost.as_mut().unwrap().fired();
    assert_eq!(within(LIMIT, lost).await, leasehold_core::LossCause::Gone);
    within(LIMIT, waiter).await.unwrap();
    assert!(matches!(renew(&one, &held).await, Renewal::Lost));
    assert!(matches!(one.release(&[&held]).await[..], [Release::Gone]));
    assert_eq!(
        snapshot_of(&two, "break").await.holders[0].id,
        next.id,
        "the late release touched no other claim"
    );
}

/// A program that breaks locks for people may hold some of them itself.
#[tokio::test]
async fn holder_is_notified_of_a_break_by_its_own_handle() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    // The second claim lives by what the first one left open.
    for _ in 0..2 {
        let held = claim("own", Share::MUTEX);
        let mut grant = grant(&one, &held).await;
        let broken = one.break_claim(&held).await.unwrap();
        assert!(matches!(broken, BreakOutcome::Ended { .. }), "{broken:?}");
        let lost = grant.lost.as_mut().unwrap().fired();
        assert_eq!(within(LIMIT, lost).await, leasehold_core::LossCause::Gone);
        assert!(matches!(renew(&one, &held).await, Renewal::Lost));
        let next = claim("own", Share::MUTEX);
        within(LIMIT, granted(&two, &next)).await;
        assert!(matches!(one.break_claim(&held).await, Ok(BreakOutcome::Gone)));
        assert!(matches!(two.release(&[&next]).await[..], [Release::Freed]));
    }
}

#[tokio::test]
async fn a_release_is_no_loss() {
    let backend = Store::new().open();
    let held = claim("own", Share::MUTEX);
    let mut grant = grant(&backend, &held).await;
    assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
    let lost = tokio::time::timeout(Duration::from_millis(50), grant.lost.as_mut().unwrap().fired());
    assert!(lost.await.is_err(), "its holder has ended it");
}

#[tokio::test]
async fn a_broken_waiter_learns_of_it_at_once() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    granted(&one, &claim("bw", Share::MUTEX)).await;
    let next = claim("bw", Share::MUTEX);
    let waiter = {
        let (two, next) = (two.clone(), next.clone());
        tokio::spawn(async move { two.contend(&next, &patience()).await })
    };
    until_waiting(&one, "bw", 1).await;
    assert!(matches!(one.release(&[&next]).await[..], [Release::Freed]));
    let failure = within(LIMIT, waiter).await.unwrap().unwrap_err();
    assert!(failure.detail().contains("broken"), "{failure}");
    assert_eq!(claim_files(&one, "bw"), 1);
}

#[tokio::test]
async fn the_same_id_in_two_handles_is_refused() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    let held = claim("twin", Share::MUTEX);
    granted(&one, &held).await;
    let failure = two.contend(&held, &patience()).await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Invalid, Effect::None));
    drop(one);
    granted(&two, &held).await;
}

#[tokio::test]
async fn a_restart_of_the_machine_skips_fences_and_forgets_claims() {
    let store = Store::new();
    let one = store.open();
    let first = granted(&one, &claim("boot", Share::MUTEX)).await;
    let ledger = one.path_of(&resource("boot")).join("ledger");
    drop(one);
    // A ledger of another boot, sound in itself, in both slots: as found after a restart.
    let bytes = fs::read(&ledger).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let other = replace_in_ledger(&bytes, boot.trim(), "00000000-0000-0000-0000-000000000000");
    fs::write(&ledger, other).unwrap();
    let two = store.open();
    let next = claim("boot", Share::MUTEX);
    assert_eq!(granted(&two, &next).await, Fence::new(0, first.seq + (1 << 20), 0));
    two.release(&[&next]).await;
    assert_eq!(
        granted(&two, &claim("boot", Share::MUTEX)).await,
        Fence::new(0, first.seq + (1 << 20) + 1, 0)
    );
    assert_eq!(claim_files(&two, "boot"), 1);
}

/// A power failure can leave a file whose name reached the disk before its content.
#[tokio::test]
async fn a_name_file_that_is_empty_is_written_again() {
    let store = Store::new();
    let backend = store.open();
    let long = "Ä".repeat(200);
    let held = claim(&long, Share::MUTEX);
    let first = granted(&backend, &held).await;
    backend.release(&[&held]).await;
    let name = backend.path_of(&resource(&long)).join("name");
    fs::write(&name, "").unwrap();
    assert!(granted(&backend, &claim(&long, Share::MUTEX)).await > first);
    assert_eq!(fs::read_to_string(&name).unwrap(), long);
}

#[tokio::test]
async fn lost_ledger_is_rebuilt_from_living_claims() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("deleted", |ledger| fs::remove_file(ledger).unwrap()),
        ("empty", |ledger| fs::write(ledger, "").unwrap()),
        ("garbage", |ledger| fs::write(ledger, vec![b'#'; 8192]).unwrap()),
        ("cut", |ledger| {
            let bytes = fs::read(ledger).unwrap();
            fs::write(ledger, &bytes[..bytes.len() - 4096]).unwrap();
        }),
        ("one slot half written", |ledger| {
            let mut bytes = fs::read(ledger).unwrap();
            bytes[4096 + 100] ^= 1;
            fs::write(ledger, bytes).unwrap();
        }),
    ];
    for (what, damage) in damages {
        let store = Store::new();
        let (one, two) = (store.open(), store.open());
        let (held, next, last) =
            (claim("d", Share::MUTEX), claim("d", Share::MUTEX), claim("d", Share::MUTEX));
        let first = granted(&one, &held).await;
        let second = spawn_wait(&two, &next);
        until_waiting(&one, "d", 1).await;
        let third = spawn_wait(&one, &last);
        until_waiting(&one, "d", 2).await;
        damage(&one.path_of(&resource("d")).join("ledger"));
        assert_eq!(snapshot_of(&two, "d").await.waiting.len(), 2, "{what}: an observer still sees the queue");
        assert_busy(&two, &claim("d", Share::MUTEX)).await;
        assert!(matches!(renew(&one, &held).await, Renewal::Alive), "{what}");
        let seen = snapshot_of(&two, "d").await;
        assert_eq!(seen.holders[0].id, held.id, "{what}");
        assert_eq!(seen.waiting.iter().map(|s| s.id).collect::<Vec<_>>(), [next.id, last.id], "{what}");
        assert!(matches!(one.release(&[&held]).await[..], [Release::Freed]), "{what}");
        let fence = within(LIMIT, second).await.unwrap();
        assert!(fence > first && fence.seq > 1024, "{what}: {fence} after {first}");
        two.release(&[&next]).await;
        assert!(within(LIMIT, third).await.unwrap() > fence, "{what}");
    }
}

#[tokio::test]
async fn a_damaged_reserve_is_an_error_and_never_a_beginning_at_one() {
    for content in
        ["", "leasehold-fence 1 00", "leasehold-fence 1 00000000000000001025 00000000000000000025\n"]
    {
        let store = Store::new();
        let backend = store.open();
        let held = claim("f", Share::MUTEX);
        granted(&backend, &held).await;
        backend.release(&[&held]).await;
        let dir = backend.path_of(&resource("f"));
        fs::write(dir.join("fence"), content).unwrap();
        fs::remove_file(dir.join("ledger")).unwrap();
        let failure = backend.contend(&claim("f", Share::MUTEX), &patience()).await.unwrap_err();
        assert_eq!((failure.kind, failure.effect), (FailureKind::Foreign, Effect::None));
        assert!(failure.detail().contains("above every fence"), "{failure}");
        assert_eq!(fs::read_to_string(dir.join("fence")).unwrap(), content, "it is left as it is");
        // The advice in the message does help.
        fs::write(dir.join("fence"), "leasehold-fence 1 00000000000000005000 00000000000000005000").unwrap();
        assert_eq!(granted(&backend, &held).await, Fence::new(0, 5001, 0));
    }
}

#[tokio::test]
async fn missing_ledger_and_reserve_with_live_claims_forbid_a_reset() {
    let store = Store::new();
    let backend = store.open();
    let held = claim("g", Share::MUTEX);
    granted(&backend, &held).await;
    let dir = backend.path_of(&resource("g"));
    fs::remove_file(dir.join("fence")).unwrap();
    fs::remove_file(dir.join("ledger")).unwrap();
    let failure = backend.contend(&claim("g", Share::MUTEX), &patience()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign);
    assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]), "its end needs no ledger");
}

#[tokio::test]
async fn a_removed_store_is_noticed_by_holders_and_made_again() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    let held = claim("rm", Share::MUTEX);
    let mut grant = grant(&one, &held).await;
    let waiting = claim("rm", Share::MUTEX);
    let waiter = spawn_wait(&one, &waiting);
    until_waiting(&one, "rm", 1).await;
    fs::remove_dir_all(one.path()).unwrap();
    assert!(matches!(renew(&one, &held).await, Renewal::Lost));
    within(LIMIT, grant.lost.as_mut().unwrap().fired()).await;
    // The waiter was woken by the end of the claim ahead, and is in the new queue.
    let fence = within(LIMIT, waiter).await.unwrap();
    assert!(fence > grant.fence.unwrap(), "the queue was forgotten, and fences rise all the same");
    assert_busy(&two, &claim("rm", Share::MUTEX)).await;
    one.release(&[&waiting]).await;
    granted(&two, &claim("rm", Share::MUTEX)).await;
    assert!(matches!(one.release(&[&held]).await[..], [Release::Gone]));
}

/// As after a cleaner of temporary files, and a user that waited for it.
#[tokio::test]
async fn store_that_another_user_made_again_is_refused() {
    use std::os::unix::fs::{PermissionsExt, chown};
    if !rustix::process::geteuid().is_root() {
        return skip("root", "only root can make a directory that belongs to another user");
    }
    let base = tempfile::tempdir().unwrap();
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let path = base.path().join("store");
    let backend = open(&path);
    granted(&backend, &claim("a", Share::MUTEX)).await;
    fs::remove_dir_all(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    chown(&path, Some(65_534), None).unwrap();
    for name in ["a", "b"] {
        let failure = backend.contend(&claim(name, Share::MUTEX), &patience()).await.unwrap_err();
        assert_eq!((failure.kind, failure.effect), (FailureKind::Denied, Effect::None), "{failure}");
        assert!(failure.detail().contains("belongs to another user"), "{failure}");
        backend.inspect(&resource(name), None, &patience()).await.unwrap_err();
    }
    backend.list("", None, 9).await.unwrap_err();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    // It is used again once its owner can be trusted.
    chown(&path, Some(0), None).unwrap();
    granted(&backend, &claim("a", Share::MUTEX)).await;
}

#[tokio::test]
async fn any_name_works_and_is_listed() {
    let store = Store::new();
    let backend = store.open();
    let long = "ü".repeat(256);
    let mut names = ["a", "A", "a/b", "..", ".", "a b", "größe", "%2e", "~x", "-", "日本", &long];
    for name in names {
        granted(&backend, &claim(name, Share::MUTEX)).await;
    }
    names.sort_unstable();
    let listed = store.open().list("", None, 100).await.unwrap();
    assert_eq!(listed.iter().map(|s| s.resource.as_str()).collect::<Vec<_>>(), names);
    assert!(listed.iter().all(|summary| summary.holders == 1 && summary.waiting == 0));
    let listed = backend.list("a", Some(&resource("a")), 1).await.unwrap();
    assert_eq!(listed.iter().map(|s| s.resource.as_str()).collect::<Vec<_>>(), ["a b"]);
    assert_eq!(backend.list("none", None, 10).await.unwrap(), []);
}

#[tokio::test]
async fn two_names_with_one_hash_are_an_error() {
    let store = Store::new();
    let backend = store.open();
    let name = "x".repeat(400);
    let held = claim(&name, Share::MUTEX);
    granted(&backend, &held).await;
    backend.release(&[&held]).await;
    fs::write(backend.path_of(&resource(&name)).join("name"), "y".repeat(400)).unwrap();
    let failure = backend.contend(&held, &patience()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign);
}

#[tokio::test]
async fn inspection_reports_changes_of_the_queue() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    let empty = snapshot_of(&two, "look").await;
    assert_eq!((empty.holders.len(), empty.fence), (0, None));
    assert!(!two.path_of(&resource("look")).exists(), "looking creates nothing");
    let watcher = {
        let two = two.clone();
        tokio::spawn(async move { two.inspect(&resource("look"), Some(&empty.version), &patience()).await })
    };
    let mut held = claim("look", Share::MUTEX);
    held.note = Note::new("host a\npid 7 100%").unwrap();
    let fence = granted(&one, &held).await;
    let seen = within(LIMIT, watcher).await.unwrap().unwrap();
    assert_eq!((seen.holders[0].note.as_str(), seen.fence), ("host a\npid 7 100%", Some(fence)));
    let since = Duration::from_millis(seen.holders[0].since_unix_ms.unwrap());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(now - since < LIMIT, "{now:?} {since:?}");
    let watcher = {
        let two = two.clone();
        tokio::spawn(async move { two.inspect(&resource("look"), Some(&seen.version), &patience()).await })
    };
    one.release(&[&held]).await;
    assert_eq!(within(LIMIT, watcher).await.unwrap().unwrap().holders.len(), 0);
}

#[tokio::test]
async fn long_queue_grows_the_ledger_and_its_end_shrinks_it() {
    let store = Store::new();
    let backend = store.open();
    let note = Note::new(&"n".repeat(1024)).unwrap();
    let mut claims = Vec::new();
    for _ in 0..40 {
        let claim = claim("grow", Share::READER).note(note.clone());
        granted(&backend, &claim).await;
        claims.push(claim);
    }
    let size = || fs::metadata(backend.path_of(&resource("grow")).join("ledger")).unwrap().len();
    assert!(size() > 80 * 1024);
    assert_eq!(snapshot_of(&store.open(), "grow").await.holders.len(), 40);
    let all: Vec<&Claim> = claims.iter().collect();
    assert!(backend.release(&all).await.iter().all(|answer| matches!(answer, Release::Freed)));
    assert_eq!(snapshot_of(&backend, "grow").await.holders.len(), 0);
    assert_eq!(size(), 8192);
}

#[tokio::test]
async fn fifos_of_dead_unlisted_claims_are_swept() {
    let store = Store::new();
    let backend = store.open();
    let living = claim("sweep", Share::READER);
    granted(&backend, &living).await;
    let dir = backend.path_of(&living.resource);
    let left = dir.join(format!("claim-{:020}-1-1-{}", 1_000_000, "ab".repeat(16)));
    assert!(std::process::Command::new("mkfifo").arg(&left).status().unwrap().success());
    for _ in 0..520 {
        let claim = claim("sweep", Share::READER);
        granted(&backend, &claim).await;
        backend.release(&[&claim]).await;
    }
    assert!(!left.exists());
    assert_eq!(claim_files(&backend, "sweep"), 1, "the living one is spared");
}

#[tokio::test]
async fn an_id_that_is_used_again_is_not_confused_with_its_past() {
    let store = Store::new();
    let backend = store.open();
    let held = claim("again", Share::MUTEX);
    for _ in 0..300 {
        let mut grant = grant(&backend, &held).await;
        assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
        assert_eq!(grant.lost.as_mut().unwrap().cause(), None, "a release is not a loss");
    }
    let grant = grant(&backend, &held).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(grant.lost.unwrap().cause(), None);
    assert!(matches!(renew(&backend, &held).await, Renewal::Alive));
}

#[tokio::test]
async fn a_hung_short_lock_ends_with_patience_and_says_so() {
    let store = Store::new();
    let backend = store.open();
    let held = claim("hung", Share::MUTEX);
    granted(&backend, &held).await;
    let lock = fs::File::open(backend.path_of(&resource("hung")).join("lock")).unwrap();
    lock.lock().unwrap();
    let failure = backend.contend(&claim("hung", Share::MUTEX), &Patience::none(Arc::new(SystemClock))).await;
    let failure = failure.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None));
    assert!(failure.detail().contains("fuser"), "{failure}");
    assert_eq!(snapshot_of(&backend, "hung").await.holders.len(), 1, "observers do not need it");
    assert!(matches!(renew(&backend, &held).await, Renewal::Alive), "holders do not need it");
    assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]), "a release is heard without it");
    assert_eq!(snapshot_of(&backend, "hung").await.holders.len(), 0);
    drop(lock);
    granted(&backend, &claim("hung", Share::MUTEX)).await;
}

#[tokio::test]
async fn a_lock_file_that_was_replaced_is_locked_anew() {
    let store = Store::new();
    let backend = store.open();
    let held = claim("swap", Share::MUTEX);
    granted(&backend, &held).await;
    let path = backend.path_of(&resource("swap")).join("lock");
    let old = fs::File::open(&path).unwrap();
    old.lock().unwrap();
    let next = claim("swap", Share::MUTEX);
    let waiter = spawn_wait(&backend, &next);
    tokio::time::sleep(Duration::from_millis(50)).await;
    // A clean-up removes the file: a waiter for the old file must not believe that it protects anything.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "").unwrap();
    let new = fs::File::open(&path).unwrap();
    new.lock().unwrap();
    drop(old);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        snapshot_of(&backend, "swap").await.waiting.len(),
        0,
        "it did not enter under the old file's lock"
    );
    drop(new);
    until_waiting(&backend, "swap", 1).await;
    backend.release(&[&held]).await;
    within(LIMIT, waiter).await.unwrap();
}

#[tokio::test]
async fn a_shared_store_has_the_modes_that_were_asked_for() {
    use std::os::unix::fs::PermissionsExt;
    let store = Store::new();
    let config = FileConfig::new(store.path()).mode(0o660).unwrap();
    let backend = Arc::new(FileBackend::open(config).unwrap());
    granted(&backend, &claim("m", Share::MUTEX)).await;
    let dir = backend.path_of(&resource("m"));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o770);
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o660, "{}", path.display());
    }
    let private = Store::new().open();
    granted(&private, &claim("m", Share::MUTEX)).await;
    let dir = private.path_of(&resource("m"));
    assert_eq!(mode(&dir), 0o700);
    assert!(fs::read_dir(&dir).unwrap().all(|entry| mode(&entry.unwrap().path()) == 0o600));
}

/// Its users have one group in common, and not their primary ones.
#[tokio::test]
async fn files_of_a_store_for_a_group_have_the_group_of_the_store() {
    use std::os::unix::fs::MetadataExt;
    let store = Store::new();
    let config = FileConfig::new(store.path()).mode(0o660).unwrap();
    let backend = FileBackend::open(config).unwrap();
    let made = fs::metadata(store.path()).unwrap();
    assert_eq!(made.mode() & 0o7777, 0o2770);
    // Only root may give a file to any group.
    let group = if rustix::process::geteuid().is_root() { 4_711 } else { made.gid() };
    std::os::unix::fs::chown(store.path(), None, Some(group)).unwrap();
    granted(&backend, &claim("m", Share::MUTEX)).await;
    let dir = backend.path_of(&resource("m"));
    assert_eq!(fs::metadata(&dir).unwrap().gid(), group);
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(fs::metadata(&path).unwrap().gid(), group, "{}", path.display());
    }
}

#[tokio::test]
async fn links_in_the_store_are_not_followed() {
    let store = Store::new();
    let backend = store.open();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), backend.path_of(&resource("link"))).unwrap();
    let failure = backend.contend(&claim("link", Share::MUTEX), &patience()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");
    let dir = backend.path_of(&resource("lock"));
    fs::create_dir(&dir).unwrap();
    let target = elsewhere.path().join("target");
    std::os::unix::fs::symlink(&target, dir.join("lock")).unwrap();
    let failure = backend.contend(&claim("lock", Share::MUTEX), &patience()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");
    assert!(!target.exists());
}

async fn renew(backend: &FileBackend, claim: &Claim) -> Renewal {
    let proof = Proof::none();
    backend.renew(&[Renew { claim, proof: &proof }]).await.remove(0)
}

/// Changes the words of a slot and makes its checksum fit again.
fn replace_in_ledger(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let half = bytes.len() / 2;
    let mut changed = Vec::new();
    for slot in [&bytes[..half], &bytes[half..]] {
        let length = usize::from_str_radix(std::str::from_utf8(&slot[..8]).unwrap(), 16).unwrap();
        let (ledger, head) = leasehold_core::Ledger::from_text(&slot[9..9 + length]).unwrap();
        assert!(head.contains(from));
        let text = ledger.to_text(&head.replace(from, to));
        let mut slot = format!("{:08x}\n{text}", text.len()).into_bytes();
        slot.resize(half, 0);
        changed.extend(slot);
    }
    changed
}

#[test]
fn ids_of_tests_differ() {
    assert_ne!(claim("x", Share::MUTEX).id, claim("x", Share::MUTEX).id);
    assert_ne!(claim("x", Share::MUTEX).id, ClaimId::from_bytes([0; 16]));
}
