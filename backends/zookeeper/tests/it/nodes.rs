//! The nodes of locks: what they cost the servers, who may change them, and what is left of them.

use crate::common;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{
    AT_LAST, backend, claim, endless, eventually, hold, locks, no_patience, release, requests, take,
};
use leasehold::backend::{
    Backend, Claim, Effect, FailureKind, MAX_QUEUE, Proof, Release, Renew, Renewal, Resource, Share, Step,
};
use leasehold_testkit::{ZooKeeperEnsemble, peers, require};
use leasehold_zookeeper::{ZooKeeperBackend, ZooKeeperProof};

/// Each release wakes the waiters that can be admitted and no others, for any number of waiters.
#[tokio::test(flavor = "multi_thread")]
async fn hand_over_cost_does_not_depend_on_queue_length() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    for (share, holders) in [(Share::MUTEX, 1), (Share::permits(1, 3).unwrap(), 3)] {
        let few = requests_per_hand_over(&servers, share, holders, 20).await;
        let many = requests_per_hand_over(&servers, share, holders, 1000).await;
        println!("requests per hand-over of {share}: {few} with 20 waiters, {many} with 1000");
        // The release, then the leader and the queue for the waiter that is woken, and the other watches
        // of a counted share. Below that the number depends on which claim watches which, which the
        // order of arrival decides; it does not grow with the queue.
        let limit = 3.0 + 2.0 * (holders - 1) as f64 + 0.5;
        assert!(few <= limit, "{share}: {few} requests per hand-over with 20 waiters");
        assert!(many <= limit, "{share}: {many} requests per hand-over with 1000 waiters");
    }
}

async fn requests_per_hand_over(
    servers: &ZooKeeperEnsemble,
    share: Share,
    holders: usize,
    waiters: usize,
) -> f64 {
    // Long sessions, so that pings are few. A thousand waiters keep a busy machine for longer than the default
    // timeout.
    let url = format!("{}?session=60s&timeout=60s", servers.url());
    let clients = [backend(&url).await, backend(&url).await, backend(&url).await];
    let name = format!("line/{share}/{waiters}");
    let mut held = VecDeque::new();
    for _ in 0..holders {
        let claim = claim(&name, share);
        hold(&clients[0], &claim).await;
        held.push_back((clients[0].clone(), claim));
    }
    let mut waits = Vec::new();
    for n in 0..waiters {
        let (client, claim) = (clients[n % 3].clone(), claim(&name, share));
        let task = tokio::spawn({
            let (client, claim) = (client.clone(), claim.clone());
            async move { client.contend(&claim, &endless()).await }
        });
        waits.push((client, claim, task));
    }
    wait_for_waiters(&clients[0], &held[0].1.resource, waiters).await;
    let watches = async || servers.metric(0, "zk_watch_count").await.unwrap();
    eventually(async || watches().await >= waiters as f64).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Two waiters of one client that watch the same node are one to the server.
    let watched = watches().await;
    println!("{waiters} waiters for {share}: {watched} watches");
    assert!(watched <= (waiters * holders) as f64, "{watched} watches are more than {waiters} waiters need");
    let before = servers.metric(0, "zk_packets_received").await.unwrap();
    for _ in 0..ROUNDS {
        let (client, claim) = held.pop_front().unwrap();
        assert!(matches!(release(&client, &claim).await, Release::Freed));
        // Any of them: they came together.
        let granted = async || waits.iter().position(|(.., task)| task.is_finished());
        eventually(async || granted().await.is_some()).await;
        let (client, claim, task) = waits.swap_remove(granted().await.unwrap());
        let step = task.await.unwrap();
        assert!(matches!(step, Ok(Step::Granted(_))), "{step:?}");
        held.push_back((client, claim));
    }
    let after = servers.metric(0, "zk_packets_received").await.unwrap();
    assert!(!waits.iter().any(|(.., task)| task.is_finished()), "more were woken than there is room for");
    for (.., task) in waits {
        task.abort();
    }
    drop((clients, held));
    eventually(async || watches().await == 0.0).await;
    (after - before) / ROUNDS as f64
}

async fn wait_for_waiters(backend: &ZooKeeperBackend, resource: &Resource, count: usize) {
    eventually(async || {
        backend.inspect(resource, None, &no_patience()).await.unwrap().waiting.len() == count
    })
    .await;
}

const ROUNDS: usize = 15;

/// Held locks cost a few requests in all, for any number of locks, and no server keeps a watch for them.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_held_locks_are_confirmed_by_a_few_requests() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    // Long sessions, so that pings are few.
    let backend = backend(&format!("{}?session=60s&timeout=60s", servers.url())).await;
    let claims: Vec<_> = (0..10_000).map(|n| claim(&format!("held/{n}"), Share::MUTEX)).collect();
    for some in claims.chunks(500) {
        futures_util::future::join_all(some.iter().map(|claim| hold(&backend, claim))).await;
    }
    let watches = servers.metric(0, "zk_watch_count").await.unwrap();
    assert_eq!(watches, 0.0);
    let before = servers.metric(0, "zk_packets_received").await.unwrap();
    let proof = Proof::none();
    let batch: Vec<_> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    let began = Instant::now();
    let renewals = backend.renew(&batch).await;
    let took = began.elapsed();
    assert!(renewals.iter().all(|renewal| matches!(renewal, Renewal::Alive)));
    let requests = servers.metric(0, "zk_packets_received").await.unwrap() - before;
    println!("10,000 held locks: confirmed by {requests} requests in {took:?}");
    assert!(requests <= 22.0, "{requests} requests for one renewal of everything");
    // And between renewals nothing but pings, of which this session needs one in some seconds.
    let before = servers.metric(0, "zk_packets_received").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = servers.metric(0, "zk_packets_received").await.unwrap() - before;
    assert!(idle <= 1.0, "{idle} requests in an idle second");
    let all: Vec<_> = claims.iter().collect();
    assert!(backend.release(&all).await.iter().all(|release| matches!(release, Release::Freed)));
}

/// With a large semaphore one watch on the queue is cheaper than one on each holder.
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
    wait_for_waiters(&ours, &held[0].resource, 3).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(servers.metric(0, "zk_watch_count").await.unwrap() <= 3.0);
    // Any three of the holders, not the nearest.
    for claim in held.iter().step_by(17) {
        assert!(matches!(release(&ours, claim).await, Release::Freed));
    }
    for wait in waits {
        let step = tokio::time::timeout(AT_LAST, wait).await.unwrap().unwrap();
        assert!(matches!(step, Ok(Step::Granted(_))), "{step:?}");
    }
}

/// Ten thousand empty locks would otherwise stay as ten thousand nodes.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_lock_that_is_not_used_stays() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let backend = backend(&format!("{}/team/a", servers.url())).await;
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
    let connect = async |login: &str| backend(&format!("zk://{login}{addr}/private")).await;
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

/// A guard whose proof was taken keeps its claim: the next task of the process is granted another node.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_one_task_does_not_pass_for_the_next() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let patient = Duration::from_secs(3_600);
    let tuning = leasehold::Tuning::default().local_handoff_limit(1_000).local_handoff_time(patient);
    let backend = backend(&servers.url()).await;
    let locks = leasehold::Client::builder().tuning(tuning).over(backend).unwrap();
    let user = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    let options = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    user.create("/balance", b"0", &options).await.unwrap();
    let write = async |proof: &ZooKeeperProof, data: &[u8]| {
        let mut multi = user.new_multi_writer();
        multi.add_check_version(proof.path(), proof.version()).unwrap();
        multi.add_set_data("/balance", data, None).unwrap();
        multi.commit().await
    };
    let mutex = locks.mutex("orders/42");
    let first = mutex.lock().await.unwrap();
    let of_first = first.proof().get::<ZooKeeperProof>().unwrap().clone();
    let mut next = Box::pin(mutex.lock());
    assert!(futures_util::poll!(&mut next).is_pending(), "it waits in the line of this process");
    drop(first);
    let second = next.await.unwrap();
    write(second.proof().get().unwrap(), b"second").await.unwrap();
    assert!(write(&of_first, b"late").await.is_err(), "a late multi of the first holder took effect");
    assert_eq!(user.get_data("/balance").await.unwrap().0, b"second");
    second.release().await.unwrap();

    // Without a proof there is nothing to be late with: it is handed over as ever.
    let first = mutex.lock().await.unwrap();
    let mut next = Box::pin(mutex.lock());
    assert!(futures_util::poll!(&mut next).is_pending());
    drop(first);
    assert_eq!(next.await.unwrap().fence().unwrap().sub, 1);
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
    assert!(matches!(release(&backend, &ours).await, Release::Freed), "our own claim can be released");
}

/// A client that acquires a lock repeatedly, alone, needs no look at the queue. Once another claim was
/// there, it looks.
#[tokio::test(flavor = "multi_thread")]
async fn lone_client_reacquires_with_two_requests_and_sees_all_others() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    // Long sessions, so that pings are few.
    let url = format!("{}?session=60s", servers.url());
    let (ours, theirs) = (backend(&url).await, backend(&url).await);
    // A container would be removed by the server between two cycles, now and then, and cost some
    // requests more.
    let user = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    let container = "/leasehold/again";
    let kept = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    user.mkdir(container, &kept).await.unwrap();
    let cycle = async || {
        let claim = claim("again", Share::MUTEX);
        take(&ours, &claim).await;
        assert!(matches!(release(&ours, &claim).await, Release::Freed));
    };
    for _ in 0..3 {
        cycle().await;
    }
    let before = requests(&servers).await;
    for _ in 0..50 {
        cycle().await;
    }
    assert_eq!(requests(&servers).await - before, 100, "requests for 50 cycles");
    assert_eq!(servers.metric(0, "zk_watch_count").await.unwrap(), 1.0);

    // Another arrives while there is no holder, and holds.
    let theirs_now = claim("again", Share::MUTEX);
    hold(&theirs, &theirs_now).await;
    waits_for(&ours, &theirs, &theirs_now).await;
    for _ in 0..3 {
        cycle().await;
    }

    // The container is made anew, and counts from the beginning up to the very number that would follow ours.
    let numbered =
        zookeeper_client::CreateMode::EphemeralSequential.with_acls(zookeeper_client::Acls::anyone_all());
    let next = user.create(&format!("{container}/x-"), b"", &numbered).await.unwrap().1.into_i64();
    user.delete(&format!("{container}/x-{next:010}"), None).await.unwrap();
    for _ in 0..3 {
        cycle().await;
    }
    let follows = next + 4;
    user.delete(container, None).await.unwrap();
    user.create(container, b"", &kept).await.unwrap();
    for _ in 0..follows - 1 {
        let number = user.create(&format!("{container}/x-"), b"", &numbered).await.unwrap().1.into_i64();
        user.delete(&format!("{container}/x-{number:010}"), None).await.unwrap();
    }
    let theirs_now = claim("again", Share::MUTEX);
    hold(&theirs, &theirs_now).await;
    let seen = user.list_children(container).await.unwrap();
    assert!(seen.len() == 1 && seen[0].ends_with(&format!("-{:010}", follows - 1)), "{seen:?}");
    waits_for(&ours, &theirs, &theirs_now).await;
}

/// Checks that another claim of `ours` is queued behind the claim that `theirs` hold, and holds once
/// that is released.
async fn waits_for(ours: &Arc<ZooKeeperBackend>, theirs: &ZooKeeperBackend, held: &Claim) {
    let second = claim(held.resource.as_str(), Share::MUTEX);
    let waiting = tokio::spawn({
        let (ours, second) = (ours.clone(), second.clone());
        async move { ours.contend(&second, &endless()).await }
    });
    wait_for_waiters(theirs, &held.resource, 1).await;
    assert!(!waiting.is_finished(), "granted beside another holder");
    assert!(matches!(release(theirs, held).await, Release::Freed));
    let step = tokio::time::timeout(AT_LAST, waiting).await.unwrap().unwrap();
    assert!(matches!(step, Ok(Step::Granted(_))), "{step:?}");
    assert!(matches!(release(ours, &second).await, Release::Freed));
}

/// A name that is used for the first time, or has rested, costs one round trip as any other: what is
/// above it is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_has_rested_costs_three_requests() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let client = backend(&format!("{}?session=60s", servers.url())).await;
    hold(&client, &claim("first", Share::MUTEX)).await;
    let before = requests(&servers).await;
    let claims: Vec<_> = (0..20).map(|n| claim(&format!("new/{n}"), Share::MUTEX)).collect();
    for claim in &claims {
        let step = client.contend(claim, &endless()).await.unwrap();
        assert!(matches!(step, Step::Granted(_)), "{step:?}");
    }
    assert_eq!(requests(&servers).await - before, 60, "the container, the place and the line, 20 times");
    // Another client finds the containers there.
    let other = backend(&format!("{}?session=60s", servers.url())).await;
    for claim in &claims {
        let step = other.contend(&common::claim(claim.resource.as_str(), Share::MUTEX), &no_patience()).await;
        assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
    }
}

/// The ids of claims end them, so nothing that people print shows one.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_printed_shows_no_id_of_a_claim() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let client = backend(&servers.url()).await;
    let (held, waits) = (claim("job", Share::MUTEX), claim("job", Share::MUTEX));
    let grant = hold(&client, &held).await;
    let waiting = tokio::spawn({
        let (client, waits) = (client.clone(), waits.clone());
        async move { take(&client, &waits).await }
    });
    wait_for_waiters(&client, &held.resource, 1).await;
    let proof = grant.proof.get::<ZooKeeperProof>().unwrap();
    let printed = format!("{client:?} {grant:?} {proof:?}");
    // A node that another user left there makes the queue unreadable, and the error shows names.
    let user = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    let options = zookeeper_client::CreateMode::Ephemeral.with_acls(zookeeper_client::Acls::anyone_all());
    let alike = format!("/leasehold/job/{}-1-1-{:010}", claim("x", Share::MUTEX).id.to_hex(), 0);
    user.create(&alike, b"", &options).await.unwrap();
    let failure = client.contend(&claim("job", Share::MUTEX), &no_patience()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");
    let printed = format!("{printed} {failure} {failure:?}");
    for id in [held.id.to_hex(), waits.id.to_hex(), alike[15..47].to_owned()] {
        assert!(!printed.contains(&id), "{printed}");
    }
    assert!(printed.contains("2 claims in 1 sessions"), "{printed}");
    assert!(proof.path().contains(&held.id.to_hex()), "who asks for the path gets it");
    user.delete(&alike, None).await.unwrap();
    assert!(matches!(release(&client, &held).await, Release::Freed));
    waiting.await.unwrap();
}

/// As in every store: a queue that grew without end would cost each newcomer more than the last.
#[tokio::test(flavor = "multi_thread")]
async fn claim_behind_ten_thousand_is_refused() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let client = backend(&format!("{}?session=60s", servers.url())).await;
    let first = claim("full", Share::MUTEX);
    hold(&client, &first).await;
    let user = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    let options =
        zookeeper_client::CreateMode::EphemeralSequential.with_acls(zookeeper_client::Acls::anyone_all());
    // One more than there may wait behind the holder, so that there is one to take away.
    let mut others = Vec::new();
    while others.len() < MAX_QUEUE {
        let mut multi = user.new_multi_writer();
        for _ in 0..500 {
            let stem = format!("/leasehold/full/{}-1-1-", claim("x", Share::MUTEX).id.to_hex());
            multi.add_create(&stem, b"", &options).unwrap();
        }
        others.extend(multi.commit().await.unwrap());
    }
    let late = claim("full", Share::MUTEX);
    let failure = client.contend(&late, &endless()).await.unwrap_err();
    assert!(failure.is_transient() && failure.effect == Effect::None, "{failure}");
    assert!(failure.detail().contains("claims are queued for it"), "{failure}");
    let children = async || user.list_children("/leasehold/full").await.unwrap();
    assert_eq!(children().await.len(), MAX_QUEUE + 1, "it left nothing behind");
    // Where one leaves there is room for one.
    for _ in 0..2 {
        let name = children().await.into_iter().find(|name| !name.starts_with(&first.id.to_hex())).unwrap();
        user.delete(&format!("/leasehold/full/{name}"), None).await.unwrap();
    }
    let waiting = tokio::spawn({
        let (client, late) = (client.clone(), late.clone());
        async move { client.contend(&late, &endless()).await }
    });
    eventually(async || children().await.len() == MAX_QUEUE).await;
    assert!(!waiting.is_finished());
    waiting.abort();
}

/// The server removes a part of a semaphore that has become empty whenever it likes. Nobody has come or
/// gone by that.
#[tokio::test(flavor = "multi_thread")]
async fn removal_of_an_empty_node_is_not_a_change() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let client = backend(&format!("{}?session=60s&dialect=curator", servers.url())).await;
    let held = claim("job", Share::permits(1, 3).unwrap());
    hold(&client, &held).await;
    let user = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    // Made again where the server has been quicker.
    let options = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    let made = user.create("/job/locks", b"", &options).await;
    assert!(matches!(made, Ok(_) | Err(zookeeper_client::Error::NodeExists)), "{made:?}");
    let look = async || client.inspect(&held.resource, None, &no_patience()).await.unwrap();
    let before = look().await;
    assert_eq!(before.holders.len(), 1);
    let gone = user.delete("/job/locks", None).await;
    assert!(matches!(gone, Ok(()) | Err(zookeeper_client::Error::NoNode)), "{gone:?}");
    assert_eq!(look().await.version, before.version);
    assert!(matches!(release(&client, &held).await, Release::Freed));
    assert_ne!(look().await.version, before.version);
}

/// The counter of a container, near its end, by the server's own classes: nobody makes two thousand
/// million nodes in a test.
fn count_from(servers: &ZooKeeperEnsemble, path: &str, number: i32) {
    let jars = ["zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java", "netty-handler"];
    let jars: Vec<(String, &str)> = jars.iter().map(|jar| (format!("{jar}.jar"), "zookeeper")).collect();
    let jars: Vec<(&str, &str)> = jars.iter().map(|(jar, package)| (jar.as_str(), *package)).collect();
    let mut java = peers::java(&jars).unwrap();
    java.arg(format!("{}/tests/peers/Counter.java", env!("CARGO_MANIFEST_DIR")));
    let done = java.arg(servers.data(0)).arg(path).arg(number.to_string()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// ZooKeeper says that its counter rolls over. It does not, and what has no order is not granted.
#[tokio::test(flavor = "multi_thread")]
async fn counter_overflow_keeps_one_holder_and_then_starts_again() {
    // Asked for first, so that nothing is started for a test that is skipped.
    if require::or_skip("javac", peers::java(&[])).is_none() {
        return;
    }
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    // Long enough for the server to come back.
    let client = backend(&format!("{}?session=60s", servers.url())).await;
    let mut claims: Vec<Claim> = (0..6).map(|_| claim("counted", Share::MUTEX)).collect();
    let first = claims.remove(0);
    let mut last = hold(&client, &first).await;
    servers.kill(0).unwrap();
    count_from(&servers, "/leasehold/counted", i32::MAX - 2);
    servers.restart(0).await.unwrap();
    let client = backend(&servers.url()).await;
    // The container is never empty, or its counter would begin anew.
    let mut tasks = VecDeque::new();
    for claim in claims.drain(..3) {
        let (waiter, waiting) = (client.clone(), claim.clone());
        tasks.push_back((claim, tokio::spawn(async move { take(&waiter, &waiting).await })));
        wait_for_waiters(&client, &first.resource, tasks.len()).await;
    }
    assert!(matches!(release(&client, &first).await, Release::Freed));
    while let Some((claim, task)) = tasks.pop_front() {
        let grant = task.await.unwrap();
        assert!(grant.fence > last.fence);
        last = grant;
        let early: Vec<bool> = tasks.iter().map(|(_, task)| task.is_finished()).collect();
        assert!(!early.contains(&true), "two hold");
        if !tasks.is_empty() {
            assert!(matches!(release(&client, &claim).await, Release::Freed));
            continue;
        }
        // It has the last number, which all others get as well.
        for _ in 0..3 {
            for patience in [no_patience(), endless()] {
                match client.contend(&claims[0], &patience).await {
                    Ok(Step::Busy(_)) => {}
                    Ok(Step::Granted(grant)) => panic!("granted beside a holder: {grant:?}"),
                    Err(failure) => {
                        assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");
                        assert!(failure.detail().contains("counter is exhausted"), "{failure}");
                    }
                }
                release(&client, &claims[0]).await;
            }
        }
        assert!(matches!(release(&client, &claim).await, Release::Freed));
    }
    // Alone, one holds also with that number, and when the container was removed, queues are as before.
    let alone = hold(&client, &claims[0]).await;
    assert!(alone.fence > last.fence);
    assert!(matches!(release(&client, &claims[0]).await, Release::Freed));
    let user = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    eventually(async || user.check_stat("/leasehold/counted").await.unwrap().is_none()).await;
    let next = hold(&client, &claims[1]).await;
    assert!(next.fence > alone.fence);
    let (waiter, waiting) = (client.clone(), claims[0].clone());
    let task = tokio::spawn(async move { take(&waiter, &waiting).await });
    wait_for_waiters(&client, &first.resource, 1).await;
    assert!(matches!(release(&client, &claims[1]).await, Release::Freed));
    assert!(task.await.unwrap().fence > next.fence);
}

/// A waiter of another library's semaphore may move to its lease in the moment in which it is ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_has_just_moved_to_its_lease_is_ended_there() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let client = backend(&format!("{}?session=20s&dialect=kazoo&prefix=leasehold", servers.url())).await;
    let share = Share::permits(1, 2).unwrap();
    let holders = [claim("pool", share), claim("pool", share)];
    for holder in &holders {
        hold(&client, holder).await;
    }
    let waiter = claim("pool", share);
    let waiting = tokio::spawn({
        let (client, waiter) = (client.clone(), waiter.clone());
        async move { client.contend(&waiter, &endless()).await }
    });
    wait_for_waiters(&client, &waiter.resource, 1).await;
    // Its place is kept, and the client knows where.
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    // The transaction of the client itself does the same, and its answer may come after that to the delete.
    let user = zookeeper_client::Client::connect(&servers.addr(0).to_string()).await.unwrap();
    let queue = "/leasehold/pool-__lock__";
    let place = user.list_children(queue).await.unwrap().pop().unwrap();
    let options = zookeeper_client::CreateMode::Ephemeral.with_acls(zookeeper_client::Acls::anyone_all());
    let mut multi = user.new_multi_writer();
    multi.add_delete(&format!("{queue}/{place}"), None).unwrap();
    multi.add_create(&format!("/leasehold/pool/{}", waiter.id.to_hex()), b"", &options).unwrap();
    multi.commit().await.unwrap();
    assert!(matches!(release(&client, &waiter).await, Release::Freed));
    let leases = user.list_children("/leasehold/pool").await.unwrap();
    assert_eq!(leases.len(), holders.len(), "it has a lease: {leases:?}");
    for holder in &holders {
        assert!(matches!(release(&client, holder).await, Release::Freed));
    }
}
