//! Faults of a server, and of the network to it, that affect locks in rows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use leasehold_conformance::{faults, full_disk, locked_rows};
use leasehold_core::{Effect, FailureKind, Patience, Proof, Release, Renew, Renewal, Severity, WaitMode};
use leasehold_testkit::surroundings::{fill, inside, private_mounts};
use leasehold_testkit::{Data, PgBouncer, PoolMode, PostgresServer, Proxy, until};

#[tokio::test]
async fn restart_keeps_holders_and_waiters() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let both = [open(&server.url()).await, open(&server.url()).await];
    let (kill, restart) = (|| server.kill().unwrap(), async || server.restart(Data::Keep).await.unwrap());
    faults::restart_keeps_holders_and_waiters(both, kill, restart).await;
}

#[tokio::test]
async fn data_loss_loses_the_lock_and_fences_still_rise() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let both = [open(&server.url()).await, open(&server.url()).await];
    let lose = async || server.restart(Data::Lose).await.unwrap();
    faults::data_loss_loses_the_lock_and_fences_still_rise(both, lose).await;
}

#[tokio::test]
async fn promoted_standby_continues_above_unreplicated_fences() {
    let Some(primary) = PostgresServer::start_or_skip().await else { return };
    let standby = primary.standby().await.unwrap();
    let url = format!("postgres://postgres@{},{}/postgres?timeout=30s", primary.addr(), standby.addr());
    let failure = connect(&standby.url()).await.unwrap_err();
    assert!(failure.kind == FailureKind::Unavailable && failure.detail().contains("standby"), "{failure}");

    let backend = open(&url).await;
    let known = claim("known", LONG);
    let before = hold(&*backend, &known).await;
    primary.await_standbys(1).await.unwrap();
    standby.kill().unwrap();
    // These grants reach no standby.
    let mut highest = before.fence;
    for _ in 0..20 {
        let lost = claim("lost", LONG);
        highest = highest.max(hold(&*backend, &lost).await.fence);
        assert!(matches!(release(&*backend, &lost).await, Release::Freed));
    }
    let lost = claim("lost", LONG);
    highest = highest.max(hold(&*backend, &lost).await.fence);
    primary.kill().unwrap();
    standby.restart(Data::Keep).await.unwrap();
    standby.promote().await.unwrap();

    assert!(matches!(renew_until_known(&*backend, &known).await, Renewal::Renewed), "what it got it keeps");
    let next = claim("lost", LONG);
    let after = take(&*backend, &next).await;
    assert!(after.fence > highest, "{after:?} after {highest:?}");
    assert_eq!(after.fence.unwrap().epoch, before.fence.unwrap().epoch + 1, "by the timeline");
    assert!(matches!(renew_until_known(&*backend, &lost).await, Renewal::Lost));
    assert!(matches!(release(&*backend, &lost).await, Release::Gone), "it must spare the next holder");
    assert!(matches!(release(&*backend, &next).await, Release::Freed));
}

/// The standby has the row as its client left it, and lacks what another client was granted afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_cells_are_taken_in_the_epoch_of_a_promotion() {
    let Some(primary) = PostgresServer::start_or_skip().await else { return };
    let standby = primary.standby().await.unwrap();
    let url = format!("postgres://postgres@{},{}/postgres?timeout=30s", primary.addr(), standby.addr());
    let (backend, other) = (open(&url).await, open(&url).await);
    let names = ["one", "two", "three"];
    for _ in 0..3 {
        for name in names {
            let left = claim(name, LONG);
            hold(&*backend, &left).await;
            assert!(matches!(release(&*backend, &left).await, Release::Freed));
        }
    }
    // What is committed after a release brings it to the standby as well.
    hold(&*backend, &claim("known", LONG)).await;
    primary.await_standbys(1).await.unwrap();
    standby.kill().unwrap();
    let mut highest = None;
    for name in names {
        let lost = claim(name, LONG);
        highest = highest.max(hold(&*other, &lost).await.fence);
        assert!(matches!(release(&*other, &lost).await, Release::Freed));
    }
    primary.kill().unwrap();
    standby.restart(Data::Keep).await.unwrap();
    standby.promote().await.unwrap();

    let first = take(&*backend, &claim(names[0], LONG)).await;
    // Tasks that ask at the same time share a statement.
    let (second, third) = (claim(names[1], LONG), claim(names[2], LONG));
    let (second, third) = tokio::join!(take(&*backend, &second), take(&*backend, &third));
    for after in [first, second, third] {
        assert!(after.fence > highest, "{after:?} after {highest:?}");
        assert_eq!(after.fence.unwrap().epoch, highest.unwrap().epoch + 1, "by the timeline");
    }
}

#[tokio::test]
async fn lost_answer_is_settled_by_a_retry_of_the_same_claim() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let backend = open(&format!("{}?timeout=10s", server.url_at(proxy.addr()))).await;
    assert_eq!(backend.profile().waiting, WaitMode::Notifies, "a way that keeps sessions may listen");
    let direct = open(&server.url()).await;

    let (lost, other) = (claim("a", LONG), claim("a", LONG));
    proxy.drop_replies();
    let failure = look_once(&*backend, &lost).await.unwrap_err();
    assert_eq!(failure.effect, Effect::Unknown, "{failure}");
    wait_for_holder(&*direct, &lost, true).await;
    assert!(look_once(&*direct, &other).await.unwrap().is_none(), "it happened");
    proxy.heal().unwrap();
    let again = take(&*backend, &lost).await;
    let seen = direct.inspect(&resource("a"), None, &Patience::none(clock())).await.unwrap();
    assert_eq!(seen.holders.len(), 1);
    assert_eq!(seen.holders[0].fence, again.fence);

    proxy.drop_replies();
    assert!(matches!(release(&*backend, &lost).await, Release::Unknown(_)));
    proxy.heal().unwrap();
    // What a release has to find out first may have been all that was lost.
    release_until_known(&*backend, &lost).await;
    assert!(look_once(&*direct, &other).await.unwrap().is_some(), "it is released");
    let end = release_until_known(&*backend, &lost).await;
    assert!(matches!(end, Release::Gone), "it must spare the next holder: {end:?}");

    let (held, other) = (claim("b", LONG), claim("b", LONG));
    take(&*backend, &held).await;
    proxy.drop_replies();
    assert!(matches!(renew(&*backend, &held).await, Renewal::Unknown(_)));
    proxy.heal().unwrap();
    assert!(matches!(renew_until_known(&*backend, &held).await, Renewal::Renewed));
    release_until_known(&*backend, &held).await;
    take(&*backend, &other).await;
    proxy.drop_replies();
    assert!(matches!(release(&*backend, &other).await, Release::Unknown(_)));
    wait_for_holder(&*direct, &other, false).await;
    assert!(look_once(&*direct, &held).await.unwrap().is_some(), "the release happened in one step");
}

#[tokio::test]
async fn hanging_server_is_unavailable_until_it_resumes() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    // The tables may take a busy server longer than the short timeout.
    drop(open(&server.url()).await);
    let backend = open(&format!("{}?timeout=3s", server.url())).await;
    let (stop, resume) = (|| server.stop().unwrap(), || server.resume().unwrap());
    faults::hanging_server_is_unavailable_until_it_resumes(&*backend, stop, resume).await;
}

/// The connections that are open see it too, at their next statement.
#[tokio::test]
async fn primary_set_read_only_grants_nothing() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let held = claim("job", LONG);
    hold(&*backend, &held).await;
    let set = async |read_only: &str| {
        server.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {read_only}")).await.unwrap();
        server.sql("SELECT pg_reload_conf()").await.unwrap();
    };
    set("on").await;
    // Sessions read their settings again when the server signals them, and not all at once.
    let mut reported = None;
    for _ in 0..200 {
        match renew(&*backend, &held).await {
            Renewal::Renewed => tokio::time::sleep(Duration::from_millis(20)).await,
            Renewal::Unknown(failure) => {
                reported = Some(failure);
                break;
            }
            answer => panic!("{answer:?}"),
        }
    }
    let failure = reported.expect("it was confirmed to the end");
    assert_eq!((failure.kind, failure.effect), (FailureKind::Unavailable, Effect::None), "{failure}");
    assert!(failure.detail().contains("connect to the primary"), "{failure}");
    assert!(look_once(&*backend, &claim("other", LONG)).await.is_err());
    set("off").await;
    assert!(matches!(renew_until_known(&*backend, &held).await, Renewal::Renewed));
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
}

/// The server's data lie on a disk of 200 MB, which somebody else fills.
#[tokio::test]
async fn full_disk_refuses_new_claims_and_holders_keep_their_locks() {
    let name = "faults::full_disk_refuses_new_claims_and_holders_keep_their_locks";
    let script = "mount -t tmpfs -o size=200m,mode=1777 tmpfs \"$DIR\"";
    let Some(dir) = inside(name, &private_mounts(), script) else { return };
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let ballast = dir.join("ballast");
    let (held, first) = full_disk::full_disk_refuses_new_locks_only(&*backend, || fill(&ballast)).await;

    // If the log has no room either, the server goes down, and no claim is reported as lost.
    drop(server.sql("SELECT pg_switch_wal(); CREATE TABLE more AS SELECT generate_series(1, 2000000)").await);
    for _ in 0..20 {
        match renew(&*backend, &held).await {
            Renewal::Renewed | Renewal::Unknown(_) => {}
            answer => panic!("on a full disk a renewal was answered with {answer:?}"),
        }
    }
    std::fs::remove_file(&ballast).unwrap();
    server.restart(Data::Keep).await.unwrap();
    assert!(matches!(renew_until_known(&*backend, &held).await, Renewal::Renewed));
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    let next = take(&*backend, &claim("held", LONG)).await;
    assert!(next.fence > first.fence);
}

/// All clients want the same few names, under an isolation level that fails every client but the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_races_are_retried() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    server.sql("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'").await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(open(&server.url()).await);
    }
    // Until somebody has lost one.
    for _ in 0..20 {
        faults::all_clients_take_turns(clients.clone()).await;
        if log(&server).contains("could not serialize access") {
            return;
        }
    }
    panic!("nobody ever lost a race");
}

/// Statements may wait for five minutes here, so that one that waits for the stranger is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_locked_by_another_program_delays_no_other_lock() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?timeout=5m", server.url())).await;
    let (begin, begins) = tokio::sync::oneshot::channel();
    let stranger = async {
        begins.await.unwrap();
        let keeps = format!("SELECT 1 FROM leasehold WHERE name = '{}' FOR UPDATE", locked_rows::LOCKED);
        // It is ended, and says so.
        let end = server.sql(&format!("BEGIN; {keeps}; SELECT pg_sleep(600)")).await.unwrap_err().to_string();
        assert!(end.contains("terminating connection due to administrator command"), "{end}");
    };
    let asleep = "FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let lock = async || {
        begin.send(()).unwrap();
        let has_it = async || server.sql(&format!("SELECT count(*) {asleep}")).await.unwrap().trim() == "1";
        until("the stranger has the row", has_it).await;
    };
    let unlock = async || {
        server.sql(&format!("SELECT pg_terminate_backend(pid) {asleep}")).await.unwrap();
    };
    tokio::join!(stranger, locked_rows::a_locked_row_delays_nothing_else(&backend, lock, unlock));
}

/// A stranger takes the rows of a batch one after the other, in the other order. A batch waits for no
/// row, so it cannot take part in a deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_takes_part_in_no_deadlock() {
    let Some(server) = PostgresServer::builder().setting("deadlock_timeout", "200ms").start_or_skip().await
    else {
        return;
    };
    let backend = open(&server.url()).await;
    let pair = [claim("p1", LONG), claim("p2", LONG)];
    for claim in &pair {
        hold(&*backend, claim).await;
    }
    let is_over = AtomicBool::new(false);
    let stranger = async {
        for round in 0..20 {
            let (first, second) = if round % 2 == 0 { ("p2", "p1") } else { ("p1", "p2") };
            let crossing = format!(
                "BEGIN; SELECT 1 FROM leasehold WHERE name = '{first}' FOR UPDATE; SELECT pg_sleep(0.05); \
                 SELECT 1 FROM leasehold WHERE name = '{second}' FOR UPDATE; COMMIT"
            );
            server.sql(&crossing).await.unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
    };
    let proof = Proof::none();
    let batch: Vec<Renew<'_>> = pair.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    let renewing = async {
        while !is_over.load(Ordering::SeqCst) {
            for renewal in backend.renew(&batch).await {
                let is_left = matches!(&renewal, Renewal::Unknown(failure) if failure.effect == Effect::None);
                assert!(is_left || matches!(renewal, Renewal::Renewed), "{renewal:?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::join!(stranger, renewing);
    assert!(!log(&server).contains("deadlock detected"), "{}", log(&server));
    assert!(backend.renew(&batch).await.iter().all(|renewal| matches!(renewal, Renewal::Renewed)));
}

/// Returns the server's log, with its messages about statements that failed.
fn log(server: &PostgresServer) -> String {
    std::fs::read_to_string(server.log_path()).unwrap()
}

/// As many as `LEASEHOLD_CANCELLED` says, else a few hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_waits_leave_no_row_and_no_connection() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    faults::cancelled_waits_leave_no_place(&backend).await;
    drop(backend);
    for tries in 0.. {
        let query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
        let open = server.sql(query).await.unwrap();
        if open.trim() == "0" {
            break;
        }
        assert!(tries < 100, "{open} connections are left");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_pooler_is_recognised_by_what_its_sessions_keep() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for (mode, sessions, waiting) in [
        (PoolMode::Session, 20, WaitMode::Notifies),
        (PoolMode::Transaction, 1, WaitMode::Polls),
        (PoolMode::Transaction, 5, WaitMode::Polls),
    ] {
        let Some(pooler) = PgBouncer::start_or_skip(&server, mode, sessions).await else { return };
        let backend = open(&server.url_at(pooler.addr())).await;
        assert_eq!(backend.profile().waiting, waiting, "{mode:?} of {sessions}");
        let findings = backend.diagnose(LONG).await;
        let found = findings.iter().find(|finding| finding.topic == "pooler").unwrap();
        let shared = mode == PoolMode::Transaction;
        assert_eq!(found.severity == Severity::Notice, shared, "{found:?}");
        let claim = claim("job", LONG);
        hold(&*backend, &claim).await;
        assert!(matches!(renew(&*backend, &claim).await, Renewal::Renewed));
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    }
}

/// Another client takes the session that was just set, and gives it back, so that by chance the one that
/// set it gets it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_pooler_is_recognised_each_time() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let Some(pooler) = PgBouncer::start_or_skip(&server, PoolMode::Transaction, 4).await else { return };
    // The tables may take a busy server longer than the short timeout.
    drop(open(&server.url()).await);
    let url = server.url_at(pooler.addr());
    let (other, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let busy = tokio::spawn(async move {
        loop {
            other.batch_execute("SELECT 1").await.unwrap();
        }
    });
    for round in 0..100 {
        let backend = open(&format!("{url}?timeout=2s")).await;
        assert_eq!(backend.profile().waiting, WaitMode::Polls, "round {round}");
    }
    assert!(!busy.is_finished());
    busy.abort();
}
