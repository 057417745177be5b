//! What waiting costs the servers, and who may touch what is written there.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

mod common;

use std::time::Duration;

use common::{backend, claim, endless, eventually, hold, locks, no_patience, release};
use leasehold::core::{Backend, FailureKind, Release, Resource, Share, Step};
use leasehold_testkit::ZooKeeperEnsemble;
use leasehold_zookeeper::{ZooKeeperBackend, ZooKeeperConfig, ZooKeeperProof};

/// Each release wakes whoever can be admitted and nobody else, however many wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_costs_the_same_however_long_the_line_is() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    for (share, holders) in [(Share::MUTEX, 1), (Share::permits(1, 3).unwrap(), 3)] {
        let few = requests_per_hand_over(&servers, share, holders, 20).await;
        let many = requests_per_hand_over(&servers, share, holders, 200).await;
        println!("requests per hand-over of {share}: {few} with 20 waiters, {many} with 200");
        // The release, then the leader and the line for whoever is woken, and the other watches of a counted share.
        let limit = 3.0 + 2.0 * (holders - 1) as f64;
        assert!(many <= limit + 0.5, "{share}: {many} requests per hand-over with 200 waiters");
        assert!((many - few).abs() <= 0.5, "{share}: {few} requests with 20 waiters, {many} with 200");
    }
}

async fn requests_per_hand_over(
    servers: &ZooKeeperEnsemble,
    share: Share,
    holders: usize,
    waiters: usize,
) -> f64 {
    // Long sessions, so that pings are few.
    let url = format!("{}?session=60s", servers.url());
    let clients = [backend(&url).await, backend(&url).await, backend(&url).await];
    let name = format!("line/{share}/{waiters}");
    let line: Vec<_> = (0..holders + waiters).map(|_| claim(&name, share)).collect();
    for held in &line[..holders] {
        hold(&clients[0], held).await;
    }
    let mut waits = Vec::new();
    for (n, waiting) in line[holders..].iter().enumerate() {
        let (client, waiting) = (clients[n % 3].clone(), waiting.clone());
        waits.push(tokio::spawn(async move { client.contend(&waiting, &endless()).await }));
        stand(&clients[0], &line[0].resource, n + 1).await;
    }
    let watches = async || servers.metric(0, "zk_watch_count").await.unwrap();
    eventually(async || watches().await >= (waiters * holders) as f64).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(watches().await, (waiters * holders) as f64, "no waiter watches more than it must");
    let before = servers.metric(0, "zk_packets_received").await.unwrap();
    for (n, wait) in waits.drain(..ROUNDS).enumerate() {
        let holds = &clients[n.checked_sub(holders).map_or(0, |waited| waited % 3)];
        assert!(matches!(release(holds, &line[n]).await, Release::Freed));
        let step = tokio::time::timeout(Duration::from_secs(5), wait).await.unwrap().unwrap();
        assert!(matches!(step, Ok(Step::Granted(_))), "{step:?}");
    }
    let after = servers.metric(0, "zk_packets_received").await.unwrap();
    for wait in waits {
        wait.abort();
    }
    drop(clients);
    eventually(async || watches().await == 0.0).await;
    (after - before) / ROUNDS as f64
}

async fn stand(backend: &ZooKeeperBackend, resource: &Resource, count: usize) {
    eventually(async || {
        backend.inspect(resource, None, &no_patience()).await.unwrap().waiting.len() == count
    })
    .await;
}

const ROUNDS: usize = 15;

/// With a large semaphore one watch on the line is cheaper than one on each holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_semaphore_is_waited_for_by_one_watch() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let (ours, theirs) = (backend(&servers.url()).await, backend(&servers.url()).await);
    let held: Vec<_> = (0..40).map(|_| claim("large", Share::permits(1, 40).unwrap())).collect();
    for claim in &held {
        hold(&ours, claim).await;
    }
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let (theirs, claim) = (theirs.clone(), claim("large", Share::permits(1, 40).unwrap()));
            tokio::spawn(async move { theirs.contend(&claim, &endless()).await })
        })
        .collect();
    stand(&ours, &held[0].resource, 3).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(servers.metric(0, "zk_watch_count").await.unwrap() <= 3.0);
    // Any three of the holders, not the nearest.
    for claim in held.iter().step_by(17) {
        assert!(matches!(release(&ours, claim).await, Release::Freed));
    }
    for wait in waits {
        let step = tokio::time::timeout(Duration::from_secs(5), wait).await.unwrap().unwrap();
        assert!(matches!(step, Ok(Step::Granted(_))), "{step:?}");
    }
}

/// Ten thousand empty locks would otherwise stay as ten thousand nodes.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_lock_that_is_not_used_stays() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let backend = backend(&format!("{}/team/a?session=2s", servers.url())).await;
    let nodes = async || servers.metric(0, "zk_znode_count").await.unwrap();
    let before = nodes().await;
    for n in 0..50 {
        let claim = claim(&format!("many/{n}"), Share::MUTEX);
        hold(&backend, &claim).await;
        assert!(matches!(release(&backend, &claim).await, Release::Freed));
    }
    // What stays is the path to the root, three nodes.
    eventually(async || nodes().await <= before + 3.0).await;
    let claim = claim("many/7", Share::MUTEX);
    hold(&backend, &claim).await;
}

/// With a user, others can neither see nor break what is held.
#[tokio::test(flavor = "multi_thread")]
async fn a_users_locks_are_for_this_user_alone() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let addr = servers.addr(0);
    let connect = async |login: &str| {
        let config = ZooKeeperConfig::parse(&format!("zk://{login}{addr}/private?session=2s")).unwrap();
        ZooKeeperBackend::connect(config).await.unwrap()
    };
    let (ann, also_ann) = (connect("ann:p%40ss@").await, connect("ann:p%40ss@").await);
    let held = claim("job", Share::MUTEX);
    hold(&ann, &held).await;
    let step = also_ann.contend(&claim("job", Share::MUTEX), &no_patience()).await.unwrap();
    assert!(matches!(step, Step::Busy(_)));
    for stranger in [connect("").await, connect("ann:wrong@").await, connect("bob:p%40ss@").await] {
        for name in ["job", "another"] {
            let failure = stranger.contend(&claim(name, Share::MUTEX), &no_patience()).await.unwrap_err();
            assert_eq!(failure.kind, FailureKind::Denied, "{name}: {failure}");
            assert!(failure.detail().contains("log in"), "{failure}");
        }
        assert!(matches!(release(&stranger, &held).await, Release::Unknown(_)));
    }
    assert!(matches!(release(&also_ann, &held).await, Release::Freed), "an id and the user are enough");
}

/// The proof of a grant is a node that is there as long as the claim is.
#[tokio::test(flavor = "multi_thread")]
async fn a_multi_of_the_users_own_fails_once_the_claim_is_gone() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let locks = locks(&servers.url()).await;
    let guard = locks.mutex("orders/42").lock().await.unwrap();
    let proof = guard.proof().get::<ZooKeeperProof>().unwrap().clone();
    assert_eq!(guard.fence().map(|fence| fence.seq), u64::try_from(proof.czxid()).ok());
    let user = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    let options = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    user.create("/balance", b"0", &options).await.unwrap();
    let write = async |data: &[u8]| {
        let mut multi = user.new_multi_writer();
        multi.add_check_version(proof.path(), proof.version()).unwrap();
        multi.add_set_data("/balance", data, None).unwrap();
        multi.commit().await
    };
    write(b"1").await.unwrap();
    guard.release().await.unwrap();
    let next = locks.mutex("orders/42").lock().await.unwrap();
    assert!(write(b"2").await.is_err(), "held by another");
    assert_eq!(user.get_data("/balance").await.unwrap().0, b"1");
    next.release().await.unwrap();
}

/// A child that leasehold did not write is not passed over: it may be another library's holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_child_is_an_error_and_stays() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let backend = backend(&servers.url()).await;
    let ours = claim("mixed", Share::MUTEX);
    hold(&backend, &ours).await;
    let user = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    let options = zookeeper_client::CreateMode::Ephemeral.with_acls(zookeeper_client::Acls::anyone_all());
    let foreign = "/leasehold/mixed/_c_e7e2cd8e-lock-0000000009";
    user.create(foreign, b"", &options).await.unwrap();
    let other = claim("mixed", Share::MUTEX);
    let failure = backend.contend(&other, &no_patience()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign);
    assert!(failure.detail().contains("_c_e7e2cd8e-lock-0000000009"), "{failure}");
    assert!(user.check_stat(foreign).await.unwrap().is_some());
    assert!(matches!(release(&backend, &ours).await, Release::Freed), "what is ours can be given back");
}
