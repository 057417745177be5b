//! `revoke`, and `run --on-revoke`.

use leasehold_testkit::RedisQuorum;

use crate::support::{Place, Redis};

#[test]
fn revoke_sends_the_chosen_signal_and_the_command_releases() {
    let redis = Redis::start_or_skip();
    let places = [Some(Place::new()), redis.as_ref().map(|redis| Place::on(&redis.server.url()))];
    for place in places.into_iter().flatten() {
        for (signal, name) in [("term", "TERM"), ("usr1", "USR1")] {
            let script =
                format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.1; done");
            let holder = place.start(&["--note", "ann", "--on-revoke", signal, "job"], &script);
            holder.line_with("ready");
            let waiter = place.start(&["job"], "echo in");
            let asked = place.end(&["revoke", "--reason", "it is\u{7} time", "job"]).expect(0);
            assert!(asked.out.starts_with("job: asked: ") && asked.out.contains("ann"), "{asked:?}");
            holder.line_with(&format!("got {name}"));
            holder.end().expect(9).says("job is revoked: it is\\u{7} time");
            waiter.line_with("in");
            waiter.end().expect(0);
        }
    }
}

#[test]
fn who_does_not_listen_goes_on_and_is_not_asked_twice() {
    let place = Place::new();
    let holder = place.hold(&["job"]);
    place.end(&["revoke", "job"]).expect(0).says("a holder that does not listen for requests");
    let asked = place.end(&["revoke", "--json", "job"]).expect(0).out;
    let asked: serde_json::Value = serde_json::from_str(&asked).unwrap();
    assert_eq!((&asked["name"], asked["asked"].as_array().unwrap().len()), (&"job".into(), 1));
    assert_eq!(place.show("job")["holders"].as_array().unwrap().len(), 1);
    holder.end().expect(0);
    // The request does not apply to the next holder.
    place.run(&["--on-revoke", "term", "job"], "sleep 0.3").expect(0);
    assert_eq!(place.end(&["revoke", "--json", "job"]).expect(1).out, "{\"name\":\"job\",\"asked\":[]}\n");
    place.end(&["revoke", "job"]).expect(1).says("nobody to ask");
    place.end(&["revoke", "--reason", &"x".repeat(257), "job"]).expect(64).says("256");
}

#[test]
fn on_revoke_without_values_is_refused_before_the_command_runs() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let Some(servers) = runtime.block_on(RedisQuorum::start_or_skip(3)) else { return };
    let place = Place::on(&format!("redlock://{}", servers.hosts()));
    place.end(&["redlock", "rearm", "--yes"]).expect(0);
    place.run(&["--on-revoke", "term", "job"], "echo never").expect(78).says("keeps no values");
    place.end(&["revoke", "job"]).expect(78).says("keeps no values");
}
