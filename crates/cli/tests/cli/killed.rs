//! kill -9: of the holder, of a waiter, and what becomes of the command.

use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{LIMIT, Redis, Sandbox, Started, eventually, is_alive, number, wait_until_gone};

#[test]
fn killed_leasehold_takes_the_command_and_its_children_down() {
    let sandbox = Sandbox::new();
    let script =
        "trap '' TERM INT HUP; sleep 1000 & echo command $$ and $!; echo ready; while :; do sleep 1; done";
    let mut running = sandbox.start(&["job"], script);
    let line = running.line_with("command");
    let (command, started) = line.split_once(" and ").unwrap();
    let pids = [number(command), number(started)];
    running.line_with("ready");
    assert!(pids.iter().all(|pid| is_alive(*pid)) && running.is_running());
    running.signal(Signal::KILL);
    pids.into_iter().for_each(wait_until_gone);
}

#[test]
fn next_waiter_on_files_runs_at_once_after_a_kill() {
    let sandbox = Sandbox::new();
    let holder = sandbox.start(&["--ttl", "1h", "job"], "echo ready; sleep 1000");
    holder.line_with("ready");
    let waiter = sandbox.start(&["job"], "echo in");
    sandbox.wait_for_line("job", 1, 1);
    let began = Instant::now();
    holder.signal(Signal::KILL);
    waiter.line_with("in");
    assert!(began.elapsed() < LIMIT / 2, "its ttl of an hour is not waited for");
    waiter.end().expect(0);
}

#[test]
fn orphans_of_a_killed_run_never_overlap_the_next_on_files() {
    // It writes as fast as it can, and would be seen writing.
    never_runs_together_with_the_next(": >marks; echo ready; while :; do echo mark; done >>marks");
}

#[test]
fn on_files_a_nested_command_never_runs_beside_the_next() {
    never_runs_together_with_the_next(
        "leasehold run job -- sh -c ': >marks; echo ready; while :; do echo mark; done >>marks'",
    );
}

fn never_runs_together_with_the_next(script: &str) {
    for _ in 0..10 {
        let sandbox = Sandbox::new();
        let holder = sandbox.start(&["job"], script);
        holder.line_with("ready");
        let script = "before=$(wc -c <marks); sleep 0.05; after=$(wc -c <marks); [ $before = $after ]";
        let waiter = sandbox.start(&["job"], script);
        sandbox.wait_for_line("job", 1, 1);
        holder.signal(Signal::KILL);
        waiter.end().expect(0);
    }
}

#[test]
fn on_files_a_nested_command_ends_before_the_next_also_if_both_runs_are_killed_at_once() {
    let sandbox = Sandbox::new();
    let script = "ps -o pgid= -p $PPID; echo $PPID; ps -o pgid= -p $$; echo $$; while :; do sleep 0.1; done";
    let outer = Started::new(sandbox.leasehold(&[
        "run",
        "a",
        "--",
        "leasehold",
        "run",
        "b",
        "--",
        "sh",
        "-c",
        script,
    ]));
    let [warden, inner, inner_warden, command] = [(); 4].map(|()| number(&outer.line_with("")));
    let send = |pid: i32, signal| kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    let waiter = sandbox.start(&["a"], "echo in");
    sandbox.wait_for_line("a", 1, 1);
    // The inner warden does nothing for the command any more, and the outer one looks when both runs are gone. A
    // process of this one in each group keeps the kernel from continuing what is stopped there.
    let _members = [warden, inner_warden].map(|warden| {
        let mut member = sandbox.sh("exec sleep 1000");
        member.process_group(warden);
        let member = Started::new(member);
        send(warden, Signal::STOP);
        member
    });
    outer.signal(Signal::KILL);
    send(inner, Signal::KILL);
    drop(outer);
    wait_until_gone(inner);
    send(warden, Signal::CONT);
    waiter.line_with("in");
    let is_left = is_alive(command);
    send(inner_warden, Signal::KILL);
    assert!(!is_left);
    waiter.end().expect(0);
}

#[test]
fn next_waiter_on_redis_runs_when_the_ttl_is_over() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let holder = sandbox.start(&["--ttl", "6s", "job"], "echo ready; sleep 1000");
    holder.line_with("ready");
    let waiter = sandbox.start(&["--ttl", "30s", "job"], "echo in");
    sandbox.wait_for_line("job", 1, 1);
    let began = Instant::now();
    holder.signal(Signal::KILL);
    waiter.end().expect(0);
    // A busy machine may take longer; an hour would be another thing.
    assert!(began.elapsed() < Duration::from_secs(6) + LIMIT / 2, "{:?}", began.elapsed());
}

#[test]
fn killed_waiter_in_the_middle_blocks_no_other() {
    let redis = Redis::start_or_skip();
    let sandboxes = [Some(Sandbox::new()), redis.as_ref().map(|redis| Sandbox::on(&redis.server.url()))];
    for sandbox in sandboxes.into_iter().flatten() {
        let holder = sandbox.hold(&["job"]);
        let waiters: Vec<_> = (1..=3)
            .map(|count| {
                let waiter = sandbox.start(&["job"], &format!("echo in {count}"));
                sandbox.wait_for_line("job", 1, count);
                waiter
            })
            .collect();
        waiters[1].signal(Signal::KILL);
        holder.end().expect(0);
        let [first, second, third] = waiters.try_into().map_err(|_| "three").unwrap();
        assert_eq!(first.end().expect(0).out, "in 1\n");
        assert_eq!(third.end().expect(0).out, "in 3\n");
        drop(second);
    }
}

#[test]
fn kill_by_name_does_not_kill_the_warden() {
    let sandbox = Sandbox::new();
    let running = sandbox.start(&["job"], "ps -o pgid= -p $$; echo $$; sleep 1000");
    let (warden, command) = (number(&running.line_with("")), number(&running.line_with("")));
    let of = |what: &str| std::fs::read_to_string(format!("/proc/{warden}/{what}")).unwrap();
    // The command does not wait for the warden to take its name.
    eventually(|| match of("comm").trim() {
        "lh-warden" => Ok(()),
        other => Err(format!("the warden is called {other}")),
    });
    assert!(!of("cmdline").contains("leasehold"), "{}", of("cmdline"));
    assert_eq!(of("environ"), "", "it has no secrets");
    running.signal(Signal::KILL);
    wait_until_gone(command);
    wait_until_gone(warden);
}

#[test]
fn signals_to_the_whole_group_do_not_end_the_warden() {
    let sandbox = Sandbox::new();
    let script = "echo warden $(ps -o pgid= -p $$); trap : TERM INT HUP USR1 QUIT ALRM TSTP; \
                  for name in TERM INT HUP USR1 QUIT ALRM TSTP; do kill -$name 0; done; echo sent; read -r _ </dev/null; \
                  while :; do sleep 1; done";
    let running = sandbox.start(&["job"], script);
    let warden = number(&running.line_with("warden"));
    running.line_with("sent");
    assert!(is_alive(warden));
    running.signal(Signal::KILL);
    wait_until_gone(warden);
}

#[test]
fn killed_warden_leaves_the_command_running_and_still_ended() {
    let sandbox = Sandbox::new();
    let mut command =
        sandbox.leasehold(&["run", "job", "--", "sh", "-c", "ps -o pgid= -p $$; read -r _; exit 8"]);
    command.stdin(std::process::Stdio::piped());
    let running = crate::support::Started::new(command);
    let warden = Pid::from_raw(number(&running.line_with(""))).unwrap();
    kill_process(warden, Signal::KILL).unwrap();
    wait_until_gone(warden.as_raw_nonzero().get());
    running.end().expect(8);
}
