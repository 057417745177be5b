//! Each page shows what it is for.

use std::time::Duration;

use crate::browser::Browser;
use crate::sample::{self, Sample};
use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn overview_shows_what_needs_attention_first() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    let _sample = sample::fill(&site.store, Duration::from_secs(40)).await;
    browser.open(&site.url("/")).await;
    browser.until_text("queue of 12").await;
    let first = "return document.querySelector('tbody a').textContent.startsWith('accounts/')";
    browser.until("the deadlock is first", first).await;
    // The holder hangs, so its lease shortens.
    browser.until_text("lease not renewed").await;
    assert_eq!(browser.log().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_locks_are_searched_and_paged() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    let client = site.client("host=many pid=1").await;
    let mut guards = Vec::new();
    for number in 0..10_000 {
        guards.push(client.mutex(format!("part/{number:05}")).lock().await.unwrap());
    }
    browser.open(&site.url("/locks")).await;
    browser.until("the first page", "return document.querySelectorAll('tbody tr').length == 50").await;
    browser.until_text("1 to 50 of 10\u{202f}000").await;
    browser.click(".pages a[rel=next]").await;
    browser.until_text("part/00050").await;
    browser.type_into("#q", "04711\u{e007}").await;
    browser.until("one lock is found", "return document.querySelectorAll('tbody tr').length == 1").await;
    browser.click("tbody a").await;
    browser.until("its page", "return document.querySelector('h1').textContent == 'part/04711'").await;
    browser.until_text("host=many pid=1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_shows_holder_queue_fence_and_timeline() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    let mut sample = Sample::default();
    let holder = sample.client(&site.store, "host=first").await;
    let guard = holder.mutex("jobs/a b?").lock().await.unwrap();
    let waiter = sample.client(&site.store, "host=second").await;
    sample.wait(&waiter, "jobs/a b?").await;
    browser.open(&site.url("/lock?name=jobs%2Fa%20b%3F")).await;
    browser.until_text("host=second").await;
    let text = browser.text().await;
    for part in
        ["jobs/a b?", "host=first", "1 waiter", "Lease left", "Fence grade", "Timeline of holders", "mutex"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let fence = guard.fence().expect("memory has fences").to_string();
    assert!(text.contains(&fence), "{fence} is missing in\n{text}");
    guard.release().await.unwrap();
    browser
        .until(
            "the next holder is in the timeline",
            "return document.querySelectorAll('.timeline .hold').length == 2",
        )
        .await;
    browser.until_text("Nobody waits").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlock_is_a_picture_and_a_table() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    let mut sample = Sample::default();
    sample.deadlock(&site.store, ["a", "b"], ["host=ann", "host=bob"]).await;
    browser.open(&site.url("/waits")).await;
    browser.until_text("Deadlock of 2").await;
    let lines = browser.run("return document.querySelectorAll('figure > svg.graph > line').length").await;
    assert_eq!(lines, 4, "two waits and two holds");
    let spoken = browser.run("return document.querySelector('svg.graph').getAttribute('aria-label')").await;
    assert!(spoken.as_str().unwrap().contains("host=ann waits for b."), "{spoken}");
    let count = browser.run("return document.querySelector('.nav .count').textContent").await;
    assert_eq!(count, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_shows_findings() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    // A reader without the token examines nothing, however often the page is loaded.
    browser.open(&site.url("/doctor")).await;
    browser.until_text("Not examined yet").await;
    browser.click(".row a.button").await;
    browser.until("the login", "return location.pathname == '/login'").await;
    browser.type_into("#token", &format!("{}\u{e007}", site.token())).await;
    browser.until_text("Examine now").await;
    browser.click(".row button").await;
    browser.until("findings", "return document.querySelectorAll('.findings li').length > 3").await;
    assert!(browser.text().await.contains("round-trip"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_whole_without_script() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    let mut sample = Sample::default();
    let holder = sample.client(&site.store, "host=plain").await;
    sample.hold(&holder, "plain/lock").await;
    // Scripts of the driver run nevertheless.
    browser.script(true).await;
    browser.open(&site.url("/locks")).await;
    let text = browser.text().await;
    assert!(text.contains("plain/lock") && text.contains("host=plain"), "{text}");
    browser.click("tbody a").await;
    browser.until_text("The holder is alive").await;
    assert_eq!(browser.run("return document.documentElement.className").await, "");
    browser.type_into("#find", "plain\u{e007}").await;
    browser.until_text("1 lock found").await;
    assert!(browser.text().await.contains("Reload"));
}

#[tokio::test(flavor = "multi_thread")]
async fn store_out_of_reach_leaves_its_last_picture() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let Some(redis) = leasehold_testkit::RedisServer::start_or_skip().await else { return };
    let site = Site::of_store(&redis.url()).await;
    let holder = site.client("host=before").await;
    let _guard = holder.mutex("kept").ttl(Duration::from_secs(300)).lock().await.unwrap();
    browser.open(&site.url("/locks")).await;
    browser.until_text("host=before").await;
    redis.stop().unwrap();
    browser.until_text("The store is out of reach since").await;
    let text = browser.text().await;
    assert!(text.contains("kept") && text.contains("last known picture"), "{text}");
    browser
        .until(
            "it is greyed",
            "return getComputedStyle(document.querySelector('.panel')).filter.includes('grayscale')",
        )
        .await;
    redis.resume().unwrap();
    browser.until("it recovers", "return !document.body.innerText.includes('out of reach')").await;
}
