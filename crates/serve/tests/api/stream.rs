//! Streams: each event, in time, and what happens when one breaks.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Served, id, until};

#[tokio::test(flavor = "multi_thread")]
async fn stream_reports_wait_grant_and_release() {
    let served = Served::start().await;
    let (one, two) = (id(), id());
    served.lock(&one, "a").await;
    let mut stream = served.stream(&two, "60s", json!({ "name": "a" })).await;
    assert_eq!(stream.status, 200);
    assert!(stream.head.contains("application/x-ndjson") && stream.head.contains("x-accel-buffering: no"));
    // It is repeated, so a client sees that it is still connected.
    stream.until("waiting").await;
    assert_eq!(stream.event().await.unwrap()["event"], "waiting");
    served.until_waiters("a", 1).await;
    served.release(&one).await.ok();
    let granted = stream.until("granted").await;
    assert_eq!((granted["id"].as_str(), granted["state"].as_str()), (Some(&*two), Some("valid")));
    served.release(&two).await.ok();
    stream.until("released").await;
    assert_eq!(stream.event().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn open_stream_keeps_the_lock_and_names_its_validity() {
    let served = Served::start().await;
    let one = id();
    let mut stream = served.stream(&one, "0", json!({ "name": "a", "ttl": "8s" })).await;
    let granted = stream.until("granted").await;
    let mut last = granted["valid_ms"].as_u64().unwrap();
    for _ in 0..4 {
        let next = stream.until("valid").await["valid_ms"].as_u64().unwrap();
        // Without a renewal in between, the drift of the clocks takes a little off.
        assert!(next + 400 > last, "it counts from when the stream was requested: {next} after {last}");
        last = next;
    }
    assert!(last > 10_000, "four events are more than a ttl: {last}");
    assert_eq!(served.holders("a").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_breaks_releases_at_once_if_that_was_asked() {
    let served = Served::start().await;
    let body = json!({ "name": "a", "ttl": "3600s", "on_disconnect": "release" });
    let mut stream = served.stream(&id(), "0", body).await;
    stream.until("granted").await;
    drop(stream);
    served.until_holders("a", 0).await;
    let body = json!({ "name": "b", "ttl": "5s" });
    let mut stream = served.stream(&id(), "0", body).await;
    stream.until("granted").await;
    drop(stream);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(served.holders("b").await, 1, "without that it is kept for its ttl");
    served.until_holders("b", 0).await;
}

/// A client that ends its stream without a release may have died, and its last writes may be under way.
#[tokio::test(flavor = "multi_thread")]
async fn stream_that_breaks_is_a_loss_with_the_delay_of_one() {
    const DELAY: Duration = Duration::from_secs(2);
    let served = Served::start().await;
    let body = |delay: &str| json!({ "name": "a", "lock_delay": delay, "on_disconnect": "release" });
    let mut stream = served.stream(&id(), "0", body("2s")).await;
    stream.until("granted").await;
    let broken = Instant::now();
    drop(stream);
    served.store.mutex("a").lock().await.unwrap().release().await.unwrap();
    assert!(broken.elapsed() >= DELAY, "free after {:?}", broken.elapsed());
    let one = id();
    let mut stream = served.stream(&one, "0", body("1h")).await;
    stream.until("granted").await;
    drop(stream);
    let has_ended = async || served.request("GET", &format!("/v1/holds/{one}")).send().await.status == 410;
    until("the end of the stream", has_ended).await;
    assert_eq!(served.holders("a").await, 1, "the delay continues");
    // The client lives, and says that its work is over.
    assert_eq!(served.release(&one).await.ok()["state"], "released");
    served.until_holders("a", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_stream_takes_over() {
    let served = Served::start().await;
    let one = id();
    let body = json!({ "name": "a", "ttl": "3600s", "on_disconnect": "release" });
    let mut first = served.stream(&one, "0", body).await;
    first.until("granted").await;
    let events = served.request("GET", &format!("/v1/holds/{one}/events"));
    let mut second = events.header("accept", "text/event-stream").open().await;
    assert!(second.head.contains("text/event-stream"));
    assert_eq!(second.line().await.as_deref(), Some("event: granted"));
    assert!(second.line().await.unwrap().starts_with("data: {"));
    drop(first);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(served.holders("a").await, 1);
    drop(second);
    served.until_holders("a", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loss_is_reported_before_another_client_is_granted_the_lock() {
    let served = Served::start().await;
    let one = id();
    let mut stream =
        served.stream(&one, "0", json!({ "name": "a", "ttl": "30s", "max_hold": "400ms" })).await;
    stream.until("granted").await;
    let lost = stream.until("lost").await;
    assert_eq!(lost["cause"], "max-hold");
    assert_eq!(stream.event().await, None);
    served.renew(&one).await.is_problem(410, "lost");
    served.put(&id(), "60s", json!({ "name": "a" })).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_claim_is_reported_as_lost() {
    let served = Served::start().await;
    let one = id();
    let mut stream = served.stream(&one, "0", json!({ "name": "a", "ttl": "10s" })).await;
    stream.until("granted").await;
    let holder = served.store.inspect("a").await.unwrap().holders.remove(0);
    served.store.break_claim("a", &holder).await.unwrap();
    assert_eq!(stream.until("lost").await["cause"], "gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_to_release_is_reported() {
    let served = Served::start().await;
    let (one, two) = (id(), id());
    let mut stream = served.stream(&one, "0", json!({ "name": "a" })).await;
    stream.until("granted").await;
    served.store.revoke("a", "the machine goes down").await.unwrap();
    assert_eq!(stream.until("revoked").await["revoked"], "the machine goes down");
    served.put(&two, "0", json!({ "name": "b", "revocable": true })).await.ok();
    served.store.revoke("b", "please").await.unwrap();
    crate::support::until("the reason", async || served.renew(&two).await.ok()["revoked"] == "please").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_to_release_with_tags_is_for_those_claims() {
    let served = Served::with(|config| config.allow_actions = true).await;
    let (one, two) = (id(), id());
    let old = served.lock(&one, "a").await["tag"].clone();
    served.release(&one).await.ok();
    let mut stream = served.stream(&two, "0", json!({ "name": "a" })).await;
    let new = stream.until("granted").await["tag"].clone();
    let ask = async |reason: &str, tags: serde_json::Value| {
        let body = json!({ "reason": reason, "tags": tags });
        served.request("POST", "/v1/locks/a/revoke").body(&body).send().await.ok()["asked"].clone()
    };
    assert_eq!(ask("of the old one", json!([old])).await, json!([]));
    assert_eq!(ask("of none", json!([])).await, json!([]));
    assert_eq!(ask("of this one", json!([old, new])).await[0]["tag"], new);
    assert_eq!(stream.until("revoked").await["revoked"], "of this one");
}

/// A client without a stream sees a request by its reason alone, so each request has one.
#[tokio::test(flavor = "multi_thread")]
async fn request_to_release_without_a_reason_is_reported() {
    let served = Served::with(|config| config.allow_actions = true).await;
    let one = id();
    served.put(&one, "0", json!({ "name": "a", "revocable": true })).await.ok();
    served.store.revoke("a", "").await.unwrap();
    let is_reported = async || served.renew(&one).await.ok()["revoked"] == "no reason given";
    crate::support::until("the request", is_reported).await;
    let native = served.store.mutex("b").revocable().unwrap().lock().await.unwrap();
    served.request("POST", "/v1/locks/b/revoke").body(&json!({ "reason": "" })).send().await.ok();
    let asked = tokio::time::timeout(crate::support::LIMIT, native.revoked()).await.expect("a request");
    assert_eq!(asked.unwrap().reason, "no reason given");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_is_not_granted_ends_with_the_problem() {
    let served = Served::start().await;
    served.lock(&id(), "a").await;
    let mut stream = served.stream(&id(), "100ms", json!({ "name": "a" })).await;
    let error = stream.until("error").await;
    assert_eq!(
        (error["problem"]["code"].as_str(), error["problem"]["status"].as_u64()),
        (Some("busy"), Some(423))
    );
    assert_eq!(stream.event().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_shows_each_state_of_a_lock() {
    let served = Served::start().await;
    let mut watch = served.plain("GET", "/v1/locks/orders%2F42/watch").open().await;
    assert_eq!(watch.event().await.unwrap()["state"], "free");
    let one = id();
    served.lock(&one, "orders/42").await;
    assert_eq!(watch.event().await.unwrap()["state"], "held");
    served.release(&one).await.ok();
    assert_eq!(watch.event().await.unwrap()["state"], "free");
    assert!(watch.is_silent(Duration::from_millis(200)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_tells_streams_and_waits_for_releases() {
    let served = Served::start().await;
    let (one, two, three) = (id(), id(), id());
    let mut stream = served.stream(&one, "0", json!({ "name": "a" })).await;
    stream.until("granted").await;
    served.lock(&two, "b").await;
    let mut waiting = served.stream(&three, "60s", json!({ "name": "b" })).await;
    served.until_waiters("b", 1).await;
    served.stop.send_modify(|count| *count += 1);
    assert_eq!(stream.until("closing").await["closing"], true);
    assert_eq!(waiting.until("error").await["problem"]["code"], "closing");
    served.put(&id(), "0", json!({ "name": "c" })).await.is_problem(503, "closing");
    served.plain("GET", "/healthz").send().await.is_problem(503, "closing");
    assert_eq!(served.renew(&two).await.ok()["closing"], true);
    served.release(&one).await.ok();
    served.release(&two).await.ok();
    let Served { ended, store, .. } = served;
    assert_eq!(ended.await.unwrap(), 0);
    assert!(store.inspect("a").await.unwrap().holders.is_empty());
}

/// A stream says no more than that the machine of its client lives: a program that hangs keeps its streams open. When
/// the time that its events have left it is over, the lock is lost as without a heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn stream_keeps_no_lock_of_a_client_whose_time_is_used_up() {
    let served = Served::without_expiry().await;
    let (hangs, lives) = (id(), id());
    let body = |name: &str| json!({ "name": name, "ttl": "500ms" });
    let mut hung = served.stream(&hangs, "0", body("a")).await;
    hung.until("granted").await;
    let body = json!({ "name": "b", "ttl": "5s" });
    let mut alive = served.stream(&lives, "0", body).await;
    alive.until("granted").await;
    // Fifty ttls are 25 s.
    let lost = tokio::time::timeout(crate::support::LIMIT * 2, hung.until("lost")).await.expect("an end");
    assert_eq!(lost["cause"], "heartbeat-missed");
    assert_eq!(hung.event().await, None);
    served.renew(&hangs).await.is_problem(410, "lost");
    served.until_holders("a", 0).await;
    served.renew(&lives).await.ok();
}

/// A stream that is asked for while the hold ends begins with a refusal, or ends with the last event.
#[tokio::test(flavor = "multi_thread")]
async fn stream_that_joins_at_the_end_is_never_empty() {
    let served = Served::with(|config| config.limits.rate = 1_000_000).await;
    for round in 0..100_u64 {
        let one = id();
        served.lock(&one, &one).await;
        let follow = async |delay: u64| {
            tokio::time::sleep(Duration::from_micros(delay)).await;
            served.request("GET", &format!("/v1/holds/{one}/events")).send().await
        };
        let release = async {
            tokio::time::sleep(Duration::from_micros(300)).await;
            served.release(&one).await.ok()
        };
        let spread = 50 + 20 * (round % 10);
        let (a, b, c, d, _) =
            tokio::join!(follow(spread), follow(2 * spread), follow(3 * spread), follow(4 * spread), release);
        for reply in [a, b, c, d] {
            if reply.status == 200 {
                assert!(reply.body.trim_end().ends_with("\"event\":\"released\"}"), "{reply:?}");
            } else {
                reply.is_problem(410, "released");
            }
        }
    }
}
