//! `ls --deadlocks`: prints an announced deadlock, and nothing without one.

use std::time::Duration;

use leasehold::backend::deadlock::{Announced, Places, Tag};
use leasehold::{Client, Guard, Resource, Share};
use serde_json::Value;

use crate::support::{Redis, Sandbox};

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

#[test]
fn a_prefix_and_deadlocks_do_not_go_together() {
    Sandbox::new().end(&["ls", "--deadlocks", "a/"]).expect(64);
}
