//! The lock is lost while the command runs.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process_group};

use crate::support::gate::Gate;
use crate::support::{
    BINARY, BlockingLateness, Redis, Sandbox, Started, eventually, number, wait_until_gone,
};
use crate::wardens::wait_until_childless;

/// Reports TERM, and ends because of it.
const ON_TERM: &str = "trap 'echo terminated; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
/// Ignores TERM.
const STUBBORN: &str = "trap '' TERM; echo $$; echo ready; while :; do sleep 0.1; done";

#[test]
fn end_of_max_hold_terminates_the_command_and_exits_76() {
    let sandbox = Sandbox::new();
    let ended =
        sandbox.run(&["--max-hold", "10s", "job"], ON_TERM).expect(76).says("job was lost").says("max_hold");
    assert_eq!(ended.out, "ready\nterminated\n");
    assert_eq!(sandbox.show("job")["state"], "free");
}

#[test]
fn command_does_not_begin_under_a_lock_that_is_lost_already() {
    let sandbox = Sandbox::new();
    for (policy, code, out) in [("term", 76, ""), ("ignore", 0, "began\n")] {
        // Another file than that of the other tests, which would have to wait at the gate, too.
        let program = sandbox.copy(BINARY, policy);
        let Some(gate) = Gate::before_or_skip(&program) else { return };
        // A signal that is ignored from the start does not end the command.
        let script = format!(
            "trap '' TERM; exec ./{policy} run --max-hold 300ms --on-lost {policy} job -- echo began"
        );
        // A run that has waited starts its warden, where another one would have had a fork from the beginning.
        let holder = sandbox.hold(&["job"]);
        let running = Started::new(sandbox.sh(&script));
        gate.open(&gate.wait());
        sandbox.wait_for_line("job", 1, 1);
        wait_until_childless(running.pid());
        holder.end().expect(0);
        let warden = gate.wait();
        // The lock is held from before the start of the warden.
        std::thread::sleep(Duration::from_millis(500));
        gate.open(&warden);
        let ended = running.end().expect(code).says("job was lost");
        assert_eq!(ended.out, out, "{ended:?}");
        assert_eq!(sandbox.show("job")["state"], "free");
    }
}

/// The warden gets the renewals that come while the command is loaded.
#[test]
fn command_that_loads_for_longer_than_its_lease_begins() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    for (name, args) in [("own", &[][..]), ("same", &["--same-group"])] {
        let program = sandbox.copy("/bin/echo", name);
        let Some(gate) = Gate::before_or_skip(&program) else { return };
        let (program, ttl) = (format!("./{name}"), Duration::from_secs(5));
        let command = [&["run", "--ttl", "5s"], args, &["job", "--", &program, "began"]].concat();
        let running = Started::new(sandbox.leasehold(&command));
        let event = gate.wait();
        let began = Instant::now();
        while began.elapsed() < ttl + Duration::from_secs(1) {
            sandbox.wait_for_renewal("job");
        }
        gate.open(&event);
        assert_eq!(running.end().expect(0).out, "began\n", "{name}");
    }
}

#[test]
fn command_whose_lock_is_lost_while_it_loads_does_not_begin() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    for (name, args) in [("own", &[][..]), ("same", &["--same-group"])] {
        let program = sandbox.copy("/bin/echo", name);
        let Some(gate) = Gate::before_or_skip(&program) else { return };
        let program = format!("./{name}");
        let limits = ["run", "--ttl", "5s", "--max-hold", "1s"];
        let command = [&limits[..], args, &["job", "--", &program, "began"]].concat();
        let running = Started::new(sandbox.leasehold(&command));
        let event = gate.wait();
        let next = sandbox.start(&["job"], "echo next >>order");
        next.end().expect(0);
        wait_until_asked_to_end(event.pid());
        gate.open(&event);
        assert_eq!(running.end().out, "", "{name}");
    }
}

/// Waits until TERM was sent to a process that cannot take it yet, or has ended it.
fn wait_until_asked_to_end(process: i32) {
    eventually(|| {
        let Ok(status) = std::fs::read_to_string(format!("/proc/{process}/status")) else { return Ok(()) };
        let pending =
            status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).ok_or("no line of signals")?;
        let pending = u64::from_str_radix(pending.trim(), 16).map_err(|error| error.to_string())?;
        let is_asked = pending & (1 << (Signal::TERM.as_raw() - 1)) != 0;
        is_asked.then_some(()).ok_or_else(|| format!("pending are {pending:x}"))
    });
}

#[test]
fn command_is_killed_only_after_its_grace_period() {
    let sandbox = Sandbox::new();
    let running = sandbox.start(&["--grace", "1s", "job"], STUBBORN);
    let pid = number(&running.line_with(""));
    running.line_with("ready");
    let began = Instant::now();
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    running.end().expect(76).says("grace");
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    wait_until_gone(pid);
}

#[test]
fn on_lost_kill_does_not_ask() {
    let sandbox = Sandbox::new();
    let running = sandbox.start(&["--on-lost", "kill", "job"], ON_TERM);
    running.line_with("ready");
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    let ended = running.end().expect(76).says("killed");
    assert_eq!(ended.out, "ready\n");
}

#[test]
fn on_lost_ignore_lets_the_command_continue_with_a_warning() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&[
        "run",
        "--max-hold",
        "300ms",
        "--on-lost",
        "ignore",
        "job",
        "--",
        "sh",
        "-c",
        "read -r _; exit 4",
    ]);
    command.stdin(std::process::Stdio::piped());
    let running = Started::new(command);
    running.complaint_with("WITHOUT the lock");
    running.end().expect(4);
}

#[test]
fn orphans_of_a_lost_command_are_killed() {
    let sandbox = Sandbox::new();
    let script =
        "(trap '' TERM; echo $(exec sh -c 'echo $PPID'); while :; do sleep 0.1; done) & sleep 0.1; wait";
    let running = sandbox.start(&["job"], script);
    let left = number(&running.line_with(""));
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    running.end().expect(76);
    wait_until_gone(left);
}

#[test]
fn a_broken_lock_is_lost() {
    let redis = Redis::start_or_skip();
    let sandboxes = [Some(Sandbox::new()), redis.as_ref().map(|redis| Sandbox::on(&redis.server.url()))];
    for sandbox in sandboxes.into_iter().flatten() {
        let running = sandbox.start(&["--ttl", "5s", "job"], ON_TERM);
        running.line_with("ready");
        sandbox.end(&["break", "--yes", "job"]).expect(0);
        running.end().expect(76).says("job was lost");
    }
}

#[test]
fn a_loss_that_only_the_release_finds_is_76_too() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    // With so long a ttl no renewal comes before the end.
    let ended = sandbox.run(&["--ttl", "1h", "job"], "leasehold break --yes job >&2; exit 0").expect(76);
    ended.says("may not have been alone");
}

#[test]
fn killed_server_ends_the_command_before_the_lease_expires() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let running = sandbox.start(&["--ttl", "6s", "job"], ON_TERM);
    running.line_with("ready");
    let (began, lateness) = (Instant::now(), BlockingLateness::watch());
    redis.server.kill().unwrap();
    running.line_with("terminated");
    let (took, late) = (began.elapsed(), lateness.end());
    // The lease ran for six seconds from the last renewal, which was before. That the loss comes first
    // is tested in virtual time; here it must not wait for what else has a limit: an outage is tolerated
    // for fifteen. On a machine that stood still, the time says nothing.
    let limit = Duration::from_secs(14);
    assert!(took < limit || late > limit / 10, "it took {took:?} on a machine that was {late:?} late");
    running.end().expect(76).says("job was lost");
}

#[test]
fn server_hang_ends_the_command_and_ignore_keeps_it() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let lost = sandbox.start(&["--ttl", "6s", "a"], ON_TERM);
    lost.line_with("ready");
    let mut command = sandbox.leasehold(&[
        "run",
        "--ttl",
        "6s",
        "--on-lost",
        "ignore",
        "b",
        "--",
        "sh",
        "-c",
        "echo ready; read -r _; exit 4",
    ]);
    command.stdin(std::process::Stdio::piped());
    let kept = Started::new(command);
    kept.line_with("ready");
    redis.server.stop().unwrap();
    lost.line_with("terminated");
    kept.complaint_with("WITHOUT the lock");
    lost.end().expect(76);
    kept.end().expect(4);
}

#[test]
fn stopped_past_the_lease_acts_on_loss_and_keeps_the_next_lock() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let first = sandbox.start(&["--ttl", "5s", "job"], &format!("ps -o pgid= -p $$; {ON_TERM}"));
    let group = rustix::process::Pid::from_raw(number(&first.line_with(""))).unwrap();
    first.line_with("ready");
    // The warden and the command are stopped as well: all that is left to act is leasehold itself, when
    // it wakes up.
    first.stop();
    kill_process_group(group, Signal::STOP).unwrap();
    let second = sandbox.hold(&["--ttl", "20s", "--note", "second", "job"]);
    first.signal(Signal::CONT);
    first.line_with("terminated");
    first.end().expect(76).says("job was lost");
    let shown = sandbox.show("job");
    assert_eq!(shown["holders"][0]["note"], "second", "{shown}");
    second.end().expect(0);
}

#[test]
fn warden_ends_the_command_at_lease_expiry_if_leasehold_stopped() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let terminating = sandbox.start(&["--ttl", "5s", "a"], ON_TERM);
    terminating.line_with("ready");
    let stubborn = sandbox.start(&["--ttl", "5s", "--grace", "500ms", "b"], STUBBORN);
    let pid = number(&stubborn.line_with(""));
    stubborn.line_with("ready");
    for running in [&terminating, &stubborn] {
        running.stop();
    }
    terminating.line_with("terminated");
    wait_until_gone(pid);
    for running in [terminating, stubborn] {
        running.signal(Signal::CONT);
        running.end().expect(76);
    }
}

/// The warden acts before the lease ends at the server, as leasehold would.
#[test]
fn command_of_a_stopped_leasehold_ends_before_the_next_begins() {
    // A holder relies on a lease for a fiftieth less, and the warden acts a fifth of a second after that.
    const TTL: &str = "60s";
    const ROOM: Duration = Duration::from_millis(900);
    const UPTIME: &str = "read -r uptime _ </proc/uptime; echo $uptime";
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let lateness = BlockingLateness::watch();
    let first = sandbox.start(
        &["--ttl", TTL, "job"],
        &format!("trap '{UPTIME} >ended; echo ended; exit 0' TERM; echo ready; while :; do sleep 0.05; done"),
    );
    first.line_with("ready");
    first.stop();
    let next = sandbox.start(&["job"], &format!("{UPTIME} >began"));
    next.end_within(Duration::from_secs(180)).expect(0);
    first.line_with("ended");
    let late = lateness.end();
    let read =
        |name: &str| std::fs::read_to_string(sandbox.path(name)).unwrap().trim().parse::<f64>().unwrap();
    let beside = read("ended") - read("began");
    // Each of the steps between may be as late as the machine was once.
    let excused = if late > ROOM / 3 { 10.0 * late.as_secs_f64() } else { 0.0 };
    assert!(
        beside <= excused,
        "it ended {beside} s after the next began; the machine stood still for {late:?}"
    );
    first.signal(Signal::CONT);
    first.end().expect(76);
}

#[test]
fn leasehold_that_continues_does_not_extend_the_grace() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let running = sandbox.start(
        &["--ttl", "5s", "--grace", "20s", "job"],
        "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done",
    );
    running.line_with("ready");
    running.stop();
    // From here on the grace period runs for the warden, which kills when it is over.
    running.line_with("asked");
    std::thread::sleep(Duration::from_secs(10));
    running.signal(Signal::CONT);
    let ended = running.end().expect(76).says("job was lost");
    // leasehold itself would have killed at the end of a grace period of its own.
    assert!(!ended.err.contains("and was killed"), "{ended:?}");
}

#[test]
fn renewals_continue_while_the_command_runs() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let running = sandbox.start(&["--ttl", "30s", "job"], "until [ -e go ]; do sleep 0.05; done; exit 2");
    for _ in 0..2 {
        sandbox.wait_for_renewal("job");
    }
    std::fs::write(sandbox.path("go"), "").unwrap();
    running.end().expect(2).says_nothing_else_than_that_a_renewal_was_late();
}

#[test]
fn a_stopped_holder_on_files_keeps_the_lock() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["--ttl", "1s", "job"]);
    holder.stop();
    sandbox.run(&["--wait", "2s", "job"], "true").expect(75);
    holder.signal(Signal::CONT);
    holder.end().expect(0);
}
