//! Inside a pseudo-terminal: Ctrl-C, job control, the line while it waits, and questions.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;

use rustix::fs::OFlags;

use crate::support::pty::Pty;
use crate::support::{Sandbox, eventually};

/// Reads a line from the terminal, and prints a word when it is continued: only then has the shell restored
/// the terminal, and input may be typed.
const READS: &str =
    "trap \"echo on\"\"ward\" CONT; echo rea\"\"dy; until read -r line; do :; done; echo \"got $line\"";

#[test]
fn ctrl_c_ends_the_command_and_leasehold_by_the_same_signal() {
    let sandbox = Sandbox::new();
    let mut pty =
        Pty::start(&sandbox, "leasehold", &["run", "job", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    pty.see("ready");
    pty.press("\x03");
    let (status, screen) = pty.end();
    assert_eq!(status.signal(), Some(2), "{status:?} {screen:?}");
    assert_eq!(sandbox.show("job")["state"], "free");
}

#[test]
fn ctrl_c_reaches_only_the_command_which_may_continue() {
    let sandbox = Sandbox::new();
    let script =
        "trap 'echo caught' INT; echo ready; until read -r line; do :; done; echo \"got $line\"; exit 5";
    let mut pty = Pty::start(&sandbox, "leasehold", &["run", "job", "--", "sh", "-c", script]);
    pty.see("ready");
    pty.press("\x03");
    pty.see("caught");
    pty.press("words\r");
    pty.see("got words");
    let (status, _) = pty.end();
    assert_eq!(status.code(), Some(5));
}

#[test]
fn a_shell_sees_130_and_a_script_around_it_ends() {
    let sandbox = Sandbox::new();
    let mut shell = Pty::shell(&sandbox);
    shell.enter("leasehold run job -- sh -c 'echo rea''dy; exec sleep 1000'");
    shell.see("ready");
    shell.press("\x03");
    shell.prompt();
    shell.enter("echo code $?");
    shell.see("code 130");
    shell.prompt();
    shell.enter("sh -c 'for i in 1 2 3; do leasehold run job -- sh -c \"echo rea\"\"dy; exec sleep 1000\"; echo ne''xt; done'");
    shell.see("ready");
    shell.press("\x03");
    let rest = shell.prompt();
    assert!(!rest.contains("next"), "the loop has ended: {rest:?}");
}

#[test]
fn ctrl_c_ends_the_wait_for_the_lock_and_the_script_around_it() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["--note", "ann", "job"]);
    let mut shell = Pty::shell(&sandbox);
    shell.enter("sh -c 'for i in 1 2 3; do leasehold run job -- true; echo ne''xt; done'; echo code $?");
    shell.see("waiting for job");
    shell.press("\x03");
    let rest = shell.prompt();
    assert!(!rest.contains("next"), "{rest:?}");
    assert_eq!(sandbox.show("job")["waiting"].as_array().unwrap().len(), 0);
    holder.end().expect(0);
}

/// None of the streams of leasehold is the terminal.
#[test]
fn ctrl_c_ends_the_script_around_a_run_whose_streams_are_files() {
    let sandbox = Sandbox::new();
    let command = "sh -c \"echo rea\"\"dy >/dev/tty; exec sleep 1000\" </dev/null >/dev/null 2>&1";
    for args in ["job", "--same-group job", "outer -- leasehold run job"] {
        let mut shell = Pty::shell(&sandbox);
        let run = format!("leasehold run {args} -- {command}");
        shell.enter(&format!("bash -c 'for i in 1 2 3; do {run}; echo ne\"\"xt; done'"));
        shell.see("ready");
        shell.press("\x03");
        let rest = shell.prompt();
        assert!(!rest.contains("next"), "{args}: the loop has ended: {rest:?}");
        assert_eq!(sandbox.show("job")["state"], "free");
    }
    let holder = sandbox.hold(&["job"]);
    let mut shell = Pty::shell(&sandbox);
    let run = "leasehold run job -- true </dev/null >/dev/null 2>&1";
    shell.enter(&format!("bash -c 'for i in 1 2 3; do {run}; echo ne\"\"xt; done'"));
    sandbox.wait_for_line("job", 1, 1);
    shell.press("\x03");
    let rest = shell.prompt();
    assert!(!rest.contains("next"), "{rest:?}");
    sandbox.wait_for_line("job", 1, 0);
    holder.end().expect(0);
}

#[test]
fn ctrl_z_stops_both_and_fg_continues_both() {
    let sandbox = Sandbox::new();
    let mut shell = Pty::shell(&sandbox);
    shell.enter(&format!("leasehold run job -- sh -c '{READS}; exit 5'"));
    shell.see("ready");
    shell.press("\x1a");
    shell.see("Stopped");
    shell.prompt();
    // The shell has its terminal back, and the lock is held.
    shell.enter("leasehold run --no-wait job -- true; echo code $?");
    shell.see("code 75");
    shell.prompt();
    shell.enter("fg");
    shell.see("onward");
    shell.press("words\r");
    shell.see("got words");
    shell.prompt();
    shell.enter("echo code $?");
    shell.see("code 5");
}

#[test]
fn ctrl_z_stops_nested_runs_and_fg_continues_them() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("reads"), format!("{READS}\nexit 5\n")).unwrap();
    let inner = "leasehold run b -- leasehold run c -- sh reads";
    for outer in
        [format!("leasehold run a -- {inner}"), format!("leasehold run a -- sh -c '{inner}; exit $?'")]
    {
        let mut shell = Pty::shell(&sandbox);
        shell.enter(&outer);
        shell.see("ready");
        shell.press("\x1a");
        shell.see("Stopped");
        shell.prompt();
        shell.enter("leasehold run --no-wait c -- true; echo code $?");
        shell.see("code 75");
        shell.prompt();
        shell.enter("fg");
        shell.see("onward");
        shell.press("words\r");
        shell.see("got words");
        shell.prompt();
        shell.enter("echo code $?");
        shell.see("code 5");
    }
}

#[test]
fn ctrl_z_stops_the_command_of_a_nested_run_that_reads_nothing() {
    let sandbox = Sandbox::new();
    let script = "trap \"echo on\"\"ward\" CONT; echo $$ >pid; echo rea\"\"dy; until read -r _ <go; do :; done 2>/dev/null";
    let mut shell = Pty::shell(&sandbox);
    shell.enter(&format!("mkfifo go; leasehold run a -- leasehold run b -- sh -c '{script}'"));
    shell.see("ready");
    shell.press("\x1a");
    shell.see("Stopped");
    shell.prompt();
    let pid = std::fs::read_to_string(sandbox.path("pid")).unwrap();
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap();
    assert!(state.contains(") T "), "it runs on while its lock is not renewed: {state}");
    shell.enter("fg");
    shell.see("onward");
    shell.press("\x03");
    shell.prompt();
    shell.enter("echo code $?");
    shell.see("code 130");
}

#[test]
fn nested_run_in_a_pipeline_gets_the_terminal_when_it_wants_it() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("reads"), READS).unwrap();
    let mut shell = Pty::shell(&sandbox);
    shell.enter("leasehold run a -- sh -c 'leasehold run b -- leasehold run c -- sh reads | cat'");
    shell.see("ready");
    shell.press("words\r");
    shell.see("got words");
    shell.prompt();
}

#[test]
fn background_job_gets_the_terminal_when_brought_to_the_front() {
    let sandbox = Sandbox::new();
    let mut shell = Pty::shell(&sandbox);
    shell.enter(&format!("leasehold run job -- sh -c '{READS}' &"));
    // The command reads from the background and is stopped for that, and the shell is notified.
    shell.prompt();
    loop {
        shell.enter("jobs");
        if shell.prompt().contains("Stopped") {
            break;
        }
    }
    shell.enter("fg");
    shell.see("onward");
    shell.press("words\r");
    shell.see("got words");
    shell.prompt();
}

#[test]
fn bg_continues_the_command_without_the_terminal() {
    let sandbox = Sandbox::new();
    let mut shell = Pty::shell(&sandbox);
    // It starts no process while it may be stopped: a stop between vfork and exec would leave its shell
    // waiting for ever.
    let script = "echo rea\"\"dy; until read -r _ <go; do :; done 2>/dev/null; echo do\"\"ne";
    shell.enter(&format!("mkfifo go; leasehold run job -- sh -c '{script}'"));
    shell.see("ready");
    shell.press("\x1a");
    shell.see("Stopped");
    shell.prompt();
    shell.enter("bg");
    shell.prompt();
    // The shell keeps its terminal while the job continues, and when it ends.
    shell.enter("echo he''re");
    shell.see("here");
    shell.prompt();
    // It fails as long as nobody has the fifo open, which a command that is stopped has not.
    eventually(|| {
        let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
        let opened = OpenOptions::new().write(true).custom_flags(nonblocking).open(sandbox.path("go"));
        opened.and_then(|mut fifo| fifo.write_all(b"\n")).map_err(|error| error.to_string())
    });
    shell.see("done");
    shell.enter("wait; echo still he''re");
    shell.see("still here");
}

#[test]
fn stopped_command_sees_a_loss_first_when_it_continues() {
    let sandbox = Sandbox::new();
    let mut shell = Pty::shell(&sandbox);
    let script = "trap \"echo terminated; exit\" TERM; trap \"echo went on\" CONT; echo rea\"\"dy; \
                  until read -r _ <go; do :; done 2>/dev/null";
    shell.enter(&format!("mkfifo go; leasehold run --max-hold 15s job -- sh -c '{script}'"));
    shell.see("ready");
    shell.press("\x1a");
    shell.see("Stopped");
    shell.prompt();
    shell.enter("sleep 16; fg");
    let before = shell.see("terminated");
    assert!(!before.contains("went on"), "{before:?}");
    shell.prompt();
    shell.enter("echo code $?");
    shell.see("code 76");
}

#[test]
fn terminal_wait_line_names_the_holder_and_the_queue_length() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["--note", "ann\u{1b}[2J", "job"]);
    let other = sandbox.start(&["job"], "true");
    sandbox.wait_for_line("job", 1, 1);
    let mut pty = Pty::start(&sandbox, "leasehold", &["run", "job", "--", "echo", "in"]);
    pty.see("waiting for job, 2 ahead; held for ");
    pty.see("by ann\\u{1b}[2J");
    holder.end().expect(0);
    other.end().expect(0);
    let (status, screen) = pty.end();
    assert_eq!(status.code(), Some(0));
    assert!(!screen.contains("\x1b[2J"), "{screen:?}");
    // The line is removed before the command starts.
    assert!(screen.ends_with("\r\x1b[Kin\r\n"), "{screen:?}");
}

#[test]
fn in_the_background_no_line_is_drawn() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["job"]);
    let mut shell = Pty::shell(&sandbox);
    shell.enter("leasehold run job -- true &");
    shell.prompt();
    sandbox.wait_for_line("job", 1, 1);
    shell.enter("sleep 0.5; jobs");
    assert!(!shell.prompt().contains("waiting for"));
    holder.end().expect(0);
}

#[test]
fn break_asks_for_confirmation_and_follows_the_answer() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["--ttl", "1s", "--note", "ann", "job"]);
    let mut shell = Pty::shell(&sandbox);
    for (answer, code) in [("n", 1), ("", 1), ("y", 0)] {
        shell.enter("leasehold break job; echo code $?");
        let question = shell.see("[y/N]");
        assert!(question.contains("ann") && question.contains("fence"), "{question:?}");
        shell.press(&format!("{answer}\r"));
        shell.see(&format!("code {code}"));
        shell.prompt();
    }
    holder.end().expect(76);
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let sandbox = Sandbox::new();
    let (_, coloured) = Pty::start(&sandbox, "leasehold", &["show", "job"]).end();
    assert!(coloured.contains("\x1b[32mfree\x1b[0m"), "{coloured:?}");
    let plain = Sandbox::new().with("NO_COLOR", "1");
    let (_, screen) = Pty::start(&plain, "leasehold", &["show", "job"]).end();
    assert_eq!(screen, "job: free\r\n");
}

#[test]
fn terminal_command_is_in_the_foreground_from_the_start() {
    let sandbox = Sandbox::new();
    let script = "echo $(ps -o tpgid= -p $$) $(ps -o pgid= -p $$) end";
    for _ in 0..5 {
        let mut pty = Pty::start(&sandbox, "leasehold", &["run", "job", "--", "sh", "-c", script]);
        let line = pty.see(" end");
        // On a busy machine the line of a wait is drawn and cleared before it.
        let line = line.rsplit("\u{1b}[K").next().unwrap();
        let groups: Vec<&str> = line.trim_end_matches(" end").split(' ').map(str::trim).collect();
        let is_group = |text: &&str| text.parse::<i32>().is_ok_and(|group| group > 0);
        assert!(groups.len() == 2 && groups.iter().all(is_group), "the screen shows {line:?}");
        assert_eq!(groups[0], groups[1], "{line:?}");
        pty.end();
    }
}

#[test]
fn ctrl_z_without_a_shell_does_not_leave_it_stopped() {
    let sandbox = Sandbox::new();
    // A leader of a session has no shell above it: its group is an orphan, which the kernel does not stop.
    let script = "echo ready; read -r line; echo \"got $line\"";
    let mut pty = Pty::start(&sandbox, "leasehold", &["run", "job", "--", "sh", "-c", script]);
    pty.see("ready");
    pty.press("\x1a");
    pty.see("^Z");
    pty.press("words\r");
    pty.see("got words");
    assert_eq!(pty.end().0.code(), Some(0));
}

#[test]
fn a_pipeline_keeps_the_terminal_that_its_members_use() {
    let sandbox = Sandbox::new();
    let mut shell = Pty::shell(&sandbox);
    // The other member reads from the terminal while the command runs, as a pager does.
    let reader = "read -r line; echo \"came $line\"; read -r key </dev/tty; echo \"got $key\"; echo >go; cat";
    shell.enter(&format!(
        "mkfifo go; leasehold run job -- sh -c 'echo rea''dy; read -r _ <go' | sh -c '{reader}'"
    ));
    shell.see("came ready");
    shell.press("words\r");
    shell.see("got words");
    shell.prompt();
}

#[test]
fn a_command_in_a_pipeline_gets_the_terminal_when_it_wants_it() {
    let sandbox = Sandbox::new();
    let mut shell = Pty::shell(&sandbox);
    shell.enter("leasehold run job -- sh -c 'echo rea\"\"dy; until read -r line; do :; done; echo \"got $line\"' | cat");
    shell.see("ready");
    shell.press("words\r");
    shell.see("got words");
    shell.prompt();
}

#[test]
fn ctrl_c_in_a_pipeline_ends_all_of_it() {
    let sandbox = Sandbox::new();
    let mut shell = Pty::shell(&sandbox);
    shell.enter(
        "leasehold run job -- sh -c 'echo rea\"\"dy; exec sleep 1000' | cat; echo codes ${PIPESTATUS[@]}",
    );
    shell.see("ready");
    shell.press("\x03");
    shell.prompt();
    assert_eq!(sandbox.show("job")["state"], "free");
}

/// The words that start the first process of a container.
const CONTAINER: [&str; 6] = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];

/// Returns `true` if the kernel allows containers; where it allows none, there is nothing to test.
fn has_containers(sandbox: &Sandbox) -> bool {
    let mut probe = std::process::Command::new(CONTAINER[0]);
    sandbox.prepare(&mut probe);
    let is_allowed = probe.args(&CONTAINER[1..]).arg("true").status().unwrap().success();
    if !is_allowed {
        leasehold_testkit::require::skip("unshare", "namespaces of users are not allowed");
    }
    is_allowed
}

#[test]
fn first_process_of_a_container_runs_at_a_terminal_of_a_group_outside() {
    let sandbox = Sandbox::new();
    if !has_containers(&sandbox) {
        return;
    }
    // The group of this process has no id in its namespace.
    let command = ["leasehold", "run", "job", "--", "sh", "-c", "echo in; exit 3"];
    let mut pty = Pty::start(&sandbox, CONTAINER[0], &[&CONTAINER[1..], &command].concat());
    pty.see("in");
    assert_eq!(pty.end().0.code(), Some(3));
}

/// No signal ends the first process of a container by its default.
#[test]
fn ctrl_c_ends_the_first_process_of_a_container_with_130() {
    let sandbox = Sandbox::new();
    if !has_containers(&sandbox) {
        return;
    }
    let runs = ["run", "job", "--", "sh", "-c", "echo ready; exec sleep 1000"];
    for (args, text) in [(&runs[..], "ready"), (&["watch", "job"], "free")] {
        let mut pty = Pty::start_first(&sandbox, &CONTAINER, "leasehold", args);
        pty.see(text);
        pty.press("\x03");
        let (status, screen) = pty.end();
        assert_eq!(status.code(), Some(130), "{args:?}: {status:?} {screen:?}");
    }
    assert_eq!(sandbox.show("job")["state"], "free");
}
