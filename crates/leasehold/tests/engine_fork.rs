//! A forked child neither renews nor gives back what its parent holds. The fork is a real one: a library that is loaded before
//! the C library lets `chroot`, which nothing here needs, fork instead, so that no line of this needs unsafe code.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

use common::block_on;
use leasehold::core::LossCause;
use leasehold::{ErrorKind, Guard, Leasehold};
use leasehold_testkit::RedisServer;
use rustix::process::{Pid, WaitOptions, waitpid};

const FORKING: &str = "
    #include <unistd.h>
    int chroot(const char *path) { (void) path; return fork() < 0 ? -1 : 0; }
";
const URL: &str = "LEASEHOLD_FORK_URL";
const RUNTIME: &str = "LEASEHOLD_FORK_RUNTIME";
/// A third of it is when the first renewal is due.
const TTL: Duration = Duration::from_secs(12);

async fn forks_on(runtime: &str) {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("forking.c"), dir.path().join("forking.so"));
    std::fs::write(&source, FORKING).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(compiled.unwrap().success());
    let parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_parent", "--ignored", "--nocapture", "--test-threads=1"])
        .env("LD_PRELOAD", &library)
        .env(URL, server.url())
        .env(RUNTIME, runtime)
        .output()
        .unwrap();
    let told = (String::from_utf8_lossy(&parent.stdout), String::from_utf8_lossy(&parent.stderr));
    assert!(parent.status.success() && told.0.contains("1 passed"), "{}\n{}", told.0, told.1);
}

#[tokio::test]
async fn a_child_of_one_thread_goes_on_and_releases_nothing() {
    forks_on("one thread").await;
}

#[tokio::test]
async fn a_child_of_several_threads_releases_nothing() {
    forks_on("several threads").await;
}

#[test]
#[ignore = "it is the process that forks, run by the tests above"]
fn the_parent() {
    let (url, kind) = (std::env::var(URL).unwrap(), std::env::var(RUNTIME).unwrap());
    let one = kind == "one thread";
    let mut runtime = match one {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.enable_all().build().unwrap();
    let (locks, mut guards, waiting) = runtime.block_on(async {
        let locks = Leasehold::open(&url).await.unwrap();
        let mut guards = Vec::new();
        for number in 0..5 {
            guards.push(locks.mutex(&format!("job/{number}")).ttl(TTL).lock().await.unwrap());
        }
        let other = Leasehold::open(&url).await.unwrap();
        let waiting = tokio::spawn(async move { other.mutex("job/0").ttl(TTL).lock().await });
        common::waiting(&locks, "job/0", 1).await;
        (locks, guards, waiting)
    });
    let parent = std::process::id();
    // In both of them this comes back.
    std::os::unix::fs::chroot("/forks").unwrap();
    if std::process::id() != parent {
        let child = catch_unwind(AssertUnwindSafe(|| {
            child(&locks, guards);
            if one {
                // The loop of the parent goes on here, past the time at which it would renew.
                runtime.block_on(async { tokio::time::sleep(TTL / 3 + Duration::from_secs(1)).await });
                drop(locks);
            }
        }));
        std::process::exit(i32::from(child.is_err()));
    }
    // The parent sleeps meanwhile: what the two read from one connection is not what this is about.
    let child = waitpid(None::<Pid>, WaitOptions::empty()).unwrap().unwrap().1;
    assert_eq!(child.exit_status(), Some(0), "the child failed");
    runtime.block_on(async {
        assert_eq!(locks.inspect("job/0").await.unwrap().waiting.len(), 1, "the child left the line");
        for guard in guards.drain(..) {
            guard.check().unwrap();
            guard.release().await.expect("it is held until its own process lets go");
        }
        waiting.await.unwrap().unwrap().release().await.unwrap();
        locks.mutex("job/0").lock().await.unwrap().release().await.unwrap();
    });
}

/// What the child does with what its parent holds.
fn child(locks: &Leasehold, mut guards: Vec<Guard>) {
    let forked = ErrorKind::Lost(LossCause::Forked);
    assert_eq!(guards[0].check().unwrap_err().kind(), forked);
    assert_eq!(block_on(guards[1].lost()), LossCause::Forked);
    drop(guards.pop());
    let released = block_on(guards.pop().unwrap().release());
    assert_eq!(released.unwrap_err().kind(), forked);
    let closed = ErrorKind::Closed;
    assert_eq!(block_on(locks.mutex("next").lock()).unwrap_err().kind(), closed);
    assert_eq!(block_on(locks.mutex("next").try_lock()).unwrap_err().kind(), closed);
    assert_eq!(block_on(locks.inspect("job/0")).unwrap_err().kind(), closed);
    assert_eq!(block_on(locks.versioned("value").read()).unwrap_err().kind(), closed);
    // The rest stays where the child leaves it: with the copy of the watchdog, if it runs.
    std::mem::forget(guards);
}
