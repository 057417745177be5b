//! A Redis server that hangs, dies, forgets, or is cut off, while locks are held and waited for.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Client, ErrorKind, Guard, LossCause, Tuning};
use leasehold_testkit::{Data, Proxy, RedisServer, Way, until};
use leasehold_tests::{opened, renewed};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy};
use tokio::net::{TcpListener, TcpStream};

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

/// A request with the id of a claim, as a relay saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// It was asked for.
    Asked(String),
    /// It was released, and the release did not arrive.
    LostRelease(String),
}

impl Seen {
    /// Reads one line of a request.
    fn read(line: &[u8], is_lost: bool) -> Option<Seen> {
        let (id, rest) = std::str::from_utf8(line).ok()?.trim_end().split_at_checked(32)?;
        let is_id = id.bytes().all(|byte| byte.is_ascii_hexdigit());
        match rest {
            ":1:1" if is_id && is_lost => Some(Seen::LostRelease(id.to_owned())),
            rest if is_id && rest.starts_with(":1:1=") => Some(Seen::Asked(id.to_owned())),
            _ => None,
        }
    }
}

/// Passes bytes on to a server. What follows the first `WAIT` of a connection never arrives.
async fn relay_until_a_wait(listener: TcpListener, server: SocketAddr, seen: Arc<Mutex<Vec<Seen>>>) {
    /// The lines of `WAIT` after its name: two arguments, each with its length.
    const REST_OF_WAIT: u32 = 4;
    while let Ok((client, _)) = listener.accept().await {
        let seen = seen.clone();
        tokio::spawn(async move {
            let (from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = TcpStream::connect(server).await?.into_split();
            tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
            let (mut from_client, mut line, mut left) = (BufReader::new(from_client), Vec::new(), None);
            while from_client.read_until(b'\n', &mut line).await? > 0 {
                let is_lost = left == Some(0);
                seen.lock().unwrap().extend(Seen::read(&line, is_lost));
                if !is_lost {
                    to_server.write_all(&line).await?;
                }
                left = match left {
                    None => (line == b"WAIT\r\n").then_some(REST_OF_WAIT),
                    Some(lines) => Some(lines.saturating_sub(1)),
                };
                line.clear();
            }
            std::io::Result::Ok(())
        });
    }
}

/// The release of a grant that too few replicas have may arrive at any later time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_whose_release_is_unanswered_is_not_requested_again() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let (seen, listener) = (Arc::default(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let url = format!("redis://{}?replicas=1&timeout=3s", listener.local_addr().unwrap());
    tokio::spawn(relay_until_a_wait(listener, server.addr(), Arc::clone(&seen)));
    let (other, locks) = (opened(&server.url()).await, opened(&url).await);
    let held = hold(&other, "job", LONG).await;
    let waits = tokio::spawn(async move { locks.mutex("job").ttl(LONG).lock().await });
    until("it waits", async || !other.inspect("job").await.unwrap().waiting.is_empty()).await;
    held.release().await.unwrap();
    let requests = || seen.lock().unwrap().clone();
    let is_release = |seen: &Seen| matches!(seen, Seen::LostRelease(_));
    let next = || requests().into_iter().skip_while(|seen| !is_release(seen)).find(|seen| !is_release(seen));
    until("it asks again", async || next().is_some()).await;
    let lost = requests().into_iter().find(is_release);
    let (Some(Seen::Asked(next)), Some(Seen::LostRelease(lost))) = (next(), lost) else {
        panic!("{:?}", requests())
    };
    assert_ne!(next, lost, "its release may arrive now");
    waits.abort();
}
