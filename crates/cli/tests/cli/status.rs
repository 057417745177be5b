//! The state of the lock for programs: `--status-file`, `--status-fd`, `--sd-notify`.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Ended, LIMIT, Redis, Sandbox, Started, eventually, number};

fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn words(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

#[test]
fn each_change_is_a_line_on_the_descriptor() {
    let sandbox = Sandbox::new();
    let inner = "ls -l /proc/self/fd | grep -c status; echo $LEASEHOLD_FENCE >&2; exit 75";
    let script = format!("leasehold run --status-fd 7 job -- sh -c '{inner}' 7>status");
    let ended = Started::new(sandbox.sh(&script)).end().expect(75);
    assert_eq!(ended.out, "0\n", "{ended:?}");
    let events = events(&std::fs::read_to_string(sandbox.path("status")).unwrap());
    assert_eq!(words(&events), ["waiting", "granted", "released", "exit"]);
    let granted = &events[1];
    assert_eq!(granted["locks"][0]["name"], "job");
    assert_eq!(granted["locks"][0]["fence"].as_str().unwrap(), ended.err.trim());
    assert_eq!((&granted["grade"], &granted["nested"]), (&"strict".into(), &false.into()));
    // The command's own 75 differs from that of leasehold.
    assert_eq!((&events[3]["code"], &events[3]["by"]), (&75.into(), &"command".into()));
}

#[test]
fn busy_lock_is_told_from_a_command_with_the_same_code() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    let status = sandbox.path("status");
    sandbox.run(&["--no-wait", "--status-file", status.to_str().unwrap(), "job"], "exit 75").expect(75);
    let state: Value = serde_json::from_str(&std::fs::read_to_string(&status).unwrap()).unwrap();
    assert_eq!((&state["event"], &state["code"]), (&"exit".into(), &75.into()));
    assert_eq!(state["by"], "leasehold");
    holder.end().expect(0);
}

#[test]
fn signal_that_ends_leasehold_alone_is_not_the_command_s_end() {
    let sandbox = Sandbox::new();
    let end = |args: &[&str], script: &str| {
        let running = sandbox.start(&[&["--status-file", "status"], args, &["job"]].concat(), script);
        let command = number(&running.line_with("command"));
        (running, command)
    };
    let by = |ended: Ended| {
        let state = events(&std::fs::read_to_string(sandbox.path("status")).unwrap()).remove(0);
        assert_eq!((&state["event"], &state["code"]), (&"exit".into(), &ended.code().into()));
        (ended.code(), state["by"].as_str().unwrap().to_owned())
    };
    let (running, command) = end(&["--min-hold", "1h"], "echo command $$");
    // Leasehold has seen its end.
    eventually(|| match sandbox.path(&format!("/proc/{command}")).exists() {
        true => Err(format!("{command} is there")),
        false => Ok(()),
    });
    running.signal(Signal::TERM);
    assert_eq!(by(running.end()), (143, "leasehold".to_owned()));
    // A signal that is passed on ends the command, which could have handled it.
    let (running, _) = end(&[], "echo command $$; exec sleep 1000");
    running.signal(Signal::TERM);
    assert_eq!(by(running.end()), (143, "command".to_owned()));
}

#[test]
fn candidate_names_the_one_that_has_ended_it_as_a_run_does() {
    let sandbox = Sandbox::new();
    for (args, code, by) in [
        ("job -- sh -c 'kill -TERM $$'", 143, "command"),
        ("job -- sh -c 'exit 3'", 3, "command"),
        ("job --on-elected 'exit 3'", 3, "command"),
        ("job --on-elected '(sleep 0.5; kill -TERM $PPID) &'", 143, "leasehold"),
    ] {
        let script = format!("leasehold elect --status-fd 7 {args} 7>status");
        Started::new(sandbox.sh(&script)).end().expect(code);
        let last = events(&std::fs::read_to_string(sandbox.path("status")).unwrap()).pop().unwrap();
        assert_eq!((&last["code"], &last["by"]), (&code.into(), &by.into()), "{script}");
    }
}

#[test]
fn file_has_the_newest_state_as_a_whole_whenever_it_is_read() {
    let sandbox = Sandbox::new();
    let status = sandbox.path("status");
    let read = || -> Option<Value> {
        let text = std::fs::read_to_string(&status).ok()?;
        Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("half of a state: {text:?}: {error}")))
    };
    let mut command = sandbox.leasehold(&[
        "run",
        "--status-file",
        "status",
        "--on-revoke",
        "usr1",
        "job",
        "--",
        "sh",
        "-c",
        "trap 'echo asked' USR1; echo ready; read -r _; read -r _; exit 0",
    ]);
    command.stdin(std::process::Stdio::piped());
    let holder = Started::new(command);
    holder.line_with("ready");
    let wait_for = |word: &str| {
        eventually(|| match read() {
            Some(state) if state["event"] == word => Ok(state),
            state => Err(format!("{state:?}")),
        })
    };
    let state = wait_for("granted");
    assert_eq!(state["pid"].as_i64().unwrap(), i64::from(holder.pid().as_raw_pid()));
    sandbox.end(&["revoke", "--reason", "now", "job"]).expect(0);
    assert_eq!(wait_for("revoked")["reason"], "now");
    holder.line_with("asked");
    holder.end().expect(0);
    assert_eq!(wait_for("exit")["code"], 0);
    let left: Vec<_> =
        std::fs::read_dir(sandbox.dir.path()).unwrap().flatten().map(|file| file.file_name()).collect();
    assert_eq!(
        left.iter().filter(|name| name.to_str().unwrap().starts_with("status")).count(),
        1,
        "{left:?}"
    );
}

#[test]
fn place_that_cannot_be_written_is_refused_before_the_lock() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    std::os::unix::fs::symlink("/dev/null", sandbox.path("link")).unwrap();
    for (args, code, text) in [
        (["--status-file", "no/such/folder"], 74, "status file"),
        (["--status-file", "/dev/null"], 64, "--status-fd"),
        (["--status-file", "link"], 64, "--status-fd"),
        (["--status-file", "."], 64, "--status-fd"),
        (["--status-fd", "77"], 64, "77>FILE"),
        (["--status-fd", "0"], 64, "number of a descriptor"),
        (["--status-fd", "x"], 64, "number of a descriptor"),
    ] {
        sandbox.run(&[args[0], args[1], "job"], "echo never").expect(code).says(text);
    }
    let script = "leasehold run --status-fd 7 job -- true 7</dev/null; echo $?";
    assert_eq!(Started::new(sandbox.sh(script)).end().expect(0).out, "64\n");
    assert!(std::fs::metadata("/dev/null").is_ok_and(|found| !found.is_file()));
    holder.end().expect(0);
}

/// When the command line is read, the fork for the warden exists already, with a socket and a handle.
#[test]
fn descriptor_that_only_leasehold_has_opened_is_refused() {
    let sandbox = Sandbox::new();
    let start = |verb: &str, number: u32, file: &str| {
        let command = format!("leasehold {verb} --status-fd {number} job -- echo began {file}");
        Started::new(sandbox.sh(&format!("exec 3>&- 4>&- 5>&- 6>&-; {command}"))).end()
    };
    for number in 3..=6 {
        for verb in ["run", "elect"] {
            let refused = start(verb, number, "").expect(64).says(&format!("{number}>FILE"));
            assert_eq!(refused.out, "", "{verb} {number}");
        }
        start("run", number, &format!("{number}>status")).expect(0);
        assert!(std::fs::read_to_string(sandbox.path("status")).unwrap().contains("\"exit\""), "{number}");
    }
}

#[test]
fn reader_that_does_not_read_delays_neither_renewal_nor_end() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    // The pipe is full before the first line.
    let fill = "mkfifo pipe; exec 7<>pipe; dd if=/dev/zero bs=65536 count=1 >&7 2>/dev/null";
    let inner = "until [ -e go ]; do sleep 0.05; done; echo over";
    let script =
        format!("{fill}; leasehold run --ttl 30s --status-fd 7 --status-file status job -- sh -c '{inner}'");
    let running = Started::new(sandbox.sh(&script));
    sandbox.wait_for_renewal("job");
    std::fs::write(sandbox.path("go"), "").unwrap();
    let ended = running.end().expect(0);
    assert_eq!(ended.out, "over\n", "{ended:?}");
    // The other place has all of it.
    assert!(std::fs::read_to_string(sandbox.path("status")).unwrap().contains("\"exit\""));
}

#[test]
fn reader_that_has_gone_changes_nothing() {
    let sandbox = Sandbox::new();
    let script = "{ leasehold run --status-fd 1 job -- sh -c 'sleep 0.2; exit 3'; echo $? >code; } | true";
    Started::new(sandbox.sh(script)).end().expect(0);
    assert_eq!(std::fs::read_to_string(sandbox.path("code")).unwrap(), "3\n");
}

#[test]
fn outage_is_reported_as_suspect_and_then_as_lost() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let script = "exec leasehold run --ttl 30s --status-fd 7 job -- sleep 1000 7>status";
    let running = Started::new(sandbox.sh(script));
    let status = sandbox.path("status");
    let now = || events(&std::fs::read_to_string(&status).unwrap_or_default());
    let wait_for = |word: &str| {
        eventually(|| match now() {
            events if words(&events).contains(&word) => Ok(events),
            events => Err(format!("{events:?}")),
        })
    };
    wait_for("granted");
    redis.server.kill().unwrap();
    let suspect = wait_for("suspect").into_iter().find(|event| event["event"] == "suspect").unwrap();
    assert!(suspect["lost_in_ms"].as_u64().unwrap() <= 30_000, "{suspect}");
    running.end().expect(76);
    let events = wait_for("exit");
    assert!(words(&events).ends_with(&["suspect", "lost", "exit"]), "{events:?}");
    assert_eq!(events.last().unwrap()["code"], 76);
}

#[test]
fn service_manager_hears_ready_when_the_lock_is_held() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    let next = || {
        let mut bytes = [0; 4096];
        let count = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let sandbox = sandbox.with("NOTIFY_SOCKET", path.to_str().unwrap());
    let holder = sandbox.hold(&["job"]);
    // Without the flag nothing is sent, and the command may report for itself.
    let waiter = sandbox.start(&["--sd-notify", "job"], "echo \"socket=$NOTIFY_SOCKET\"; exit 4");
    assert_eq!(next(), "STATUS=waits for job");
    manager.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(manager.recv(&mut [0; 64]).is_err(), "it is not ready before the lock is held");
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    holder.end().expect(0);
    let ready = next();
    assert!(ready.starts_with("READY=1\nSTATUS=holds job, fence 0"), "{ready}");
    assert_eq!(waiter.line_with("socket"), "socket=", "only one reports to the manager");
    waiter.end().expect(4);
    assert_eq!((next(), next()), ("STATUS=has released job".to_owned(), "STOPPING=1".to_owned()));
    let plain = sandbox.run(&["job"], "echo \"socket=$NOTIFY_SOCKET\"").expect(0);
    assert_eq!(plain.out, format!("socket={}\n", path.display()));
}

#[test]
fn manager_that_is_missing_or_full_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.run(&["--sd-notify", "job"], "exit 3").expect(3);
    let path = sandbox.path("notify");
    let missing = Sandbox::new().with("NOTIFY_SOCKET", path.to_str().unwrap());
    missing.run(&["--sd-notify", "job"], "exit 3").expect(3);
    let manager = UnixDatagram::bind(&path).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    sender.connect(&path).unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.send(&[0; 1024]).is_ok() {}
    missing.run(&["--sd-notify", "job"], "exit 3").expect(3);
    drop(manager);
}

#[test]
fn candidate_reports_each_term() {
    let sandbox = Sandbox::new();
    let script = "exec leasehold elect --status-fd 7 job -- sh -c 'echo leads; exec sleep 1000' 7>status";
    let candidate = Started::new(sandbox.sh(script));
    candidate.line_with("leads");
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    candidate.line_with("leads");
    // What is written does not delay the command.
    eventually(|| {
        let text = std::fs::read_to_string(sandbox.path("status")).unwrap();
        let is_all = words(&events(&text)) == ["waiting", "granted", "lost", "waiting", "granted"];
        is_all.then_some(()).ok_or(text)
    });
    candidate.signal(Signal::TERM);
}

#[test]
fn link_of_another_user_is_not_followed_and_ones_own_is() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("mine"), "mine").unwrap();
    std::os::unix::fs::symlink("mine", sandbox.path("own")).unwrap();
    sandbox.run(&["--status-file", "own", "job"], "true").expect(0);
    assert!(std::fs::read_to_string(sandbox.path("mine")).unwrap().contains("\"exit\""));
    assert!(std::fs::symlink_metadata(sandbox.path("own")).unwrap().is_symlink());
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can make a link of another user");
    }
    std::fs::write(sandbox.path("mine"), "mine").unwrap();
    // By way of a link of one's own, too.
    std::os::unix::fs::symlink("mine", sandbox.path("foreign")).unwrap();
    std::os::unix::fs::lchown(sandbox.path("foreign"), Some(65_534), Some(65_534)).unwrap();
    std::os::unix::fs::symlink("foreign", sandbox.path("to-foreign")).unwrap();
    for link in ["foreign", "to-foreign"] {
        let ended = sandbox.run(&["--status-file", link, "job"], "echo never").expect(74);
        assert_eq!(ended.says("is a link of the user 65534").out, "");
    }
    assert_eq!(std::fs::read_to_string(sandbox.path("mine")).unwrap(), "mine");
}

#[test]
fn file_that_cannot_be_replaced_is_refused_before_the_lock() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let as_other = "exec setpriv --reuid 65534 --regid 65534 --clear-groups leasehold";
    let sandbox = Sandbox::new();
    // Like the folder of temporary files: all may write, and each may replace only what is its own.
    let mode = |name: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(sandbox.path(name), mode).unwrap();
    };
    mode("", 0o1777);
    if Started::new(sandbox.sh(&format!("{as_other} --version"))).end().status.code() != Some(0) {
        return eprintln!("skipped: another user cannot run this program");
    }
    std::fs::write(sandbox.path("status"), "{\"event\":\"granted\"}\n").unwrap();
    mode("status", 0o666);
    let script = format!("{as_other} run --status-file status job -- echo never");
    let ended = Started::new(sandbox.sh(&script)).end().expect(74).says("status file status");
    assert_eq!(ended.out, "");
    let left = std::fs::read_dir(sandbox.dir.path()).unwrap().flatten();
    let left: Vec<_> = left.map(|file| file.file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.ends_with(".new")), "{left:?}");
}

#[test]
fn file_has_the_state_of_this_process_from_the_beginning() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    std::fs::write(sandbox.path("status"), "{\"event\":\"granted\"}\n").unwrap();
    let waiter = sandbox.start(&["--status-file", "status", "job"], "true");
    sandbox.wait_for_line("job", 1, 1);
    let state = &events(&std::fs::read_to_string(sandbox.path("status")).unwrap())[0];
    assert_eq!((&state["event"], &state["pid"]), (&"waiting".into(), &waiter.pid().as_raw_pid().into()));
    holder.end().expect(0);
    waiter.end().expect(0);
}

#[test]
fn prepared_link_beside_the_file_is_not_written_through() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("victim"), "precious").unwrap();
    // The shell becomes leasehold, so its id is known before.
    let script = "ln -s victim status.$$.new; exec leasehold run --status-file status job -- true";
    Started::new(sandbox.sh(script)).end().expect(0);
    assert_eq!(std::fs::read_to_string(sandbox.path("victim")).unwrap(), "precious");
    assert!(std::fs::read_to_string(sandbox.path("status")).unwrap().contains("\"exit\""));
}
