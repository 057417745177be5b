//! Commands that run as another user, as under `sudo`: leasehold may neither signal nor end them.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_testkit::require::skip;
use rustix::process::Signal;

use crate::support::{Sandbox, Started, eventually, is_alive, number};

/// Starts a program as root, from a user who is not.
const AS_ROOT: &str = "./as-root --reuid 0 --regid 0 --clear-groups";
/// Runs until its stdin has a line, or is closed.
const WORK: &str = "sh -c 'echo work $$; read -r _; : >over'";

/// A place of a user who is not root and may start programs as root; `None` ends the test as skipped.
fn sandbox_or_skip() -> Option<Sandbox> {
    if !rustix::process::geteuid().is_root() {
        skip("another user", "only root can be another user");
        return None;
    }
    let sandbox = Sandbox::new();
    let helper = sandbox.copy("/usr/bin/setpriv", "as-root");
    std::os::unix::fs::chown(sandbox.dir.path(), Some(USER), Some(USER)).unwrap();
    std::fs::set_permissions(helper, PermissionsExt::from_mode(0o4755)).unwrap();
    let asked = Started::new(as_user(sandbox.sh(&format!("leasehold --version && {AS_ROOT} id -u")))).end();
    if asked.status.code() != Some(0) || !asked.out.ends_with("\n0\n") {
        skip("another user", &format!("a user who is not root cannot run these programs: {asked:?}"));
        return None;
    }
    Some(sandbox)
}

fn as_user(mut command: Command) -> Command {
    command.uid(USER).gid(USER).stdin(Stdio::piped());
    command
}

fn run(sandbox: &Sandbox, args: &[&str], script: &str) -> Started {
    Started::new(as_user(sandbox.leasehold(&[&["run"], args, &["--", "sh", "-c", script]].concat())))
}

fn end(sandbox: &Sandbox, args: &[&str]) -> crate::support::Ended {
    Started::new(as_user(sandbox.leasehold(args))).end()
}

fn wait_for_waiter(sandbox: &Sandbox) {
    eventually(|| {
        let shown = end(sandbox, &["show", "--json", "job"]).expect(0).out;
        let state: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let waits = state["waiting"].as_array().is_some_and(|waiting| waiting.len() == 1);
        if waits { Ok(()) } else { Err(shown) }
    });
}

#[test]
fn lock_of_a_killed_run_stays_while_a_command_of_root_runs() {
    let own_group: &[&str] = &["job"];
    for (args, script) in [
        (own_group, format!("exec {AS_ROOT} {WORK}")),
        (own_group, format!("{AS_ROOT} {WORK}; exit 3")),
        (&["--same-group", "job"], format!("{AS_ROOT} {WORK}; exit 3")),
    ] {
        let Some(sandbox) = sandbox_or_skip() else { return };
        let mut holder = run(&sandbox, args, &script);
        let work = number(&holder.line_with("work"));
        let mut waiter = run(&sandbox, &["job"], "[ -e over ] && echo after || echo beside");
        wait_for_waiter(&sandbox);
        holder.signal(Signal::KILL);
        let began = Instant::now();
        while waiter.is_running() && began.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(is_alive(work));
        holder.type_in("\n");
        assert_eq!(waiter.end().expect(0).out, "after\n", "{args:?} {script}");
    }
}

#[test]
fn command_of_root_that_survives_a_loss_is_reported() {
    let own_group: &[&str] = &["--grace", "100ms", "job"];
    for (args, script) in [
        (own_group, format!("exec {AS_ROOT} {WORK}")),
        (own_group, format!("trap '' TERM; {AS_ROOT} {WORK}; exit 3")),
        (&["--on-lost", "kill", "job"], format!("{AS_ROOT} {WORK}; exit 3")),
        (&["--grace", "100ms", "--same-group", "job"], format!("exec {AS_ROOT} {WORK}")),
    ] {
        let Some(sandbox) = sandbox_or_skip() else { return };
        let mut holder = run(&sandbox, args, &script);
        let work = number(&holder.line_with("work"));
        end(&sandbox, &["break", "--yes", "job"]).expect(0);
        let line = holder.complaint_with(&format!("process {work} runs as another user"));
        assert!(line.contains("job was lost") && line.contains("WITHOUT the lock"), "{line}");
        if args.contains(&"--grace") {
            holder.complaint_with("the grace period is over: process");
        }
        assert!(is_alive(work));
        holder.type_in("\n");
        let ended = holder.end().expect(76);
        assert!(!ended.err.contains("killed") && !ended.err.contains("the command was sent"), "{ended:?}");
    }
}

#[test]
fn signal_that_cannot_be_passed_on_is_reported() {
    let Some(sandbox) = sandbox_or_skip() else { return };
    let mut holder = run(&sandbox, &["job"], &format!("exec {AS_ROOT} {WORK}"));
    let work = number(&holder.line_with("work"));
    holder.signal(Signal::TERM);
    holder.complaint_with(&format!("a signal could not be passed on to process {work}"));
    holder.type_in("\n");
    holder.end().expect(0);
}

/// A user who is not root.
const USER: u32 = 65534;
