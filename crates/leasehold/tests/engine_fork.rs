//! A forked child neither renews nor releases the locks that its parent holds. The fork is a real one: a
//! library that is loaded before the C library makes `chroot`, which nothing here needs, fork instead,
//! so that no line of this needs unsafe code.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::block_on;
use futures_util::FutureExt;
use leasehold::backend::{Clock, LossCause, Moment};
use leasehold::{
    Client, ErrorKind, Event, EventSubscriber, Guard, LoadError, Owner, State, SystemClock, Tuning, blocking,
};
use leasehold_testkit::RedisServer;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

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
/// The same where another thread has locked the clock of the client.
const LOCKED_CLOCK_PARENT: &str = "the_parent_whose_clock_is_locked";
/// The same where the child drops the last client.
const LAST_CLIENT_PARENT: &str = "the_parent_of_a_last_client";
/// The same where other threads acquire and release locks.
const BUSY_PARENT: &str = "the_parent_whose_other_threads_lock";
/// The same where a task of the parent loads a value.
const LOADING_PARENT: &str = "the_parent_that_loads";

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

/// A fork has no thread that unlocks what another thread of its parent had locked.
#[test]
fn a_child_waits_for_no_lock_of_another_thread() {
    forks(LOCKED_CLOCK_PARENT, "mem:", ALONE);
    forks(BUSY_PARENT, "mem:", "several threads");
}

/// What the drop of a client's parts locks may be locked by any thread of the parent.
#[test]
fn a_child_drops_no_part_of_a_client() {
    forks(LAST_CLIENT_PARENT, "mem:", ALONE);
}

/// The task that loads does not exist in the child.
#[test]
fn a_child_waits_for_no_loader_of_its_parent() {
    forks(LOADING_PARENT, "mem:", ALONE);
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

/// A clock that keeps its state under a mutex.
#[derive(Debug, Default)]
struct MutexClock(Mutex<SystemClock>);

impl Clock for MutexClock {
    fn now(&self) -> Moment {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).now()
    }
}

#[test]
#[ignore = "it is the process that forks, run by a test above"]
fn the_parent_whose_clock_is_locked() {
    let clock = Arc::new(MutexClock::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _locks = runtime.block_on(async {
        let locks = Client::builder().clock(clock.clone()).open(&std::env::var(URL).unwrap()).await.unwrap();
        let plain = locks.mutex("plain").lock().await.unwrap();
        let _token = plain.cancellation_token();
        let job = locks.mutex("job").owner(&Owner::new()).min_hold(TTL);
        let mut guards = vec![
            plain,
            locks.mutex("released").lock().await.unwrap(),
            locks.mutex("kept").min_hold(TTL).lock().await.unwrap(),
            locks.mutex("kept and released").min_hold(TTL).lock().await.unwrap(),
            job.lock().await.unwrap(),
            job.lock().await.unwrap(),
        ];
        // Nothing drives the runtime while the clock is locked, so only the child could read it.
        let locked = clock.0.lock().unwrap();
        in_a_fork(|| {
            let forked = ErrorKind::Lost(LossCause::Forked);
            for guard in &guards {
                assert_eq!(guard.check().unwrap_err().kind(), forked);
                assert_eq!(guard.remaining(), Duration::ZERO);
                assert_eq!(block_on(guard.changed(State::Valid)), State::Lost(LossCause::Forked));
                assert_eq!(block_on(guard.revoked()).unwrap_err().kind(), forked);
            }
            for (number, guard) in guards.drain(..).enumerate() {
                if number % 2 == 0 {
                    drop(guard);
                } else {
                    assert_eq!(block_on(guard.release()).unwrap_err().kind(), forked);
                }
            }
        });
        drop(locked);
        locks
    });
}

/// An event subscriber that keeps its state under a mutex.
#[derive(Debug, Default)]
struct MutexSubscriber(Mutex<u64>);

impl EventSubscriber for MutexSubscriber {
    fn on_event(&self, _: &Event<'_>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }
}

#[test]
#[ignore = "it is the process that forks, run by a test above"]
fn the_parent_of_a_last_client() {
    let (clock, subscriber) = (Arc::new(MutexClock::default()), Arc::new(MutexSubscriber::default()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let builder = Client::builder().clock(clock.clone()).subscriber(subscriber.clone());
        let locks = builder.open(&std::env::var(URL).unwrap()).await.unwrap();
        let guard = locks.mutex("job").lock().await.unwrap();
        let mut held = Some((guard, locks));
        // As if other threads were inside of them. Nothing drives the runtime meanwhile.
        let locked = (clock.0.lock().unwrap(), subscriber.0.lock().unwrap());
        in_a_fork(|| {
            let counts = || (Arc::strong_count(&clock), Arc::strong_count(&subscriber));
            let parts = counts();
            // The parent keeps its own until nothing is locked.
            drop(held.take());
            assert_eq!(counts(), parts, "the child has dropped parts of its parent's client");
        });
        drop(locked);
    });
}

#[test]
#[ignore = "it is the process that forks, run by a test above"]
fn the_parent_that_loads() {
    const HOUR: Duration = Duration::from_secs(3600);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Client::open(&std::env::var(URL).unwrap()).await.unwrap();
        let flight = locks.single_flight("page");
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let mut loading = Box::pin(flight.get_or_load(HOUR, move || async move {
            begun.send(()).unwrap();
            std::future::pending::<Result<_, std::io::Error>>().await
        }));
        tokio::select! {
            biased;
            _ = &mut loading => panic!("it loads for ever"),
            begun = has_begun => begun.unwrap(),
        }
        in_a_fork(|| {
            let load = || async { Ok::<_, std::io::Error>(Some(Vec::new())) };
            match block_on(flight.get_or_load(HOUR, load)) {
                Err(LoadError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Closed, "{error}"),
                other => panic!("{other:?}"),
            }
            assert_eq!(block_on(flight.get()).map(drop).unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(block_on(flight.invalidate()).unwrap_err().kind(), ErrorKind::Closed);
        });
    });
}

#[test]
#[ignore = "it is the process that forks, run by a test above"]
fn the_parent_whose_other_threads_lock() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let locks = runtime.block_on(Client::open(&std::env::var(URL).unwrap())).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (mutex, is_over) = (locks.mutex(format!("thread/{thread}")), &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let guard = block_on(mutex.lock()).unwrap();
                    block_on(guard.release()).unwrap();
                }
            });
        }
        // The threads end if this one panics.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..FORKS {
                let guard = block_on(locks.mutex("job").lock()).unwrap();
                in_a_fork(move || drop(guard));
            }
        }));
        is_over.store(true, Ordering::SeqCst);
        outcome.unwrap();
    });
}

/// Enough that a child of a library that waits for a lock of another thread hangs.
const FORKS: usize = 200;

/// Does this in a fork of the process, and fails if the fork fails or does not end.
fn in_a_fork(act: impl FnOnce()) {
    let parent = std::process::id();
    let (mut ids, mut own_id) = std::io::pipe().unwrap();
    // In both of them this comes back.
    std::os::unix::fs::chroot("/forks").unwrap();
    if std::process::id() != parent {
        let child = catch_unwind(AssertUnwindSafe(|| {
            own_id.write_all(&std::process::id().to_ne_bytes()).unwrap();
            act();
        }));
        std::process::exit(i32::from(child.is_err()));
    }
    let mut id = [0; 4];
    ids.read_exact(&mut id).unwrap();
    let child = Pid::from_raw(i32::from_ne_bytes(id)).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            return assert_eq!(status.exit_status(), Some(0), "the child failed");
        }
        if Instant::now() > end {
            kill_process(child, Signal::KILL).unwrap();
            waitpid(Some(child), WaitOptions::empty()).unwrap();
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
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
