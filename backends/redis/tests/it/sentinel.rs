//! A primary that is elected: the server that clients use, its epoch, and what holders see.

use std::time::{Duration, Instant};

use crate::common::*;
use leasehold_core::{Backend, Claim, Durability, Failure, FailureKind, Fence, FenceGrade, Share};
use leasehold_redis::{RedisBackend, RedisConfig};
use leasehold_testkit::{Data, RedisSentinel, RedisSentinelBuilder, RedisServer, Way};

async fn refused(url: &str) -> Failure {
    RedisBackend::connect(RedisConfig::parse(url).unwrap()).await.unwrap_err()
}

/// Sentinels that never fail over by themselves, also where the machine stands still.
fn lasting() -> RedisSentinelBuilder {
    RedisSentinel::builder().down_after(Duration::from_secs(60))
}

/// Sentinels that fail over soon after the primary is killed, and not where the machine stands still for a moment.
fn failing_over() -> RedisSentinelBuilder {
    RedisSentinel::builder().down_after(Duration::from_secs(5))
}

async fn open(group: &RedisSentinel) -> RedisBackend {
    connect(&group.url()).await
}

fn long(name: &str) -> Claim {
    claim_of(name, Share::MUTEX, Duration::from_secs(600))
}

#[tokio::test]
async fn the_primary_is_found_and_promises_what_it_can() {
    let Some(group) = lasting().start_or_skip().await else { return };
    let backend = open(&group).await;
    assert_eq!(
        (backend.profile().fencing, backend.profile().durability),
        (FenceGrade::AcrossFailover, Durability::LostOnFailover)
    );
    let (first, second) = (mutex("job"), mutex("job"));
    let fence = try_take(&backend, &first).await.unwrap();
    assert_eq!(fence.epoch, 1, "before the first election");
    assert!(freed(&backend, &first).await);
    assert_eq!(try_take(&backend, &second).await.unwrap(), Fence::new(1, fence.seq + 1, 0));
    assert!(freed(&backend, &second).await);

    // It costs what one server costs.
    let before = group.server(0).counts().await.unwrap();
    for n in 0..20 {
        let claim = mutex(&format!("job {n}"));
        try_take(&backend, &claim).await.unwrap();
        assert!(freed(&backend, &claim).await);
    }
    let used = group.server(0).counts().await.unwrap().since(&before);
    assert_eq!(used.of("evalsha"), 40, "{:?}", used.commands);

    // Who takes the primary for a single server would not notice when it is deposed.
    let single = connect(&group.server(0).url()).await;
    let refusal = single.contend(&mutex("job"), &no_patience()).await.unwrap_err();
    assert_eq!(refusal.kind, FailureKind::Unsupported);
    assert!(refusal.detail().contains("redis+sentinel://"), "{refusal}");
}

#[tokio::test]
async fn failover_is_followed_and_lost_claims_are_reported() {
    let Some(group) = failing_over().start_or_skip().await else { return };
    let backend = open(&group).await;
    let (kept, lost) = (long("kept"), long("lost"));
    let before = try_take(&backend, &kept).await.unwrap();
    group.server(0).replicated(2).await.unwrap();
    // From now on the replicas receive nothing: what is granted now is known to the primary alone.
    for replica in [1, 2] {
        group.stop(replica).unwrap();
    }
    group.server(0).command(&["CLIENT", "KILL", "TYPE", "replica"]).await.unwrap();
    try_take(&backend, &lost).await.unwrap();
    group.kill(0).unwrap();
    for replica in [1, 2] {
        group.resume(replica).unwrap();
    }
    let killed = Instant::now();
    let after = persist(&backend, &mutex("other")).await;
    println!("granted again {:?} after the kill", killed.elapsed());
    assert!(after.epoch > before.epoch, "{before:?}, then {after:?}");
    assert!(still_held(&backend, &kept).await, "it had reached the replicas");
    assert!(!still_held(&backend, &lost).await, "the new primary never heard of it");
    assert!(try_take(&backend, &mutex("kept")).await.is_none());
    let successor = try_take(&backend, &mutex("lost")).await.unwrap();
    assert!(successor > before && successor.epoch == after.epoch);
}

#[tokio::test]
async fn manual_failover_keeps_claims_and_raises_the_epoch() {
    let Some(group) = lasting().start_or_skip().await else { return };
    let backend = open(&group).await;
    let claim = long("job");
    let mut last = try_take(&backend, &claim).await.unwrap();
    for _ in 0..2 {
        group.server(group.primary().await.unwrap()).replicated(2).await.unwrap();
        group.failover().await.unwrap();
        group.settle().await.unwrap();
        assert!(still_held(&backend, &claim).await);
        let other = mutex("other");
        let fence = persist(&backend, &other).await;
        assert!(fence.epoch > last.epoch, "{last:?}, then {fence:?}");
        assert!(freed(&backend, &other).await);
        last = fence;
    }
}

#[tokio::test]
async fn deposed_primary_partition_or_hang_is_left_on_sentinel_word() {
    let Some(group) = failing_over().proxies().start_or_skip().await else { return };
    // A client that waits long for an answer is not held up by the server that was deposed.
    let backend = connect(&format!("{}?timeout=5m", group.url())).await;
    let claim = claim_of("job", Share::MUTEX, Duration::from_secs(900));
    let fence = try_take(&backend, &claim).await.unwrap();
    group.server(0).replicated(2).await.unwrap();
    group.proxy(0).unwrap().blackhole(Way::Both);
    let begun = Instant::now();
    assert!(still_held(&backend, &claim).await);
    let new = group.promoted(0).await.unwrap();
    assert!(try_take(&backend, &mutex("job")).await.is_none());
    assert!(persist(&backend, &mutex("other")).await.epoch > fence.epoch);
    group.proxy(0).unwrap().heal().unwrap();
    group.settle().await.unwrap();
    group.server(new).replicated(2).await.unwrap();
    group.stop(new).unwrap();
    assert!(still_held(&backend, &claim).await);
    println!("two failovers in {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(240));
}

/// It accepts connections and answers nothing on them, as behind a network that is down.
#[tokio::test]
async fn deposed_primary_is_left_by_a_client_that_connects_to_it() {
    let Some(group) = failing_over().proxies().start_or_skip().await else { return };
    // Longer than this test waits.
    let backend = connect(&format!("{}?timeout=5m", group.url())).await;
    let claim = claim_of("job", Share::MUTEX, Duration::from_secs(900));
    try_take(&backend, &claim).await.unwrap();
    group.server(0).replicated(2).await.unwrap();
    // The client's connection ends, also behind the proxy, and it makes another when it renews.
    group.server(0).command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    group.proxy(0).unwrap().blackhole(Way::Both);
    assert!(tokio::time::timeout(LIMIT, still_held(&backend, &claim)).await.unwrap());
    let new = group.promoted(0).await.unwrap();
    assert_ne!(new, 0);
}

#[tokio::test]
async fn a_waiter_is_served_by_the_new_primary() {
    let Some(group) = failing_over().start_or_skip().await else { return };
    let backend = open(&group).await;
    let (holder, waiter) = (long("job"), long("job"));
    try_take(&backend, &holder).await.unwrap();
    let waiting = async {
        loop {
            // The engine continues after a transient failure.
            match backend.contend(&waiter, &endless()).await {
                Ok(leasehold_core::Step::Granted(grant)) => return grant.fence.unwrap(),
                Ok(leasehold_core::Step::Busy(_)) => {}
                Err(failure) => assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let releasing = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        group.server(0).replicated(2).await.unwrap();
        group.kill(0).unwrap();
        group.promoted(0).await.unwrap();
        assert!(still_held(&backend, &holder).await);
        // The subscription is up again by then, or the waiter looks by itself.
        tokio::time::sleep(Duration::from_secs(1)).await;
        any::release_until_answered(&backend, &holder).await;
        Instant::now()
    };
    let (fence, released) = tokio::join!(waiting, releasing);
    println!("granted {:?} after the release", released.elapsed());
    // A busy machine may need a second election.
    assert!(fence.epoch >= 2, "{fence}");
    // One that nobody wakes looks for safety after 15 seconds at the earliest.
    assert!(released.elapsed() < Duration::from_secs(14), "{:?}", released.elapsed());
}

#[tokio::test]
async fn loss_within_an_epoch_is_reported_and_fences_keep_rising() {
    let Some(group) = lasting().start_or_skip().await else { return };
    let backend = open(&group).await;
    let mut last = Fence::default();
    for fault in ["flush", "restart without data", "evicted"] {
        let claim = long("job");
        let fence = persist(&backend, &claim).await;
        assert!(fence > last, "{fault}: {last:?}, then {fence:?}");
        assert!(still_held(&backend, &claim).await);
        match fault {
            "flush" => group.server(0).flushall().await.unwrap(),
            // Before the Sentinels notice: the same primary, the same epoch.
            "restart without data" => group.restart(0, Data::Lose).await.unwrap(),
            _ => _ = group.server(0).command(&["DEL", "{lh:job}:held"]).await.unwrap(),
        }
        assert!(!still_held(&backend, &claim).await, "{fault}");
        let successor = mutex("job");
        let next = persist(&backend, &successor).await;
        assert!(next.epoch == fence.epoch && next.seq > fence.seq, "{fault}: {fence:?}, then {next:?}");
        assert!(freed(&backend, &successor).await);
        last = next;
    }
}

#[tokio::test]
async fn a_minority_of_sentinels_is_not_believed() {
    let Some(group) = lasting().proxies().start_or_skip().await else { return };
    for number in [1, 2] {
        group.sentinel_proxy(number).unwrap().cut().unwrap();
    }
    let url = format!("{}?timeout=10s", group.url());
    let failure = refused(&url).await;
    assert_eq!(failure.kind, FailureKind::Unavailable);
    for part in [group.sentinel_addr(0), group.sentinel_addr(2), group.addr(0)] {
        assert!(failure.detail().contains(&part.to_string()), "{failure}");
    }
    group.sentinel_proxy(1).unwrap().heal().unwrap();
    connect(&url).await;
}

#[tokio::test]
async fn configuration_mistakes_are_reported_with_advice() {
    let builder = lasting()
        .server(RedisServer::builder().password("of the servers"))
        .sentinel_password("of the sentinels");
    let Some(group) = builder.start_or_skip().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (right, wrong) = (file("right", "of the sentinels\n"), file("wrong", "of others"));
    let url = format!("{}?sentinel-password-file=", group.url());
    let backend = connect(&format!("{url}{right}")).await;
    assert!(try_take(&backend, &mutex("job")).await.is_some());

    let failure = refused(&format!("{url}{wrong}")).await;
    assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
    let failure = refused(&group.url()).await;
    assert!(failure.kind == FailureKind::Denied && failure.detail().contains("NOAUTH"), "{failure}");
    let failure = refused(
        &url.replace("of%20the%20servers", "guessed")
            .replace("password-file=", &format!("password-file={right}")),
    )
    .await;
    assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
    assert!(failure.detail().contains(&group.addr(0).to_string()) && !failure.detail().contains("guessed"));
    let failure = refused(&format!("{url}{right}").replace("/locks?", "/clocks?")).await;
    assert!(failure.kind == FailureKind::Invalid && failure.detail().contains("clocks"), "{failure}");
    // A server that is no Sentinel.
    let failure = refused(&group.url_at(&[group.addr(0)])).await;
    assert!(failure.kind == FailureKind::Unsupported || failure.kind == FailureKind::Denied, "{failure}");
}

#[tokio::test]
async fn the_documented_rights_are_enough() {
    let docs = include_str!("../../src/docs.md");
    let documented = |user: &str| {
        let line =
            docs.lines().find_map(|line| line.strip_prefix(&format!("ACL SETUSER {user} on >secret ")));
        line.unwrap().to_owned()
    };
    let servers =
        RedisServer::builder().acl_user("jobs", "secret", &format!("{} +role +wait", documented("jobs")));
    let Some(group) = failing_over().server(servers).start_or_skip().await else { return };
    for number in 0..3 {
        let rules = documented("watcher");
        let args = ["ACL", "SETUSER", "watcher", "on", ">other"].into_iter().chain(rules.split(' '));
        group.sentinel(number).command(&args.collect::<Vec<_>>()).await.unwrap();
        group.sentinel(number).command(&["ACL", "SETUSER", "default", "off"]).await.unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "other").unwrap();
    let url = group.url().replace("://", "://jobs:secret@");
    let options =
        format!("replicas=1&timeout=30s&sentinel-user=watcher&sentinel-password-file={}", file.display());
    let url = format!("{url}?{options}");
    let backend = connect(&url).await;
    let claim = long("job");
    let before = try_take(&backend, &claim).await.unwrap();
    assert!(still_held(&backend, &claim).await);
    // One replica has confirmed; the Sentinels may choose the other one.
    group.server(0).replicated(2).await.unwrap();
    group.kill(0).unwrap();
    assert!(still_held(&backend, &claim).await);
    assert!(freed(&backend, &claim).await);
    assert!(persist(&backend, &mutex("job")).await > before);
}
