//! Faults of a server, and of the network to it, that affect locks in rows.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::*;
use leasehold_conformance::{faults, full_disk, locked_rows};
use leasehold_core::{
    Effect, FailureKind, FenceGrade, Patience, Proof, Put, Release, Renew, Renewal, Severity,
};
use leasehold_testkit::surroundings::{fill, inside, private_mounts};
use leasehold_testkit::{Data, MariaDbServer, Proxy, Way, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn restart_keeps_holders_and_waiters() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let both = [open(&server.url()).await, open(&server.url()).await];
    let (kill, restart) = (|| server.kill().unwrap(), async || server.restart(Data::Keep).await.unwrap());
    faults::restart_keeps_holders_and_waiters(both, kill, restart).await;
}

#[tokio::test]
async fn data_loss_loses_the_lock_and_fences_still_rise() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let both = [open(&server.url()).await, open(&server.url()).await];
    let lose = async || server.restart(Data::Lose).await.unwrap();
    faults::data_loss_loses_the_lock_and_fences_still_rise(both, lose).await;
}

/// No epoch records a promotion. The counter follows the clock, so it rises unless the clock of the new
/// primary is behind.
#[tokio::test]
async fn replica_is_refused_until_failover_and_fences_continue_above() {
    let builder = MariaDbServer::builder().replicated().setting("sync-binlog", "1");
    let Some(primary) = builder.start_or_skip().await else { return };
    assert_eq!(open(&primary.url()).await.profile().fencing, FenceGrade::Strict);
    let replica = primary.replica().await.unwrap();
    let url = format!("mysql://root@{},{}/locks?timeout=20s", primary.addr(), replica.addr());
    for read_only in ["ON", "OFF"] {
        // One that may be written to follows all the same.
        replica.sql(&format!("SET GLOBAL read_only = {read_only}")).await.unwrap();
        let failure = connect(&replica.url()).await.unwrap_err();
        assert!(
            failure.kind == FailureKind::Unavailable && failure.detail().contains("replica"),
            "{failure}"
        );
    }

    let backend = open(&url).await;
    assert_eq!(backend.profile().fencing, FenceGrade::BestEffort, "nothing waits for the replica");
    let known = claim("known", LONG);
    hold(&*backend, &known).await;
    replica.await_replication(&primary).await.unwrap();
    replica.sql("STOP SLAVE").await.unwrap();
    let failure = connect(&replica.url()).await.unwrap_err();
    assert!(failure.detail().contains("replica"), "one whose replication has ended: {failure}");
    // These grants do not reach it.
    let lost = claim("lost", LONG);
    let mut highest = hold(&*backend, &lost).await.fence;
    for _ in 0..20 {
        assert!(matches!(release(&*backend, &lost).await, Release::Freed));
        highest = highest.max(hold(&*backend, &lost).await.fence);
    }
    primary.kill().unwrap();
    replica.promote().await.unwrap();

    assert!(matches!(renew_until_known(&*backend, &known).await, Renewal::Renewed), "what it got it keeps");
    let next = claim("lost", LONG);
    let after = take(&*backend, &next).await;
    assert!(after.fence > highest, "{after:?} after {highest:?}");
    assert!(matches!(renew_until_known(&*backend, &lost).await, Renewal::Lost));
    assert!(matches!(release(&*backend, &lost).await, Release::Gone), "it must spare the next holder");
    assert!(matches!(release(&*backend, &next).await, Release::Freed));
}

/// The connections that are open see it too, at their next statement.
#[tokio::test]
async fn primary_set_read_only_grants_nothing() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql("CREATE USER app; GRANT ALL ON locks.* TO app").await.unwrap();
    let backend = open(&format!("mysql://app@{}/locks", server.addr())).await;
    let held = claim("job", LONG);
    hold(&*backend, &held).await;
    server.sql("SET GLOBAL read_only = ON").await.unwrap();
    let Renewal::Unknown(failure) = renew(&*backend, &held).await else { panic!("it was confirmed") };
    assert_eq!(failure.effect, Effect::None, "{failure}");
    assert!(failure.detail().contains("primary"), "{failure}");
    server.sql("SET GLOBAL read_only = OFF").await.unwrap();
    assert!(matches!(renew_until_known(&*backend, &held).await, Renewal::Renewed));
}

/// A user that may write to a read-only server sees, too, that another server may decide by now.
#[tokio::test]
async fn primary_set_read_only_confirms_nothing_to_a_privileged_user() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    for dialect in ["native", "shedlock"] {
        let open_one = async || open(&format!("{}?dialect={dialect}", server.url())).await;
        let clients = [open_one().await, open_one().await, open_one().await, open_one().await];
        let [acquiring, renewing, releasing, batching] = &clients;
        let held = [claim("renewed", LONG), claim("released", LONG), claim("b1", LONG), claim("b2", LONG)];
        let [renewed, released, batched @ ..] = &held;
        hold(&**renewing, renewed).await;
        hold(&**releasing, released).await;
        let proof = Proof::none();
        for claim in batched {
            hold(&**batching, claim).await;
        }
        server.sql("SET GLOBAL read_only = ON").await.unwrap();
        let failure = look_once(&**acquiring, &claim("new", LONG)).await.unwrap_err();
        assert!(failure.detail().contains("read-only"), "{dialect}: {failure}");
        let renewal = renew(&**renewing, renewed).await;
        assert!(matches!(renewal, Renewal::Unknown(_)), "{dialect}: {renewal:?}");
        let end = release(&**releasing, released).await;
        assert!(matches!(end, Release::Unknown(_)), "{dialect}: {end:?}");
        let batch: Vec<Renew<'_>> = batched.iter().map(|claim| Renew { claim, proof: &proof }).collect();
        for renewal in batching.renew(&batch).await {
            assert!(matches!(renewal, Renewal::Unknown(_)), "{dialect}: {renewal:?}");
        }
        // Nor by another connection.
        let failure = look_once(&**acquiring, &claim("new", LONG)).await.unwrap_err();
        assert_eq!(failure.effect, Effect::None, "{dialect}: {failure}");
        server.sql("SET GLOBAL read_only = OFF").await.unwrap();
        assert!(matches!(renew_until_known(&**renewing, renewed).await, Renewal::Renewed));
    }
}

#[tokio::test]
async fn lost_answer_is_settled_by_a_retry_of_the_same_claim() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let backend = open(&format!("{}?timeout=10s", server.url_at(proxy.addr()))).await;
    let direct = open(&server.url()).await;
    // The connection is open then: what is lost must be the answer to a statement on the lock.
    let before = [claim("before", LONG), claim("before too", LONG)];
    for before in &before {
        hold(&*backend, before).await;
        assert!(matches!(renew_until_known(&*backend, before).await, Renewal::Renewed));
    }

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

    assert!(matches!(renew_until_known(&*backend, &lost).await, Renewal::Renewed));
    for before in &before {
        release_until_known(&*backend, before).await;
    }
    proxy.drop_replies();
    assert!(matches!(release(&*backend, &lost).await, Release::Unknown(_)));
    proxy.heal().unwrap();
    wait_for_holder(&*direct, &lost, false).await;
    assert!(look_once(&*direct, &other).await.unwrap().is_some(), "it is released");
    let end = release_until_known(&*backend, &lost).await;
    assert!(matches!(end, Release::Gone), "it must spare the next holder: {end:?}");

    let held = claim("b", LONG);
    take(&*backend, &held).await;
    assert!(matches!(renew_until_known(&*backend, &held).await, Renewal::Renewed));
    proxy.drop_replies();
    assert!(matches!(renew(&*backend, &held).await, Renewal::Unknown(_)));
    proxy.heal().unwrap();
    assert!(matches!(renew_until_known(&*backend, &held).await, Renewal::Renewed));
    release_until_known(&*backend, &held).await;
    wait_for_holder(&*direct, &held, false).await;
}

#[tokio::test]
async fn hanging_server_is_unavailable_until_it_resumes() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    // The tables may take a busy server longer than the short timeout.
    drop(open(&server.url()).await);
    let backend = open(&format!("{}?timeout=3s", server.url())).await;
    let (stop, resume) = (|| server.stop().unwrap(), || server.resume().unwrap());
    faults::hanging_server_is_unavailable_until_it_resumes(&*backend, stop, resume).await;
}

/// Somebody's transaction keeps a row, so that statements of ours wait for it, and are given up.
#[tokio::test]
async fn row_locked_by_another_program_is_awaited_within_patience() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let before = claim("job", LONG);
    let first = open(&server.url()).await;
    hold(&*first, &before).await;
    assert!(matches!(release(&*first, &before).await, Release::Freed));
    let backend = open(&format!("{}?timeout=1s", server.url())).await;
    let ours = async {
        keeps_a_row(&server).await;
        let failure = look_once(&*backend, &claim("job", LONG)).await.unwrap_err();
        // The server says first that the time is over, unless the machine is busy; then nobody knows
        // what came of it.
        let is_known = !failure.detail().contains("did not answer within");
        assert_eq!(failure.kind, FailureKind::Unavailable, "{failure}");
        assert_eq!(failure.effect, if is_known { Effect::None } else { Effect::Unknown }, "{failure}");
        let last = claim("job", LONG);
        let mut waiting = std::pin::pin!(take(&*backend, &last));
        // More than one try of a second each.
        let early = tokio::time::timeout(Duration::from_millis(1_500), &mut waiting).await;
        assert!(early.is_err(), "granted while the stranger keeps the row: {early:?}");
        lets_go(&server).await;
        waiting.await
    };
    let ((), ours) = tokio::join!(stranger(&server, "job"), ours);
    assert!(ours.fence.is_some());
}

/// Statements may wait for five minutes here, so that one that waits for the stranger is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_locked_by_another_program_delays_no_other_lock() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?timeout=5m", server.url())).await;
    let (begin, begins) = tokio::sync::oneshot::channel();
    let stranger = async {
        begins.await.unwrap();
        stranger(&server, locked_rows::LOCKED).await;
    };
    let lock = async || {
        begin.send(()).unwrap();
        keeps_a_row(&server).await;
    };
    let unlock = async || lets_go(&server).await;
    tokio::join!(stranger, locked_rows::a_locked_row_delays_nothing_else(&backend, lock, unlock));
}

/// Keeps a row locked in a transaction of somebody else, until [`lets_go`].
async fn stranger(server: &MariaDbServer, name: &str) {
    let keeps = format!("SELECT 1 FROM leasehold WHERE name = '{name}' FOR UPDATE");
    // It is ended, and says so.
    let end = server.sql(&format!("BEGIN; {keeps}; SELECT SLEEP(600)")).await.unwrap_err().to_string();
    assert!(ENDED.iter().any(|text| end.contains(text)), "{end}");
}

/// Waits until the stranger has the row.
async fn keeps_a_row(server: &MariaDbServer) {
    let has_it = async || server.sql(&format!("SELECT COUNT(*) {ASLEEP}")).await.unwrap().trim() == "1";
    until("the stranger has the row", has_it).await;
}

/// Ends the stranger's connection.
async fn lets_go(server: &MariaDbServer) {
    let id = server.sql(&format!("SELECT id {ASLEEP}")).await.unwrap();
    server.sql(&format!("KILL {}", id.trim())).await.unwrap();
}

/// The errors of the client whose connection is ended: the server says so, or the connection is closed.
const ENDED: [&str; 2] = ["Connection was killed", "Lost connection"];
const ASLEEP: &str = "FROM information_schema.processlist WHERE state = 'User sleep'";

/// The server's data lie on a disk of 200 MB, which somebody else fills.
#[tokio::test]
async fn full_disk_refuses_new_claims_and_holders_keep_their_locks() {
    let name = "faults::full_disk_refuses_new_claims_and_holders_keep_their_locks";
    let script = "mount -t tmpfs -o size=200m,mode=1777 tmpfs \"$DIR\"";
    let Some(dir) = inside(name, &private_mounts(), script) else { return };
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let ballast = dir.join("ballast");
    let (held, first) = full_disk::full_disk_refuses_new_locks_only(&*backend, || fill(&ballast)).await;

    // Nor is it lost where the server ends then.
    server.kill().unwrap();
    assert!(matches!(renew(&*backend, &held).await, Renewal::Unknown(_)));
    std::fs::remove_file(&ballast).unwrap();
    server.restart(Data::Keep).await.unwrap();
    assert!(matches!(renew_until_known(&*backend, &held).await, Renewal::Renewed));
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    let next = take(&*backend, &claim("held", LONG)).await;
    assert!(next.fence > first.fence);
    hold(&*backend, &claim("new", LONG)).await;
}

/// Batches that name the same rows as single statements do, and as a stranger's transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_races_and_deadlocks_are_retried() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql("SET GLOBAL tx_isolation = 'SERIALIZABLE'").await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(open(&server.url()).await);
    }
    // A stranger that takes both rows in the other order would make deadlocks with every batch that
    // waits for rows. It has written more than the batch, so that it is never the one that is given up.
    server.sql("CREATE TABLE heavy (n INT) ENGINE = InnoDB").await.unwrap();
    let pair = [claim("p1", LONG), claim("p2", LONG)];
    let backend = open(&server.url()).await;
    for claim in &pair {
        hold(&*backend, claim).await;
    }
    let stranger = async {
        for _ in 0..10 {
            let crossing = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; BEGIN; INSERT INTO heavy SELECT seq FROM seq_1_to_200; \
                            SELECT 1 FROM leasehold WHERE name = 'p2' FOR UPDATE; SELECT SLEEP(0.03); \
                            SELECT 1 FROM leasehold WHERE name = 'p1' FOR UPDATE; COMMIT";
            server.sql(crossing).await.unwrap();
        }
    };
    let proof = Proof::none();
    let batch: Vec<Renew<'_>> = pair.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    let renewing = async {
        for _ in 0..150 {
            for renewal in backend.renew(&batch).await {
                let is_left = matches!(&renewal, Renewal::Unknown(failure) if failure.effect == Effect::None);
                assert!(is_left || matches!(renewal, Renewal::Renewed), "{renewal:?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::join!(stranger, renewing, faults::all_clients_take_turns(clients));
    assert!(backend.renew(&batch).await.iter().all(|renewal| matches!(renewal, Renewal::Renewed)));
}

/// As many as `LEASEHOLD_CANCELLED` says, else a few hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_waits_leave_no_row_and_no_connection() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    faults::cancelled_waits_leave_no_place(&backend).await;
    drop(backend);
    for tries in 0.. {
        let query =
            "SELECT COUNT(*) FROM information_schema.processlist WHERE host <> 'localhost' AND user = 'root'";
        let open = server.sql(query).await.unwrap();
        if open.trim() == "0" {
            break;
        }
        assert!(tries < 100, "{open} connections are left");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The client does not wait for the rest of an answer, since that may take for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_fell_silent_in_an_answer_is_closed() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    // The tables may take a busy server longer than the short timeout.
    drop(open(&server.url()).await);
    let backend = open(&format!("{}?timeout=2s", server.url_at(proxy.addr()))).await;
    // So many that an answer takes long enough to be cut.
    server
        .sql(
            "INSERT INTO leasehold SELECT CONCAT('long/', seq), REPEAT('x', 60000), seq, 1, 0, \
             (UNIX_TIMESTAMP() + 3600) * 1000000 FROM seq_1_to_1000",
        )
        .await
        .unwrap();
    // On a busy machine an answer may have come as a whole before the connection falls silent.
    let mut rounds = 0;
    let failure = loop {
        assert!(rounds < 10, "each answer came as a whole");
        rounds += 1;
        let before = proxy.bytes(Way::ToClient);
        let listing = {
            let backend = backend.clone();
            tokio::spawn(async move { backend.list("long/", None, 1_000).await })
        };
        while proxy.bytes(Way::ToClient) < before + 200_000 && !listing.is_finished() {
            tokio::task::yield_now().await;
        }
        proxy.blackhole(Way::ToClient);
        match listing.await.unwrap() {
            Ok(whole) => assert_eq!(whole.len(), 1_000),
            Err(failure) => break failure,
        }
        proxy.heal().unwrap();
    };
    assert!(failure.detail().contains("did not answer"), "{failure}");
    for tries in 0.. {
        let open = established(proxy.addr().port());
        if open == 0 {
            break;
        }
        assert!(tries < 1_500, "{open} connections are still open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Connections to this port that are open on the side which has opened them, as the kernel shows them.
fn established(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let remote = format!(":{port:04X}");
    let is_open = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|field| field.ends_with(&remote)) && fields.next() == Some("01")
    };
    table.lines().filter(is_open).count()
}

/// No task waits for ever for a connection that other tasks do not return.
#[tokio::test]
async fn a_wait_for_a_connection_has_a_limit() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    open(&server.url()).await;
    let backend = open(&format!("{}?connections=1&timeout=2s", server.url())).await;
    server.stop().unwrap();
    let mut asked = tokio::task::JoinSet::new();
    for n in 0..6 {
        let backend = backend.clone();
        asked.spawn(async move { look_once(&*backend, &claim(&format!("job {n}"), LONG)).await });
    }
    let answers = asked.join_all().await;
    let failures: Vec<String> = answers.into_iter().map(|answer| answer.unwrap_err().to_string()).collect();
    assert!(failures.iter().any(|text| text.contains("connections=")), "{failures:?}");
    server.resume().unwrap();
}

/// One round trip takes what is free, also after ten seconds without one, as between two renewals.
#[tokio::test]
async fn recently_used_connection_is_not_probed() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let clock = std::sync::Arc::new(leasehold_core::ManualClock::new());
    let config = leasehold_mysql::MySqlConfig::parse(&server.url()).unwrap();
    let backend = leasehold_mysql::connect(config, clock.clone()).await.unwrap();
    let held = claim("job", LONG);
    hold(&*backend, &held).await;
    for (idle, pings) in [(10, 0), (60, 1)] {
        let before = counter(&server, "Com_admin_commands").await;
        clock.advance(Duration::from_secs(idle));
        assert!(matches!(renew(&*backend, &held).await, Renewal::Renewed));
        assert_eq!(counter(&server, "Com_admin_commands").await - before, pings, "after {idle} s");
    }
}

/// Of two replicas the one that nothing waits for may be the one that takes over.
#[tokio::test]
async fn replicas_that_are_not_all_waited_for_are_not_strict() {
    let builder = MariaDbServer::builder().replicated().setting("sync-binlog", "1");
    let Some(primary) = builder.start_or_skip().await else { return };
    open(&primary.url()).await;
    let one = primary.replica().await.unwrap();
    one.sql("SET GLOBAL rpl_semi_sync_slave_enabled = ON").await.unwrap();
    let count = "SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS \
                 WHERE VARIABLE_NAME IN ('Rpl_semi_sync_master_clients', 'Slaves_connected')";
    primary
        .sql(
            "SET GLOBAL rpl_semi_sync_master_enabled = ON, rpl_semi_sync_master_wait_point = 'AFTER_SYNC', \
             rpl_semi_sync_master_timeout = 100000000",
        )
        .await
        .unwrap();
    one.sql("STOP SLAVE; START SLAVE").await.unwrap();
    wait_for_count(&primary, count, "2").await;
    assert_eq!(open(&primary.url()).await.profile().fencing, FenceGrade::Strict);
    let two = MariaDbServer::builder().setting("server-id", "3").start().await.unwrap();
    let follow = format!(
        "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'root'; START SLAVE",
        primary.addr().port()
    );
    two.sql(&follow).await.unwrap();
    wait_for_count(&primary, count, "3").await;
    assert_eq!(open(&primary.url()).await.profile().fencing, FenceGrade::BestEffort);
    drop((one, two));
}

/// A row is deleted by hand, or a table restored.
#[tokio::test]
async fn swap_of_a_register_whose_row_is_gone_writes_nothing() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let (registers, at) = (backend.registers().unwrap(), resource("value"));
    let put = |value: &str| Put { value: Some(value.into()), keep: None };
    let nothing = registers.read(&at).await.unwrap();
    let mut absent = nothing.stamp.clone();
    // As text at first, and prepared later.
    for _ in 0..3 {
        let seen = registers.swap(&at, &absent, &put("one")).await.unwrap().unwrap();
        server.sql("DELETE FROM leasehold_registers").await.unwrap();
        for _ in 0..2 {
            assert_eq!(registers.swap(&at, &seen, &put("refused")).await.unwrap(), None);
            let found = registers.read(&at).await.unwrap();
            assert_eq!(found, nothing, "a swap that was refused wrote something");
            absent = found.stamp;
        }
        let seen = registers.swap(&at, &absent, &put("two")).await.unwrap().unwrap();
        let seen = registers.swap(&at, &seen, &put("three")).await.unwrap().unwrap();
        assert_eq!(registers.read(&at).await.unwrap().value.as_deref(), Some(&b"three"[..]));
        let gone = Put { value: None, keep: None };
        absent = registers.swap(&at, &seen, &gone).await.unwrap().unwrap();
    }
}

/// The server counts a row whose trigger sets a column as changed, even where the statement leaves it.
#[tokio::test]
async fn trigger_that_sets_a_column_makes_no_second_holder() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    for table in ["leasehold", "leasehold_registers"] {
        let trigger = format!(
            "ALTER TABLE {table} ADD COLUMN looks BIGINT NOT NULL DEFAULT 0; \
             CREATE TRIGGER looks_{table} BEFORE UPDATE ON {table} FOR EACH ROW SET NEW.looks = OLD.looks + 1"
        );
        server.sql(&trigger).await.unwrap();
    }
    let findings = backend.diagnose(LONG).await;
    let table = findings.iter().find(|finding| finding.topic == "table").unwrap();
    assert!(table.severity == Severity::Notice && table.found.contains("triggers: 1"), "{table:?}");
    nothing_is_granted_twice(&server, &server.url()).await;
}

/// Proxies ask for the count of the rows that a statement found, in which an unchanged one is counted.
#[tokio::test]
async fn count_of_found_rows_makes_no_second_holder() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let proxy = counts_found_rows(server.addr()).await;
    nothing_is_granted_twice(&server, &server.url_at(proxy)).await;
}

/// A held lock is refused to clients that come to it through `url`, and a register is made only once.
async fn nothing_is_granted_twice(server: &MariaDbServer, url: &str) {
    let holder = open(&server.url()).await;
    let held = claim("job", LONG);
    hold(&*holder, &held).await;
    // For the first time as text, and later perhaps as a prepared statement.
    let backend = open(url).await;
    for _ in 0..3 {
        assert!(look_once(&*backend, &claim("job", LONG)).await.unwrap().is_none(), "two hold it");
    }
    assert!(matches!(renew_until_known(&*holder, &held).await, Renewal::Renewed));
    let at = resource("value");
    let [ours, theirs] = [&holder, &backend].map(|client| client.registers().unwrap());
    let absent = ours.read(&at).await.unwrap().stamp;
    let put = |value: &str| Put { value: Some(value.into()), keep: None };
    assert!(ours.swap(&at, &absent, &put("one")).await.unwrap().is_some());
    assert!(theirs.swap(&at, &absent, &put("two")).await.unwrap().is_none(), "it is made twice");
    // What is free is granted that way too, and goes back.
    let other = claim("other", LONG);
    for _ in 0..3 {
        hold(&*backend, &other).await;
        assert!(matches!(release(&*backend, &other).await, Release::Freed));
    }
}

/// Starts a way to the server on which each login asks for the count of found rows.
async fn counts_found_rows(server: SocketAddr) -> SocketAddr {
    const FOUND_ROWS: u8 = 2;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(server).await.unwrap();
            tokio::spawn(async move {
                // The server's greeting, and the beginning of the answer: a header, and the capabilities.
                for (from, to) in [(&mut server, &mut client)] {
                    let mut header = [0; 4];
                    from.read_exact(&mut header).await?;
                    let length = u32::from_le_bytes([header[0], header[1], header[2], 0]);
                    let mut greeting = vec![0; usize::try_from(length).unwrap()];
                    from.read_exact(&mut greeting).await?;
                    to.write_all(&[&header[..], &greeting].concat()).await?;
                }
                let mut login = [0; 5];
                client.read_exact(&mut login).await?;
                login[4] |= FOUND_ROWS;
                server.write_all(&login).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    addr
}

/// On MariaDB such an answer has no number of the statement itself.
#[tokio::test]
async fn trigger_that_draws_numbers_leaves_fences_as_they_are() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    for (method, table) in [("row", "leasehold"), ("for-update", "leasehold_rows_held")] {
        let backend = open(&format!("{}?method={method}", server.url())).await;
        let log = format!("{table}_log");
        server.sql(&format!("CREATE TABLE {log} (n INT AUTO_INCREMENT PRIMARY KEY)")).await.unwrap();
        for event in ["INSERT", "UPDATE"] {
            let trigger = format!(
                "CREATE TRIGGER {event}_{table} AFTER {event} ON {table} FOR EACH ROW \
                 INSERT INTO {log} VALUES (NULL)"
            );
            server.sql(&trigger).await.unwrap();
        }
        // The last one comes to a row that another client left empty.
        let clients =
            [&backend, &backend, &backend, &open(&format!("{}?method={method}", server.url())).await];
        let mut last = None;
        for client in clients {
            let claim = claim("job", LONG);
            let fence = hold(&**client, &claim).await.fence.unwrap();
            let seq = server.sql(&format!("SELECT seq FROM {table} WHERE name = 'job'")).await.unwrap();
            assert_eq!(fence.seq.to_string(), seq.trim(), "{method}");
            assert!(last < Some(fence), "{method}: {fence:?} after {last:?}");
            last = Some(fence);
            assert!(matches!(release(&**client, &claim).await, Release::Freed));
        }
    }
}

/// It cuts the answers to all statements of a session that does not set it.
#[tokio::test]
async fn limit_of_answers_set_on_the_server_is_not_obeyed() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql("SET GLOBAL sql_select_limit = 1").await.unwrap();
    let backend = open(&server.url()).await;
    let held = ["one", "two", "three", "four"].map(|name| claim(name, LONG));
    for claim in &held {
        hold(&*backend, claim).await;
    }
    let proof = Proof::none();
    let batch: Vec<Renew<'_>> = held.iter().map(|claim| Renew { claim, proof: &proof }).collect();
    for renewal in backend.renew(&batch).await {
        assert!(matches!(renewal, Renewal::Renewed), "{renewal:?}");
    }
}

/// There each question for a setting of the server would be a warning.
#[tokio::test]
async fn log_of_statements_gets_no_question_for_a_setting() {
    let builder = MariaDbServer::builder().replicated().setting("binlog-format", "statement");
    let Some(server) = builder.start_or_skip().await else { return };
    let (backend, held) = (open(&server.url()).await, claim("job", LONG));
    for _ in 0..3 {
        hold(&*backend, &held).await;
        assert!(matches!(release(&*backend, &held).await, Release::Freed));
    }
    let log = std::fs::read_to_string(server.log_path()).unwrap();
    assert!(!log.contains("Unsafe statement"), "{log}");
}
