//! The file store on a full disk, on a read-only one, without permissions and without descriptors.
//!
//! Each test starts this program again in an environment of its own: a mount namespace, fewer
//! capabilities, another user, a lower limit. On a machine that does not allow that, the test is
//! skipped, and says so.
#![allow(clippy::unwrap_used, reason = "a helper of tests is not a test to the linter")]

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use leasehold::local::{FileBackend, FileConfig};
use leasehold_core::{Backend, Effect, Failure, FailureKind, Fence, FenceGrade, Note, Release, Share};
use leasehold_testkit::require::skip;
use leasehold_testkit::surroundings::{DIRECTORY, inside, private_mounts};

mod file_support;
use file_support::*;

#[tokio::test]
async fn full_disk_loses_no_held_lock() {
    let script = "mount -t tmpfs -o size=512k,nr_inodes=60 tmpfs \"$DIR\"";
    let Some(dir) = inside("full_disk_loses_no_held_lock", &private_mounts(), script) else {
        return;
    };
    let backend = open(&dir.join("store"));
    let (held, next) = (claim("a", Share::MUTEX), claim("a", Share::MUTEX));
    let first = granted(&backend, &held).await;
    fill(&dir.join("ballast"));

    // A known resource needs no more space: its queue continues.
    let waiter = spawn_wait(&backend, &next);
    until_waiting(&backend, "a", 1).await;
    assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
    assert_eq!(waiter.await.unwrap(), Fence::new(0, first.seq + 1, 0));

    // A new one does.
    let failure = backend.contend(&claim("b", Share::MUTEX), &patience()).await.unwrap_err();
    assert_full(&failure);
    assert_eq!(claim_files(&backend, "b"), 0);
    let entries = fs::read_dir(backend.path_of(&resource("b"))).unwrap();
    let left: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name()).filter(|name| name != "lock").collect();
    assert!(left.is_empty(), "{left:?}");

    // So does a queue that outgrows its file. Its waiters keep their places.
    let long = Note::new(&"n".repeat(1024)).unwrap();
    let mut waiters = Vec::new();
    let failure = loop {
        let claim = claim("a", Share::MUTEX).note(long.clone());
        let ended = Arc::new(patience());
        let asked = {
            let (backend, claim, ended) = (backend.clone(), claim.clone(), ended.clone());
            tokio::spawn(async move { backend.contend(&claim, &ended).await })
        };
        let count = waiters.len();
        // One that fails has a file for a moment, but is never written into the queue.
        let began = std::time::Instant::now();
        while !asked.is_finished() && snapshot_of(&backend, "a").await.waiting.len() != count + 1 {
            assert!(began.elapsed() < LIMIT, "it neither waits nor fails");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        if asked.is_finished() {
            break asked.await.unwrap().unwrap_err();
        }
        waiters.push((asked, ended));
        assert!(waiters.len() < 20, "the ledger never outgrew its slots");
    };
    assert_full(&failure);
    assert!(!waiters.is_empty());
    assert_eq!(snapshot_of(&backend, "a").await.waiting.len(), waiters.len());
    assert_eq!(claim_files(&backend, "a"), waiters.len() + 1);
    for (asked, ended) in waiters {
        ended.end();
        asked.await.unwrap().unwrap();
    }

    fs::remove_file(dir.join("ballast")).unwrap();
    assert!(granted(&backend, &claim("b", Share::MUTEX)).await > first);

    // Without inodes there is no sign of life, and no place in the queue.
    fill_inodes(&dir);
    let failure = backend.contend(&claim("a", Share::MUTEX), &patience()).await.unwrap_err();
    assert_full(&failure);
    assert_eq!(snapshot_of(&backend, "a").await.waiting.len(), 0);
    assert!(matches!(backend.release(&[&next]).await[..], [Release::Freed]));
    // The release has made space for one claim, as soon as the kernel has closed what was removed.
    let last = claim("a", Share::MUTEX);
    let began = std::time::Instant::now();
    while let Err(failure) = backend.contend(&last, &patience()).await {
        assert_full(&failure);
        assert!(began.elapsed() < LIMIT, "space is never freed: {failure}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn read_only_store_can_be_inspected() {
    let script = "mkdir -p \"$DIR/store\" && mount --bind \"$DIR/store\" \"$DIR/store\"";
    let Some(dir) = inside("read_only_store_can_be_inspected", &private_mounts(), script) else { return };
    let store = dir.join("store");
    let writer = open(&store);
    let held = claim("a", Share::MUTEX);
    granted(&writer, &held).await;
    run("mount", &["-o", "remount,bind,ro", store.to_str().unwrap()]);
    let reader = open(&store);
    assert_eq!(snapshot_of(&reader, "a").await.holders[0].id, held.id);
    assert_eq!(reader.list("", None, 9).await.unwrap().len(), 1);
    for name in ["a", "b"] {
        let failure = reader.contend(&claim(name, Share::MUTEX), &patience()).await.unwrap_err();
        assert_eq!((failure.kind, failure.effect), (FailureKind::Denied, Effect::None), "{failure}");
        assert!(failure.detail().contains("writable file system"), "{failure}");
    }
    let missing = FileBackend::open(FileConfig::new(store.join("below"))).unwrap_err();
    assert_eq!(missing.kind, FailureKind::Denied, "{missing}");
    // The claim ends with its sign of life, although nothing can be written down.
    drop(writer);
    assert_eq!(snapshot_of(&reader, "a").await.holders.len(), 0);
}

/// What the store promised when it was opened does not hold in memory.
#[tokio::test]
async fn store_that_is_hidden_by_a_mount_of_another_kind_is_refused() {
    let name = "store_that_is_hidden_by_a_mount_of_another_kind_is_refused";
    let Some(dir) = inside(name, &private_mounts(), "true") else { return };
    let (store, held) = (dir.join("store"), claim("a", Share::MUTEX));
    let backend = open(&store);
    if backend.profile().fences(FenceGrade::Strict).is_err() {
        return skip("a disk", "the temporary directory lies in memory");
    }
    granted(&backend, &held).await;
    run("mount", &["-t", "tmpfs", "tmpfs", store.to_str().unwrap()]);
    for name in ["a", "b"] {
        let failure = backend.contend(&claim(name, Share::MUTEX), &patience()).await.unwrap_err();
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unsupported, Effect::None), "{failure}");
        assert!(failure.detail().contains("another kind of file system"), "{failure}");
    }
    assert_eq!(fs::read_dir(&store).unwrap().count(), 0);
    run("umount", &[store.to_str().unwrap()]);
    assert_busy(&backend, &claim("a", Share::MUTEX)).await;
    assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
    granted(&backend, &claim("a", Share::MUTEX)).await;
}

#[tokio::test]
async fn permission_failure_names_the_path_and_the_remedy() {
    let name = "permission_failure_names_the_path_and_the_remedy";
    // The administrator's right to write anywhere would hide what is tested.
    let without = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"].map(str::to_owned);
    let wrapper =
        if rustix::process::geteuid().is_root() { without.to_vec() } else { vec!["env".to_owned()] };
    let Some(dir) = inside(name, &wrapper, "true") else { return };
    let store = dir.join("store");
    let backend = open(&store);
    let held = claim("a", Share::MUTEX);
    granted(&backend, &held).await;
    let denied = |failure: Failure, path: &Path| {
        assert_eq!((failure.kind, failure.effect), (FailureKind::Denied, Effect::None), "{failure}");
        assert!(failure.detail().contains(path.to_str().unwrap()), "{failure}");
        assert!(failure.detail().contains("give this user read and write permission"), "{failure}");
    };
    let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();

    set(&store, 0o500);
    let other = claim("b", Share::MUTEX);
    denied(backend.contend(&other, &patience()).await.unwrap_err(), &backend.path_of(&other.resource));
    denied(FileBackend::open(FileConfig::new(store.join("new"))).unwrap_err(), &store.join("new"));
    set(&store, 0o700);

    let dir = backend.path_of(&held.resource);
    set(&dir, 0o500);
    let next = claim("a", Share::MUTEX);
    denied(backend.contend(&next, &patience()).await.unwrap_err(), &dir);
    assert_eq!(snapshot_of(&backend, "a").await.waiting.len(), 0);
    set(&dir, 0o700);

    set(&dir.join("ledger"), 0o400);
    denied(backend.contend(&next, &patience()).await.unwrap_err(), &dir.join("ledger"));
    assert_eq!(snapshot_of(&backend, "a").await.holders.len(), 1);
    set(&dir.join("ledger"), 0o600);
    assert_busy(&backend, &next).await;
    assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
}

#[tokio::test]
async fn without_descriptors_the_failure_says_so_and_leaves_nothing() {
    let name = "without_descriptors_the_failure_says_so_and_leaves_nothing";
    let Some(dir) = inside(name, &["env".to_owned()], "ulimit -n 64") else { return };
    let backend = open(&dir.join("store"));
    let mut held = Vec::new();
    let failure = loop {
        let next = claim(&format!("r{}", held.len()), Share::MUTEX);
        match backend.contend(&next, &patience()).await {
            Ok(_) => held.push(next),
            Err(failure) => break failure,
        }
        assert!(held.len() < 64);
    };
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
    assert!(failure.detail().contains("ulimit -n"), "{failure}");
    for claim in held.split_off(held.len() - 10) {
        assert!(matches!(backend.release(&[&claim]).await[..], [Release::Freed]));
    }
    eventually("the watchers have closed", || fs::read_dir("/proc/self/fd").unwrap().count() < 58).await;
    assert_eq!(backend.list("", None, 100).await.unwrap().len(), held.len(), "the failed one left nothing");
    granted(&backend, &claim("again", Share::MUTEX)).await;
}

#[tokio::test]
async fn two_users_share_a_store_that_was_made_for_it() {
    let name = "two_users_share_a_store_that_was_made_for_it";
    if !rustix::process::geteuid().is_root() && std::env::var_os(DIRECTORY).is_none() {
        return skip("root", "only root can start a process of another user");
    }
    let shared = |dir: &Path| {
        let config = FileConfig::new(dir.join("store")).mode(0o666).unwrap();
        Arc::new(FileBackend::open(config).unwrap())
    };
    let private = claim("private", Share::MUTEX);
    if std::env::var_os(DIRECTORY).is_none() {
        // The surroundings are made by root: a program and a directory that the other user can reach.
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        let program = place.path().join("program");
        leasehold_testkit::copy_executable(&std::env::current_exe().unwrap(), &program).unwrap();
        let backend = shared(place.path());
        let held = claim("a", Share::MUTEX);
        let fence = granted(&backend, &held).await;
        let alone = open(&place.path().join("alone"));
        granted(&alone, &private).await;
        let mut other = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(&program)
            .args(["--exact", name, "--nocapture"])
            .env(DIRECTORY, place.path())
            .spawn()
            .unwrap();
        // The other user waits for us, then we for them.
        until_waiting(&backend, "a", 1).await;
        assert!(matches!(backend.release(&[&held]).await[..], [Release::Freed]));
        let again = claim("a", Share::MUTEX);
        assert!(granted(&backend, &again).await > fence);
        assert!(tokio::task::spawn_blocking(move || other.wait()).await.unwrap().unwrap().success());
        // The other user's process ended in the queue, without a release.
        assert_eq!(claim_files(&backend, "a"), 2);
        assert_eq!(snapshot_of(&backend, "a").await.waiting.len(), 0);
        assert_busy(&backend, &claim("a", Share::MUTEX)).await;
        assert_eq!(claim_files(&backend, "a"), 1, "what is left of another user's claim is removed");
        return;
    }
    let dir = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    assert_eq!(rustix::process::geteuid().as_raw(), 65_534);
    let backend = shared(&dir);
    let mine = claim("a", Share::MUTEX);
    granted(&backend, &mine).await;
    until_waiting(&backend, "a", 1).await;
    assert!(matches!(backend.release(&[&mine]).await[..], [Release::Freed]));
    eventually_held(&backend, "a").await;
    spawn_wait(&backend, &claim("a", Share::MUTEX));
    until_waiting(&backend, "a", 1).await;
    let refused = FileBackend::open(FileConfig::new(dir.join("alone"))).unwrap();
    let failure = refused.contend(&private, &patience()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
    std::process::exit(0);
}

/// Waits until the queue has moved on to the other user.
async fn eventually_held(backend: &FileBackend, name: &str) {
    until_waiting(backend, name, 0).await;
    assert_eq!(snapshot_of(backend, name).await.holders.len(), 1);
}

fn assert_full(failure: &Failure) {
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
    assert!(failure.detail().contains("free some space"), "{failure}");
}

/// Takes all free space.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let block = [0; 4096];
    for _ in 0..10_000 {
        if file.write_all(&block).is_err() {
            return;
        }
    }
    panic!("this disk does not fill up");
}

fn fill_inodes(dir: &Path) {
    for n in 0..1000 {
        if File::create(dir.join(format!("inode{n}"))).is_err() {
            return;
        }
    }
    panic!("the inodes do not run out");
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

/// A fence that a power failure could take back would be granted twice.
#[tokio::test]
async fn fences_are_on_the_disk_before_the_first_grant() {
    const SHELL: &str =
        "exec strace -f -qq -y -e trace=fsync,fdatasync,rename,renameat,renameat2 -o \"$DIR/trace\" \"$@\"";
    // A program that is traced already cannot be traced once more.
    if std::env::var_os(DIRECTORY).is_none() {
        match Command::new("strace").args(["-f", "-qq", "true"]).output() {
            Ok(tried) if tried.status.success() => {}
            Ok(tried) => {
                let why = String::from_utf8_lossy(&tried.stderr);
                return skip("strace", &format!("it is not allowed: {why}"));
            }
            Err(error) => return skip("strace", &format!("it cannot be started: {error}")),
        }
    }
    let wrapper = ["sh", "-c", SHELL, "strace"].map(str::to_owned);
    let Some(dir) = inside("fences_are_on_the_disk_before_the_first_grant", &wrapper, ":") else { return };
    let backend = open(&dir.join("store"));
    granted(&backend, &claim("a", Share::MUTEX)).await;
    let of_resource = fs::canonicalize(backend.path_of(&resource("a"))).unwrap();
    let of_resource = of_resource.display();
    let trace = fs::read_to_string(dir.join("trace")).unwrap();
    let line = |what: &str, parts: &[&str]| {
        let found = trace.lines().position(|line| parts.iter().all(|part| line.contains(part)));
        found.unwrap_or_else(|| panic!("{what} is missing:\n{trace}"))
    };
    let written = line("the sync of the file", &["sync(", &format!("{of_resource}/fence.new>")]);
    let renamed = line("the rename of the file", &["rename", "\"fence.new\"", "\"fence\""]);
    let kept = line("the sync of its directory", &["fsync(", &format!("<{of_resource}>")]);
    assert!(written < renamed && renamed < kept, "{trace}");
}
