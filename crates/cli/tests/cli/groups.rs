//! The processes of the command: `--same-group`, `--exec`, `--wait-group`.

use std::os::unix::process::ExitStatusExt;

use rustix::process::{Pid, Signal, getpgid, kill_process};

use crate::support::gate::Gate;
use crate::support::pty::Pty;
use crate::support::{BINARY, Redis, Sandbox, Started, eventually, is_alive, number, wait_until_gone};

#[test]
fn same_group_leaves_the_command_in_the_group_of_the_caller() {
    let sandbox = Sandbox::new();
    let script = "ps -o pgid= -p $$; leasehold run --same-group job -- sh -c 'ps -o pgid= -p $$'";
    let ended = Started::new(sandbox.sh(script)).end().expect(0);
    let groups: Vec<_> = ended.out.lines().map(str::trim).collect();
    assert_eq!(groups[0], groups[1], "{ended:?}");
}

#[test]
fn killed_leasehold_in_the_same_group_ends_its_command_only() {
    let sandbox = Sandbox::new();
    let inner = "trap \"\" TERM; sleep 1000 & echo pids $PPID $$ $!; wait; while :; do sleep 1; done";
    let script =
        format!("sleep 1000 & echo beside $!; leasehold run --same-group job -- sh -c '{inner}'; wait");
    let running = Started::new(sandbox.sh(&script));
    let beside = number(&running.line_with("beside"));
    let pids: Vec<i32> =
        running.line_with("pids").split(' ').skip(1).map(|pid| pid.parse().unwrap()).collect();
    kill_process(Pid::from_raw(pids[0]).unwrap(), Signal::KILL).unwrap();
    pids.into_iter().for_each(wait_until_gone);
    assert!(is_alive(beside), "a process of the caller");
    sandbox.run(&["--wait", "30s", "job"], "true").expect(0);
    kill_process(Pid::from_raw(beside).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn leasehold_that_is_killed_while_the_command_begins_ends_it_in_the_same_group_too() {
    let sandbox = Sandbox::new();
    let program = sandbox.copy("/bin/sleep", "program");
    let Some(gate) = Gate::before_or_skip(&program) else { return };
    let command = ["run", "--same-group", "job", "--", "./program", "1000"];
    let running = Started::new(sandbox.leasehold(&command));
    let event = gate.wait();
    // From here on it does nothing any more: it is not there to see that the command has begun.
    running.signal(Signal::STOP);
    let state_of = |pid: i32, what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap();
    eventually(|| match state_of(running.pid().as_raw_pid(), "stat") {
        stat if stat.contains(") T ") => Ok(()),
        stat => Err(stat),
    });
    gate.open(&event);
    eventually(|| match state_of(event.pid(), "comm") {
        name if name == "program\n" => Ok(()),
        name => Err(name),
    });
    running.signal(Signal::KILL);
    wait_until_gone(event.pid());
}

#[test]
fn leasehold_that_is_killed_before_the_warden_knows_the_command_has_not_begun_it() {
    let sandbox = Sandbox::new();
    // Another file than that of the other tests, which would have to wait at the gate, too.
    let program = sandbox.copy(BINARY, "program");
    let Some(gate) = Gate::before_or_skip(&program) else { return };
    let running = Started::new(sandbox.sh("exec ./program run --same-group job -- echo began"));
    let leasehold = gate.wait();
    gate.open(&leasehold);
    // The warden is a fork of it, unless the machine stands still for a second, and leads a group.
    let starter = loop {
        let next = gate.wait();
        let pid = Pid::from_raw(next.pid()).unwrap();
        if getpgid(Some(pid)) != Ok(pid) {
            break next;
        }
        gate.open(&next);
    };
    running.signal(Signal::KILL);
    wait_until_gone(running.pid().as_raw_pid());
    gate.open(&starter);
    wait_until_gone(starter.pid());
    assert_eq!(running.end().out, "");
}

#[test]
fn command_that_cannot_begin_in_the_same_group_is_reported_like_any_other() {
    let sandbox = Sandbox::new();
    let status = "leasehold run --same-group --status-fd 7 job -- ./script 7>status";
    for (interpreter, code) in [("/no/such/interpreter", 127), ("/etc/passwd", 126)] {
        sandbox.program("script", format!("#!{interpreter}\n"));
        let own_group = sandbox.end(&["run", "job", "--", "./script"]).expect(code);
        let ended = Started::new(sandbox.sh(status)).end().expect(code);
        assert_eq!(ended.err, own_group.err);
        let status = std::fs::read_to_string(sandbox.path("status")).unwrap();
        assert!(status.contains(&format!("{code},\"by\":\"leasehold\"")), "{status}");
        assert_eq!(sandbox.show("job")["state"], "free");
    }
}

#[test]
fn loss_in_the_same_group_ends_orphans_too() {
    let sandbox = Sandbox::new();
    // The orphan has left its parent and its session.
    let script = "(setsid sh -c 'trap \"\" TERM; echo orphan $$; exec sleep 1000' &); \
                  trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let running = sandbox.start(&["--same-group", "--grace", "1s", "job"], script);
    let orphan = number(&running.line_with("orphan"));
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    running.end().expect(76);
    wait_until_gone(orphan);
}

#[test]
fn typed_ctrl_c_in_the_same_group_reaches_the_command_once() {
    let sandbox = Sandbox::new();
    let script =
        "trap 'echo caught' INT; echo ready; until read -r line; do :; done; echo \"got $line\"; exit 5";
    let mut pty =
        Pty::start(&sandbox, "leasehold", &["run", "--same-group", "job", "--", "sh", "-c", script]);
    pty.see("ready");
    pty.press("\x03");
    pty.see("caught");
    pty.press("words\r");
    let between = pty.see("got words");
    assert!(!between.contains("caught"), "{between:?}");
    assert_eq!(pty.end().0.code(), Some(5));
}

/// On a busy machine the end of the command can be seen before the signal.
#[test]
fn late_ctrl_c_in_the_same_group_ends_leasehold_by_the_signal() {
    let sandbox = Sandbox::new();
    let script = "echo ready $$; exec sleep 1000";
    let mut pty =
        Pty::start(&sandbox, "leasehold", &["run", "--same-group", "job", "--", "sh", "-c", script]);
    pty.see("ready ");
    let command = number(&pty.see("\r"));
    kill_process(pty.pid(), Signal::STOP).unwrap();
    wait_for_state(pty.pid().as_raw_pid(), 'T');
    pty.press("\x03");
    wait_for_state(command, 'Z');
    kill_process(pty.pid(), Signal::CONT).unwrap();
    let (status, screen) = pty.end();
    assert_eq!(status.signal(), Some(2), "{status:?} {screen:?}");
    assert_eq!(sandbox.show("job")["state"], "free");
}

fn wait_for_state(pid: i32, state: char) {
    eventually(|| match std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap() {
        stat if stat.contains(&format!(") {state} ")) => Ok(()),
        stat => Err(stat),
    });
}

#[test]
fn typed_ctrl_c_and_ctrl_z_in_the_same_group_are_those_of_a_job() {
    let sandbox = Sandbox::new();
    let mut shell = Pty::shell(&sandbox);
    let reads = "trap \"echo on\"\"ward\" CONT; echo rea\"\"dy $$; until read -r line; do :; done; echo \"got $line\"";
    shell.enter(&format!("leasehold run --same-group job -- sh -c '{reads}; exec sleep 1000'"));
    shell.see("ready ");
    let command = number(&shell.see("\r"));
    shell.press("\x1a");
    shell.see("Stopped");
    shell.prompt();
    // The shell waits for leasehold alone. Until the command has stopped, too, it may read what is typed.
    wait_for_state(command, 'T');
    shell.enter("fg");
    shell.see("onward");
    shell.press("words\r");
    shell.see("got words");
    shell.press("\x03");
    shell.prompt();
    shell.enter("echo code $?");
    shell.see("code 130");
    assert_eq!(sandbox.show("job")["state"], "free");
}

#[test]
fn exec_keeps_the_lock_until_all_that_inherited_it_end() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&[
        "run", "--exec", "job", "--", "sh", "-c",
        "echo pid $$ $LEASEHOLD_FENCE; sleep 1000 </dev/null >/dev/null 2>&1 & echo left $!; read -r _; exit 3",
    ]);
    command.stdin(std::process::Stdio::piped());
    let running = Started::new(command);
    let line = running.line_with("pid");
    let pid: i32 = line.split(' ').nth(1).unwrap().parse().unwrap();
    assert_eq!(pid, running.pid().as_raw_pid(), "the process is the same");
    let left = number(&running.line_with("left"));
    let ps = Started::new(sandbox.sh(&format!("ps -o pid= --ppid {pid} | wc -l"))).end();
    assert_eq!(ps.out.trim(), "1", "nothing runs beside the command: {ps:?}");
    sandbox.run(&["--no-wait", "job"], "true").expect(75);
    running.end().expect(3);
    sandbox.run(&["--no-wait", "job"], "true").expect(75);
    let waiter = sandbox.start(&["job"], "echo in");
    sandbox.wait_for_line("job", 1, 1);
    kill_process(Pid::from_raw(left).unwrap(), Signal::KILL).unwrap();
    waiter.line_with("in");
    waiter.end().expect(0);
}

#[test]
fn exec_has_default_signals_and_nested_runs() {
    let sandbox = Sandbox::new();
    let running =
        sandbox.start(&["--exec", "job"], "leasehold run --no-wait job -- echo nested; exec sleep 1000");
    running.line_with("nested");
    eventually(|| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", running.pid().as_raw_pid()));
        name.is_ok_and(|name| name.trim() == "sleep").then_some(()).ok_or("not yet".to_owned())
    });
    running.signal(Signal::TERM);
    assert_eq!(running.end().status.signal(), Some(15));
    sandbox.run(&["--no-wait", "job"], "true").expect(0);
}

#[test]
fn exec_that_fails_releases_the_lock() {
    let sandbox = Sandbox::new();
    let script = sandbox.program("script", "#!/no/such/interpreter\n");
    let script = script.to_str().unwrap();
    sandbox.end(&["run", "--exec", "job", "--", script]).expect(127);
    assert_eq!(sandbox.show("job")["state"], "free");
    sandbox
        .end(&["run", "--exec", "--max-hold", "1s", "job", "--", "true"])
        .expect(64)
        .says("cannot be used with");
    let holder = sandbox.hold(&["job"]);
    sandbox.end(&["run", "--exec", "--no-wait", "job", "--", "true"]).expect(75);
    holder.end().expect(0);
    let elsewhere = Sandbox::on("redis://127.0.0.1:1");
    elsewhere.end(&["run", "--exec", "job", "--", "true"]).expect(78).says("--exec is for file:");
}

#[test]
fn exec_with_several_locks_keeps_all() {
    let sandbox = Sandbox::new();
    let mut command =
        sandbox.leasehold(&["run", "--exec", "--also", "b", "a", "--", "sh", "-c", "echo ready; read -r _"]);
    command.stdin(std::process::Stdio::piped());
    let running = Started::new(command);
    running.line_with("ready");
    for name in ["a", "b"] {
        sandbox.run(&["--no-wait", name], "true").expect(75);
    }
    running.end();
    for name in ["a", "b"] {
        sandbox.run(&["--no-wait", name], "true").expect(0);
    }
}

#[test]
fn wait_group_holds_the_lock_until_a_daemon_has_ended() {
    let redis = Redis::start_or_skip();
    let sandboxes = [Some(Sandbox::new()), redis.as_ref().map(|redis| Sandbox::on(&redis.server.url()))];
    for sandbox in sandboxes.into_iter().flatten() {
        let started = [("own", &[][..]), ("same", &["--same-group"][..])].map(|(name, group)| {
            let script =
                "(setsid sh -c 'echo daemon; until [ -e go ]; do sleep 0.05; done; echo done' &); exit 7";
            let args = [group, &["--ttl", "30s", "--wait-group", name]].concat();
            let running = sandbox.start(&args, script);
            running.line_with("daemon");
            (name, running)
        });
        for (name, _) in &started {
            sandbox.wait_for_renewal(name);
            sandbox.run(&["--no-wait", name], "true").expect(75);
        }
        std::fs::write(sandbox.path("go"), "").unwrap();
        for (name, running) in started {
            running.line_with("done");
            running.end().expect(7);
            sandbox.run(&["--no-wait", name], "true").expect(0);
        }
    }
}

/// The kernel's list of processes is made before the state of each is read.
#[test]
fn wait_group_misses_no_process_of_a_chain_in_which_each_starts_the_next() {
    let sandbox = Sandbox::new();
    let relay = "if [ $1 = 0 ]; then touch over; exit; fi\nsleep 0.005\nsh relay $(($1 - 1)) &\n";
    std::fs::write(sandbox.path("relay"), relay).unwrap();
    for round in 0..3 {
        sandbox.run(&["--wait-group", "job"], "sh relay 100 & exit 0").expect(0);
        assert!(sandbox.path("over").exists(), "round {round}");
        std::fs::remove_file(sandbox.path("over")).unwrap();
    }
}

#[test]
fn loss_while_a_daemon_is_waited_for_kills_it() {
    let sandbox = Sandbox::new();
    let script = "(setsid sh -c 'trap \"\" TERM; echo daemon $$; while :; do sleep 0.1; done' &); exit 0";
    let running = sandbox.start(&["--wait-group", "--grace", "500ms", "job"], script);
    let daemon = number(&running.line_with("daemon"));
    sandbox.end(&["break", "--yes", "job"]).expect(0);
    running.end().expect(76);
    wait_until_gone(daemon);
}

#[test]
fn signal_while_a_daemon_is_waited_for_reaches_the_group() {
    let sandbox = Sandbox::new();
    // It is left alone once the command itself has ended, which a signal would end as well.
    let script = "sh -c 'trap \"echo asked; exit\" TERM; while kill -0 $1; do sleep 0.05; done 2>/dev/null; echo left; \
                  while :; do sleep 0.1; done' sh $$ & exit 7";
    let running = sandbox.start(&["--wait-group", "job"], script);
    running.line_with("left");
    running.signal(Signal::TERM);
    running.line_with("asked");
    running.end().expect(7);
}

#[test]
fn signal_while_a_daemon_is_waited_for_reaches_the_daemon_too() {
    let sandbox = Sandbox::new();
    let script = "(setsid sh -c 'trap \"echo asked; exit\" TERM; while kill -0 $1; do sleep 0.05; done 2>/dev/null; \
                  echo daemon; while :; do sleep 0.1; done' sh $$ &); exit 7";
    let running = sandbox.start(&["--wait-group", "job"], script);
    running.line_with("daemon");
    running.signal(Signal::TERM);
    running.line_with("asked");
    running.end().expect(7);
}

#[test]
fn children_from_before_are_not_waited_for() {
    let sandbox = Sandbox::new();
    for group in ["", "--same-group"] {
        // The shell becomes leasehold, which then has a child that it has not started.
        let script = format!(
            "sleep 100 >/dev/null 2>&1 & echo before $!; \
             exec leasehold run {group} --wait-group job -- sh -c '(setsid sleep 0.3 &); exit 7'"
        );
        let running = Started::new(sandbox.sh(&script));
        let before = number(&running.line_with("before"));
        running.end().expect(7);
        assert!(is_alive(before), "a process of the caller");
        kill_process(Pid::from_raw(before).unwrap(), Signal::KILL).unwrap();
    }
}

#[test]
fn loss_does_not_kill_keepers_below_the_command() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let script = "trap '' TERM; lock=$(leasehold acquire --ttl 1h b) || exit; eval \"$lock\"; echo held; \
                  while :; do sleep 0.1; done";
    let running = sandbox.start(&["--same-group", "--grace", "300ms", "a"], script);
    running.line_with("held");
    sandbox.end(&["break", "--yes", "a"]).expect(0);
    running.end().expect(76);
    // Not after an hour.
    sandbox.run(&["--wait", "30s", "b"], "true").expect(0);
}

#[test]
fn children_from_before_survive_a_loss_and_get_no_signal() {
    let sandbox = Sandbox::new();
    for (group, inner) in [
        ("--same-group", "echo ready; while :; do sleep 0.1; done"),
        ("--wait-group", "(setsid sh -c 'echo ready; while :; do sleep 0.1; done' &); exit 0"),
    ] {
        std::fs::write(sandbox.path("inner"), inner).unwrap();
        let script = format!(
            "sleep 100 >/dev/null 2>&1 & echo before $!; \
             exec leasehold run {group} --grace 300ms job -- sh inner"
        );
        let running = Started::new(sandbox.sh(&script));
        let before = number(&running.line_with("before"));
        running.line_with("ready");
        sandbox.end(&["break", "--yes", "job"]).expect(0);
        running.end().expect(76);
        assert!(is_alive(before), "a process of the caller");
        kill_process(Pid::from_raw(before).unwrap(), Signal::KILL).unwrap();
    }
    let script = "sleep 100 >/dev/null 2>&1 & echo before $!; exec leasehold run --wait-group job -- \
                  sh -c '(setsid sh -c \"sleep 0.2; echo daemon; exec sleep 1000\" &); exit 7'";
    let running = Started::new(sandbox.sh(script));
    let before = number(&running.line_with("before"));
    running.line_with("daemon");
    running.signal(Signal::TERM);
    running.end().expect(7);
    assert!(is_alive(before), "a process of the caller");
    kill_process(Pid::from_raw(before).unwrap(), Signal::KILL).unwrap();
}
