//! Acquire, renew and release, and each interleaving of them that can be forced.

use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_serve::{Config, Listen};
use leasehold_testkit::PostgresServer;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::{LIMIT, Served, id, until};

#[tokio::test(flavor = "multi_thread")]
async fn lock_is_acquired_renewed_and_released() {
    let served = Served::start().await;
    let one = id();
    let grant = served.lock(&one, "orders/42").await;
    assert_eq!((grant["id"].as_str(), grant["name"].as_str()), (Some(&*one), Some("orders/42")));
    assert_eq!((grant["state"].as_str(), grant["share"].as_str()), (Some("valid"), Some("mutex")));
    let valid = grant["valid_ms"].as_u64().unwrap();
    assert!((20_000..30_000).contains(&valid), "{valid}");
    assert!(grant["fence"].as_str().unwrap().len() >= 20 && grant["fence_grade"].is_string());
    assert_eq!(served.holders("orders/42").await, 1);
    let renewed = served.renew(&one).await.ok();
    assert_eq!(renewed["fence"], grant["fence"]);
    assert_eq!(served.release(&one).await.ok()["state"], "released");
    served.until_holders("orders/42", 0).await;
    assert_eq!(served.release(&one).await.ok()["state"], "released", "a repeated release is fine");
    served.renew(&one).await.is_problem(410, "released");
}

/// A connection of the server ends with it, and the lock with the connection. A row stays for its lease.
#[tokio::test(flavor = "multi_thread")]
async fn basis_says_whether_the_lock_outlives_the_server() {
    let Some(database) = PostgresServer::start_or_skip().await else { return };
    for (method, basis) in [("advisory", "process"), ("for-update", "process"), ("row", "lease")] {
        let served = Served::over(&format!("{}?method={method}", database.url()), |_| {}).await;
        let one = id();
        assert_eq!(served.lock(&one, "job").await["basis"], basis, "{method}");
        served.release(&one).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn held_lock_is_busy_and_a_wait_gets_it() {
    let served = Served::start().await;
    let (one, two) = (id(), id());
    served.lock(&one, "a").await;
    let refused = served.put(&two, "0", json!({ "name": "a" })).await;
    assert!(refused.is_problem(423, "busy").contains("nothing of this request is left"));
    served.put(&two, "50ms", json!({ "name": "a" })).await.is_problem(423, "busy");
    let (granted, _) = tokio::join!(served.put(&two, "60s", json!({ "name": "a" })), async {
        served.until_waiters("a", 1).await;
        served.release(&one).await.ok()
    });
    let granted = granted.ok();
    assert_eq!(granted["id"], two);
    assert_eq!(served.holders("a").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_is_part_of_what_the_client_has_counted() {
    let served = Served::start().await;
    let (one, two) = (id(), id());
    served.lock(&one, "a").await;
    let began = Instant::now();
    let body = json!({ "name": "a", "ttl": "5s" });
    let (granted, waited) = tokio::join!(served.put(&two, "60s", body), async {
        served.until_waiters("a", 1).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        served.release(&one).await.ok();
        began.elapsed()
    });
    let valid = Duration::from_millis(granted.ok()["valid_ms"].as_u64().unwrap());
    assert!(valid > Duration::from_secs(5), "it counts from before the wait of {waited:?}: {valid:?}");
    assert!(valid < began.elapsed() + Duration::from_secs(5), "it ends before the lease does: {valid:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_request_returns_the_same_grant_and_another_one_is_refused() {
    let served = Served::start().await;
    let one = id();
    let first = served.lock(&one, "a").await;
    let again = served.lock(&one, "a").await;
    assert_eq!((&first["fence"], &first["tag"]), (&again["fence"], &again["tag"]));
    let other = served.put(&one, "0", json!({ "name": "b", "ttl": "30s" })).await;
    assert!(other.is_problem(409, "id_reused").contains("new random id"));
    served.put(&one, "0", json!({ "name": "a", "ttl": "31s" })).await.is_problem(409, "id_reused");
    assert_eq!(served.holders("b").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_request_joins_the_wait() {
    let served = Served::start().await;
    let (one, two) = (id(), id());
    served.lock(&one, "a").await;
    let body = json!({ "name": "a" });
    let (first, second, _) =
        tokio::join!(served.put(&two, "60s", body.clone()), served.put(&two, "60s", body), async {
            served.until_waiters("a", 1).await;
            served.release(&one).await.ok()
        });
    assert_eq!(first.ok()["fence"], second.ok()["fence"]);
    assert_eq!(served.holders("a").await, 1);
}

/// What is left of a request is the wait of its other repetitions, which may still take the lock.
#[tokio::test(flavor = "multi_thread")]
async fn request_whose_wait_is_over_names_the_wait_that_is_left() {
    let served = Served::start().await;
    let (one, two) = (id(), id());
    served.lock(&one, "a").await;
    let mut waits = served.stream(&two, "60s", json!({ "name": "a" })).await;
    waits.until("waiting").await;
    for wait in ["0", "50ms"] {
        let detail = served.put(&two, wait, json!({ "name": "a" })).await.is_problem(423, "busy");
        assert!(detail.contains("another request with this id still waits"), "{wait}: {detail}");
    }
    served.release(&two).await.ok();
    waits.until("error").await;
    let detail = served.put(&id(), "50ms", json!({ "name": "a" })).await.is_problem(423, "busy");
    assert!(detail.contains("nothing of this request is left"), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_arrives_after_its_release_takes_nothing() {
    let served = Served::start().await;
    let one = id();
    assert_eq!(served.release(&one).await.ok()["state"], "unknown");
    served.put(&one, "0", json!({ "name": "a" })).await.is_problem(410, "released");
    let two = id();
    served.lock(&two, "a").await;
    served.release(&two).await.ok();
    served.put(&two, "0", json!({ "name": "a", "ttl": "30s" })).await.is_problem(410, "released");
    assert_eq!(served.holders("a").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn release_ends_a_wait() {
    let served = Served::start().await;
    let (one, two) = (id(), id());
    served.lock(&one, "a").await;
    let (waited, released) = tokio::join!(served.put(&two, "60s", json!({ "name": "a" })), async {
        served.until_waiters("a", 1).await;
        served.release(&two).await
    });
    waited.is_problem(410, "released");
    released.ok();
    served.until_waiters("a", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_without_a_sign_of_life_loses_its_lock_after_its_ttl() {
    let served = Served::without_expiry().await;
    let one = id();
    served.put(&one, "0", json!({ "name": "a", "ttl": "600ms" })).await.ok();
    served.until_holders("a", 0).await;
    let detail = served.renew(&one).await.is_problem(410, "lost");
    assert!(detail.contains("heartbeat-missed"), "{detail}");
    served.release(&one).await.is_problem(410, "lost");
    served.put(&one, "0", json!({ "name": "a", "ttl": "600ms" })).await.is_problem(410, "lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_keep_a_lock_for_longer_than_its_ttl() {
    let served = Served::start().await;
    let one = id();
    let began = Instant::now();
    served.put(&one, "0", json!({ "name": "a", "ttl": "6s" })).await.ok();
    let mut beat = began;
    while began.elapsed() < Duration::from_secs(8) {
        let asked = Instant::now();
        let renewed = served.renew(&one).await;
        // The server has to renew the lease as well, a third of the ttl after the time before.
        if renewed.status == 410 && beat.elapsed() > Duration::from_secs(3) {
            println!("the machine was too slow for heartbeats: {:?} lie between two of them", beat.elapsed());
            return;
        }
        renewed.ok();
        beat = asked;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let holders = served.holders("a").await;
    assert!(holders == 1 || beat.elapsed() > Duration::from_secs(3), "{holders} hold it");
    // A look is not a sign of life.
    until("the loss", async || served.request("GET", &format!("/v1/holds/{one}")).send().await.status == 410)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_that_races_with_the_end_is_answered_by_one_of_both() {
    let served = Served::without_expiry().await;
    for round in 0..5 {
        let one = id();
        let name = format!("race/{round}");
        served.put(&one, "0", json!({ "name": name, "ttl": "500ms" })).await.ok();
        tokio::time::sleep(Duration::from_millis(485 + 5 * round)).await;
        let reply = served.renew(&one).await;
        if reply.status == 200 {
            // Whatever the answer promised was still held when it was made.
            assert!(reply.json()["valid_ms"].as_u64().unwrap() > 0);
            let released = served.release(&one).await;
            if released.status != 200 {
                released.is_problem(410, "lost");
            }
        } else {
            reply.is_problem(410, "lost");
        }
        served.until_holders(&name, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_dies_while_it_waits_leaves_the_queue() {
    let served = Served::start().await;
    let (one, two) = (id(), id());
    served.lock(&one, "a").await;
    let body = json!({ "name": "a", "on_disconnect": "release" });
    let waiting = served.request("PUT", &format!("/v1/holds/{two}?wait=60s")).body(&body).begin().await;
    served.until_waiters("a", 1).await;
    drop(waiting);
    served.until_waiters("a", 0).await;
    served.release(&one).await.ok();
    served.until_holders("a", 0).await;
}

/// What follows the request is read with it, and hides the end of the connection from a server that does not look
/// behind it. Lock and wait last longer than this test.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_dies_behind_unread_bytes_leaves_the_queue() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    let change = |config: &mut Config| {
        config.listen.push(Listen::Unix(path.clone()));
        config.limits.wait = LIMIT * 10;
    };
    let served = Served::with(change).await;
    served.put(&id(), "0", json!({ "name": "a", "ttl": "10m" })).await.ok();
    let body = json!({ "name": "a", "on_disconnect": "release" });
    let put = || served.request("PUT", &format!("/v1/holds/{}?wait=10m", id())).body(&body);
    for request in [put(), put().socket(path.clone()).host("localhost")] {
        let mut waiting = request.connect().await;
        let next = b"\r\nGET /healthz HTTP/1.1\r\n";
        waiting.write_all(&[&request.bytes()[..], next].concat()).await.unwrap();
        served.until_waiters("a", 1).await;
        waiting.write_all(b"host: localhost\r\n").await.unwrap();
        drop(waiting);
        served.until_waiters("a", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_comes_back_keeps_its_place() {
    let served = Served::start().await;
    let (one, two) = (id(), id());
    served.lock(&one, "a").await;
    let body = json!({ "name": "a" });
    let waiting = served.request("PUT", &format!("/v1/holds/{two}?wait=60s")).body(&body).begin().await;
    served.until_waiters("a", 1).await;
    let place = served.store.inspect("a").await.unwrap().waiting[0].id.tag();
    drop(waiting);
    let (granted, seen) = tokio::join!(served.put(&two, "60s", body), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let seen = served.store.inspect("a").await.unwrap().waiting[0].id.tag();
        served.release(&one).await.ok();
        seen
    });
    assert_eq!((granted.ok()["id"].as_str(), seen), (Some(&*two), place));
}

/// A place is kept for ten seconds at most. The lock, the ttl and the wait last longer than this test.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_does_not_come_back_loses_its_place() {
    let served = Served::with(|config| config.limits.wait = LIMIT * 10).await;
    served.put(&id(), "0", json!({ "name": "a", "ttl": "10m" })).await.ok();
    let body = json!({ "name": "a", "ttl": "10m", "on_disconnect": "keep" });
    let waiting = served.request("PUT", &format!("/v1/holds/{}?wait=10m", id())).body(&body).begin().await;
    served.until_waiters("a", 1).await;
    drop(waiting);
    served.until_waiters("a", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_for_a_client_that_has_gone_ends_after_its_ttl() {
    let served = Served::start().await;
    let (one, two) = (id(), id());
    served.lock(&one, "a").await;
    let body = json!({ "name": "a", "ttl": "2s" });
    let waiting = served.request("PUT", &format!("/v1/holds/{two}?wait=60s")).body(&body).begin().await;
    served.until_waiters("a", 1).await;
    drop(waiting);
    served.release(&one).await.ok();
    served.until_holders("a", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn semaphore_and_read_write_lock_admit_as_many_as_they_say() {
    let served = Served::start().await;
    let permit = json!({ "name": "encode", "mode": "permits", "of": 3, "permits": 2 });
    let two = served.put(&id(), "0", permit.clone()).await.ok();
    assert_eq!(two["share"], "2/3");
    served.put(&id(), "0", permit).await.is_problem(423, "busy");
    served.put(&id(), "0", json!({ "name": "encode", "mode": "permits", "of": 3 })).await.ok();
    let (read, write) = (json!({ "name": "p", "mode": "read" }), json!({ "name": "p", "mode": "write" }));
    let readers = [id(), id()];
    for reader in &readers {
        assert_eq!(served.put(reader, "0", read.clone()).await.ok()["share"], "reader");
    }
    served.put(&id(), "0", write.clone()).await.is_problem(423, "busy");
    for reader in &readers {
        served.release(reader).await.ok();
    }
    assert_eq!(served.put(&id(), "0", write).await.ok()["share"], "writer");
    served
        .put(&id(), "0", json!({ "name": "x", "mode": "permits", "of": 2, "permits": 3 }))
        .await
        .is_problem(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_requests_are_explained() {
    let served = Served::start().await;
    let put = |path: &str, body: &str| served.request("PUT", path).text(body);
    for (path, body, hint) in [
        ("/v1/holds/short", r#"{"name":"a"}"#, "16 to 64"),
        ("/v1/holds/with%20a%20space%20in%20it", r#"{"name":"a"}"#, "16 to 64"),
        ("/v1/holds/0123456789abcdef?wait=10", r#"{"name":"a"}"#, "10s"),
        ("/v1/holds/0123456789abcdef?weit=10s", r#"{"name":"a"}"#, "weit"),
        ("/v1/holds/0123456789abcdef", "", "JSON"),
        ("/v1/holds/0123456789abcdef", "name=a", "JSON"),
        ("/v1/holds/0123456789abcdef", r#"{"name":"a","ttl":"1ms"}"#, "out of range"),
        ("/v1/holds/0123456789abcdef", r#"{"name":"a","max_hold":"0s"}"#, "max_hold"),
    ] {
        let detail = put(path, body).send().await.is_problem(400, "invalid_request");
        assert!(detail.contains(hint), "{path} {body}: {detail}");
    }
    served.request("GET", "/v1/nothing").send().await.is_problem(404, "not_found");
    served.request("POST", "/v1/locks").send().await.is_problem(405, "method_not_allowed");
    served.request("GET", &format!("/v1/holds/{}", id())).send().await.is_problem(404, "unknown_hold");
}

/// Files in memory keep no fence over a restart of the machine.
#[tokio::test(flavor = "multi_thread")]
async fn fencing_that_the_store_does_not_have_is_refused() {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        return leasehold_testkit::require::skip("/dev/shm", "it does not exist");
    }
    let folder = tempfile::tempdir_in(memory).unwrap();
    let served = Served::over(&format!("file://{}/store", folder.path().display()), |_| {}).await;
    let body = |grade: &str| json!({ "name": "a", "ttl": "30s", "fencing": grade });
    let detail = served.put(&id(), "0", body("strict")).await.is_problem(422, "unsupported");
    assert!(detail.contains("fenc"), "{detail}");
    assert_eq!(served.holders("a").await, 0);
    let grant = served.put(&id(), "0", body("best-effort")).await.ok();
    assert_eq!(grant["fence_grade"], "best-effort");
    let strict = Served::start().await;
    let grant = strict.put(&id(), "0", body("strict")).await.ok();
    assert_eq!(grant["fence_grade"], "strict");
}

/// The last writes of a client that gives no sign of life may be under way, as after any loss.
#[tokio::test(flavor = "multi_thread")]
async fn missed_heartbeat_is_a_loss_with_its_delay() {
    let served = Served::start().await;
    let one = id();
    let sent = Instant::now();
    let body = json!({ "name": "a", "ttl": "600ms", "lock_delay": "2s" });
    served.put(&one, "0", body).await.ok();
    let _next = served.store.mutex("a").lock().await.unwrap();
    assert!(sent.elapsed() >= Duration::from_millis(2600), "free after {:?}", sent.elapsed());
    served.request("GET", &format!("/v1/holds/{one}")).send().await.is_problem(410, "lost");
}
