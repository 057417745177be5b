//! Elections: the leader, what it proclaims, and what observers see.

use std::sync::Arc;

use leasehold::Client;
use leasehold::layer::{Fault, Mode, Verb};
use serde_json::json;

use crate::support::{LIMIT, Served, id, memory_without_expiry, until};

#[tokio::test(flavor = "multi_thread")]
async fn one_candidate_leads_and_observers_see_its_value() {
    let served = Served::start().await;
    let mut watch = served.plain("GET", "/v1/elections/scheduler/watch").open().await;
    assert!(watch.event().await.unwrap()["leader"].is_null());
    let (one, two) = (id(), id());
    let body = |value: &str| json!({ "name": "scheduler", "mode": "leader", "value": value });
    let leads = served.put(&one, "0", body("10.0.0.7:80")).await.ok();
    assert_eq!(watch.event().await.unwrap()["leader"]["value"], "10.0.0.7:80");
    served.put(&two, "0", body("10.0.0.8:80")).await.is_problem(423, "busy");
    let shown = served.plain("GET", "/v1/elections/scheduler").send().await.ok();
    assert_eq!(
        (&shown["leader"]["value"], &shown["leader"]["fence"]),
        (&json!("10.0.0.7:80"), &leads["fence"])
    );
    let value =
        served.request("PUT", &format!("/v1/holds/{one}/value")).body(&json!({ "value": "10.0.0.7:81" }));
    value.send().await.ok();
    assert_eq!(watch.event().await.unwrap()["leader"]["value"], "10.0.0.7:81");
    served.release(&one).await.ok();
    served.put(&two, "60s", body("10.0.0.8:80")).await.ok();
    until("the successor", async || {
        watch.event().await.is_some_and(|event| event["leader"]["value"] == "10.0.0.8:80")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn value_of_a_mutex_is_refused() {
    let served = Served::start().await;
    let one = id();
    served.lock(&one, "a").await;
    let value = served.request("PUT", &format!("/v1/holds/{one}/value")).body(&json!({ "value": "x" }));
    value.send().await.is_problem(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn load_balancer_finds_the_leader_only() {
    let served = Served::start().await;
    let check = async |path: &str| served.plain("GET", path).send().await;
    assert_eq!(check("/leader/proxy").await.status, 503);
    let body = json!({ "name": "proxy", "mode": "leader", "value": "a:1" });
    let one = id();
    served.put(&one, "0", body).await.ok();
    let any = check("/leader/proxy").await;
    assert_eq!((any.status, any.body.as_str()), (200, "a:1\n"));
    assert_eq!(check("/leader/proxy?value=a:1").await.status, 200);
    let other = check("/leader/proxy?value=b:1").await;
    assert_eq!((other.status, other.body.as_str()), (503, "a:1\n"));
    served.release(&one).await.ok();
    until("the end", async || check("/leader/proxy").await.status == 503).await;
}

/// A store that is slow to show a value does not delay the signs of life of a stream, which keep the lock.
#[tokio::test(flavor = "multi_thread")]
async fn slow_value_does_not_end_a_leader_that_has_only_a_stream() {
    // The lease itself is never in doubt, nor late.
    let (memory, clock) = memory_without_expiry();
    let fault = Arc::new(Fault::over(memory.clone()));
    let open = || Client::builder().clock(clock.clone());
    let client = open().over(fault.clone()).unwrap();
    let served = Served::between(client, open().over(memory).unwrap(), |_| {}).await;
    let one = id();
    let body = json!({ "name": "proxy", "mode": "leader", "value": "a:1", "ttl": "5s" });
    let mut stream = served.stream(&one, "0", body).await;
    stream.until("granted").await;
    fault.set(Verb::Contend, Mode::Hang);
    let value = served.request("PUT", &format!("/v1/holds/{one}/value")).body(&json!({ "value": "a:2" }));
    let mut shown = std::pin::pin!(value.send());
    let mut signs = 0;
    let showing = async {
        loop {
            tokio::select! {
                reply = &mut shown => break reply,
                event = stream.event() => {
                    assert_eq!(event.expect("it is held")["event"], "valid");
                    signs += 1;
                    fault.set(Verb::Contend, Mode::Pass);
                }
            }
        }
    };
    let reply = tokio::time::timeout(LIMIT, showing).await.expect("the value is shown");
    assert!(signs > 0, "no sign of life before {reply:?}");
    reply.ok();
    for _ in 0..4 {
        assert_eq!(stream.event().await.expect("it is held")["event"], "valid");
    }
    assert_eq!(served.plain("GET", "/leader/proxy").send().await.body, "a:2\n");
}
