//! Helpers that the tests of the file store share.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a helper of tests is not a test to the linter")]

pub mod taker;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::SystemClock;
use leasehold::local::{FileBackend, FileConfig};
use leasehold_core::{Backend, Claim, ClaimId, Fence, Grant, Patience, Resource, Share, Snapshot, Step};
use leasehold_testkit::Lateness;
use tokio::task::JoinHandle;

/// The limit within which an expected event comes on any working machine: nothing here is woken by time.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A store in a directory of its own.
pub struct Store(tempfile::TempDir);

impl Store {
    pub fn new() -> Store {
        Store(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> std::path::PathBuf {
        self.0.path().join("store")
    }

    pub fn open(&self) -> Arc<FileBackend> {
        open(&self.path())
    }
}

pub fn open(path: &Path) -> Arc<FileBackend> {
    Arc::new(FileBackend::open(FileConfig::new(path)).unwrap())
}

pub fn resource(name: &str) -> Resource {
    Resource::new(name).unwrap()
}

pub fn claim(name: &str, share: Share) -> Claim {
    let mut id = [0; 16];
    getrandom::fill(&mut id).unwrap();
    Claim::new(ClaimId::from_bytes(id), resource(name), share, Duration::from_secs(1))
}

pub fn patience() -> Patience {
    Patience::unlimited(Arc::new(SystemClock))
}

pub async fn grant(backend: &FileBackend, claim: &Claim) -> Grant {
    match within(LIMIT, backend.contend(claim, &patience())).await.unwrap() {
        Step::Granted(grant) => grant,
        Step::Busy(hint) => panic!("busy with endless patience: {hint:?}"),
    }
}

pub async fn granted(backend: &FileBackend, claim: &Claim) -> Fence {
    grant(backend, claim).await.fence.unwrap()
}

pub async fn assert_busy(backend: &FileBackend, claim: &Claim) {
    let step = backend.contend(claim, &Patience::none(Arc::new(SystemClock))).await.unwrap();
    assert!(matches!(step, Step::Busy(_)), "{step:?}");
}

/// Waits in a task that keeps its backend until it is granted.
pub fn spawn_wait(backend: &Arc<FileBackend>, claim: &Claim) -> JoinHandle<Fence> {
    let (backend, claim) = (backend.clone(), claim.clone());
    tokio::spawn(async move { granted(&backend, &claim).await })
}

pub async fn snapshot_of(backend: &FileBackend, name: &str) -> Snapshot {
    backend.inspect(&resource(name), None, &patience()).await.unwrap()
}

pub async fn until_waiting(backend: &FileBackend, name: &str, count: usize) {
    let begun = Instant::now();
    while snapshot_of(backend, name).await.waiting.len() != count {
        assert!(begun.elapsed() < LIMIT, "never {count} waiting for {name}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A break of a lock whose holder can end it by itself, from the request on.
pub struct Break {
    begun: Instant,
    lateness: Lateness,
}

impl Break {
    pub fn begin() -> Break {
        Break { begun: Instant::now(), lateness: Lateness::watch() }
    }

    /// Checks that it has ended without force. A machine that stood still takes the time in which the holder could have
    /// released it.
    pub async fn ends_without_force(self) {
        let took = self.begun.elapsed();
        let late = self.lateness.end().await;
        assert!(took < FORCE || late > FORCE / 10, "it took {took:?} on a machine that was {late:?} late");
    }
}

/// The time that a holder has to release a broken lock before it is taken by force.
pub const FORCE: Duration = Duration::from_secs(2);

pub async fn within<F: Future>(limit: Duration, future: F) -> F::Output {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("not within {limit:?}"))
}

pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns how many descriptors on FIFOs this process has.
pub fn descriptors() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    fds.filter(|fd| {
        let target = std::fs::read_link(fd.as_ref().unwrap().path());
        target.is_ok_and(|target| target.to_string_lossy().contains("/cancel/"))
    })
    .count()
}

pub fn claim_files(backend: &FileBackend, name: &str) -> usize {
    let files = std::fs::read_dir(backend.path_of(&resource(name))).unwrap();
    files.filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().starts_with("claim-")).count()
}
