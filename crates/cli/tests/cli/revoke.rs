//! `revoke`, and `run --on-revoke`.

use leasehold_testkit::RedisQuorum;

use crate::support::{Redis, Sandbox};

#[test]
fn revoke_sends_the_chosen_signal_and_the_command_releases() {
    let redis = Redis::start_or_skip();
    let sandboxes = [Some(Sandbox::new()), redis.as_ref().map(|redis| Sandbox::on(&redis.server.url()))];
    for sandbox in sandboxes.into_iter().flatten() {
        for (signal, name) in [("term", "TERM"), ("usr1", "USR1")] {
            let script =
                format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.1; done");
            let holder = sandbox.start(&["--note", "ann", "--on-revoke", signal, "job"], &script);
            holder.line_with("ready");
            let waiter = sandbox.start(&["job"], "echo in");
            let asked = sandbox.end(&["revoke", "--reason", "it is\u{7} time", "job"]).expect(0);
            assert!(asked.out.starts_with("job: asked: ") && asked.out.contains("ann"), "{asked:?}");
            holder.line_with(&format!("got {name}"));
            holder.end().expect(9).says("job is revoked: it is\\u{7} time");
            waiter.line_with("in");
            waiter.end().expect(0);
        }
    }
}

#[test]
fn holder_without_on_revoke_continues_and_is_asked_once() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    sandbox.end(&["revoke", "job"]).expect(0).says("a holder that does not listen for requests");
    let asked = sandbox.end(&["revoke", "--json", "job"]).expect(0).out;
    let asked: serde_json::Value = serde_json::from_str(&asked).unwrap();
    assert_eq!((&asked["name"], asked["asked"].as_array().unwrap().len()), (&"job".into(), 1));
    assert_eq!(sandbox.show("job")["holders"].as_array().unwrap().len(), 1);
    holder.end().expect(0);
    // The request does not apply to the next holder.
    sandbox.run(&["--on-revoke", "term", "job"], "sleep 0.3").expect(0);
    assert_eq!(sandbox.end(&["revoke", "--json", "job"]).expect(1).out, "{\"name\":\"job\",\"asked\":[]}\n");
    sandbox.end(&["revoke", "job"]).expect(1).says("nobody to ask");
    sandbox.end(&["revoke", "--reason", &"x".repeat(257), "job"]).expect(64).says("256");
}

#[test]
fn on_revoke_without_values_is_refused_before_the_command_runs() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let Some(servers) = runtime.block_on(RedisQuorum::start_or_skip(3)) else { return };
    let sandbox = Sandbox::on(&format!("redlock://{}", servers.hosts()));
    sandbox.end(&["redlock", "rearm", "--yes"]).expect(0);
    sandbox.run(&["--on-revoke", "term", "job"], "echo never").expect(78).says("keeps no values");
    sandbox.end(&["revoke", "job"]).expect(78).says("keeps no values");
}

#[test]
fn revoke_waits_for_the_release_up_to_its_limit() {
    let redis = Redis::start_or_skip();
    let sandboxes = [Some(Sandbox::new()), redis.as_ref().map(|redis| Sandbox::on(&redis.server.url()))];
    for sandbox in sandboxes.into_iter().flatten() {
        let deaf = sandbox.hold(&["--note", "ann", "--shared", "job"]);
        let ended = sandbox.end(&["revoke", "--wait", "300ms", "job"]).expect(75);
        ended.says("job was not released within").says("ann");
        let json = sandbox.end(&["revoke", "--json", "--wait", "300ms", "job"]).expect(75).out;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["still_held"][0]["note"], "ann");
        deaf.end().expect(0);
        let script = "trap 'echo asked; sleep 0.3; exit 0' USR1; echo ready; while :; do sleep 0.05; done";
        let listens = sandbox.start(&["--on-revoke", "usr1", "job"], script);
        listens.line_with("ready");
        // The next holder was not asked, and is not waited for.
        let next = sandbox.start(&["job"], "echo next; exec sleep 1000");
        sandbox.wait_for_line("job", 1, 1);
        let json = sandbox.end(&["revoke", "--json", "--wait", "50s", "job"]).expect(0).out;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (json["asked"].as_array().unwrap().len(), &json["still_held"]),
            (1, &serde_json::json!([]))
        );
        listens.line_with("asked");
        listens.end().expect(0);
        next.line_with("next");
        drop(next);
    }
    Sandbox::new().end(&["revoke", "--wait", "1s", "job"]).expect(1).says("nobody to ask");
}

#[test]
fn closed_output_ends_neither_the_wait_nor_the_verdict() {
    let sandbox = Sandbox::new();
    let deaf = sandbox.hold(&["job"]);
    for args in [&["revoke", "--wait", "300ms", "job"][..], &["revoke", "--json", "--wait", "300ms", "job"]] {
        let ended = sandbox.end_unread(args).expect(75).says("job was not released within");
        assert!(ended.took >= std::time::Duration::from_millis(300), "{ended:?}");
    }
    sandbox.end_unread(&["break", "--yes", "job"]).expect(0);
    deaf.end().expect(76);
    sandbox.end_unread(&["revoke", "job"]).expect(1);
    sandbox.end_unread(&["revoke", "--json", "job"]).expect(1);
    sandbox.end_unread(&["break", "--yes", "--json", "job"]).expect(1);
}
