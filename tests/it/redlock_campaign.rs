//! Any two of five servers die, hang, are cut off or forget, at any moment, under load.
//!
//! In short by default; `LEASEHOLD_CAMPAIGN=whole` runs all rounds.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::fenced::FencedFileError;
use leasehold_testkit::{Data, RedisQuorum, Way};
use leasehold_tests::{Referee, add_one, arm, redlock};

const CLIENTS: usize = 4;
const TTL: Duration = Duration::from_millis(1500);
const OPTIONS: &str = "?max-ttl=1500ms&timeout=300ms";

/// The faults of a server.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
    Cut,
    Forget,
}

impl Fault {
    const ALL: [Fault; 4] = [Fault::Kill, Fault::Stop, Fault::Cut, Fault::Forget];

    async fn inject(self, servers: &RedisQuorum, number: usize) {
        match self {
            Fault::Kill => servers.server(number).kill().unwrap(),
            Fault::Stop => servers.server(number).stop().unwrap(),
            Fault::Cut => servers.proxy(number).blackhole(Way::Both),
            Fault::Forget => servers.server(number).restart(Data::Lose).await.unwrap(),
        }
    }

    async fn heal(self, servers: &RedisQuorum, number: usize) {
        match self {
            Fault::Kill => servers.server(number).restart(Data::Lose).await.unwrap(),
            Fault::Stop => servers.server(number).resume().unwrap(),
            Fault::Cut => servers.proxy(number).heal().unwrap(),
            Fault::Forget => {}
        }
    }
}

/// The crowd that wants the lock, and what it shares.
struct Shared {
    referee: Arc<Referee>,
    /// A register that checks fences, and how many writes it has acknowledged.
    register: PathBuf,
    written: AtomicU64,
    over: AtomicBool,
}

/// One of the crowd; how often it waited for nothing.
async fn contend(locks: Client, shared: Arc<Shared>) -> u64 {
    let mutex = locks.mutex("job").ttl(TTL);
    let mut failed = 0;
    while !shared.over.load(Ordering::SeqCst) {
        let Ok(Some(guard)) = mutex.try_lock_for(Duration::from_secs(5)).await else {
            failed += 1;
            continue;
        };
        let guard = Arc::new(guard);
        shared.referee.enter(&guard);
        match add_one(&shared.register, guard.fence().unwrap()) {
            Ok(()) => drop(shared.written.fetch_add(1, Ordering::SeqCst)),
            Err(FencedFileError::Stale(_)) => shared.referee.refused(&guard),
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(u64::from(getrandom::u32().unwrap() % 8))).await;
        shared.referee.leave(&guard);
        if let Some(guard) = Arc::into_inner(guard) {
            // A lock that was lost meanwhile reports it, which is right.
            let _ = guard.release().await;
        }
    }
    locks.close(Duration::from_secs(5)).await;
    failed
}

/// Waits until a new client finds all servers armed.
async fn whole(servers: &RedisQuorum) {
    let end = Instant::now() + Duration::from_secs(60);
    'again: loop {
        assert!(Instant::now() < end, "not all servers are counted again");
        tokio::time::sleep(Duration::from_millis(100)).await;
        for number in 0..servers.count() {
            let server = servers.server(number);
            let mark = server.command(&["GET", "{lh:}:mark"]).await.unwrap().into_text().unwrap_or_default();
            let run = server.info_field("run_id").await.unwrap().unwrap();
            if !mark.ends_with(&run) {
                continue 'again;
            }
        }
        return;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn any_two_of_five_may_fail_at_any_moment() {
    let rounds =
        if std::env::var("LEASEHOLD_CAMPAIGN").is_ok_and(|length| length == "whole") { 60 } else { 2 };
    let began = Instant::now();
    let Some(servers) = RedisQuorum::start_or_skip(5).await else { return };
    arm(&redlock(&servers.hosts(), OPTIONS).await).await;
    let directory = tempfile::tempdir().unwrap();
    let register = directory.path().join("register");
    let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let shared = Arc::new(Shared { referee: Referee::new(), register, written, over });
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let locks = redlock(&servers.hosts_by_proxy(), OPTIONS).await;
        clients.push(tokio::spawn(contend(locks, shared.clone())));
    }
    let mut times = Vec::new();
    for round in 0..rounds {
        let chance = || getrandom::u32().unwrap() as usize;
        tokio::time::sleep(Duration::from_millis(chance() as u64 % 300)).await;
        let first = chance() % 5;
        let second = (first + 1 + chance() % 4) % 5;
        let faults = [Fault::ALL[chance() % 4], Fault::ALL[chance() % 4]];
        faults[0].inject(&servers, first).await;
        tokio::time::sleep(Duration::from_millis(chance() as u64 % 50)).await;
        faults[1].inject(&servers, second).await;
        let (injected_at, before) = (Instant::now(), shared.referee.counts().grants);
        // The lease of a holder at the time of the fault may have to run out first.
        while shared.referee.counts().grants < before + 5 {
            assert!(
                injected_at.elapsed() < Duration::from_secs(60),
                "round {round}: no progress with {faults:?} on {first} and {second}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        times.push(injected_at.elapsed());
        tokio::time::sleep(Duration::from_millis(chance() as u64 % 1200)).await;
        faults[0].heal(&servers, first).await;
        faults[1].heal(&servers, second).await;
        whole(&servers).await;
        shared.referee.verdict();
    }
    shared.over.store(true, Ordering::SeqCst);
    let mut failed = 0;
    for client in clients {
        failed += client.await.unwrap();
    }
    shared.referee.verdict();
    let value: u64 = std::fs::read_to_string(&shared.register).unwrap().parse().unwrap();
    assert_eq!(value, shared.written.load(Ordering::SeqCst), "acknowledged writes are missing");
    times.sort_unstable();
    println!(
        "{rounds} rounds in {:.0?}: {:?}, {failed} waits for nothing; five grants took {:.1?} (median), {:.1?} (longest)",
        began.elapsed(),
        shared.referee.counts(),
        times[times.len() / 2],
        times[times.len() - 1]
    );
}
