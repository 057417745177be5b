//! `doctor`: what it finds, how it says so, and how it ends.

use serde_json::Value;

use crate::support::{Redis, Sandbox};

fn findings(sandbox: &Sandbox, args: &[&str], code: i32) -> Vec<Value> {
    let ended = sandbox.end(&[&["doctor", "--json"], args].concat()).expect(code);
    ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn severity<'a>(findings: &'a [Value], topic: &str) -> &'a str {
    let finding = findings.iter().find(|finding| finding["topic"] == topic);
    finding.unwrap_or_else(|| panic!("no {topic} in {findings:#?}"))["severity"].as_str().unwrap()
}

#[test]
fn doctor_finds_a_file_store_well_and_leaves_it_free() {
    let sandbox = Sandbox::new();
    // A tenth of it is more than a busy disk needs for a round trip.
    let found = findings(&sandbox, &["--ttl", "10m"], 0);
    for topic in ["durability", "fencing", "order", "waiting", "round-trip", "fences"] {
        assert_eq!(severity(&found, topic), "good", "{found:#?}");
    }
    let directory = found.iter().find(|finding| finding["topic"] == "directory").unwrap();
    assert!(
        directory["found"].as_str().unwrap().contains(sandbox.dir.path().to_str().unwrap()),
        "{directory}"
    );
    let shown = sandbox.end(&["doctor", "--ttl", "10m"]).expect(0);
    assert!(
        shown.out.starts_with("file://") && shown.out.contains("  good     fences: they rose from"),
        "{shown:?}"
    );
    assert_eq!(sandbox.show("leasehold-doctor")["state"], "free");
}

#[test]
fn unsupported_ttl_is_reported_with_the_supported_range() {
    let Some(redis) = Redis::start_or_skip() else { return };
    let sandbox = Sandbox::on(&redis.server.url());
    let found = findings(&sandbox, &["--ttl", "2days"], 78);
    assert_eq!(severity(&found, "ttl"), "broken");
    assert_eq!(severity(&found, "fences"), "good", "the store is looked at all the same: {found:#?}");
    // A reader that has seen enough does not change the verdict.
    for args in [&["doctor", "--ttl", "2days"][..], &["doctor", "--json", "--ttl", "2days"]] {
        sandbox.end_unread(args).expect(78);
    }
}

#[test]
fn missing_store_is_an_error_and_not_a_finding() {
    let sandbox = Sandbox::on("redis://127.0.0.1:1");
    let ended = sandbox.end(&["doctor"]).expect(69);
    assert!(ended.out.is_empty() && ended.err.contains("127.0.0.1:1"), "{ended:?}");
}
