//! The particular cases of a store of several servers.

use leasehold_testkit::{Data, RedisQuorum};

use crate::support::Sandbox;

/// Three servers that were just set up, and what runs them.
fn servers() -> Option<(RedisQuorum, tokio::runtime::Runtime, Sandbox)> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let servers = runtime.block_on(RedisQuorum::start_or_skip(3))?;
    let sandbox = Sandbox::on(&format!("redlock://{}", servers.hosts()));
    Some((servers, runtime, sandbox))
}

#[test]
fn a_lock_is_held_shown_listed_and_broken() {
    let Some((_servers, _runtime, sandbox)) = servers() else { return };
    sandbox.end(&["redlock", "rearm", "--yes"]).expect(0);
    let holder = sandbox.hold(&["job"]);
    assert_eq!(sandbox.show("job")["holders"].as_array().unwrap().len(), 1);
    assert!(sandbox.end(&["ls"]).expect(0).out.starts_with("job"));
    sandbox.run(&["--no-wait", "job"], "echo never").expect(75);
    let refused = sandbox.run(&["--permits", "2", "job"], "echo never").expect(78);
    assert!(refused.err.contains("of three servers with two permits"), "{}", refused.err);
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    assert_eq!(sandbox.show("job")["state"], "free");
    sandbox.run(&["job"], "test ${#LEASEHOLD_FENCE} -eq 42").expect(0);
    drop(holder);
}

#[test]
fn servers_that_have_forgotten_are_armed_by_a_person_only() {
    let Some((servers, runtime, sandbox)) = servers() else { return };
    sandbox.end(&["redlock", "rearm"]).expect(64).says("--yes");
    let armed = sandbox.end(&["redlock", "rearm", "--yes"]).expect(0).out;
    assert!(armed.contains("armed: 127.0.0.1:") && armed.contains("in epoch 1"), "{armed}");
    sandbox.run(&["job"], "true").expect(0);
    for number in [0, 2] {
        runtime.block_on(servers.server(number).restart(Data::Lose)).unwrap();
    }
    sandbox.run(&["job"], "echo never").expect(78).says("leasehold redlock rearm");
    sandbox.end(&["redlock", "rearm", "--yes"]).expect(0);
    sandbox.run(&["job"], "true").expect(0);
}

#[test]
fn only_a_store_of_several_servers_is_armed() {
    Sandbox::new().end(&["redlock", "rearm", "--yes"]).expect(64).says("redlock://");
}
