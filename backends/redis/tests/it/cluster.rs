//! A cluster: every server of it is found, and what it does with slots loses nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use futures_util::future::join_all;
use leasehold_core::{
    Backend, Claim, Durability, Effect, Failure, FailureKind, FenceGrade, Grant, LockSupport, Proof, Release,
    Renew, Renewal, Share, Step,
};
use leasehold_redis::{RedisBackend, RedisConfig};
use leasehold_testkit::{Counts, RedisCluster, RedisServer, Reply, SlotMove, Tls, require, until};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Long enough that a slow machine does not look like a dead server.
const PATIENT: Duration = Duration::from_secs(30);

async fn cluster() -> Option<RedisCluster> {
    RedisCluster::builder().node_timeout(PATIENT).start_or_skip().await
}

async fn counts(cluster: &RedisCluster) -> Vec<Counts> {
    let mut counts = Vec::new();
    for member in 0..cluster.members() {
        counts.push(cluster.member(member).counts().await.unwrap());
    }
    counts
}

async fn used(cluster: &RedisCluster, before: &[Counts], command: &str) -> u64 {
    let now = counts(cluster).await;
    now.iter().zip(before).map(|(now, before)| now.since(before).of(command)).sum()
}

async fn slot_of(cluster: &RedisCluster, name: &str) -> u16 {
    cluster.slot_of(&format!("lh:{name}")).await.unwrap()
}

async fn refusal(url: &str) -> Failure {
    RedisBackend::connect(RedisConfig::parse(url).unwrap()).await.unwrap_err()
}

#[tokio::test]
async fn any_server_leads_to_all_and_each_decides_over_its_slots() {
    let Some(cluster) = cluster().await else { return };
    // A replica, behind a server that is not there.
    let unreachable = "127.0.0.1:1".parse().unwrap();
    let backend = connect(&cluster.url_at(&[unreachable, cluster.addr(4)])).await;
    let profile = backend.profile();
    assert_eq!(
        (profile.fencing, profile.durability),
        (FenceGrade::AcrossFailover, Durability::LostOnFailover)
    );
    assert_eq!(profile.admission, LockSupport::Counted);
    let before = counts(&cluster).await;
    let names: Vec<String> = (0..60).map(|n| format!("job {n:02}")).collect();
    for name in &names {
        let fence = try_take(&backend, &long(name)).await.unwrap();
        let owner = cluster.primary_of(slot_of(&cluster, &name.replace(' ', "%20")).await).await.unwrap();
        assert_eq!(fence.epoch, owner as u64 + 2, "one more than the epoch that the kit gave");
        assert!(try_take(&backend, &mutex(name)).await.is_none());
    }
    let now = counts(&cluster).await;
    for (member, (now, before)) in now.iter().zip(&before).enumerate() {
        let (scripts, connections) = (now.since(before).of("evalsha"), now.connections);
        assert_eq!(scripts > 0, member < 3, "member {member} ran {scripts} scripts");
        assert!(connections <= 1 + 3, "member {member} has {connections} connections, replication included");
    }
    let mut listed = Vec::new();
    let mut after = None;
    loop {
        let page = backend.list("job ", after.as_ref(), 7).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.resource.clone());
        listed.extend(page.into_iter().map(|summary| (summary.resource.to_string(), summary.holders)));
    }
    let expected: Vec<_> = names.into_iter().map(|name| (name, 1)).collect();
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn batch_is_one_call_per_slot_and_each_server_loads_its_scripts() {
    let Some(cluster) = cluster().await else { return };
    let backend = connect(&cluster.url()).await;
    let claims: Vec<_> = (0..400).map(|n| long(&format!("job-{n}"))).collect();
    let mut slots = std::collections::BTreeSet::new();
    for claim in &claims {
        try_take(&backend, claim).await.unwrap();
        slots.insert(slot_of(&cluster, claim.resource.as_str()).await);
    }
    // One server has lost its scripts.
    cluster.member(1).command(&["SCRIPT", "FLUSH"]).await.unwrap();
    let proof = Proof::none();
    let gone = mutex("never held");
    let mut batch: Vec<_> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    batch.push(Renew { claim: &gone, proof: &proof });
    assert!(backend.renew(&batch[..400]).await.iter().all(|renewal| matches!(renewal, Renewal::Renewed)));
    let before = counts(&cluster).await;
    let renewals = backend.renew(&batch).await;
    let calls = used(&cluster, &before, "evalsha").await;
    assert!(calls <= slots.len() as u64 + 1, "{calls} calls for {} slots", slots.len());
    assert_eq!(used(&cluster, &before, "eval").await, 0);
    for (n, renewal) in renewals.iter().enumerate() {
        assert_eq!(matches!(renewal, Renewal::Renewed), n < 400, "{n}: {renewal:?}");
        assert_eq!(matches!(renewal, Renewal::Lost), n == 400, "{n}: {renewal:?}");
    }
    let released = backend.release(&claims.iter().collect::<Vec<_>>()).await;
    assert!(released.iter().all(|release| matches!(release, Release::Freed)));
}

#[tokio::test]
async fn a_release_wakes_the_next_by_the_channel_of_its_slot() {
    let Some(cluster) = cluster().await else { return };
    let (one, two) = (connect(&cluster.url()).await, Arc::new(connect(&cluster.url()).await));
    let before = counts(&cluster).await;
    for name in ["a", "b", "c", "d"] {
        hands_over(&one, &two, name).await;
    }
    let (of_slots, plain) = (["spublish", "ssubscribe"], ["publish", "subscribe"]);
    let (by, not_by) =
        if is_before_7(cluster.member(0)).await { (plain, of_slots) } else { (of_slots, plain) };
    for command in by {
        assert!(used(&cluster, &before, command).await >= 1, "{command}");
    }
    for command in not_by {
        assert_eq!(used(&cluster, &before, command).await, 0, "{command}");
    }
}

/// Longer than any machine takes to wake a waiter, and shorter than a waiter sleeps that nothing wakes.
const WOKEN: Duration = Duration::from_secs(10);

/// Queues a claim, and returns the task that waits for it.
async fn queued(at: &Arc<RedisBackend>, claim: &Claim) -> JoinHandle<Grant> {
    let waiting = tokio::spawn({
        let (at, claim) = (at.clone(), claim.clone());
        async move { take(&at, &claim, &endless()).await.unwrap() }
    });
    until("it waits", async || {
        assert!(!waiting.is_finished(), "it does not wait");
        is_awaited(at, claim).await
    })
    .await;
    waiting
}

/// Releases what one client holds, and lets the other know it.
async fn hands_over(one: &RedisBackend, two: &Arc<RedisBackend>, name: &str) {
    let (first, second) = (long(name), long(name));
    try_take(one, &first).await.unwrap();
    let waiting = queued(two, &second).await;
    assert!(freed(one, &first).await);
    timeout(WOKEN, waiting).await.unwrap().unwrap();
    assert!(freed(two, &second).await);
}

/// A claim whose lease ends after the test.
fn long(name: &str) -> Claim {
    claim_of(name, Share::MUTEX, Duration::from_secs(120))
}

#[tokio::test]
async fn a_user_who_may_not_read_the_version_wakes_others_and_is_woken() {
    let Some(cluster) = cluster().await else { return };
    let rules = "~{lh:* resetchannels &{lh:* +@all -info";
    for member in 0..cluster.members() {
        let args = ["ACL", "SETUSER", "jobs", "on", ">secret"].into_iter().chain(rules.split(' '));
        cluster.member(member).command(&args.collect::<Vec<_>>()).await.unwrap();
    }
    let all = Arc::new(connect(&cluster.url()).await);
    let jobs = Arc::new(connect(&cluster.url().replace("://", "://jobs:secret@")).await);
    assert_eq!((all.server_info().version.is_some(), jobs.server_info().version.is_some()), (true, false));
    hands_over(&all, &jobs, "a").await;
    hands_over(&jobs, &all, "b").await;
}

/// A primary is replaced by a server of another version, as in an upgrade.
#[tokio::test]
async fn clients_hear_each_other_during_an_upgrade() {
    let old = RedisServer::builder().version("redis-6.2");
    let builder = RedisCluster::builder().node_timeout(PATIENT).server(old).replica(RedisServer::builder());
    let Some(cluster) = require::or_skip("redis-6.2", builder.start().await) else { return };
    if is_before_7(cluster.member(3)).await {
        return;
    }
    let url = cluster.url();
    let (holder, before) = (connect(&url).await, Arc::new(connect(&url).await));
    let (first, second) = (long("job"), long("job"));
    try_take(&holder, &first).await.unwrap();
    // It has subscribed at the older server, and sends nothing from now on that the server would refuse.
    let waiting = queued(&before, &second).await;
    let old = cluster.primary_of(slot_of(&cluster, "job").await).await.unwrap();
    let new = cluster.fail_over(old).await.unwrap();
    let subscribed = async || {
        let args = ["PUBSUB", "SHARDNUMSUB", "{lh:job}:swake"];
        format!("{:?}", cluster.member(new).command(&args).await.unwrap()).contains("Int(1)")
    };
    let begun = Instant::now();
    while !subscribed().await {
        assert!(begun.elapsed() < PATIENT, "it does not subscribe at the new primary");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(freed(&holder, &first).await);
    timeout(WOKEN, waiting).await.unwrap().unwrap();
    assert!(freed(&before, &second).await);
    let during = Arc::new(connect(&url).await);
    for name in ["job", "a", "b", "c", "d"] {
        hands_over(&before, &during, name).await;
        hands_over(&during, &before, name).await;
    }
}

/// Moves a slot key by key and calls `look` between the steps.
async fn move_slowly(cluster: &RedisCluster, moving: &SlotMove, mut look: impl AsyncFnMut()) {
    look().await;
    while cluster.move_keys(moving, 1).await.unwrap() > 0 {
        look().await;
    }
    cluster.end_move(moving).await.unwrap();
    look().await;
}

#[tokio::test]
async fn a_holder_and_a_waiter_do_not_notice_that_their_slot_moves() {
    let Some(cluster) = cluster().await else { return };
    let url = format!("{}?timeout=10s", cluster.url());
    let (one, two) = (connect(&url).await, Arc::new(connect(&url).await));
    // For what is not answered while half of the keys are here and half there.
    let hasty = connect(&format!("{}?timeout=1s", cluster.url())).await;
    let (first, second) = (long("job"), long("job"));
    let slot = slot_of(&cluster, "job").await;
    let mut last = try_take(&one, &first).await.unwrap();
    let waiting = tokio::spawn({
        let (two, second) = (two.clone(), second.clone());
        async move {
            loop {
                // As the engine does: a request that failed without an effect is repeated.
                match two.contend(&second, &endless()).await {
                    Ok(leasehold_core::Step::Granted(grant)) => return grant.fence.unwrap(),
                    Ok(leasehold_core::Step::Busy(_)) => {}
                    Err(failure) => assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}"),
                }
            }
        }
    });
    until("the other one waits", async || {
        assert!(!waiting.is_finished(), "it does not wait");
        is_awaited(&one, &first).await
    })
    .await;
    let from = cluster.primary_of(slot).await.unwrap();
    let moving = cluster.begin_move(slot, (from + 1) % 3).await.unwrap();
    assert!(renewed(&one, &first).await, "nothing has moved yet");
    while cluster.move_keys(&moving, 1).await.unwrap() > 0 {
        match renew(&hasty, &first).await {
            Renewal::Renewed => {}
            Renewal::Unknown(failure) => assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(renewed(&one, &first).await, "all has moved, but the slot has not");
    cluster.end_move(&moving).await.unwrap();
    assert!(renewed(&one, &first).await);
    assert!(!waiting.is_finished());
    assert!(freed(&one, &first).await);
    let fence = timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    assert!(
        fence > last && fence.epoch > last.epoch,
        "{last:?}, then {fence:?}: the move gave the slot a new epoch"
    );
    last = fence;
    assert!(freed(&two, &second).await);
    // And back again, with all clients' views of before.
    cluster.move_slot(slot, from).await.unwrap();
    for backend in [&one, &*two] {
        let claim = mutex("job");
        let fence = try_take(backend, &claim).await.unwrap();
        assert!(fence > last, "{last:?}, then {fence:?}");
        last = fence;
        assert!(freed(backend, &claim).await);
    }
}

#[tokio::test]
async fn lone_holder_renews_while_its_slot_moves() {
    let Some(cluster) = cluster().await else { return };
    let backend = connect(&format!("{}?timeout=10s", cluster.url())).await;
    let claim = long("job");
    try_take(&backend, &claim).await.unwrap();
    let slot = slot_of(&cluster, "job").await;
    let from = cluster.primary_of(slot).await.unwrap();
    let moving = cluster.begin_move(slot, (from + 1) % 3).await.unwrap();
    assert!(renewed(&backend, &claim).await, "nothing has moved yet");
    while cluster.move_keys(&moving, 1).await.unwrap() > 0 {
        assert!(renewed(&backend, &claim).await, "it is a single value, here or there");
    }
    assert!(renewed(&backend, &claim).await, "all has moved, but the slot has not");
    cluster.end_move(&moving).await.unwrap();
    assert!(renewed(&backend, &claim).await);
    assert!(freed(&backend, &claim).await);
}

/// They are renewed by one request before, and by one for each while one of them has moved.
#[tokio::test]
async fn two_holders_of_one_slot_renew_while_one_moves() {
    let Some(cluster) = cluster().await else { return };
    let backend = connect(&format!("{}?timeout=10s", cluster.url())).await;
    let slot = slot_of(&cluster, "job").await;
    let other = "other-41652";
    assert_eq!(slot_of(&cluster, other).await, slot);
    let claims = [long("job"), long(other)];
    for claim in &claims {
        try_take(&backend, claim).await.unwrap();
    }
    let renew_both = async || {
        let proof = Proof::none();
        let batch = claims.each_ref().map(|claim| Renew { claim, proof: &proof });
        backend.renew(&batch).await.iter().filter(|renewal| matches!(renewal, Renewal::Renewed)).count()
    };
    let from = cluster.primary_of(slot).await.unwrap();
    let moving = cluster.begin_move(slot, (from + 1) % 3).await.unwrap();
    assert_eq!(renew_both().await, 2, "nothing has moved yet");
    let mut steps = 0;
    while cluster.move_keys(&moving, 1).await.unwrap() > 0 {
        steps += 1;
        assert_eq!(renew_both().await, 2, "after {steps} keys have moved");
    }
    cluster.end_move(&moving).await.unwrap();
    assert_eq!(renew_both().await, 2);
}

#[tokio::test]
async fn what_is_free_is_taken_once_its_slot_has_arrived() {
    let Some(cluster) = cluster().await else { return };
    let backend = connect(&format!("{}?timeout=30s", cluster.url())).await;
    let slot = slot_of(&cluster, "job").await;
    let to = (cluster.primary_of(slot).await.unwrap() + 1) % 3;
    let moving = cluster.begin_move(slot, to).await.unwrap();
    let claim = long("job");
    let begun = Instant::now();
    let (fence, ()) = tokio::join!(try_take(&backend, &claim), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        move_slowly(&cluster, &moving, async || {}).await;
    });
    assert!(fence.is_some() && begun.elapsed() >= Duration::from_millis(300));
    assert!(freed(&backend, &claim).await);
}

#[tokio::test]
async fn orderly_failover_keeps_claims_and_raises_the_epoch() {
    let Some(cluster) = cluster().await else { return };
    let backend = connect(&format!("{}?timeout=30s", cluster.url())).await;
    let (first, second) = (long("job"), mutex("job"));
    let slot = slot_of(&cluster, "job").await;
    let fence = try_take(&backend, &first).await.unwrap();
    let old = cluster.primary_of(slot).await.unwrap();
    cluster.fail_over(old).await.unwrap();
    assert!(still_held(&backend, &first).await);
    assert!(try_take(&backend, &second).await.is_none(), "it is held there as well");
    assert!(freed(&backend, &first).await);
    let later = try_take(&backend, &second).await.unwrap();
    assert!(later.epoch > fence.epoch, "{fence:?}, then {later:?}");
}

#[tokio::test]
async fn waiters_are_notified_after_a_change_of_primaries() {
    let Some(cluster) = cluster().await else { return };
    let (one, two) = (connect(&cluster.url()).await, Arc::new(connect(&cluster.url()).await));
    let (first, second) = (long("job"), long("job"));
    let slot = slot_of(&cluster, "job").await;
    try_take(&one, &first).await.unwrap();
    let waiting = queued(&two, &second).await;
    let old = cluster.primary_of(slot).await.unwrap();
    let new = cluster.fail_over(old).await.unwrap();
    cluster.settle().await.unwrap();
    let args = ["PUBSUB", if is_before_7(cluster.member(new)).await { "CHANNELS" } else { "SHARDCHANNELS" }];
    let begun = Instant::now();
    while matches!(cluster.member(new).command(&args).await.unwrap(), Reply::Many(all) if all.is_empty()) {
        assert!(begun.elapsed() < PATIENT, "it does not subscribe at the new primary");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(renewed(&one, &first).await);
    assert!(freed(&one, &first).await);
    timeout(WOKEN, waiting).await.unwrap().unwrap();
}

/// The client cannot connect to it, so nothing was sent.
#[tokio::test]
async fn unsent_request_goes_to_the_successor_of_its_primary() {
    let Some(cluster) = cluster().await else { return };
    let backend = connect(&format!("{}?timeout=30s", cluster.url())).await;
    let old = cluster.primary_of(slot_of(&cluster, "job").await).await.unwrap();
    let replica = cluster.replica_of(old).await.unwrap();
    cluster.member(old).command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
    cluster.stop(old).unwrap();
    cluster.member(replica).command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await.unwrap();
    let claim = long("job");
    let fence = try_take(&backend, &claim).await.unwrap();
    cluster.resume(old).unwrap();
    assert!(freed(&backend, &claim).await, "{fence} was not granted by the successor");
}

/// Repeats a request whose last attempt got no answer: it began when the time limit was nearly over, or the machine
/// stood still.
async fn in_time(mut request: impl AsyncFnMut() -> Failure) -> Failure {
    for _ in 0..20 {
        let failure = request().await;
        if failure.effect == Effect::None {
            return failure;
        }
        println!("{failure}");
    }
    panic!("20 last attempts got no answer");
}

/// A cluster whose servers answer reads while it is down.
async fn cluster_that_allows_reads() -> Option<RedisCluster> {
    let server = RedisServer::builder().arg("--cluster-allow-reads-when-down").arg("yes");
    RedisCluster::builder().node_timeout(PATIENT).server(server).start_or_skip().await
}

/// Returns a name that begins with `stem` and whose key, which begins with `prefix`, is at this member.
async fn name_at(cluster: &RedisCluster, member: usize, prefix: &str, stem: &str) -> String {
    for number in 0.. {
        let name = format!("{stem}-{number}");
        let slot = cluster.slot_of(&format!("{prefix}{name}")).await.unwrap();
        if cluster.primary_of(slot).await.unwrap() == member {
            return name;
        }
    }
    unreachable!("each member has a third of all names")
}

/// Lets the cluster be down for this member: it misses the owner of a slot. Returns the slot and its owner.
async fn bring_down(cluster: &RedisCluster, at: usize) -> (String, usize) {
    let mut owned = Vec::new();
    for slot in [0, 8_000, 16_000] {
        owned.push((slot, cluster.primary_of(slot).await.unwrap()));
    }
    let (slot, other) = owned.into_iter().find(|(_, owner)| *owner != at).unwrap();
    let slot = slot.to_string();
    for member in [other, at] {
        cluster.member(member).command(&["CLUSTER", "DELSLOTS", &slot]).await.unwrap();
    }
    let state = async || cluster.member(at).command(&["CLUSTER", "INFO"]).await.unwrap().into_text().unwrap();
    until("the cluster is down", async || state().await.contains("cluster_state:fail")).await;
    (slot, other)
}

/// Checks the failure of a call while the cluster is down.
fn passes(failure: &Failure) {
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
}

/// A primary whose cluster is down lets scripts begin, and refuses what they write.
#[tokio::test]
async fn cluster_that_is_down_and_allows_reads_is_waited_for() {
    let Some(cluster) = cluster_that_allows_reads().await else { return };
    let backend = connect(&format!("{}?timeout=1s", cluster.url())).await;
    let held = long("job");
    persist(&backend, &held).await;
    let at = cluster.primary_of(slot_of(&cluster, "job").await).await.unwrap();
    let free = long(&name_at(&cluster, at, "lh:", "free").await);
    let (slot, other) = bring_down(&cluster, at).await;

    passes(&in_time(async || backend.contend(&free, &no_patience()).await.unwrap_err()).await);
    for claim in [&held, &free] {
        let failure = in_time(async || match renew(&backend, claim).await {
            Renewal::Unknown(failure) => failure,
            other => panic!("{other:?}"),
        });
        passes(&failure.await);
        let failure = in_time(async || match release(&backend, claim).await {
            Release::Unknown(failure) => failure,
            other => panic!("{other:?}"),
        });
        passes(&failure.await);
    }

    cluster.member(other).command(&["CLUSTER", "ADDSLOTS", &slot]).await.unwrap();
    let id = cluster.member(other).command(&["CLUSTER", "MYID"]).await.unwrap().into_text().unwrap();
    cluster.member(at).command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]).await.unwrap();
    let begun = Instant::now();
    loop {
        match release(&backend, &held).await {
            Release::Freed => break,
            Release::Unknown(failure) => passes(&failure),
            Release::Gone => panic!("it was released while the cluster was down"),
        }
        assert!(begun.elapsed() < LIMIT, "the cluster is still down");
    }
    assert!(try_take(&backend, &long("job")).await.is_some());
}

/// In another library's dialect, too, such a server does not report who holds, or that a claim is lost or gone.
#[tokio::test]
async fn dialects_believe_no_server_whose_cluster_is_down() {
    let Some(cluster) = cluster_that_allows_reads().await else { return };
    let mut held = Vec::new();
    for dialect in ["plain", "python-redis-lock", "redisson"] {
        let backend = open(&format!("{}?timeout=1s&dialect={dialect}", cluster.url())).await;
        // All keys of a lock have to be in one slot.
        let claim = long(&format!("{{{}}}", name_at(&cluster, 0, "", dialect).await));
        let step = in_the_end(async || backend.contend(&claim, &no_patience()).await).await;
        assert!(matches!(step, Step::Granted(_)), "{dialect}");
        held.push((backend, claim));
    }
    bring_down(&cluster, 0).await;
    // Each call takes its whole time limit.
    join_all(held.iter().map(async |(backend, claim)| {
        let other = long(claim.resource.as_str());
        passes(&in_time(async || backend.contend(&other, &no_patience()).await.unwrap_err()).await);
        let at = &claim.resource;
        passes(&in_time(async || backend.inspect(at, None, &no_patience()).await.unwrap_err()).await);
        let failure = in_time(async || match any::renew(&**backend, &other).await {
            Renewal::Unknown(failure) => failure,
            renewal => panic!("{at}: {renewal:?}"),
        });
        passes(&failure.await);
        let failure = in_time(async || match any::release(&**backend, &other).await {
            Release::Unknown(failure) => failure,
            release => panic!("{at}: {release:?}"),
        });
        passes(&failure.await);
    }))
    .await;
}

#[tokio::test]
async fn tls_password_and_the_documented_rights_are_enough() {
    let rules = "resetkeys ~{lh:* resetchannels &{lh:* -@all +ping +select +eval +evalsha +script|load +time +get +set \
                 +mget +del +exists +pexpireat +pttl +zadd +zrem +zscore +zrank +zcard +zcount +zrange +zrangebyscore +hset +hget \
                 +hmget +hdel +scan +info +config|get +cluster|nodes +asking +spublish +ssubscribe +sunsubscribe \
                 +object|idletime";
    let server = RedisServer::builder().tls(Tls::Mutual).password("all").acl_user("jobs", "s:p/w", rules);
    let builder = RedisCluster::builder().node_timeout(PATIENT).server(server);
    let Some(cluster) = builder.start_or_skip().await else { return };
    let certificates = cluster.certificates().unwrap();
    let client = certificates.client();
    let options = format!(
        "?ca={}&cert={}&key={}",
        certificates.ca_path().display(),
        client.certificate.display(),
        client.key.display()
    );
    let url = cluster.url().replace("default:all@", "jobs:s%3Ap%2Fw@") + &options;
    let (one, two) = (connect(&url).await, Arc::new(connect(&url).await));
    assert_eq!(one.profile().fencing, FenceGrade::AcrossFailover);
    for n in 0..8 {
        let name = format!("job {n}");
        let (first, second) = (mutex(&name), mutex(&name));
        try_take(&one, &first).await.unwrap();
        let waiting = tokio::spawn({
            let (two, second) = (two.clone(), second.clone());
            async move { take(&two, &second, &endless()).await.is_some() }
        });
        until("the other one waits", async || {
            assert!(!waiting.is_finished(), "it was refused");
            is_awaited(&one, &first).await
        })
        .await;
        assert!(renewed(&one, &first).await && freed(&one, &first).await);
        assert!(timeout(WOKEN, waiting).await.unwrap().unwrap());
    }
    assert_eq!(one.list("", None, 100).await.unwrap().len(), 8);
    let slot = cluster.slot_of("lh:job%200").await.unwrap();
    cluster.move_slot(slot, (cluster.primary_of(slot).await.unwrap() + 1) % 3).await.unwrap();
    let shared = claim_of("job 0", Share::MUTEX, TTL);
    assert!(try_take(&one, &shared).await.is_none());
    let done = mutex("done");
    assert!(try_take(&one, &done).await.is_some() && freed(&one, &done).await);
    let swept = leasehold_redis::sweep(RedisConfig::parse(&url).unwrap(), Duration::ZERO).await.unwrap();
    assert_eq!(swept.removed, 1);
    let wrong = refusal(&url.replace("s%3Ap%2Fw", "wrong")).await;
    assert_eq!(wrong.kind, FailureKind::Denied, "{wrong}");
    assert!(!wrong.to_string().contains("wrong@"));
}

#[tokio::test]
async fn single_server_and_cluster_urls_are_not_confused() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let alone = refusal(&server.url().replace("redis://", "redis+cluster://")).await;
    assert_eq!(alone.kind, FailureKind::Unsupported);
    assert!(alone.detail().contains("redis://"), "{alone}");
    let Some(cluster) = cluster().await else { return };
    let of_many = refusal(&cluster.member(0).url()).await;
    assert_eq!(of_many.kind, FailureKind::Unsupported);
    assert!(of_many.detail().contains("redis+cluster://"), "{of_many}");
}
