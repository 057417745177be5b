//! A Redis server that hangs, dies, forgets, or is cut off, while locks are held and waited for.

use std::time::Duration;

use leasehold::{Client, ErrorKind, Guard, LossCause, Tuning};
use leasehold_testkit::{Data, Proxy, RedisServer, Way, until};
use leasehold_tests::{opened, renewed};

/// The ttl of a lease that a test waits for the end of.
const SHORT: Duration = Duration::from_millis(900);
/// The ttl of a lease that a test relies on, on however busy a machine.
const LONG: Duration = Duration::from_secs(30);
/// No step takes this long on any machine.
const LIMIT: Duration = Duration::from_secs(60);

async fn hold(locks: &Client, name: &str, ttl: Duration) -> Guard {
    locks.mutex(name).ttl(ttl).lock().await.unwrap()
}

async fn lost(guard: &Guard) -> LossCause {
    tokio::time::timeout(LIMIT, guard.lost()).await.unwrap()
}

/// Opens a client that renews its leases long before they end.
async fn early(server: &RedisServer) -> Client {
    Client::builder().tuning(Tuning::default().renew_at(0.05)).open(&server.url()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_hang_past_the_lease_loses_the_lock_and_then_recovers() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let locks = opened(&format!("{}?timeout=500ms", server.url())).await;
    let guard = hold(&locks, "job", SHORT).await;
    let fence = guard.fence();
    server.stop().unwrap();
    assert_eq!(lost(&guard).await, LossCause::Expired);
    server.resume().unwrap();
    assert!(guard.release().await.unwrap_err().is_lost());
    let next = hold(&locks, "job", LONG).await;
    assert!(next.fence() > fence);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_data_loss_is_noticed_at_the_next_renewal() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let locks = early(&server).await;
    let guard = hold(&locks, "job", LONG).await;
    let fence = guard.fence();
    server.restart(Data::Lose).await.unwrap();
    let cause = lost(&guard).await;
    assert_eq!(cause, LossCause::Gone, "the server said so, before the lease ran out");
    let next = hold(&locks, "job", LONG).await;
    assert!(next.fence() > fence, "a lost counter does not begin anew: {:?} after {fence:?}", next.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_restarted_with_its_data_keeps_the_lock() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let locks = early(&server).await;
    let guard = hold(&locks, "job", LONG).await;
    server.restart(Data::Keep).await.unwrap();
    renewed(&guard).await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_survive_a_server_restart() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let (one, two) = (Client::open(&server.url()).await.unwrap(), Client::open(&server.url()).await.unwrap());
    let guard = hold(&one, "job", LONG).await;
    let waiter = tokio::spawn(async move { hold(&two, "job", LONG).await });
    until("the other one waits", async || !one.inspect("job").await.unwrap().waiting.is_empty()).await;
    server.kill().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.restart(Data::Lose).await.unwrap();
    drop(guard);
    tokio::time::timeout(LIMIT, waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_holder_sees_loss_first_and_keeps_its_successor() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    for way in [Way::Both, Way::ToServer, Way::ToClient] {
        let proxy = Proxy::start(server.addr()).await.unwrap();
        let locks = opened(&format!("{}?timeout=500ms", server.url_at(proxy.addr()))).await;
        let other = Client::open(&server.url()).await.unwrap();
        let guard = hold(&locks, "job", SHORT).await;
        proxy.blackhole(way);
        let next = hold(&other, "job", LONG).await;
        // The check reads the clock, so it is right at any later moment: no valid guard existed after
        // the grant.
        assert!(guard.check().is_err(), "{way:?}: the old holder believes that it holds");
        assert_eq!(lost(&guard).await, LossCause::Expired);
        proxy.heal().unwrap();
        assert!(guard.release().await.unwrap_err().is_lost());
        next.check().unwrap();
        next.release().await.expect("the other's release did not touch it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_lost_leave_one_holder_and_no_residue() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let locks = opened(&format!("{}?timeout=300ms", server.url_at(proxy.addr()))).await;
    let other = Client::open(&server.url()).await.unwrap();
    for _ in 0..5 {
        proxy.drop_replies();
        let lock = tokio::spawn({
            let mutex = locks.mutex("job").ttl(Duration::from_secs(10));
            async move { mutex.lock().await.unwrap() }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxy.heal().unwrap();
        let guard = lock.await.unwrap();
        let seen = other.inspect("job").await.unwrap();
        assert_eq!(
            (seen.holders.len(), seen.waiting.len()),
            (1, 0),
            "one claim, although it was asked for again"
        );
        assert_eq!(seen.fence, guard.fence(), "the first attempt was the grant");
        proxy.drop_replies();
        let release = tokio::spawn(guard.release());
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxy.heal().unwrap();
        release.await.unwrap().expect("it was held until it was released");
        leasehold_tests::settled(&other).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_see_an_error_if_the_server_stays_away() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let tuning = Tuning::default().outage(Duration::from_millis(500));
    let locks = Client::builder().tuning(tuning).open(&server.url()).await.unwrap();
    server.kill().unwrap();
    let error = locks.mutex("job").lock().await.unwrap_err();
    // A client that has not yet seen the end of its connection sends the first request on it. Nobody can say
    // then whether the server received it.
    let kinds = [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown];
    assert!(kinds.contains(&error.kind()), "{error}");
    assert!(error.to_string().contains(&server.port().to_string()), "it says which server: {error}");
    let error = Client::open(&server.url()).await.unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::Unavailable, "open"), "{error}");
}
