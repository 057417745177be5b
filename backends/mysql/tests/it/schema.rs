//! The tables and those who may use them, how the server is logged in to, and what an examination finds.

use std::time::Duration;

use crate::common::*;
use leasehold_core::{FailureKind, FenceGrade, Patience, Release, Severity};
use leasehold_mysql::{MySqlConfig, grants, schema, sweep};
use leasehold_testkit::MariaDbServer;

#[tokio::test]
async fn user_without_create_rights_uses_the_printed_schema() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql("CREATE USER app").await.unwrap();
    let url = format!("mysql://app@{}/locks?table=jobs&create=no", server.addr());
    assert_eq!(connect(&url).await.unwrap_err().kind, FailureKind::Denied);
    server.sql("GRANT SELECT ON locks.other TO app@'%'").await.unwrap_err();
    server.sql("CREATE TABLE other (a int); GRANT SELECT ON locks.other TO app@'%'").await.unwrap();
    let failure = connect(&url).await.unwrap_err();
    assert!(failure.detail().contains("leasehold schema --store"), "{failure}");
    let config = MySqlConfig::parse(&url).unwrap();
    let statements = schema(&config);
    server.sql(&statements).await.unwrap();
    // Running it again, beside clients, changes nothing.
    server.sql(&statements).await.unwrap();
    assert_eq!(connect(&url).await.unwrap_err().kind, FailureKind::Denied);
    server.sql(&grants(&config)).await.unwrap();
    let backend = open(&url).await;
    let claim = claim("job", LONG);
    hold(&*backend, &claim).await;
    assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    assert_eq!(server.sql("SELECT name FROM jobs").await.unwrap().trim(), "job");
    let findings = backend.diagnose(LONG).await;
    let privileges = findings.iter().find(|finding| finding.topic == "privileges").unwrap();
    assert_eq!(privileges.severity, Severity::Good, "{privileges:?}");
}

#[tokio::test]
async fn user_without_create_rights_locks_rows_in_the_printed_schema() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql("CREATE USER app").await.unwrap();
    let url = format!("mysql://app@{}/locks?create=no&method=for-update", server.addr());
    let config = MySqlConfig::parse(&url).unwrap();
    for _ in 0..2 {
        server.sql(&schema(&config)).await.unwrap();
    }
    assert_eq!(connect(&url).await.unwrap_err().kind, FailureKind::Denied);
    server.sql(&grants(&config)).await.unwrap();
    let backend = open(&url).await;
    let (held, other) = (claim("job", LONG), claim("job", LONG));
    let first = hold(&*backend, &held).await;
    assert!(look_once(&*backend, &other).await.unwrap().is_none());
    // Not even to end a wait of its own.
    let waiting = Patience::unlimited(clock());
    let contending = backend.contend(&other, &waiting);
    assert!(tokio::time::timeout(Duration::from_millis(200), contending).await.is_err());
    wait_for_count(&server, "SELECT COUNT(*) FROM information_schema.INNODB_TRX", "1").await;
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    assert!(hold(&*backend, &other).await.fence > first.fence);
    server.sql("DROP TABLE leasehold_rows_held").await.unwrap();
    let failure = connect(&url).await.unwrap_err();
    assert!(failure.detail().contains("leasehold schema --store"), "{failure}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_simultaneous_clients_create_one_table() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let url = format!("{}?table=jobs&connections=2&timeout=60s", server.url());
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { connect(&url).await.map(drop) })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(server.sql("SELECT form, oldest_client FROM jobs_meta").await.unwrap(), "1\t1\n");
}

#[tokio::test]
async fn a_newer_table_is_used_while_it_says_so_and_refused_when_not() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    server
        .sql("ALTER TABLE leasehold ADD COLUMN extra VARCHAR(9) DEFAULT 'x'; UPDATE leasehold_meta SET form = 3")
        .await
        .unwrap();
    for backend in [backend, open(&server.url()).await] {
        let claim = claim("job", LONG);
        hold(&*backend, &claim).await;
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    }
    server.sql("UPDATE leasehold_meta SET oldest_client = 3").await.unwrap();
    let failure = connect(&server.url()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.detail().contains("update this one"), "{failure}");
}

/// Texts in such columns would be one, by the rules of most languages.
#[tokio::test]
async fn names_that_a_language_holds_for_equal_are_apart() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql("ALTER DATABASE locks CHARACTER SET latin1").await.unwrap();
    let backend = open(&server.url()).await;
    for name in ["job", "Job", "job ", "jób", "j'o\"b\\", "作业", "\u{10ffff}", "%", "_"] {
        hold(&*backend, &claim(name, LONG)).await;
        let read: Vec<_> = backend.list(name, None, 100).await.unwrap();
        assert!(read.iter().any(|summary| summary.resource.as_str() == name), "{name:?} in {read:?}");
        assert!(read.iter().all(|summary| summary.resource.as_str().starts_with(name)), "{read:?}");
    }
    assert_eq!(backend.list("", None, 100).await.unwrap().len(), 9);
}

#[tokio::test]
async fn the_grade_of_fences_follows_what_the_server_keeps() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    assert_eq!(backend.profile().fencing, FenceGrade::Strict);
    let severity = async |topic: &str| {
        let findings = backend.diagnose(LONG).await;
        let found = findings.iter().find(|finding| finding.topic == topic);
        found.map(|finding| (finding.severity, finding.advice.clone())).unwrap()
    };
    for topic in ["durability", "replication", "isolation", "table", "clock"] {
        assert_eq!(severity(topic).await.0, Severity::Good, "{topic}");
    }
    let (privileges, advice) = severity("privileges").await;
    assert_eq!(privileges, Severity::Notice);
    let needed = "GRANT SELECT, INSERT, UPDATE ON `locks`.`leasehold` TO 'leasehold'@'%';";
    assert!(
        advice.contains(needed) && advice.contains("CREATE USER") && !advice.contains("root"),
        "{advice}"
    );
    server
        .sql("INSERT INTO leasehold VALUES ('x', '', 1, 1, (UNIX_TIMESTAMP() + 3600) * 1000000, 0)")
        .await
        .unwrap();
    assert_eq!(severity("clock").await.0, Severity::Risk);
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2").await.unwrap();
    assert_eq!(severity("durability").await.0, Severity::Risk);
    assert_eq!(open(&server.url()).await.profile().fencing, FenceGrade::BestEffort);
    server.sql("SET GLOBAL tx_isolation = 'SERIALIZABLE'").await.unwrap();
    assert_eq!(severity("isolation").await.0, Severity::Notice);
}

#[tokio::test]
async fn tls_is_verified_and_a_password_is_asked_for() {
    let builder = MariaDbServer::builder().tls().password("sesame");
    let Some(server) = builder.start_or_skip().await else { return };
    let ca = server.certificates().unwrap().ca_path().display().to_string();
    for option in ["sslmode=verify-full", "sslmode=REQUIRED"] {
        let backend = open(&format!("{}?{option}&ca={ca}", server.url())).await;
        hold(&*backend, &claim(option, LONG)).await;
    }
    server.sql("CREATE USER secured REQUIRE X509; GRANT ALL ON locks.* TO secured").await.unwrap();
    let client = server.certificates().unwrap().client();
    let identity = format!("&cert={}&key={}", client.certificate.display(), client.key.display());
    let secured = format!("mysql://secured@{}/locks?sslmode=verify-full&ca={ca}", server.addr());
    hold(&*open(&format!("{secured}{identity}")).await, &claim("secured", LONG)).await;
    for (url, kind) in [
        (format!("{}?sslmode=verify-full", server.url()), FailureKind::Denied),
        (format!("mysql://root:wrong@{}/locks", server.addr()), FailureKind::Denied),
        (format!("mysql://secured@{}/locks", server.addr()), FailureKind::Denied),
        (secured, FailureKind::Denied),
    ] {
        let failure = connect(&url).await.unwrap_err();
        assert_eq!(failure.kind, kind, "{failure}");
        assert!(!failure.to_string().contains("wrong"), "{failure}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sesame\n").unwrap();
    let by_file = format!("mysql://root@{}/locks?password-file={}", server.addr(), file.path().display());
    open(&by_file).await;

    // Since 11.4 a server has TLS unless it is told not to.
    let Some(plain) = MariaDbServer::builder().setting("ssl", "0").start_or_skip().await else { return };
    let failure = connect(&format!("{}?sslmode=verify-full&ca={ca}", plain.url())).await.unwrap_err();
    assert!(failure.kind == FailureKind::Unsupported && failure.detail().contains("no TLS"), "{failure}");
}

#[tokio::test]
async fn a_sweep_empties_rows_and_keeps_them_for_their_fences() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let config = |options: &str| MySqlConfig::parse(&format!("{}{options}", server.url())).unwrap();
    leasehold_conformance::sweep::sweep_empties_rows_of_ended_claims(
        &*open(&server.url()).await,
        async || {
            let swept = sweep(config(""), clock(), Duration::ZERO).await.unwrap();
            [swept.seen, swept.emptied, swept.removed]
        },
    )
    .await;
    for other in ["?dialect=shedlock", "?method=get-lock"] {
        let failure = sweep(config(other), clock(), Duration::ZERO).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    }
}

#[tokio::test]
async fn a_socket_of_this_machine_is_enough_and_a_database_is_needed() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let url = format!("mysql://root@/locks?socket={}", server.socket().display());
    hold(&*open(&url).await, &claim("job", LONG)).await;
    let failure = connect(&format!("mysql://root@{}/nowhere", server.addr())).await.unwrap_err();
    assert!(failure.kind == FailureKind::Unsupported && failure.detail().contains("create the database"));
}
