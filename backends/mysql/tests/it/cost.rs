//! The cost of a lock on the server: statements, and the access path to its row.

use crate::common;
use crate::common::*;
use leasehold_core::{Proof, Release, Renew, Renewal};
use leasehold_testkit::{MariaDbServer, Proxy};

/// As many renewals as `LEASEHOLD_RENEWALS` says, else two thousand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_rows_need_no_scan_and_renewals_are_batched() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    server
        .sql(
            "INSERT INTO leasehold SELECT CONCAT('filler/', seq), '', seq, 1, 1, 1 FROM seq_1_to_10000; \
             ANALYZE TABLE leasehold",
        )
        .await
        .unwrap();
    let others = open(&server.url()).await;
    let statements = ["Com_insert", "Com_update", "Com_commit"];
    let mut before = Vec::new();
    for name in statements.into_iter().chain(["Handler_read_next", "Handler_read_rnd_next"]) {
        before.push((name, counter(&server, name).await));
    }
    for n in 0..200 {
        let claim = claim(&format!("job/{}", n % 20), LONG);
        hold(&*backend, &claim).await;
        assert!(look_once(&*others, &common::claim(claim.resource.as_str(), LONG)).await.unwrap().is_none());
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    }
    for (name, before) in before {
        let spent = counter(&server, name).await - before;
        // An acquire is one INSERT, which answers with its row, and so is a release. A client that finds a lock
        // held reads it from the answer. Each commits by itself. The kit's questions read a few rows of the
        // server's own.
        let most = match name {
            "Com_insert" => 600,
            "Com_update" | "Com_commit" => 0,
            _ => 5_000,
        };
        assert!(spent <= most, "{name} rose by {spent} in 600 calls");
    }

    let renewals: i64 =
        std::env::var("LEASEHOLD_RENEWALS").map_or(2_000, |renewals| renewals.parse().unwrap());
    let claims: Vec<_> = (0..renewals).map(|n| claim(&format!("many/{n}"), LONG)).collect();
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 0").await.unwrap();
    let mut tasks = Vec::new();
    for some in claims.chunks(500) {
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
    let proof = Proof::none();
    let batch: Vec<Renew<'_>> = claims.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    // Those who have just taken them know their rows; others look first.
    for renewer in [backend.clone(), others] {
        let before = counter(&server, "Com_commit").await;
        let answers = renewer.renew(&batch).await;
        assert!(answers.iter().all(|answer| matches!(answer, Renewal::Renewed)));
        let spent = counter(&server, "Com_commit").await - before;
        assert!((1..=renewals / 100).contains(&spent), "{spent} transactions for {renewals} renewals");
    }
    let references: Vec<_> = claims.iter().collect();
    assert!(backend.release(&references).await.iter().all(|answer| matches!(answer, Release::Freed)));
}

/// Counted on the wire, without the login. The connection itself takes one more, in which the server greets.
#[tokio::test]
async fn opening_lock_and_release_take_one_round_trip_each() {
    let Some(server) = MariaDbServer::builder().password("secret").start_or_skip().await else { return };
    // Creates the tables.
    drop(open(&server.url()).await);
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let backend = open(&server.url_at(proxy.addr())).await;
    assert_eq!((proxy.accepted(), proxy.round_trips()), (1, 2));
    for round in 0..3 {
        let before = proxy.round_trips();
        let claim = claim(&format!("job/{round}"), LONG);
        hold(&*backend, &claim).await;
        let held = proxy.round_trips() - before;
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
        let released = proxy.round_trips() - before - held;
        // The second time a statement is prepared.
        let expected = if round == 1 { (2, 2) } else { (1, 1) };
        assert_eq!((held, released), expected, "{round}");
    }
    assert_eq!(proxy.accepted(), 1);
}
