//! The faults of the network, seen by a client of an echo server and of a real Redis.
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leasehold_testkit::{Proxy, RedisServer, Reply, Way};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_secs(60);
const SILENCE: Duration = Duration::from_millis(150);

/// Answers each read with the same bytes, until the test's runtime ends.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
    addr
}

async fn proxy_and_client() -> (Proxy, TcpStream) {
    let proxy = Proxy::start(echo().await).await.unwrap();
    let client = TcpStream::connect(proxy.addr()).await.unwrap();
    (proxy, client)
}

/// The input within the time: bytes, the end of the connection, or nothing.
#[derive(Debug, PartialEq)]
enum Got {
    Text(String),
    End,
    Nothing,
}

async fn got(client: &mut TcpStream, within: Duration) -> Got {
    let mut buffer = [0; 64];
    match tokio::time::timeout(within, client.read(&mut buffer)).await {
        Err(_) => Got::Nothing,
        Ok(Ok(0) | Err(_)) => Got::End,
        Ok(Ok(length)) => Got::Text(String::from_utf8(buffer[..length].to_vec()).unwrap()),
    }
}

async fn ask(client: &mut TcpStream, text: &str, within: Duration) -> Got {
    client.write_all(text.as_bytes()).await.unwrap();
    got(client, within).await
}

fn text(text: &str) -> Got {
    Got::Text(text.to_owned())
}

async fn until(mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !seen() {
        assert!(Instant::now() < deadline, "not seen within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_whole_proxy_carries_and_counts() {
    let (proxy, mut client) = proxy_and_client().await;
    assert_eq!(ask(&mut client, "hello", SOON).await, text("hello"));
    assert_eq!((proxy.connections(), proxy.accepted(), proxy.round_trips()), (1, 1, 1));
    assert_eq!((proxy.bytes(Way::ToServer), proxy.bytes(Way::ToClient), proxy.bytes(Way::Both)), (5, 5, 10));
    client.shutdown().await.unwrap();
    assert_eq!(got(&mut client, SOON).await, Got::End);
    until(|| proxy.connections() == 0).await;
    assert_eq!(proxy.accepted(), 1);
}

#[tokio::test]
async fn answers_are_translated_and_requests_are_not() {
    let (proxy, mut client) = proxy_and_client().await;
    proxy.translate("20001", "30002");
    // The echo server sends back what it has got.
    assert_eq!(ask(&mut client, "at 20001, 20001 and 20000", SOON).await, text("at 30002, 30002 and 20000"));
    proxy.heal().unwrap();
    assert_eq!(ask(&mut client, "20001", SOON).await, text("30002"));
}

#[tokio::test]
async fn much_passes_unchanged() {
    let (_proxy, client) = proxy_and_client().await;
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (mut from, mut to) = client.into_split();
    let expected = sent.clone();
    let sending = tokio::spawn(async move {
        to.write_all(&sent).await.unwrap();
        to.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    from.read_to_end(&mut received).await.unwrap();
    sending.await.unwrap();
    assert!(received == expected, "{} bytes came back", received.len());
}

#[tokio::test]
async fn cut_closes_and_refuses_and_heal_accepts_again() {
    let (proxy, mut client) = proxy_and_client().await;
    assert_eq!(ask(&mut client, "a", SOON).await, text("a"));
    for _ in 0..20 {
        proxy.cut().unwrap();
        assert_eq!(proxy.connections(), 0);
        assert_eq!(got(&mut client, SOON).await, Got::End);
        let refused = TcpStream::connect(proxy.addr()).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        proxy.heal().unwrap();
        client = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(ask(&mut client, "b", SOON).await, text("b"));
    }
}

#[tokio::test]
async fn black_hole_drops_silently_and_heals_by_closing_connections() {
    for way in [Way::ToServer, Way::ToClient, Way::Both] {
        let (proxy, mut client) = proxy_and_client().await;
        assert_eq!(ask(&mut client, "a", SOON).await, text("a"));
        let mut idle = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(ask(&mut idle, "i", SOON).await, text("i"));
        proxy.blackhole(way);
        assert_eq!(ask(&mut client, "b", SILENCE).await, Got::Nothing, "{way:?}");
        let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(ask(&mut new, "n", SILENCE).await, Got::Nothing, "{way:?}");
        // A connection that has lost nothing yet is not closed by the end of the fault.
        until(|| proxy.dropped_bytes() == 2).await;
        // Towards the server nothing arrived; towards the client the question did.
        assert_eq!(proxy.bytes(Way::ToServer), if way == Way::ToClient { 4 } else { 2 });
        proxy.heal().unwrap();
        assert_eq!(got(&mut client, SOON).await, Got::End, "{way:?}");
        assert_eq!(got(&mut new, SOON).await, Got::End, "{way:?}");
        assert_eq!(ask(&mut idle, "j", SOON).await, text("j"), "{way:?}");
    }
}

#[tokio::test]
async fn blackhole_hides_that_the_client_is_gone() {
    let (proxy, mut client) = proxy_and_client().await;
    assert_eq!(ask(&mut client, "a", SOON).await, text("a"));
    proxy.blackhole(Way::ToServer);
    drop(client);
    tokio::time::sleep(SILENCE).await;
    assert_eq!(proxy.connections(), 1);
    proxy.heal().unwrap();
    until(|| proxy.connections() == 0).await;
}

#[tokio::test]
async fn held_bytes_arrive_late_and_in_order() {
    for way in [Way::ToServer, Way::ToClient, Way::Both] {
        let (proxy, mut client) = proxy_and_client().await;
        proxy.hold(way);
        assert_eq!(ask(&mut client, "a", SILENCE).await, Got::Nothing, "{way:?}");
        client.write_all(b"b").await.unwrap();
        proxy.heal().unwrap();
        let mut both = [0; 2];
        tokio::time::timeout(SOON, client.read_exact(&mut both)).await.unwrap().unwrap();
        assert_eq!(&both, b"ab", "{way:?}");
    }
}

#[tokio::test]
async fn a_delay_is_added_in_each_direction_asked_for() {
    let delay = Duration::from_millis(100);
    for (way, least) in [(Way::ToServer, delay), (Way::ToClient, delay), (Way::Both, 2 * delay)] {
        let (proxy, mut client) = proxy_and_client().await;
        proxy.delay(way, delay);
        let begun = Instant::now();
        assert_eq!(ask(&mut client, "a", SOON).await, text("a"));
        assert!(begun.elapsed() >= least, "{way:?}: {:?}", begun.elapsed());
        proxy.heal().unwrap();
        // The fastest of several, because another test may have the processor.
        let mut fastest = Duration::MAX;
        for _ in 0..20 {
            let begun = Instant::now();
            assert_eq!(ask(&mut client, "b", SOON).await, text("b"));
            fastest = fastest.min(begun.elapsed());
        }
        assert!(fastest < delay, "{way:?}: {fastest:?}");
    }
}

#[tokio::test]
async fn a_delay_does_not_lower_the_throughput() {
    let (proxy, mut client) = proxy_and_client().await;
    proxy.delay(Way::Both, Duration::from_secs(1));
    let begun = Instant::now();
    for _ in 0..50 {
        client.write_all(b"x").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::timeout(SOON, client.read_exact(&mut [0; 50])).await.unwrap().unwrap();
    // One after the other, they would take 100 seconds.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn only_the_reply_of_the_chosen_request_is_lost() {
    let (proxy, mut client) = proxy_and_client().await;
    assert_eq!(ask(&mut client, "a", SOON).await, text("a"));
    proxy.cut_after_request(3);
    assert_eq!(ask(&mut client, "b", SOON).await, text("b"));
    let mut other = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(ask(&mut other, "c", SOON).await, text("c"));
    assert_eq!(ask(&mut client, "d", SOON).await, Got::End);
    assert_eq!(ask(&mut other, "e", SOON).await, text("e"));
    assert_eq!((proxy.lost_replies(), proxy.bytes(Way::ToServer), proxy.bytes(Way::ToClient)), (1, 5, 4));
}

/// A fault that nothing passes through has done nothing, however many connections are open.
#[tokio::test]
async fn faults_count_what_they_have_touched() {
    let (proxy, mut client) = proxy_and_client().await;
    assert_eq!(ask(&mut client, "a", SOON).await, text("a"));
    let faults: [&dyn Fn(); 5] = [
        &|| proxy.hold(Way::ToClient),
        &|| proxy.delay(Way::Both, Duration::from_millis(1)),
        &|| proxy.drop_replies(),
        &|| proxy.garble(Way::ToClient),
        &|| proxy.blackhole(Way::ToServer),
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        let before = proxy.touched();
        fault();
        proxy.heal().unwrap();
        assert_eq!((proxy.connections(), proxy.touched() - before), (1, 0), "fault {number}");
        fault();
        client.write_all(b"b").await.unwrap();
        until(|| proxy.touched() > before).await;
        proxy.heal().unwrap();
        client = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(ask(&mut client, "c", SOON).await, text("c"));
        until(|| proxy.connections() == 1).await;
    }
    let before = proxy.touched();
    proxy.cut().unwrap();
    proxy.cut().unwrap();
    assert_eq!(proxy.touched() - before, 1);
}

#[tokio::test]
async fn a_set_whose_reply_is_lost_has_happened() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    proxy.drop_replies();
    for round in ["1", "2"] {
        let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(ask(&mut client, &format!("SET key {round}\r\n"), SOON).await, Got::End);
        assert_eq!(server.command(&["GET", "key"]).await.unwrap(), Reply::Bytes(round.into()));
    }
    assert_eq!(proxy.lost_replies(), 2);
    proxy.heal().unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(ask(&mut client, "SET key 3\r\n", SOON).await, text("+OK\r\n"));
}

#[tokio::test]
async fn a_pushed_message_is_not_a_reply() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(matches!(ask(&mut client, "SUBSCRIBE news\r\n", SOON).await, Got::Text(_)));
    proxy.drop_replies();
    server.command(&["PUBLISH", "news", "hello"]).await.unwrap();
    assert!(matches!(got(&mut client, SOON).await, Got::Text(message) if message.contains("hello")));
    assert_eq!(ask(&mut client, "PING\r\n", SOON).await, Got::End);
}

#[tokio::test]
async fn proxy_closes_while_its_server_is_down_and_recovers() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    server.kill().unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(got(&mut client, SOON).await, Got::End);
    server.restart(leasehold_testkit::Data::Keep).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(ask(&mut client, "PING\r\n", SOON).await, text("+PONG\r\n"));
}

#[tokio::test]
async fn proxy_forwards_while_the_test_blocks_its_thread() {
    let Some(server) = RedisServer::start_or_skip().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let mut client = std::net::TcpStream::connect(proxy.addr()).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[tokio::test]
async fn nonsense_comes_for_what_was_sent_until_its_connection_ends() {
    let (proxy, mut client) = proxy_and_client().await;
    let sent = "a".repeat(64);
    assert_eq!(ask(&mut client, &sent, SOON).await, text(&sent));
    proxy.garble(Way::ToClient);
    client.write_all(sent.as_bytes()).await.unwrap();
    let mut got = [0; 64];
    client.read_exact(&mut got).await.unwrap();
    assert!(got != [b'a'; 64] && got[..8] != got[8..16], "{got:?}");
    proxy.heal().unwrap();
    assert_eq!(client.read(&mut got).await.unwrap_or(0), 0, "the stream continued");
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(ask(&mut client, &sent, SOON).await, text(&sent));
}

#[tokio::test]
async fn drop_ends_everything() {
    let (proxy, mut client) = proxy_and_client().await;
    assert_eq!(ask(&mut client, "a", SOON).await, text("a"));
    let addr = proxy.addr();
    drop(proxy);
    assert_eq!(got(&mut client, SOON).await, Got::End);
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
#[should_panic(expected = "requests count from 1")]
async fn request_zero_is_refused() {
    let (proxy, _client) = proxy_and_client().await;
    proxy.cut_after_request(0);
}
