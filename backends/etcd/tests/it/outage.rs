//! Clients while a cluster is down, elects, or answers as current servers do: how little they ask, and
//! that nothing is slept through.

use std::time::Duration;

use crate::common::*;
use leasehold_core::{Backend, FailureKind, Patience, Put, Registers, Resource, Share};
use leasehold_testkit::{EtcdCluster, Proxy};

const LONG: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_needs_no_answer_to_a_request_for_progress() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let (holder, held) = (connect(&server.url()).await, claim_of("job", Share::MUTEX, LONG));
    try_take(&holder, &held).await.unwrap();
    // As servers from 3.4.38, 3.5.22 and 3.6.2 on, which do not answer while a watch begins behind the
    // present revision.
    let mute = MuteProgress::start(server.addr(0)).await;
    let waits = connect(&server.url_at(&[mute.addr()])).await;
    let waiter = waiting(&waits, &mutex("job"), LONG);
    wait_for_waiters(&holder, "job", 1).await;
    let opened = async || server.requests(0, "Watch").await.unwrap();
    let limit = clock().now().after(LONG);
    while opened().await == 0 {
        assert!(clock().now() < limit, "no watch was opened");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = opened().await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(opened().await - before, 0, "the stream of watches was opened again and again");
    freed(&holder, &held).await;
    waiter.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_cluster_is_down_a_client_asks_little() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr(0)).await.unwrap();
    let (holder, client) = (connect(&server.url()).await, connect(&server.url_at(&[proxy.addr()])).await);
    let held = claim_of("job", Share::MUTEX, LONG);
    try_take(&holder, &held).await.unwrap();
    let first = waiting(&client, &mutex("job"), LONG);
    wait_for_waiters(&holder, "job", 1).await;
    server.kill(0).unwrap();
    let waits: Vec<_> = (0..200).map(|n| waiting(&client, &mutex(&format!("free/{n}")), LONG)).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = proxy.accepted();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let dialed = proxy.accepted() - before;
    println!("{dialed} connections in 8 s of an outage");
    assert!((1..=80).contains(&dialed), "{dialed} connections in 8 s of an outage");
    server.restart(0).await.unwrap();
    for wait in waits {
        wait.await.unwrap().expect("a client does not come back after an outage");
    }
    drop(holder.release(&[&held]).await);
    first.await.unwrap().expect("a waiter slept through the end of an outage");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_wait_for_a_lease_learn_that_none_is_opened() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let client = connect(&format!("{}/?timeout=1s", server.url())).await;
    server.stop(0).unwrap();
    let began_at = clock().now();
    let tries: Vec<_> = (0..50)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                client.contend(&mutex(&format!("job/{n}")), &Patience::none(clock())).await.unwrap_err()
            })
        })
        .collect();
    for tried in tries {
        let failure = tried.await.unwrap();
        assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
    }
    let took = clock().now().since(began_at);
    // One after the other, they would take the fifty seconds of fifty openings.
    assert!(took < Duration::from_secs(30), "the last one failed after {took:?}");
    server.resume(0).unwrap();
    let claim = mutex("job");
    take(&client, &claim, LONG).await.expect("a client does not come back after an outage");
    freed(&client, &claim).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_begin_with_different_servers() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    let mut proxies = Vec::new();
    for _ in 0..3 {
        proxies.push(Proxy::start(server.addr(0)).await.unwrap());
    }
    let addrs: Vec<_> = proxies.iter().map(Proxy::addr).collect();
    let asked = |proxy: &Proxy| proxy.bytes(leasehold_testkit::Way::ToServer);
    let mut used = [0; 3];
    for (options, clients) in [("", 60), ("?servers=given", 24)] {
        for _ in 0..clients {
            let backend = connect(&format!("{}/{options}", server.url_at(&addrs))).await;
            let before: Vec<u64> = proxies.iter().map(asked).collect();
            for _ in 0..20 {
                claim_counts(&backend, "job").await;
            }
            let grown = proxies.iter().zip(before).map(|(proxy, before)| asked(proxy) - before);
            let most = grown.enumerate().max_by_key(|(_, bytes)| *bytes).unwrap().0;
            used[most] += 1;
        }
        if options.is_empty() {
            // That all of 60 begin with two of three happens once in 12,000,000,000 times.
            assert!(used.iter().all(|count| *count > 0), "{used:?}");
            used = [0; 3];
        }
    }
    assert_eq!(used, [24, 0, 0], "the order of the URL");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_watches_on_another_cluster_is_left() {
    let (Some(ours), Some(other)) = (EtcdCluster::start_or_skip().await, EtcdCluster::start_or_skip().await)
    else {
        return;
    };
    other.stop(0).unwrap();
    let writer = connect(&ours.url()).await;
    let url = format!("{}/?servers=given&timeout=2s", ours.url_at(&[ours.addr(0), other.addr(0)]));
    let client = connect(&url).await;
    let at = Resource::new("word").unwrap();
    let before = client.read(&at).await.unwrap();
    let (waits, seen, place) = (client.clone(), before.stamp.clone(), at.clone());
    // Who only waits for a change sends no request that would find out.
    let waiter = tokio::spawn(async move {
        let patience = leasehold_conformance::patience_for(&clock(), LONG);
        waits.changed(&place, &seen, &patience).await
    });
    let limit = clock().now().after(LONG);
    while ours.requests(0, "Watch").await.unwrap() == 0 {
        assert!(clock().now() < limit, "no watch was opened");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    other.resume(0).unwrap();
    ours.kill(0).unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    ours.restart(0).await.unwrap();
    let put = Put { value: Some(b"new".to_vec()), keep: None };
    writer.swap(&at, &before.stamp, &put).await.unwrap().unwrap();
    let changed = waiter.await.unwrap().unwrap();
    assert_eq!(changed.value.as_deref(), Some(b"new".as_slice()), "the change was slept through");
}
