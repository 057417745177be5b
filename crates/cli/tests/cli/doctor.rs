//! `doctor`: what it finds, how it says so, and how it ends.

use serde_json::Value;

use crate::support::{Place, Redis};

fn findings(place: &Place, args: &[&str], code: i32) -> Vec<Value> {
    let ended = place.end(&[&["doctor", "--json"], args].concat()).expect(code);
    ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn severity<'a>(findings: &'a [Value], topic: &str) -> &'a str {
    let finding = findings.iter().find(|finding| finding["topic"] == topic);
    finding.unwrap_or_else(|| panic!("no {topic} in {findings:#?}"))["severity"].as_str().unwrap()
}

#[test]
fn a_file_store_is_found_well_and_left_free() {
    let place = Place::new();
    let found = findings(&place, &[], 0);
    for topic in ["durability", "fencing", "order", "waiting", "round-trip", "fences"] {
        assert_eq!(severity(&found, topic), "good", "{found:#?}");
    }
    let directory = found.iter().find(|finding| finding["topic"] == "directory").unwrap();
    assert!(directory["found"].as_str().unwrap().contains(place.dir.path().to_str().unwrap()), "{directory}");
    let shown = place.end(&["doctor"]).expect(0);
    assert!(
        shown.out.starts_with("file://") && shown.out.contains("  good     fences: they rose from"),
        "{shown:?}"
    );
    assert_eq!(place.show("leasehold-doctor")["state"], "free");
}

#[test]
fn a_ttl_that_a_store_does_not_take_is_told_with_what_it_takes() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let place = Place::on(&redis.server.url());
    let found = findings(&place, &["--ttl", "2days"], 78);
    assert_eq!(severity(&found, "ttl"), "broken");
    assert_eq!(severity(&found, "fences"), "good", "the store is looked at all the same: {found:#?}");
}

#[test]
fn a_store_that_is_not_there_is_no_finding_but_an_error() {
    let place = Place::on("redis://127.0.0.1:1");
    let ended = place.end(&["doctor"]).expect(69);
    assert!(ended.out.is_empty() && ended.err.contains("127.0.0.1:1"), "{ended:?}");
}
