//! The locks of other libraries, against the real ones, in both directions and through crashes.
//!
//! Redisson's jar is not to be had from a package of Debian or PyPI, so its part is played by another
//! client, which does what Redisson documents of its scripts, keys and channels.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::any::{freed, got, still_held, take};
use crate::common::{claim_of, mutex, no_patience, open, patience};
use leasehold_core::{Backend, Share, Step};
use leasehold_testkit::peers::{self, Peer};
use leasehold_testkit::{Error, RedisServer, require};

/// A backend that contends in this process, and the command of a peer that contends in a process of its own.
struct Fixture {
    backend: Arc<dyn Backend>,
    url: String,
    peer: Box<Starting>,
    server: RedisServer,
}

/// A function that returns the command of a peer.
type Starting = dyn Fn(&RedisServer) -> Result<Command, Error> + Send + Sync;

impl Fixture {
    async fn of(
        options: &str,
        peer: impl Fn(&RedisServer) -> Result<Command, Error> + Send + Sync + 'static,
    ) -> Option<Fixture> {
        let server = RedisServer::start_or_skip().await?;
        // What is missing is known now; later starts find it where it was put.
        require::or_skip("redis-peers", blocking(|| peer(&server)))?;
        let url = format!("{}?{options}", server.url());
        Some(Fixture { backend: open(&url).await, url, peer: Box::new(peer), server })
    }

    fn peer(&self) -> Peer {
        blocking(|| Peer::start((self.peer)(&self.server).unwrap()).unwrap())
    }

    /// All that two kinds of clients of one mutex can do to each other.
    async fn contend(&self) {
        self.theirs_is_waited_for().await;
        self.ours_is_waited_for().await;
        self.their_crash_ends_with_their_lease().await;
        self.our_crash_ends_with_our_lease().await;
    }

    async fn theirs_is_waited_for(&self) {
        let (backend, mut peer) = (&*self.backend, self.peer());
        assert_eq!(ask(&mut peer, "acquire job 30000 0"), "held");
        let claim = mutex("job");
        assert!(!got(backend, &claim).await, "two hold one lock");
        let seen = backend.inspect(&claim.resource, None, &no_patience()).await.unwrap();
        assert_eq!(seen.holders.len(), 1);
        // An operator who moves a fleet looks for these words.
        assert!(seen.holders[0].note.as_str().starts_with("held through "), "{seen:?}");
        assert!(seen.holders[0].remaining.is_some_and(|left| left > Duration::from_secs(20)), "{seen:?}");
        let limit = patience(Duration::from_secs(20));
        let releasing = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(ask(&mut peer, "release"), "released");
            Instant::now()
        };
        let (taken, released_at) = tokio::join!(take(backend, &claim, &limit), releasing);
        assert!(taken.is_some() && released_at.elapsed() < WOKEN, "not woken in time");
        // What they release late is ours, and stays.
        let _ = ask(&mut peer, "release");
        assert!(got(backend, &claim).await && freed(backend, &claim).await);
    }

    async fn ours_is_waited_for(&self) {
        let (backend, mut peer) = (&*self.backend, self.peer());
        let claim = mutex("job");
        assert!(got(backend, &claim).await);
        assert_eq!(ask(&mut peer, "acquire job 30000 0"), "busy");
        peer.send_line("acquire job 30000 20000").unwrap();
        let early = blocking(|| peer.answer_within(Duration::from_millis(400))).unwrap();
        assert_eq!(early, None, "two hold one lock");
        assert!(freed(backend, &claim).await);
        let answer = blocking(|| peer.answer_within(Duration::from_secs(10))).unwrap();
        assert_eq!(answer.as_deref(), Some("held"), "it does not see our release");
        assert!(!got(backend, &claim).await && !freed(backend, &claim).await);
        assert_eq!(ask(&mut peer, "release"), "released");
        assert!(got(backend, &claim).await && freed(backend, &claim).await);
    }

    async fn their_crash_ends_with_their_lease(&self) {
        let (backend, mut peer) = (&*self.backend, self.peer());
        let asked_at = Instant::now();
        assert_eq!(ask(&mut peer, "acquire crash 2000 0"), "held");
        blocking(|| peer.kill()).unwrap();
        let claim = mutex("crash");
        let taken = take(backend, &claim, &patience(Duration::from_secs(20))).await;
        assert!(taken.is_some(), "the dead one holds on");
        assert!(asked_at.elapsed() >= Duration::from_millis(1_990), "{:?}", asked_at.elapsed());
        assert!(freed(backend, &claim).await);
    }

    async fn our_crash_ends_with_our_lease(&self) {
        let mut doomed = Command::new(std::env::current_exe().unwrap());
        doomed.args(["interop::doomed", "--exact", "--nocapture"]).env(DOOMED, &self.url);
        let (doomed, mut peer) = (Peer::start(doomed).unwrap(), self.peer());
        while !blocking(|| doomed.answer()).unwrap().contains("it holds") {}
        assert_eq!(ask(&mut peer, "acquire crash 30000 0"), "busy");
        blocking(|| doomed.kill()).unwrap();
        let killed_at = Instant::now();
        assert_eq!(ask(&mut peer, "acquire crash 30000 25000"), "held");
        assert!(killed_at.elapsed() >= DOOMED_TTL / 2, "{:?}", killed_at.elapsed());
        assert_eq!(ask(&mut peer, "release"), "released");
    }
}

/// Longer than any machine takes to wake a waiter. One that nobody wakes looks after 20 seconds.
const WOKEN: Duration = Duration::from_secs(8);

/// Says where another process of this test, which is killed, takes its lock.
const DOOMED: &str = "LEASEHOLD_TEST_DOOMED";

/// The lease of that process.
const DOOMED_TTL: Duration = Duration::from_secs(10);

/// Plays the part of a process that is killed, where a test asks for one.
#[tokio::test]
async fn doomed() {
    let Ok(url) = std::env::var(DOOMED) else { return };
    let backend = open(&url).await;
    let claim = claim_of("crash", Share::MUTEX, DOOMED_TTL);
    assert!(got(&*backend, &claim).await);
    println!("it holds");
    for _ in 0..300 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(still_held(&*backend, &claim).await);
    }
}

fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

fn ask(peer: &mut Peer, line: &str) -> String {
    blocking(|| peer.ask(line)).unwrap()
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// One of the libraries that `locks.py` drives.
fn python(library: &'static str) -> impl Fn(&RedisServer) -> Result<Command, Error> + Send + Sync {
    move |server| {
        let mut command = peers::python(&["redis==8.1.0", "python-redis-lock==4.0.1", "pottery==3.0.1"])?;
        command.arg(here("tests/peers/locks.py")).arg(library).arg(server.port().to_string());
        Ok(command)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py() {
    let Some(fixture) = Fixture::of("dialect=plain", python("redis-py")).await else { return };
    fixture.contend().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_redis_lock() {
    let Some(fixture) = Fixture::of("dialect=python-redis-lock", python("python-redis-lock")).await else {
        return;
    };
    fixture.contend().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pottery() {
    let options = "dialect=plain&key-prefix=redlock:";
    let Some(fixture) = Fixture::of(options, python("pottery")).await else { return };
    fixture.contend().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn npm_redlock() {
    let node = |server: &RedisServer| {
        let mut command = peers::node(&["redlock@5.0.0-beta.2", "ioredis@5.4.1"])?;
        command.arg(here("tests/peers/redlock.js")).arg(server.port().to_string());
        Ok(command)
    };
    let Some(fixture) = Fixture::of("dialect=plain", node).await else { return };
    fixture.contend().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rslock() {
    let rust = |server: &RedisServer| {
        let mut command = peers::rust(&here("../../bench/rivals/Cargo.toml"), "peer")?;
        command.arg(server.url());
        Ok(command)
    };
    let Some(fixture) = Fixture::of("dialect=plain", rust).await else { return };
    fixture.contend().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redisson_as_documented() {
    let Some(fixture) = Fixture::of("dialect=redisson", python("redisson")).await else { return };
    fixture.contend().await;
    fences_rise_over_both(&fixture).await;
    readers_and_writers(&fixture).await;
}

async fn fences_rise_over_both(fixture: &Fixture) {
    let (backend, mut peer) = (&*fixture.backend, fixture.peer());
    let mut last = 0;
    for _ in 0..3 {
        assert_eq!(ask(&mut peer, "acquire fenced 30000 0 fenced"), "held");
        let theirs: u64 = ask(&mut peer, "fence").parse().unwrap();
        assert_eq!(ask(&mut peer, "release"), "released");
        let claim = mutex("fenced");
        let step = backend.contend(&claim, &no_patience()).await.unwrap();
        let Step::Granted(grant) = step else { panic!("{step:?}") };
        let ours = grant.fence.unwrap().seq;
        assert!(last < theirs && theirs < ours, "{last} {theirs} {ours}");
        last = ours;
        assert!(freed(backend, &claim).await);
    }
}

async fn readers_and_writers(fixture: &Fixture) {
    let (backend, mut peer, mut other) = (&*fixture.backend, fixture.peer(), fixture.peer());
    let (reader, writer) = (
        claim_of("rw", Share::READER, Duration::from_secs(30)),
        claim_of("rw", Share::WRITER, Duration::from_secs(30)),
    );
    assert_eq!(ask(&mut peer, "acquire rw 30000 0 read"), "held");
    assert!(got(backend, &reader).await && !got(backend, &writer).await, "readers go together");
    assert_eq!(ask(&mut other, "acquire rw 30000 0 write"), "busy");
    assert_eq!(ask(&mut peer, "release"), "released");
    assert!(!got(backend, &writer).await, "one still reads");
    other.send_line("acquire rw 30000 20000 write").unwrap();
    assert_eq!(blocking(|| other.answer_within(Duration::from_millis(300))).unwrap(), None);
    assert!(freed(backend, &reader).await);
    let answer = blocking(|| other.answer_within(Duration::from_secs(15))).unwrap();
    assert_eq!(answer.as_deref(), Some("held"), "our last reader notifies their writer");
    assert!(!got(backend, &reader).await && !got(backend, &writer).await);
    let limit = patience(Duration::from_secs(20));
    let releasing = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(ask(&mut other, "release"), "released");
        Instant::now()
    };
    let (taken, released_at) = tokio::join!(take(backend, &writer, &limit), releasing);
    assert!(taken.is_some() && released_at.elapsed() < WOKEN);
    assert_eq!(ask(&mut peer, "acquire rw 30000 0 read"), "busy");
    assert!(freed(backend, &writer).await);
    assert_eq!(ask(&mut peer, "acquire rw 2000 0 read"), "held");
    // A reader of theirs that dies while one of ours reads ends with its own lease.
    assert!(got(backend, &reader).await);
    blocking(|| peer.kill()).unwrap();
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert!(freed(backend, &reader).await && got(backend, &writer).await && freed(backend, &writer).await);
}
