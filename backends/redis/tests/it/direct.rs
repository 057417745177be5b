//! Direct requests, in the native dialect and in those of other libraries: what a fault leaves of them, and what is
//! said about it.

use std::sync::Arc;
use std::time::Duration;

use crate::common::any::{freed, got, release_until_answered};
use crate::common::{TTL, claim_of, in_the_end, mutex, no_patience, open};
use leasehold_core::{
    Backend, Claim, DirectAnswer, DirectRelease, DirectReply, Effect, FailureKind, Moment, Release, Share,
};
use leasehold_redis::RedisConfig;
use leasehold_testkit::{Proxy, RedisSentinel, RedisServer, until};

const DIALECTS: [&str; 4] = ["native", "plain", "python-redis-lock", "redisson"];

/// A server, and a connection in this dialect.
async fn open_dialect(dialect: &str) -> Option<(RedisServer, Arc<dyn Backend>)> {
    let server = RedisServer::start_or_skip().await?;
    let backend = open(&format!("{}?dialect={dialect}", server.url())).await;
    Some((server, backend))
}

/// Sends the request for a claim; `None` if nothing was sent.
fn sent(backend: &dyn Backend, claim: &Claim) -> Option<DirectAnswer> {
    let requests = backend.direct_requests().expect("it sends no direct requests");
    requests.ask_directly(claim, Moment::from_nanos(1))
}

async fn ask(backend: &dyn Backend, claim: &Claim) -> DirectReply {
    sent(backend, claim).expect("nothing was sent").await
}

fn send_release(backend: &dyn Backend, claim: &Claim) -> DirectRelease {
    let requests = backend.direct_requests().expect("it sends no direct requests");
    requests.release_directly(claim).expect("nothing was sent")
}

/// Makes the server know the scripts of both requests.
async fn warm_up(backend: &dyn Backend) {
    let claim = mutex("warm");
    assert!(got(backend, &claim).await && freed(backend, &claim).await);
}

#[tokio::test]
async fn direct_request_and_release_of_a_free_lock() {
    for dialect in DIALECTS {
        let Some((_server, backend)) = open_dialect(dialect).await else { return };
        warm_up(&*backend).await;
        let (claim, other) = (mutex("job"), mutex("job"));
        let DirectReply::Granted(grant) = ask(&*backend, &claim).await else {
            panic!("{dialect}: it is free")
        };
        assert_eq!(grant.asked_at, Moment::from_nanos(1), "{dialect}");
        let refused = ask(&*backend, &other).await;
        assert!(matches!(refused, DirectReply::Busy { ahead: Some(1) }), "{dialect}: {refused:?}");
        assert!(matches!(send_release(&*backend, &other).await, Release::Gone), "{dialect}");
        assert!(matches!(send_release(&*backend, &claim).await, Release::Freed), "{dialect}");
        assert!(matches!(ask(&*backend, &other).await, DirectReply::Granted(_)), "{dialect}");
    }
}

#[tokio::test]
async fn forgotten_scripts_decline_a_request_and_no_release() {
    for dialect in DIALECTS {
        let Some((server, backend)) = open_dialect(dialect).await else { return };
        let flush = async || server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        let (claim, other) = (mutex("job"), mutex("job"));
        flush().await;
        let declined = ask(&*backend, &claim).await;
        assert!(matches!(declined, DirectReply::Declined), "{dialect}: {declined:?}");
        // Nothing of it exists, and the slow path makes the script known.
        assert!(got(&*backend, &other).await && freed(&*backend, &other).await, "{dialect}");
        assert!(matches!(ask(&*backend, &claim).await, DirectReply::Granted(_)), "{dialect}");
        flush().await;
        let release = send_release(&*backend, &claim).await;
        assert!(matches!(release, Release::Freed), "{dialect}: {release:?}");
        assert!(got(&*backend, &other).await, "{dialect}");
    }
}

#[tokio::test]
async fn lost_answer_is_unknown_and_the_claim_held() {
    for dialect in DIALECTS {
        let Some(server) = RedisServer::start_or_skip().await else { return };
        let proxy = Proxy::start(server.addr()).await.unwrap();
        let backend = open(&format!("{}?timeout=20s&dialect={dialect}", server.url_at(proxy.addr()))).await;
        let seen_by = open(&format!("{}?dialect={dialect}", server.url())).await;
        let (claim, other) = (mutex("job"), mutex("job"));
        warm_up(&*backend).await;

        proxy.cut_after_request(1);
        let unanswered = ask(&*backend, &claim).await;
        assert!(matches!(unanswered, DirectReply::Unknown), "{dialect}: {unanswered:?}");
        assert!(sent(&*backend, &other).is_none(), "{dialect}: the connection has ended");
        let seen = seen_by.inspect(&claim.resource, None, &no_patience()).await.unwrap();
        assert_eq!(seen.holders[0].id, claim.id, "{dialect}: it had been granted");
        assert!(got(&*backend, &claim).await && !got(&*backend, &other).await, "{dialect}");

        proxy.cut_after_request(1);
        let release = send_release(&*backend, &claim).await;
        let Release::Unknown(failure) = release else { panic!("{dialect}: {release:?}") };
        assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::Unknown), "{failure}");
        assert!(!freed(&*backend, &claim).await, "{dialect}: it had been released");
        assert!(got(&*backend, &other).await, "{dialect}");
    }
}

/// The engine drops the answer of a caller that leaves, and releases the claim. The server hangs meanwhile.
#[tokio::test]
async fn release_of_a_dropped_request_comes_behind_it() {
    for dialect in DIALECTS {
        let Some((server, backend)) = open_dialect(&format!("{dialect}&timeout=60s")).await else { return };
        warm_up(&*backend).await;
        let (claim, other) = (mutex("job"), mutex("job"));
        server.stop().unwrap();
        drop(sent(&*backend, &claim).expect("nothing was sent"));
        let releasing = async {
            // Sent by its first poll.
            assert!(freed(&*backend, &claim).await, "{dialect}: the request had not come first");
        };
        let resuming = async { server.resume().unwrap() };
        tokio::join!(biased; releasing, resuming);
        assert!(got(&*backend, &other).await, "{dialect}");
    }
}

/// It may lag behind, and so it neither grants nor says that a claim is gone.
#[tokio::test]
async fn new_replica_neither_grants_nor_releases() {
    for dialect in DIALECTS {
        let Some((server, backend)) = open_dialect(dialect).await else { return };
        let url = format!("{}?dialect={dialect}", server.url());
        // After the first refusal a client sends nothing to that server.
        let (second, third) = (open(&url).await, open(&url).await);
        let (held, free) = (mutex("held"), mutex("free"));
        warm_up(&*backend).await;
        assert!(got(&*backend, &held).await);
        server.command(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
        let declined = ask(&*backend, &free).await;
        assert!(matches!(declined, DirectReply::Declined), "{dialect}: {declined:?}");
        for (backend, claim) in [(&second, &held), (&third, &free)] {
            let release = send_release(&**backend, claim).await;
            let Release::Unknown(failure) = release else { panic!("{dialect}: {release:?}") };
            assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
        }
        server.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
        in_the_end(async || second.contend(&free, &no_patience()).await).await;
        assert!(matches!(send_release(&*second, &held).await, Release::Freed), "{dialect}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn direct_requests_follow_a_failover() {
    let Some(group) = RedisSentinel::start_or_skip().await else { return };
    for dialect in DIALECTS {
        let backend = open(&format!("{}?dialect={dialect}", group.url())).await;
        warm_up(&*backend).await;
        let claim = mutex(&format!("before in {dialect}"));
        assert!(matches!(ask(&*backend, &claim).await, DirectReply::Granted(_)), "{dialect}");
        group.failover().await.unwrap();
        release_until_answered(&*backend, &claim).await;
        let (after, other) = (mutex(&format!("after in {dialect}")), mutex(&format!("other in {dialect}")));
        until("a direct request and its release reach the new primary", async || {
            // The slow path finds it, as soon as the Sentinels name it to this client.
            in_the_end(async || backend.contend(&other, &no_patience()).await).await;
            let Some(answer) = sent(&*backend, &after) else { return false };
            let is_granted = matches!(answer.await, DirectReply::Granted(_));
            let released = backend.direct_requests().unwrap().release_directly(&after);
            let is_freed = match released {
                Some(release) => matches!(release.await, Release::Freed),
                None => false,
            };
            release_until_answered(&*backend, &after).await;
            is_granted && is_freed
        })
        .await;
        group.settle().await.unwrap();
    }
}

#[tokio::test]
async fn claim_that_a_dialect_refuses_is_not_sent() {
    for dialect in DIALECTS {
        let Some((server, backend)) = open_dialect(dialect).await else { return };
        let mut refused = vec![claim_of("job", Share::MUTEX, Duration::from_millis(1))];
        if dialect != "native" {
            refused.push(claim_of("job", Share::permits(1, 3).unwrap(), TTL));
        }
        if dialect == "redisson" {
            refused.push(claim_of("job", Share::READER, Duration::from_secs(600)));
            refused.push(mutex("redisson_lock_token:{orders}"));
        }
        let before = server.counts().await.unwrap();
        for claim in &refused {
            assert!(sent(&*backend, claim).is_none(), "{dialect}: {claim:?}");
        }
        let since = server.counts().await.unwrap().since(&before);
        assert_eq!(since.of("evalsha"), 0, "{dialect}");
    }
}

#[tokio::test]
async fn key_of_another_type_declines_and_is_left_alone() {
    for (dialect, key) in [("plain", "job"), ("python-redis-lock", "lock:job"), ("redisson", "job")] {
        let Some((server, backend)) = open_dialect(dialect).await else { return };
        warm_up(&*backend).await;
        server.command(&["SADD", key, "theirs"]).await.unwrap();
        let before = server.command(&["DUMP", key]).await.unwrap();
        let declined = ask(&*backend, &mutex("job")).await;
        assert!(matches!(declined, DirectReply::Declined), "{dialect}: {declined:?}");
        assert!(matches!(send_release(&*backend, &mutex("job")).await, Release::Gone), "{dialect}");
        assert_eq!(server.command(&["DUMP", key]).await.unwrap(), before, "{dialect}");
    }
}

#[tokio::test]
async fn refused_release_names_the_rules_of_its_dialect() {
    for dialect in DIALECTS {
        let Some(server) = RedisServer::start_or_skip().await else { return };
        let rules = RedisConfig::parse(&format!("redis://h?dialect={dialect}")).unwrap().acl_rules();
        let set_user: Vec<&str> = ["ACL", "SETUSER", "jobs", "reset", "on", ">secret"]
            .into_iter()
            .chain(rules.split(' '))
            .collect();
        server.command(&set_user).await.unwrap();
        let backend = open(&format!("redis://jobs:secret@{}?dialect={dialect}", server.addr())).await;
        warm_up(&*backend).await;
        let claim = mutex("job");
        assert!(matches!(ask(&*backend, &claim).await, DirectReply::Granted(_)), "{dialect}");
        server.command(&["ACL", "SETUSER", "jobs", "-del"]).await.unwrap();
        let release = send_release(&*backend, &claim).await;
        let Release::Unknown(failure) = release else { panic!("{dialect}: {release:?}") };
        assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
        assert!(failure.detail().ends_with(&rules), "{failure}");
    }
}
