//! Sentinels and their servers, as far as tests rely on them.

use std::time::{Duration, Instant};

use leasehold_testkit::{Data, RedisSentinel, Way};

/// So long that nothing fails over before its fault, also where the machine stands still.
const DOWN_AFTER: Duration = Duration::from_secs(5);

#[tokio::test]
async fn killed_primary_is_replaced_and_returns_as_a_replica() {
    let builder = RedisSentinel::builder().down_after(DOWN_AFTER);
    let Some(group) = builder.start_or_skip().await else { return };
    let old = group.primary().await.unwrap();
    assert_eq!(old, 0);
    assert_eq!(group.view(0).await.unwrap()["config-epoch"], "0");
    group.server(old).command(&["SET", "kept", "1"]).await.unwrap();
    group.server(old).replicated(2).await.unwrap();
    let killed = Instant::now();
    group.kill(old).unwrap();
    let new = group.promoted(old).await.unwrap();
    println!("failed over in {:?}", killed.elapsed());
    // A failover that the Sentinels gave up has used up an epoch as well.
    let epoch: u64 = group.view(0).await.unwrap()["config-epoch"].parse().unwrap();
    assert!((1..10).contains(&epoch), "{epoch}");
    assert_eq!(group.server(new).command(&["GET", "kept"]).await.unwrap().into_text().unwrap(), "1");
    group.restart(old, Data::Lose).await.unwrap();
    group.settle().await.unwrap();
    println!("settled in {:?}", killed.elapsed());
    assert_eq!(group.primary().await.unwrap(), new);
    assert_eq!(group.server(old).command(&["GET", "kept"]).await.unwrap().into_text().unwrap(), "1");
}

#[tokio::test]
async fn partitioned_or_stopped_primary_fails_over_also_on_request() {
    let Some(group) = RedisSentinel::builder().proxies().down_after(DOWN_AFTER).start_or_skip().await else {
        return;
    };
    group.proxy(0).unwrap().blackhole(Way::Both);
    let second = group.promoted(0).await.unwrap();
    group.proxy(0).unwrap().heal().unwrap();
    group.settle().await.unwrap();
    group.stop(second).unwrap();
    let third = group.promoted(second).await.unwrap();
    group.resume(second).unwrap();
    group.settle().await.unwrap();
    assert_ne!(group.failover().await.unwrap(), third);
    group.settle().await.unwrap();
    // One more for each; a failover that the Sentinels gave up has used up one as well.
    let epoch: u64 = group.view(2).await.unwrap()["config-epoch"].parse().unwrap();
    assert!((3..10).contains(&epoch), "{epoch}");
}

#[tokio::test]
async fn sentinel_passwords_are_required() {
    use leasehold_testkit::RedisServer;
    let group = RedisSentinel::builder()
        .server(RedisServer::builder().password("of servers"))
        .sentinel_password("of sentinels");
    let Some(group) = group.start_or_skip().await else { return };
    assert!(group.url().starts_with("redis+sentinel://default:of%20servers@127.0.0.1:"));
    group.kill(0).unwrap();
    group.promoted(0).await.unwrap();
}
