//! `top` on a real terminal, against each kind of server: a lock is shown with its queue, revoked and broken.

use leasehold_testkit::{EtcdCluster, PostgresServer, ZooKeeperEnsemble};
use tokio::runtime::Runtime;

use crate::support::Sandbox;
use crate::support::emulator::Emulator;

#[test]
fn top_on_postgres() {
    let runtime = Runtime::new().unwrap();
    let Some(server) = runtime.block_on(PostgresServer::start_or_skip()) else { return };
    shows_and_ends_a_lock(&server.url(), "postgres://");
}

#[test]
fn top_on_etcd() {
    let runtime = Runtime::new().unwrap();
    let Some(server) = runtime.block_on(EtcdCluster::start_or_skip()) else { return };
    shows_and_ends_a_lock(&server.url(), "etcd://");
}

#[test]
fn top_on_zookeeper() {
    let runtime = Runtime::new().unwrap();
    let Some(server) = runtime.block_on(ZooKeeperEnsemble::start_or_skip(1)) else { return };
    shows_and_ends_a_lock(&server.url(), "zk://");
}

fn shows_and_ends_a_lock(url: &str, scheme: &str) {
    let sandbox = Sandbox::on(url);
    let asked = "trap 'echo asked' USR1; echo ready; while :; do sleep 0.05; done";
    let holder = sandbox.start(&["--note", "ann at db1", "--on-revoke", "usr1", "orders/42"], asked);
    holder.line_with("ready");
    let waiter = sandbox.start(&["--note", "ben at db2", "orders/42"], "echo in");
    let other = sandbox.hold(&["--note", "cid at db3", "nightly"]);
    sandbox.wait_for_line("orders/42", 1, 1);
    let mut top = Emulator::top(&sandbox, &[]);
    top.see("2 locks, 1 with a queue");
    top.wait("both holders", |screen| screen.contains("ann at db1") && screen.contains("cid at db3"));
    assert!(top.line("top  ").contains(scheme), "{}", top.screen());
    top.wait("the lock with the queue under the cursor", |screen| screen.contains("> orders/42"));
    top.press("\r");
    top.wait("the queue", |screen| screen.contains("QUEUE OF 1") && screen.contains("ben at db2"));
    top.press("r");
    top.see("Ask the 1 holder of orders/42 to release it?");
    top.press("\r");
    top.see("orders/42: asked ann at db1");
    holder.line_with("asked");
    // It was asked, and keeps the lock.
    top.press("b");
    top.see("Break orders/42: end 1 claim by force?");
    top.press("y");
    top.see("orders/42: broken: ann at db1");
    waiter.line_with("in");
    waiter.end().expect(0);
    top.press("\x1b");
    top.see("1 lock, 0 with a queue");
    assert!(!top.screen().contains("NO ANSWER") && !top.screen().contains("FAILS"), "{}", top.screen());
    holder.end().expect(76);
    other.end().expect(0);
    top.see("No lock is held or waited for.");
    top.press("q");
    assert_eq!(top.end().0, Some(0));
}
