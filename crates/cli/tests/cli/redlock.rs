//! The particular cases of a store of several servers.

use leasehold_testkit::{Data, RedisQuorum};

use crate::support::Place;

/// Three servers that were just set up, and what runs them.
fn servers() -> Option<(RedisQuorum, tokio::runtime::Runtime, Place)> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let servers = runtime.block_on(RedisQuorum::start_or_skip(3))?;
    let place = Place::on(&format!("redlock://{}", servers.hosts()));
    Some((servers, runtime, place))
}

#[test]
fn a_lock_is_held_shown_listed_and_broken() {
    let Some((_servers, _runtime, place)) = servers() else { return };
    place.end(&["redlock", "rearm", "--yes"]).expect(0);
    let holder = place.hold(&["job"]);
    assert_eq!(place.show("job")["holders"].as_array().unwrap().len(), 1);
    assert!(place.end(&["ls"]).expect(0).out.starts_with("job"));
    place.run(&["--no-wait", "job"], "echo never").expect(75);
    let refused = place.run(&["--permits", "2", "job"], "echo never").expect(78);
    assert!(refused.err.contains("of three servers with two permits"), "{}", refused.err);
    place.end(&["break", "--yes", "job"]).expect(0);
    assert_eq!(place.show("job")["state"], "free");
    place.run(&["job"], "test ${#LEASEHOLD_FENCE} -eq 42").expect(0);
    drop(holder);
}

#[test]
fn servers_that_have_forgotten_are_armed_by_a_person_only() {
    let Some((servers, runtime, place)) = servers() else { return };
    place.end(&["redlock", "rearm"]).expect(64).says("--yes");
    let armed = place.end(&["redlock", "rearm", "--yes"]).expect(0).out;
    assert!(armed.contains("armed: 127.0.0.1:") && armed.contains("in epoch 1"), "{armed}");
    place.run(&["job"], "true").expect(0);
    for number in [0, 2] {
        runtime.block_on(servers.server(number).restart(Data::Lose)).unwrap();
    }
    place.run(&["job"], "echo never").expect(78).says("leasehold redlock rearm");
    place.end(&["redlock", "rearm", "--yes"]).expect(0);
    place.run(&["job"], "true").expect(0);
}

#[test]
fn only_a_store_of_several_servers_is_armed() {
    Place::new().end(&["redlock", "rearm", "--yes"]).expect(64).says("redlock://");
}
