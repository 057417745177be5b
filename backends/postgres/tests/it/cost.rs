//! The cost of a lock on the server: transactions, and the access path to its row.

use crate::common;
use crate::common::*;
use leasehold_core::{Proof, Release, Renew, Renewal};
use leasehold_testkit::{PostgresRelay, PostgresServer};

/// Returns the number of transactions that have written something up to now.
async fn writes(server: &PostgresServer) -> i64 {
    server.sql("SELECT pg_current_xact_id()").await.unwrap().trim().parse().unwrap()
}

async fn scans(server: &PostgresServer) -> i64 {
    // What a session has counted reaches others when it has been idle for a second.
    tokio::time::sleep(std::time::Duration::from_millis(1_200)).await;
    let scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'leasehold'";
    server.sql(scans).await.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn ten_thousand_rows_need_no_scan_and_renewals_are_batched() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    server
        .sql(
            "INSERT INTO leasehold SELECT 'filler/' || n, '', n, 1, 1, now(), now() FROM generate_series(1, 10000) n; \
             ANALYZE leasehold",
        )
        .await
        .unwrap();
    let scanned = scans(&server).await;
    let before = writes(&server).await;
    for n in 0..200 {
        let claim = claim(&format!("job/{}", n % 20), LONG);
        hold(&*backend, &claim).await;
        assert!(look_once(&*backend, &common::claim(claim.resource.as_str(), LONG)).await.unwrap().is_none());
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    }
    // One for each acquire, one for each release; a look that was in vain writes nothing, but takes a number.
    let spent = writes(&server).await - before - 1;
    assert!((400..=620).contains(&spent), "{spent} transactions for 200 acquires, looks and releases");
    // Building the index of the new table counts as one scan, which a busy session may report late.
    let more = scans(&server).await - scanned;
    assert!(more <= 1, "the table was scanned {more} times in 600 statements");
}

#[tokio::test]
async fn uncontended_acquire_and_release_take_one_statement_each() {
    let counted = PostgresServer::builder().setting("shared_preload_libraries", "pg_stat_statements");
    let Some(server) = counted.start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    server.sql("CREATE EXTENSION pg_stat_statements; SELECT pg_stat_statements_reset()").await.unwrap();
    for n in 0..100 {
        let claim = claim(&format!("job/{}", n % 20), LONG);
        hold(&*backend, &claim).await;
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    }
    // Grouped by the first word of each statement. A name is inserted once; from then on the client that
    // released it updates its row.
    let sent = "SELECT split_part(query, ' ', 1), sum(calls), sum(rows) FROM pg_stat_statements \
                WHERE query LIKE '%leasehold%' GROUP BY 1 ORDER BY 1";
    assert_eq!(server.sql(sent).await.unwrap().trim(), "UPDATE|180|180\nWITH|20|20");
}

/// Counted on the wire, without the login. The connection itself takes one more.
#[tokio::test]
async fn opening_lock_and_release_take_one_round_trip_each() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    // Creates the tables.
    drop(open(&server.url()).await);
    let folder = tempfile::tempdir().unwrap();
    let relay = PostgresRelay::start(folder.path(), &server).unwrap();
    let backend = open(&relay.url()).await;
    // A login without a password takes one; one with a password takes three.
    assert_eq!((relay.accepted(), relay.round_trips()), (1, 2));
    for round in 0..3 {
        let before = relay.round_trips();
        let claim = claim(&format!("job/{round}"), LONG);
        hold(&*backend, &claim).await;
        let held = relay.round_trips() - before;
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
        let released = relay.round_trips() - before - held;
        // Each statement is prepared when it is sent for the second time.
        assert_eq!((held, released), if round == 1 { (2, 2) } else { (1, 1) }, "{round}");
    }
    assert_eq!(relay.accepted(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_requests_of_tasks_share_commits() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let mut before = 0;
    // A few of a kind are written out, and more are not. The first time nobody has left anything to come
    // back to.
    for tasks in [64, 64, 5, 64] {
        let start = writes(&server).await;
        let mut joined = tokio::task::JoinSet::new();
        for n in 0..tasks {
            let backend = backend.clone();
            joined.spawn(async move {
                let claim = claim(&format!("shared/{n}"), LONG);
                hold(&*backend, &claim).await;
                assert!(matches!(release(&*backend, &claim).await, Release::Freed));
            });
        }
        joined.join_all().await;
        let spent = writes(&server).await - start - 1;
        if before == 64 && tasks == 64 {
            assert!(spent <= 64, "{spent} transactions for {tasks} acquires and as many releases");
        }
        before = tasks;
    }
    let free =
        server.sql("SELECT count(*) FROM leasehold WHERE claims = '' AND lapses <= clock_timestamp()").await;
    assert_eq!(free.unwrap().trim(), "64");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_renewals_are_a_hundred_statements_at_most() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let claims: Vec<_> = (0..10_000).map(|n| claim(&format!("job/{n}"), LONG * 20)).collect();
    let mut tasks = Vec::new();
    for some in claims.chunks(2_500) {
        let (backend, some) = (backend.clone(), some.to_vec());
        tasks.push(tokio::spawn(async move {
            for claim in &some {
                hold(&*backend, claim).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    server.sql("ANALYZE leasehold").await.unwrap();
    let proof = Proof::none();
    let batch: Vec<Renew<'_>> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    for renewer in [backend.clone(), open(&server.url()).await] {
        let before = writes(&server).await;
        let answers = renewer.renew(&batch).await;
        assert!(answers.iter().all(|answer| matches!(answer, Renewal::Renewed)));
        let spent = writes(&server).await - before - 1;
        assert!(spent <= 50, "{spent} statements for 10,000 renewals");
    }
    let references: Vec<_> = claims.iter().collect();
    assert!(backend.release(&references).await.iter().all(|answer| matches!(answer, Release::Freed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_to_a_waiter_reads_its_row_once() {
    let counted = PostgresServer::builder().setting("shared_preload_libraries", "pg_stat_statements");
    let Some(server) = counted.start_or_skip().await else { return };
    let clients = [open(&server.url()).await, open(&server.url()).await];
    server.sql("CREATE EXTENSION pg_stat_statements").await.unwrap();
    let mut held = claim("job", LONG);
    hold(&*clients[0], &held).await;
    let sql = |query: &'static str| {
        let server = &server;
        async move { server.sql(query).await.unwrap().trim().to_owned() }
    };
    for turn in 0..44 {
        if turn == 4 {
            // By now each of them listens.
            sql("SELECT pg_stat_statements_reset()").await;
        }
        let (old, new) = (clients[turn % 2].clone(), clients[(turn + 1) % 2].clone());
        let next = claim("job", LONG);
        let waiting = tokio::spawn(async move {
            take(&*new, &next).await;
            next
        });
        while sql("SELECT count(*) FROM leasehold_locks WHERE state = 'waits'").await != "1" {}
        assert!(matches!(release(&*old, &held).await, Release::Freed));
        held = waiting.await.unwrap();
    }
    // The waiter reads once it is called. The holder has the row from the refusal of its release.
    let reads = "SELECT sum(calls) FROM pg_stat_statements WHERE query LIKE 'SELECT c.name%'";
    let reads: i64 = sql(reads).await.parse().unwrap();
    assert!((40..=50).contains(&reads), "{reads} reads in 40 transfers");
}

/// Judges by the server's positions in its log: what was written, and what was brought to the disk.
#[tokio::test]
async fn grant_waits_for_the_disk_and_release_does_not() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let (observer, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let is_behind = async || -> bool {
        let behind = "SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()";
        observer.query_one(behind, &[]).await.unwrap().get(0)
    };
    let (mut after_grants, mut after_releases, mut after_renewals) = (0, 0, 0);
    for _ in 0..100 {
        let claim = claim("job", LONG);
        hold(&*backend, &claim).await;
        after_grants += u32::from(is_behind().await);
        let renewed = backend.renew(&[Renew { claim: &claim, proof: &Proof::none() }]).await;
        assert!(matches!(renewed[..], [Renewal::Renewed]));
        after_renewals += u32::from(is_behind().await);
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
        after_releases += u32::from(is_behind().await);
    }
    // The server writes its log by itself as well, at any time.
    assert!(after_releases >= 20, "{after_releases} of 100 releases were not on the disk");
    assert!(after_grants <= 10 && after_renewals <= 10, "{after_grants} grants, {after_renewals} renewals");
    drop(observer);
    connection.await.unwrap().unwrap();
}
