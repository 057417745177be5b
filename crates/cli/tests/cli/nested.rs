//! A `run` inside a `run`.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::acquire::sandboxes;
use crate::support::{BlockingLateness, Sandbox, Started};

/// A script that works under the lock of the outer run, and reports the end of that.
const RUN: &str = "leasehold run job -- sh -c \
    'trap \"echo terminated; exit 0\" TERM; echo inside; for i in $(seq 1000); do sleep 0.1; done'; echo code $?";
const SECTION: &str = "trap 'echo terminated; echo code 76; exit 0' TERM; lock=$(leasehold acquire job) || exit; \
    eval \"$lock\"; echo inside; for i in $(seq 1000); do sleep 0.1; done; echo code 0";

/// Starts a run whose command leaves `inner` behind when it ends, which it does with its stdin. Returns when the inner
/// script works under the lock.
fn leaves_behind(sandbox: &Sandbox, starter: &str, inner: &str) -> Started {
    std::fs::write(sandbox.path("inner.sh"), inner).unwrap();
    let script = format!("{starter} ./inner.sh & read -r _; echo over");
    let mut command = sandbox.leasehold(&["run", "--ttl", "6s", "job", "--", "sh", "-c", &script]);
    command.stdin(Stdio::piped());
    let outer = Started::new(command);
    outer.line_with("inside");
    outer
}

#[test]
fn nested_run_of_the_same_name_starts_at_once_same_fence() {
    let sandbox = Sandbox::new();
    let inner = "leasehold run job -- sh -c 'echo inner $LEASEHOLD_FENCE $LEASEHOLD_NAME'";
    let ended = sandbox
        .run(&["job"], &format!("echo outer $LEASEHOLD_FENCE $LEASEHOLD_NAME; {inner}; exit 3"))
        .expect(3);
    let lines: Vec<_> = ended.out.lines().collect();
    let fence = lines[0].strip_prefix("outer ").and_then(|line| line.strip_suffix(" job")).unwrap();
    assert!(fence.len() == 20 && fence.parse::<u64>().unwrap() > 0, "{fence}");
    assert_eq!(lines[1], format!("inner {fence} job"));
    assert_eq!(sandbox.show("job")["state"], "free");
}

#[test]
fn nested_other_name_is_its_own_lock_and_outermost_is_known() {
    let sandbox = Sandbox::new();
    let script =
        "leasehold run b -- leasehold run a -- sh -c 'echo $LEASEHOLD_NAME $LEASEHOLD_FENCE; leasehold ls'";
    let before = sandbox.run(&["a"], "echo $LEASEHOLD_FENCE").expect(0).out;
    let ended = sandbox.run(&["a"], script).expect(0);
    let fence = before.trim().parse::<u64>().unwrap() + 1;
    assert_eq!(ended.out, format!("a {fence:020}\na  1 held\nb  1 held\n"));
}

#[test]
fn end_of_the_inner_run_does_not_release_the_lock() {
    let sandbox = Sandbox::new();
    let script = "leasehold run job -- true; LEASEHOLD_OWNER= leasehold run --no-wait job -- true; echo $?";
    assert_eq!(sandbox.run(&["job"], script).expect(0).out, "75\n");
}

#[test]
fn nested_larger_share_is_refused_instead_of_a_self_deadlock() {
    let sandbox = Sandbox::new();
    let ended = sandbox.run(&["--shared", "job"], "leasehold run job -- true; echo $?").expect(0);
    assert_eq!(ended.out, "78\n");
    assert!(ended.err.contains("outer"), "{ended:?}");
    assert_eq!(sandbox.run(&["job"], "leasehold run --shared job -- echo in").expect(0).out, "in\n");
    let same = "leasehold run --permits 3 job -- echo in";
    assert_eq!(sandbox.run(&["--permits", "3", "job"], same).expect(0).out, "in\n");
}

#[test]
fn nested_run_of_each_of_many_names_is_let_in() {
    let sandbox = Sandbox::new();
    let names = Vec::from_iter((0..71).map(|number| format!("n{number:02}")));
    let args = Vec::from_iter(names.iter().flat_map(|name| ["--also", name]));
    let script = "for name in n00 n01 n70; do leasehold run --no-wait $name -- echo in $name; done";
    assert_eq!(
        sandbox.run(&[&args[..], &["n00"]].concat(), script).expect(0).out,
        "in n00\nin n01\nin n70\n"
    );
    let shared = [&args[..], &["--shared", "n00"]].concat();
    assert_eq!(sandbox.run(&shared, "leasehold run n01 -- true; echo $?").expect(0).out, "78\n");
}

#[test]
fn nested_environment_is_trusted_only_if_the_store_confirms_it() {
    let sandbox = Sandbox::new().with("LEASEHOLD_OWNER", &format!("nonsense,{}", "a".repeat(32)));
    let holder = sandbox.hold(&["job"]);
    sandbox.run(&["--no-wait", "job"], "true").expect(75);
    holder.end().expect(0);
    let ended = sandbox.run(&["--no-wait", "job"], "echo $LEASEHOLD_OWNER").expect(0);
    assert!(!ended.out.contains("nonsense") && ended.out.contains(&"a".repeat(32)), "{ended:?}");
}

#[test]
fn another_store_is_another_lock() {
    let (sandbox, other) = (Sandbox::new(), Sandbox::new());
    let script =
        format!("leasehold run --store {} --no-wait job -- sh -c 'echo $LEASEHOLD_FENCE'", other.url);
    let fence = || sandbox.run(&["job"], &script).expect(0).out.trim().parse::<u64>().unwrap();
    let first = fence();
    assert_eq!(fence(), first + 1);
}

#[test]
fn nested_relative_database_path_is_the_same_file_elsewhere() {
    let sandbox = Sandbox::new();
    let args = ["run", "--store", "sqlite:locks.db", "--no-wait", "job", "--", "sh", "-c"];
    let inner = "cd / && leasehold run --no-wait job -- echo inner";
    assert_eq!(sandbox.end(&[&args[..], &[inner]].concat()).expect(0).out, "inner\n");
}

#[test]
fn nested_run_that_is_left_behind_ends_with_the_outer_one() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        for (starter, inner) in [("sh", RUN), ("setsid sh", RUN), ("setsid sh", SECTION)] {
            let mut outer = leaves_behind(&sandbox, starter, inner);
            outer.type_in("\n");
            outer.line_with("over");
            outer.line_with("terminated");
            outer.line_with("code 76");
            outer.complaint_with("job was lost: the outer run has released it");
            outer.end().expect(0);
        }
    }
}

#[test]
fn nested_run_that_has_left_the_group_ends_with_the_lease_of_a_killed_outer_one() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let outer = leaves_behind(&sandbox, "setsid sh", RUN);
        outer.signal(Signal::KILL);
        outer.line_with("terminated");
        outer.line_with("code 76");
    }
}

#[test]
fn nested_run_ends_when_the_store_is_silent_for_as_long_as_the_lease_lasts() {
    let (redis, mut sandboxes) = sandboxes();
    let (Some(redis), Some(sandbox)) = (redis, sandboxes.pop()) else { return };
    let outer = leaves_behind(&sandbox, "setsid sh", RUN);
    // It does not see that the outer run is gone.
    redis.server.stop().unwrap();
    outer.signal(Signal::KILL);
    outer.line_with("terminated");
    outer.line_with("code 76");
    outer.complaint_with("job was lost: the store has not answered");
    redis.server.resume().unwrap();
}

/// A machine that stands still for so long may have kept a process from renewing a lease of eight seconds.
const STOOD_STILL: Duration = Duration::from_secs(1);

#[test]
fn nested_run_lasts_for_as_long_as_the_outer_one_renews() {
    let (_redis, sandboxes) = sandboxes();
    for sandbox in sandboxes {
        let lateness = BlockingLateness::watch();
        let ended = sandbox.run(&["--ttl", "8s", "job"], "leasehold run job -- sleep 10");
        let late = lateness.end();
        if sandbox.has_leases() && late > STOOD_STILL && ended.code() == 76 {
            println!("the machine was too slow to renew: it stood still for {late:?}: {ended:?}");
            continue;
        }
        ended.expect(0).says_nothing_else_than_that_a_renewal_was_late();
    }
}
