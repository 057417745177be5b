//! Twelve processes on one lock, of which some are killed, stopped or ended by a signal all the time.
//!
//! A lease is longer than any stop, so the jobs never overlap, and a process that is left alone is granted
//! the lock.

use std::time::{Duration, Instant};

use leasehold_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, RedisCluster, RedisQuorum, ZooKeeperEnsemble,
};
use rustix::process::Signal;

use crate::support::{BlockingLateness, Redis, Sandbox, Started};

const PROCESSES: usize = 12;
/// Of the short form.
const SHORT: Duration = Duration::from_secs(6);
const TTL: &str = "5s";
/// No stop is longer, in milliseconds: well below the ttl.
const STOPPED: u64 = 2_000;
/// A machine that stands still for so long may have kept a process from running for longer than the ttl.
const STOOD_STILL: Duration = Duration::from_secs(2);
/// Between two of them.
const FAULT_INTERVAL: Duration = Duration::from_millis(500);

/// The command of a granted process: it notes its fence, and whether another job is under way. A child of it that is
/// killed with it may end later, so the child has not its lock.
const JOB: &str =
    "exec 9>inside; flock -n 9 || echo overlap $LEASEHOLD_FENCE >>log; echo start $LEASEHOLD_FENCE >>log;
    sleep 0.1 9>&-; echo done $LEASEHOLD_FENCE >>log";

#[test]
fn killed_and_stopped_processes_never_overlap_on_files() {
    stress(&Sandbox::new(), SHORT, 1);
}

#[test]
fn killed_and_stopped_processes_never_overlap_on_redis() {
    let Some(redis) = Redis::start_or_skip() else { return };
    stress(&Sandbox::on(&redis.server.url()), SHORT, 1);
}

/// `LEASEHOLD_STRESS` is the number of seconds for each store, 30 where it is not set.
#[test]
#[ignore = "it takes minutes"]
fn killed_and_stopped_processes_never_overlap_on_any_store() {
    let seconds = std::env::var("LEASEHOLD_STRESS").map_or(30, |text| text.parse().unwrap());
    let long = |url: &str| stress(&Sandbox::on(url), Duration::from_secs(seconds), 2);
    let sandbox = Sandbox::new();
    long(&sandbox.url);
    long(&format!("sqlite:{}", sandbox.path("locks.db").display()));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Some(redis) = Redis::start_or_skip() {
        long(&redis.server.url());
    }
    if let Some(servers) = runtime.block_on(RedisQuorum::start_or_skip(3)) {
        let url = format!("redlock://{}", servers.hosts());
        Sandbox::on(&url).end(&["redlock", "rearm", "--yes"]).expect(0);
        long(&url);
    }
    if let Some(server) = runtime.block_on(RedisCluster::start_or_skip()) {
        long(&server.url());
    }
    if let Some(server) = runtime.block_on(MemcachedServer::start_or_skip()) {
        long(&server.url());
    }
    if let Some(server) = runtime.block_on(PostgresServer::start_or_skip()) {
        ["", "?method=advisory"].iter().for_each(|way| long(&format!("{}{way}", server.url())));
    }
    if let Some(server) = runtime.block_on(MariaDbServer::start_or_skip()) {
        ["", "?method=get-lock"].iter().for_each(|way| long(&format!("{}{way}", server.url())));
    }
    if let Some(server) = runtime.block_on(EtcdCluster::start_or_skip()) {
        long(&server.url());
    }
    if let Some(server) = runtime.block_on(ZooKeeperEnsemble::start_or_skip(1)) {
        long(&server.url());
    }
}

struct Contender {
    process: Started,
    /// Until when it is stopped.
    stopped: Option<Instant>,
    /// `true` if it was killed or ended: its exit code does not matter then.
    is_ended: bool,
}

/// Runs the jobs, and fails if they overlap, a fence does not rise, or a process that was left alone was not
/// granted the lock.
fn stress(sandbox: &Sandbox, length: Duration, seed: u64) {
    let mut random = Random(seed);
    let begin = || Contender {
        process: sandbox.start(&["--ttl", TTL, "--wait", "10m", "job"], JOB),
        stopped: None,
        is_ended: false,
    };
    let lateness = BlockingLateness::watch();
    let mut all: Vec<Contender> = (0..PROCESSES).map(|_| begin()).collect();
    let began = Instant::now();
    let mut next = began;
    while began.elapsed() < length {
        for contender in &mut all {
            contender.resume(Instant::now());
            if !contender.process.is_running() {
                std::mem::replace(contender, begin()).ends_well(sandbox);
            }
        }
        if Instant::now() >= next {
            next += FAULT_INTERVAL;
            let number = random.below(PROCESSES as u64) as usize;
            all[number].inject_fault(&mut random);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for contender in &mut all {
        contender.resume(Instant::now() + Duration::from_millis(STOPPED));
    }
    all.into_iter().for_each(|contender| contender.ends_well(sandbox));
    let late = lateness.end();
    let log = std::fs::read_to_string(sandbox.path("log")).unwrap();
    // Those of Redlock are texts of one length.
    let fences: Vec<(usize, &str)> = log
        .lines()
        .filter_map(|line| line.strip_prefix("start "))
        .map(|fence| (fence.len(), fence))
        .collect();
    // A job that stands still with its machine until its lease is over is not alone at first when it continues. Its
    // fence shows that.
    let may_overlap = sandbox.has_leases() && late > STOOD_STILL;
    assert!(may_overlap || !log.contains("overlap"), "on {}: {log}", sandbox.url);
    assert!(fences.is_sorted_by(|one, next| one < next), "on {}: {log}", sandbox.url);
    assert!(fences.len() >= PROCESSES / 2, "on {}: {log}", sandbox.url);
    eprintln!("{}: {} jobs", sandbox.url, fences.len());
}

impl Contender {
    fn inject_fault(&mut self, random: &mut Random) {
        if self.stopped.is_some() || self.is_ended || !self.process.is_running() {
            return;
        }
        match random.below(3) {
            0 => self.end(Signal::KILL),
            1 => self.end(Signal::TERM),
            _ => {
                self.process.stop();
                self.stopped = Some(Instant::now() + Duration::from_millis(random.below(STOPPED)));
            }
        }
    }

    fn end(&mut self, signal: Signal) {
        self.process.signal(signal);
        self.is_ended = true;
    }

    /// Lets it run again, if it is time.
    fn resume(&mut self, now: Instant) {
        if self.stopped.is_some_and(|until| until <= now) {
            self.stopped = None;
            self.process.signal(Signal::CONT);
        }
    }

    fn ends_well(self, sandbox: &Sandbox) {
        let ended = self.process.end();
        // On a machine that stands still for the length of a ttl a lease may be lost, which is exit code 76.
        let is_well = self.is_ended || matches!(ended.status.code(), Some(0 | 76));
        assert!(is_well, "on {}: {ended:?}", sandbox.url);
    }
}

/// A small generator, the same on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        // Knuth's constants; the upper bits are the random ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
