//! `ls --deadlocks`: prints an announced deadlock, and nothing without one.

use std::time::Duration;

use leasehold::backend::deadlock::{Announced, Places, Tag};
use leasehold::{Client, Guard, Resource, Share};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Ended, Redis, Sandbox, Started, eventually};

/// Makes a client hold a lock.
async fn holds(locks: &Client, name: &str) -> (Guard, Tag) {
    let guard = locks.mutex(name).lock().await.unwrap();
    let seen = locks.inspect(name).await.unwrap();
    (guard, Tag::of(seen.holders[0].id))
}

/// Announces a wait that never checks for deadlocks and never gives up.
async fn waits(locks: &Client, number: u32, name: &str, share: Share, holds: Tag, note: &str) -> Guard {
    let place = Places::of(locks.profile()).unwrap().names.remove(0);
    let announced = Announced {
        place: place.clone(),
        id: leasehold::backend::ClaimId::from_bytes([0; 16]),
        number: u64::from(number),
        resource: Resource::new(name).unwrap(),
        share,
        asks: None,
        holds: vec![holds],
        note: note.to_owned(),
    };
    locks.rwlock(place.as_str()).note(announced.to_note()).read().await.unwrap()
}

fn cycle_is_listed(sandbox: &Sandbox) {
    // Leases are kept alive between the steps.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let list =
        |args: &[&str], code: i32| sandbox.end(&[&["ls", "--deadlocks"], args].concat()).expect(code).out;
    let locks = runtime.block_on(Client::open(&sandbox.url)).unwrap();
    assert_eq!(list(&[], 0), "");
    let (has_a, a) = runtime.block_on(holds(&locks, "a"));
    let (has_b, b) = runtime.block_on(holds(&locks, "b\u{202e}"));
    let ann = runtime.block_on(waits(&locks, 3, "b\u{202e}", Share::MUTEX, a, "ann"));
    assert_eq!(list(&[], 0), "", "the holder of b does not wait");
    let ben = runtime.block_on(waits(&locks, 4, "a", Share::WRITER, b, "ben\u{7}"));
    let text = "deadlock of 2\n  ben\\u{7}  holds b\\u{202e}  waits for a (writer)\n  ann       holds a          waits for b\\u{202e} (mutex)\n";
    assert_eq!(list(&[], 1), text);
    for args in [&["ls", "--deadlocks"][..], &["ls", "--deadlocks", "--json"]] {
        sandbox.end_unread(args).expect(1);
    }
    let json: Value = serde_json::from_str(&list(&["--json"], 1)).unwrap();
    let first = &json["waits"][0];
    assert_eq!((&first["note"], &first["waits_for"]), (&Value::from("ben\u{7}"), &Value::from("a")));
    assert_eq!((&first["holds"][0], &first["share"]), (&Value::from("b\u{202e}"), &Value::from("writer")));
    // A client that has released its lock blocks no other, even if it still announces a wait.
    runtime.block_on(has_b.release()).unwrap();
    assert_eq!(list(&["--json"], 0), "");
    drop((has_a, ann, ben));
    assert!(runtime.block_on(locks.close(Duration::from_secs(10))));
}

#[test]
fn a_circle_is_listed_on_files_and_on_a_server() {
    cycle_is_listed(&Sandbox::new());
    if let Some(redis) = Redis::start_or_skip() {
        cycle_is_listed(&Sandbox::on(&redis.server.url()));
    }
}

/// Starts a run of `name` that starts a run of `then` once both outer locks are held.
fn start_nested(sandbox: &Sandbox, name: &str, then: &str) -> Started {
    let wait = format!("touch held-{name}; until [ -e held-{then} ]; do sleep 0.01; done");
    sandbox.start(
        &["--note", name, name],
        &format!("{wait}; leasehold run --note in-{name} {then} -- echo has {then}"),
    )
}

fn list(sandbox: &Sandbox) -> Ended {
    sandbox.end(&["ls", "--deadlocks"])
}

fn nested_runs_are_listed(sandbox: &Sandbox) {
    let (one, other) = (start_nested(sandbox, "a", "b"), start_nested(sandbox, "b", "a"));
    eventually(|| match list(sandbox) {
        ended if ended.code() == 1 => Ok(()),
        ended => Err(format!("{ended:?}")),
    });
    // It stays, and both of them say so.
    let stays = list(sandbox).expect(1);
    let lines: std::collections::BTreeSet<&str> = stays.out.lines().collect();
    let expected =
        ["deadlock of 2", "  in-a  holds a  waits for b (mutex)", "  in-b  holds b  waits for a (mutex)"];
    assert_eq!(lines, expected.into(), "{stays:?}");
    for run in [&one, &other] {
        let said = run.complaint_with("wait for each other for ever");
        assert!(said.contains("\"in-a\" holds a and waits for b (mutex)"), "{said}");
    }
    // One of them ends, and the other continues.
    one.signal(Signal::TERM);
    one.end().expect(143);
    other.line_with("has a");
    other.end().expect(0);
    list(sandbox).expect(0);
}

#[test]
fn nested_runs_in_a_circle_are_listed_on_files_and_on_a_server() {
    nested_runs_are_listed(&Sandbox::new());
    if let Some(redis) = Redis::start_or_skip() {
        nested_runs_are_listed(&Sandbox::on(&redis.server.url()));
    }
}

/// Waits until a run announces a wait.
fn wait_until_announced(sandbox: &Sandbox) {
    sandbox.wait_for_line("leasehold!waits", 1, 0);
}

#[test]
fn nested_wait_without_a_circle_is_not_a_deadlock() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold(&["b"]);
    // The holder of `b` waits for nothing; a claim of the variable that is over changes nothing.
    let stale = format!("LEASEHOLD_OWNER=$LEASEHOLD_OWNER,{} leasehold run b -- echo has b", "a".repeat(32));
    let waiter = sandbox.start(&["a"], &stale);
    wait_until_announced(&sandbox);
    assert_eq!(list(&sandbox).expect(0).out, "");
    holder.end().expect(0);
    waiter.line_with("has b");
    let ended = waiter.end().expect(0);
    assert_eq!(ended.err, "");
    sandbox.wait_for_line("leasehold!waits", 0, 0);
}

#[test]
fn one_of_several_nested_waits_that_can_end_is_not_a_deadlock() {
    let sandbox = Sandbox::new();
    let free = sandbox.hold(&["free"]);
    // The holder of `a` has two waits, and that for `free` can end.
    let script = "touch held-a; until [ -e held-b ]; do sleep 0.01; done
        leasehold run b -- echo has b & leasehold run free -- true; kill $!; wait";
    let two = sandbox.start(&["a"], script);
    let other = start_nested(&sandbox, "b", "a");
    sandbox.wait_for_line("leasehold!waits", 3, 0);
    assert_eq!(list(&sandbox).expect(0).out, "");
    free.end().expect(0);
    two.end().expect(0);
    other.line_with("has a");
    other.end().expect(0);
}

#[test]
fn wait_that_may_not_be_announced_continues() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let url = redis.server.url();
    let (all, sandbox) = (Sandbox::on(&url), Sandbox::on(&url.replace("redis://", "redis://jobs:pw@")));
    // All that locks need, for these two names and no others.
    let rights = [
        "ACL",
        "SETUSER",
        "jobs",
        "on",
        ">pw",
        "+@all",
        "&*",
        "resetkeys",
        "~{lh:a}*",
        "~{lh:b}*",
        "~*}:floor",
    ];
    redis.block_on(redis.server.command(&rights)).unwrap();
    let holder = all.hold(&["b"]);
    let waiter = sandbox.with("LEASEHOLD_REDIS_PASSWORD", "pw").start(
        &["a"],
        &format!("LEASEHOLD_URL={} leasehold run b -- echo has b", url.replace("://", "://jobs:pw@")),
    );
    waiter.complaint_with("a wait cannot be announced");
    holder.end().expect(0);
    waiter.line_with("has b");
    waiter.end().expect(0);
}

#[test]
fn a_prefix_and_deadlocks_do_not_go_together() {
    Sandbox::new().end(&["ls", "--deadlocks", "a/"]).expect(64);
}
