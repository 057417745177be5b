//! The findings of an examination, for ensembles that are in order and for some that are not.

use std::time::Duration;

use crate::common::{backend, claim, eventually, hold, leader};
use leasehold::backend::{Backend, FailureKind, Finding, Liveness, Severity, Share};
use leasehold_testkit::ZooKeeperEnsemble;
use leasehold_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

async fn diagnose(backend: &ZooKeeperBackend) -> Vec<Finding> {
    backend.diagnose(Duration::from_secs(30)).await
}

#[track_caller]
fn topic<'a>(findings: &'a [Finding], topic: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.topic == topic).unwrap_or_else(|| panic!("{topic}: {findings:#?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_three_server_roles_and_a_missing_server() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(3).await else { return };
    let ours = backend(&format!("{}?session=20s&timeout=10s", servers.url())).await;
    let findings = diagnose(&ours).await;
    let good = |finding: &&Finding| finding.severity == Severity::Good;
    for good_one in ["servers", "quorum", "version", "session", "clock"] {
        assert!(good(&topic(&findings, good_one)), "{findings:#?}");
    }
    assert!(topic(&findings, "servers").meaning.starts_with("1 may be lost"));
    assert!(topic(&findings, "quorum").found.contains("leader"), "{findings:#?}");
    assert_eq!(topic(&findings, "access").severity, Severity::Notice);
    assert!(findings.iter().all(|finding| finding.topic != "dialect"));

    let one = backend(&format!("zk://{}?session=20s&timeout=10s", servers.addr(0))).await;
    let few = topic(&diagnose(&one).await, "servers").clone();
    assert!(few.severity == Severity::Notice && few.found.contains("1 of 3"), "{few:?}");

    let leader = leader(&servers).await;
    servers.kill(leader).unwrap();
    let lost = async || {
        let findings = diagnose(&ours).await;
        let gone = topic(&findings, "servers");
        // The others have elected a leader by the end.
        gone.severity == Severity::Risk
            && gone.found.contains(&servers.addr(leader).to_string())
            && topic(&findings, "quorum").severity == Severity::Good
    };
    eventually(lost).await;
    servers.kill((leader + 1) % 3).unwrap();
    eventually(async || topic(&diagnose(&ours).await, "quorum").severity == Severity::Risk).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_the_acl_of_the_nodes() {
    let Some(servers) = ZooKeeperEnsemble::start_or_skip(1).await else { return };
    let addr = servers.addr(0);
    let ann = backend(&format!("zk://ann:secret@{addr}/private?session=100s")).await;
    let findings = diagnose(&ann).await;
    assert_eq!(topic(&findings, "access").severity, Severity::Good, "nothing is there yet");
    assert!(topic(&findings, "servers").found.contains("one server"));
    let session = topic(&findings, "session");
    assert!(session.severity == Severity::Notice && session.found.contains("60.0s"), "{session:?}");
    hold(&ann, &claim("job", Share::MUTEX)).await;
    assert_eq!(topic(&diagnose(&ann).await, "access").severity, Severity::Good);

    let bob = backend(&format!("zk://bob:secret@{addr}/private")).await;
    assert_eq!(topic(&diagnose(&bob).await, "access").severity, Severity::Broken);
    let nobody = backend(&format!("zk://{addr}/open")).await;
    hold(&nobody, &claim("job", Share::MUTEX)).await;
    let late = backend(&format!("zk://ann:secret@{addr}/open")).await;
    let open = topic(&diagnose(&late).await, "access").clone();
    assert!(open.severity == Severity::Risk && !format!("{open:?}").contains("secret"), "{open:?}");
    let kazoo = backend(&format!("zk://{addr}?session=20s&dialect=kazoo")).await;
    assert!(topic(&diagnose(&kazoo).await, "dialect").meaning.contains("stay"));
}

/// If servers give sessions of less than two ticks, their leader may know of a session for less than
/// half of it.
#[tokio::test(flavor = "multi_thread")]
async fn short_sessions_are_counted_on_for_less_or_refused() {
    let settings = "tickTime=2000\nminSessionTimeout=1000";
    let Some(servers) = ZooKeeperEnsemble::start_with_or_skip(1, settings).await else { return };
    let of = async |session: &str| {
        let config = ZooKeeperConfig::parse(&format!("{}?session={session}", servers.url())).unwrap();
        ZooKeeperBackend::connect(config).await
    };
    let valid = |backend: &ZooKeeperBackend| backend.profile().liveness;
    let millis = |valid| Liveness::Heartbeat { valid: Duration::from_millis(valid) };
    let (long, short) = (of("4s").await.unwrap(), of("3s").await.unwrap());
    assert_eq!((valid(&long), valid(&short)), (millis(2000), millis(1250)));
    assert_eq!(topic(&diagnose(&long).await, "session").severity, Severity::Good);
    let session = topic(&diagnose(&short).await, "session").clone();
    assert!(session.severity == Severity::Notice, "{session:?}");
    assert!(session.advice.contains("4.0s"), "{session:?}");
    let failure = of("1500ms").await.unwrap_err();
    assert!(failure.kind == FailureKind::Invalid && failure.detail().contains("tickTime is 2s"), "{failure}");

    // Who may not ask for the tick takes it for the usual one.
    let settings = "minSessionTimeout=1000\n4lw.commands.whitelist=srvr";
    let Some(servers) = ZooKeeperEnsemble::start_with_or_skip(1, settings).await else { return };
    let url = |session| format!("{}?session={session}", servers.url());
    let short = backend(&url("3s")).await;
    assert_eq!(valid(&short), millis(1250));
    let session = topic(&diagnose(&short).await, "session").clone();
    assert!(session.advice.contains("conf"), "{session:?}");
    let config = ZooKeeperConfig::parse(&url("1500ms")).unwrap();
    let failure = ZooKeeperBackend::connect(config).await.unwrap_err();
    assert!(failure.detail().contains("`conf`"), "{failure}");
}

/// The servers are asked through TLS where the client speaks it.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_speak_tls_are_asked_through_it() {
    let Some(servers) = ZooKeeperEnsemble::start_tls_or_skip(1).await else { return };
    let (certificates, addr) = (servers.certificates().unwrap(), servers.secure_addr(0));
    let (ca, client) = (certificates.ca_path().display(), certificates.client());
    let (cert, key) = (client.certificate.display(), client.key.display());
    let url = format!("zks://ann:secret@{addr}?session=20s&timeout=20s&ca={ca}&cert={cert}&key={key}");
    let findings = diagnose(&*backend(&url).await).await;
    assert!(topic(&findings, "quorum").found.contains("standalone"), "{findings:#?}");
    assert_eq!(topic(&findings, "access").severity, Severity::Good);
}
