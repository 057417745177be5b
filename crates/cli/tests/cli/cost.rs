//! The round trips of the command for one lock and its release.

use leasehold_testkit::{PostgresRelay, PostgresServer, Proxy, RedisServer};

use crate::support::Sandbox;

#[test]
fn one_lock_on_redis_is_few_round_trips() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let Some(server) = runtime.block_on(RedisServer::start_or_skip()) else { return };
    let proxy = runtime.block_on(Proxy::start(server.addr())).unwrap();
    let sandbox = Sandbox::on(&server.url_at(proxy.addr()));
    // The first one of a server loads scripts.
    sandbox.run(&["job"], "true").expect(0);
    let (round_trips, connections) = (proxy.round_trips(), proxy.accepted());
    sandbox.run(&["job"], "true").expect(0);
    let used = (proxy.round_trips() - round_trips, proxy.accepted() - connections);
    // The connection, the questions that open the store, the lock, and its release.
    assert_eq!(used, (5, 1));
}

#[test]
fn one_lock_on_postgres_is_few_round_trips() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let Some(server) = runtime.block_on(PostgresServer::start_or_skip()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let relay = runtime.block_on(async { PostgresRelay::start(folder.path(), &server) }).unwrap();
    let sandbox = Sandbox::on(&relay.url());
    // The first one creates the tables.
    sandbox.run(&["job"], "true").expect(0);
    let used = |args: &[&str]| {
        let (round_trips, connections) = (relay.round_trips(), relay.accepted());
        sandbox.run(args, "true").expect(0);
        (relay.round_trips() - round_trips, relay.accepted() - connections)
    };
    // The login without a password, the question that opens the store, the lock, and its release.
    assert_eq!(used(&["--no-wait", "job"]), (4, 1));
    // One that may wait listens for notifications only if the lock is held.
    assert_eq!(used(&["job"]), (4, 1));
}
