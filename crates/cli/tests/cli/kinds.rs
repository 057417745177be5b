//! Exclusive, shared and counted locks; how long they are held, and the note.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{LIMIT, Place};

#[test]
fn readers_hold_together_and_exclude_who_is_none() {
    let place = Place::new();
    let reader = place.hold(&["--shared", "job"]);
    place.run(&["--shared", "--no-wait", "job"], "true").expect(0);
    place.run(&["--no-wait", "job"], "true").expect(75);
    reader.end().expect(0);
    let writer = place.hold(&["job"]);
    place.run(&["--shared", "--no-wait", "job"], "true").expect(75);
    writer.end().expect(0);
}

#[test]
fn so_many_permits_let_so_many_in() {
    let place = Place::new();
    let holders = [place.hold(&["--permits", "2", "job"]), place.hold(&["--permits", "2", "job"])];
    place.run(&["--permits", "2", "--no-wait", "job"], "true").expect(75).says("and one other");
    assert_eq!(place.show("job")["holders"][0]["share"], "1/2");
    for holder in holders {
        holder.end().expect(0);
    }
    place.run(&["--permits", "2", "--no-wait", "job"], "true").expect(0);
}

#[test]
fn the_note_is_what_others_see() {
    let place = Place::new().with("USER", "ada");
    let holder = place.hold(&["--note", "release 1.4 → production", "a"]);
    assert_eq!(place.show("a")["holders"][0]["note"], "release 1.4 → production");
    let other = place.hold(&["b"]);
    let note = place.show("b")["holders"][0]["note"].as_str().unwrap().to_owned();
    for part in ["host=", "user=ada", &format!("pid={}", other.pid().as_raw_nonzero()), "cmd=sh"] {
        assert!(note.contains(part), "{note}");
    }
    assert!(!note.contains("LEASEHOLD_FENCE"), "the arguments of the command stay here: {note}");
    drop((holder, other));
}

#[test]
fn at_least_holds_the_lock_after_the_command_has_ended() {
    let place = Place::new();
    let began = Instant::now();
    let holder = place.start(&["--min-hold", "1500ms", "job"], "echo over; exit 4");
    holder.line_with("over");
    // The command has ended, or will within moments; in both cases the lock is taken.
    let next = place.run(&["--wait", "1m", "job"], "true");
    assert!(began.elapsed() >= Duration::from_millis(1500), "{next:?}");
    holder.end().expect(4);
    next.expect(0);
}

#[test]
fn a_signal_ends_the_rest_of_at_least() {
    let place = Place::new();
    let holder = place.start(&["--min-hold", "1h", "job"], "echo $$");
    crate::support::wait_until_gone(crate::support::number(&holder.line_with("")));
    assert_eq!(place.show("job")["state"], "held");
    holder.signal(Signal::TERM);
    let ended = holder.end().expect(143);
    assert!(ended.took < LIMIT);
    assert_eq!(place.show("job")["state"], "free");
}
