//! `break` where a connection keeps what it holds.

use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::PostgresServer;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::support::Sandbox;

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
    let redis = crate::support::Redis::start_or_skip();
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
