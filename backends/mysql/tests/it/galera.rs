//! Faults of a Galera cluster that affect locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use leasehold_conformance::{faults, patience_for};
use leasehold_core::{Durability, FailureKind, FenceGrade, Patience, Release, Renewal, Severity};
use leasehold_mysql::{MySqlConfig, in_transaction_sql, schema};
use leasehold_testkit::{GaleraCluster, MariaDbServer};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn galera_clients_exclude_each_other_and_retry_certification() {
    let Some(cluster) = GaleraCluster::start_or_skip(2).await else { return };
    let urls: Vec<String> = cluster.servers().iter().map(MariaDbServer::url).collect();
    // All come at once, and the tables are not there yet.
    let connecting: Vec<_> = (0..8)
        .map(|n| {
            let url = urls[n % 2].clone();
            tokio::spawn(async move { connect(&url).await })
        })
        .collect();
    let mut clients = Vec::new();
    for client in connecting {
        clients.push(client.await.unwrap().unwrap());
    }

    let profile = clients[0].profile();
    assert_eq!((profile.fencing, profile.durability), (FenceGrade::BestEffort, Durability::LostOnFailover));
    let findings = clients[0].diagnose(LONG).await;
    let found = findings.iter().find(|finding| finding.topic == "replication").unwrap();
    assert!(found.severity == Severity::Risk && found.found.contains("cluster"), "{found:?}");
    for method in ["get-lock", "for-update"] {
        let failure = connect(&format!("{}?method={method}", urls[0])).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported, "{method}");
        assert!(failure.detail().contains("method=row"), "{failure}");
    }

    // The reason for the refusal, which also matters to programs that take the lock in a transaction of
    // their own.
    let [here, there] = cluster.servers() else { panic!("two were asked for") };
    let locking = MySqlConfig::parse(&format!("{}?method=for-update", urls[0])).unwrap();
    here.sql(schema(&locking).split_once(';').unwrap().1).await.unwrap();
    here.sql("INSERT INTO leasehold_rows VALUES ('job')").await.unwrap();
    there.sql("SET SESSION wsrep_sync_wait = 1; SELECT name FROM leasehold_rows").await.unwrap();
    let text = in_transaction_sql(&locking);
    let mut both = Vec::new();
    for url in &urls {
        let mut user = Conn::new(Opts::from_url(url).unwrap()).await.unwrap();
        user.query_drop("START TRANSACTION").await.unwrap();
        user.exec_drop(&text, ("job",)).await.unwrap();
        let given: Option<u8> = user.query_first("SELECT GET_LOCK('job', 0)").await.unwrap();
        assert_eq!(given, Some(1));
        both.push(user);
    }
    for mut user in both {
        user.query_drop("COMMIT").await.unwrap();
    }

    // The next request to the other server sees everything that one server has confirmed.
    let (here, there) = (clients[0].clone(), clients[1].clone());
    let mut last = None;
    for round in 0..100 {
        let claim = claim("from hand to hand", LONG);
        let grant = hold(&*here, &claim).await;
        assert!(grant.fence > last, "{grant:?} after {last:?}");
        last = grant.fence;
        let renewal = renew(&*there, &claim).await;
        assert!(matches!(renewal, Renewal::Renewed), "round {round}: {renewal:?}");
        let release = release(&*there, &claim).await;
        assert!(matches!(release, Release::Freed), "round {round}: {release:?}");
    }

    // Until two servers have changed the same row, and one of them gets an error because it came too late.
    for _ in 0..20 {
        faults::all_clients_take_turns(clients.clone()).await;
        let mut lost = 0;
        for server in cluster.servers() {
            lost += counter(server, "wsrep_local_cert_failures").await;
            lost += counter(server, "wsrep_local_bf_aborts").await;
        }
        if lost > 0 {
            return;
        }
    }
    panic!("no two servers ever changed the same row");
}

/// A server of the cluster runs a statement again whose change came too late, unless that is switched off. The
/// second run changes nothing, and the answer is that of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn galera_release_that_came_too_late_is_not_reported_as_made() {
    let Some(cluster) = GaleraCluster::start_or_skip(2).await else { return };
    let urls: Vec<String> = cluster.servers().iter().map(MariaDbServer::url).collect();
    // Creating the tables takes the servers longer than anything else.
    drop(open(&urls[0]).await);
    let is_over = Arc::new(AtomicBool::new(false));
    let mut passers_by = Vec::new();
    for n in 0..6 {
        let (backend, is_over) = (open(&urls[n % 2]).await, is_over.clone());
        passers_by.push(tokio::spawn(async move {
            while !is_over.load(Ordering::SeqCst) {
                // It joins the queue, and leaves it before its turn.
                let claim = claim("job", LONG);
                let patience = patience_for(&clock(), Duration::from_millis(2));
                let _ = backend.contend(&claim, &patience).await;
                release(&*backend, &claim).await;
            }
        }));
    }
    let backend = open(&urls[1]).await;
    for round in 0..ROUNDS {
        let claim = claim("job", LONG);
        take(&*backend, &claim).await;
        assert!(matches!(renew(&*backend, &claim).await, Renewal::Renewed), "round {round}");
        assert!(matches!(release(&*backend, &claim).await, Release::Freed), "round {round}");
        let seen = backend.inspect(&claim.resource, None, &Patience::none(clock())).await.unwrap();
        let left = seen.holders.iter().find(|holder| holder.id == claim.id);
        assert!(left.is_none(), "round {round}: it was released, and is still there: {left:?}");
    }
    is_over.store(true, Ordering::SeqCst);
    for passer_by in passers_by {
        passer_by.await.unwrap();
    }
}

const ROUNDS: u32 = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn galera_server_without_quorum_decides_and_loses_nothing() {
    let Some(cluster) = GaleraCluster::start_or_skip(2).await else { return };
    let [here, there] = cluster.servers() else { panic!("two were asked for") };
    // Creating the tables takes the servers longer than anything else.
    drop(open(&here.url()).await);
    // Both are named, as is usual for clients of a cluster.
    let url = format!("mysql://root@{},{}/locks?timeout=2s", there.addr(), here.addr());
    let backend = open(&url).await;
    let held = claim("job", LONG);
    let before = take(&*backend, &held).await;
    there.kill().unwrap();
    let mut said = String::new();
    let began = Instant::now();
    // It takes the server some seconds to notice that it is alone, and longer on a busy machine.
    while !said.contains("cluster") {
        assert!(began.elapsed() < Duration::from_secs(60), "{said}");
        let renewal = renew(&*backend, &held).await;
        assert!(matches!(renewal, Renewal::Unknown(_)), "{renewal:?}");
        let failure = look_once(&*backend, &claim("other", LONG)).await.unwrap_err();
        assert!(failure.is_transient(), "{failure}");
        said = failure.detail().to_owned();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.form_cluster_alone(0).await.unwrap();
    assert!(matches!(renew_until_known(&*backend, &held).await, Renewal::Renewed));
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    let after = take(&*backend, &claim("job", LONG)).await;
    assert!(after.fence > before.fence, "{after:?} after {before:?}");
}
