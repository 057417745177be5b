//! The findings of an examination of real servers.

use std::time::Duration;

use leasehold_core::{Backend, Finding, Severity};
use leasehold_redis::{RedisBackend, RedisConfig};
use leasehold_testkit::{Appendonly, RedisCluster, RedisServer};

async fn diagnose(url: &str) -> Vec<Finding> {
    let backend = RedisBackend::connect(RedisConfig::parse(url).unwrap()).await.unwrap();
    backend.diagnose(Duration::from_secs(30)).await
}

fn severity(findings: &[Finding], topic: &str) -> Severity {
    let finding = findings.iter().find(|finding| finding.topic == topic);
    finding.unwrap_or_else(|| panic!("no {topic} in {findings:#?}")).severity
}

#[tokio::test]
async fn a_durable_server_is_found_well_and_one_that_evicts_is_not() {
    let builder = RedisServer::builder().persistence(Appendonly::Always);
    let Some(server) = builder.start_or_skip().await else { return };
    let found = diagnose(&server.url()).await;
    for topic in ["version", "eviction", "persistence", "replicas", "clock", "rights", "pubsub"] {
        assert_eq!(severity(&found, topic), Severity::Good, "{topic}: {found:#?}");
    }
    assert_eq!(severity(&found, "access"), Severity::Notice, "nobody has to log in");
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await.unwrap();
    server.command(&["CONFIG", "SET", "appendfsync", "no"]).await.unwrap();
    let found = diagnose(&format!("{}?wait=poll", server.url())).await;
    assert_eq!(severity(&found, "eviction"), Severity::Risk);
    assert_eq!(severity(&found, "persistence"), Severity::Notice);
    assert_eq!(severity(&found, "pubsub"), Severity::Notice);
}

#[tokio::test]
async fn doctor_names_the_missing_rights_of_a_login() {
    let rules =
        "resetkeys ~* resetchannels -@all +eval +evalsha +ping +hello +select +time +acl|whoami +auth";
    let builder = RedisServer::builder().password("root").acl_user("few", "secret", rules);
    let Some(server) = builder.start_or_skip().await else { return };
    let found = diagnose(&format!("redis://few:secret@{}", server.addr())).await;
    assert_eq!(severity(&found, "server"), Severity::Unknown, "{found:#?}");
    assert_eq!(severity(&found, "pubsub"), Severity::Broken);
    let rights = found.iter().find(|finding| finding.topic == "rights").unwrap();
    assert_eq!(rights.severity, Severity::Notice);
    assert!(rights.advice.contains("+info +config|get +scan"), "{rights:?}");
    let access = found.iter().find(|finding| finding.topic == "access").unwrap();
    assert!(access.found.contains("few"), "{access:?}");
    assert!(!format!("{found:?}").contains("secret"));
}

#[tokio::test]
async fn each_server_of_a_cluster_is_looked_at() {
    let builder = RedisCluster::builder().node_timeout(Duration::from_secs(30));
    let Some(cluster) = builder.start_or_skip().await else { return };
    let found = diagnose(&cluster.url()).await;
    assert_eq!(severity(&found, "cluster"), Severity::Good, "{found:#?}");
    assert_eq!(severity(&found, "pubsub"), Severity::Good, "{found:#?}");
    assert_eq!(found.iter().filter(|finding| finding.topic == "replicas").count(), 3, "one for each primary");
    assert_eq!(severity(&found, "replicas"), Severity::Notice);
}
