//! Ways to a server: passwords, rights, TLS, Unix sockets.

use std::time::Duration;

use crate::common::*;
use leasehold_core::{Backend, Durability, Effect, Failure, FailureKind, FenceGrade, Put, QueueOrder};
use leasehold_redis::{RedisBackend, RedisConfig};
use leasehold_testkit::{Appendonly, Proxy, RedisServer, Tls, Way};

async fn try_connect(url: &str) -> Result<RedisBackend, Failure> {
    RedisBackend::connect(RedisConfig::parse(url).unwrap()).await
}

async fn denied(url: &str, hint: &str) {
    let failure = try_connect(url).await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Denied, Effect::None), "{failure}");
    assert!(failure.detail().contains(hint), "{failure}");
    assert!(!format!("{failure:?} {failure}").contains("secret"), "{failure:?}");
}

/// Takes, waits for, is called for, renews, looks, lists and releases: all that a client does.
async fn works(url: &str) {
    let backend = try_connect(url).await.unwrap();
    let (holder, waiter) = (mutex("job"), mutex("job"));
    let fence = try_take(&backend, &holder).await;
    assert!(fence.is_some() && try_take(&backend, &holder).await == fence);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(renewed(&backend, &holder).await);
    let in_line = usize::from(backend.profile().order == QueueOrder::Fifo);
    let limit = patience(Duration::from_secs(5));
    let taking = take(&backend, &waiter, &limit);
    let releasing = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(backend.list("", None, 5).await.unwrap().len(), 1);
        let seen = backend.inspect(&holder.resource, None, &no_patience()).await.unwrap();
        assert_eq!((seen.holders.len(), seen.waiting.len()), (1, in_line));
        assert!(freed(&backend, &holder).await);
    };
    assert!(tokio::join!(taking, releasing).0.is_some());
    assert!(try_take(&backend, &waiter).await.is_some(), "the same claim asks again");
    assert!(freed(&backend, &waiter).await);

    let (registers, at) = (backend.registers().unwrap(), &holder.resource);
    let seen = registers.read(at).await.unwrap();
    let put = Put { value: Some(b"value".to_vec()), keep: None };
    let stamp = registers.swap(at, &seen.stamp, &put).await.unwrap().unwrap();
    assert!(registers.swap(at, &stamp, &Put { value: None, keep: None }).await.unwrap().is_some());
}

/// The rules as the documentation has them, to be pasted.
fn documented_rules() -> String {
    let docs = include_str!("../../src/docs.md");
    let line = docs.lines().find_map(|line| line.strip_prefix("ACL SETUSER jobs on >secret ")).unwrap();
    line.to_owned()
}

#[tokio::test]
async fn the_documented_rights_are_enough() {
    let builder = RedisServer::builder().password("root").acl_user("jobs", "secret", &documented_rules());
    let Some(server) = builder.start_or_skip().await else { return };
    works(&format!("redis://jobs:secret@{}", server.addr())).await;
    works(&format!("redis://jobs:secret@{}/1?wait=poll", server.addr())).await;
    works(&format!("redis://jobs:secret@{}?order=unordered", server.addr())).await;
    let other = try_connect(&format!("redis://jobs:secret@{}?prefix=other", server.addr())).await.unwrap();
    let failure = other.contend(&mutex("job"), &no_patience()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
    assert!(failure.detail().contains(&documented_rules()), "the failure says the same: {failure}");
}

#[tokio::test]
async fn each_documented_right_is_needed() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let rules = documented_rules();
    // Not needed by what this test does: databases, what only the profile asks, and what only a
    // forgetful server needs.
    let spared =
        ["+select", "+info", "+config|get", "+script|load", "+unsubscribe", "+hmget", "+zrank", "+zcard"];
    for right in rules.split(' ').filter(|rule| rule.starts_with('+') && !spared.contains(rule)) {
        let fewer = rules.replace(&format!(" {right} "), " ");
        let args: Vec<&str> = ["ACL", "SETUSER", "jobs", "reset", "on", ">secret"]
            .into_iter()
            .chain(fewer.split(' '))
            .collect();
        server.flushall().await.unwrap();
        server.command(&args).await.unwrap();
        let url = format!("redis://jobs:secret@{}?timeout=10s", server.addr());
        let outcome = tokio::time::timeout(LIMIT, tokio::spawn(async move { works(&url).await }));
        let outcome = outcome.await.unwrap();
        assert!(outcome.is_err(), "{right} is not needed");
    }
}

#[tokio::test]
async fn without_the_right_to_ask_the_weaker_is_assumed() {
    let rules = documented_rules().replace(" +info", "").replace(" +config|get", "");
    let builder = RedisServer::builder()
        .acl_user("jobs", "secret", &rules)
        .persistence(Appendonly::Always)
        .arg("--maxmemory-policy")
        .arg("noeviction");
    let Some(server) = builder.start_or_skip().await else { return };
    let url = format!("redis://jobs:secret@{}?timeout=30s", server.addr());
    works(&url).await;
    let profile = try_connect(&url).await.unwrap().profile().clone();
    assert_eq!((profile.fencing, profile.durability), (FenceGrade::BestEffort, Durability::Evictable));
    let profile = try_connect(&server.url()).await.unwrap().profile().clone();
    assert_eq!((profile.fencing, profile.durability), (FenceGrade::Strict, Durability::Strict));
}

#[tokio::test]
async fn without_the_right_to_subscribe_waiting_says_so() {
    let rules = documented_rules().replace(" +subscribe", "");
    let builder = RedisServer::builder().acl_user("jobs", "secret", &rules);
    let Some(server) = builder.start_or_skip().await else { return };
    let backend = try_connect(&format!("redis://jobs:secret@{}", server.addr())).await.unwrap();
    let holder = mutex("job");
    try_take(&backend, &holder).await.unwrap();
    let failure = backend.contend(&mutex("job"), &endless()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
    assert!(failure.detail().contains("+subscribe"), "{failure}");
    let seen = backend.inspect(&holder.resource, None, &no_patience()).await.unwrap();
    assert!(seen.waiting.is_empty(), "it left the line");
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_denied_with_advice() {
    let builder = RedisServer::builder().password("secret%/@").acl_user("jobs", "secret", "+ping");
    let Some(server) = builder.start_or_skip().await else { return };
    let at = server.addr();
    denied(&format!("redis://{at}"), "LEASEHOLD_REDIS_PASSWORD").await;
    denied(&format!("redis://:wrong-secret@{at}"), "check user and password").await;
    denied(&format!("redis://nobody:secret@{at}"), "check user and password").await;
    let failure = try_connect(&format!("redis://:secret%25%2F%40@{at}/99")).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported, "it was let in: {failure}");
    assert!(failure.detail().contains("fewer databases"), "{failure}");
    works(&server.url()).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("password");
    std::fs::write(&path, "secret%/@\n").unwrap();
    works(&format!("redis://{at}?password-file={}", path.display())).await;

    let backend = try_connect(&format!("redis://jobs:secret@{at}")).await.unwrap();
    let failure = backend.contend(&mutex("job"), &no_patience()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
    assert!(failure.detail().contains("+evalsha"), "{failure}");
}

#[tokio::test]
async fn a_password_for_a_server_without_one_is_denied_with_advice() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    denied(&format!("redis://:secret@{}", server.addr()), "leave it out").await;
}

#[tokio::test]
async fn a_unix_socket_works() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    works(&server.unix_url()).await;
    works(&format!("{}?db=2", server.unix_url())).await;
    let failure = try_connect("redis+unix:///nowhere/redis.sock").await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None));
    assert!(failure.detail().contains("/nowhere/redis.sock"), "{failure}");
}

#[tokio::test]
async fn tls_is_verified() {
    let Some(server) = RedisServer::builder().tls(Tls::Server).start_or_skip().await else { return };
    let (url, ca) = (server.tls_url().unwrap(), server.ca_path().unwrap().display().to_string());
    works(&format!("{url}?ca={ca}")).await;
    denied(&url, "?ca=path").await;
    let other = RedisServer::builder().tls(Tls::Server).start().await.unwrap();
    denied(&format!("{url}?ca={}", other.ca_path().unwrap().display()), "?ca=path").await;
    // The certificate names another host than this.
    let named = format!("rediss://localhost.localdomain:{}?ca={ca}", server.tls_addr().unwrap().port());
    if let Err(failure) = try_connect(&named).await {
        assert!(matches!(failure.kind, FailureKind::Denied | FailureKind::Unavailable), "{failure}");
    } else {
        panic!("a certificate of another name was accepted");
    }
    let failure = try_connect(&format!("{url}?ca=/nowhere/ca.pem")).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Invalid);
    assert!(failure.detail().contains("/nowhere/ca.pem"), "{failure}");
}

#[tokio::test]
async fn a_server_may_ask_for_a_certificate() {
    let Some(server) = RedisServer::builder().tls(Tls::Mutual).start_or_skip().await else { return };
    let certificates = server.certificates().unwrap();
    let ca = format!("{}?ca={}", server.tls_url().unwrap(), certificates.ca_path().display());
    let client = certificates.client();
    works(&format!("{ca}&cert={}&key={}", client.certificate.display(), client.key.display())).await;
    let failure = try_connect(&ca).await.unwrap_err();
    assert_eq!(failure.effect, Effect::None);
    assert!(failure.detail().contains("cert=path&key=path"), "{failure}");
}

#[tokio::test]
async fn wrong_protocol_is_reported() {
    let Some(server) = RedisServer::builder().tls(Tls::Server).start_or_skip().await else { return };
    let plain = format!("rediss://{}?timeout=500ms", server.addr());
    let plain = try_connect(&plain).await.unwrap_err();
    assert!(plain.detail().contains("TLS"), "{plain}");
    let secured = format!("redis://{}?timeout=500ms", server.tls_addr().unwrap());
    let failure = try_connect(&secured).await.unwrap_err();
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_is_given_up() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    proxy.blackhole(Way::Both);
    let url = format!("redis://{}/1?timeout=200ms", proxy.addr());
    let begun = std::time::Instant::now();
    let failure = try_connect(&url).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
    assert!(begun.elapsed() < Duration::from_secs(5), "not the default: {:?}", begun.elapsed());
}
