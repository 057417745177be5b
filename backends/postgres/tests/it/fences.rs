//! The fences of advisory locks, which cost no commit: they rise over everything that can happen to their
//! counter.

use crate::common::*;
use leasehold_core::{Backend, Fence, Patience, Release, Share};
use leasehold_testkit::{Data, PostgresServer};

async fn client(server: &PostgresServer) -> std::sync::Arc<dyn Backend> {
    open(&format!("{}?method=advisory", server.url())).await
}

/// Acquires and releases `job`, and returns its fence, which has to be above the last one.
async fn cycle(backend: &dyn Backend, share: Share, last: &mut Fence) {
    let claim = claim("job", LONG).share(share);
    let fence = hold(backend, &claim).await.fence.unwrap();
    assert!(fence > *last, "{fence} after {last}");
    *last = fence;
    assert!(matches!(release(backend, &claim).await, Release::Freed));
}

async fn number(server: &PostgresServer, query: &str) -> i64 {
    server.sql(query).await.unwrap().trim().parse().unwrap()
}

const LAST: &str = "SELECT last FROM leasehold_advisory_fences";

#[tokio::test]
async fn fences_rise_while_clients_come_and_use_up_a_block() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let (one, two) = (client(&server).await, client(&server).await);
    let mut last = Fence::default();
    for n in 0..12 {
        // Each that comes begins a block, and those before it follow.
        let third = client(&server).await;
        for share in [Share::MUTEX, Share::READER] {
            for backend in [&one, &third, &two, &one] {
                cycle(&**backend, share, &mut last).await;
            }
        }
        let end = number(&server, LAST).await;
        // Nothing of this block is left but a few numbers, then nothing at all.
        let left = n % 4;
        server.sql(&format!("SELECT setval('leasehold_advisory_fence', {})", end - left)).await.unwrap();
        for backend in [&one, &two, &one, &two, &third] {
            cycle(&**backend, Share::MUTEX, &mut last).await;
        }
        assert!(number(&server, LAST).await > end, "all of them draw from another block");
    }
}

#[tokio::test]
async fn fences_rise_over_a_crash_that_forgets_the_counter() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = client(&server).await;
    let mut last = Fence::default();
    cycle(&*backend, Share::MUTEX, &mut last).await;
    let start = last.seq - 1;
    for _ in 0..100 {
        cycle(&*backend, Share::MUTEX, &mut last).await;
    }
    // The clock is of no help: the blocks are ahead of it.
    let ahead = "UPDATE leasehold_advisory_fences SET last = last + 3600000000";
    server.sql(ahead).await.unwrap();
    let ahead_of_clock = client(&server).await;
    cycle(&*ahead_of_clock, Share::MUTEX, &mut last).await;
    for n in 1..=3 {
        let lost = if n == 1 { start } else { last.seq - 10 };
        server.kill().unwrap();
        server.restart(Data::Keep).await.unwrap();
        server.sql(&format!("SELECT setval('leasehold_advisory_fence', {lost})")).await.unwrap();
        let next = claim("job", LONG);
        let fence = take(&*backend, &next).await.fence.unwrap();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        assert!(matches!(release(&*backend, &next).await, Release::Freed));
    }
}

#[tokio::test]
async fn counter_that_was_put_back_gives_no_fence() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let backend = client(&server).await;
    let mut last = Fence::default();
    for put_back in ["SELECT setval('leasehold_advisory_fence', 5)", "DROP SEQUENCE leasehold_advisory_fence"]
    {
        for _ in 0..20 {
            cycle(&*backend, Share::MUTEX, &mut last).await;
        }
        server.sql(put_back).await.unwrap();
        cycle(&*backend, Share::MUTEX, &mut last).await;
        cycle(&*backend, Share::READER, &mut last).await;
    }
}

/// They wait for the row together here. Without the lock they would wait for the disk, one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_open_together_begin_one_block() {
    const CLIENTS: usize = 12;
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let mut last = Fence::default();
    cycle(&*client(&server).await, Share::MUTEX, &mut last).await;
    let counted = "CREATE TABLE begun (last bigint); \
                   CREATE FUNCTION count_block() RETURNS trigger LANGUAGE plpgsql AS \
                   'BEGIN INSERT INTO begun VALUES (NEW.last); RETURN NEW; END'; \
                   CREATE TRIGGER count AFTER UPDATE ON leasehold_advisory_fences \
                   FOR EACH ROW EXECUTE FUNCTION count_block()";
    server.sql(counted).await.unwrap();
    let (other, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    other.batch_execute("BEGIN; SELECT 1 FROM leasehold_advisory_fences FOR UPDATE").await.unwrap();
    let mut opening = tokio::task::JoinSet::new();
    for n in 0..CLIENTS {
        let url = format!("{}?method=advisory&timeout=60s", server.url());
        opening.spawn(async move {
            let (backend, claim) = (open(&url).await, claim(&format!("job {n}"), LONG));
            let fence = hold(&*backend, &claim).await.fence.unwrap();
            assert!(matches!(release(&*backend, &claim).await, Release::Freed));
            fence
        });
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let all_wait = async {
        while number(&server, waiting).await < i64::try_from(CLIENTS).unwrap() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(50), all_wait).await.unwrap();
    other.batch_execute("COMMIT").await.unwrap();
    let mut fences = opening.join_all().await;
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), CLIENTS, "each fence is given once");
    assert!(fences[0] > last, "{fences:?} after {last}");
    assert_eq!(number(&server, "SELECT count(*) FROM begun").await, 1);
    connection.abort();
}

#[tokio::test]
async fn brief_lock_writes_nothing_and_a_kept_one_is_shown() {
    let Some(server) = PostgresServer::start_or_skip().await else { return };
    let (backend, other) = (client(&server).await, client(&server).await);
    let mut last = Fence::default();
    cycle(&*backend, Share::MUTEX, &mut last).await;
    let writes = "SELECT pg_current_xact_id()";
    let before = number(&server, writes).await;
    for _ in 0..320 {
        cycle(&*backend, Share::MUTEX, &mut last).await;
    }
    // The counter writes one of 32 numbers ahead. On a slow machine some of the locks are shown.
    let spent = number(&server, writes).await - before;
    assert!(spent < 80, "{spent} transactions wrote something for 320 locks");
    let kept = claim("kept", LONG);
    let fence = hold(&*backend, &kept).await.fence;
    for _ in 0..2 {
        let seen = other.inspect(&kept.resource, None, &Patience::none(clock())).await.unwrap();
        assert_eq!((seen.holders[0].id, seen.holders[0].fence), (kept.id, fence));
    }
    assert_eq!(other.list("", None, 10).await.unwrap().len(), 1);
    assert!(matches!(release(&*backend, &kept).await, Release::Freed));
    assert_eq!(number(&server, "SELECT count(*) FROM leasehold_held WHERE claim <> ''").await, 0);
}
