//! One primary of a cluster hangs: locks of other slots are not affected.

use std::time::{Duration, Instant};

use leasehold::{Client, Guard, State};
use leasehold_testkit::RedisCluster;
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(15);

/// Leases on the servers that answer, and on the one that hangs.
const WELL: usize = 1_000;
const ILL: usize = 20;

/// Long enough for all timeouts, new connections and retries.
const WATCHED: Duration = Duration::from_secs(20);

/// The slot of a key, as the cluster's specification says.
fn slot_of(key: &str) -> u16 {
    let crc = key.bytes().fold(0_u16, |crc, byte| {
        (0..8)
            .fold(crc ^ u16::from(byte) << 8, |crc, _| crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    });
    crc % 16_384
}

async fn hold(locks: &Client, names: Vec<String>) -> Vec<Guard> {
    let mut tasks = JoinSet::new();
    for some in names.chunks(names.len().div_ceil(32)) {
        let (locks, some) = (locks.clone(), some.to_vec());
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for name in some {
                guards.push(locks.mutex(&name).ttl(TTL).lock().await.unwrap());
            }
            guards
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_primary_costs_the_locks_of_other_slots_nothing() {
    // No server replaces the one that hangs, and the others serve their slots until it is declared dead.
    let builder = RedisCluster::builder().replicas(0).node_timeout(Duration::from_secs(300));
    let Some(cluster) = builder.start_or_skip().await else { return };
    assert_eq!(slot_of("lh:job"), cluster.slot_of("lh:job").await.unwrap());
    let hung = cluster.primary_of(0).await.unwrap();
    // The kit gives the first third of all slots to one server.
    let last = 16_384 / 3;
    let (ill, well): (Vec<String>, Vec<String>) =
        (0..3 * WELL).map(|n| format!("job-{n}")).partition(|name| slot_of(&format!("lh:{name}")) < last);
    let locks = Client::open(&cluster.url()).await.unwrap();
    let well = hold(&locks, well[..WELL].to_vec()).await;
    let ill = hold(&locks, ill[..ILL].to_vec()).await;

    cluster.stop(hung).unwrap();
    let begun = Instant::now();
    let mut suspect_since = vec![None; well.len()];
    let mut longest = Duration::ZERO;
    while begun.elapsed() < WATCHED {
        let now = Instant::now();
        for (guard, since) in well.iter().zip(&mut suspect_since) {
            match guard.state() {
                State::Valid => *since = None,
                State::Lost(cause) => panic!("lost after {:?}: {cause:?}", begun.elapsed()),
                _ => longest = longest.max(now.duration_since(*since.get_or_insert(now))),
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("a lease of another server was in doubt for {longest:?} at most");
    assert!(longest < TTL / 3, "in doubt for {longest:?}");
    assert!(ill.iter().all(|guard| matches!(guard.state(), State::Lost(_))), "the server did not hang");
    // Releases and acquisitions on other servers do not wait for it either.
    let name = format!("job-{}", (3 * WELL..).find(|n| slot_of(&format!("lh:job-{n}")) >= last).unwrap());
    let begun = Instant::now();
    drop(well);
    locks.mutex(&name).ttl(TTL).lock().await.unwrap().release().await.unwrap();
    println!("another lock was acquired and released in {:?}", begun.elapsed());
    cluster.resume(hung).unwrap();
    drop(ill);
    // Not asserted: the claims that ended while their server hung are not known to be released.
    _ = locks.close(Duration::from_secs(60)).await;
}
