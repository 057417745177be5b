//! Optimistic updates on every store that has registers: none is lost, among many and over answers that
//! are lost.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::{Client, ErrorKind, UpdateOutcome, Versioned};
use leasehold_testkit::{
    EtcdCluster, MariaDbServer, MemcachedServer, PostgresServer, Proxy, RedisCluster, RedisServer, Reply,
    ZooKeeperEnsemble,
};

fn number(bytes: Option<&[u8]>) -> u64 {
    bytes.map_or(0, |bytes| std::str::from_utf8(bytes).unwrap().parse().unwrap())
}

async fn add_one(value: &Versioned) -> leasehold::Result<UpdateOutcome> {
    value.update(|old| Some((number(old) + 1).to_string().into_bytes())).await
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.unwrap_or_else(|_| panic!("it takes too long"))
}

/// Checks the properties of updates on any store.
async fn no_update_is_lost(url: &str) {
    // First of all, because a store in memory ends with its last client.
    let locks = Client::open(url).await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..CLIENTS {
        let locks = Client::open(url).await.unwrap();
        tasks.push(tokio::spawn(async move {
            // The last one goes the pessimistic way, and is in the others' way all the same.
            let value = locks.versioned("stock/ü");
            let value = if n + 1 == CLIENTS { value.escalate_after(0) } else { value };
            let mut conflicts = 0;
            for _ in 0..UPDATES {
                conflicts += add_one(&value).await.unwrap().conflicts;
            }
            conflicts
        }));
    }
    let mut conflicts = 0;
    for task in tasks {
        conflicts += soon(task).await.unwrap();
    }
    let value = locks.versioned("stock/ü");
    let seen = value.read().await.unwrap();
    assert_eq!(number(seen.value()), (CLIENTS * UPDATES) as u64, "{url}, after {conflicts} conflicts");
    let (changed, done) = tokio::join!(value.changed(&seen, Duration::from_secs(20)), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        value.update(|_| None).await
    });
    assert_eq!((changed.unwrap().value(), done.unwrap().value), (None, None), "{url}");
}

/// Updates while every answer is lost for a while: what succeeds in the end was made once.
async fn lost_answers_are_found_out(server: SocketAddr, url_at: impl Fn(SocketAddr) -> String) {
    let proxy = Proxy::start(server).await.unwrap();
    let through = Client::open(&url_at(proxy.addr())).await.unwrap();
    let direct = Client::open(&url_at(server)).await.unwrap();
    let (value, other) = (through.versioned("stock"), direct.versioned("stock"));
    let (mut made, mut unknown) = (0, 0);
    for round in 0..LOST_ROUNDS {
        add_one(&value).await.unwrap();
        made += 1;
        proxy.drop_replies();
        let updating = tokio::spawn({
            let value = value.clone();
            async move { add_one(&value).await }
        });
        tokio::time::sleep(Duration::from_millis(150 + 70 * round)).await;
        // Another client continues from there, whether or not the update took effect.
        add_one(&other).await.unwrap();
        made += 1;
        proxy.heal().unwrap();
        match soon(updating).await.unwrap() {
            Ok(_) => made += 1,
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown += 1,
            Err(error) => panic!("neither made nor unknown: {error}"),
        }
    }
    let found = number(other.read().await.unwrap().value());
    assert!((made..=made + unknown).contains(&found), "{found}, of {made} made and {unknown} unknown");
    assert_eq!(unknown, 0, "the store was back in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory_and_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name| directory.path().join(name).display().to_string();
    for url in
        ["mem:versioned".to_owned(), format!("file:{}", path("files")), format!("sqlite:{}", path("db"))]
    {
        no_update_is_lost(&url).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    no_update_is_lost(&server.url()).await;
    no_update_is_lost(&format!("{}?wait=poll&prefix=other", server.url())).await;
    lost_answers_are_found_out(server.addr(), |at| format!("{}?timeout=300ms", server.url_at(at))).await;
    // What another program put there is refused, and left.
    let locks = Client::open(&server.url()).await.unwrap();
    for theirs in [&["SET", "{lh:theirs}:value", "text"][..], &["RPUSH", "{lh:list}:value", "text"]] {
        server.command(theirs).await.unwrap();
    }
    for name in ["theirs", "list"] {
        let error = add_one(&locks.versioned(name)).await.unwrap_err();
        assert!(error.to_string().contains("another program uses this key"), "{error}");
        let kind = server.command(&["TYPE", &format!("{{lh:{name}}}:value")]).await.unwrap();
        let expected = if name == "list" { "list" } else { "string" };
        assert_eq!(kind, Reply::Bytes(expected.as_bytes().to_vec()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_redis_cluster() {
    let Some(cluster) = RedisCluster::builder().replicas(0).start_or_skip().await else { return };
    no_update_is_lost(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd() {
    let Some(cluster) = EtcdCluster::start_or_skip().await else { return };
    no_update_is_lost(&cluster.url()).await;
    let url_at = |at| format!("{}?timeout=900ms", cluster.url_at(&[at]));
    lost_answers_are_found_out(cluster.addr(0), url_at).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper() {
    let Some(ensemble) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    no_update_is_lost(&ensemble.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    no_update_is_lost(&server.url()).await;
    lost_answers_are_found_out(server.addr(), |at| server.url_at(at)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    no_update_is_lost(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_memcached() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    no_update_is_lost(&server.url()).await;
    lost_answers_are_found_out(server.addr(), |at| format!("{}?timeout=300ms", server.url_at(at))).await;
}

/// Stores that decide by several others, or write in the form of others, have no registers, and say so.
#[tokio::test]
async fn missing_registers_are_refused_before_any_request() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let locks = Client::open(&format!("{}?dialect=plain", server.url())).await.unwrap();
    let error = add_one(&locks.versioned("stock")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("keeps no values"), "{error}");
}

const CLIENTS: usize = 4;
const UPDATES: usize = 8;
const LOST_ROUNDS: u64 = 3;
