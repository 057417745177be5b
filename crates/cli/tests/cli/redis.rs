//! What is particular to a store on a network.

use rustix::process::Signal;

use crate::support::{Place, Redis};

#[test]
fn an_interrupted_wait_leaves_nothing_on_the_server() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let place = Place::on(&redis.server.url());
    let holder = place.hold(&["job"]);
    for _ in 0..5 {
        let waiter = place.start(&["job"], "echo never");
        place.wait_for_line("job", 1, 1);
        waiter.signal(Signal::INT);
        waiter.end().expect(130);
        assert_eq!(place.show("job")["waiting"].as_array().unwrap().len(), 0);
    }
    holder.end().expect(0);
    assert_eq!(place.show("job")["state"], "free");
}

#[test]
fn a_release_that_the_server_does_not_answer_is_told_and_the_code_stays_the_commands() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let place = Place::on(&redis.server.url());
    let holder = place.hold(&["--ttl", "1m", "job"]);
    redis.server.stop().unwrap();
    holder.end().expect(0).says("did not confirm");
    redis.server.resume().unwrap();
}

#[test]
fn many_locks_are_listed_page_by_page() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let url = redis.server.url();
    let names =
        |out: &str| out.lines().map(|line| line.split("  ").next().unwrap().to_owned()).collect::<Vec<_>>();
    let held = redis.block_on(async {
        let locks = leasehold::Leasehold::open(&url).await.unwrap();
        let mut guards = Vec::new();
        for number in 0..1203 {
            guards.push(locks.mutex(&format!("page/{number:04}")).lock().await.unwrap());
        }
        guards.push(locks.mutex("other").lock().await.unwrap());
        (locks, guards)
    });
    let place = Place::on(&url);
    let listed = place.end(&["ls", "page/"]).expect(0).out;
    let expected: Vec<_> = (0..1203).map(|number| format!("page/{number:04}")).collect();
    assert_eq!(names(&listed), expected);
    assert_eq!(place.end(&["ls", "--json"]).expect(0).out.lines().count(), 1204);
    // A reader that has seen enough is no error.
    let mut head = place.sh("leasehold ls --json | head -n 1; leasehold ls | head -n 1");
    head.stdin(std::process::Stdio::null());
    let ended = crate::support::Started::new(head).end().expect(0);
    assert_eq!(ended.err, "");
    drop(held);
}
