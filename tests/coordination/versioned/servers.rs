//! Updates over a connection that loses the answers of a server, and names that another program uses.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::{Client, ErrorKind, UpdateOutcome, Versioned};
use leasehold_testkit::{EtcdCluster, MemcachedServer, PostgresServer, Proxy, RedisServer, Reply};
use leasehold_tests::opened;

use super::stores::{number, plus_one};
use crate::fixture::within;

async fn add_one(value: &Versioned) -> leasehold::Result<UpdateOutcome> {
    value.update(|old| Some(plus_one(old))).await
}

/// Updates while every answer is lost for a while: what succeeds in the end was made once.
async fn lost_answers_are_found_out(server: SocketAddr, url_at: impl Fn(SocketAddr) -> String) {
    let proxy = Proxy::start(server).await.unwrap();
    let (through, direct) = (opened(&url_at(proxy.addr())).await, opened(&url_at(server)).await);
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
        match within(Duration::from_secs(60), "an update", updating).await.unwrap() {
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
async fn redis_update_whose_answer_is_lost_is_made_once() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    for options in ["timeout=300ms", "timeout=300ms&wait=poll&prefix=other"] {
        lost_answers_are_found_out(server.addr(), |at| format!("{}?{options}", server.url_at(at))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_update_whose_answer_is_lost_is_made_once() {
    let Some(cluster) = EtcdCluster::start_or_skip().await else { return };
    let url_at = |at| format!("{}?timeout=900ms", cluster.url_at(&[at]));
    lost_answers_are_found_out(cluster.addr(0), url_at).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_update_whose_answer_is_lost_is_made_once() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    lost_answers_are_found_out(server.addr(), |at| server.url_at(at)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memcached_update_whose_answer_is_lost_is_made_once() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    // A new server is not used for longer than the short timeout below; this client waits until it is.
    Client::open(&server.url()).await.unwrap();
    lost_answers_are_found_out(server.addr(), |at| format!("{}?timeout=300ms", server.url_at(at))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_key_of_another_program_is_refused_and_left() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
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

const LOST_ROUNDS: u64 = 3;
