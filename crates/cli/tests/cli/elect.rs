//! `elect`: candidates lead one after the other, stop when they lose, and come back.

use rustix::process::Signal;

use crate::support::{Place, Redis, Started, eventually};

fn elect(place: &Place, args: &[&str]) -> Started {
    Started::new(place.leasehold(&[&["elect"], args].concat()))
}

#[test]
fn one_candidate_leads_and_the_next_takes_over() {
    let place = Place::new();
    let first = elect(&place, &["boss", "--value", "ann", "--", "sh", "-c", "echo ann leads; exec sleep 60"]);
    first.line_with("ann leads");
    assert_eq!(place.show("boss")["holders"][0]["note"], "ann");
    let second = elect(&place, &["boss", "--value", "ben", "--", "sh", "-c", "echo ben leads; exit 3"]);
    place.wait_for_line("boss", 1, 1);
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), 143);
    second.line_with("ben leads");
    assert_eq!(second.end().code(), 3, "it ends with its command");
}

#[test]
fn a_leader_who_loses_stops_and_campaigns_again() {
    let place = Place::new();
    let log = place.path("log");
    let script = format!(
        "echo begin >> {0}; trap 'echo end >> {0}; exit 0' TERM; while :; do sleep 0.05; done",
        log.display()
    );
    let hook = format!("echo lost >> {}", log.display());
    let leader = elect(&place, &["boss", "--on-lost", &hook, "--", "sh", "-c", &script]);
    let logged = |count: usize| {
        eventually(|| {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            (text.lines().count() >= count).then_some(text.clone()).ok_or(text)
        })
    };
    logged(1);
    place.end(&["break", "--yes", "boss"]).expect(0);
    assert_eq!(logged(4), "begin\nend\nlost\nbegin\n");
    leader.signal(Signal::INT);
    assert_eq!(leader.end().code(), 130);
    assert_eq!(
        logged(5).lines().filter(|line| *line == "lost").count(),
        2,
        "a leader who resigns leads no more either"
    );
    assert_eq!(place.show("boss")["state"], "free");
}

#[test]
fn hooks_are_run_when_it_is_elected_and_when_it_leads_no_more() {
    let Some(redis) = Redis::start_or_skip() else { return };
    for place in [Place::new(), Place::on(&redis.server.url())] {
        let leader =
            elect(&place, &["boss", "--on-elected", "echo up $LEASEHOLD_FENCE", "--on-lost", "echo down"]);
        let up = leader.line_with("up ");
        assert!(up.trim().len() > "up ".len(), "the fence is told: {up}");
        place.wait_for_line("boss", 1, 0);
        let waiting = elect(&place, &["boss", "--on-elected", "echo up", "--on-lost", "echo down"]);
        place.wait_for_line("boss", 1, 1);
        waiting.signal(Signal::TERM);
        let ended = waiting.end();
        assert_eq!((ended.code(), ended.out.as_str()), (143, ""), "who never led has nothing to undo");
        leader.signal(Signal::TERM);
        let ended = leader.end();
        assert_eq!(ended.code(), 143);
        assert!(ended.out.contains("down"), "{ended:?}");
        assert_eq!(place.show("boss")["state"], "free");
    }
}

#[test]
fn a_hook_that_fails_ends_the_candidacy_with_its_code() {
    let place = Place::new();
    let ended = elect(&place, &["boss", "--on-elected", "exit 7", "--on-lost", "echo down; exit 1"]).end();
    assert_eq!(ended.code(), 7);
    assert!(ended.out.contains("down") && ended.err.contains("--on-lost failed"), "{ended:?}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place = Place::new();
    place.end(&["elect", "boss"]).expect(64);
    place.end(&["elect", "boss", "--on-elected", "true", "--", "true"]).expect(64);
    place.end(&["elect", "boss", "--", "no-such-command-here"]).expect(127);
    place.end(&["elect", "--on", "redis://127.0.0.1:1", "boss", "--", "true"]).expect(69);
}
