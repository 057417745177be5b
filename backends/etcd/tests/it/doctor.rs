//! The findings of an examination, for clusters that are in order and for some that are not.

use std::time::Duration;

use crate::common::*;
use leasehold_core::{Backend, Finding, Severity};
use leasehold_etcd::EtcdBackend;
use leasehold_testkit::EtcdCluster;

async fn diagnose(backend: &EtcdBackend) -> Vec<Finding> {
    backend.diagnose(Duration::from_secs(30)).await
}

fn topic<'a>(findings: &'a [Finding], topic: &str) -> &'a Finding {
    findings
        .iter()
        .find(|finding| finding.topic == topic)
        .unwrap_or_else(|| panic!("no {topic}: {findings:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_servers_that_lose_one_after_the_other() {
    let Some(cluster) = EtcdCluster::builder().members(3).start_or_skip().await else { return };
    let backend = connect(&format!("{}/?timeout=10s", cluster.url())).await;
    let hasty = connect(&format!("{}/?timeout=1s", cluster.url())).await;
    // The first claim brings the clock.
    freed_at_once(&backend).await;
    let findings = diagnose(&backend).await;
    for good in ["servers", "quorum", "server-answers", "alarms", "space", "shortest-lease", "clock"] {
        assert_eq!(topic(&findings, good).severity, Severity::Good, "{:?}", topic(&findings, good));
    }
    assert!(topic(&findings, "servers").found.contains("all 3"));
    assert_eq!(topic(&findings, "access").severity, Severity::Notice);
    assert!(topic(&findings, "version").found.contains("etcd 3."), "{findings:?}");
    assert_eq!(cluster.etcdctl(&["lease", "list"]).unwrap().lines().count(), 2, "a lease was left behind");

    let part = connect(&cluster.url_at(&[cluster.addr(0)])).await;
    assert_eq!(topic(&diagnose(part.as_ref()).await, "servers").severity, Severity::Notice);

    let lost = (cluster.leader().await.unwrap() + 1) % 3;
    cluster.kill(lost).unwrap();
    let findings = diagnose(&backend).await;
    let servers = topic(&findings, "servers");
    assert_eq!(servers.severity, Severity::Risk);
    assert!(servers.found.contains(&cluster.addr(lost).to_string()), "{servers:?}");
    assert_eq!(topic(&findings, "quorum").severity, Severity::Good);

    cluster.kill((lost + 1) % 3).unwrap();
    let began = clock().now();
    let findings = diagnose(&hasty).await;
    assert!(clock().now().since(began) < Duration::from_secs(15), "it takes too long to say so");
    assert!(findings.iter().any(|finding| finding.severity >= Severity::Unknown), "{findings:?}");
    assert!(topic(&findings, "shortest-lease").severity >= Severity::Unknown, "{findings:?}");
}

async fn freed_at_once(backend: &EtcdBackend) {
    let claim = mutex("doctor");
    try_take(backend, &claim).await.unwrap();
    freed(backend, &claim).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_server_that_is_full() {
    let Some(server) = EtcdCluster::builder().arg("--quota-backend-bytes=1048576").start_or_skip().await
    else {
        return;
    };
    let backend = connect(&server.url()).await;
    let value = "x".repeat(100_000);
    let full =
        (0..30).map(|n| server.etcdctl(&["put", &format!("filler/{n}"), &value])).any(|put| put.is_err());
    assert!(full, "30 × 100 kB fit into 1 MiB");
    let findings = diagnose(&backend).await;
    let alarms = topic(&findings, "alarms");
    assert_eq!(alarms.severity, Severity::Broken);
    assert!(alarms.found.contains("NOSPACE") && alarms.advice.contains("disarm"), "{alarms:?}");
    assert_eq!(topic(&findings, "servers").severity, Severity::Notice, "one server");
    assert_eq!(topic(&findings, "history").severity, Severity::Good, "it was started a moment ago");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_rights_that_reach_too_far() {
    let Some(server) = EtcdCluster::start_or_skip().await else { return };
    for args in [
        "user add root:top",
        "user grant-role root root",
        "role add jobs",
        "role grant-permission jobs readwrite leasehold/ --prefix",
        "role add all",
        "role grant-permission all readwrite a z",
        "role add marks",
        "role grant-permission marks readwrite leasehold-mark- --prefix",
        "role add python",
        "role grant-permission python readwrite /locks/ --prefix",
        "user add narrow:n",
        "user add twice:t",
        "user grant-role twice jobs",
        "user grant-role twice marks",
        "user add snake:s",
        "user grant-role snake python",
        "user grant-role snake marks",
        "user grant-role narrow jobs",
        "user add wide:w",
        "user grant-role wide all",
        "auth enable",
    ] {
        server.etcdctl(&args.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let access = async |login: &str| {
        let url = server.url().replace("://", &format!("://{login}@"));
        let backend = connect(&url).await;
        topic(&diagnose(&backend).await, "access").clone()
    };
    let narrow = access("narrow:n").await;
    assert_eq!(narrow.severity, Severity::Good, "{narrow:?}");
    let marks = access("twice:t").await;
    assert_eq!(marks.severity, Severity::Notice, "the native dialect needs no other marks: {marks:?}");
    // The rights that the documentation names for Python's clients are enough, and none is too much.
    let url = format!("{}?dialect=etcd3", server.url().replace("://", "://snake:s@"));
    let python = connect(&url).await;
    freed_at_once(&python).await;
    let access_of_python = topic(&diagnose(&python).await, "access").clone();
    assert_eq!(access_of_python.severity, Severity::Good, "{access_of_python:?}");
    let wide = access("wide:w").await;
    assert!(wide.severity == Severity::Notice && wide.found.contains("outside the prefix"), "{wide:?}");
    let root = access("root:top").await;
    assert!(root.severity == Severity::Notice && root.found.contains("is root"), "{root:?}");
}
