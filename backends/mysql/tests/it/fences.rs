//! The fences of named locks, which cost no commit: they rise over everything that can happen to their
//! counter.

use std::time::Duration;

use leasehold_core::{Backend, Fence, LossSignal, Patience, Release, Renewal};
use leasehold_testkit::{Data, MariaDbServer};
use mysql_async::prelude::Queryable;

use crate::common::*;

async fn client(server: &MariaDbServer) -> std::sync::Arc<dyn Backend> {
    open(&format!("{}?method=get-lock", server.url())).await
}

/// Acquires and releases `job`, and returns its fence, which has to be above the last one.
async fn cycle(backend: &dyn Backend, last: &mut Fence) {
    let claim = claim("job", LONG);
    let fence = take(backend, &claim).await.fence.unwrap();
    assert!(fence > *last, "{fence} after {last}");
    *last = fence;
    assert!(matches!(release(backend, &claim).await, Release::Freed));
}

async fn number(server: &MariaDbServer, query: &str) -> u64 {
    server.sql(query).await.unwrap().trim().parse().unwrap()
}

const LAST: &str = "SELECT last FROM leasehold_fences";

#[tokio::test]
async fn fences_rise_while_clients_come_and_use_up_a_block() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let (one, two) = (client(&server).await, client(&server).await);
    let mut last = Fence::default();
    for n in 0..12 {
        let third = client(&server).await;
        for backend in [&one, &third, &two, &one] {
            cycle(&**backend, &mut last).await;
        }
        let end = number(&server, LAST).await;
        // Nothing of this block is left but a few numbers, then nothing at all.
        let now = "SELECT (UUID_SHORT() & 72057594037927935) + ahead FROM leasehold_fences";
        let now = number(&server, now).await;
        let calls = end - now - n % 4;
        server.sql(&format!("SELECT BENCHMARK({calls}, UUID_SHORT())")).await.unwrap();
        for backend in [&one, &two, &one, &two, &third] {
            cycle(&**backend, &mut last).await;
        }
        assert!(number(&server, LAST).await > end, "all of them draw from another block");
    }
}

/// A session that waits for the table would give no sign of life, and lose all that it holds.
#[tokio::test]
async fn locked_table_of_fences_ends_no_other_lock() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = open(&format!("{}?method=get-lock&silence=8s&timeout=30s", server.url())).await;
    let held = claim("held", LONG);
    let grant = take(&*backend, &held).await;
    // From here on the block of this client is not the last one any more.
    let other = client(&server).await;
    cycle(&*other, &mut Fence::default()).await;
    let mut console = mysql_async::Conn::from_url(server.url()).await.unwrap();
    console.query_drop(format!("BEGIN; {LAST} FOR UPDATE")).await.unwrap();
    let asking = tokio::spawn({
        let backend = backend.clone();
        async move { take(&*backend, &claim("next", LONG)).await.fence }
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    let lost = grant.lost.as_ref().and_then(LossSignal::cause);
    assert!(lost.is_none(), "the session was lost: {lost:?}");
    assert!(!asking.is_finished(), "it has a fence of a block that is not committed");
    assert!(matches!(renew(&*backend, &held).await, Renewal::Alive));
    console.query_drop("ROLLBACK").await.unwrap();
    let fence = asking.await.unwrap();
    assert!(fence > grant.fence, "{fence:?} after {:?}", grant.fence);
}

/// A server that starts twice in a second begins its counter at the same number. A restart takes less than that.
#[tokio::test]
async fn fences_rise_over_quick_starts_without_data() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let mut last = Fence::default();
    for _ in 0..6 {
        let one = client(&server).await;
        for _ in 0..3 {
            cycle(&*one, &mut last).await;
        }
        cycle(&*client(&server).await, &mut last).await;
        server.restart(Data::Lose).await.unwrap();
    }
}

/// The state of a server whose clock was set back while it was down, seen from its new time.
#[tokio::test]
async fn fences_rise_over_a_restart_under_an_earlier_clock() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = client(&server).await;
    let mut last = Fence::default();
    for ahead in [1u64 << 40, 1 << 24, 20_000, 5_000] {
        cycle(&*backend, &mut last).await;
        server.restart(Data::Keep).await.unwrap();
        // The block of before, as a server whose clock was ahead by that would have left it.
        let now = "SELECT (UUID_SHORT() & 72057594037927935) + ahead FROM leasehold_fences";
        let start = number(&server, now).await.max(last.seq) + ahead;
        let end = start + 10_000;
        // The last one is of a server that was started in the same second.
        let start = if ahead == 5_000 { start - 10_000 } else { start };
        server.sql(&format!("UPDATE leasehold_fences SET start = {start}, last = {end}")).await.unwrap();
        last = Fence::new(0, number(&server, LAST).await, 0);
        let (one, two) = (client(&server).await, client(&server).await);
        for backend in [&backend, &one, &two, &backend, &one] {
            cycle(&**backend, &mut last).await;
        }
    }
}

#[tokio::test]
async fn brief_lock_writes_nothing_and_a_kept_one_is_shown() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let (backend, other) = (client(&server).await, client(&server).await);
    let mut last = Fence::default();
    cycle(&*backend, &mut last).await;
    let before = counter(&server, "Com_insert_select").await;
    for _ in 0..300 {
        cycle(&*backend, &mut last).await;
    }
    // On a slow machine some of the locks are shown.
    let spent = counter(&server, "Com_insert_select").await - before;
    assert!(spent < 50, "{spent} statements wrote something for 300 locks");
    let kept = claim("kept", LONG);
    let fence = hold(&*backend, &kept).await.fence;
    for _ in 0..2 {
        let seen = other.inspect(&kept.resource, None, &Patience::none(clock())).await.unwrap();
        assert_eq!((seen.holders[0].id, seen.holders[0].fence), (kept.id, fence));
    }
    assert_eq!(other.list("", None, 10).await.unwrap().len(), 1);
    assert!(matches!(release(&*backend, &kept).await, Release::Freed));
    let next = claim("kept", LONG);
    hold(&*backend, &next).await;
    let seen = other.inspect(&kept.resource, None, &Patience::none(clock())).await.unwrap();
    assert_eq!(seen.holders[0].id, next.id, "the row of before does not count for it");
    assert!(matches!(release(&*backend, &next).await, Release::Freed));
    assert!(other.list("", None, 10).await.unwrap().is_empty());
}

/// A lock of an earlier claim and one of the present claim are the same to the server.
#[tokio::test]
async fn break_spares_a_connection_whose_claim_was_released() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let (backend, operator) = (client(&server).await, client(&server).await);
    let (first, second) = (claim("job", LONG), claim("job", LONG));
    hold(&*backend, &first).await;
    let seen = operator.inspect(&first.resource, None, &Patience::none(clock())).await.unwrap();
    assert_eq!(seen.holders[0].id, first.id);
    assert!(matches!(release(&*backend, &first).await, Release::Freed));
    hold(&*backend, &second).await;
    let outcome = operator.break_claim(&first).await.unwrap();
    assert_eq!(outcome, leasehold_core::BreakOutcome::Gone);
    assert!(matches!(renew(&*backend, &second).await, leasehold_core::Renewal::Alive));
}

/// A grant writes nothing, so the server itself would refuse none after another one has taken its place.
#[tokio::test]
async fn server_that_was_set_read_only_grants_nothing() {
    let Some(server) = MariaDbServer::start_or_skip().await else { return };
    let backend = client(&server).await;
    let kept = claim("kept", LONG);
    hold(&*backend, &kept).await;
    server.sql("SET GLOBAL read_only = 1").await.unwrap();
    let next = claim("job", LONG);
    assert!(backend.contend(&next, &Patience::none(clock())).await.is_err());
    assert!(matches!(renew(&*backend, &kept).await, leasehold_core::Renewal::Lost));
    server.sql("SET GLOBAL read_only = 0").await.unwrap();
    hold(&*backend, &next).await;
}
