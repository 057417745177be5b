//! The costs of calls, as the server itself counts them.

use std::time::Duration;

use crate::common::*;
use leasehold_core::{Backend, Claim, Renew, Renewal, Share};
use leasehold_testkit::EtcdCluster;

const LONG: Duration = Duration::from_secs(60);
/// A ttl that no test outlasts on the slowest machine. The lease of it is a second longer, as that of a short ttl is;
/// the lease of exactly ten minutes is forty seconds longer, and need not be kept alive meanwhile.
const LASTING: Duration = Duration::from_secs(639);

fn lasting(name: &str) -> Claim {
    claim_of(name, Share::MUTEX, LASTING)
}

async fn requests(server: &EtcdCluster) -> u64 {
    let mut all = 0;
    for method in
        ["Txn", "Range", "Put", "DeleteRange", "LeaseGrant", "LeaseKeepAlive", "LeaseTimeToLive", "Watch"]
    {
        all += server.requests(0, method).await.unwrap();
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn hand_over_costs_the_same_for_any_waiters() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let backends = [connect(&server.url()).await, connect(&server.url()).await, connect(&server.url()).await];
    for waiters in [20, 200] {
        let name = format!("herd/{waiters}");
        let held = lasting(&name);
        try_take(&backends[0], &held).await.unwrap();
        let mut waits = Vec::new();
        let came = clock().now();
        for n in 0..waiters {
            let backend = &backends[n % backends.len()];
            let claim = lasting(&name);
            waits.push((backend, claim.clone(), waiting(backend, &claim, 10 * LONG)));
        }
        wait_for_waiters(&backends[0], &name, waiters).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let before = requests(&server).await;
        let events = server.metric(0, "etcd_debugging_mvcc_events_total").await.unwrap().unwrap();
        freed(&backends[0], &held).await;
        let mut order: Vec<_> = waits.into_iter().collect();
        let handed = order.len().min(20);
        // In the order of the grants: each holder releases, and the next waiter is granted.
        for _ in 0..handed {
            let at = loop {
                if let Some(at) = order.iter().position(|(.., task)| task.is_finished()) {
                    break at;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            let (backend, claim, task) = order.swap_remove(at);
            task.await.unwrap().unwrap();
            freed(backend, &claim).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (all, took) = (requests(&server).await - before, clock().now().since(came));
        // Each look is a question, and what it shows may be a second one.
        let by_time =
            2 * looks_within(took) * waiters as u64 + keep_alives_within(took) * backends.len() as u64;
        let cost = all.saturating_sub(by_time) as f64 / handed as f64;
        let events = server.metric(0, "etcd_debugging_mvcc_events_total").await.unwrap().unwrap() - events;
        println!("{waiters} waiters: {cost} requests and {} events a hand-over", events / handed as f64);
        assert!(cost <= 4.0, "{all} requests, {by_time} of them for the time, with {waiters} waiters");
        for (.., task) in order {
            task.abort();
        }
    }
}

/// Returns how many extra looks a waiter makes within `time`, where a server may not have reported a
/// delete: the first after three seconds, each later one after eight times the pause before it.
fn looks_within(time: Duration) -> u64 {
    [3, 27, 219].into_iter().filter(|seconds| time >= Duration::from_secs(*seconds)).count() as u64
}

/// Returns how many keep-alives a client sends within `time` for the lease on which its claims wait.
fn keep_alives_within(time: Duration) -> u64 {
    time.as_millis() as u64 / 700
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_held_locks_share_eight_leases() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let claims: Vec<_> = (0..1_000).map(|n| lasting(&format!("held/{n}"))).collect();
    let mut grants = Vec::new();
    for batch in claims.chunks(100) {
        let takes = batch.iter().map(|claim| {
            let (backend, claim) = (backend.clone(), claim.clone());
            tokio::spawn(async move { try_take(&backend, &claim).await.unwrap() })
        });
        for take in takes.collect::<Vec<_>>() {
            grants.push(take.await.unwrap());
        }
    }
    let leases = server.etcdctl(&["lease", "list"]).unwrap().lines().skip(1).count();
    assert!((1..=8).contains(&leases), "{leases} leases");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let before = requests(&server).await;
    let renews: Vec<_> =
        claims.iter().zip(&grants).map(|(claim, grant)| Renew { claim, proof: &grant.proof }).collect();
    let began = clock().now();
    let renewals = backend.renew(&renews).await;
    println!("a thousand renewals took {:?}", clock().now().since(began));
    assert!(renewals.iter().all(|renewal| matches!(renewal, Renewal::Renewed)));
    let cost = requests(&server).await - before;
    assert!(cost <= 10, "{cost} requests for a thousand renewals");

    // One of the leases is lost: an eighth of the claims goes with it, and no more.
    let leases = server.etcdctl(&["lease", "list"]).unwrap();
    server.etcdctl(&["lease", "revoke", leases.lines().nth(1).unwrap()]).unwrap();
    let renewals = backend.renew(&renews).await;
    let lost = renewals.iter().filter(|renewal| matches!(renewal, Renewal::Lost)).count();
    let kept = renewals.iter().filter(|renewal| matches!(renewal, Renewal::Renewed)).count();
    assert!((100..=150).contains(&lost) && lost + kept == 1_000, "{lost} lost, {kept} kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_free_costs_one_transaction_and_its_release_another() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let warm = mutex("warm");
    try_take(&backend, &warm).await.unwrap();
    freed(&backend, &warm).await;
    let before = requests(&server).await;
    let began = clock().now();
    const ROUNDS: u64 = 200;
    for _ in 0..ROUNDS {
        let claim = mutex("job");
        try_take(&backend, &claim).await.unwrap();
        freed(&backend, &claim).await;
    }
    let took = clock().now().since(began);
    let cost = requests(&server).await - before;
    println!("{ROUNDS} pairs took {took:?}, {:?} each, with {cost} requests", took / ROUNDS as u32);
    assert!(cost <= 2 * ROUNDS + 3 + 2 * took.as_secs(), "{cost} requests for {ROUNDS} pairs in {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_sends_no_requests() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (holder, backend) = (connect(&server.url()).await, connect(&server.url()).await);
    let mut waits = Vec::new();
    for n in 0..200 {
        let name = format!("idle/{n}");
        // Nobody renews it, and it has to outlast the whole test on a slow machine.
        try_take(&holder, &claim_of(&name, Share::MUTEX, 10 * LONG)).await.unwrap();
        waits.push(waiting(&backend, &mutex(&name), 10 * LONG));
    }
    for n in 0..200 {
        wait_for_waiters(&backend, &format!("idle/{n}"), 1).await;
    }
    let messages = async || server.metric(0, "grpc_server_msg_received_total").await.unwrap().unwrap();
    // Where the server may not have reported a delete, each waiter looks once more, three seconds after
    // it was queued, and then not for long. On a busy machine those looks are spread, so the silence
    // after them is waited for.
    let mut costs = Vec::new();
    while costs.last().is_none_or(|cost| *cost > 40.0) {
        assert!(costs.len() < 6, "messages of 200 idle waiters in three seconds, again and again: {costs:?}");
        let before = messages().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        costs.push(messages().await - before);
    }
    println!("messages of 200 idle waiters in three seconds each: {costs:?}");
    for wait in waits {
        assert!(!wait.is_finished(), "a wait ended although the lock is held");
        wait.abort();
    }
}
