//! Servers that are unreachable or deposed: where requests go, how long they wait, and how often clients
//! connect.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::any::got;
use crate::common::*;
use leasehold_core::{Backend, Claim, FailureKind, Renewal, Share, Step};
use leasehold_redis::RedisBackend;
use leasehold_testkit::{Proxy, RedisCluster, RedisSentinel, RedisServer, Reply, Way, require, until};
use tokio::task::JoinSet;
use tokio::time::timeout;

fn long(name: &str) -> Claim {
    claim_of(name, Share::MUTEX, Duration::from_secs(120))
}

/// Asks from many tasks again and again, and says how long that took.
async fn hammer(backend: &Arc<RedisBackend>, name: &str, during: Duration) -> Duration {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..30 {
        let (backend, name) = (backend.clone(), name.to_owned());
        tasks.spawn(async move {
            while begun.elapsed() < during {
                let failure = backend.contend(&long(&name), &no_patience()).await.unwrap_err();
                assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    begun.elapsed()
}

/// The most attempts that fit into that time: the pauses double from 50 ms to a second, and are halved at
/// most. So five are shorter than a second, then there are two in each second, and five are to spare.
fn dials(during: Duration) -> u64 {
    8 + 2 * during.as_secs() + 2
}

#[tokio::test]
async fn an_address_that_leads_to_another_primary_is_followed() {
    let Some(old) = RedisServer::start_or_skip().await else { return };
    let Some(new) = RedisServer::start_or_skip().await else { return };
    let follow = async |one: &RedisServer, other: &RedisServer| {
        one.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]).await.unwrap();
    };
    follow(&new, &old).await;
    until("the replica follows", async || {
        new.info_field("master_link_status").await.unwrap().as_deref() == Some("up")
    })
    .await;
    let proxy = Proxy::start(old.addr()).await.unwrap();
    let backend = Arc::new(connect(&old.url_at(proxy.addr())).await);
    let (holder, waiter) = (long("job"), long("job"));
    let fence = try_take(&backend, &holder).await.unwrap();
    let waiting = tokio::spawn({
        let backend = backend.clone();
        async move {
            loop {
                match backend.contend(&waiter, &endless()).await {
                    Ok(Step::Granted(grant)) => return grant.fence.unwrap(),
                    Ok(Step::Busy(_)) => {}
                    Err(failure) => assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    until("it waits", async || {
        !backend.inspect(&holder.resource, None, &no_patience()).await.unwrap().waiting.is_empty()
    })
    .await;
    old.replicated(1).await.unwrap();

    // Nobody closes a connection: the old server still answers, as a replica.
    new.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    proxy.set_upstream(new.addr());
    follow(&old, &new).await;
    assert!(still_held(&backend, &holder).await);
    assert!(try_take(&backend, &long("other")).await.is_some());
    until("it listens to the new primary", async || {
        let channels = new.command(&["PUBSUB", "CHANNELS"]).await.unwrap();
        matches!(channels, Reply::Many(channels) if !channels.is_empty())
    })
    .await;
    assert!(freed(&backend, &holder).await);
    assert!(timeout(LIMIT, waiting).await.unwrap().unwrap() > fence);
}

/// A client that only looks is never refused a write.
#[tokio::test]
async fn a_client_that_only_looks_leaves_a_deposed_server() {
    for options in ["", "?dialect=plain", "?dialect=redisson"] {
        let Some(old) = RedisServer::start_or_skip().await else { return };
        let Some(new) = RedisServer::start_or_skip().await else { return };
        let [before, job, other] = ["job", "job", "other"].map(long);
        assert!(got(&*open(&format!("{}{options}", old.url())).await, &before).await);
        let proxy = Proxy::start(old.addr()).await.unwrap();
        let url = format!("{}{options}", old.url_at(proxy.addr()));
        let (looks, lists) = (open(&url).await, open(&url).await);
        let holder = async || {
            let seen = in_the_end(async || looks.inspect(&job.resource, None, &no_patience()).await).await;
            seen.holders.first().map(|holder| holder.id)
        };
        let listed = async || in_the_end(async || lists.list("", None, 10).await).await.len();
        assert_eq!((holder().await, listed().await), (Some(before.id), 1), "{options}");

        // Nobody closes a connection: the old server still answers, as a replica that has lost its primary.
        old.command(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
        proxy.set_upstream(new.addr());
        let holds = open(&format!("{}{options}", new.url())).await;
        assert!(got(&*holds, &job).await && got(&*holds, &other).await);
        assert_eq!(holder().await, Some(job.id), "{options}: the old server answers");
        until("it lists what the new primary has", async || listed().await == 2).await;
    }
}

/// An answer that a lock is held needs no write, and a lock of another library may have no end.
#[tokio::test]
async fn a_contender_leaves_a_deposed_server() {
    // For the native dialect: a single value whose waiters are notified, and a sorted set.
    let single = "SET {lh:NAME}:held 0123456789abcdef0123456789abcdef:1:1!1:theirs";
    let several = "ZADD {lh:NAME}:held 9999999999999 0123456789abcdef0123456789abcdef:1:1";
    let held = [
        ("?dialect=plain", "SET NAME theirs"),
        ("?dialect=python-redis-lock", "SET lock:NAME theirs"),
        ("?dialect=redisson&wait=poll", "HSET NAME theirs:1 1"),
        ("", single),
        ("?order=unordered", single),
        ("?order=unordered", several),
    ];
    for (options, take) in held {
        let Some(old) = RedisServer::start_or_skip().await else { return };
        let Some(new) = RedisServer::start_or_skip().await else { return };
        let [tried, awaited] = ["tried", "awaited"].map(long);
        for claim in [&tried, &awaited] {
            let take = take.replace("NAME", claim.resource.as_str());
            old.command(&take.split(' ').collect::<Vec<_>>()).await.unwrap();
        }
        let proxy = Proxy::start(old.addr()).await.unwrap();
        let url = format!("{}{options}", old.url_at(proxy.addr()));
        let (tries, waits) = (open(&url).await, open(&url).await);
        assert!(!got(&*tries, &tried).await && !got(&*waits, &awaited).await, "{options}");

        // Nobody closes a connection: the old server still answers, as a replica that has lost its primary.
        old.command(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
        proxy.set_upstream(new.addr());
        let step = in_the_end(async || tries.contend(&tried, &no_patience()).await).await;
        assert!(matches!(step, Step::Granted(_)), "{options}: the old server answers {step:?}");
        let waiting = async {
            loop {
                match in_the_end(async || waits.contend(&awaited, &endless()).await).await {
                    Step::Granted(_) => break,
                    Step::Busy(hint) => tokio::time::sleep(hint.ask_again_in.unwrap_or_default()).await,
                }
            }
        };
        timeout(LIMIT, waiting).await.unwrap_or_else(|_| panic!("{options}: it waits at the old server"));
    }
}

#[tokio::test]
async fn a_primary_that_becomes_one_again_is_met_again() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let backend = Arc::new(connect(&server.url()).await);
    let claim = long("job");
    try_take(&backend, &claim).await.unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    let before = server.counts().await.unwrap();
    let during = hammer(&backend, "other", Duration::from_secs(3)).await;
    let made = server.counts().await.unwrap().since(&before).accepted;
    assert!(made > 0 && made <= dials(during), "{made} connections in {during:?}");
    server.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    assert!(still_held(&backend, &claim).await);
}

#[tokio::test]
async fn many_requests_wait_for_one_attempt_to_connect() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let backend = Arc::new(connect(&server.url_at(proxy.addr())).await);
    let claim = long("job");
    try_take(&backend, &claim).await.unwrap();
    server.kill().unwrap();
    // The proxy accepts, finds no server behind it, and closes. The end of an idle connection is noticed with a request.
    assert!(matches!(renew(&backend, &claim).await, Renewal::Unknown(_)));
    until("the end is noticed", async || proxy.connections() == 0).await;
    let before = proxy.accepted();
    let during = hammer(&backend, "other", Duration::from_secs(3)).await;
    let made = proxy.accepted() - before;
    assert!(made > 1 && made <= dials(during), "{made} connections in {during:?}");
    server.restart(leasehold_testkit::Data::Keep).await.unwrap();
    // It gets an answer. A server that was killed may have forgotten the claim.
    let _is_held = still_held(&backend, &claim).await;
}

#[tokio::test]
async fn limit_holds_without_a_connection() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    // A minute to connect, and leases that are renewed for less than that.
    let backend = connect(&format!("{}?timeout=1m", server.url_at(proxy.addr()))).await;
    let claim = long("job");
    try_take(&backend, &claim).await.unwrap();
    let claim = claim.ttl(Duration::from_secs(2));
    proxy.blackhole(Way::Both);
    let begun = Instant::now();
    for _ in 0..4 {
        let answer = renew(&backend, &claim).await;
        let Renewal::Unknown(failure) = answer else { panic!("nothing can answer: {answer:?}") };
        assert_eq!(failure.kind, FailureKind::Unavailable);
    }
    // Four requests for leases of 2 s. With the minute of `timeout` they would take four minutes.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    proxy.heal().unwrap();
    // It gets an answer.
    let _is_held = still_held(&backend, &claim).await;
}

#[tokio::test]
async fn sentinels_are_asked_over_one_connection_each() {
    let builder = RedisSentinel::builder().proxies().down_after(LIMIT);
    let Some(group) = builder.start_or_skip().await else { return };
    let backend = Arc::new(connect(&format!("{}?timeout=1s", group.url())).await);
    let accepted = || (0..3).map(|number| group.sentinel_proxy(number).unwrap().accepted()).sum::<u64>();
    group.kill(0).unwrap();
    let before = accepted();
    hammer(&backend, "job", Duration::from_secs(4)).await;
    // More than one each where a busy machine makes one answer late; a connection for each question
    // would be hundreds.
    assert!(accepted() - before <= 24, "{} connections", accepted() - before);
}

/// A cluster that does not take a slow member for a dead one.
async fn cluster(replicas: usize) -> Option<RedisCluster> {
    RedisCluster::builder().replicas(replicas).node_timeout(2 * LIMIT).start_or_skip().await
}

async fn owner(cluster: &RedisCluster, name: &str) -> usize {
    let slot = cluster.slot_of(&format!("lh:{name}")).await.unwrap();
    cluster.primary_of(slot).await.unwrap()
}

/// A name that the member decides over.
async fn name_at(cluster: &RedisCluster, member: usize) -> String {
    for number in 0.. {
        let name = format!("job-{number}");
        if owner(cluster, &name).await == member {
            return name;
        }
    }
    unreachable!("each member has a third of all names")
}

#[tokio::test]
async fn a_cluster_is_opened_while_a_primary_is_down() {
    let Some(cluster) = cluster(1).await else { return };
    let (well, ill) = (name_at(&cluster, 1).await, name_at(&cluster, 0).await);
    let before = connect(&cluster.url()).await;
    cluster.kill(0).unwrap();
    let backend = connect(&format!("{}?timeout=2s", cluster.url())).await;
    assert_eq!(backend.profile(), before.profile(), "its replica speaks for it");
    persist(&backend, &long(&well)).await;
    let failure = backend.contend(&long(&ill), &no_patience()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
}

#[tokio::test]
async fn unreachable_primary_weakens_the_promises_of_a_cluster() {
    let Some(cluster) = cluster(0).await else { return };
    let well = name_at(&cluster, 1).await;
    cluster.kill(0).unwrap();
    let backend = connect(&format!("{}?timeout=2s", cluster.url())).await;
    assert_eq!(backend.profile().durability, leasehold_core::Durability::Evictable);
    persist(&backend, &long(&well)).await;
    for member in [1, 2] {
        cluster.kill(member).unwrap();
    }
    let config = leasehold_redis::RedisConfig::parse(&format!("{}?timeout=2s", cluster.url())).unwrap();
    assert_eq!(RedisBackend::connect(config).await.unwrap_err().kind, FailureKind::Unavailable);
}

#[tokio::test]
async fn slot_owners_are_asked_seldom_and_until_the_deadline() {
    let Some(cluster) = cluster(0).await else { return };
    let limit = Duration::from_secs(13);
    let backend = Arc::new(connect(&format!("{}?timeout=13s", cluster.url())).await);
    let ill = name_at(&cluster, 0).await;
    cluster.kill(0).unwrap();
    let asked = async || {
        let mut sum = 0;
        for member in [1, 2] {
            sum += cluster.member(member).counts().await.unwrap().of("cluster|nodes");
        }
        sum
    };
    // Warm: the server was just lost.
    backend.contend(&claim_of(&ill, Share::MUTEX, Duration::from_secs(1)), &no_patience()).await.unwrap_err();
    let (before, begun) = (asked().await, Instant::now());
    let mut tasks = JoinSet::new();
    for _ in 0..200 {
        let (backend, ill) = (backend.clone(), ill.clone());
        tasks.spawn(async move {
            let begun = Instant::now();
            let failure = backend.contend(&long(&ill), &no_patience()).await.unwrap_err();
            assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
            begun.elapsed()
        });
    }
    while let Some(took) = tasks.join_next().await {
        assert!(took.unwrap() >= limit, "a request is given up before its time");
    }
    let (asked, during) = (asked().await - before, begun.elapsed());
    // Pauses of 200 ms at least once they have grown, and the next server is asked as well where one is
    // slow to answer.
    assert!(asked <= 30 + 10 * during.as_secs(), "asked {asked} times in {during:?}");
}

#[tokio::test]
async fn a_referral_is_followed_by_whichever_name() {
    let Some(cluster) = cluster(0).await else { return };
    if is_before_7(cluster.member(0)).await {
        return require::skip(
            "redis-7",
            "a Redis before 7.0 names the servers of its cluster by address alone",
        );
    }
    for kind in ["hostname", "unknown-endpoint"] {
        for member in 0..cluster.members() {
            let server = cluster.member(member);
            server.command(&["CONFIG", "SET", "cluster-announce-hostname", "localhost"]).await.unwrap();
            server.command(&["CONFIG", "SET", "cluster-preferred-endpoint-type", kind]).await.unwrap();
        }
        cluster.settle().await.unwrap();
        let backend = connect(&format!("{}?wait=poll", cluster.url())).await;
        // From the server of the lowest epoch: to another one a fence can only go once the move has ended.
        let name = name_at(&cluster, 0).await;
        let (holder, waiter) = (long(&name), long(&name));
        let fence = try_take(&backend, &holder).await.unwrap();
        // With one that waits all keys are there, and a script that names all of them can run where they
        // have arrived.
        assert!(matches!(backend.contend(&waiter, &endless()).await.unwrap(), Step::Busy(_)));
        let slot = cluster.slot_of(&format!("lh:{name}")).await.unwrap();
        let moving = cluster.begin_move(slot, 1).await.unwrap();
        while cluster.move_keys(&moving, 100).await.unwrap() > 0 {}
        // The old owner has none of the keys any more, and refers each request to the new one.
        assert!(matches!(renew(&backend, &holder).await, Renewal::Renewed), "{kind}");
        assert!(try_take(&backend, &long(&name)).await.is_none(), "{kind}");
        cluster.end_move(&moving).await.unwrap();
        assert!(freed(&backend, &holder).await, "{kind}");
        assert!(take(&backend, &waiter, &endless()).await.unwrap().fence.unwrap() > fence, "{kind}");
        assert!(freed(&backend, &waiter).await, "{kind}");
    }
}

#[tokio::test]
async fn waiters_of_a_primary_that_died_listen_to_its_successor() {
    let Some(cluster) = cluster(1).await else { return };
    let url = format!("{}?timeout=2s", cluster.url());
    let (one, two) = (connect(&url).await, Arc::new(connect(&url).await));
    let (holder, waiter) = (long("job"), long("job"));
    let slot = cluster.slot_of("lh:job").await.unwrap();
    let old = cluster.primary_of(slot).await.unwrap();
    let replica = cluster.replica_of(old).await.unwrap();
    persist(&one, &holder).await;
    let waiting = tokio::spawn({
        let (two, waiter) = (two.clone(), waiter.clone());
        async move {
            loop {
                match two.contend(&waiter, &endless()).await {
                    Ok(Step::Granted(grant)) => return grant.fence.unwrap(),
                    Ok(Step::Busy(_)) => {}
                    Err(failure) => assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}"),
                }
            }
        }
    });
    let listeners = async |member: usize| {
        let server = cluster.member(member);
        let which = if is_before_7(server).await { "CHANNELS" } else { "SHARDCHANNELS" };
        let channels = server.command(&["PUBSUB", which]).await.unwrap();
        matches!(channels, Reply::Many(channels) if !channels.is_empty())
    };
    until("it listens", async || listeners(old).await).await;
    cluster.member(old).replicated(1).await.unwrap();
    // It dies silently: nothing is closed.
    cluster.stop(old).unwrap();
    cluster.member(replica).command(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await.unwrap();
    let begun = Instant::now();
    until("it listens to the successor", async || listeners(replica).await).await;
    println!("listens to the successor {:?} after the takeover", begun.elapsed());
    assert!(still_held(&one, &holder).await);
    any::release_until_answered(&one, &holder).await;
    timeout(LIMIT, waiting).await.unwrap().unwrap();
}
