//! What a server, and the way to it, do to locks in rows.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::*;
use leasehold_core::{Claim, Effect, FailureKind, Note, Patience, Release, Renewal, Step, Waiting};
use leasehold_testkit::surroundings::{inside, private_mounts};
use leasehold_testkit::{Data, PgBouncer, PoolMode, PostgresServer, Proxy};

#[tokio::test]
async fn a_restart_keeps_what_is_held_and_who_waits() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let (here, there) = (open(&server.url()).await, open(&server.url()).await);
    let (held, next) = (claim("job", LONG), claim("job", LONG));
    let first = hold(&*here, &held).await;
    let waiting = {
        let (there, next) = (there.clone(), next.clone());
        tokio::spawn(async move { take(&*there, &next).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.kill().unwrap();
    assert!(matches!(renew(&*here, &held).await, Renewal::Unknown(_)), "a dead server confirms nothing");
    server.restart(Data::Keep).await.unwrap();
    assert!(matches!(renew_at_last(&*here, &held).await, Renewal::Renewed));
    assert!(!waiting.is_finished());
    assert!(matches!(release(&*here, &held).await, Release::Freed));
    let second = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    assert!(second.fence > first.fence);
}

#[tokio::test]
async fn the_loss_of_all_data_is_a_loss_and_fences_rise_all_the_same() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let held = claim("job", LONG);
    let first = hold(&*backend, &held).await;
    server.restart(Data::Lose).await.unwrap();
    let next = claim("job", LONG);
    let second = take(&*backend, &next).await;
    assert!(second.fence > first.fence, "{second:?} after {first:?}");
    assert!(matches!(renew_at_last(&*backend, &held).await, Renewal::Lost));
    assert!(matches!(release(&*backend, &held).await, Release::Gone));
    assert!(matches!(release(&*backend, &next).await, Release::Freed));
}

#[tokio::test]
async fn a_standby_that_takes_over_goes_on_above_what_it_never_got() {
    let Some(primary) = PostgresServer::start_or_skip().await else { return };
    let standby = primary.standby().await.unwrap();
    let url = format!("postgres://postgres@{},{}/postgres?timeout=1s", primary.addr(), standby.addr());
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

    assert!(matches!(renew_at_last(&*backend, &known).await, Renewal::Renewed), "what it got it keeps");
    let next = claim("lost", LONG);
    let after = take(&*backend, &next).await;
    assert!(after.fence > highest, "{after:?} after {highest:?}");
    assert_eq!(after.fence.unwrap().epoch, 2, "the timeline is the epoch");
    assert!(matches!(renew_at_last(&*backend, &lost).await, Renewal::Lost));
    assert!(matches!(release(&*backend, &lost).await, Release::Gone), "it must spare the next holder");
    assert!(matches!(release(&*backend, &next).await, Release::Freed));
}

#[tokio::test]
async fn an_answer_that_was_lost_is_asked_for_again_by_the_same_claim() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let backend = open(&format!("{}?timeout=500ms", server.url_at(proxy.addr()))).await;
    assert_eq!(backend.profile().waiting, Waiting::Notifies, "a way that keeps sessions may listen");
    let direct = open(&server.url()).await;

    let (lost, other) = (claim("a", LONG), claim("a", LONG));
    proxy.drop_replies();
    let failure = look_once(&*backend, &lost).await.unwrap_err();
    assert_eq!(failure.effect, Effect::Unknown, "{failure}");
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
    assert!(!matches!(release(&*backend, &lost).await, Release::Unknown(_)));
    assert!(look_once(&*direct, &other).await.unwrap().is_some(), "it is released");
    assert!(matches!(release(&*backend, &lost).await, Release::Gone), "it must spare the next holder");

    let (held, other) = (claim("b", LONG), claim("b", LONG));
    hold(&*backend, &held).await;
    proxy.drop_replies();
    assert!(matches!(renew(&*backend, &held).await, Renewal::Unknown(_)));
    proxy.heal().unwrap();
    assert!(matches!(renew_at_last(&*backend, &held).await, Renewal::Renewed));
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    hold(&*backend, &other).await;
    proxy.drop_replies();
    assert!(matches!(release(&*backend, &other).await, Release::Unknown(_)));
    assert!(look_once(&*direct, &held).await.unwrap().is_some(), "the release happened in one step");
}

#[tokio::test]
async fn a_server_that_hangs_is_away_and_comes_back() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?timeout=300ms", server.url())).await;
    let held = claim("job", LONG);
    hold(&*backend, &held).await;
    server.stop().unwrap();
    let began = std::time::Instant::now();
    assert!(matches!(renew(&*backend, &held).await, Renewal::Unknown(_)));
    let failure = look_once(&*backend, &claim("other", LONG)).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    server.resume().unwrap();
    assert!(matches!(renew_at_last(&*backend, &held).await, Renewal::Renewed));
}

/// The server's data lie on a disk of 200 MB, which somebody else fills.
#[tokio::test]
async fn a_full_disk_refuses_newcomers_and_costs_nobody_what_they_hold() {
    let name = "a_full_disk_refuses_newcomers_and_costs_nobody_what_they_hold";
    let script = "mount -t tmpfs -o size=200m,mode=1777 tmpfs \"$DIR\"";
    let Some(dir) = inside(name, &private_mounts(), script) else { return };
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = open(&server.url()).await;
    let (held, known) = (claim("held", LONG), claim("known", LONG));
    let first = hold(&*backend, &held).await;
    hold(&*backend, &known).await;
    let ballast = dir.join("ballast");
    fill(&ballast);

    // New rows need new pages sooner or later.
    let note = Note::new(&"x".repeat(1000)).unwrap();
    let mut refused = None;
    for n in 0..200 {
        let new = Claim { note: note.clone(), ..claim(&format!("new/{n}"), LONG) };
        if let Err(failure) = look_once(&*backend, &new).await {
            refused = Some(failure);
            break;
        }
    }
    let refused = refused.unwrap();
    assert_eq!((refused.kind, refused.effect), (FailureKind::Unavailable, Effect::None), "{refused}");
    assert!(refused.to_string().contains("make room on the server's disk"), "{refused}");
    // What has a page goes on in it.
    assert!(matches!(renew(&*backend, &held).await, Renewal::Renewed));
    assert!(matches!(release(&*backend, &known).await, Release::Freed));
    assert!(look_once(&*backend, &claim("held", LONG)).await.unwrap().is_none());

    // Where the log has no room either, the server goes down, and nothing of it is told as lost.
    drop(server.sql("SELECT pg_switch_wal(); CREATE TABLE more AS SELECT generate_series(1, 2000000)").await);
    for _ in 0..20 {
        match renew(&*backend, &held).await {
            Renewal::Renewed | Renewal::Unknown(_) => {}
            answer => panic!("on a full disk a renewal was answered with {answer:?}"),
        }
    }
    std::fs::remove_file(&ballast).unwrap();
    server.restart(Data::Keep).await.unwrap();
    assert!(matches!(renew_at_last(&*backend, &held).await, Renewal::Renewed));
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    let next = take(&*backend, &claim("held", LONG)).await;
    assert!(next.fence > first.fence);
}

/// Writes a file until the disk has no room.
fn fill(path: &std::path::Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    let block = vec![0; 64 * 1024];
    for size in [block.len(), 4096] {
        while file.write_all(&block[..size]).is_ok() {}
    }
}

/// Everybody wants the same few names, under an isolation that fails whoever was not first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_races_are_run_again() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    server.sql("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'").await.unwrap();
    let inside: Arc<Vec<AtomicU32>> = Arc::new((0..2).map(|_| AtomicU32::new(0)).collect());
    let mut tasks = Vec::new();
    for n in 0..8 {
        let (url, inside) = (server.url(), inside.clone());
        tasks.push(tokio::spawn(async move {
            let backend = open(&url).await;
            for round in 0..10 {
                let at = (n + round) % 2;
                let claim = claim(&format!("r{at}"), LONG);
                take(&*backend, &claim).await;
                assert_eq!(inside[at].fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                assert!(matches!(renew(&*backend, &claim).await, Renewal::Renewed));
                inside[at].fetch_sub(1, Ordering::SeqCst);
                assert!(matches!(release(&*backend, &claim).await, Release::Freed));
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
    }
}

/// As many as `LEASEHOLD_CANCELLED` says, else a few hundred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_waits_leave_no_row_and_no_connection() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let waits = std::env::var("LEASEHOLD_CANCELLED").map_or(300, |waits| waits.parse().unwrap());
    let backend = open(&server.url()).await;
    // Longer than the longest campaign.
    let held = claim("job", LONG * 60);
    hold(&*backend, &held).await;
    let mut left = waits;
    while left > 0 {
        let some: usize = left.min(50);
        left -= some;
        let tasks: Vec<_> = (0..some)
            .map(|n| {
                let backend = backend.clone();
                tokio::spawn(async move {
                    let patience = Patience::unlimited(clock());
                    let (claim, ends) = (claim("job", LONG), patience.clone());
                    let end = async {
                        tokio::time::sleep(Duration::from_millis(n as u64 % 20)).await;
                        ends.end();
                    };
                    let (step, ()) = tokio::join!(backend.contend(&claim, &patience), end);
                    match step {
                        Ok(Step::Granted(_)) => panic!("granted while it is held"),
                        Ok(Step::Busy(_)) => {}
                        Err(failure) => {
                            // As the reaper does with a wait whose end is not known.
                            assert!(failure.is_transient(), "{failure}");
                            assert!(!matches!(release(&*backend, &claim).await, Release::Unknown(_)));
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
    let seen = backend.inspect(&resource("job"), None, &Patience::none(clock())).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiting.len()), (1, 0));
    assert!(matches!(release(&*backend, &held).await, Release::Freed));
    drop(backend);
    for tries in 0.. {
        let question = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
        let open = server.sql(question).await.unwrap();
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
        (PoolMode::Session, 20, Waiting::Notifies),
        (PoolMode::Transaction, 1, Waiting::Polls),
        (PoolMode::Transaction, 5, Waiting::Polls),
    ] {
        let Some(pooler) = PgBouncer::start_or_skip(&server, mode, sessions).await else { return };
        let backend = open(&server.url_at(pooler.addr())).await;
        assert_eq!(backend.profile().waiting, waiting, "{mode:?} of {sessions}");
        let claim = claim("job", LONG);
        hold(&*backend, &claim).await;
        assert!(matches!(renew(&*backend, &claim).await, Renewal::Renewed));
        assert!(matches!(release(&*backend, &claim).await, Release::Freed));
    }
}
