//! The contract of the command on each store with a server of its own kind: the same cases, one after
//! the other.
//!
//! All differences between stores are in one place, `Kind`. A case leaves nothing behind, which is checked
//! after each.

use std::time::{Duration, Instant};

use leasehold_testkit::{EtcdCluster, ZooKeeperEnsemble};
use rustix::process::Signal;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::support::{Sandbox, Started, eventually};

#[test]
fn etcd_keeps_the_contract() {
    let runtime = Runtime::new().unwrap();
    let Some(server) = runtime.block_on(EtcdCluster::start_or_skip()) else { return };
    let kind = Kind {
        url: server.url(),
        options: ["--ttl", "6s"],
        frees_within: Duration::from_secs(25),
        reported_within: Duration::from_secs(25),
        stop: Box::new(|| server.stop(0).unwrap()),
        resume: Box::new(|| server.resume(0).unwrap()),
    };
    keeps_the_contract(&kind, &CASES);
    let left = server.etcdctl(&["get", "", "--prefix", "--keys-only"]).unwrap();
    assert_eq!(left, "", "keys were left behind");
}

#[test]
fn zookeeper_keeps_the_contract() {
    let runtime = Runtime::new().unwrap();
    let Some(server) = runtime.block_on(ZooKeeperEnsemble::start_or_skip(1)) else { return };
    let kind = |options| Kind {
        url: format!("{}{options}", server.url()),
        options: ["--ttl", "6s"],
        frees_within: Duration::from_secs(25),
        // Half of the session that it has without the option is 15 s.
        reported_within: Duration::from_secs(12),
        stop: Box::new(|| server.stop(0).unwrap()),
        resume: Box::new(|| server.resume(0).unwrap()),
    };
    // The ttl decides how long a session lasts, where it would be 30 s.
    keeps_the_contract(&kind(""), &CASES);
    // The semaphores of other libraries, whose claims move from one node to another. No process is killed
    // here, so a busy machine has time.
    for dialect in ["?session=30s&dialect=curator&prefix=c", "?session=30s&dialect=kazoo&prefix=k"] {
        keeps_the_contract(&kind(dialect), &[("permits and readers share", permits_and_readers_share)]);
    }
    let leases: [(&str, Case); 2] = [
        ("an interrupted wait leaves no place", an_interrupted_wait_leaves_no_place),
        ("it is shown, listed, watched and broken", it_is_shown_listed_watched_and_broken),
    ];
    keeps_the_contract(&kind("?session=30s&dialect=kazoo&prefix=m&mutex=semaphore"), &leases);
}

/// The properties of a store that the cases depend on.
struct Kind<'a> {
    url: String,
    /// Of those that are killed or cut off, so that it does not take long.
    options: [&'static str; 2],
    /// The time that is too long for the lock of a claim with these options to stay taken after a crash: less than
    /// that of a claim without options, and long enough for a busy machine.
    frees_within: Duration,
    /// The time that is too long for the report that a server hangs.
    reported_within: Duration,
    stop: Box<dyn Fn() + 'a>,
    resume: Box<dyn Fn() + 'a>,
}

type Case = fn(&Kind<'_>, &Sandbox);

const CASES: [(&str, Case); 9] = [
    ("the code is the command's own", the_code_is_the_commands_own),
    ("busy and timed out differ from failures", busy_and_timed_out),
    ("permits and readers share", permits_and_readers_share),
    ("a signal is passed on and the lock released", a_signal_is_passed_on),
    ("an interrupted wait leaves no place", an_interrupted_wait_leaves_no_place),
    ("a nested run re-enters", a_nested_run_re_enters),
    ("it is shown, listed, watched and broken", it_is_shown_listed_watched_and_broken),
    ("a killed holder is succeeded", a_killed_holder_is_succeeded),
    ("a server that hangs ends the command in time", a_server_that_hangs_ends_the_command),
];

fn keeps_the_contract(kind: &Kind<'_>, cases: &[(&str, Case)]) {
    for (name, case) in cases {
        // Shown where it fails.
        println!("{}: {name}", kind.url);
        let sandbox = Sandbox::on(&kind.url);
        case(kind, &sandbox);
        eventually(|| {
            let listed = sandbox.end(&["ls"]).expect(0).out;
            if listed.is_empty() { Ok(()) } else { Err(format!("left after `{name}`: {listed}")) }
        });
    }
}

fn the_code_is_the_commands_own(_: &Kind<'_>, sandbox: &Sandbox) {
    let mut last = None;
    for code in [0, 3, 77] {
        let ended = sandbox.run(&["job"], &format!("echo $LEASEHOLD_NAME $LEASEHOLD_FENCE; exit {code}"));
        let out = ended.expect(code).out;
        let fence: leasehold::Fence = out.trim().strip_prefix("job ").unwrap().parse().unwrap();
        assert!(Some(fence) > last, "{fence} after {last:?}");
        last = Some(fence);
    }
    assert_eq!(sandbox.run(&["job"], "kill -KILL $$").code(), 137);
    sandbox.end(&["run", "job", "--", "no-such-command"]).expect(127);
}

fn busy_and_timed_out(_: &Kind<'_>, sandbox: &Sandbox) {
    let holder = sandbox.hold(&["job"]);
    sandbox.run(&["--no-wait", "job"], "echo never").expect(75);
    let began = Instant::now();
    let ended = sandbox.run(&["--wait", "500ms", "job"], "echo never");
    let took = began.elapsed();
    // A server that does not answer within two seconds after the limit leaves it unknown.
    let is_late = took >= Duration::from_millis(2_500);
    assert!(ended.code() == 75 || is_late && ended.code() == 69, "{took:?}: {ended:?}");
    assert!(ended.out.is_empty() && took >= Duration::from_millis(500), "{took:?}: {ended:?}");
    let waiter = sandbox.start(&["--wait", "30s", "job"], "echo in");
    sandbox.wait_for_line("job", 1, 1);
    holder.end().expect(0);
    assert_eq!(waiter.end().expect(0).out, "in\n");
}

fn permits_and_readers_share(_: &Kind<'_>, sandbox: &Sandbox) {
    let two = [sandbox.hold(&["--permits", "2", "few"]), sandbox.hold(&["--permits", "2", "few"])];
    sandbox.run(&["--permits", "2", "--no-wait", "few"], "true").expect(75);
    let readers = [sandbox.hold(&["--shared", "page"]), sandbox.hold(&["--shared", "page"])];
    sandbox.run(&["--no-wait", "page"], "true").expect(75);
    for holder in two.into_iter().chain(readers) {
        holder.end().expect(0);
    }
    sandbox.run(&["--no-wait", "page"], "true").expect(0);
}

fn a_signal_is_passed_on(_: &Kind<'_>, sandbox: &Sandbox) {
    let script = "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let running = sandbox.start(&["job"], script);
    running.line_with("ready");
    running.signal(Signal::TERM);
    let ended = running.end();
    assert!(ended.out.ends_with("told\n") && ended.code() == 5, "{ended:?}");
    // The lock was released, not left to run out.
    sandbox.run(&["--no-wait", "job"], "true").expect(0);
}

fn an_interrupted_wait_leaves_no_place(_: &Kind<'_>, sandbox: &Sandbox) {
    let holder = sandbox.hold(&["job"]);
    let waiter = sandbox.start(&["job"], "echo never");
    sandbox.wait_for_line("job", 1, 1);
    waiter.signal(Signal::INT);
    waiter.end().expect_end_by(Signal::INT);
    sandbox.wait_for_line("job", 1, 0);
    holder.end().expect(0);
}

fn a_nested_run_re_enters(_: &Kind<'_>, sandbox: &Sandbox) {
    let ended = sandbox.run(&["job"], "leasehold run --no-wait job -- echo inside; echo outside").expect(0);
    assert_eq!(ended.out, "inside\noutside\n");
}

fn it_is_shown_listed_watched_and_broken(_: &Kind<'_>, sandbox: &Sandbox) {
    assert_eq!(sandbox.end(&["show", "job"]).expect(0).out.split(',').next(), Some("job: free\n"));
    let watcher = Started::new(sandbox.leasehold(&["watch", "job"]));
    watcher.line_with("free");
    // Long, so that the lock is not lost before it is broken.
    let holder = sandbox.start(&["--ttl", "20s", "--note", "ann", "job"], "echo ready; sleep 1000");
    holder.line_with("ready");
    assert!(watcher.line_with("held by ann").contains("fence 0"));
    let shown = sandbox.show("job");
    let claim = &shown["holders"][0];
    assert_eq!((&claim["note"], &claim["share"]), (&Value::from("ann"), &Value::from("mutex")));
    assert_eq!(shown["fence"], claim["fence"]);
    assert_eq!(sandbox.end(&["ls"]).expect(0).out, "job  1 held\n");
    assert_eq!(sandbox.end(&["ls", "other"]).expect(0).out, "");
    let waiter = sandbox.start(&["job"], "echo in");
    sandbox.wait_for_line("job", 1, 1);
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    holder.end().expect(76).says("lost");
    waiter.line_with("in");
    waiter.end().expect(0);
    watcher.line_with("free");
    watcher.signal(Signal::INT);
    watcher.end();
    let ended = sandbox.end(&["doctor", "--json"]);
    for topic in ["\"round-trip\"", "\"fences\"", "\"durability\""] {
        assert!(ended.out.contains(topic), "{ended:?}");
    }
}

fn a_killed_holder_is_succeeded(kind: &Kind<'_>, sandbox: &Sandbox) {
    let [ttl, six_seconds] = kind.options;
    let holder = sandbox.start(&[ttl, six_seconds, "job"], "echo ready; sleep 1000");
    holder.line_with("ready");
    let waiter = sandbox.start(&["job"], "echo in");
    sandbox.wait_for_line("job", 1, 1);
    let began = Instant::now();
    holder.signal(Signal::KILL);
    waiter.line_with("in");
    assert!(began.elapsed() < kind.frees_within, "{:?}", began.elapsed());
    waiter.end().expect(0);
}

fn a_server_that_hangs_ends_the_command(kind: &Kind<'_>, sandbox: &Sandbox) {
    let [ttl, six_seconds] = kind.options;
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let holder = sandbox.start(&[ttl, six_seconds, "job"], script);
    holder.line_with("ready");
    (kind.stop)();
    let began = Instant::now();
    holder.line_with("told");
    assert!(began.elapsed() <= kind.reported_within, "reported after {:?}", began.elapsed());
    (kind.resume)();
    holder.end().expect(76).says("lost");
}
