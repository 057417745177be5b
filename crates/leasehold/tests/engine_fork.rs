//! A forked child neither renews nor releases the locks that its parent holds. The fork is a real one: a
//! library that is loaded before the C library makes `chroot`, which nothing here needs, fork instead,
//! so that no line of this needs unsafe code.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process::Command;
use std::time::Duration;

use common::block_on;
use futures_util::FutureExt;
use leasehold::backend::LossCause;
use leasehold::{Client, ErrorKind, Guard, State, Tuning, blocking};
use leasehold_testkit::RedisServer;
use rustix::process::{Pid, WaitOptions, waitpid};

const FORKING: &str = "
    #include <unistd.h>
    int chroot(const char *path) { (void) path; return fork() < 0 ? -1 : 0; }
";
const URL: &str = "LEASEHOLD_FORK_URL";
const RUNTIME: &str = "LEASEHOLD_FORK_RUNTIME";
/// A tenth of it is when the first renewal is due.
const TTL: Duration = Duration::from_secs(40);

/// The test that is the process that forks.
const PARENT: &str = "the_parent";
/// The same for the blocking API.
const BLOCKING_PARENT: &str = "the_parent_that_blocks";

async fn forks_on(runtime: &str) {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    forks_over(&server.url(), runtime);
}

fn forks_over(url: &str, runtime: &str) {
    forks(PARENT, url, runtime);
}

fn forks(test: &str, url: &str, runtime: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("forking.c"), dir.path().join("forking.so"));
    std::fs::write(&source, FORKING).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(compiled.unwrap().success());
    let parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env("LD_PRELOAD", &library)
        .env(URL, url)
        .env(RUNTIME, runtime)
        .output()
        .unwrap();
    let output = (String::from_utf8_lossy(&parent.stdout), String::from_utf8_lossy(&parent.stderr));
    let passed = output.0.contains("1 passed") || output.0.contains("nobody else holds it");
    assert!(parent.status.success() && passed, "{}\n{}", output.0, output.1);
}

#[tokio::test]
async fn fork_of_one_thread_continues_and_releases_nothing() {
    forks_on("one thread").await;
}

#[tokio::test]
async fn a_child_of_several_threads_releases_nothing() {
    forks_on("several threads").await;
}

/// A store that ends what its copy in the child is dropped with would end what the parent holds.
const ALONE: &str = "one thread";

#[test]
fn a_child_ends_no_sign_of_life_of_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    forks_over(&format!("file:{}", dir.path().join("store").display()), ALONE);
}

#[test]
fn a_child_locks_by_the_blocking_api_as_its_parent_does() {
    let dir = tempfile::tempdir().unwrap();
    forks(BLOCKING_PARENT, &format!("file:{}", dir.path().join("store").display()), ALONE);
}

#[cfg(feature = "sqlite")]
#[test]
fn a_child_ends_no_claim_of_its_parent_in_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    forks_over(&format!("sqlite:{}", dir.path().join("locks.db").display()), ALONE);
}

/// Too long for a machine that stands still: a failover loses claims.
const NO_FAILOVER: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_child_ends_no_claim_of_its_parent_behind_sentinels() {
    let builder = leasehold_testkit::RedisSentinel::builder().down_after(NO_FAILOVER);
    let Some(servers) = builder.start_or_skip().await else { return };
    forks_over(&servers.url(), ALONE);
}

#[tokio::test]
async fn a_child_ends_no_claim_of_its_parent_in_a_redis_cluster() {
    let builder = leasehold_testkit::RedisCluster::builder().node_timeout(NO_FAILOVER);
    let Some(cluster) = builder.start_or_skip().await else { return };
    forks_over(&cluster.url(), ALONE);
}

#[tokio::test]
async fn a_child_ends_no_vote_of_its_parent_on_redlock() {
    let Some(servers) = leasehold_testkit::RedisQuorum::start_or_skip(3).await else { return };
    let url = format!("redlock://{}", servers.hosts());
    let locks = Client::open(&url).await.unwrap();
    let backend: &dyn std::any::Any = &**locks.backend();
    // As an operator does who has set them up: else they vote only after the longest ttl.
    backend.downcast_ref::<leasehold::layer::Quorum>().unwrap().rearm().await.unwrap();
    locks.close(Duration::from_secs(5)).await;
    forks_over(&url, ALONE);
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_child_ends_no_session_of_its_parent_on_postgres() {
    let Some(server) = leasehold_testkit::PostgresServer::start_or_skip().await else { return };
    for method in ["advisory", "for-update", "row"] {
        forks_over(&format!("{}?method={method}", server.url()), ALONE);
    }
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn a_child_ends_no_session_of_its_parent_on_mysql() {
    let Some(server) = leasehold_testkit::MariaDbServer::start_or_skip().await else { return };
    for method in ["get-lock", "for-update", "row"] {
        forks_over(&format!("{}?method={method}", server.url()), ALONE);
    }
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn a_child_ends_no_session_of_its_parent_on_zookeeper() {
    let Some(ensemble) = leasehold_testkit::ZooKeeperEnsemble::start_or_skip(1).await else { return };
    forks_over(&format!("{}?session=30s", ensemble.url()), ALONE);
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn a_child_ends_no_claim_of_its_parent_on_etcd() {
    let Some(cluster) = leasehold_testkit::EtcdCluster::start_or_skip().await else { return };
    forks_over(&cluster.url(), ALONE);
}

#[cfg(feature = "memcached")]
#[tokio::test]
async fn a_child_ends_no_claim_of_its_parent_on_memcached() {
    let Some(server) = leasehold_testkit::MemcachedServer::start_or_skip().await else { return };
    forks_over(&server.url(), ALONE);
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
    let (locks, mut guards, waiting, trying) = runtime.block_on(async {
        let tuning = Tuning::default().renew_at(0.1);
        let locks = Client::builder().tuning(tuning).open(&url).await.unwrap();
        let mut guards = Vec::new();
        for number in 0..5 {
            guards.push(locks.mutex(format!("job/{number}")).ttl(TTL).lock().await.unwrap());
        }
        let other = Client::open(&url).await.unwrap();
        let waiting = tokio::spawn(async move { other.mutex("job/0").ttl(TTL).lock().await });
        if url.starts_with("redis") {
            common::waiting(&locks, "job/0", 1).await;
        }
        let is_direct = url.starts_with("redis://");
        let mut number = 0;
        let trying = loop {
            let parked = locks.mutex(format!("parked/{number}")).ttl(TTL);
            let mut trying: Trying = Box::pin(async move { parked.try_lock().await });
            // Its request is sent, and nothing has read the answer; unless this thread was held up meanwhile.
            if !is_direct || (&mut trying).now_or_never().is_none() {
                break trying;
            }
            number += 1;
            assert!(number < 100, "each answer was there at once");
        };
        (locks, guards, waiting, is_direct.then_some(trying))
    });
    let parent = std::process::id();
    // In both of them this comes back.
    std::os::unix::fs::chroot("/forks").unwrap();
    if std::process::id() != parent {
        let child = catch_unwind(AssertUnwindSafe(|| {
            child(&locks, &mut guards);
            if let Some(trying) = trying {
                assert_eq!(block_on(trying).unwrap_err().kind(), ErrorKind::Closed);
            }
            if one {
                // The loop of the parent continues here, past the time at which it would renew, also
                // when no client is left.
                let run_for = |length| runtime.block_on(async { tokio::time::sleep(length).await });
                run_for(TTL / 10 + Duration::from_secs(1));
                drop((guards, locks, waiting));
                run_for(Duration::from_secs(1));
            } else {
                std::mem::forget((guards, waiting));
            }
            // The threads that the end of the runtime would wait for do not exist here, and a thread for
            // blocking calls may have held its lock.
            std::mem::forget(runtime);
        }));
        std::process::exit(i32::from(child.is_err()));
    }
    // The parent sleeps meanwhile: this test is not about what the two read from one connection.
    let child = waitpid(None::<Pid>, WaitOptions::empty()).unwrap().unwrap().1;
    assert_eq!(child.exit_status(), Some(0), "the child failed");
    if !url.starts_with("redis") {
        assert_no_other_holder(&url, &guards);
        // How the parent deals with connections that its child has read from depends on the driver of
        // each server.
        std::process::exit(0);
    }
    runtime.block_on(async {
        assert_eq!(locks.inspect("job/0").await.unwrap().waiting.len(), 1, "the child left the queue");
        for guard in guards.drain(..) {
            guard.check().unwrap();
            guard.release().await.expect("it is held until its own process releases it");
        }
        waiting.await.unwrap().unwrap().release().await.unwrap();
        locks.mutex("job/0").lock().await.unwrap().release().await.unwrap();
    });
}

#[test]
#[ignore = "it is the process that forks, run by a test above"]
fn the_parent_that_blocks() {
    let url = std::env::var(URL).unwrap();
    let locks = blocking::Client::open(&url).unwrap();
    let held = ["kept", "released in the child"].map(|name| locks.mutex(name).ttl(TTL).lock().unwrap());
    let [kept, released] = held;
    let parent = std::process::id();
    // In both of them this comes back.
    std::os::unix::fs::chroot("/forks").unwrap();
    if std::process::id() != parent {
        let child = catch_unwind(AssertUnwindSafe(|| {
            let forked = ErrorKind::Lost(LossCause::Forked);
            assert_eq!(kept.check().unwrap_err().kind(), forked);
            assert_eq!(kept.lost_within(TTL).unwrap(), Some(LossCause::Forked));
            assert_eq!(released.release().unwrap_err().kind(), forked);
            // The client of the parent stays closed here.
            assert_eq!(locks.mutex("next").lock().unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(locks.inspect("kept").unwrap_err().kind(), ErrorKind::Closed);
            locks.close(Duration::from_millis(100)).unwrap();
            // Another one does all that the first one did.
            let own = blocking::Client::open(&url).unwrap();
            assert!(own.mutex("kept").try_lock().unwrap().is_none(), "the parent holds it");
            let next = own.mutex("next").lock().unwrap();
            assert_eq!(next.lost_within(Duration::from_millis(50)).unwrap(), None);
            next.release().unwrap();
        }));
        std::process::exit(i32::from(child.is_err()));
    }
    let child = waitpid(None::<Pid>, WaitOptions::empty()).unwrap().unwrap().1;
    assert_eq!(child.exit_status(), Some(0), "the child failed");
    for guard in [kept, released] {
        guard.check().unwrap();
        guard.release().unwrap();
    }
}

/// An acquisition that was polled once.
type Trying = Pin<Box<dyn Future<Output = leasehold::Result<Option<Guard>>>>>;

/// Checks that the locks of the guards are granted to no other client, and that the guards are valid.
fn assert_no_other_holder(url: &str, guards: &[Guard]) {
    // The readiness of sockets is shared with the child in the runtime of before.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let others = Client::open(url).await.unwrap();
        for guard in guards {
            let granted = others.mutex(guard.resource().as_str()).ttl(TTL).try_lock().await.unwrap();
            assert!(granted.is_none(), "two hold {} after the child", guard.resource());
            guard.check().unwrap();
        }
    });
    println!("nobody else holds it");
}

/// The part of the child: what it does with the locks of its parent.
fn child(locks: &Client, guards: &mut Vec<Guard>) {
    let forked = ErrorKind::Lost(LossCause::Forked);
    assert_eq!(guards[0].check().unwrap_err().kind(), forked);
    assert_eq!(block_on(guards[1].lost()), LossCause::Forked);
    assert_eq!(block_on(guards[1].changed(State::Valid)), State::Lost(LossCause::Forked));
    drop(guards.pop());
    let released = block_on(guards.pop().unwrap().release());
    assert_eq!(released.unwrap_err().kind(), forked);
    let closed = ErrorKind::Closed;
    assert_eq!(block_on(locks.mutex("next").lock()).unwrap_err().kind(), closed);
    assert_eq!(block_on(locks.mutex("next").try_lock()).unwrap_err().kind(), closed);
    assert_eq!(block_on(locks.inspect("job/0")).unwrap_err().kind(), closed);
    let read = block_on(locks.versioned("value").read()).unwrap_err().kind();
    assert!(read == closed || read == ErrorKind::Unsupported, "{read:?}");
}
