//! Exit codes, the streams and the arguments of the command.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::support::{Redis, Sandbox, Started};

#[test]
fn exit_code_of_the_command_is_passed_on() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 3, 75, 255] {
        sandbox.run(&["job"], &format!("exit {code}")).expect(code);
    }
}

#[test]
fn a_signal_that_ended_the_command_is_128_and_its_number() {
    let sandbox = Sandbox::new();
    for signal in [1, 2, 9, 15, 34, 64] {
        sandbox.run(&["job"], &format!("kill -{signal} $$")).expect(128 + signal);
    }
}

#[test]
fn streams_are_passed_on_and_nothing_is_printed() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["run", "job", "--", "sh", "-c", "cat; echo err >&2"]);
    command.stdin(Stdio::piped());
    let mut running = Started::new(command);
    running.type_in("in\n");
    let ended = running.end().expect(0);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("in\n", "err\n"));
}

#[test]
fn arguments_are_passed_on_unchanged_without_a_shell() {
    let sandbox = Sandbox::new();
    let ended =
        sandbox.end(&["run", "job", "--", "printf", "%s|", "a b", "$HOME", "*", "", "--ttl", "--"]).expect(0);
    assert_eq!(ended.out, "a b|$HOME|*||--ttl|--|");
}

#[test]
fn the_command_knows_itself_by_the_name_that_was_written() {
    let sandbox = Sandbox::new();
    let ended = sandbox.end(&["run", "job", "--", "sh", "-c", "echo $0"]).expect(0);
    assert_eq!(ended.out, "sh\n");
}

#[test]
fn command_that_cannot_start_is_refused_before_acquisition() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("text");
    std::fs::write(&file, "no program\n").unwrap();
    let file = file.to_str().unwrap();
    let folder = sandbox.dir.path().to_str().unwrap();
    // Another process holds the lock, so a request for it would wait.
    let holder = sandbox.hold(&["job"]);
    for (command, code, text) in [
        ("no-such-command", 127, "no such command"),
        ("./no-such-file", 127, "no such file"),
        ("", 127, "write one after --"),
        (file, 126, "Permission denied"),
        (folder, 126, "directory"),
    ] {
        sandbox.end(&["run", "job", "--", command]).expect(code).says(text);
    }
    holder.end().expect(0);
}

#[test]
fn command_that_fails_to_start_releases_the_lock() {
    let sandbox = Sandbox::new();
    for (content, code) in [("#!/no/such/interpreter\n", 127), ("\u{7f}ELF nonsense", 126)] {
        let file = sandbox.program("broken", content);
        sandbox.end(&["run", "job", "--", file.to_str().unwrap()]).expect(code);
        assert_eq!(sandbox.show("job")["state"], "free");
    }
}

/// As a shell, `flock`, `env` and `execvp` do.
#[test]
fn script_that_names_no_interpreter_is_run_by_the_shell() {
    let sandbox = Sandbox::new();
    let script = sandbox.program("script", "echo $# $2 of $0 under $LEASEHOLD_NAME; exit 5\n");
    let name = script.to_str().unwrap();
    for launch in [&[][..], &["--same-group"], &["--wait-group"], &["--exec"]] {
        let ended = sandbox.end(&[&["run", "job"], launch, &["--", name, "a", "b c"]].concat()).expect(5);
        assert_eq!(ended.out, format!("2 b c of {name} under job\n"), "{launch:?}");
    }
    // An empty one does nothing, and the shell gets nothing that is not text.
    for (content, code) in [(&b""[..], 0), (b"echo in\0\n", 126)] {
        sandbox.program("script", content);
        assert_eq!(sandbox.end(&["run", "job", "--", name]).expect(code).out, "");
    }
}

#[test]
fn busy_exits_75_and_names_the_holder_and_its_start() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["--note", "the first one", "job"]);
    for args in [&["--no-wait"][..], &["--wait", "0s"], &["--wait", "200ms"]] {
        let ended = sandbox.run(&[args, &["job"]].concat(), "echo never").expect(75);
        let ended = ended.says("job").says("held by the first one since 20").says("ago)");
        assert_eq!(ended.out, "");
        assert!(ended.err.contains(if args.len() == 2 && args[1] == "200ms" {
            "within 200ms"
        } else {
            "busy"
        }));
    }
    sandbox.wait_for_line("job", 1, 0);
    holder.end().expect(0);
    sandbox.run(&["--no-wait", "job"], "exit 5").expect(5);
}

#[test]
fn waiter_is_silent_and_is_granted_when_the_holder_ends() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    let waiters: Vec<_> = (0..3).map(|_| sandbox.start(&["--wait", "1m", "job"], "echo in")).collect();
    sandbox.wait_for_line("job", 1, 3);
    holder.end().expect(0);
    for waiter in waiters {
        let ended = waiter.end().expect(0);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("in\n", ""));
    }
}

#[test]
fn a_store_that_does_not_answer_is_69_with_its_address() {
    // No server listens on a port that was just released.
    let port = leasehold_testkit::Port::take().unwrap();
    let sandbox = Sandbox::on(&format!("redis://{}", port.addr()));
    for args in [
        &["run", "job", "--", "true"][..],
        &["show", "job"],
        &["ls"],
        &["break", "--yes", "job"],
        &["watch", "job"],
    ] {
        sandbox.end(args).expect(69).says(&port.addr().to_string()).says("LEASEHOLD_URL");
    }
}

#[test]
fn server_on_a_wrong_port_is_described_as_far_as_possible() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let unused_port = leasehold_testkit::Port::take().unwrap();
    for (url, text) in [
        (format!("etcd://{}?timeout=10s", redis.server.addr()), "check that it speaks etcd"),
        (format!("zk://{}?timeout=10s", redis.server.addr()), "check that it is ZooKeeper"),
        (format!("zk://{}?timeout=10s", unused_port.addr()), "refused"),
    ] {
        Sandbox::on(&url).end(&["ls"]).expect(69).says(text);
    }
}

#[test]
fn help_that_cannot_be_written_is_74() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.sh("leasehold run --help >/dev/full; echo $? >&2");
    command.env_remove("LEASEHOLD_URL");
    assert!(Started::new(command).end().err.ends_with("74\n"));
}

#[test]
fn a_store_that_would_not_be_safe_is_78() {
    let sandbox = Sandbox::new();
    // A directory that every user may replace is not a place for locks.
    let open = sandbox.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o1777)).unwrap();
    std::os::unix::fs::symlink(sandbox.dir.path(), open.join("link")).unwrap();
    let by_link = format!("file://{}", open.join("link").display());
    let no_folder = sandbox.path("file");
    std::fs::write(&no_folder, "somebody's").unwrap();
    let by_file = format!("file://{}", no_folder.display());
    for url in ["mem:", "mem:shared", &by_link, &by_file] {
        let ended = sandbox.end(&["run", "--store", url, "job", "--", "true"]).expect(78);
        assert!(ended.err.starts_with("leasehold: "), "{ended:?}");
    }
    assert_eq!(std::fs::read_to_string(no_folder).unwrap(), "somebody's");
}

#[test]
fn default_store_is_the_file_store_of_this_user() {
    let sandbox = Sandbox::new();
    for _ in 0..2 {
        let mut command = sandbox.leasehold(&["run", "job", "--", "sh", "-c", "echo $LEASEHOLD_FENCE"]);
        command.env_remove("LEASEHOLD_URL");
        let ended = Started::new(command).end().expect(0);
        assert!(ended.out.trim().parse::<u64>().unwrap() > 0);
    }
    assert!(sandbox.path(".local/state/leasehold").is_dir());
}
