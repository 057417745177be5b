//! Locks that a connection holds: what ends them, what they leave, and who else takes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use leasehold_conformance::breaking::{self, Shared};
use leasehold_core::{
    Backend, BreakOutcome, Claim, ClaimInfo, FailureKind, Grant, Patience, Release, Renewal, Severity,
};
use leasehold_testkit::peers::{self, Peer};
use leasehold_testkit::{Data, MariaDbServer, require};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};

/// A statement may take half of the silence, which a busy machine needs.
const SESSIONS: &str = "method=get-lock&silence=10s";
const TRANSACTIONS: &str = "method=for-update&silence=10s&transactions=60";
/// The time of silence, and some more: less than the server waits for a silent client.
const SEEN: Duration = Duration::from_secs(16);
const METHODS: [&str; 2] = [SESSIONS, TRANSACTIONS];

async fn here(server: &MariaDbServer) -> std::sync::Arc<dyn Backend> {
    open(&format!("{}?{SESSIONS}", server.url())).await
}

/// Waits until the loss is reported.
async fn sees_loss(grant: &mut Grant, within: Duration) {
    let lost = grant.lost.as_mut().unwrap();
    assert!(
        tokio::time::timeout(within, lost.fired()).await.is_ok(),
        "the loss was not reported within {within:?}"
    );
}

/// Waits until so many locks are held that are shown.
async fn locks_become(server: &MariaDbServer, count: usize, why: &str) {
    for _ in 0..200 {
        if locks(server).await.lines().count() == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{why}: {}", locks(server).await);
}

/// Names of locks that are held, as the server knows them.
async fn locks(server: &MariaDbServer) -> String {
    let query = "SELECT lock_name FROM leasehold_held WHERE IS_USED_LOCK(CONVERT(lock_name USING utf8mb4))";
    server.sql(query).await.unwrap()
}

#[tokio::test]
async fn connection_killed_by_the_server_reports_loss_of_its_locks() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    // The server's own idea of a dead connection is none for ours.
    server.sql("SET GLOBAL wait_timeout = 1").await.unwrap();
    let (one, two) = (here(&server).await, here(&server).await);
    let (a, b) = (claim("a", LONG), claim("b", LONG));
    let (mut held_a, mut held_b) = (hold(&*one, &a).await, hold(&*one, &b).await);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(matches!(renew(&*one, &a).await, Renewal::Alive), "signs of life keep it");
    let session = server.sql("SELECT session FROM leasehold_held WHERE name = 'a'").await.unwrap();
    server.sql(&format!("KILL {}", session.trim())).await.unwrap();
    // Another client gets it at once, and both holders see the loss within the time of silence.
    let next = claim("a", LONG);
    let second = take(&*two, &next).await;
    assert!(second.fence > held_a.fence, "{second:?} after {held_a:?}");
    sees_loss(&mut held_a, SEEN).await;
    sees_loss(&mut held_b, SEEN).await;
    assert!(matches!(renew(&*one, &a).await, Renewal::Lost));
    assert!(matches!(release(&*one, &a).await, Release::Gone), "it must spare the next holder");
    assert!(matches!(renew(&*two, &next).await, Renewal::Alive));
    // A new session is opened for the next lock.
    assert!(hold(&*one, &claim("b", LONG)).await.fence > held_b.fence);
}

/// Another server may decide by then.
#[tokio::test]
async fn sessions_of_a_server_that_was_set_read_only_end() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    for method in METHODS {
        let backend = open(&format!("{}?{method}", server.url())).await;
        let (kept, released) = (claim("kept", LONG), claim("released", LONG));
        let mut grant = hold(&*backend, &kept).await;
        hold(&*backend, &released).await;
        server.sql("SET GLOBAL read_only = 1").await.unwrap();
        // Also of a user who may write all the same.
        assert!(backend.contend(&claim("next", LONG), &Patience::none(clock())).await.is_err(), "{method}");
        sees_loss(&mut grant, SEEN).await;
        assert!(!matches!(release(&*backend, &kept).await, Release::Freed), "{method}");
        server.sql("SET GLOBAL read_only = 0").await.unwrap();
        hold(&*backend, &claim("next", LONG)).await;
    }
}

/// It would free locks whose holders believe in them.
#[tokio::test]
async fn server_that_gives_up_silent_clients_early_is_refused() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let settings = async |time: u32, interval: u32, probes: u32| {
        let settings = format!(
            "SET GLOBAL tcp_keepalive_time = {time}, GLOBAL tcp_keepalive_interval = {interval}, \
             GLOBAL tcp_keepalive_probes = {probes}"
        );
        server.sql(&settings).await.unwrap();
    };
    for method in METHODS {
        // The server has to keep a silent client for twice as long.
        let url = format!("{}?{}", server.url(), method.replace("silence=10s", "silence=3s"));
        settings(1, 1, 4).await;
        let failure = connect(&url).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
        assert!(failure.detail().contains("tcp_keepalive_time"), "{failure}");
        // Leases do not depend on connections.
        open(&server.url()).await;
        for (time, interval, probes) in [(1, 1, 5), (1, 0, 0), (0, 1, 1)] {
            settings(time, interval, probes).await;
            let backend = open(&url).await;
            let found = async || {
                let findings = backend.diagnose(LONG).await;
                findings.into_iter().find(|one| one.topic == "silence").unwrap().severity
            };
            assert_eq!(found().await, Severity::Good);
            settings(1, 1, 4).await;
            assert_eq!(found().await, Severity::Risk, "it was changed since the client was opened");
        }
    }
}

/// The server refuses to prepare statements when its clients have as many as it allows.
#[tokio::test]
async fn server_that_prepares_no_statement_serves_all_the_same() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql("SET GLOBAL max_prepared_stmt_count = 0").await.unwrap();
    for method in ["", SESSIONS, TRANSACTIONS] {
        let backend = open(&format!("{}?{method}", server.url())).await;
        let kept = claim("kept", LONG);
        let mut grant = hold(&*backend, &kept).await;
        for _ in 0..5 {
            let next = claim("next", LONG);
            hold(&*backend, &next).await;
            assert!(matches!(renew(&*backend, &kept).await, Renewal::Alive | Renewal::Renewed), "{method}");
            assert!(matches!(release(&*backend, &next).await, Release::Freed), "{method}");
        }
        if let Some(lost) = &mut grant.lost {
            // Several signs of life.
            let lost = tokio::time::timeout(Duration::from_secs(5), lost.fired()).await;
            assert!(lost.is_err(), "{method}: {lost:?}");
        }
        assert!(matches!(release(&*backend, &kept).await, Release::Freed), "{method}");
    }
}

/// The client reads nothing of it before its next statement.
#[tokio::test]
async fn release_over_a_connection_that_was_killed_is_never_a_success() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let (one, two) = (here(&server).await, here(&server).await);
    let held = claim("a", LONG);
    hold(&*one, &held).await;
    wait_for_count(&server, "SELECT count(*) FROM leasehold_held WHERE name = 'a'", "1").await;
    let session = server.sql("SELECT session FROM leasehold_held WHERE name = 'a'").await.unwrap();
    server.sql(&format!("KILL {}", session.trim())).await.unwrap();
    let next = claim("a", LONG);
    // The server ends the connection a moment after the statement.
    take(&*two, &next).await;
    match release(&*one, &held).await {
        // It has been noticed.
        Release::Gone => {}
        Release::Unknown(failure) => assert!(!failure.is_transient(), "{failure}"),
        Release::Freed => panic!("another client has it"),
    }
    assert!(matches!(renew(&*two, &next).await, Renewal::Alive));
}

#[tokio::test]
async fn an_operator_ends_the_connection_that_holds_and_no_other() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    for (method, shared) in METHODS.into_iter().zip([Shared::Yes, Shared::No]) {
        let url = format!("{}?{method}", server.url());
        let clients = [open(&url).await, open(&url).await, open(&url).await];
        // The condition under which a connection is ended, where it is not fulfilled.
        let refused = server.sql("KILL CONNECTION IF(IS_USED_LOCK('free') = 7, 7, 0)").await.unwrap_err();
        assert!(refused.to_string().contains("1094"), "{refused}");
        // These servers notify nobody: a sign of life without an answer reveals the loss.
        breaking::break_ends_only_what_its_connection_holds(clients, shared, SEEN).await;
    }
}

#[tokio::test]
async fn break_without_rights_ends_nothing_and_names_the_right() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    server.sql("CREATE DATABASE shared").await.unwrap();
    for name in ["ann", "bob"] {
        server.sql(&format!("CREATE USER {name}; GRANT ALL ON shared.* TO {name}")).await.unwrap();
    }
    for method in METHODS {
        let as_user =
            async |name: &str| open(&format!("mysql://{name}@{}/shared?{method}", server.addr())).await;
        let (holder, operator) = (as_user("ann").await, as_user("bob").await);
        breaking::break_without_rights_names_the_missing_grant(&*holder, &*operator, "CONNECTION ADMIN")
            .await;
        let found = operator.diagnose(LONG).await.into_iter().find(|one| one.topic == "break").unwrap().found;
        assert!(found.contains("its own connections only"), "{found}");
        server.sql("GRANT CONNECTION ADMIN ON *.* TO bob").await.unwrap();
        // Rights of this kind are those of the connection's beginning.
        let operator = as_user("bob").await;
        let found = operator.diagnose(LONG).await.into_iter().find(|one| one.topic == "break").unwrap().found;
        assert!(found.contains("the connections of others"), "{found}");
        let seen = operator.inspect(&resource("theirs"), None, &Patience::none(clock())).await.unwrap();
        let theirs = claim("theirs", LONG).id(seen.holders[0].id);
        assert_eq!(
            operator.break_claim(&theirs).await.unwrap(),
            BreakOutcome::Ended { also_released: Vec::new() }
        );
        hold(&*operator, &claim("theirs", LONG)).await;
        server.sql("REVOKE CONNECTION ADMIN ON *.* FROM bob").await.unwrap();
    }
}

#[tokio::test]
async fn restart_ends_every_lock_and_fences_rise_even_without_data() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    for method in METHODS {
        let backend = open(&format!("{}?{method}", server.url())).await;
        let mut last = None;
        for data in [Data::Keep, Data::Lose] {
            let mut held = take(&*backend, &claim("job", LONG)).await;
            assert!(held.fence > last);
            last = held.fence;
            server.restart(data).await.unwrap();
            sees_loss(&mut held, SEEN).await;
        }
        let fence = take(&*backend, &claim("job", LONG)).await.fence;
        assert!(fence > last, "{fence:?} after {last:?}, {method}");
    }
}

#[tokio::test]
async fn server_hang_reports_loss_before_the_lock_is_granted_again() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    for method in METHODS {
        // It is waited for as a whole.
        let method = method.replace("silence=10s", "silence=6s");
        let backend = open(&format!("{}?{method}", server.url())).await;
        let mut held = hold(&*backend, &claim("job", LONG)).await;
        server.stop().unwrap();
        sees_loss(&mut held, SEEN).await;
        let failure = look_once(&*backend, &claim("other", LONG)).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unavailable);
        server.resume().unwrap();
        // The connection is closed, so the server ends its locks as soon as it runs again.
        take(&*backend, &claim("job", LONG)).await;
    }
}

#[tokio::test]
async fn cancelled_wait_leaves_nothing_and_failed_statement_releases() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let waits: u64 = std::env::var("LEASEHOLD_CANCELLED").map_or(200, |waits| waits.parse().unwrap());
    let (one, two) = (here(&server).await, here(&server).await);
    let patience = Patience::unlimited(clock());
    for n in 0..waits {
        let claim = claim("job", LONG);
        // Dropped in the middle of the question, which only a caller without an engine does.
        let limit = Duration::from_micros(n % 20 * 50);
        let _ = tokio::time::timeout(limit, one.contend(&claim, &patience)).await;
        let _ = release(&*one, &claim).await;
    }
    take(&*two, &claim("job", LONG)).await;
    locks_become(&server, 1, "that of the job").await;

    server.sql("CREATE USER app; GRANT SELECT ON locks.* TO app").await.unwrap();
    let poor = open(&format!("mysql://app@{}/locks?{SESSIONS}", server.addr())).await;
    let failure = look_once(&*poor, &claim("mine", LONG)).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Denied, "{failure}");
    assert_eq!(locks(&server).await.lines().count(), 1, "a lock that could not be entered is released");
    hold(&*two, &claim("mine", LONG)).await;
    drop((one, two, poor));
    locks_become(&server, 0, "the locks outlive their connections").await;
}

/// A client, and a peer that uses the same database.
async fn with_tooz(server: &MariaDbServer) -> Option<(std::sync::Arc<dyn Backend>, Peer)> {
    let url = server.url();
    let started = tokio::task::spawn_blocking(move || {
        let mut python = peers::python(&["tooz>=6,<9", "PyMySQL>=1,<2"])?;
        python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/tooz_locks.py")).arg(url);
        Peer::start(python)
    });
    let peer = require::or_skip("tooz", started.await.unwrap())?;
    Some((open(&format!("{}?method=get-lock&dialect=tooz", server.url())).await, peer))
}

/// A holder shows itself after a while, or releases the lock before or afterwards: each at any moment of a look.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn holder_that_comes_or_goes_is_never_taken_for_another_program() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = here(&server).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut lookers = Vec::new();
    for _ in 0..3 {
        let (looker, over) = (here(&server).await, over.clone());
        lookers.push(tokio::spawn(async move {
            let mut shown = 0;
            while !over.load(Ordering::Relaxed) {
                let seen = looker.inspect(&resource("job"), None, &Patience::none(clock())).await.unwrap();
                let is_foreign = |holder: &ClaimInfo| holder.note.as_str().contains("not by leasehold");
                assert!(!seen.holders.iter().any(is_foreign), "{seen:?}");
                shown += seen.holders.len();
            }
            shown
        }));
    }
    for cycle in 0..400 {
        let job = claim("job", LONG);
        hold(&*backend, &job).await;
        // At first without a pause.
        if cycle > 200 {
            tokio::time::sleep(Duration::from_micros(cycle * 397 % 25_000)).await;
        }
        assert!(matches!(release(&*backend, &job).await, Release::Freed));
    }
    over.store(true, Ordering::Relaxed);
    for looker in lookers {
        assert!(looker.await.unwrap() > 0, "nothing was seen");
    }
}

// In several threads, because a peer is asked in one of them, and signs of life are given in another.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn tooz_and_leasehold_exclude_each_other() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let Some((backend, mut tooz)) = with_tooz(&server).await else { return };
    for name in ["job", "Ein langer Name: O'Brien \\ \"b\" 作业"] {
        let ours: Claim = claim(name, LONG);
        assert!(hold(&*backend, &ours).await.fence.is_none(), "who does not use leasehold draws no fence");
        assert_eq!(tooz.ask(&format!("take {name}")).unwrap(), "busy");
        assert!(matches!(release(&*backend, &ours).await, Release::Freed));

        assert_eq!(tooz.ask(&format!("take {name}")).unwrap(), "taken");
        assert!(look_once(&*backend, &ours).await.unwrap().is_none());
        let seen = backend.inspect(&resource(name), None, &Patience::none(clock())).await.unwrap();
        assert!(seen.holders[0].note.as_str().contains("not by leasehold"), "{seen:?}");
        assert_eq!(tooz.ask("give").unwrap(), "given");
        hold(&*backend, &ours).await;
        assert!(matches!(release(&*backend, &ours).await, Release::Freed));
    }
    // A peer that is killed frees it at once.
    assert_eq!(tooz.ask("take job").unwrap(), "taken");
    tooz.kill().unwrap();
    tokio::time::timeout(Duration::from_secs(10), take(&*backend, &claim("job", LONG))).await.unwrap();
}

/// The names that .NET derives, taken by its statements in both directions.
#[tokio::test]
async fn names_exclude_clients_that_use_dotnet_locks() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?{SESSIONS}&dialect=dotnet", server.url())).await;
    let mut plain = Conn::new(Opts::from_url(&server.url()).unwrap()).await.unwrap();
    let taking =
        "SELECT CASE WHEN IS_USED_LOCK(?) = CONNECTION_ID() THEN 103 ELSE IFNULL(GET_LOCK(?, 0), 104) END";
    let published = [("MyLock", "mylock6isuyjwnkexb4ujf4m7j37hstmoxe3vx"), ("my/lock 作业", "my/lock 作业")];
    for (name, theirs) in published {
        let mut take_plainly =
            async || -> Option<u8> { plain.exec_first(taking, (theirs, theirs)).await.unwrap() };
        let ours = claim(name, LONG);
        assert!(hold(&*backend, &ours).await.fence.is_none(), "who does not use leasehold draws no fence");
        assert_eq!(take_plainly().await, Some(0), "{name}: taken beside its holder");
        assert!(matches!(release(&*backend, &ours).await, Release::Freed));
        assert_eq!(take_plainly().await, Some(1), "{name}: still held after its release");
        assert!(look_once(&*backend, &ours).await.unwrap().is_none());
        let seen = backend.inspect(&resource(name), None, &Patience::none(clock())).await.unwrap();
        assert!(seen.holders[0].note.as_str().contains("not by leasehold"), "{seen:?}");
        plain.exec_drop("DO RELEASE_LOCK(?)", (theirs,)).await.unwrap();
        hold(&*backend, &ours).await;
        assert!(matches!(release(&*backend, &ours).await, Release::Freed));
    }
    // As many characters as a name may have, of as many bytes.
    hold(&*backend, &claim(&"作".repeat(64), LONG)).await;
}

/// To such a server `App` and `app` are one database, and so must their locks be.
#[tokio::test]
async fn a_database_is_one_however_its_name_is_written() {
    let builder = MariaDbServer::builder().setting("lower-case-table-names", "1");
    let Some(server) = builder.start_or_skip().await else { return };
    let url = |database: &str| format!("mysql://root@{}/{database}?{SESSIONS}", server.addr());
    let (one, two) = (open(&url("locks")).await, open(&url("LOCKS")).await);
    hold(&*one, &claim("job", LONG)).await;
    assert!(look_once(&*two, &claim("job", LONG)).await.unwrap().is_none(), "both hold it");
}

/// Earlier versions call a lock by the database as the URL writes it. This is their name of `job` in `LOCKS`.
#[tokio::test]
async fn old_and_new_names_of_a_lock_exclude_each_other() {
    let digest = blake3::hash(b"LOCKS\0job").to_hex();
    let name = &digest[..54];
    let builder = MariaDbServer::builder().setting("lower-case-table-names", "1");
    let Some(server) = builder.start_or_skip().await else { return };
    let url = |database: &str| format!("mysql://root@{}/{database}?{SESSIONS}", server.addr());
    let mut old = Conn::new(Opts::from_url(&server.url()).unwrap()).await.unwrap();
    let mut asked = async |function: &str| -> Option<u8> {
        old.query_first(format!("SELECT {function}")).await.unwrap().unwrap()
    };
    let (take, free) =
        (format!("GET_LOCK('leasehold-{name}', 0)"), format!("RELEASE_LOCK('leasehold-{name}')"));
    let (one, other) = (open(&url("LOCKS")).await, open(&url("locks")).await);
    assert_eq!(asked(&take).await, Some(1));
    assert!(look_once(&*one, &claim("job", LONG)).await.unwrap().is_none(), "beside an old client");
    // What could not be taken under both names is taken under none.
    let held = claim("job", LONG);
    hold(&*other, &held).await;
    assert!(matches!(release(&*other, &held).await, Release::Freed));
    assert_eq!(asked(&free).await, Some(1));
    let held = claim("job", LONG);
    hold(&*one, &held).await;
    assert_eq!(asked(&take).await, Some(0), "an old client beside a new one");
    assert!(look_once(&*other, &claim("job", LONG)).await.unwrap().is_none());
    assert!(matches!(release(&*one, &held).await, Release::Freed));
    assert_eq!(asked(&take).await, Some(1), "left after the release");
}

/// Two tables of holders do not make two locks of one name in one database; their fences go by one clock.
#[tokio::test]
async fn clients_with_other_tables_exclude_each_other_and_fences_rise() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let url = |table: &str| format!("{}?{SESSIONS}&table={table}", server.url());
    let (one, two) = (open(&url("one")).await, open(&url("two")).await);
    let mut last = None;
    for round in 0..6 {
        let (holder, other) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let held = claim("job", LONG);
        let fence = hold(&**holder, &held).await.fence;
        assert!(fence > last, "{fence:?} after {last:?}");
        last = fence;
        assert!(look_once(&**other, &claim("job", LONG)).await.unwrap().is_none());
        assert!(matches!(release(&**holder, &held).await, Release::Freed));
    }
}

/// By this setting the server begins another transaction, or ends the connection, behind each commit and rollback.
#[tokio::test]
async fn completion_type_of_the_server_changes_nothing() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    for completion in ["CHAIN", "RELEASE"] {
        server.sql(&format!("SET GLOBAL completion_type = '{completion}'")).await.unwrap();
        for method in ["row", "get-lock", "for-update"] {
            let backend = open(&format!("{}?method={method}", server.url())).await;
            for _ in 0..3 {
                let claim = claim(&format!("{completion} {method}"), LONG);
                take(&*backend, &claim).await;
                let released = release(&*backend, &claim).await;
                assert!(matches!(released, Release::Freed), "{completion}, {method}: {released:?}");
            }
        }
    }
}
