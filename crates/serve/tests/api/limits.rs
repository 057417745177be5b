//! Limits: each has a clear error, and nothing grows without one.

use std::time::Duration;

use leasehold_testkit::surroundings::{MANY_FILES, inside};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::{Served, id, until};

#[tokio::test(flavor = "multi_thread")]
async fn large_request_is_refused() {
    let served = Served::start().await;
    let body = json!({ "name": "a", "note": "x".repeat(20_000) });
    let refused = served.request("PUT", &format!("/v1/holds/{}", id())).body(&body).send().await;
    refused.is_problem(413, "too_large");
    let long = format!("/v1/locks?prefix={}", "x".repeat(5000));
    served.request("GET", &long).send().await.is_problem(414, "uri_too_long");
    // A head beyond the buffer ends the connection; the server lives on.
    let outcome = tokio::spawn(huge_head(served.request("GET", "/v1/locks"))).await;
    assert!(outcome.is_err() || matches!(outcome, Ok(400..=599)), "{outcome:?}");
    served.request("GET", "/v1/locks").send().await.ok();
    let long_note = json!({ "name": "a", "note": "x".repeat(2000) });
    served.put(&id(), "0", long_note).await.is_problem(400, "invalid_request");
}

async fn huge_head(request: crate::support::http::Request) -> u16 {
    request.header("x-filler", &"x".repeat(100_000)).send().await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_that_the_server_cuts_short_names_its_limit() {
    let served = Served::with(|config| config.limits.wait = Duration::from_millis(50)).await;
    served.lock(&id(), "a").await;
    let refused = served.put(&id(), "60s", json!({ "name": "a" })).await;
    let detail = refused.is_problem(423, "busy");
    assert!(detail.contains("send it again") && detail.contains("--max-wait"), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn number_of_locks_and_waits_is_limited() {
    let served = Served::with(|config| (config.limits.holds, config.limits.waiters) = (3, 1)).await;
    served.lock(&id(), "a").await;
    let waiting =
        served.request("PUT", &format!("/v1/holds/{}?wait=60s", id())).body(&json!({ "name": "a" }));
    let waiting = waiting.begin().await;
    served.until_waiters("a", 1).await;
    let refused = served.put(&id(), "0", json!({ "name": "b" })).await;
    refused.is_problem(503, "too_many_waiters");
    assert!(refused.head.contains("retry-after"));
    drop(waiting);
    let served = Served::with(|config| config.limits.holds = 2).await;
    served.lock(&id(), "a").await;
    let two = id();
    served.lock(&two, "b").await;
    served.put(&id(), "0", json!({ "name": "c" })).await.is_problem(503, "too_many_holds");
    served.release(&two).await.ok();
    served.lock(&id(), "c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn number_of_streams_is_limited() {
    let served = Served::with(|config| (config.limits.streams, config.limits.watchers) = (1, 2)).await;
    let stream = served.stream(&id(), "0", json!({ "name": "a" })).await;
    assert_eq!(stream.status, 200);
    let refused = served.stream(&id(), "0", json!({ "name": "b" })).await;
    assert_eq!(refused.status, 503);
    let (one, two) = (served.plain("GET", "/v1/locks/a/watch"), served.plain("GET", "/events"));
    let (one, two) = (one.open().await, two.open().await);
    assert_eq!((one.status, two.status), (200, 200));
    for path in ["/v1/locks/a/watch", "/v1/elections/a/watch", "/events", "/events?name=a"] {
        served.plain("GET", path).send().await.is_problem(503, "too_many_watchers");
    }
    drop(one);
    until("a place", async || served.plain("GET", "/v1/locks/a/watch").open().await.status == 200).await;
}

/// Watchers need no token on this machine. They cannot keep a holder from its stream.
#[tokio::test(flavor = "multi_thread")]
async fn watchers_leave_the_streams_of_holders_their_places() {
    let served = Served::with(|config| (config.limits.streams, config.limits.watchers) = (4, 4)).await;
    let mut watches = Vec::new();
    for path in ["/v1/locks/a/watch", "/v1/elections/a/watch", "/events", "/events?name=a"].repeat(2) {
        watches.push(served.plain("GET", path).open().await);
    }
    assert_eq!(watches.iter().filter(|watch| watch.status == 200).count(), 4);
    let mut streams = Vec::new();
    for _ in 0..4 {
        let one = id();
        let mut stream = served.stream(&one, "0", json!({ "name": one, "on_disconnect": "release" })).await;
        assert_eq!(stream.status, 200);
        stream.until("granted").await;
        streams.push(stream);
    }
    let numbers = served.plain("GET", "/metrics").send().await.body;
    assert!(numbers.contains("leasehold_serve_watchers "), "{numbers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn number_of_connections_is_limited() {
    let served = Served::with(|config| config.limits.connections = 2).await;
    let stream = async || served.stream(&id(), "0", json!({ "name": id() })).await;
    let (one, two) = (stream().await, stream().await);
    until("the refusal", async || {
        let reply = served.plain("GET", "/healthz").send().await;
        reply.status == 503 && reply.body.contains("too_many_connections")
    })
    .await;
    drop((one, two));
    until("a place", async || served.plain("GET", "/healthz").send().await.status == 200).await;
}

/// Connections without the token cannot keep others out: the oldest makes room.
#[tokio::test(flavor = "multi_thread")]
async fn connections_of_strangers_make_room_for_holders() {
    let served = Served::with(|config| config.limits.connections = 3).await;
    let one = id();
    let mut stream = served.stream(&one, "0", json!({ "name": "a", "ttl": "30s" })).await;
    stream.until("granted").await;
    let mut strangers = Vec::new();
    for _ in 0..3 {
        let mut silent = served.plain("GET", "/").connect().await;
        silent.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
        strangers.push(silent);
        strangers.push(served.plain("GET", "/events").begin().await);
        served.renew(&one).await.ok();
    }
    let refused = served.renew(&id()).await;
    refused.is_problem(404, "unknown_hold");
    served.release(&one).await.ok();
    stream.until("released").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_asks_again_and_again_is_slowed_down() {
    let served = Served::with(|config| config.limits.rate = 5).await;
    until("the refusal", async || {
        let reply = served.plain("GET", "/healthz").send().await;
        reply.status == 429 && reply.head.contains("retry-after") && reply.body.contains("too_many_requests")
    })
    .await;
}

/// Many idle streams and waiters need a bounded memory, and the server answers beside them.
#[tokio::test(flavor = "multi_thread")]
async fn many_idle_streams_and_waiters_are_served() {
    // Other tests in this process would need memory, too.
    let test = "limits::many_idle_streams_and_waiters_are_served";
    if inside(test, &["env".to_owned()], MANY_FILES).is_none() {
        return;
    }
    let served = Served::with(|config| config.limits.rate = 100_000).await;
    served.lock(&id(), "crowd").await;
    let (before, many) = (resident_kib(), many());
    let mut streams = Vec::new();
    for _ in 0..many {
        let stream = served.plain("GET", "/v1/locks/crowd/watch").open().await;
        assert_eq!(stream.status, 200);
        streams.push(stream);
    }
    let mut waiting = Vec::new();
    for _ in 0..many {
        let request = served.request("PUT", &format!("/v1/holds/{}?wait=5m", id()));
        waiting.push(request.body(&json!({ "name": "crowd" })).begin().await);
    }
    served.plain("GET", "/healthz").send().await;
    let grown = resident_kib().saturating_sub(before);
    println!("{many} streams and {many} waiters: {grown} KiB, those of their clients included");
    assert!(grown < 100 * 2 * many as u64, "{grown} KiB");
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A thousand, as far as the limit for open files allows: each connection has two ends in this process.
fn many() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    if files >= 8_000 { 1000 } else { 100 }
}

#[tokio::test(flavor = "multi_thread")]
async fn ttl_that_was_not_asked_for_keeps_to_the_limit() {
    let served = Served::with(|config| config.limits.ttl = Duration::from_secs(2)).await;
    let granted = served.put(&id(), "0", json!({ "name": "a" })).await.ok();
    assert_eq!(granted["ttl_ms"], 2000);
    let leads = served.put(&id(), "0", json!({ "name": "b", "mode": "leader", "value": "me" })).await.ok();
    assert_eq!(leads["ttl_ms"], 2000);
    served.put(&id(), "0", json!({ "name": "c", "ttl": "3s" })).await.is_problem(400, "invalid_request");
}
