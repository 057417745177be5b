//! Logins, TLS, servers that cannot be used, and what `doctor` says of a server.

use std::time::Duration;

use crate::common::*;
use leasehold_core::{FailureKind, Finding, Severity};
use leasehold_testkit::{MemcachedServer, RedisServer};

#[tokio::test]
async fn a_login_is_needed_where_the_server_asks_for_one() {
    let Some(server) = MemcachedServer::builder().login("me", "s3cret").start_or_skip().await else { return };
    for url in [server.url(), format!("{}?dialect=plain", server.url())] {
        let backend = connect(&url).await;
        let claim = mutex("job");
        hold(&*backend, &claim).await;
        assert!(freed(&*backend, &claim).await);
        assert_eq!(severity(&backend.diagnose(Duration::from_secs(30)).await, "login"), Severity::Good);
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "s3cret\n").unwrap();
    let url = format!("memcached://me@{}?password-file={}", server.addr(), file.display());
    hold(&*connect(&url).await, &mutex("by-file")).await;

    let wrong = open(&format!("memcached://me:wrong@{}", server.addr())).await.unwrap_err();
    assert_eq!(wrong.kind, FailureKind::Denied);
    assert!(
        wrong.detail().contains("check user and password") && !wrong.detail().contains("wrong@"),
        "{wrong}"
    );
    // A password is never sent to a server that does not ask for one: it would keep it as an item.
    let open_to_all = MemcachedServer::start().await.unwrap();
    let failure = open(&format!("memcached://me:s3cret@{}", open_to_all.addr())).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Invalid);
    assert!(failure.detail().contains("asks nobody"), "{failure}");
    assert_eq!(open_to_all.stat("cmd_set").await.unwrap(), 0);

    let none = open(&format!("memcached://{}", server.addr())).await.unwrap_err();
    assert_eq!(none.kind, FailureKind::Denied);
    assert!(none.detail().contains("user:password@host"), "{none}");
}

#[tokio::test]
async fn tls_verifies_the_server() {
    let Some(server) = MemcachedServer::builder().tls().start_or_skip().await else { return };
    let (url, ca) = (server.tls_url().unwrap(), server.ca_path().unwrap().display().to_string());
    for dialect in ["native", "plain"] {
        let backend = connect(&format!("{url}?ca={ca}&dialect={dialect}")).await;
        let claim = mutex(dialect);
        hold(&*backend, &claim).await;
        // The other port of the same server sees it.
        let clear = connect(&format!("{}?dialect={dialect}", server.url())).await;
        assert!(try_take(&*clear, &mutex(dialect)).await.unwrap().is_none());
        assert_eq!(clear.list("", None, 10).await.unwrap().len(), 1);
        assert_eq!(backend.list("", None, 10).await.unwrap().len(), 1);
        assert!(freed(&*backend, &claim).await);
    }
    let stranger = MemcachedServer::builder().tls().start().await.unwrap();
    let other = stranger.ca_path().unwrap().display().to_string();
    let failure = open(&format!("{url}?ca={other}")).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Denied);
    assert!(failure.detail().contains("?ca=path"), "{failure}");
    let clear = format!("memcacheds://{}?ca={ca}&timeout=2s", server.addr());
    let failure = open(&clear).await.unwrap_err();
    assert!(failure.is_transient() && failure.detail().contains("TLS"), "{failure}");
}

#[tokio::test]
async fn a_server_without_numbers_or_of_another_kind_is_refused() {
    let Some(server) = MemcachedServer::builder().arg("-C").start_or_skip().await else { return };
    let failure = open(&server.url()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.detail().contains("without -C"), "{failure}");

    let Some(redis) = RedisServer::start_or_skip().await else { return };
    let failure = open(&format!("memcached://{}?timeout=1s", redis.addr())).await.unwrap_err();
    assert!(failure.detail().contains("memcached"), "{failure}");
}

#[tokio::test]
async fn what_is_not_ours_is_left_untouched() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    server.ask("ms lh:job 5 T60\r\nhello", "\r\n").await.unwrap();
    let native = connect(&server.url()).await;
    let failure = try_take(&*native, &mutex("job")).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Foreign, "{failure}");

    // Another library's lock is respected and shown; it is broken only by one who saw it.
    let plain = connect(&format!("{}?dialect=plain&prefix=lh:", server.url())).await;
    let ours = mutex("job");
    assert!(try_take(&*plain, &ours).await.unwrap().is_none());
    assert!(matches!(release(&*plain, &ours).await, leasehold_core::Release::Gone));
    assert_eq!(server.ask("mg lh:job v", "\r\nhello\r\n").await.unwrap(), "VA 5\r\nhello\r\n");
    let seen = plain.inspect(&ours.resource, None, &no_patience()).await.unwrap();
    let mut theirs = mutex("job");
    theirs.id = seen.holders[0].id;
    assert!(freed(&*plain, &theirs).await);
    hold(&*plain, &ours).await;
}

/// A program that adds the bare name of a lock, and leasehold without a prefix, use the same key.
#[tokio::test]
async fn lock_without_a_prefix_is_an_item_of_its_own_name() {
    let Some(server) = MemcachedServer::start_or_skip().await else { return };
    let plain = connect(&format!("{}?dialect=plain&prefix=", server.url())).await;
    assert_eq!(server.ask("ms nightly 2 ME T60\r\nme", "\r\n").await.unwrap(), "HD\r\n");
    let ours = mutex("nightly");
    assert!(try_take(&*plain, &ours).await.unwrap().is_none());
    assert_eq!(server.ask("md nightly", "\r\n").await.unwrap(), "HD\r\n");
    hold(&*plain, &ours).await;
    assert_eq!(server.ask("ms nightly 2 ME T60\r\nme", "\r\n").await.unwrap(), "NS\r\n");
}

#[tokio::test]
async fn an_examination_names_what_hurts_locks() {
    let Some(server) = MemcachedServer::builder().memory_mb(8).start_or_skip().await else { return };
    let backend = connect(&server.url()).await;
    let findings = backend.diagnose(Duration::from_secs(2)).await;
    for (topic, expected) in [
        ("durability", Severity::Risk),
        ("version", Severity::Good),
        ("eviction", Severity::Risk),
        ("memory", Severity::Good),
        ("uptime", Severity::Notice),
        ("ttl", Severity::Notice),
        ("login", Severity::Risk),
    ] {
        assert_eq!(severity(&findings, topic), expected, "{topic}: {findings:?}");
    }
    assert!(
        findings.iter().all(|finding| finding.severity < Severity::Unknown || !finding.advice.is_empty())
    );
    server.fill(80_000, 200).await.unwrap();
    let findings = backend.diagnose(Duration::from_secs(30)).await;
    assert_eq!(severity(&findings, "memory"), Severity::Risk, "{findings:?}");
    assert_eq!(severity(&findings, "ttl"), Severity::Good);

    let careful = MemcachedServer::builder().arg("-o").arg("temporary_ttl=86400").start().await.unwrap();
    let refusing = MemcachedServer::builder().without_evictions().start().await.unwrap();
    let away = MemcachedServer::start().await.unwrap();
    let hosts = [&careful, &refusing, &away].map(|server| server.addr().to_string());
    let backend = connect(&format!("memcached://{}", hosts.join(","))).await;
    away.kill().unwrap();
    let findings = backend.diagnose(Duration::from_secs(30)).await;
    assert_eq!(severity(&findings, "servers"), Severity::Notice);
    assert_eq!(severity(&findings, "server"), Severity::Broken);
    let evictions: Vec<Severity> = findings
        .iter()
        .filter(|finding| finding.topic == "eviction")
        .map(|finding| finding.severity)
        .collect();
    assert_eq!(evictions, [Severity::Good, Severity::Notice]);
}

fn severity(findings: &[Finding], topic: &str) -> Severity {
    let found = findings.iter().find(|finding| finding.topic == topic);
    found.map(|finding| finding.severity).unwrap()
}
