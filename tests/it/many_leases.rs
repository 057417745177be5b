//! A hundred thousand leases that one process holds.
//!
//! Ten thousand by default; `LEASEHOLD_LEASES=100000` for all of them.

use std::time::{Duration, Instant};

use leasehold::{Client, Guard, State};
use leasehold_testkit::RedisServer;
use tokio::task::JoinSet;

/// Acquires that are under way at the same time.
const AT_ONCE: usize = 64;

async fn hold_all(locks: &Client, leases: usize, ttl: Duration) -> Vec<Guard> {
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE {
        let locks = locks.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for lease in (first..leases).step_by(AT_ONCE) {
                guards.push(locks.mutex(format!("lease/{lease}")).ttl(ttl).lock().await.unwrap());
            }
            guards
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_thousand_leases_need_few_renewals_and_one_task() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let leases: usize =
        std::env::var("LEASEHOLD_LEASES").map_or(10_000, |number| number.parse().expect("a number"));
    // Ten thousand leases take a few seconds on a slow machine, ten times as many a minute, and as much
    // longer to renew.
    let ttl = Duration::from_secs(if leases > 10_000 { 180 } else { 30 });
    let locks = Client::open(&server.url()).await.unwrap();
    let begun = Instant::now();
    let guards = hold_all(&locks, leases, ttl).await;
    println!("{leases} leases taken in {:.1?}", begun.elapsed());
    // What follows the acquires comes in their beat; after one round of renewals it is the renewer's own.
    tokio::time::sleep(ttl / 2).await;
    let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (before, begun) = (server.counts().await.unwrap(), Instant::now());
    tokio::time::sleep(ttl).await;
    let (used, took) = (server.counts().await.unwrap().since(&before), begun.elapsed());

    let (calls, renewals) = (used.of("evalsha"), used.of("pexpireat"));
    println!("{renewals} renewals by {calls} calls in {took:.1?}, with {alive} tasks");
    // One whose renewal is a little late, because others had the processor, is in doubt for that moment;
    // none may be lost.
    let lost = guards.iter().filter(|guard| matches!(guard.state(), State::Lost(_))).count();
    assert_eq!(lost, 0, "leases were lost");
    // Due after a third of the ttl, and moved forward to a beat at most; on a busy machine later, but
    // within the ttl, since no lease was lost.
    let ttls = took.as_secs_f64() / ttl.as_secs_f64();
    let most = ((3.0 * ttls + 2.0) * leases as f64) as u64;
    assert!(renewals >= leases as u64 && renewals <= most, "{renewals} in {ttls} ttls");
    // Full batches of five hundred, and in each beat, of which there are thirty in a ttl or one a
    // second, a few that are not full: the leases of a beat come up within some milliseconds. More
    // leases do not make more of these.
    let beats = (took.as_secs_f64() * (30.0 / ttl.as_secs_f64()).max(1.0)).ceil() as u64;
    let bound = renewals / 500 + 4 * beats;
    assert!(calls <= bound, "{calls} calls for {renewals} renewals, where {bound} do");
    assert_eq!(used.of("eval") + used.of("script"), 0);
    // The tasks of the engine and the connection, and a batch that is under way; not one for each lease.
    assert!(alive < 60, "{alive} tasks");
    assert_eq!(used.connections, 1, "one connection carries them all");

    drop(guards);
    assert!(locks.close(Duration::from_secs(120)).await, "not all leases were released in time");
    let left = Client::open(&server.url()).await.unwrap().list("", None, 10).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}
