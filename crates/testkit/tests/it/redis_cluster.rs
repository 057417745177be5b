//! The Redis Cluster of the kit: it serves, and its faults are what they say.

use leasehold_testkit::{Data, RedisCluster, RedisServer, Reply, Tls};

async fn set(cluster: &RedisCluster, member: usize, key: &str) -> Result<Reply, String> {
    cluster.member(member).command(&["SET", key, "1"]).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn every_slot_has_a_serving_primary_and_a_replica() {
    let Some(cluster) = RedisCluster::start_or_skip().await else { return };
    assert_eq!(cluster.members(), 6);
    for (slot, primary) in [(0, 0), (5461, 1), (16_383, 2)] {
        assert_eq!(cluster.primary_of(slot).await.unwrap(), primary);
        assert_eq!(cluster.replica_of(primary).await.unwrap(), primary + 3);
    }
    assert_eq!(cluster.slot_of("{lh:a}:held").await.unwrap(), cluster.slot_of("lh:a").await.unwrap());
    let slot = cluster.slot_of("a").await.unwrap();
    let owner = cluster.primary_of(slot).await.unwrap();
    set(&cluster, owner, "a").await.unwrap();
    let refusal = set(&cluster, (owner + 1) % 3, "a").await.unwrap_err();
    assert_eq!(refusal, format!("MOVED {slot} {}", cluster.addr(owner)));
}

#[tokio::test]
async fn a_replica_takes_over_from_a_killed_primary_and_in_order() {
    let Some(cluster) = RedisCluster::start_or_skip().await else { return };
    let slot = cluster.slot_of("a").await.unwrap();
    let old = cluster.primary_of(slot).await.unwrap();
    cluster.kill(old).unwrap();
    let new = cluster.promoted(slot, old).await.unwrap();
    set(&cluster, new, "a").await.unwrap();
    cluster.restart(old, Data::Lose).await.unwrap();
    cluster.settle().await.unwrap();
    assert_eq!(cluster.replica_of(new).await.unwrap(), old);
    assert_eq!(cluster.fail_over(new).await.unwrap(), old);
    cluster.settle().await.unwrap();
    assert_eq!(cluster.primary_of(slot).await.unwrap(), old);
    assert_eq!(cluster.member(old).command(&["GET", "a"]).await.unwrap(), Reply::Bytes(b"1".to_vec()));
}

#[tokio::test]
async fn slot_moves_with_its_keys_and_redirects() {
    let server = RedisServer::builder().password("secret");
    let Some(cluster) = RedisCluster::builder().replicas(0).server(server).start_or_skip().await else {
        return;
    };
    let slot = cluster.slot_of("a").await.unwrap();
    let from = cluster.primary_of(slot).await.unwrap();
    let to = (from + 1) % 3;
    set(&cluster, from, "a").await.unwrap();
    let moving = cluster.begin_move(slot, to).await.unwrap();
    assert_eq!((moving.from, moving.to), (from, to));
    set(&cluster, from, "a").await.unwrap();
    assert_eq!(cluster.move_keys(&moving, 10).await.unwrap(), 1);
    assert_eq!(set(&cluster, from, "a").await.unwrap_err(), format!("ASK {slot} {}", cluster.addr(to)));
    assert_eq!(set(&cluster, to, "a").await.unwrap_err(), format!("MOVED {slot} {}", cluster.addr(from)));
    assert_eq!(cluster.move_keys(&moving, 10).await.unwrap(), 0);
    cluster.end_move(&moving).await.unwrap();
    cluster.settle().await.unwrap();
    assert_eq!(cluster.primary_of(slot).await.unwrap(), to);
    assert_eq!(cluster.member(to).command(&["GET", "a"]).await.unwrap(), Reply::Bytes(b"1".to_vec()));
}

#[tokio::test]
async fn whole_cluster_supports_tls() {
    let server = RedisServer::builder().tls(Tls::Mutual);
    let Some(cluster) = RedisCluster::builder().server(server).start_or_skip().await else { return };
    assert!(cluster.url().starts_with("rediss+cluster://127.0.0.1:"));
    assert_eq!(cluster.addr(2).port(), cluster.member(2).tls_addr().unwrap().port());
    // They found each other and replicate, so they speak it among themselves.
    assert_eq!(cluster.replica_of(2).await.unwrap(), 5);
}
