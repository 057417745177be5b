//! Exclusive, shared and counted locks; how long they are held, and the note.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{LIMIT, Sandbox};

#[test]
fn readers_hold_together_and_exclude_writers() {
    let sandbox = Sandbox::new();
    let reader = sandbox.hold(&["--shared", "job"]);
    sandbox.run(&["--shared", "--no-wait", "job"], "true").expect(0);
    sandbox.run(&["--no-wait", "job"], "true").expect(75);
    reader.end().expect(0);
    let writer = sandbox.hold(&["job"]);
    sandbox.run(&["--shared", "--no-wait", "job"], "true").expect(75);
    writer.end().expect(0);
}

#[test]
fn so_many_permits_let_so_many_in() {
    let sandbox = Sandbox::new();
    let holders = [sandbox.hold(&["--permits", "2", "job"]), sandbox.hold(&["--permits", "2", "job"])];
    sandbox.run(&["--permits", "2", "--no-wait", "job"], "true").expect(75).says("and one other");
    assert_eq!(sandbox.show("job")["holders"][0]["share"], "1/2");
    for holder in holders {
        holder.end().expect(0);
    }
    sandbox.run(&["--permits", "2", "--no-wait", "job"], "true").expect(0);
}

#[test]
fn the_note_is_what_others_see() {
    let sandbox = Sandbox::new().with("USER", "ada");
    let holder = sandbox.hold(&["--note", "release 1.4 → production", "a"]);
    assert_eq!(sandbox.show("a")["holders"][0]["note"], "release 1.4 → production");
    let other = sandbox.hold(&["b"]);
    let note = sandbox.show("b")["holders"][0]["note"].as_str().unwrap().to_owned();
    for part in ["host=", "user=ada", &format!("pid={}", other.pid().as_raw_nonzero()), "cmd=sh"] {
        assert!(note.contains(part), "{note}");
    }
    assert!(!note.contains("LEASEHOLD_FENCE"), "the arguments of the command stay here: {note}");
    drop((holder, other));
}

#[test]
fn at_least_holds_the_lock_after_the_command_has_ended() {
    let sandbox = Sandbox::new();
    let began = Instant::now();
    let holder = sandbox.start(&["--min-hold", "1500ms", "job"], "echo over; exit 4");
    holder.line_with("over");
    // The command has ended, or will within moments; in both cases the lock is taken.
    let next = sandbox.run(&["--wait", "1m", "job"], "true");
    assert!(began.elapsed() >= Duration::from_millis(1500), "{next:?}");
    holder.end().expect(4);
    next.expect(0);
}

#[test]
fn signal_ends_the_minimum_hold() {
    let sandbox = Sandbox::new();
    let holder = sandbox.start(&["--min-hold", "1h", "job"], "echo $$");
    crate::support::wait_until_gone(crate::support::number(&holder.line_with("")));
    assert_eq!(sandbox.show("job")["state"], "held");
    holder.signal(Signal::TERM);
    let ended = holder.end().expect(143);
    assert!(ended.took < LIMIT);
    assert_eq!(sandbox.show("job")["state"], "free");
}

/// The kill was meant for the command alone.
#[test]
fn command_that_is_killed_does_not_end_the_minimum_hold() {
    let sandbox = Sandbox::new();
    let holder = sandbox.start(&["--min-hold", "1h", "job"], "echo $$; kill -9 $$");
    crate::support::wait_until_gone(crate::support::number(&holder.line_with("")));
    assert_eq!(sandbox.show("job")["state"], "held");
    holder.signal(Signal::TERM);
    holder.end().expect(143);
    assert_eq!(sandbox.show("job")["state"], "free");
}
