//! The warden of `run`: a fork of leasehold, and nothing of leasehold in it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Redis, Sandbox, Started, eventually, number, wait_until_gone};

/// The group of the command is that of its warden.
const WARDEN: &str = "ps -o pgid= -p $$";

/// Each program gets another address of its stack, and a fork keeps that of its parent.
fn stack(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1;
    fields.split(' ').nth(25).unwrap().parse().unwrap()
}

/// The children that the first thread of a process has started.
fn children(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap()
}

pub(crate) fn wait_until_childless(pid: Pid) {
    eventually(|| match children(pid.as_raw_pid()) {
        none if none.is_empty() => Ok(()),
        some => Err(some),
    });
}

fn has_random_addresses() -> bool {
    let is_random =
        fs::read_to_string("/proc/sys/kernel/randomize_va_space").is_ok_and(|how| how.trim() != "0");
    if !is_random {
        leasehold_testkit::require::skip("random addresses", "randomize_va_space is 0");
    }
    is_random
}

#[test]
fn warden_is_not_another_start_of_the_program() {
    if !has_random_addresses() {
        return;
    }
    let sandbox = Sandbox::new();
    for args in [&["job"][..], &["--same-group", "job"]] {
        // A machine that stands still for a second lets the run start a warden after all.
        eventually(|| {
            let running = sandbox.start(args, "echo $$; exec sleep 1000");
            let (leasehold, command) = (running.pid().as_raw_pid(), number(&running.line_with("")));
            // The command is the child of another thread until that has ended.
            let warden = number(children(leasehold).split(' ').next().unwrap());
            let stacks = [leasehold, warden, command].map(stack);
            running.signal(Signal::KILL);
            wait_until_gone(command);
            wait_until_gone(warden);
            assert_ne!(stacks[0], stacks[2], "{args:?}");
            if stacks[0] == stacks[1] { Ok(()) } else { Err(format!("{args:?}: it was started")) }
        });
    }
}

#[test]
fn warden_has_no_secret_of_leasehold_in_its_memory() {
    let secret = "se-cr-et-word-of-the-environment";
    let sandbox = Sandbox::new().with("LEASEHOLD_TEST", secret);
    let running = sandbox.start(&["job"], &format!("{WARDEN}; echo began; exec sleep 1000"));
    let warden = number(&running.line_with(""));
    running.line_with("began");
    assert!(is_in_memory(running.pid().as_raw_pid(), secret), "the search finds it where it is");
    assert!(!is_in_memory(warden, secret));
    running.signal(Signal::KILL);
    wait_until_gone(warden);
}

fn is_in_memory(pid: i32, word: &str) -> bool {
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let written =
        maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw")));
    written.filter_map(|line| line.split(' ').next()?.split_once('-')).any(|(begin, end)| {
        let at = |text| u64::from_str_radix(text, 16).unwrap();
        let mut bytes = vec![0; usize::try_from(at(end) - at(begin)).unwrap()];
        // Thread stacks may have parts that nobody can read.
        let read = memory.read_at(&mut bytes, at(begin)).unwrap_or_default();
        bytes[..read].windows(word.len()).any(|part| part == word.as_bytes())
    })
}

#[test]
fn warden_has_the_pipe_and_the_lock_open_and_nothing_of_the_user() {
    let sandbox = Sandbox::new();
    let script = format!("exec 5</etc/passwd 6>kept; exec leasehold run job -- sh -c '{WARDEN}; read -r _'");
    let mut command = sandbox.sh(&script);
    command.stdin(std::process::Stdio::piped());
    let mut running = Started::new(command);
    let warden = number(&running.line_with(""));
    let open: Vec<String> = fs::read_dir(format!("/proc/{warden}/fd"))
        .unwrap()
        .map(|fd| fs::read_link(fd.unwrap().path()).unwrap().display().to_string())
        .collect();
    let of = |what: &str| open.iter().filter(|path| path.contains(what)).count();
    assert_eq!((of("socket:"), of("/dev/null"), of("claim-"), open.len()), (1, 2, 1, 4), "{open:?}");
    assert_eq!(fs::read_link(format!("/proc/{warden}/cwd")).unwrap().to_str(), Some("/"));
    running.type_in("\n");
    running.end().expect(0);
}

#[test]
fn run_that_waits_has_no_warden() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    let waiter = sandbox.start(&["job"], "echo in");
    sandbox.wait_for_line("job", 1, 1);
    wait_until_childless(waiter.pid());
    holder.end().expect(0);
    waiter.line_with("in");
    waiter.end().expect(0);
}

#[test]
fn run_whose_store_is_away_has_no_warden() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&format!("{}?timeout=60s", redis.server.url()));
    redis.server.stop().unwrap();
    let waiter = sandbox.start(&["--status-file", "status", "job"], "echo in");
    // The fork is made before.
    eventually(|| match fs::read_to_string(sandbox.path("status")) {
        Ok(status) if status.contains("waiting") => Ok(()),
        status => Err(format!("{status:?}")),
    });
    wait_until_childless(waiter.pid());
    redis.server.resume().unwrap();
    waiter.line_with("in");
    waiter.end().expect(0);
}

#[test]
fn run_whose_fork_was_killed_starts_a_warden() {
    let sandbox = Sandbox::new();
    // The configuration is read after the fork, and as soon as it is written.
    let config = sandbox.path("config");
    Started::new(sandbox.sh("mkfifo -m 600 config")).end().expect(0);
    let command = ["run", "--store", "own", "job", "--", "sh", "-c", "echo $$; exec sleep 1000"];
    let mut command = sandbox.leasehold(&command);
    command.env("LEASEHOLD_CONFIG", &config);
    let running = Started::new(command);
    let leasehold = running.pid().as_raw_pid();
    let fork = eventually(|| children(leasehold).trim().parse::<i32>().map_err(|error| error.to_string()));
    kill_process(Pid::from_raw(fork).unwrap(), Signal::KILL).unwrap();
    let store = sandbox.path("store");
    fs::write(&config, format!("[stores.own]\nurl = \"file://{}\"\n", store.display())).unwrap();
    let command = number(&running.line_with(""));
    let warden = eventually(|| {
        let others =
            children(leasehold).split_whitespace().map(|pid| pid.parse().unwrap()).find(|pid| *pid != fork);
        others.ok_or("only the fork".to_owned())
    });
    running.signal(Signal::KILL);
    wait_until_gone(command);
    wait_until_gone(warden);
}

/// As where a filter of system calls does not know handles of processes.
#[test]
fn fork_without_a_handle_is_reaped() {
    let sandbox = Sandbox::new();
    let trace = "strace -f -qq -o /dev/null -e trace=pidfd_open -e inject=pidfd_open:error=EPERM";
    if Started::new(sandbox.sh(&format!("{trace} true"))).end().status.code() != Some(0) {
        leasehold_testkit::require::skip("strace", "it cannot be started, or is not allowed");
        return;
    }
    let script = format!("exec {trace} leasehold run job -- sh -c 'ps -o stat= --ppid $PPID'");
    let states = Started::new(sandbox.sh(&script)).end().expect(0).out;
    assert!(states.lines().count() >= 2 && !states.contains('Z'), "{states}");
}

/// As where a limit of threads is reached.
#[test]
fn lock_is_released_if_no_thread_can_be_started_for_the_command() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    // The first thread is that of stderr.
    let trace = "strace -f -qq -o /dev/null -e trace=clone3 -e inject=clone3:error=EAGAIN:when=2+";
    if Started::new(sandbox.sh(&format!("{trace} true"))).end().status.code() != Some(0) {
        leasehold_testkit::require::skip("strace", "it cannot be started, or is not allowed");
        return;
    }
    for group in ["", "--same-group"] {
        let run = format!("exec {trace} leasehold run --ttl 10m {group} job -- echo begun");
        let ended = Started::new(sandbox.sh(&run)).end().expect(126);
        // On a machine that is slow, the fork is given up before, and the first process is missing then.
        let said = ["cannot be started", "cannot start a second process"];
        assert!(said.iter().any(|text| ended.err.contains(text)), "{ended:?}");
        assert_eq!((&*ended.out, &sandbox.show("job")["state"]), ("", &"free".into()), "{ended:?}");
    }
}

#[test]
fn command_that_replaces_leasehold_has_no_child() {
    let sandbox = Sandbox::new();
    let ended = sandbox.run(&["--exec", "job"], "read -r all </proc/$$/task/$$/children; echo \"[$all]\"");
    assert_eq!(ended.expect(0).out, "[]\n");
}
