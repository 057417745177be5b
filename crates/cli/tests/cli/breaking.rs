//! `break` where a connection keeps what it holds.

use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::{PostgresServer, RedisQuorum, require};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::support::{Redis, Sandbox, Started};

#[test]
fn break_ends_a_connection_and_names_the_other_locks_it_ends() {
    let runtime = Runtime::new().unwrap();
    let Some(server) = runtime.block_on(PostgresServer::start_or_skip()) else { return };
    let url = format!("{}?method=advisory", server.url());
    let sandbox = Sandbox::on(&url);
    let holder = sandbox.start(&["job"], "echo ready; sleep 1000");
    holder.line_with("ready");
    let waiter = sandbox.start(&["job"], "echo in");
    let broken = sandbox.end(&["break", "--yes", "job"]).expect(0);
    assert!(broken.out.contains("job: broken: ") && broken.out.contains("all other locks"), "{}", broken.out);
    holder.end().expect(76).says("lost");
    waiter.line_with("in");
    waiter.end().expect(0);
    runtime.block_on(async {
        let locks = Client::open(&url).await.unwrap();
        let guards = [locks.mutex("job").lock().await.unwrap(), locks.mutex("other").lock().await.unwrap()];
        let broken = sandbox.end(&["break", "--yes", "--json", "job"]).expect(0);
        let broken: Value = serde_json::from_str(&broken.out).unwrap();
        assert_eq!(broken["also_released"], Value::from(vec!["other"]));
        assert_eq!(broken["broken"].as_array().unwrap().len(), 1);
        for guard in &guards {
            tokio::time::timeout(Duration::from_secs(20), guard.lost()).await.unwrap();
        }
    });
    sandbox.end(&["break", "--yes", "job"]).expect(1).says("nothing to break");
}

#[test]
fn break_after_a_time_asks_first() {
    let redis = Redis::start_or_skip();
    let sandboxes = [Some(Sandbox::new()), redis.as_ref().map(|redis| Sandbox::on(&redis.server.url()))];
    for sandbox in sandboxes.into_iter().flatten() {
        let script = "trap 'exit 5' USR1; echo ready; while :; do sleep 0.05; done";
        let listens = sandbox.start(&["--ttl", "5s", "--on-revoke", "usr1", "--note", "ben", "job"], script);
        listens.line_with("ready");
        let ended = sandbox.end(&["break", "--yes", "--after", "50s", "job"]).expect(0);
        assert!(ended.out.contains("job: released: ben") && !ended.out.contains("broken"), "{ended:?}");
        listens.end().expect(5).says("taken away in 50s");
        let deaf = sandbox.hold(&["--ttl", "5s", "--note", "ann", "job"]);
        let waits = sandbox.start(&["--ttl", "5s", "--note", "eve", "job"], "echo never");
        sandbox.wait_for_line("job", 1, 1);
        let json =
            sandbox.end(&["break", "--yes", "--json", "--waiting", "--after", "300ms", "job"]).expect(0).out;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["broken"][0]["note"], &json["broken"][1]["note"]), (&"eve".into(), &"ann".into()));
        assert_eq!(json["released"], serde_json::json!([]));
        deaf.end().expect(76);
        drop(waits);
    }
    Sandbox::new().end(&["break", "--yes", "--after", "1s", "job"]).expect(1).says("nothing to break");
    Sandbox::new().end(&["break", "--after", "1s", "job"]).expect(64).says("--yes");
}

/// A holder may release the lock as soon as it is asked, and a waiter that is still queued would be granted it.
#[test]
fn waiters_are_cancelled_before_the_holders_are_asked() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let Some(cli) = require::or_skip("redis-cli", require::program("redis-cli", "redis-tools")) else {
        return;
    };
    let sandbox = Sandbox::on(&redis.server.url());
    let holder = sandbox.hold(&["job"]);
    let waits = sandbox.start(&["job"], "echo never");
    sandbox.wait_for_line("job", 1, 1);
    let mut monitor = Command::new(cli);
    monitor.args(["-p", &redis.server.port().to_string(), "monitor"]);
    monitor.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let monitor = Started::new(monitor);
    monitor.line_with("OK");
    sandbox.end(&["break", "--yes", "--waiting", "--after", "300ms", "job"]).expect(0);
    // Each is written once: the end of the waiter, and the request to the holder.
    monitor.line_with("\"ZREM\" \"{lh:job}:queue\"");
    monitor.line_with("\"SET\" \"{lh:job!notices}:value\"");
    holder.end().expect(76);
    drop(waits);
}

#[test]
fn store_that_keeps_no_requests_breaks_nothing_after_a_time() {
    let runtime = Runtime::new().unwrap();
    let Some(servers) = runtime.block_on(RedisQuorum::start_or_skip(3)) else { return };
    let sandbox = Sandbox::on(&format!("redlock://{}", servers.hosts()));
    sandbox.end(&["redlock", "rearm", "--yes"]).expect(0);
    let holder = sandbox.hold(&["--ttl", "30s", "job"]);
    let waits = sandbox.start(&["--ttl", "30s", "job"], "echo in");
    let args = ["break", "--yes", "--waiting", "--after", "300ms", "job"];
    let ended = sandbox.end(&args).expect(78).says("keeps no values");
    assert!(!ended.out.contains("broken"), "{ended:?}");
    holder.end().expect(0);
    waits.line_with("in");
    waits.end().expect(0);
}
