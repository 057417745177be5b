//! The tables and those who may use them, and how the server is logged in to.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use leasehold_core::{
    Backend, Claim, FailureKind, Fence, Grade, Note, Patience, Put, Release, Renewal, Resource, Severity,
};
use leasehold_postgres::{PostgresConfig, grants, schema, sweep};
use leasehold_testkit::PostgresServer;

#[tokio::test]
async fn who_may_create_nothing_uses_what_was_printed_for_them() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    server.sql("CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").await.unwrap();
    let url = format!("postgres://app@{}/postgres?schema=locks&table=jobs&create=no", server.addr());
    let failure = connect(&url).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.detail().contains("leasehold schema --on"), "{failure}");
    let config = PostgresConfig::parse(&url).unwrap();
    let statements = schema(&config);
    server.sql(&statements).await.unwrap();
    // Running it again, beside clients, changes nothing.
    server.sql(&statements).await.unwrap();
    let failure = connect(&url).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
    server.sql(&grants(&config)).await.unwrap();
    let backend = open(&url).await;
    let claim = claim("job", LONG);
    hold(&*backend, &claim).await;
    assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    write_register(&*backend).await.unwrap();
    let failure = sweep(config.clone(), clock(), Duration::ZERO).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
    assert!(failure.detail().contains("GRANT DELETE ON \"locks\".\"jobs\" TO \"app\""), "{failure}");
    assert_eq!(server.sql("SELECT name FROM locks.jobs").await.unwrap().trim(), "job");
}

/// Also where the server's clock was set back by more than a century, and where the tables were restored in another cluster.
#[tokio::test]
async fn a_sweep_removes_rows_and_no_fence_goes_back() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let sweep_all = async || {
        let config = PostgresConfig::parse(&server.url()).unwrap();
        sweep(config, clock(), Duration::ZERO).await.unwrap()
    };
    let (held, next) = (claim("held", LONG), claim("held", LONG));
    let first = hold(&*backend, &held).await;
    let waiting = {
        let (backend, next) = (backend.clone(), next.clone());
        tokio::spawn(async move { take(&*backend, &next).await })
    };
    for tries in 0.. {
        let seen = backend.inspect(&resource("held"), None, &Patience::none(clock())).await.unwrap();
        if seen.waiting.len() == 1 {
            break;
        }
        assert!(tries < 3_000, "nobody ever waits");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let cycle = async |backend: &dyn Backend| {
        let claim = claim("used", LONG);
        let grant = hold(backend, &claim).await;
        assert!(matches!(release(backend, &claim).await, Release::Freed));
        grant.fence.unwrap()
    };
    cycle(&*backend).await;
    server.sql("UPDATE leasehold SET seq = seq + 4000000000000000 WHERE name = 'used'").await.unwrap();
    let mut highest = cycle(&*backend).await;
    hold(&*backend, &claim("over", Duration::from_millis(200))).await;
    tokio::time::sleep(Duration::from_millis(250)).await;

    let config = PostgresConfig::parse(&server.url()).unwrap();
    let swept = sweep(config, clock(), LONG).await.unwrap();
    assert_eq!((swept.seen, swept.forgotten), (3, 0), "all were used a moment ago");
    let swept = sweep_all().await;
    assert_eq!((swept.seen, swept.emptied, swept.forgotten), (3, 0, 2));
    assert_eq!(server.sql("SELECT name FROM leasehold").await.unwrap().trim(), "held");
    assert!(matches!(renew(&*backend, &held).await, Renewal::Renewed));
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    assert!(waiting.await.unwrap().fence > first.fence);

    for round in 0..3 {
        let next = cycle(&*backend).await;
        assert!(next > highest, "{next} after {highest}");
        highest = next;
        assert_eq!(sweep_all().await.forgotten, 1);
        if round == 1 {
            server.sql("UPDATE leasehold_meta SET system_identifier = 'of another cluster'").await.unwrap();
            let moved = cycle(&*open(&server.url()).await).await;
            assert!(moved > highest, "{moved} after {highest}");
            highest = moved;
        }
    }
}

/// A client that sees the database as it was before it waited for the sweep would go on under the epoch of before.
#[tokio::test]
async fn rows_stay_where_a_session_may_begin_in_another_isolation() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for made in ["ROLE somebody", "DATABASE other"] {
        server.sql(&format!("CREATE {made}")).await.unwrap();
    }
    let unset = "RESET default_transaction_isolation";
    let set = |level: &str| format!("SET default_transaction_isolation = '{level}'");
    let backend = open(&server.url()).await;
    for (whose, level, stays) in [
        ("DATABASE other", "serializable", false),
        ("DATABASE postgres", "read committed", false),
        ("DATABASE postgres", "repeatable read", true),
        ("ROLE somebody", "serializable", true),
        ("ROLE somebody IN DATABASE postgres", "repeatable read", true),
    ] {
        server.sql(&format!("ALTER {whose} {}", set(level))).await.unwrap();
        let claim = claim("over", Duration::from_millis(200));
        let before = hold(&*backend, &claim).await;
        tokio::time::sleep(Duration::from_millis(250)).await;
        let config = PostgresConfig::parse(&server.url()).unwrap();
        let swept = sweep(config, clock(), Duration::ZERO).await.unwrap();
        let expected = if stays { (1, 1, 0) } else { (1, 0, 1) };
        assert_eq!((swept.seen, swept.emptied, swept.forgotten), expected, "{whose}: {level}");
        let next = common::claim("over", LONG);
        assert!(hold(&*backend, &next).await.fence > before.fence, "{whose}: {level}");
        assert!(matches!(release(&*backend, &next).await, Release::Freed));
        server.sql(&format!("ALTER {whose} {unset}")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweepers_disturb_neither_clients_nor_each_other() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let is_over = Arc::new(AtomicBool::new(false));
    let sweepers: Vec<_> = (0..2)
        .map(|_| {
            let (url, is_over) = (server.url(), is_over.clone());
            tokio::spawn(async move {
                let mut forgotten = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let config = PostgresConfig::parse(&url).unwrap();
                    forgotten += sweep(config, clock(), Duration::ZERO).await.unwrap().forgotten;
                }
                forgotten
            })
        })
        .collect();
    let last = Arc::new(tokio::sync::Mutex::new(Fence::default()));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let (url, last) = (server.url(), last.clone());
            tokio::spawn(async move {
                let backend = open(&url).await;
                for _ in 0..40 {
                    let claim = claim("job", LONG);
                    let fence = take(&*backend, &claim).await.fence.unwrap();
                    {
                        let mut last = last.try_lock().unwrap();
                        assert!(fence > *last, "{fence} after {last}");
                        *last = fence;
                    }
                    assert!(matches!(release(&*backend, &claim).await, Release::Freed));
                    // So that nobody has a use for the row now and then.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    is_over.store(true, Ordering::SeqCst);
    for sweeper in sweepers {
        sweeper.await.unwrap();
    }
    let config = PostgresConfig::parse(&server.url()).unwrap();
    sweep(config, clock(), Duration::ZERO).await.unwrap();
    assert_eq!(server.sql("SELECT count(*) FROM leasehold").await.unwrap().trim(), "0");
}

#[tokio::test]
async fn a_view_shows_people_who_holds_and_who_waits() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let shown = async || {
        let view = "SELECT resource, state, note, fence, weight, capacity, \
                    since BETWEEN clock_timestamp() - interval '20 seconds' AND clock_timestamp(), \
                    round(extract(epoch FROM expires - since)) FROM leasehold_locks";
        server.sql(view).await.unwrap()
    };
    assert_eq!(shown().await, "");
    let note = Note::new("50% of host α").unwrap();
    let held = Claim { note, ..claim("job", LONG) };
    let fence = hold(&*backend, &held).await.fence.unwrap();
    assert_eq!(shown().await.trim(), format!("job|holds|50% of host α|{fence}|1|1|t|60"));

    let next = claim("job", LONG);
    let waiting = {
        let (backend, next) = (backend.clone(), next.clone());
        tokio::spawn(async move { take(&*backend, &next).await })
    };
    for _ in 0..500 {
        if shown().await.contains("|waits|") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let both = shown().await;
    let lines: Vec<&str> = both.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains(&format!("|{fence}|")), "{both}");
    assert!(lines[1].starts_with("job|waits|||1|1|t|"), "{both}");
    assert!(!both.contains(&held.id.to_hex()) && !both.contains(&next.id.to_hex()), "an id is a secret");
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    let second = waiting.await.unwrap().fence.unwrap();
    assert!(shown().await.starts_with(&format!("job|holds||{second}|")), "{}", shown().await);
    assert!(matches!(release(&*backend, &next).await, Release::Freed));
    assert_eq!(shown().await, "");

    // Whoever may read the view needs no right on the table.
    let reader = "CREATE ROLE reader; GRANT SELECT ON leasehold_locks TO reader; SET ROLE reader; \
                  SELECT count(*) FROM leasehold_locks";
    assert_eq!(server.sql(reader).await.unwrap().trim(), "0");
}

/// Writes a register where nothing stands, over what stands, and away.
async fn write_register(backend: &dyn Backend) -> Result<(), leasehold_core::Failure> {
    let (registers, at) = (backend.registers().unwrap(), Resource::new("value").unwrap());
    for value in [Some(b"one".to_vec()), Some(b"two".to_vec()), None] {
        let seen = registers.read(&at).await?.stamp;
        let put = Put { value: value.clone(), keep: None };
        assert!(registers.swap(&at, &seen, &put).await?.is_some());
        assert_eq!(registers.read(&at).await?.value, value);
    }
    Ok(())
}

#[tokio::test]
async fn tables_of_an_older_client_get_that_of_registers_when_it_is_needed() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let lasting = claim("job", LONG);
    hold(&*backend, &lasting).await;
    server.sql("DROP TABLE leasehold_registers").await.unwrap();
    let careful = open(&format!("{}?create=no", server.url())).await;
    let failure = write_register(&*careful).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    assert!(failure.detail().contains("leasehold schema --on"), "{failure}");
    write_register(&*open(&server.url()).await).await.unwrap();
    assert!(matches!(release(&*backend, &lasting).await, Release::Freed), "the locks were not touched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_clients_that_come_at_once_create_one_table() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let url = format!("{}?schema=new&table=jobs&connections=2", server.url());
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { connect(&url).await.map(drop) })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(
        server.sql("SELECT form, oldest_client, epoch_base FROM new.jobs_meta").await.unwrap().trim(),
        "1|1|0"
    );
}

#[tokio::test]
async fn a_newer_table_is_used_while_it_says_so_and_refused_when_not() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    server
        .sql("ALTER TABLE leasehold ADD COLUMN extra text DEFAULT 'x'; UPDATE leasehold_meta SET form = 2")
        .await
        .unwrap();
    for backend in [backend, open(&server.url()).await] {
        let claim = claim("job", LONG);
        hold(&*backend, &claim).await;
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    }
    server.sql("UPDATE leasehold_meta SET oldest_client = 2").await.unwrap();
    let failure = connect(&server.url()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.detail().contains("update this one"), "{failure}");
}

/// A dump carries epochs of timelines that the cluster it is restored in has never had.
#[tokio::test]
async fn fences_rise_over_a_restore_in_another_cluster() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let claim_before = claim("job", LONG);
    let before = {
        let backend = open(&server.url()).await;
        let grant = hold(&*backend, &claim_before).await;
        assert!(matches!(release(&*backend, &claim_before).await, Release::Freed));
        grant
    };
    server
        .sql("UPDATE leasehold_meta SET system_identifier = '1'; UPDATE leasehold SET epoch = 7, seq = 3")
        .await
        .unwrap();
    let backend = open(&server.url()).await;
    let after = hold(&*backend, &claim("job", LONG)).await;
    assert_eq!(after.fence.map(|fence| (fence.epoch, fence.seq)), Some((8, 4)), "after {before:?}");
    let new = hold(&*backend, &claim("new", LONG)).await;
    assert_eq!(new.fence.unwrap().epoch, 8);
}

#[tokio::test]
async fn the_grade_of_fences_follows_what_the_server_keeps() {
    let durable = PostgresServer::builder().setting("fsync", "on");
    let Some(server) = durable.start_or_skip().await else { return };
    assert_eq!(open(&server.url()).await.profile().fencing, Grade::Strict);
    server.sql("ALTER DATABASE postgres SET synchronous_commit = off").await.unwrap();
    assert_eq!(open(&server.url()).await.profile().fencing, Grade::BestEffort);
}

#[tokio::test]
async fn tls_is_verified_and_a_password_is_asked_for() {
    let builder = PostgresServer::builder().tls().password("sesame");
    let Some(server) = builder.start_or_skip().await else { return };
    let ca = server.certificates().unwrap().ca_path().display().to_string();
    for option in ["sslmode=verify-full", "sslmode=require"] {
        let backend = open(&format!("{}?{option}&ca={ca}", server.url())).await;
        hold(&*backend, &claim(option, LONG)).await;
    }
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE application_name = 'leasehold'";
    let backend = open(&format!("{}?sslmode=verify-full&ca={ca}", server.url())).await;
    assert_eq!(server.sql(encrypted).await.unwrap().trim(), "t");
    drop(backend);
    let failure = connect(&format!("{}?sslmode=verify-full", server.url())).await.unwrap_err();
    assert!(matches!(failure.kind, FailureKind::Unavailable | FailureKind::Invalid), "{failure}");
    let wrong = format!("postgres://postgres:wrong@{}/postgres", server.addr());
    let failure = connect(&wrong).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
    assert!(!failure.to_string().contains("wrong"), "{failure}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sesame\n").unwrap();
    let by_file =
        format!("postgres://postgres@{}/postgres?password-file={}", server.addr(), file.path().display());
    open(&by_file).await;
}

#[tokio::test]
async fn a_socket_of_this_machine_is_enough() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let url = format!(
        "postgres://postgres@/postgres?host={}&port={}",
        server.socket_folder().display(),
        server.addr().port()
    );
    let backend = open(&url).await;
    hold(&*backend, &claim("job", LONG)).await;
}

#[tokio::test]
async fn an_examination_names_what_hurts_and_what_to_grant() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let severity = async |topic: &str| {
        let findings = backend.examine(LONG).await;
        let found = findings.iter().find(|finding| finding.topic == topic);
        found.map(|finding| (finding.severity, finding.advice.clone())).unwrap()
    };
    // The test's server forces nothing to its disk.
    assert_eq!(severity("durability").await.0, Severity::Risk);
    assert_eq!(severity("pooler").await.0, Severity::Good);
    assert_eq!(severity("isolation").await.0, Severity::Good);
    let (privileges, advice) = severity("privileges").await;
    assert_eq!(privileges, Severity::Notice);
    assert!(advice.contains("GRANT SELECT, INSERT, UPDATE ON \"leasehold\" TO \"postgres\";"), "{advice}");
    assert_eq!(severity("table").await.0, Severity::Good);
    assert_eq!(severity("clock").await.0, Severity::Good);
    server
        .sql("INSERT INTO leasehold VALUES ('x', '', 1, 1, 1, now() + interval '1 hour', now())")
        .await
        .unwrap();
    assert_eq!(severity("clock").await.0, Severity::Risk);
    server
        .sql(
            "ALTER TABLE leasehold SET (autovacuum_enabled = off); \
             INSERT INTO leasehold SELECT 'dead/' || n, '', n, 1, 1, now(), now() FROM generate_series(1, 11000) n; \
             DELETE FROM leasehold WHERE name LIKE 'dead/%'",
        )
        .await
        .unwrap();
    // What a session has counted is told when it ends, which is when the kit has forgotten it.
    let (mut bloat, mut advice) = severity("table").await;
    for _ in 0..500 {
        if bloat == Severity::Risk {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        (bloat, advice) = severity("table").await;
    }
    assert!(bloat == Severity::Risk && advice.contains("VACUUM \"leasehold\""), "{bloat:?}: {advice}");
    server.sql("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'").await.unwrap();
    let findings = open(&server.url()).await.examine(LONG).await;
    let isolation = findings.iter().find(|finding| finding.topic == "isolation").unwrap();
    assert!(isolation.severity == Severity::Notice && isolation.advice.contains("read committed"));
}
