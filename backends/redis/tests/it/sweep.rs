//! Sweeping: the keys of unused fences are removed, and no fence ever decreases.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use leasehold_core::{Backend, FailureKind, Fence, Share};
use leasehold_redis::{RedisBackend, RedisConfig, SweepReport};
use leasehold_testkit::{RedisCluster, RedisSentinel, RedisServer, until};

async fn sweep(url: &str, unused_for: Duration) -> SweepReport {
    leasehold_redis::sweep(RedisConfig::parse(url).unwrap(), unused_for).await.unwrap()
}

async fn use_once(backend: &RedisBackend, name: &str) -> Fence {
    let claim = mutex(name);
    let fence = try_take(backend, &claim).await.unwrap();
    assert!(freed(backend, &claim).await);
    fence
}

async fn keys(server: &RedisServer) -> Vec<String> {
    let mut keys = server.command(&["KEYS", "*"]).await.unwrap().into_texts().unwrap();
    keys.sort();
    keys
}

#[tokio::test]
async fn what_is_unused_goes_and_what_is_in_use_stays() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let long = "é".repeat(200);
    for name in ["a", "b c", &long] {
        use_once(&backend, name).await;
    }
    // It does not end before the waiter comes, on however busy a machine.
    let (held, waits) = (claim_of("held", Share::MUTEX, Duration::from_secs(600)), mutex("held"));
    try_take(&backend, &held).await.unwrap();
    let endless = endless();
    let waiting = take(&backend, &waits, &endless);
    let sweeping = async {
        until("somebody waits", async || is_awaited(&backend, &held).await).await;
        for key in ["{lh:mine}:fence", "{other:a}:fence"] {
            server.command(&["SET", key, "not a number"]).await.unwrap();
        }
        let spared = sweep(&server.url(), Duration::from_secs(3_600)).await;
        assert_eq!(spared, SweepReport { seen: 5, removed: 0 });
        let swept = sweep(&server.url(), Duration::ZERO).await;
        assert_eq!(swept, SweepReport { seen: 5, removed: 3 });
        let left = keys(&server).await;
        let fences: Vec<_> = left.iter().filter(|key| key.ends_with(":fence")).collect();
        assert_eq!(fences, ["{lh:held}:fence", "{lh:mine}:fence", "{other:a}:fence"]);
        assert!(freed(&backend, &held).await);
    };
    let (granted, ()) = tokio::join!(waiting, sweeping);
    assert!(granted.is_some());
    // Who waits alone is spared, too.
    assert_eq!(sweep(&server.url(), Duration::ZERO).await.removed, 0);
}

/// A waiter that dies when it was called leaves keys behind, which outlive its place.
#[tokio::test]
async fn keys_of_claims_that_have_ended_go_too() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let (held, waits) = (claim_of("job", Share::MUTEX, Duration::from_secs(600)), mutex("job"));
    try_take(&backend, &held).await.unwrap();
    let endless = endless();
    tokio::select! {
        _ = take(&backend, &waits, &endless) => panic!("it is held"),
        () = until("somebody waits", async || is_awaited(&backend, &held).await) => {}
    }
    assert!(freed(&backend, &held).await);
    until("its place ends", async || !is_awaited(&backend, &held).await).await;
    assert_eq!(sweep(&server.url(), Duration::ZERO).await.removed, 1, "{:?}", keys(&server).await);
    assert_eq!(keys(&server).await.len(), 1, "the floor");
    // A claim that came before the queue was evicted may still be asking.
    server.command(&["ZADD", "{lh:job}:queue", "1", &format!("{}:1:1", "a".repeat(32))]).await.unwrap();
    server.command(&["SET", "{lh:job}:fence", "17"]).await.unwrap();
    assert_eq!(sweep(&server.url(), Duration::ZERO).await.removed, 0);
    // Keys of another program stay.
    server.command(&["DEL", "{lh:job}:queue"]).await.unwrap();
    for part in ["held", "queue", "places", "claims"] {
        let key = format!("{{lh:job}}:{part}");
        server.command(&["SET", &key, "mine"]).await.unwrap();
        assert_eq!(sweep(&server.url(), Duration::ZERO).await.removed, 0, "{part}");
        server.command(&["DEL", &key]).await.unwrap();
    }
    assert_eq!(sweep(&server.url(), Duration::ZERO).await.removed, 1);
}

#[tokio::test]
async fn a_sweep_of_a_prefix_leaves_other_names() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    for name in ["a/1", "a/2", "a*/3", "ab", "b/a/1"] {
        use_once(&backend, name).await;
    }
    let under = async |prefix| {
        let config = RedisConfig::parse(&server.url()).unwrap();
        leasehold_redis::sweep_under(config, prefix, Duration::ZERO, |_| ()).await.unwrap()
    };
    assert_eq!(under("a*/").await, SweepReport { seen: 1, removed: 1 });
    assert_eq!(under("a/").await, SweepReport { seen: 2, removed: 2 });
    let left = keys(&server).await;
    let fences: Vec<_> = left.iter().filter(|key| key.ends_with(":fence")).collect();
    assert_eq!(fences, ["{lh:ab}:fence", "{lh:b/a/1}:fence"]);
}

/// The clock is set back: what was granted before it was is ahead of all that it says now.
#[tokio::test]
async fn a_swept_name_never_falls_wherever_the_clock_goes() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let ahead = use_once(&backend, "job").await.seq + 3_600_000_000;
    for round in 0..3 {
        let before = ahead + 1_000 * round;
        server.command(&["SET", "{lh:job}:fence", &before.to_string()]).await.unwrap();
        assert_eq!(sweep(&server.url(), Duration::from_secs(1)).await.removed, 0, "it is of the future");
        assert_eq!(sweep(&server.url(), Duration::ZERO).await.removed, 1);
        assert_eq!(use_once(&backend, "job").await.seq, before + 1);
    }
    // A lower fence of the same slot does not lower the floor.
    assert_eq!(sweep(&server.url(), Duration::ZERO).await.removed, 1);
    server.command(&["SET", "{lh:job}:fence", "17"]).await.unwrap();
    assert_eq!(sweep(&server.url(), Duration::ZERO).await.removed, 1);
    assert_eq!(use_once(&backend, "job").await.seq, ahead + 2_000 + 2);
}

#[tokio::test]
async fn fences_rise_beside_sweepers() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let (url, done) = (server.url(), AtomicBool::new(false));
    let sweepers = async {
        let mut removed = 0;
        while !done.load(Ordering::Relaxed) {
            let (one, other) = tokio::join!(sweep(&url, Duration::ZERO), sweep(&url, Duration::ZERO));
            removed += one.removed + other.removed;
        }
        removed
    };
    let users = async {
        let mut last = [0; 5];
        for round in 0..400 {
            let fence = use_once(&backend, &format!("job/{}", round % last.len())).await;
            let last = &mut last[round % 5];
            assert!(fence.seq > *last, "round {round}: {fence:?} after {last}");
            *last = fence.seq;
        }
        done.store(true, Ordering::Relaxed);
    };
    let (removed, ()) = tokio::join!(sweepers, users);
    assert!(removed > 0, "nothing was swept, so nothing was tried");
}

#[tokio::test]
async fn a_server_without_memory_is_swept() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let before = use_once(&backend, "job").await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    assert_eq!(sweep(&server.url(), Duration::ZERO).await.removed, 1);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    assert_eq!(keys(&server).await.len(), 1, "the floor");
    assert!(use_once(&backend, "job").await > before);
}

#[tokio::test]
async fn each_server_of_a_cluster_is_swept() {
    let cluster = RedisCluster::builder().node_timeout(Duration::from_secs(30)).start_or_skip().await;
    let Some(cluster) = cluster else { return };
    let backend = connect(&cluster.url()).await;
    let names: Vec<String> = (0..60).map(|n| format!("job {n:02}")).collect();
    let mut before = Vec::new();
    for name in &names {
        before.push(use_once(&backend, name).await);
    }
    assert_eq!(sweep(&cluster.url(), Duration::from_secs(3_600)).await, SweepReport { seen: 60, removed: 0 });
    assert_eq!(sweep(&cluster.url(), Duration::ZERO).await, SweepReport { seen: 60, removed: 60 });
    // Another election, as after a failover, and one that is not known to the floor's server any more.
    let held = cluster.slot_of("lh:job%2000").await.unwrap();
    let primary = cluster.primary_of(held).await.unwrap();
    cluster.fail_over(primary).await.unwrap();
    for (name, before) in names.iter().zip(before) {
        let fence = take(&backend, &mutex(name), &patience(LIMIT)).await.unwrap().fence.unwrap();
        assert!(fence > before, "{name}: {fence:?} after {before:?}");
    }
}

#[tokio::test]
async fn a_view_of_before_is_refused_for_swept_names_too() {
    // Nothing fails over, also where the machine stands still.
    let builder = RedisSentinel::builder().down_after(Duration::from_secs(60));
    let Some(group) = builder.start_or_skip().await else { return };
    let backend = connect(&group.url()).await;
    let before = use_once(&backend, "job").await;
    assert_eq!(sweep(&group.url(), Duration::ZERO).await.removed, 1);
    let after = use_once(&backend, "job").await;
    assert!(after > before && after.epoch == before.epoch, "{after:?} after {before:?}");
    assert_eq!(sweep(&group.url(), Duration::ZERO).await.removed, 1);
    // By way of one server nobody elects it.
    let primary = group.primary().await.unwrap();
    let alone = connect(&group.server(primary).url()).await;
    let refused = alone.contend(&mutex("job"), &no_patience()).await.unwrap_err();
    assert!(refused.to_string().contains("epoch"), "{refused}");
}

#[tokio::test]
async fn what_other_libraries_keep_is_not_swept() {
    for url in ["redis://127.0.0.1:1?dialect=plain", "redis://127.0.0.1:1?dialect=dual:plain"] {
        let refused =
            leasehold_redis::sweep(RedisConfig::parse(url).unwrap(), Duration::ZERO).await.unwrap_err();
        assert_eq!(refused.kind, FailureKind::Unsupported, "{url}: {refused}");
    }
}
