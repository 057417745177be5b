//! Waiters that died or were silent for too long: what they cost the others, and that they never hold
//! beside them.

use std::time::Duration;

use crate::common::*;
use leasehold_core::{Claim, Renewal, Share};
use leasehold_testkit::{EtcdCluster, Proxy, Way};

/// Longer than a test takes on the slowest machine: these are not renewed.
const LONG: Duration = Duration::from_secs(120);
/// Far more than a dead waiter may cost, and far less than the ttl that it would cost if its place
/// lasted as long.
const SOON: Duration = Duration::from_secs(20);

fn patient(name: &str) -> Claim {
    claim_of(name, Share::MUTEX, LONG)
}

/// One fact about each key in the queue, in its order.
fn facts(server: &EtcdCluster, name: &str, fact: &str) -> Vec<i64> {
    let prefix = format!("leasehold/{name}!");
    let text = server.etcdctl(&["get", "--prefix", &prefix, "--sort-by=CREATE", "-w", "fields"]).unwrap();
    let head = format!("\"{fact}\" : ");
    text.lines()
        .filter_map(|line| line.strip_prefix(&head))
        .map(|value| value.trim().parse().unwrap())
        .collect()
}

/// The ttl that a lease was granted with; `None` where there is none.
fn granted_ttl(server: &EtcdCluster, lease: i64) -> Option<u64> {
    let text = server.etcdctl(&["lease", "timetolive", &format!("{lease:x}")]).unwrap();
    let (_, rest) = text.split_once("granted with TTL(")?;
    rest.split('s').next()?.parse().ok()
}

/// Waits until all keys behind the first are on leases for waiting.
pub(crate) async fn parked(server: &EtcdCluster, name: &str, waiters: usize) {
    let limit = clock().now().after(LONG);
    loop {
        let leases = facts(server, name, "Lease");
        let short =
            leases.iter().skip(1).filter(|lease| granted_ttl(server, **lease).is_some_and(|ttl| ttl <= 3));
        if short.count() == waiters {
            return;
        }
        assert!(clock().now() < limit, "waiters keep the leases of their ttl");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twelve_dead_waiters_do_not_delay_a_live_one() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (holder, live) = (connect(&server.url()).await, connect(&server.url()).await);
    let held = patient("job");
    try_take(&holder, &held).await.unwrap();
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let mut dying = Vec::new();
    for n in 0..12 {
        let backend = connect(&server.url_at(&[proxy.addr()])).await;
        dying.push((waiting(&backend, &patient("job"), LONG), backend));
        wait_for_waiters(&holder, "job", n + 1).await;
    }
    let last = waiting(&live, &patient("job"), LONG);
    wait_for_waiters(&holder, "job", 13).await;
    parked(&server, "job", 13).await;
    // For the server they are dead from now on.
    proxy.blackhole(Way::Both);
    let freed_at = clock().now();
    freed(&holder, &held).await;
    let (_, at) = last.await.unwrap().expect("a live waiter was kept from a free lock by dead ones");
    println!("granted {:?} after the release", at.since(freed_at));
    assert!(at.since(freed_at) < SOON, "granted {:?} after the release", at.since(freed_at));
    dying.iter().for_each(|(task, _)| task.abort());
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_readers_do_not_delay_a_writer() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (holder, live) = (connect(&server.url()).await, connect(&server.url()).await);
    let held = claim_of("doc", Share::WRITER, LONG);
    try_take(&holder, &held).await.unwrap();
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let dead = connect(&server.url_at(&[proxy.addr()])).await;
    let readers: Vec<_> =
        (0..5).map(|_| waiting(&dead, &claim_of("doc", Share::READER, LONG), LONG)).collect();
    wait_for_waiters(&holder, "doc", 5).await;
    let writer = waiting(&live, &claim_of("doc", Share::WRITER, LONG), LONG);
    wait_for_waiters(&holder, "doc", 6).await;
    parked(&server, "doc", 6).await;
    proxy.blackhole(Way::Both);
    let freed_at = clock().now();
    freed(&holder, &held).await;
    let (_, at) = writer.await.unwrap().expect("a writer was kept from a free lock by dead readers");
    assert!(at.since(freed_at) < SOON, "granted {:?} after the release", at.since(freed_at));
    readers.iter().for_each(|task| task.abort());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_silent_too_long_does_not_hold() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let holder = connect(&server.url()).await;
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let slow = connect(&format!("{}/?timeout=60s", server.url_at(&[proxy.addr()]))).await;
    let held = patient("job");
    let grant = try_take(&holder, &held).await.unwrap();
    let late = patient("job");
    let silent = waiting(&slow, &late, LONG);
    wait_for_waiters(&holder, "job", 1).await;
    parked(&server, "job", 1).await;
    let next = patient("job");
    let follower = waiting(&holder, &next, LONG);
    wait_for_waiters(&holder, "job", 2).await;
    // It is woken at once, and what it sends is late: so long that its place ends and somebody
    // else is granted.
    proxy.hold(Way::ToServer);
    freed(&holder, &held).await;
    let (granted, _) = follower.await.unwrap().expect("a place outlived its client");
    assert!(granted.fence > grant.fence);
    proxy.heal().unwrap();
    wait_for_waiters(&holder, "job", 1).await;
    for _ in 0..50 {
        assert!(!silent.is_finished(), "granted beside another holder");
        assert!(matches!(renew(&holder, &next, &granted).await, Renewal::Renewed));
        assert_eq!(claim_counts(&holder, "job").await.0, 1);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    freed(&holder, &next).await;
    let (last, _) = silent.await.unwrap().unwrap();
    assert!(last.fence > granted.fence, "it was queued again");
    freed(&slow, &late).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_arrives_late_leaves_a_holder_where_it_is() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let holder = connect(&server.url()).await;
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let addrs = [proxy.addr(), server.addr(0)];
    let moved = connect(&format!("{}/?servers=given&timeout=6s", server.url_at(&addrs))).await;
    // So that its leases are there before its requests are slow.
    let (other, warm) = (patient("warm"), patient("warm"));
    try_take(&holder, &other).await.unwrap();
    let warming = waiting(&moved, &warm, LONG);
    wait_for_waiters(&holder, "warm", 1).await;
    parked(&server, "warm", 1).await;

    let held = patient("job");
    try_take(&holder, &held).await.unwrap();
    proxy.delay(Way::ToServer, Duration::from_millis(300));
    let claim = patient("job");
    let waiter = waiting(&moved, &claim, LONG);
    wait_for_waiters(&holder, "job", 1).await;
    // The request that moves its key to the lease for waiting is under way, and is repeated on the other
    // route.
    proxy.hold(Way::ToServer);
    parked(&server, "job", 1).await;
    freed(&holder, &held).await;
    let (grant, _) = waiter.await.unwrap().unwrap();
    proxy.heal().unwrap();
    // As long as a lease for waiting would last.
    let until = clock().now().after(Duration::from_secs(5));
    while clock().now() < until {
        assert!(matches!(renew(&moved, &claim, &grant).await, Renewal::Renewed));
        let ttl = granted_ttl(&server, facts(&server, "job", "Lease")[0]);
        assert!(ttl.is_some_and(|ttl| ttl >= LONG.as_secs()), "a holder is on a lease of {ttl:?} s");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    freed(&moved, &claim).await;
    freed(&holder, &other).await;
    warming.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_place_outlasts_the_lease_it_waits_on() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (holder, waits) = (connect(&server.url()).await, connect(&server.url()).await);
    let (held, claim) = (patient("job"), patient("job"));
    try_take(&holder, &held).await.unwrap();
    let waiter = waiting(&waits, &claim, LONG);
    wait_for_waiters(&holder, "job", 1).await;
    parked(&server, "job", 1).await;
    let places = facts(&server, "job", "CreateRevision");
    let (step, until) = (Duration::from_millis(100), clock().now().after(Duration::from_secs(6)));
    while clock().now() < until {
        let began = clock().now();
        tokio::time::sleep(step).await;
        let late = clock().now().since(began) - step;
        if late > Duration::from_secs(1) {
            // A client that is not run keeps no lease alive.
            println!("this machine was {late:?} late: the lease for waiting may have ended");
            return;
        }
    }
    assert_eq!(facts(&server, "job", "CreateRevision"), places, "the waiter lost its place");
    freed(&holder, &held).await;
    let (grant, _) = waiter.await.unwrap().unwrap();
    assert_eq!(grant.fence.unwrap().seq, places[1].unsigned_abs());
    freed(&waits, &claim).await;
    assert_eq!(claim_counts(&holder, "job").await, (0, 0));
}
