//! Signals that are sent to leasehold: passed on while the command runs, the end of the wait before.

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Sandbox, Started, eventually, number, wait_until_gone};

const PASSED_ON: [(Signal, &str); 6] = [
    (Signal::TERM, "TERM"),
    (Signal::INT, "INT"),
    (Signal::HUP, "HUP"),
    (Signal::QUIT, "QUIT"),
    (Signal::USR1, "USR1"),
    (Signal::USR2, "USR2"),
];

#[test]
fn signals_are_passed_on_to_the_command() {
    let sandbox = Sandbox::new();
    for (signal, name) in PASSED_ON {
        let script = format!("trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 1; done");
        let running = sandbox.start(&["job"], &script);
        running.line_with("ready");
        running.signal(signal);
        running.line_with(&format!("got {name}"));
        running.end().expect(9);
    }
}

#[test]
fn signals_reach_what_the_command_has_started_too() {
    let sandbox = Sandbox::new();
    let running = sandbox.start(&["job"], "sleep 1000 & echo $!; wait");
    let grandchild = number(&running.line_with(""));
    running.signal(Signal::TERM);
    running.end().expect(143);
    wait_until_gone(grandchild);
}

#[test]
fn signal_ends_the_wait_and_leaves_no_place_in_the_queue() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    for (signal, name) in PASSED_ON {
        let waiter = sandbox.start(&["job"], "echo never");
        sandbox.wait_for_line("job", 1, 1);
        waiter.signal(signal);
        let ended = waiter.end().expect_end_by(signal);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", ""), "{name}");
        assert_eq!(sandbox.show("job")["waiting"].as_array().unwrap().len(), 0, "{name}");
    }
    holder.end().expect(0);
    sandbox.run(&["--no-wait", "job"], "true").expect(0);
}

#[test]
fn ignored_signal_stays_ignored_as_nohup_needs() {
    let sandbox = Sandbox::new();
    let mut command =
        sandbox.sh("trap '' HUP; exec leasehold run job -- sh -c 'echo ready; read -r _; exit 6'");
    command.stdin(std::process::Stdio::piped());
    let running = Started::new(command);
    running.line_with("ready");
    running.signal(Signal::HUP);
    running.end().expect(6);
}

#[test]
fn command_that_ignores_a_signal_continues_under_the_lock() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&[
        "run",
        "job",
        "--",
        "sh",
        "-c",
        "trap '' TERM; trap 'echo heard' USR1; echo ready; until read -r _; do :; done; exit 7",
    ]);
    command.stdin(std::process::Stdio::piped());
    let mut running = Started::new(command);
    running.line_with("ready");
    running.signal(Signal::TERM);
    // Signals of one process arrive in an order: when this one was passed on, so was that.
    running.signal(Signal::USR1);
    running.line_with("heard");
    sandbox.run(&["--no-wait", "job"], "true").expect(75);
    running.type_in("\n");
    running.end().expect(7);
}

#[test]
fn the_signal_that_ended_the_command_ends_at_least_too() {
    let sandbox = Sandbox::new();
    let script = "trap 'exit 4' TERM; echo ready; while :; do sleep 0.05; done";
    let running = sandbox.start(&["--min-hold", "1h", "job"], script);
    running.line_with("ready");
    running.signal(Signal::TERM);
    running.end().expect(4);
    assert_eq!(sandbox.show("job")["state"], "free");
}

/// Starts leasehold as the first process of a namespace, as in a container; returns its id outside of it, too. `None`
/// where the kernel allows no namespace: then there is nothing to test.
fn start_as_first_process(sandbox: &Sandbox, args: &[&str]) -> Option<(Started, i32)> {
    let words = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    let mut probe = sandbox.sh(&format!("unshare {} true", words.join(" ")));
    if !probe.status().unwrap().success() {
        return None;
    }
    let mut command = std::process::Command::new("unshare");
    sandbox.prepare(&mut command);
    command.args(words).arg("leasehold").args(args);
    let running = Started::new(command);
    let first = eventually(|| {
        let children = children_of(sandbox, running.pid().as_raw_pid());
        children.first().copied().ok_or("it has not begun".to_owned())
    });
    Some((running, first))
}

/// Returns the children of a process, also those that have ended and were not reaped.
fn children_of(sandbox: &Sandbox, pid: i32) -> Vec<i32> {
    let listed = Started::new(sandbox.sh(&format!("ps -o pid= --ppid {pid}"))).end().out;
    listed.lines().map(number).collect()
}

#[test]
fn the_first_process_of_a_container_reaps_orphans() {
    let sandbox = Sandbox::new();
    let script = "(sleep 0.1 &); while ps -o comm= -e | grep -q sleep; do :; done; echo reaped";
    let Some((running, _)) = start_as_first_process(&sandbox, &["run", "job", "--", "sh", "-c", script])
    else {
        return;
    };
    running.line_with("reaped");
    running.end().expect(0);
}

#[test]
fn first_process_reaps_orphans_also_while_no_command_runs() {
    let sandbox = Sandbox::new();
    let orphans = "(sleep 0.3 & sleep 0.5 &); echo up";
    let candidate = ["elect", "--on-elected", orphans, "a"];
    let holder = ["run", "--min-hold", "1h", "b", "--", "sh", "-c", orphans];
    for args in [&candidate[..], &holder] {
        let Some((running, first)) = start_as_first_process(&sandbox, args) else { return };
        running.line_with("up");
        eventually(|| match children_of(&sandbox, first) {
            children if children.is_empty() => Ok(()),
            children => Err(format!("{children:?} are left")),
        });
        kill_process(Pid::from_raw(first).unwrap(), Signal::TERM).unwrap();
        running.end();
    }
}

#[test]
fn first_process_that_only_looks_ends_by_a_signal() {
    let sandbox = Sandbox::new();
    for signal in [Signal::TERM, Signal::INT] {
        let Some((running, first)) = start_as_first_process(&sandbox, &["watch", "job"]) else { return };
        running.line_with("free");
        kill_process(Pid::from_raw(first).unwrap(), signal).unwrap();
        running.end().expect(128 + signal.as_raw());
    }
}
