//! The files that a released claim of the file store leaves open for the next one of its process, and what happens when
//! other processes change the store in between. Two handles on one directory act as two processes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::sync::Arc;

use leasehold::local::{FileBackend, LivenessHandle};
use leasehold_core::{Backend, Claim, Fence, Release, Renew, Renewal, Share, Step};

mod file_support;
use file_support::*;

/// Acquires and releases a lock so often that the next acquisition can use what the last one left open.
async fn warm(backend: &FileBackend, name: &str) -> Fence {
    let mut last = Fence::default();
    for _ in 0..3 {
        let claim = claim(name, Share::MUTEX);
        let fence = granted(backend, &claim).await;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        release(backend, &claim).await;
    }
    assert_eq!(claim_files(backend, name), 1, "the FIFO of the last claim is kept");
    last
}

async fn release(backend: &FileBackend, claim: &Claim) {
    assert!(matches!(backend.release(&[claim]).await[..], [Release::Freed]));
}

/// Returns the descriptors of this process on files under a directory.
fn open_files(under: &std::path::Path) -> usize {
    let files = fs::read_dir("/proc/self/fd").unwrap();
    files
        .filter(|file| {
            fs::read_link(file.as_ref().unwrap().path()).is_ok_and(|target| target.starts_with(under))
        })
        .count()
}

#[tokio::test]
async fn released_lock_is_free_for_other_processes() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    let last = warm(&one, "a").await;
    let (theirs, ours) = (claim("a", Share::MUTEX), claim("a", Share::MUTEX));
    assert_eq!(granted(&two, &theirs).await, Fence::new(0, last.seq + 1, 0));
    assert_busy(&one, &ours).await;
    let waiter = spawn_wait(&one, &ours);
    until_waiting(&two, "a", 1).await;
    release(&two, &theirs).await;
    assert_eq!(within(LIMIT, waiter).await.unwrap(), Fence::new(0, last.seq + 2, 0));
    release(&one, &ours).await;
}

#[tokio::test]
async fn reacquired_lock_is_busy_for_others_and_wakes_them() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    let last = warm(&one, "a").await;
    let (ours, theirs) = (claim("a", Share::MUTEX), claim("a", Share::MUTEX));
    assert_eq!(granted(&one, &ours).await, Fence::new(0, last.seq + 1, 0));
    assert_eq!(claim_files(&one, "a"), 1, "no new FIFO was made");
    assert_busy(&two, &theirs).await;
    let waiter = spawn_wait(&two, &theirs);
    until_waiting(&one, "a", 1).await;
    release(&one, &ours).await;
    assert_eq!(within(LIMIT, waiter).await.unwrap(), Fence::new(0, last.seq + 2, 0));
    let seen = snapshot_of(&one, "a").await;
    assert_eq!((seen.holders[0].id, seen.holders.len()), (theirs.id, 1));
}

#[tokio::test]
async fn lock_that_is_acquired_again_can_be_broken() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    warm(&one, "a").await;
    let ours = claim("a", Share::MUTEX);
    let held = grant(&one, &ours).await;
    assert!(matches!(two.release(&[&ours]).await[..], [Release::Freed]));
    within(LIMIT, held.lost.unwrap().fired()).await;
    let renewal = Renew { claim: &ours, proof: &held.proof };
    assert!(matches!(one.renew(&[renewal]).await[..], [Renewal::Lost]));
    assert!(matches!(one.release(&[&ours]).await[..], [Release::Gone]));
    warm(&one, "a").await;
}

#[tokio::test]
async fn end_of_the_store_handle_ends_a_lock_that_was_acquired_again() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    warm(&one, "a").await;
    granted(&one, &claim("a", Share::MUTEX)).await;
    let next = claim("a", Share::MUTEX);
    let waiter = spawn_wait(&two, &next);
    until_waiting(&two, "a", 1).await;
    drop(one);
    within(LIMIT, waiter).await.unwrap();
    release(&two, &next).await;
}

#[tokio::test]
async fn store_that_is_closed_leaves_no_fifo() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    warm(&one, "a").await;
    drop(one);
    eventually("the FIFO is removed", || claim_files(&two, "a") == 0).await;
    assert_eq!(fs::read_dir(two.path_of(&resource("a"))).unwrap().count(), 3, "lock, ledger and fence stay");
}

/// A process with a copy keeps the claim alive for which it was made, and no other.
#[tokio::test]
async fn copy_of_a_sign_of_life_keeps_no_later_claim_alive() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    warm(&one, "a").await;
    let first = claim("a", Share::MUTEX);
    let life = grant(&one, &first).await.proof.get::<LivenessHandle>().cloned().unwrap();
    let copy = life.copy().unwrap();
    release(&one, &first).await;
    assert!(life.copy().is_none(), "the claim has ended");
    let second = claim("a", Share::MUTEX);
    let other = grant(&one, &second).await.proof.get::<LivenessHandle>().cloned().unwrap();
    let is_same = |one: &std::os::fd::OwnedFd, other: &std::os::fd::OwnedFd| {
        let (one, other) = (rustix::fs::fstat(one).unwrap(), rustix::fs::fstat(other).unwrap());
        (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
    };
    assert!(!is_same(&copy, &other.copy().unwrap()), "the second claim has a FIFO of its own");
    drop(one);
    within(LIMIT, granted(&two, &claim("a", Share::MUTEX))).await;
    drop(copy);
}

/// Returns the name of the only FIFO of a resource.
fn fifo_of(backend: &FileBackend, name: &str) -> String {
    let names = fs::read_dir(backend.path_of(&resource(name))).unwrap();
    let names = names.map(|file| file.unwrap().file_name().into_string().unwrap());
    let fifos: Vec<String> = names.filter(|name| name.starts_with("claim-")).collect();
    assert_eq!(fifos.len(), 1, "{fifos:?}");
    fifos[0].clone()
}

/// A rename takes longer than everything else that an uncontended lock costs.
#[tokio::test]
async fn fifo_keeps_its_name_for_claims_of_the_same_share() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    warm(&one, "a").await;
    let name = fifo_of(&one, "a");
    for _ in 0..5 {
        let ours = claim("a", Share::MUTEX);
        granted(&one, &ours).await;
        assert_eq!(fifo_of(&one, "a"), name);
        assert!(!name.contains(&ours.id.to_hex()));
        let seen = snapshot_of(&two, "a").await;
        assert_eq!((seen.holders[0].id, seen.holders.len()), (ours.id, 1), "the ledger has its id");
        assert_busy(&two, &claim("a", Share::MUTEX)).await;
        release(&one, &ours).await;
    }
    // The share of a claim is read from the name if the ledger is lost.
    let reader = claim("a", Share::READER);
    granted(&one, &reader).await;
    assert_ne!(fifo_of(&one, "a"), name);
    granted(&two, &claim("a", Share::READER)).await;
    assert_busy(&two, &claim("a", Share::WRITER)).await;
}

/// The process of the claim does not notice it.
#[tokio::test]
async fn lost_ledger_is_rebuilt_with_a_fifo_of_another_name() {
    for change in ["removed", "all damaged", "first slot damaged", "second slot damaged"] {
        let store = Store::new();
        let (one, two) = (store.open(), store.open());
        warm(&one, "a").await;
        let (ours, theirs) = (claim("a", Share::MUTEX), claim("a", Share::MUTEX));
        let held = grant(&one, &ours).await;
        let ledger = one.path_of(&resource("a")).join("ledger");
        let mut bytes = fs::read(&ledger).unwrap();
        let half = bytes.len() / 2;
        match change {
            "first slot damaged" => bytes[100] ^= 1,
            "second slot damaged" => bytes[half + 100] ^= 1,
            _ => bytes.fill(b'x'),
        }
        match change {
            "removed" => fs::remove_file(&ledger).unwrap(),
            _ => fs::write(&ledger, bytes).unwrap(),
        }
        assert_busy(&two, &claim("a", Share::MUTEX)).await;
        let seen = snapshot_of(&two, "a").await;
        assert_eq!(seen.holders.len(), 1, "{change}");
        assert!(
            seen.holders[0].fence.unwrap() >= held.fence.unwrap(),
            "{change}: no fence of an earlier claim"
        );
        let waiter = spawn_wait(&two, &theirs);
        until_waiting(&two, "a", 1).await;
        assert!(matches!(
            one.renew(&[Renew { claim: &ours, proof: &held.proof }]).await[..],
            [Renewal::Alive]
        ));
        release(&one, &ours).await;
        assert!(within(LIMIT, waiter).await.unwrap() > held.fence.unwrap(), "{change}");
        release(&two, &theirs).await;
        warm(&one, "a").await;
    }
}

/// The claim is not in a ledger that another process has rebuilt, but its holder is found by what is shown.
#[tokio::test]
async fn holder_that_a_rebuilt_ledger_shows_can_be_broken() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    warm(&one, "a").await;
    let ours = claim("a", Share::MUTEX);
    let held = grant(&one, &ours).await;
    fs::remove_file(one.path_of(&resource("a")).join("ledger")).unwrap();
    assert_busy(&two, &claim("a", Share::MUTEX)).await;
    let shown = snapshot_of(&two, "a").await.holders[0].id;
    let shown = Claim::new(shown, resource("a"), Share::MUTEX, std::time::Duration::from_secs(1));
    assert!(matches!(two.release(&[&shown]).await[..], [Release::Freed]));
    within(LIMIT, held.lost.unwrap().fired()).await;
    assert!(matches!(one.release(&[&ours]).await[..], [Release::Gone]));
    granted(&two, &claim("a", Share::MUTEX)).await;
}

/// Another program writes an older ledger into the same file. Places are given again then, and the name of the FIFO
/// that is kept has a higher one.
#[tokio::test]
async fn fifo_with_a_higher_place_keeps_its_rank_in_a_rebuilt_queue() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    let ledger = one.path_of(&resource("a")).join("ledger");
    let first = claim("a", Share::MUTEX);
    granted(&one, &first).await;
    release(&one, &first).await;
    let old = fs::read(&ledger).unwrap();
    warm(&one, "a").await;
    // In place: the file stays the same.
    fs::write(&ledger, old).unwrap();
    let (ours, theirs) = (claim("a", Share::MUTEX), claim("a", Share::MUTEX));
    let held = grant(&one, &ours).await;
    let waiter = spawn_wait(&two, &theirs);
    until_waiting(&two, "a", 1).await;
    fs::remove_file(&ledger).unwrap();
    assert_busy(&two, &claim("a", Share::MUTEX)).await;
    let seen = snapshot_of(&two, "a").await;
    assert_eq!((seen.holders.len(), seen.waiting.len()), (1, 1));
    assert_eq!(seen.waiting[0].id, theirs.id, "the waiter has not passed the holder");
    assert!(matches!(one.renew(&[Renew { claim: &ours, proof: &held.proof }]).await[..], [Renewal::Alive]));
    release(&one, &ours).await;
    within(LIMIT, waiter).await.unwrap();
}

/// The slot that the next change goes to is the same in the older ledger; the other one is not.
#[tokio::test]
async fn older_ledger_in_place_hides_no_holder() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    let ledger = one.path_of(&resource("a")).join("ledger");
    warm(&one, "a").await;
    let reader = claim("a", Share::READER);
    granted(&one, &reader).await;
    let old = fs::read(&ledger).unwrap();
    release(&one, &reader).await;
    fs::write(&ledger, old).unwrap();
    let theirs = claim("a", Share::READER);
    granted(&two, &theirs).await;
    assert_busy(&one, &claim("a", Share::WRITER)).await;
    release(&two, &theirs).await;
}

/// Each has the ledger open as it was before the other one changed it.
#[tokio::test]
async fn handles_that_take_turns_see_what_the_other_wrote() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    let mut last = warm(&one, "a").await;
    for round in 0..40 {
        let backend = if round % 3 == 0 { &two } else { &one };
        let claim = claim("a", Share::MUTEX);
        let fence = granted(backend, &claim).await;
        assert_eq!(fence, Fence::new(0, last.seq + 1, 0), "round {round}");
        last = fence;
        release(backend, &claim).await;
    }
}

/// The same claim is requested again after another one lives by its FIFO.
#[tokio::test]
async fn id_of_a_claim_that_made_a_fifo_may_be_used_again() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    let first = claim("a", Share::MUTEX);
    for _ in 0..3 {
        granted(&one, &first).await;
        release(&one, &first).await;
    }
    let ours = claim("a", Share::MUTEX);
    granted(&one, &ours).await;
    let waiter = spawn_wait(&two, &first);
    until_waiting(&two, "a", 1).await;
    fs::remove_file(one.path_of(&resource("a")).join("ledger")).unwrap();
    assert_busy(&two, &claim("a", Share::MUTEX)).await;
    let seen = snapshot_of(&two, "a").await;
    assert_eq!((seen.holders.len(), seen.waiting.len()), (1, 1), "{seen:?}");
    release(&one, &ours).await;
    within(LIMIT, waiter).await.unwrap();
}

/// Each of these is done by another program while nothing is held.
#[tokio::test]
async fn files_that_were_replaced_are_noticed() {
    for change in [
        "the directory",
        "lock",
        "ledger",
        "the FIFO",
        "a FIFO that was moved",
        "a copied ledger",
        "a ledger with a second name",
        "a damaged ledger",
        "a moved directory",
    ] {
        let store = Store::new();
        let (one, two) = (store.open(), store.open());
        let last = warm(&one, "a").await;
        let dir = one.path_of(&resource("a"));
        let fifo = || fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path());
        match change {
            "the directory" => fs::remove_dir_all(&dir).unwrap(),
            "the FIFO" => {
                let is_fifo = |path: &std::path::PathBuf| path.to_string_lossy().contains("claim-");
                fs::remove_file(fifo().find(is_fifo).unwrap()).unwrap();
            }
            "a FIFO that was moved" => {
                fs::rename(dir.join(fifo_of(&one, "a")), store.path().join("x")).unwrap()
            }
            "a moved directory" => fs::rename(&dir, store.path().join("moved")).unwrap(),
            "a ledger with a second name" => {
                // As a backup does that links files: the old one exists after it was replaced.
                fs::hard_link(dir.join("ledger"), dir.join("backup")).unwrap();
                fs::copy(dir.join("ledger"), dir.join("copy")).unwrap();
                fs::rename(dir.join("copy"), dir.join("ledger")).unwrap();
            }
            "a copied ledger" => {
                fs::copy(dir.join("ledger"), dir.join("copy")).unwrap();
                fs::rename(dir.join("copy"), dir.join("ledger")).unwrap();
            }
            "a damaged ledger" => {
                let length = fs::metadata(dir.join("ledger")).unwrap().len();
                fs::write(dir.join("ledger"), vec![b'x'; length.try_into().unwrap()]).unwrap();
            }
            name => fs::remove_file(dir.join(name)).unwrap(),
        }
        let (ours, theirs) = (claim("a", Share::MUTEX), claim("a", Share::MUTEX));
        let fence = granted(&one, &ours).await;
        assert!(fence > last, "{change}: {fence} after {last}");
        assert_busy(&two, &theirs).await;
        let waiter = spawn_wait(&two, &theirs);
        until_waiting(&one, "a", 1).await;
        release(&one, &ours).await;
        assert!(within(LIMIT, waiter).await.unwrap() > fence, "{change}");
        release(&two, &theirs).await;
    }
}

/// The same between an acquisition and its release.
#[tokio::test]
async fn files_that_are_replaced_while_a_lock_is_held_are_noticed() {
    for name in ["lock", "ledger"] {
        let store = Store::new();
        let (one, two) = (store.open(), store.open());
        warm(&one, "a").await;
        let ours = claim("a", Share::MUTEX);
        let fence = granted(&one, &ours).await;
        fs::remove_file(one.path_of(&resource("a")).join(name)).unwrap();
        let theirs = claim("a", Share::MUTEX);
        assert_busy(&two, &theirs).await;
        let waiter = spawn_wait(&two, &theirs);
        until_waiting(&two, "a", 1).await;
        release(&one, &ours).await;
        assert!(within(LIMIT, waiter).await.unwrap() > fence, "{name}");
        release(&two, &theirs).await;
    }
}

/// Readers that come while one claim holds with kept files, and leave in another order.
#[tokio::test]
async fn shared_claims_beside_a_kept_one_are_all_released() {
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    for _ in 0..5 {
        let readers = [0; 3].map(|_| claim("a", Share::READER));
        for (reader, backend) in readers.iter().zip([&one, &two, &one]) {
            granted(backend, reader).await;
        }
        for (reader, backend) in readers.iter().zip([&one, &two, &one]) {
            release(backend, reader).await;
        }
        let writer = claim("a", Share::WRITER);
        granted(&one, &writer).await;
        assert_eq!(snapshot_of(&two, "a").await.holders.len(), 1);
        release(&one, &writer).await;
    }
}

#[tokio::test]
async fn many_names_leave_few_files_open() {
    let store = Store::new();
    let backend = store.open();
    for _ in 0..3 {
        for number in 0..600 {
            let claim = claim(&format!("name-{number}"), Share::MUTEX);
            granted(&backend, &claim).await;
            release(&backend, &claim).await;
        }
    }
    let open = open_files(&store.path());
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    assert!(open as u64 <= (limit / 4).min(1024) + 16, "{open} of {limit}");
    let once = store.open();
    let before = open_files(&store.path());
    for number in 0..50 {
        let claim = claim(&format!("once-{number}"), Share::MUTEX);
        granted(&once, &claim).await;
        release(&once, &claim).await;
    }
    eventually("names that are used once leave nothing open", || open_files(&store.path()) <= before).await;
}

/// A claim that is requested and released from several tasks at once, in two processes' stead.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_of_two_handles_never_hold_together() {
    let store = Store::new();
    let held = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut tasks = Vec::new();
    for number in 0..6 {
        let backend = if number % 2 == 0 { store.open() } else { open(&store.path()) };
        let held = held.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..200 {
                let claim = claim("a", Share::MUTEX);
                let step = within(LIMIT, backend.contend(&claim, &patience())).await.unwrap();
                assert!(matches!(step, Step::Granted(_)));
                assert!(!held.swap(true, std::sync::atomic::Ordering::SeqCst), "two hold");
                tokio::task::yield_now().await;
                held.store(false, std::sync::atomic::Ordering::SeqCst);
                release(&backend, &claim).await;
            }
        }));
    }
    for task in tasks {
        within(LIMIT, task).await.unwrap();
    }
}

/// The runtime of the last claim exists, but nothing drives it.
#[test]
fn loss_is_reported_by_the_runtime_of_the_claim() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (idle, driven) = (runtime(), runtime());
    let store = Store::new();
    let (one, two) = (store.open(), store.open());
    idle.block_on(warm(&one, "a"));
    for _ in 0..2 {
        driven.block_on(async {
            let ours = claim("a", Share::MUTEX);
            let held = grant(&one, &ours).await;
            assert!(matches!(two.release(&[&ours]).await[..], [Release::Freed]));
            within(LIMIT, held.lost.unwrap().fired()).await;
        });
        idle.block_on(warm(&one, "a"));
    }
}
