//! The dialect of etcd's own clients, against `etcdctl`, in both directions and through a crash.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::*;
use leasehold_core::{Backend, FailureKind, Patience, Share};
use leasehold_etcd::EtcdBackend;
use leasehold_testkit::{EtcdCluster, require};

const LONG: Duration = Duration::from_secs(40);

/// An `etcdctl` that contends. It is ended with the test.
struct Peer(Child);

impl Peer {
    fn start(cluster: &EtcdCluster, words: &[&str]) -> Peer {
        let program = require::program("etcdctl", "etcd-client").unwrap();
        let mut command: Command = cluster.etcdctl_command(&program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        Peer(command.spawn().unwrap())
    }

    /// The key that it prints when it holds. Blocks until then.
    fn key(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Ends it at once, its lease left behind.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Lets it unlock, as it does on this signal.
    fn interrupt(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn open() -> Option<(EtcdCluster, Arc<EtcdBackend>)> {
    let cluster = EtcdCluster::start_or_skip().await?;
    let backend = connect(&format!("{}/?dialect=concurrency", cluster.url())).await;
    Some((cluster, backend))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_etcdctl_holds_is_waited_for_and_seen() {
    let Some((cluster, backend)) = open().await else { return };
    let mut peer = Peer::start(&cluster, &["lock", "jobs/a", "--ttl=10"]);
    let key = tokio::task::spawn_blocking(move || (peer.key(), peer)).await.unwrap();
    let (key, peer) = key;
    assert!(key.starts_with("jobs/a/"), "{key}");
    assert!(try_take(&backend, &mutex("jobs/a")).await.is_none());
    assert!(try_take(&backend, &mutex("jobs")).await.is_some(), "a shorter name is another lock");
    let listed = backend.list("jobs/", None, 10).await.unwrap();
    assert_eq!((listed.len(), listed[0].resource.as_str(), listed[0].holders), (1, "jobs/a", 1));

    let claim = mutex("jobs/a");
    let waiter = waiting(&backend, &claim, LONG);
    stand(&backend, "jobs/a", 1).await;
    let released_at = clock().now();
    peer.interrupt();
    let (_, at) = waiter.await.unwrap().unwrap();
    assert!(at.since(released_at) < Duration::from_secs(2), "woken after {:?}", at.since(released_at));
    freed(&backend, &claim).await;
    assert_eq!(cluster.etcdctl(&["get", "--prefix", "jobs/a/", "--keys-only"]).unwrap(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_waits_for_what_is_held_here() {
    let Some((cluster, backend)) = open().await else { return };
    let claim = mutex("job");
    let grant = try_take(&backend, &claim).await.unwrap();
    let mut peer =
        Peer::start(&cluster, &["lock", "job", "--ttl=10", "--", "sh", "-c", "echo $ETCD_LOCK_REV"]);
    stand(&backend, "job", 1).await;
    let held = tokio::task::spawn_blocking(move || (peer.key(), peer));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!held.is_finished(), "etcdctl holds beside us");
    freed(&backend, &claim).await;
    let (revision, _peer) = held.await.unwrap();
    let revision: u64 = revision.parse().unwrap();
    assert!(revision > grant.fence.unwrap().seq, "their number {revision} is not above our fence");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_on_either_side_ends_with_its_lease() {
    let Some((cluster, backend)) = open().await else { return };
    let mut peer = Peer::start(&cluster, &["lock", "job", "--ttl=2"]);
    let (_, peer) = tokio::task::spawn_blocking(move || (peer.key(), peer)).await.unwrap();
    let claim = mutex("job");
    let waiter = waiting(&backend, &claim, LONG);
    stand(&backend, "job", 1).await;
    peer.kill();
    waiter.await.unwrap().expect("a lease that nobody keeps alive goes on");

    // Ours ends with its client: here by a client that is dropped without a release.
    freed(&backend, &claim).await;
    let doomed = connect(&format!("{}/?dialect=concurrency", cluster.url())).await;
    let short = claim_of("job", Share::MUTEX, Duration::from_secs(1));
    try_take(&doomed, &short).await.unwrap();
    drop(doomed);
    let mut peer = Peer::start(&cluster, &["lock", "job", "--ttl=10"]);
    let held = tokio::task::spawn_blocking(move || peer.key());
    let key = tokio::time::timeout(LONG, held).await.expect("the claim of a dead client stays").unwrap();
    assert!(key.starts_with("job/"), "{key}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_etcdctl_holds_can_be_broken_and_its_leader_is_seen() {
    let Some((cluster, backend)) = open().await else { return };
    let mut peer = Peer::start(&cluster, &["elect", "chair", "host-7 of 9"]);
    let (_, _peer) = tokio::task::spawn_blocking(move || (peer.key(), peer)).await.unwrap();
    let mine = mutex("chair");
    let seen = backend.inspect(&mine.resource, None, &Patience::none(clock())).await.unwrap();
    let [leader] = &seen.holders[..] else { panic!("{seen:?}") };
    assert_eq!((leader.note.as_str(), leader.share), ("host-7 of 9", Share::MUTEX));
    assert!(leader.remaining.is_some());
    let broken = leasehold_core::Claim { id: leader.id, ..mine.clone() };
    freed(&backend, &broken).await;
    try_take(&backend, &mine).await.unwrap();
    freed(&backend, &mine).await;
}

#[tokio::test]
async fn only_mutexes_are_written_so() {
    let Some((_cluster, backend)) = open().await else { return };
    for share in [Share::READER, Share::WRITER, Share::permits(1, 3).unwrap()] {
        let claim = claim_of("job", share, TTL);
        let failure = backend.contend(&claim, &Patience::none(clock())).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
        assert!(failure.detail().contains("dialect=native"), "{failure}");
    }
}
