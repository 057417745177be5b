//! Processes that are killed and stopped: client, server and store.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::{Data, RedisServer};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::child::ServerProcess;
use crate::support::{LIMIT, id, until};

/// A killed server releases nothing: its locks end with their leases, and not before what it had promised.
#[tokio::test(flavor = "multi_thread")]
async fn lock_outlives_a_killed_server_for_its_lease() {
    let Some(redis) = RedisServer::start_or_skip().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut server = ServerProcess::start(&redis.url(), folder.path());
    let sent = Instant::now();
    let one = id();
    let body = json!({ "name": "a", "ttl": "4s" });
    let grant = server.put(&one, "0", &body).await.ok();
    let valid = Duration::from_millis(grant["valid_ms"].as_u64().unwrap());
    assert_eq!(grant["basis"], "lease");
    server.signal(Signal::KILL);
    server.wait();
    // A server that starts again knows nothing of it, and says so. It cannot release it.
    let again = ServerProcess::start(&redis.url(), folder.path());
    again.renew(&one).await.is_problem(404, "unknown_hold");
    for _ in 0..2 {
        assert_eq!(again.release(&one).await.ok()["state"], "unknown");
    }
    again.put(&one, "0", &body).await.is_problem(410, "released");
    let store = Client::open(&redis.url()).await.unwrap();
    let next = store.mutex("a").lock().await.unwrap();
    assert!(sent.elapsed() >= valid, "granted {:?} after the request, valid for {valid:?}", sent.elapsed());
    assert!(next.fence().unwrap().to_string().as_str() > grant["fence"].as_str().unwrap());
}

/// An answer that was delayed by a stop of the server promises nothing that the lease does not cover.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_server_promises_nothing_that_has_ended() {
    let Some(redis) = RedisServer::start_or_skip().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(&redis.url(), folder.path());
    let (one, two) = (id(), id());
    server.put(&one, "0", &json!({ "name": "a", "ttl": "4s" })).await.ok();
    let mut stream = server.stream(&two, "0", &json!({ "name": "b", "ttl": "4s" })).await;
    stream.until("granted").await;
    server.stop();
    let renewing = server.request("POST", &format!("/v1/holds/{one}/renew"));
    let renewing = tokio::spawn(async move { renewing.send().await });
    let store = Client::open(&redis.url()).await.unwrap();
    for name in ["a", "b"] {
        let guard = store.mutex(name).lock().await.unwrap();
        std::mem::forget(guard);
    }
    server.signal(Signal::CONT);
    renewing.await.unwrap().is_problem(410, "lost");
    let lost = stream.until("lost").await;
    assert_eq!(lost["cause"], "expired");
}

/// The clients of a server that is asked to end are told, and what they do not release stays until its lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn terminated_server_leaves_locks_to_their_leases() {
    let Some(redis) = RedisServer::start_or_skip().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut server = ServerProcess::start(&redis.url(), folder.path());
    let mut stream = server.stream(&id(), "0", &json!({ "name": "a", "ttl": "20s" })).await;
    stream.until("granted").await;
    server.signal(Signal::TERM);
    let closing = stream.until("closing").await;
    assert!(closing["valid_ms"].as_u64().unwrap() > 10_000);
    assert!(server.wait());
    let store = Client::open(&redis.url()).await.unwrap();
    let left = store.inspect("a").await.unwrap().holders.remove(0).remaining.unwrap();
    assert!(left > Duration::from_secs(10), "it was not given up: {left:?}");
}

/// On a store whose locks end with the process, a server that is asked to end waits for what it has promised.
#[tokio::test(flavor = "multi_thread")]
async fn terminated_server_over_files_waits_for_what_it_promised() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let mut server = ServerProcess::start(&store, folder.path());
    let one = id();
    let sent = Instant::now();
    let grant = server.put(&one, "0", &json!({ "name": "a", "ttl": "5s" })).await.ok();
    assert_eq!(grant["basis"], "process");
    let valid = Duration::from_millis(grant["valid_ms"].as_u64().unwrap());
    server.signal(Signal::TERM);
    let other = Client::open(&store).await.unwrap();
    let _next = other.mutex("a").lock().await.unwrap();
    assert!(sent.elapsed() >= valid, "free {:?} after the request, valid for {valid:?}", sent.elapsed());
    assert!(server.wait());
}

/// The delay of a lock that is lost holds up no end of the server: it cannot outlive the process. Of the stores whose
/// locks end with the process, only memory takes a delay.
#[tokio::test(flavor = "multi_thread")]
async fn terminated_server_over_memory_does_not_wait_for_the_delay_of_a_lost_lock() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = ServerProcess::start("mem:delay", folder.path());
    let (one, body) = (id(), json!({ "name": "a", "ttl": "1s", "lock_delay": "1h" }));
    let grant = server.put(&one, "0", &body).await.ok();
    assert_eq!(grant["basis"], "process");
    let look = server.request("GET", &format!("/v1/holds/{one}"));
    until("it is lost", async || look.send().await.status == 410).await;
    server.put(&id(), "0", &body).await.is_problem(423, "busy");
    server.signal(Signal::TERM);
    until("the server ends", async || look.send_if_alive().await.is_none()).await;
    assert!(server.wait());
}

/// Heartbeats that come during its grace do not let it promise more: it ends, and the locks with it, not before what it
/// has promised.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_do_not_keep_a_server_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let mut server = ServerProcess::start(&store, folder.path());
    let (one, two) = (id(), id());
    let until_by = |sent: Instant, answer: &Value| {
        sent + Duration::from_millis(answer["valid_ms"].as_u64().unwrap_or_default())
    };
    let opened = Instant::now();
    let mut stream = server.stream(&two, "0", &json!({ "name": "b", "ttl": "5s" })).await;
    stream.until("granted").await;
    let sent = Instant::now();
    let grant = server.put(&one, "0", &json!({ "name": "a", "ttl": "5s" })).await.ok();
    let mut promised = until_by(sent, &grant);
    let other = Client::open(&store).await.unwrap();
    let next = tokio::spawn(async move { (other.mutex("a").lock().await.unwrap(), Instant::now()) });
    let streamed = tokio::spawn(async move {
        let mut promised = opened;
        while let Some(event) = stream.event().await {
            promised = promised.max(until_by(opened, &event));
        }
        promised
    });
    server.signal(Signal::TERM);
    let asked = Instant::now();
    let renewing = server.request("POST", &format!("/v1/holds/{one}/renew"));
    loop {
        let sent = Instant::now();
        let Some(renewed) = renewing.send_if_alive().await else { break };
        if renewed.status != 200 {
            renewed.is_problem(410, "lost");
            break;
        }
        promised = promised.max(until_by(sent, &renewed.json()));
        assert!(
            asked.elapsed() < LIMIT,
            "the server still renews {:?} after it was asked to end",
            asked.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(server.wait());
    let ended = Instant::now();
    let (_next, granted) = next.await.unwrap();
    assert!(granted >= promised, "granted {:?} too early", promised - granted);
    let promised = streamed.await.unwrap();
    assert!(ended >= promised, "the server ended {:?} too early for its stream", promised - ended);
}

/// A killed server over files frees its locks at once: that is why the answers say `process`.
#[tokio::test(flavor = "multi_thread")]
async fn killed_server_over_files_frees_its_locks_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let mut server = ServerProcess::start(&store, folder.path());
    let grant = server.put(&id(), "0", &json!({ "name": "a", "ttl": "1h" })).await.ok();
    assert_eq!(grant["basis"], "process");
    server.signal(Signal::KILL);
    server.wait();
    let other = Client::open(&store).await.unwrap();
    let next = other.mutex("a").lock().await.unwrap();
    assert!(next.fence().unwrap().to_string().as_str() > grant["fence"].as_str().unwrap());
}

/// When the store is gone, holders see it in time: suspect first, then lost, and no grant meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn killed_store_makes_locks_suspect_and_then_lost() {
    let Some(redis) = RedisServer::start_or_skip().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(&redis.url(), folder.path());
    let one = id();
    // Even a machine that stands still for long leaves time between the first failure and the end of the lease.
    let mut stream = server.stream(&one, "0", &json!({ "name": "a", "ttl": "30s" })).await;
    stream.until("granted").await;
    redis.kill().unwrap();
    stream.until("suspect").await;
    assert_eq!(stream.until("lost").await["cause"], "expired");
    server.renew(&one).await.is_problem(410, "lost");
    let refused = server.put(&id(), "0", &json!({ "name": "b" })).await;
    assert!(matches!(refused.status, 503 | 504), "{refused:?}");
    assert_eq!(server.request("GET", "/healthz").send().await.status, 200);
    redis.restart(Data::Lose).await.unwrap();
    until("a grant", async || server.put(&id(), "0", &json!({ "name": "b" })).await.status == 200).await;
}

/// What the store has under a name is no mistake of the client.
#[tokio::test(flavor = "multi_thread")]
async fn data_of_another_program_is_a_failure_of_the_store() {
    let Some(redis) = RedisServer::start_or_skip().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(&redis.url(), folder.path());
    redis.command(&["LPUSH", "{lh:a}:fence", "theirs"]).await.unwrap();
    server.put(&id(), "0", &json!({ "name": "a" })).await.is_problem(502, "foreign");
    assert_eq!(server.put(&id(), "0", &json!({ "name": "b" })).await.status, 200);
}

/// A client that is killed loses its locks: at once with a stream that asked for that, and after the ttl otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn killed_client_loses_its_locks() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let server = ServerProcess::start(&store, folder.path());
    let mut curl = std::process::Command::new("curl");
    curl.args(["-sN", "-X", "PUT", "-H", "accept: application/x-ndjson", "-H"]);
    curl.arg(format!("authorization: Bearer {}", server.token));
    curl.args(["-d", r#"{"name":"a","ttl":"1h","on_disconnect":"release"}"#]);
    curl.arg(format!("http://{}/v1/holds/{}", server.address, id()));
    let Ok(mut client) = curl.stdout(std::process::Stdio::null()).spawn() else {
        return leasehold_testkit::require::skip("curl", "it is not installed");
    };
    let other = Client::open(&store).await.unwrap();
    until("the grant", async || other.inspect("a").await.unwrap().holders.len() == 1).await;
    client.kill().unwrap();
    client.wait().unwrap();
    until("the release", async || other.inspect("a").await.unwrap().holders.is_empty()).await;
    server.put(&id(), "0", &json!({ "name": "b", "ttl": "3s" })).await.ok();
    until("the end", async || other.inspect("b").await.unwrap().holders.is_empty()).await;
}
