//! Numbers, and the dashboard that shows them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Served, id, until};

#[tokio::test(flavor = "multi_thread")]
async fn numbers_of_locks_and_of_the_server_are_shown() {
    let served = Served::start().await;
    let one = id();
    served.lock(&one, "a").await;
    served.put(&id(), "150ms", json!({ "name": "a" })).await.is_problem(423, "busy");
    served.release(&one).await.ok();
    let reply = served.plain("GET", "/metrics").send().await;
    assert!(reply.head.contains("text/plain; version=0.0.4"), "{}", reply.head);
    for line in [
        "leasehold_acquire_seconds_bucket{outcome=\"granted\",le=\"",
        "leasehold_hold_seconds_count{end=\"released\"}",
        "leasehold_serve_requests_total{status=\"423\"}",
        "# TYPE leasehold_acquire_seconds histogram",
        "# TYPE leasehold_leases gauge",
        "leasehold_serve_holds ",
    ] {
        assert!(reply.body.contains(line), "{line}: {}", reply.body);
    }
}

/// The store sees a release, so the library does not count it; to the client its lock is lost.
#[tokio::test(flavor = "multi_thread")]
async fn lock_that_is_lost_without_a_heartbeat_is_counted_as_a_loss() {
    let served = Served::without_expiry().await;
    let one = id();
    served.put(&one, "0", json!({ "name": "a", "ttl": "700ms" })).await.ok();
    until("the loss", async || served.request("GET", &format!("/v1/holds/{one}")).send().await.status == 410)
        .await;
    let line = "leasehold_serve_lost_total{cause=\"heartbeat-missed\"} ";
    until("the count", async || served.plain("GET", "/metrics").send().await.body.contains(line)).await;
}

#[test]
fn dashboard_shows_documented_numbers_only() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let documented: BTreeSet<String> =
        names(&(read("book/src/observability.md") + &read("book/src/serve.md")));
    let dashboard: Value = serde_json::from_str(&read("grafana/leasehold.json")).unwrap();
    let mut shown = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            shown.extend(names(target["expr"].as_str().unwrap()));
        }
    }
    assert!(shown.len() >= 8, "{shown:?}");
    for name in &shown {
        let base =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(documented.contains(base), "{name} is not documented");
    }
}

/// Returns the names of numbers in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|one: char| !one.is_ascii_alphanumeric() && one != '_');
    words.filter(|word| word.starts_with("leasehold_")).map(str::to_owned).collect()
}
