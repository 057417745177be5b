//! Faults of a server, and of the network to it, that affect locks of a connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use leasehold_conformance::breaking::{self, Shared};
use leasehold_conformance::connection_limit;
use leasehold_core::{
    Backend, BreakOutcome, Claim, FailureKind, FenceGrade, LossCause, LossSignal, Patience, Release, Renewal,
    Share, Step,
};
use leasehold_postgres::{PostgresConfig, grants, in_transaction, in_transaction_sql, schema};
use leasehold_testkit::{Data, Identity, Lateness, PgBouncer, PoolMode, PostgresServer, Proxy, Way, until};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::Instant;

const METHODS: [&str; 2] = ["method=advisory&silence=10s", "method=for-update&silence=10s&transactions=60"];
/// Far below the time of silence, which would report the loss too, and far above the time that a report
/// takes.
const AT_ONCE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(1);

/// Acquires the claim, and returns the signal of its loss.
async fn hold_with_signal(backend: &dyn Backend, claim: &Claim) -> LossSignal {
    hold(backend, claim).await.lost.unwrap()
}

async fn lost_within(signal: &mut LossSignal, limit: Duration) {
    let cause = tokio::time::timeout(limit, signal.fired()).await;
    assert_eq!(cause.unwrap(), LossCause::SessionEnded);
}

/// Waits until a row shows the holder of this name.
async fn shown(server: &PostgresServer, name: &str) {
    are_shown(server, name, 1).await;
}

/// Waits until rows show so many holders whose names match this pattern.
async fn are_shown(server: &PostgresServer, names: &str, count: usize) {
    let query = format!("SELECT count(*) FROM leasehold_held WHERE name LIKE '{names}'");
    for _ in 0..1_000 {
        if server.sql(&query).await.unwrap().trim() == count.to_string() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the holders of {names} are not shown");
}

/// A session of the user's own.
async fn connect_plainly(server: &PostgresServer) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn a_killed_server_is_a_loss_at_once_and_fences_rise_after_it() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for method in METHODS {
        let backend = open(&format!("{}?{method}", server.url())).await;
        let (held, other) = (claim("job", LONG), claim("other", LONG));
        let first = hold(&*backend, &held).await;
        let mut signals = [first.lost.clone().unwrap(), hold_with_signal(&*backend, &other).await];
        server.kill().unwrap();
        for signal in &mut signals {
            lost_within(signal, AT_ONCE).await;
        }
        assert!(matches!(renew(&*backend, &held).await, Renewal::Lost));
        server.restart(Data::Keep).await.unwrap();
        let next = claim("job", LONG);
        let second = take(&*backend, &next).await;
        assert!(second.fence > first.fence, "{method}: {second:?} after {first:?}");
        assert!(matches!(renew(&*backend, &held).await, Renewal::Lost), "{method}: lost stays lost");
        assert!(matches!(release(&*backend, &held).await, Release::Gone));
        server.restart(Data::Lose).await.unwrap();
        let third = take(&*backend, &claim("job", LONG)).await;
        assert!(third.fence > second.fence, "{method}: {third:?} after {second:?}, and the loss of all data");
    }
}

#[tokio::test]
async fn a_session_that_is_ended_by_hand_is_a_loss_at_once() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for method in METHODS {
        let backend = open(&format!("{}?{method}", server.url())).await;
        let (held, other) = (claim("job", LONG), claim("other", LONG));
        let mut signal = hold_with_signal(&*backend, &held).await;
        let mut others = hold_with_signal(&*backend, &other).await;
        shown(&server, "job").await;
        server.sql("SELECT pg_terminate_backend(pid) FROM leasehold_held WHERE name = 'job'").await.unwrap();
        lost_within(&mut signal, AT_ONCE).await;
        let shares = method.contains("advisory");
        if shares {
            lost_within(&mut others, AT_ONCE).await;
        }
        assert_eq!(others.cause().is_some(), shares, "{method}");
        // The server tells the client of the end before it frees the lock.
        take(&*backend, &claim("job", LONG)).await;
        let seen = backend.inspect(&resource("job"), None, &Patience::none(clock())).await.unwrap();
        assert_eq!(seen.holders.len(), 1, "{method}: {:?}", seen.holders);
    }
}

#[tokio::test]
async fn an_operator_ends_the_session_that_holds_and_no_other() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    break_at(&server.url()).await;
    // A pooler ends a client's connection with that to the server.
    let Some(pooler) = PgBouncer::start_or_skip(&server, PoolMode::Session, 60).await else { return };
    break_at(&server.url_at(pooler.addr())).await;
}

async fn break_at(url: &str) {
    for (method, shared) in METHODS.into_iter().zip([Shared::Yes, Shared::No]) {
        let url = format!("{url}?{method}");
        let clients = [open(&url).await, open(&url).await, open(&url).await];
        breaking::break_ends_only_what_its_connection_holds(clients, shared, AT_ONCE).await;
    }
}

#[tokio::test]
async fn break_without_rights_ends_nothing_and_names_the_right() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    server.sql("CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN").await.unwrap();
    for method in METHODS {
        let table = method.split(['=', '&', '-']).nth(1).unwrap();
        let url = |user: &str| {
            format!(
                "postgres://{user}@{}/postgres?schema=locks&table={table}&create=no&{method}",
                server.addr()
            )
        };
        for user in ["ann", "bob"] {
            let config = PostgresConfig::parse(&url(user)).unwrap();
            server.sql(&schema(&config)).await.unwrap();
            server.sql(&grants(&config)).await.unwrap();
        }
        let (holder, operator) = (open(&url("ann")).await, open(&url("bob")).await);
        breaking::break_without_rights_names_the_missing_grant(&*holder, &*operator, "pg_signal_backend")
            .await;
        let rights =
            async || operator.diagnose(LONG).await.into_iter().find(|one| one.topic == "break").unwrap();
        assert!(rights().await.found.contains("its own connections only"));
        server.sql("GRANT pg_signal_backend TO bob").await.unwrap();
        assert!(rights().await.found.contains("the connections of others"));
        let seen = operator.inspect(&resource("theirs"), None, &Patience::none(clock())).await.unwrap();
        let theirs = claim("theirs", LONG).id(seen.holders[0].id);
        assert_eq!(
            operator.break_claim(&theirs).await.unwrap(),
            BreakOutcome::Ended { also_released: Vec::new() }
        );
        hold(&*operator, &claim("theirs", LONG)).await;
        server.sql("REVOKE pg_signal_backend FROM bob").await.unwrap();
    }
}

#[tokio::test]
async fn what_another_program_holds_is_not_broken() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?{}", server.url(), METHODS[0])).await;
    let stranger = connect_plainly(&server).await;
    stranger.batch_execute("SELECT pg_advisory_lock(255)").await.unwrap();
    let seen = backend.inspect(&resource("00000000000000ff"), None, &Patience::none(clock())).await.unwrap();
    let theirs = claim("00000000000000ff", LONG).id(seen.holders[0].id);
    let refused = backend.break_claim(&theirs).await.unwrap_err();
    assert_eq!(refused.kind, FailureKind::Unsupported, "{refused}");
    assert!(refused.detail().contains("process"), "{refused}");
    stranger.batch_execute("SELECT pg_advisory_unlock(255)").await.unwrap();
}

/// All locks of the client share the session, and must not end with the releases of some. These are released together,
/// and what each of them waits for must not add up.
#[tokio::test]
async fn releases_whose_rows_cannot_be_removed_end_no_other_lock() {
    const RELEASED: usize = 60;
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    open(&format!("{}?method=advisory", server.url())).await;
    let backend = open(&format!("{}?method=advisory&timeout=4s", server.url())).await;
    let stays = claim("stays", LONG);
    let mut lost = hold_with_signal(&*backend, &stays).await;
    let locker = connect_plainly(&server).await;
    let changes = [
        ("BEGIN; LOCK TABLE leasehold_held IN SHARE MODE", "COMMIT"),
        ("ALTER TABLE leasehold_held RENAME TO gone", "ALTER TABLE gone RENAME TO leasehold_held"),
    ];
    for (blocked, free) in changes {
        for share in [Share::MUTEX, Share::READER] {
            let ends: Vec<Claim> =
                (0..RELEASED).map(|n| claim(&format!("ends/{n}"), LONG).share(share)).collect();
            for claim in &ends {
                // A table that was found locked is left alone for a second.
                take(&*backend, claim).await;
            }
            are_shown(&server, "ends/%", RELEASED).await;
            locker.batch_execute(blocked).await.unwrap();
            let released = backend.release(&ends.iter().collect::<Vec<_>>()).await;
            let is_freed = |released: &Release| matches!(released, Release::Freed);
            assert!(released.iter().all(is_freed), "{blocked}, {share}: {released:?}");
            locker.batch_execute(free).await.unwrap();
            let stranger = open(&format!("{}?method=advisory", server.url())).await;
            for n in 0..RELEASED {
                let next = claim(&format!("ends/{n}"), LONG);
                hold(&*stranger, &next).await;
                assert!(matches!(stranger.release(&[&next]).await[..], [Release::Freed]));
            }
            locker.batch_execute("DELETE FROM leasehold_held WHERE name LIKE 'ends/%'").await.unwrap();
        }
    }
    assert!(matches!(renew(&*backend, &stays).await, Renewal::Alive));
    assert_eq!(tokio::time::timeout(SILENCE, lost.fired()).await.ok(), None);
}

#[tokio::test]
async fn readers_are_refused_while_their_rows_cannot_be_written() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    // The tables may take a busy server longer than the short timeout.
    drop(open(&format!("{}?method=advisory", server.url())).await);
    let backend = open(&format!("{}?method=advisory&timeout=4s", server.url())).await;
    let stays = claim("stays", LONG);
    let mut lost = hold_with_signal(&*backend, &stays).await;
    let locker = connect_plainly(&server).await;
    locker.batch_execute("BEGIN; LOCK TABLE leasehold_held IN SHARE MODE").await.unwrap();
    let readers = ["a", "b", "c"].map(|name| claim(name, LONG).share(Share::READER));
    let patience = Patience::none(clock());
    let [a, b, c] = &readers;
    let (a, b, c) = tokio::join!(
        backend.contend(a, &patience),
        backend.contend(b, &patience),
        backend.contend(c, &patience)
    );
    for refused in [a, b, c] {
        assert_eq!(refused.unwrap_err().kind, FailureKind::Unavailable);
    }
    // What needs no row is granted and released meanwhile.
    let alone = claim("alone", LONG);
    hold(&*backend, &alone).await;
    assert!(matches!(release(&*backend, &alone).await, Release::Freed));
    locker.batch_execute("COMMIT").await.unwrap();
    for reader in &readers {
        take(&*backend, reader).await;
    }
    assert!(matches!(renew(&*backend, &stays).await, Renewal::Alive));
    assert_eq!(tokio::time::timeout(SILENCE, lost.fired()).await.ok(), None);
}

#[tokio::test]
async fn full_table_of_locks_is_refused_with_what_to_do() {
    let builder = PostgresServer::builder().setting("max_locks_per_transaction", "10");
    let Some(server) = builder.setting("max_connections", "20").start_or_skip().await else { return };
    let backend = open(&format!("{}?method=advisory", server.url())).await;
    let patience = Patience::none(clock());
    for number in 0..10_000 {
        let claim = claim(&format!("job/{number}"), LONG);
        match backend.contend(&claim, &patience).await {
            Ok(step) => assert!(matches!(step, Step::Granted(_)), "{step:?}"),
            Err(failure) => {
                assert!(number > 50 && failure.detail().contains("max_locks_per_transaction"), "{failure}");
                return;
            }
        }
    }
    panic!("the server gave 10,000 locks");
}

/// The server frees the locks of a session that ends before it forgets the session.
#[tokio::test]
async fn holder_whose_session_ends_is_not_shown_beside_the_next() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?{}", server.url(), METHODS[1])).await;
    let ending = connect_plainly(&server).await;
    let shown = "SET application_name = 'ending'; \
                 INSERT INTO leasehold_held (claim, name, lock_key, weight, capacity, note, session, pid, epoch, seq) \
                 SELECT repeat(c::text, 32), 'job', 'job', w, 2, '', 'ending', pg_backend_pid(), 0, 0 \
                 FROM (VALUES (1, 1), (2, 2)) AS v (c, w)";
    let (reader, writer) = (claim("job", LONG).share(Share::READER), claim("job", LONG));
    for (next, left) in [(&reader, 1), (&writer, 0)] {
        ending.batch_execute("DELETE FROM leasehold_held").await.unwrap();
        ending.batch_execute(shown).await.unwrap();
        let proof = hold(&*backend, next).await.proof;
        let seen = backend.inspect(&resource("job"), None, &Patience::none(clock())).await.unwrap();
        let others = seen.holders.iter().filter(|holder| holder.id != next.id).count();
        assert_eq!((others, seen.holders.len()), (left, left + 1), "{:?}", next.share);
        drop(proof);
        assert!(matches!(backend.release(&[next]).await[..], [Release::Freed]));
    }
}

/// The client of the waiter stops when it is given the row. The server ends its session, and another client has the
/// row by the time it continues.
#[tokio::test]
async fn waiter_whose_session_ended_leaves_the_row_of_the_next_holder() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    // A waiter through what looks like a pooler begins its wait anew every now and then.
    allow_the_second_address(&server).await;
    proxy.keep_ports();
    // No sign of life is requested meanwhile: it would reveal the end of the session as well.
    let options = "method=for-update&silence=5m";
    let stopped = take_until_connected(&format!("{}?{options}", server.url_at(proxy.addr()))).await;
    let others = open(&format!("{}?{options}", server.url())).await;
    let first = claim("job", LONG);
    hold(&*others, &first).await;
    let waiting =
        tokio::spawn(
            async move { stopped.contend(&claim("job", LONG), &Patience::unlimited(clock())).await },
        );
    let counts = async |condition: &str| {
        let query = format!("SELECT count(*) FROM pg_stat_activity WHERE {condition}");
        server.sql(&query).await.unwrap().trim() == "1"
    };
    until("the client waits in the server", async || counts("wait_event_type = 'Lock'").await).await;
    proxy.hold(Way::ToClient);
    assert!(matches!(release(&*others, &first).await, Release::Freed));
    let given = "state = 'idle in transaction'";
    until("the server gives it the row", async || counts(given).await).await;
    let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {given}");
    server.sql(&end).await.unwrap();
    let next = claim("job", LONG);
    take(&*others, &next).await;
    wait_for_holder(&*others, &next, true).await;
    proxy.heal().unwrap();
    let refused = waiting.await.unwrap();
    assert!(refused.is_err(), "{refused:?}");
    let seen = others.inspect(&next.resource, None, &Patience::none(clock())).await.unwrap();
    assert_eq!(seen.holders.iter().map(|holder| holder.id).collect::<Vec<_>>(), [next.id]);
    let broken = others.break_claim(&next).await.unwrap();
    assert_eq!(broken, BreakOutcome::Ended { also_released: Vec::new() });
}

/// The server notices nothing of the network, and ends the session by its own limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_partition_loss_is_reported_before_the_next_grant() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    // By both methods at the same time, because it is about waiting.
    tokio::join!(part(&server, "advisory"), part(&server, "for-update"));
}

async fn part(server: &PostgresServer, method: &str) {
    let (silence, options) = (Duration::from_secs(6), format!("method={method}&silence=6s"));
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let here = open(&format!("{}?{options}", server.url_at(proxy.addr()))).await;
    let there = open(&format!("{}?{options}", server.url())).await;
    let held = claim("job", LONG);
    let mut signal = hold_with_signal(&*here, &held).await;
    // Signs of life keep it for longer than the server keeps a silent one.
    tokio::time::sleep(silence * 9 / 4).await;
    assert!(matches!(renew(&*here, &held).await, Renewal::Alive));
    proxy.blackhole(Way::Both);
    let (parted, lateness) = (Instant::now(), Lateness::watch());
    let waiting = tokio::spawn(async move {
        take(&*there, &claim("job", LONG)).await;
        Instant::now()
    });
    lost_within(&mut signal, silence * 2).await;
    let (reported, late) = (Instant::now(), lateness.end().await);
    let granted = tokio::time::timeout(silence * 10, waiting).await.unwrap().unwrap();
    println!("{method}: loss reported after {:?}, granted after {:?}", reported - parted, granted - parted);
    // The server waits for twice the silence. A process that does not run meanwhile reports nothing.
    match late < silence / 2 {
        true => assert!(reported < granted, "{method}: granted before the loss was reported"),
        false => println!("nothing is known of the order, on a machine that was {late:?} late"),
    }
}

#[tokio::test]
async fn promoted_standby_has_no_locks_and_higher_fences() {
    let Some(primary) = PostgresServer::start_or_skip().await else { return };
    let url = |standby: &PostgresServer| {
        format!("postgres://postgres@{},{}/postgres?timeout=10s", primary.addr(), standby.addr())
    };
    let mut highest = Vec::new();
    let mut held = Vec::new();
    for method in METHODS {
        open(&format!("{}?{method}", primary.url())).await;
    }
    let standby = primary.standby().await.unwrap();
    primary.await_standbys(1).await.unwrap();
    standby.kill().unwrap();
    for method in METHODS {
        let backend = open(&format!("{}&{method}", url(&standby))).await;
        // These grants reach no standby.
        for _ in 0..40 {
            let claim = claim("job", LONG);
            hold(&*backend, &claim).await;
            assert!(matches!(release(&*backend, &claim).await, Release::Freed));
        }
        let last = claim(&format!("job of {method}"), LONG);
        let grant = hold(&*backend, &last).await;
        highest.push(grant.fence);
        held.push((backend, last, grant.lost.unwrap()));
    }
    primary.kill().unwrap();
    for (_, _, signal) in &mut held {
        lost_within(signal, AT_ONCE).await;
    }
    standby.restart(Data::Keep).await.unwrap();
    standby.promote().await.unwrap();
    for ((backend, last, _), before) in held.iter().zip(highest) {
        let after = take(&**backend, &claim(last.resource.as_str(), LONG)).await;
        assert!(after.fence > before, "{:?} after {before:?}", after.fence);
        assert!(matches!(renew(&**backend, last).await, Renewal::Lost));
    }
}

/// As many as `LEASEHOLD_CANCELLED` says, else a few hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_acquires_leave_no_lock_and_no_connection() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let acquires = std::env::var("LEASEHOLD_CANCELLED").map_or(200, |acquires| acquires.parse().unwrap());
    for method in METHODS {
        // A busy machine keeps a session silent for a second, and a session that is silent for too long is lost.
        let url = format!("{}?{}", server.url(), method.replace("silence=10s", "silence=20s"));
        // An acquire that is dropped in the middle of a request ends its session, so the holder uses
        // another one.
        let (backend, holder) = (open(&url).await, open(&url).await);
        let mut left: usize = acquires;
        while left > 0 {
            let some = left.min(40);
            left -= some;
            // Some are held by nobody, so that what is cancelled is also a grant.
            let held = claim("job 0", LONG);
            let holds = !left.is_multiple_of(3);
            if holds {
                take(&*holder, &held).await;
            }
            let tasks: Vec<_> = (0..some).map(|n| tokio::spawn(cancel_one(backend.clone(), n))).collect();
            for task in tasks {
                task.await.unwrap();
            }
            if holds {
                assert!(matches!(release(&*holder, &held).await, Release::Freed));
            }
        }
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        let transactions = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
        for query in [locks, transactions] {
            wait_for_zero(&server, query).await;
        }
        assert!(backend.list("", None, 10).await.unwrap().is_empty());
        drop((backend, holder));
        // Rows of those who were dropped do not count, and are cleared away by the next client.
        let (next, claim) = (open(&url).await, claim("next", LONG));
        hold(&*next, &claim).await;
        assert!(matches!(release(&*next, &claim).await, Release::Freed));
        wait_for_zero(&server, "SELECT count(*) FROM leasehold_held WHERE claim <> ''").await;
        drop(next);
        wait_for_zero(
            &server,
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%'",
        )
        .await;
    }
}

/// One acquire that ends somewhere: by its patience, or because its future is dropped.
async fn cancel_one(backend: Arc<dyn Backend>, n: usize) {
    let claim = claim(&format!("job {}", n % 2), LONG);
    let patience = Patience::unlimited(clock());
    let ends = patience.clone();
    let end = async {
        tokio::time::sleep(Duration::from_micros(n as u64 * 397 % 15_000)).await;
        ends.end();
    };
    if n % 8 == 7 {
        let brief = Duration::from_micros(n as u64 * 91 % 5_000);
        if let Ok(Ok(Step::Granted(_))) =
            tokio::time::timeout(brief, backend.contend(&claim, &patience)).await
        {
            release(&*backend, &claim).await;
        }
        return;
    }
    let (step, ()) = tokio::join!(backend.contend(&claim, &patience), end);
    match step {
        // As the engine does with what nobody wants any more.
        Ok(Step::Granted(_)) => _ = release(&*backend, &claim).await,
        Ok(Step::Busy(_)) => {}
        Err(failure) => {
            // The session was another's, too, who left in the middle of a question.
            assert!(failure.is_transient(), "{failure}");
            assert!(!matches!(release(&*backend, &claim).await, Release::Unknown(_)));
        }
    }
}

async fn wait_for_zero(server: &PostgresServer, query: &str) {
    let mut count = String::new();
    for _ in 0..200 {
        count = server.sql(query).await.unwrap();
        if count.trim() == "0" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{query}: {count}");
}

#[tokio::test]
async fn advisory_lock_is_refused_only_where_sessions_are_shared() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for sessions in [1, 4] {
        let Some(pooler) = PgBouncer::start_or_skip(&server, PoolMode::Transaction, sessions).await else {
            return;
        };
        let failure =
            connect(&format!("{}?method=advisory", server.url_at(pooler.addr()))).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported);
        assert!(
            failure.detail().contains("method=row") && failure.detail().contains("session mode"),
            "{failure}"
        );
    }
    let Some(pooler) = PgBouncer::start_or_skip(&server, PoolMode::Session, 30).await else { return };
    let backend = open(&format!("{}?method=advisory&silence=6s", server.url_at(pooler.addr()))).await;
    let held = claim("job", LONG);
    let mut signal = hold_with_signal(&*backend, &held).await;
    tokio::time::sleep(Duration::from_secs(13)).await;
    assert!(matches!(renew(&*backend, &held).await, Renewal::Alive), "signs of life come through");
    // A pooler that ends is the end of all sessions through it.
    pooler.kill().unwrap();
    // Less than the time of silence, and the server frees the lock when it has noticed the end.
    lost_within(&mut signal, AT_ONCE).await;
    take(&*open(&format!("{}?method=advisory", server.url())).await, &claim("job", LONG)).await;
}

/// Turns among two sessions bring each connection back to its own one where it asks at even distances.
#[tokio::test]
async fn alternating_pooler_is_detected() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for sessions in 1..=4 {
        let Some(pooler) = PgBouncer::start_or_skip(&server, PoolMode::Transaction, sessions).await else {
            return;
        };
        pooler.restart_with("server_round_robin = 1").await.unwrap();
        let url = server.url_at(pooler.addr());
        let mut users = Vec::new();
        for _ in 0..sessions {
            let (user, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            user.batch_execute("BEGIN").await.unwrap();
            users.push(user);
        }
        // Now it has all of them.
        for user in &users {
            user.batch_execute("COMMIT").await.unwrap();
        }
        let failure = connect(&format!("{url}?method=advisory")).await.map(drop).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported, "{sessions}: {failure}");
        assert_eq!(open(&url).await.profile().waiting, leasehold_core::WaitMode::Polls, "{sessions}");
    }
}

/// It kept sessions when the clients connected, and an operator has changed that since.
#[tokio::test]
async fn sessions_that_become_shared_have_no_second_holder() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    // The tables of this method may take a busy server longer than the short timeout.
    drop(open(&format!("{}?method=advisory", server.url())).await);
    for (sessions, turns) in [(1, 0), (2, 0), (2, 1)] {
        let Some(pooler) = PgBouncer::start_or_skip(&server, PoolMode::Session, 30).await else { return };
        let url = format!("{}?method=advisory&silence=10s&timeout=2s", server.url_at(pooler.addr()));
        let clients = [open(&url).await, open(&url).await, open(&url).await];
        let shared = "pool_mode = transaction\ndefault_pool_size";
        pooler.restart_with(&format!("{shared} = {sessions}\nserver_round_robin = {turns}")).await.unwrap();
        let mut signals: Vec<LossSignal> = Vec::new();
        let mut grants = 0;
        for n in 0..60 {
            let client = &clients[n % clients.len()];
            if let Ok(Some(grant)) = look_once(&**client, &claim("job", LONG)).await {
                signals.retain(|signal| signal.cause().is_none());
                assert!(signals.is_empty(), "{sessions} {turns}, question {n}: two hold it");
                signals.push(grant.lost.unwrap());
                grants += 1;
            }
        }
        assert!(grants > 0 || sessions > 1, "who is alone in a session is granted");
    }
}

/// A pooler on the server's machine, with unix sockets on both of its sides, so that no port gives it away.
#[tokio::test]
async fn a_pooler_behind_unix_sockets_is_not_taken_for_the_server() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for sessions in [1, 4] {
        let Some(pooler) =
            PgBouncer::start_on_sockets_or_skip(&server, PoolMode::Transaction, sessions).await
        else {
            return;
        };
        let url = pooler.url_of_socket();
        let failure = connect(&format!("{url}&method=advisory")).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
        let backend = open(&url).await;
        assert_eq!(backend.profile().waiting, leasehold_core::WaitMode::Polls);
        // What is set for a session would be another client's, too.
        let (stranger, connection) = tokio_postgres::Config::new()
            .host_path(url.split(['=', '&']).nth(1).unwrap())
            .port(pooler.addr().port())
            .user("postgres")
            .dbname("postgres")
            .connect(tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        for _ in 0..20 {
            let rows = stranger.simple_query("SHOW statement_timeout").await.unwrap();
            let timeout = rows.iter().find_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            });
            assert_eq!(timeout.as_deref(), Some("0"));
        }
    }
    let Some(pooler) = PgBouncer::start_on_sockets_or_skip(&server, PoolMode::Session, 30).await else {
        return;
    };
    let url = format!("{}&method=advisory", pooler.url_of_socket());
    let (one, two) = (open(&url).await, open(&url).await);
    hold(&*one, &claim("job", LONG)).await;
    assert!(look_once(&*two, &claim("job", LONG)).await.unwrap().is_none());
}

/// It ends TLS itself, and its connection to the server has the client's port by chance.
#[tokio::test]
async fn a_pooler_with_tls_is_not_taken_for_the_server() {
    let Some(server) = PostgresServer::builder().tls().start_or_skip().await else { return };
    allow_the_second_address(&server).await;
    let certificates = server.certificates().unwrap();
    let ca = certificates.ca_path().display().to_string();
    let pooler = pooler_with_the_port_of_the_client(server.addr(), certificates.server()).await;
    for (addr, found) in [(pooler, "something between"), (server.addr(), "nothing is between")] {
        let url = format!("{}?sslmode=verify-full&ca={ca}", server.url_at(addr));
        let findings = take_until_connected(&url).await.diagnose(LONG).await;
        let pooler = findings.iter().find(|finding| finding.topic == "pooler").unwrap();
        assert!(pooler.found.contains(found), "{pooler:?}");
    }
}

/// Lets clients come from the address 127.0.0.2 too.
async fn allow_the_second_address(server: &PostgresServer) {
    let own = "COPY (SELECT 'host all all 127.0.0.2/32 trust') TO PROGRAM 'cat >> pg_hba.conf'";
    server.sql(own).await.unwrap();
    server.sql("SELECT pg_reload_conf()").await.unwrap();
}

/// Connects as soon as the server has read its settings again.
async fn take_until_connected(url: &str) -> Arc<dyn Backend> {
    for _ in 0..600 {
        match connect(url).await {
            Ok(backend) => return backend,
            Err(failure) if failure.detail().contains("pg_hba") => {}
            Err(failure) => panic!("{failure}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the server never reads its settings")
}

/// Starts a pooler that makes up the processes that it names, as all do.
async fn pooler_with_the_port_of_the_client(server: SocketAddr, identity: &Identity) -> SocketAddr {
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(&identity.certificate).unwrap().collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let settings =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let settings = settings.unwrap().with_no_client_auth().with_single_cert(certificates, key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(settings));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, peer)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                client.read_exact(&mut [0; 8]).await.unwrap();
                client.write_all(b"S").await.unwrap();
                let mut client = acceptor.accept(client).await.unwrap();
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind(SocketAddr::from(([127, 0, 0, 2], peer.port()))).unwrap();
                let mut server = socket.connect(server).await.unwrap();
                let mut login = vec![0; 1 << 12];
                let length = client.read(&mut login).await.unwrap();
                server.write_all(&login[..length]).await.unwrap();
                let mut answer = Vec::new();
                while !answer.ends_with(b"Z\0\0\0\x05I") && !answer.starts_with(b"E") {
                    server.read_buf(&mut answer).await.unwrap();
                }
                if let Some(at) = answer.windows(5).position(|bytes| bytes == b"K\0\0\0\x0c") {
                    answer[at + 5..at + 9].copy_from_slice(&[0, 0, 0, 1]);
                }
                client.write_all(&answer).await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    addr
}

/// A statement that waits for a row in the server, behind a transaction of somebody else, must not take
/// a lock for nobody later.
#[tokio::test]
async fn a_statement_through_a_pooler_ends_when_its_time_is_over() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let Some(pooler) = PgBouncer::start_or_skip(&server, PoolMode::Transaction, 4).await else { return };
    // The tables may take a busy server longer than the short timeout.
    drop(open(&server.url()).await);
    let url = |timeout| format!("{}?timeout={timeout}", server.url_at(pooler.addr()));
    let (one, two) = (open(&url("30s")).await, open(&url("1s")).await);
    let held = claim("job", LONG);
    hold(&*one, &held).await;
    assert!(matches!(release(&*one, &held).await, Release::Freed));
    let stranger = connect_plainly(&server).await;
    stranger.batch_execute("BEGIN; SELECT * FROM leasehold WHERE name = 'job' FOR UPDATE").await.unwrap();
    assert!(look_once(&*two, &claim("job", LONG)).await.is_err());
    wait_for_zero(&server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").await;
    stranger.batch_execute("COMMIT").await.unwrap();
    hold(&*one, &claim("job", LONG)).await;
}

/// The words of a server's messages are in its language. One statement that fails says nothing about the
/// others.
#[tokio::test]
async fn error_in_another_language_is_recognized_as_an_error() {
    let Some(server) = PostgresServer::builder().language("de").start_or_skip().await else { return };
    let plain = connect_plainly(&server).await;
    let error = plain.batch_execute("SELECT 1/0").await.unwrap_err();
    if error.as_db_error().unwrap().severity() == "ERROR" {
        leasehold_testkit::require::skip(
            "postgres-de",
            "the messages of PostgreSQL are not installed in German",
        );
        return;
    }
    let refuse = |table: &str, column: &str| {
        format!(
            "CREATE FUNCTION refuse_{table}() RETURNS trigger LANGUAGE plpgsql AS \
             $f$ BEGIN IF NEW.name = 'bad' THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW; END $f$; \
             CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION refuse_{table}(); \
             SELECT {column} FROM {table}"
        )
    };
    for (method, table) in [("method=row", "leasehold"), ("method=for-update", "leasehold_held")] {
        let backend = open(&format!("{}?{method}", server.url())).await;
        server.sql(&refuse(table, "name")).await.unwrap();
        let held = claim("good", LONG);
        hold(&*backend, &held).await;
        let failure = look_once(&*backend, &claim("bad", LONG)).await.unwrap_err();
        assert_eq!(failure.effect, leasehold_core::Effect::None, "{method}: {failure}");
        let renewal = renew(&*backend, &held).await;
        assert!(matches!(renewal, Renewal::Renewed | Renewal::Alive), "{method}: {renewal:?}");
        assert!(matches!(release(&*backend, &held).await, Release::Freed), "{method}");
    }
}

/// A text of the server has no zeros.
#[tokio::test]
async fn a_note_with_a_zero_is_shown_as_it_is() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    for method in ["method=row", "method=advisory", "method=for-update"] {
        let backend = open(&format!("{}?{method}", server.url())).await;
        let note = leasehold_core::Note::new("50% of\0%00 a\nhost").unwrap();
        let held = claim(method, LONG).note(note.clone());
        hold(&*backend, &held).await;
        let seen = backend.inspect(&held.resource, None, &Patience::none(clock())).await.unwrap();
        assert_eq!(seen.holders[0].note, note, "{method}");
    }
}

/// The published keys, taken by hand in both directions.
#[tokio::test]
async fn names_exclude_clients_that_use_dotnet_keys() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?method=advisory", server.url())).await;
    let plain = connect_plainly(&server).await;
    for (name, key) in
        [("a", "-1023410177,-1"), ("MyLock", "-1679399172,2061500415"), ("MyLockName", "4062898426641073528")]
    {
        let asked = async |function: &str| -> bool {
            plain.query_one(&format!("SELECT {function}({key})"), &[]).await.unwrap().get(0)
        };
        let held = claim(name, LONG);
        hold(&*backend, &held).await;
        assert!(!asked("pg_try_advisory_lock").await, "{name}: taken beside its holder");
        assert!(matches!(release(&*backend, &held).await, Release::Freed));
        assert!(asked("pg_try_advisory_lock").await, "{name}: still held after its release");
        assert!(look_once(&*backend, &claim(name, LONG)).await.unwrap().is_none());
        let seen = backend.inspect(&resource(name), None, &Patience::none(clock())).await.unwrap();
        let notes: Vec<&str> = seen.holders.iter().map(|holder| holder.note.as_str()).collect();
        assert!(notes.len() == 1 && notes[0].contains("not by leasehold"), "{notes:?}");
        assert!(asked("pg_advisory_unlock").await);
        // Readers go together, also with theirs.
        let reader = claim(name, LONG).share(Share::READER);
        assert!(asked("pg_try_advisory_lock_shared").await);
        hold(&*backend, &reader).await;
        assert!(asked("pg_advisory_unlock_shared").await);
        assert!(!asked("pg_try_advisory_lock").await);
        assert!(matches!(release(&*backend, &reader).await, Release::Freed));
    }
}

#[tokio::test]
async fn two_names_with_one_key_are_refused() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let (here, there) = (
        open(&format!("{}?method=advisory", server.url())).await,
        open(&format!("{}?method=advisory", server.url())).await,
    );
    // The digits of the key that the other name has.
    let (name, digits) = ("a", "c2ffffff,ffffffff");
    hold(&*here, &claim(name, LONG)).await;
    // Another client knows of the name when it is shown.
    let seen = there.inspect(&resource(name), None, &Patience::none(clock())).await.unwrap();
    assert_eq!(seen.holders.len(), 1);
    for backend in [&here, &there] {
        let failure = look_once(&**backend, &claim(digits, LONG)).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Foreign);
        assert!(failure.detail().contains(digits) && failure.detail().contains("\"a\""), "{failure}");
        // A name that is merely held does not collide.
        assert!(look_once(&**backend, &claim(name, LONG)).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn claim_beyond_the_transaction_limit_is_refused() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?method=for-update&transactions=2", server.url())).await;
    connection_limit::third_of_two_transactions_is_refused(&*backend).await;
}

#[tokio::test]
async fn wait_is_cancelled_over_tls_and_its_connection_is_reused() {
    let Some(server) = PostgresServer::builder().tls().start_or_skip().await else { return };
    let ca = server.certificates().unwrap().ca_path().display().to_string();
    let url = format!("{}?method=for-update&transactions=2&sslmode=verify-full&ca={ca}", server.url());
    let backend = open(&url).await;
    let held = claim("job", LONG);
    hold(&*backend, &held).await;
    let sessions = "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%'";
    let mut seen = Vec::new();
    for _ in 0..4 {
        let patience = Patience::unlimited(clock());
        let (wanted, ends) = (claim("job", LONG), patience.clone());
        let end = async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            ends.end();
        };
        let (step, ()) = tokio::join!(backend.contend(&wanted, &patience), end);
        assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
        seen.push(server.sql(sessions).await.unwrap());
    }
    // The process of the connection by which the client looked at the server may end a moment later.
    assert!(
        seen[1..].windows(2).all(|two| two[0] == two[1]),
        "a wait that was called back cost its connection: {seen:?}"
    );
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
}

/// To ask the server for it takes three round trips, which are longer than the first attempt may take.
#[tokio::test]
async fn wait_is_cancelled_over_tls_and_a_slow_link() {
    let Some(server) = PostgresServer::builder().tls().start_or_skip().await else { return };
    allow_the_second_address(&server).await;
    let proxy = Proxy::start(server.addr()).await.unwrap();
    // Through a pooler no wait is cancelled.
    proxy.keep_ports();
    let ca = server.certificates().unwrap().ca_path().display().to_string();
    let options = format!("method=for-update&transactions=2&timeout=30s&sslmode=verify-full&ca={ca}");
    let backend = take_until_connected(&format!("{}?{options}", server.url_at(proxy.addr()))).await;
    let held = claim("job", LONG);
    hold(&*backend, &held).await;
    proxy.delay(Way::Both, Duration::from_millis(200));
    let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let mut sessions = Vec::new();
    // A wait that is not cancelled ends by its own limit, after five seconds. On a machine that stands still one may.
    while !std::fs::read_to_string(server.log_path()).unwrap().contains("due to user request") {
        assert!(sessions.len() < 10, "no wait was ever cancelled");
        let patience = Patience::unlimited(clock());
        let (wanted, ends) = (claim("job", LONG), patience.clone());
        let end = async {
            let mut pid = String::new();
            let mut is_waiting = async || {
                pid = server.sql(waiting).await.unwrap().trim().to_owned();
                !pid.is_empty()
            };
            until("a session waits", &mut is_waiting).await;
            ends.end();
            pid
        };
        let (step, pid) = tokio::join!(backend.contend(&wanted, &patience), end);
        assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
        sessions.push(pid);
    }
    assert!(sessions.iter().all(|pid| *pid == sessions[0]), "a wait cost its connection: {sessions:?}");
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
}

#[tokio::test]
async fn lock_in_user_transaction_commits_with_the_protected_data() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let url = format!("{}?method=for-update", server.url());
    let (config, backend) = (PostgresConfig::parse(&url).unwrap(), open(&url).await);
    let mut user = connect_plainly(&server).await;
    let other = connect_plainly(&server).await;
    user.batch_execute("CREATE TABLE account (balance int); INSERT INTO account VALUES (100)").await.unwrap();
    let balance =
        async || -> i32 { other.query_one("SELECT balance FROM account", &[]).await.unwrap().get(0) };
    let mut last = None;
    // The first time its row is not there yet, and once the transaction that made it is rolled back.
    for (commits, expected) in [(false, 100), (true, 99), (true, 98)] {
        let transaction = user.transaction().await.unwrap();
        let fence = in_transaction(&transaction, &config, &resource("job")).await.unwrap();
        assert!(Some(fence) > last, "{fence:?} after {last:?}");
        last = Some(fence);
        transaction.execute("UPDATE account SET balance = balance - 1", &[]).await.unwrap();
        assert!(
            look_once(&*backend, &claim("job", LONG)).await.unwrap().is_none(),
            "taken beside a transaction"
        );
        let waiting = {
            let backend = backend.clone();
            tokio::spawn(async move {
                let claim = claim("job", LONG);
                (take(&*backend, &claim).await, claim)
            })
        };
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(!waiting.is_finished());
        if commits {
            transaction.commit().await.unwrap()
        } else {
            transaction.rollback().await.unwrap()
        }
        let (grant, claim) = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap();
        // The present holder sees what was written under the lock before.
        assert_eq!(balance().await, expected);
        assert!(grant.fence > last, "{grant:?} after {last:?}");
        last = grant.fence;
        // And the other way round.
        let transaction = user.transaction().await.unwrap();
        transaction.batch_execute("SET LOCAL lock_timeout = '100ms'").await.unwrap();
        let failure = in_transaction(&transaction, &config, &resource("job")).await.unwrap_err();
        assert!(failure.is_transient(), "{failure}");
        transaction.rollback().await.unwrap();
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    }
    // Any other client sends the text.
    let transaction = user.transaction().await.unwrap();
    let row = transaction.query_one(&in_transaction_sql(&config), &[&"job"]).await.unwrap();
    assert!(last.is_some_and(|last| row.get::<_, i64>(1) as u64 > last.seq));
    assert!(look_once(&*backend, &claim("job", LONG)).await.unwrap().is_none());
}

/// The holder changes no row of the lock, so the server reports no conflict to a transaction whose snapshot is older.
#[tokio::test]
async fn transaction_that_does_not_see_the_last_holder_is_refused() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let url = format!("{}?method=for-update", server.url());
    let (config, backend) = (PostgresConfig::parse(&url).unwrap(), open(&url).await);
    let mut user = connect_plainly(&server).await;
    user.batch_execute("CREATE TABLE payment (id int)").await.unwrap();
    let held = claim("job", LONG);
    hold(&*backend, &held).await;
    let transaction =
        user.build_transaction().isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let transaction = transaction.start().await.unwrap();
    let job = resource("job");
    let late = in_transaction(&transaction, &config, &job);
    let last_holder = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        while server.sql(waiting).await.unwrap().trim() != "1" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.sql("INSERT INTO payment VALUES (1)").await.unwrap();
        assert!(matches!(release(&*backend, &held).await, Release::Freed));
    };
    let (refused, ()) = tokio::join!(late, last_holder);
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind, FailureKind::Unsupported, "{refused}");
    assert!(refused.detail().contains("REPEATABLE READ"), "{refused}");
    let unseen = transaction.query_one("SELECT count(*) FROM payment", &[]).await.unwrap();
    assert_eq!(unseen.get::<_, i64>(0), 0, "the reason is gone: it would see what the last holder wrote");
    transaction.rollback().await.unwrap();
    look_once(&*backend, &claim("job", LONG)).await.unwrap().unwrap();
}

/// Since PostgreSQL 17 it ends a session whose transaction is open for too long.
#[tokio::test]
async fn transaction_timeout_of_a_role_ends_no_lock() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let version = server.sql("SHOW server_version_num").await.unwrap();
    if version.trim().parse::<i32>().unwrap() < 170_000 {
        leasehold_testkit::require::skip("postgres-17", "PostgreSQL before 17 has no transaction_timeout");
        return;
    }
    let limit = Duration::from_millis(500);
    server.sql("ALTER ROLE CURRENT_USER SET transaction_timeout = '500ms'").await.unwrap();
    for method in METHODS {
        let backend = open(&format!("{}?{method}", server.url())).await;
        let claim = claim("job", LONG);
        let mut lost = hold_with_signal(&*backend, &claim).await;
        let cause = tokio::time::timeout(4 * limit, lost.fired()).await;
        assert!(cause.is_err(), "{method}: {cause:?}");
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    }
}

/// A sequence logs numbers ahead, and nothing waits until they are on the disk while the transaction is open.
#[tokio::test]
async fn fences_of_an_open_transaction_rise_over_a_crash() {
    let Some(server) = PostgresServer::builder().setting("wal_writer_delay", "10s").start_or_skip().await
    else {
        return;
    };
    let url = format!("{}?method=for-update", server.url());
    let (config, backend) = (PostgresConfig::parse(&url).unwrap(), open(&url).await);
    let mut last = hold(&*backend, &claim("other", LONG)).await.fence.unwrap();
    for is_held_by_client in [false, true, false] {
        let mut user = connect_plainly(&server).await;
        let transaction = user.transaction().await.unwrap();
        for _ in 0..40 {
            let fence = in_transaction(&transaction, &config, &resource("job")).await.unwrap();
            assert!(fence > last, "{fence} after {last}");
            last = fence;
        }
        server.kill().unwrap();
        server.restart(Data::Keep).await.unwrap();
        let fence = if is_held_by_client {
            // It stayed open over the crash.
            let claim = claim("job", LONG);
            let fence = take(&*backend, &claim).await.fence.unwrap();
            assert!(matches!(release(&*backend, &claim).await, Release::Freed));
            fence
        } else {
            let mut user = connect_plainly(&server).await;
            let transaction = user.transaction().await.unwrap();
            in_transaction(&transaction, &config, &resource("job")).await.unwrap()
        };
        assert!(fence > last, "{fence} after {last}, which was given before the crash");
        last = fence;
    }
}

/// Two transactions that want each other's locks: one gets an error, tries again, and then gets both.
#[tokio::test]
async fn a_deadlock_of_two_transactions_ends_in_a_second_try() {
    let Some(server) = PostgresServer::builder().setting("deadlock_timeout", "100ms").start_or_skip().await
    else {
        return;
    };
    let url = format!("{}?method=for-update", server.url());
    let config = PostgresConfig::parse(&url).unwrap();
    let backend = open(&url).await;
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let mut tasks = Vec::new();
    for names in [["a", "b"], ["b", "a"]] {
        let (mut user, config, both) = (connect_plainly(&server).await, config.clone(), both.clone());
        tasks.push(tokio::spawn(async move {
            for tries in 1..10 {
                let transaction = user.transaction().await.unwrap();
                in_transaction(&transaction, &config, &resource(names[0])).await.unwrap();
                if tries == 1 {
                    both.wait().await;
                }
                match in_transaction(&transaction, &config, &resource(names[1])).await {
                    Ok(_) => {
                        transaction.commit().await.unwrap();
                        return tries;
                    }
                    Err(failure) => {
                        assert!(failure.is_transient(), "{failure}");
                        transaction.rollback().await.unwrap();
                    }
                }
            }
            panic!("never got both");
        }));
    }
    let mut tries = 0;
    for task in tasks {
        tries += tokio::time::timeout(Duration::from_secs(20), task).await.unwrap().unwrap();
    }
    assert!(tries > 2, "no deadlock occurred");
    for name in ["a", "b"] {
        hold(&*backend, &claim(name, LONG)).await;
    }
}

#[tokio::test]
async fn user_without_create_rights_holds_by_the_printed_schema() {
    let Some(server) = PostgresServer::builder().setting("fsync", "on").start_or_skip().await else { return };
    server.sql("CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").await.unwrap();
    for method in METHODS {
        let table = method.split(['=', '&', '-']).nth(1).unwrap();
        let url = format!(
            "postgres://app@{}/postgres?schema=locks&table={table}&create=no&{method}",
            server.addr()
        );
        let failure = connect(&url).await.unwrap_err();
        assert!(failure.detail().contains("leasehold schema --store"), "{failure}");
        let config = PostgresConfig::parse(&url).unwrap();
        // Running it again, beside clients, changes nothing.
        for _ in 0..2 {
            server.sql(&schema(&config)).await.unwrap();
        }
        assert_eq!(connect(&url).await.unwrap_err().kind, FailureKind::Denied);
        server.sql(&grants(&config)).await.unwrap();
        let backend = open(&url).await;
        assert_eq!(backend.profile().fencing, FenceGrade::Strict);
        let claim = claim("job", LONG);
        let first = hold(&*backend, &claim).await;
        server.sql(&schema(&config)).await.unwrap();
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
        assert!(hold(&*backend, &claim).await.fence > first.fence);
    }
}
