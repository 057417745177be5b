//! The tables and those who may use them, and how the server is logged in to.

use crate::common;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use leasehold_core::{
    Backend, Claim, FailureKind, Fence, FenceGrade, Note, Patience, Put, Release, Renewal, Resource, Severity,
};
use leasehold_postgres::{PostgresConfig, grants, schema, sweep};
use leasehold_testkit::PostgresServer;

#[tokio::test]
async fn user_without_create_rights_uses_the_printed_schema() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    server.sql("CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").await.unwrap();
    let url = format!("postgres://app@{}/postgres?schema=locks&table=jobs&create=no", server.addr());
    let failure = connect(&url).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.detail().contains("leasehold schema --store"), "{failure}");
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

/// Also where the server's clock was set back by more than a century, and where the tables were restored
/// in another cluster.
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
    assert_eq!((swept.seen, swept.removed), (3, 0), "all were used a moment ago");
    let swept = sweep_all().await;
    assert_eq!((swept.seen, swept.emptied, swept.removed), (3, 0, 2));
    assert_eq!(server.sql("SELECT name FROM leasehold").await.unwrap().trim(), "held");
    assert!(matches!(renew(&*backend, &held).await, Renewal::Renewed));
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    assert!(waiting.await.unwrap().fence > first.fence);

    for round in 0..3 {
        let next = cycle(&*backend).await;
        assert!(next > highest, "{next} after {highest}");
        highest = next;
        assert_eq!(sweep_all().await.removed, 1);
        if round == 1 {
            server.sql("UPDATE leasehold_meta SET system_identifier = 'of another cluster'").await.unwrap();
            let moved = cycle(&*open(&server.url()).await).await;
            assert!(moved > highest, "{moved} after {highest}");
            highest = moved;
        }
    }
}

/// A sweep begins a higher epoch, which only one of the tables says.
#[tokio::test]
async fn fences_rise_over_the_loss_of_all_tables_after_a_sweep() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let mut backend = open(&server.url()).await;
    let cycle = async |backend: &dyn Backend| {
        let claim = claim("job", LONG);
        let fence = hold(backend, &claim).await.fence.unwrap();
        assert!(matches!(release(backend, &claim).await, Release::Freed));
        fence
    };
    let first = cycle(&*backend).await;
    let config = PostgresConfig::parse(&server.url()).unwrap();
    assert_eq!(sweep(config, clock(), Duration::ZERO).await.unwrap().removed, 1);
    let mut highest = cycle(&*backend).await;
    assert!(highest.epoch > first.epoch, "{highest} after {first}");
    for connects_anew in [false, true] {
        server.sql("DROP TABLE leasehold, leasehold_registers, leasehold_meta CASCADE").await.unwrap();
        if connects_anew {
            backend = open(&server.url()).await;
        }
        let next = cycle(&*backend).await;
        assert!(next > highest, "{next} after {highest}, and the loss of all tables");
        highest = next;
    }
}

/// A client that sees the database as it was before it waited for the sweep would continue under the old
/// epoch.
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
        assert_eq!((swept.seen, swept.emptied, swept.removed), expected, "{whose}: {level}");
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
                    forgotten += sweep(config, clock(), Duration::ZERO).await.unwrap().removed;
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
async fn view_shows_holders_and_waiters() {
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
    let held = claim("job", LONG).note(note);
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

    // A user that may read the view needs no right on the table.
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
async fn tables_of_an_older_client_get_the_registers_table_on_demand() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let lasting = claim("job", LONG);
    hold(&*backend, &lasting).await;
    server.sql("DROP TABLE leasehold_registers").await.unwrap();
    let careful = open(&format!("{}?create=no", server.url())).await;
    let failure = write_register(&*careful).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    assert!(failure.detail().contains("leasehold schema --store"), "{failure}");
    write_register(&*open(&server.url()).await).await.unwrap();
    assert!(matches!(release(&*backend, &lasting).await, Release::Freed), "the locks were not touched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_simultaneous_clients_create_one_table() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let url = format!("{}?schema=new&table=jobs&connections=2&timeout=60s", server.url());
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { connect(&url).await.map(drop) })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let meta = "SELECT form, oldest_client, epoch_base > 0 FROM new.jobs_meta";
    assert_eq!(server.sql(meta).await.unwrap().trim(), "1|1|t");
}

#[tokio::test]
async fn a_newer_table_is_used_while_it_says_so_and_refused_when_not() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    server
        .sql("ALTER TABLE leasehold ADD COLUMN extra text DEFAULT 'x'; UPDATE leasehold_meta SET form = 3")
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
    let of_the_backup = Fence::new(7, 3, 0);
    assert!(after.fence > Some(of_the_backup) && after.fence > before.fence, "{after:?} after {before:?}");
    let new = hold(&*backend, &claim("new", LONG)).await;
    assert_eq!(new.fence.map(|fence| fence.epoch), after.fence.map(|fence| fence.epoch));
}

/// The timeline of a cluster begins at 1 again when `pg_upgrade` makes it. Clients that stay open do not see that the
/// tables are those of another one.
#[tokio::test]
async fn clients_that_stay_open_write_rows_of_a_later_epoch() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let (held, next) = (claim("job", LONG), claim("job", LONG));
    let first = hold(&*backend, &held).await.fence.unwrap();
    write_register(&*backend).await.unwrap();
    let later = "UPDATE leasehold SET epoch = epoch + 6; UPDATE leasehold_registers SET epoch = epoch + 6";
    server.sql(later).await.unwrap();
    let waiting = {
        let (backend, next) = (backend.clone(), next.clone());
        tokio::spawn(async move { take(&*backend, &next).await })
    };
    until_one_waits(&*backend, "job").await;
    assert!(matches!(renew(&*backend, &held).await, Renewal::Renewed));
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    let fence = waiting.await.unwrap().fence.unwrap();
    assert_eq!(fence.epoch, first.epoch + 6, "{fence} after {first}");
    write_register(&*backend).await.unwrap();
}

#[tokio::test]
async fn the_grade_of_fences_follows_what_the_server_keeps() {
    let durable = PostgresServer::builder().setting("fsync", "on");
    let Some(server) = durable.start_or_skip().await else { return };
    assert_eq!(open(&server.url()).await.profile().fencing, FenceGrade::Strict);
    server.sql("ALTER DATABASE postgres SET synchronous_commit = off").await.unwrap();
    assert_eq!(open(&server.url()).await.profile().fencing, FenceGrade::BestEffort);
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
    for method in ["method=row", "method=advisory", "method=for-update"] {
        let backend = open(&format!("{}&{method}", server.url_of_socket())).await;
        hold(&*backend, &claim("job", LONG)).await;
    }
    // Nothing is between: a statement is prepared by name.
    let backend = open(&server.url_of_socket()).await;
    let pooler = backend.diagnose(LONG).await.into_iter().find(|finding| finding.topic == "pooler").unwrap();
    assert!(pooler.found.contains("nothing is between"), "{pooler:?}");
}

#[tokio::test]
async fn an_examination_names_what_hurts_and_what_to_grant() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let severity = async |topic: &str| {
        let findings = backend.diagnose(LONG).await;
        let found = findings.iter().find(|finding| finding.topic == topic);
        found.map(|finding| (finding.severity, finding.advice.clone())).unwrap()
    };
    // The test's server forces nothing to its disk.
    assert_eq!(severity("durability").await.0, Severity::Risk);
    assert_eq!(severity("pooler").await.0, Severity::Good);
    assert_eq!(severity("isolation").await.0, Severity::Good);
    let (privileges, advice) = severity("privileges").await;
    assert_eq!(privileges, Severity::Notice);
    assert!(
        advice.contains("GRANT SELECT, INSERT, UPDATE ON \"public\".\"leasehold\" TO \"leasehold\";"),
        "{advice}"
    );
    assert!(advice.contains("CREATE ROLE") && !advice.contains("postgres"), "{advice}");
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
    // A session publishes its counts when it ends, and by then the kit has forgotten it.
    let (mut bloat, mut advice) = severity("table").await;
    for _ in 0..500 {
        if bloat == Severity::Risk {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        (bloat, advice) = severity("table").await;
    }
    assert!(
        bloat == Severity::Risk && advice.contains("VACUUM \"public\".\"leasehold\""),
        "{bloat:?}: {advice}"
    );
    server.sql("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'").await.unwrap();
    let findings = open(&server.url()).await.diagnose(LONG).await;
    let isolation = findings.iter().find(|finding| finding.topic == "isolation").unwrap();
    assert!(isolation.severity == Severity::Notice && isolation.advice.contains("read committed"));
}

/// A restore of the tables within one cluster leaves old rows under the same timeline.
#[tokio::test]
async fn fences_rise_over_a_restore_in_the_same_cluster() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let cycle = async |backend: &dyn Backend, name: &str| {
        let claim = claim(name, LONG);
        let fence = hold(backend, &claim).await.fence.unwrap();
        assert!(matches!(release(backend, &claim).await, Release::Freed));
        fence
    };
    for (method, dump, restore) in [
        (
            "method=row",
            "CREATE TABLE dump AS TABLE leasehold",
            "TRUNCATE leasehold; INSERT INTO leasehold TABLE dump; DROP TABLE dump",
        ),
        (
            "method=advisory",
            "CREATE TABLE dump AS SELECT s.last_value, b.last FROM leasehold_advisory_fence s, leasehold_advisory_fences b",
            "SELECT setval('leasehold_advisory_fence', last_value) FROM dump; \
             UPDATE leasehold_advisory_fences SET last = dump.last FROM dump; DROP TABLE dump",
        ),
        (
            "method=for-update",
            "CREATE TABLE dump AS SELECT last_value FROM leasehold_fence",
            "SELECT setval('leasehold_fence', last_value) FROM dump; DROP TABLE dump",
        ),
    ] {
        let url = format!("{}?{method}", server.url());
        let backend = open(&url).await;
        cycle(&*backend, "job").await;
        server.sql(dump).await.unwrap();
        let mut highest = Fence::default();
        for _ in 0..20 {
            highest = cycle(&*backend, "job").await;
        }
        server.sql(restore).await.unwrap();
        // Rows are the same for those who were connected before; a counter is raised by the next that
        // connects.
        let backend = if method == "method=row" { backend } else { open(&url).await };
        let next = cycle(&*backend, "job").await;
        assert!(next > highest, "{method}: {next} after {highest}");
    }
}

/// A waiter's grant is numbered by the client, from what it has read.
#[tokio::test]
async fn fence_of_a_queued_claim_is_above_the_clock_after_restore() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let (held, next) = (claim("job", LONG), claim("job", LONG));
    hold(&*backend, &held).await;
    let waiting = {
        let (backend, next) = (backend.clone(), next.clone());
        tokio::spawn(async move { take(&*backend, &next).await })
    };
    until_one_waits(&*backend, "job").await;
    server.sql("CREATE TABLE dump AS TABLE leasehold").await.unwrap();
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    let before = waiting.await.unwrap().fence.unwrap();
    assert!(matches!(release(&*backend, &next).await, Release::Freed));
    // One holds again, and one waits that does not answer and is passed over.
    server.sql("TRUNCATE leasehold; INSERT INTO leasehold TABLE dump").await.unwrap();
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    let after = take(&*backend, &claim("job", LONG)).await.fence.unwrap();
    assert!(after > before, "{after} after {before}");
}

/// Clients of before a restore and of after it hear each other.
#[tokio::test]
async fn client_connected_before_a_restore_is_still_notified() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let before = open(&server.url()).await;
    hold(&*before, &claim("other", LONG)).await;
    server.sql("DROP TABLE leasehold CASCADE").await.unwrap();
    let after = open(&server.url()).await;
    let (held, next) = (claim("job", LONG), claim("job", LONG));
    hold(&*after, &held).await;
    let waiting = {
        let (before, next) = (before.clone(), next.clone());
        tokio::spawn(async move { take(&*before, &next).await })
    };
    until_one_waits(&*after, "job").await;
    // So long that it no longer looks by itself for lack of a connection that listens.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(release(&*after, &held).await, Release::Freed));
    // Without a call it would look after fifteen seconds.
    tokio::time::timeout(Duration::from_secs(12), waiting).await.unwrap().unwrap();
}

async fn until_one_waits(backend: &dyn Backend, name: &str) {
    for tries in 0.. {
        let seen = backend.inspect(&resource(name), None, &Patience::none(clock())).await.unwrap();
        if seen.waiting.len() == 1 {
            return;
        }
        assert!(tries < 3_000, "nobody ever waits");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A transaction of somebody else, which keeps the sweep from the lock of the table, must not keep
/// clients from their rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_sweep_does_not_block_clients() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    // The tables may take a busy server longer than the short timeout.
    drop(open(&server.url()).await);
    let backend = open(&format!("{}?timeout=3s", server.url())).await;
    hold(&*backend, &claim("over", Duration::from_millis(200))).await;
    tokio::time::sleep(Duration::from_millis(250)).await;
    let (stranger, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    stranger
        .batch_execute("BEGIN; INSERT INTO leasehold VALUES ('stranger', '', 1, 1, 1, now(), now())")
        .await
        .unwrap();
    let config = PostgresConfig::parse(&format!("{}?timeout=1m", server.url())).unwrap();
    let sweeping = tokio::spawn(sweep(config, clock(), Duration::ZERO));
    // Until it has asked for the lock.
    let asked = "SELECT count(*) FROM pg_locks WHERE mode = 'ShareLock' AND relation = 'leasehold'::regclass AND NOT granted";
    let (watcher, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    while watcher.query_one(asked, &[]).await.unwrap().get::<_, i64>(0) != 1 {
        assert!(!sweeping.is_finished(), "it never asked");
    }
    for n in 0..5 {
        let claim = claim(&format!("job {n}"), LONG);
        hold(&*backend, &claim).await;
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    }
    stranger.batch_execute("ROLLBACK").await.unwrap();
    assert!(sweeping.await.unwrap().is_ok_and(|swept| swept.removed > 0));
    // One that never ends is reported.
    stranger
        .batch_execute("BEGIN; INSERT INTO leasehold VALUES ('stranger', '', 1, 1, 1, now(), now())")
        .await
        .unwrap();
    hold(&*backend, &claim("over", Duration::from_millis(200))).await;
    tokio::time::sleep(Duration::from_millis(250)).await;
    server.sql("UPDATE leasehold_meta SET epoch_base = 0").await.unwrap();
    let config = PostgresConfig::parse(&server.url()).unwrap();
    let sweeping = tokio::spawn(sweep(config, clock(), Duration::ZERO));
    // Each attempt is a request of its own. Not all of them need be seen.
    let attempt = "SELECT query_start::text FROM pg_stat_activity WHERE query LIKE 'SET LOCAL lock_timeout%'";
    let mut attempts = HashSet::new();
    while !sweeping.is_finished() {
        for row in watcher.query(attempt, &[]).await.unwrap() {
            attempts.insert(row.get::<_, String>(0));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let failure = sweeping.await.unwrap().unwrap_err();
    assert!(failure.detail().contains("a transaction"), "{failure}");
    assert!((1..=10).contains(&attempts.len()), "{} attempts", attempts.len());
}

/// A vacuum, and an ANALYZE, have this lock, and write nothing.
#[tokio::test]
async fn sweep_that_a_vacuum_keeps_from_the_table_says_so() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let over = claim("over", LONG);
    hold(&*backend, &over).await;
    assert!(matches!(release(&*backend, &over).await, Release::Freed));
    let (vacuum, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    vacuum.batch_execute("BEGIN; LOCK TABLE leasehold IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
    let config = PostgresConfig::parse(&server.url()).unwrap();
    let failure = sweep(config, clock(), Duration::ZERO).await.unwrap_err();
    assert!(failure.detail().contains("VACUUM"), "{failure}");
}

/// Standbys for which commits wait, and one that could be promoted without them.
#[tokio::test]
async fn only_standbys_that_are_all_waited_for_are_strict() {
    let Some(server) = PostgresServer::builder().setting("fsync", "on").start_or_skip().await else { return };
    let set = async |names: &str| {
        server.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).await.unwrap();
        server.sql("SELECT pg_reload_conf()").await.unwrap();
    };
    // The server applies the setting a moment later.
    let reaches = async |grade: FenceGrade, states: &str| {
        let query = "SELECT string_agg(sync_state, ',' ORDER BY sync_state) FROM pg_stat_replication";
        for tries in 0.. {
            let seen = server.sql(query).await.unwrap();
            if seen.trim() == states {
                break;
            }
            assert!(tries < 1_000, "{seen} for {states}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let profile = open(&server.url()).await;
        assert_eq!(profile.profile().fencing, grade, "{states}");
    };
    open(&server.url()).await;
    let one = server.standby().await.unwrap();
    reaches(FenceGrade::AcrossFailover, "async").await;
    set("FIRST 1 (walreceiver)").await;
    reaches(FenceGrade::Strict, "sync").await;
    set("*").await;
    reaches(FenceGrade::AcrossFailover, "sync").await;
    set("FIRST 1 (walreceiver)").await;
    let two = server.standby().await.unwrap();
    reaches(FenceGrade::AcrossFailover, "potential,sync").await;
    // Both are candidates of a quorum, and a commit waits for either one.
    set("ANY 1 (walreceiver)").await;
    reaches(FenceGrade::AcrossFailover, "quorum,quorum").await;
    set("FIRST 1 (walreceiver)").await;
    // Who may not see whom commits wait for does not count on it.
    drop(two);
    reaches(FenceGrade::Strict, "sync").await;
    server.sql("CREATE ROLE app LOGIN").await.unwrap();
    let config = PostgresConfig::parse(&format!("postgres://app@{}/postgres", server.addr())).unwrap();
    server.sql(&grants(&config)).await.unwrap();
    let url = format!("postgres://app@{}/postgres", server.addr());
    assert_eq!(open(&url).await.profile().fencing, FenceGrade::AcrossFailover);
    server.sql("GRANT pg_monitor TO app").await.unwrap();
    assert_eq!(open(&url).await.profile().fencing, FenceGrade::Strict);
    // One that is away, and comes back.
    set("").await;
    drop(one);
    server.sql("SELECT pg_create_physical_replication_slot('away')").await.unwrap();
    reaches(FenceGrade::AcrossFailover, "").await;
    server.sql("SELECT pg_drop_replication_slot('away')").await.unwrap();
    reaches(FenceGrade::Strict, "").await;
}

/// Operators and functions of others, in a schema of the search path that they may create in.
#[tokio::test]
async fn operators_of_others_in_the_search_path_are_not_called() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON SCHEMA public TO app").await.unwrap();
    server.sql("GRANT CREATE ON DATABASE postgres TO app").await.unwrap();
    let made = server.sql(SHADOWS).await.unwrap();
    assert!(made.trim().parse::<u32>().unwrap() > 1_000, "{made}");
    let is_called = server.sql("SELECT 1::numeric * 2::int4").await.unwrap_err().to_string();
    assert!(is_called.contains("called: "), "{is_called}");
    let url = |options: &str| format!("postgres://app@{}/postgres?{options}", server.addr());
    for method in
        ["method=row&table=r", "method=advisory&table=a", "method=for-update&table=f", "dialect=shedlock"]
    {
        let (one, two) = (open(&url(method)).await, open(&url(method)).await);
        for round in 0..3 {
            let claims: Vec<Claim> = (0..12).map(|n| claim(&format!("job {round} {n}"), LONG)).collect();
            let held = futures_util::future::join_all(claims.iter().map(|claim| hold(&*one, claim))).await;
            assert_eq!(held.len(), claims.len());
            assert!(look_once(&*two, &claim(claims[0].resource.as_str(), LONG)).await.unwrap().is_none());
            let proof = leasehold_core::Proof::none();
            let batch: Vec<_> =
                claims.iter().map(|claim| leasehold_core::Renew { claim, proof: &proof }).collect();
            for renewal in one.renew(&batch).await {
                assert!(matches!(renewal, Renewal::Renewed | Renewal::Alive), "{renewal:?}");
            }
            let seen = two.inspect(&claims[0].resource, None, &Patience::none(clock())).await.unwrap();
            assert_eq!(seen.holders.len(), 1);
            assert_eq!(two.list("job ", None, 100).await.unwrap().len(), claims.len());
            let (next, name) =
                (claim(claims[0].resource.as_str(), LONG), claims[0].resource.as_str().to_owned());
            let waiting = {
                let (two, next) = (two.clone(), next.clone());
                tokio::spawn(async move { take(&*two, &next).await })
            };
            tokio::time::sleep(Duration::from_millis(100)).await;
            for answer in one.release(&claims.iter().collect::<Vec<_>>()).await {
                assert!(matches!(answer, Release::Freed), "{name}: {answer:?}");
            }
            waiting.await.unwrap();
            assert!(matches!(release(&*two, &next).await, Release::Freed));
        }
        for finding in one.diagnose(LONG).await {
            assert_ne!(finding.severity, Severity::Unknown, "{method}: {finding:?}");
        }
        if method.contains("row") {
            write_register(&*one).await.unwrap();
            let config = PostgresConfig::parse(&url(method)).unwrap();
            sweep(config, clock(), Duration::ZERO).await.unwrap();
        }
        if method.contains("advisory") || method.contains("for-update") {
            let held = claim("broken", LONG);
            hold(&*one, &held).await;
            assert!(matches!(two.break_claim(&held).await, Ok(leasehold_core::BreakOutcome::Ended { .. })));
        }
    }
    let view = "SET ROLE app; SELECT count(*) FROM r_locks";
    assert_eq!(server.sql(view).await.unwrap().trim(), "0");
}

/// Creates an operator, and a function, in the schema `public` for each pair of types for which
/// `pg_catalog` has none of that name.
const SHADOWS: &str = r#"
DO $do$
DECLARE
  kinds text[] := ARRAY['bool','int2','int4','int8','float8','numeric','text','varchar','name','oid','regclass','timestamptz','timestamp','interval','pg_lsn'];
  l text; r text; o text; f text; made int := 0;
BEGIN
  FOREACH l IN ARRAY kinds LOOP FOREACH r IN ARRAY kinds LOOP
    EXECUTE format('CREATE FUNCTION public.shadow(%1$s, %2$s) RETURNS bool LANGUAGE plpgsql AS $f$ BEGIN RAISE ''called: %1$s %2$s''; END $f$', l, r);
    FOREACH o IN ARRAY ARRAY['=','<>','<','<=','>','>=','+','-','*','/','||','|','&','<<','~~','!~~','~~*','!~~*'] LOOP
      IF NOT EXISTS (SELECT FROM pg_operator WHERE oprname::text = o AND oprleft = l::regtype AND oprright = r::regtype AND oprnamespace = 'pg_catalog'::regnamespace) THEN
        EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.shadow)', o, l, r);
        made := made + 1;
      END IF;
    END LOOP;
    FOREACH f IN ARRAY ARRAY['pg_notify','setval','timezone','repeat','pg_terminate_backend','regexp_match','regexp_split_to_table','set_config'] LOOP
      IF to_regprocedure(format('pg_catalog.%s(%s,%s)', f, l, r)) IS NULL THEN
        EXECUTE format('CREATE FUNCTION public.%1$s(%2$s, %3$s) RETURNS bool LANGUAGE plpgsql AS $f$ BEGIN RAISE ''called: %1$s(%2$s, %3$s)''; END $f$', f, l, r);
        made := made + 1;
      END IF;
    END LOOP;
  END LOOP;
    FOREACH f IN ARRAY ARRAY['pg_walfile_name','nextval','to_regclass','pg_total_relation_size','current_setting','pg_advisory_xact_lock','pg_try_advisory_lock','max','unnest'] LOOP
      IF to_regprocedure(format('pg_catalog.%s(%s)', f, l)) IS NULL THEN
        EXECUTE format('CREATE FUNCTION public.%1$s(%2$s) RETURNS bool LANGUAGE plpgsql AS $f$ BEGIN RAISE ''called: %1$s(%2$s)''; END $f$', f, l);
        made := made + 1;
      END IF;
    END LOOP;
  END LOOP;
  CREATE FUNCTION public.unnest(text[]) RETURNS SETOF text LANGUAGE plpgsql AS $f$ BEGIN RAISE 'called: unnest(text[])'; END $f$;
  CREATE FUNCTION public.substr(text, int8, int8) RETURNS text LANGUAGE plpgsql AS $f$ BEGIN RAISE 'called: substr'; END $f$;
END $do$;
SELECT count(*) FROM pg_operator WHERE oprnamespace = 'public'::regnamespace;
"#;
