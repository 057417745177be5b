//! Pages follow the store by themselves.

use std::time::Duration;

use crate::browser::Browser;
use crate::site::Site;
use leasehold_testkit::{Proxy, RedisServer, Way, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn page_follows_a_lock_that_changes() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    browser.open(&site.url("/lock?name=live")).await;
    browser.until_text("Nobody holds this lock").await;
    let client = site.client("host=live").await;
    let guard = client.mutex("live").lock().await.unwrap();
    browser.until_text("host=live").await;
    browser
        .until(
            "the change is announced",
            "return document.getElementById('say').textContent.includes('Held by host=live')",
        )
        .await;
    guard.release().await.unwrap();
    browser.until_text("Nobody holds this lock").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn focus_and_open_parts_outlive_an_update() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    let client = site.client("host=a").await;
    let first = client.mutex("m").lock().await.unwrap();
    browser.open(&site.url("/locks")).await;
    browser.until_text("host=a").await;
    browser.run("document.querySelector('tbody a').focus(); window.same = document.activeElement").await;
    let _second = client.mutex("n").lock().await.unwrap();
    let _earlier = client.mutex("b").lock().await.unwrap();
    browser.until("three rows", "return document.querySelectorAll('tbody tr').length == 3").await;
    assert_eq!(
        browser.run("return document.activeElement === window.same && window.same.textContent").await,
        "m"
    );
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_page_stays_as_it_is() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    browser.open(&site.url("/locks")).await;
    browser.until("it is live", "return document.getElementById('state').textContent.includes('Live')").await;
    browser.click("#pause").await;
    browser
        .until("it is paused", "return document.getElementById('state').textContent.includes('Paused')")
        .await;
    let client = site.client("host=late").await;
    let _guard = client.mutex("late").lock().await.unwrap();
    // Another page sees it, so this one would have by now.
    until("another page sees it", async || {
        let answer = site.ask("GET", "/locks", "", "").await;
        answer.status == 200 && answer.body.contains("host=late")
    })
    .await;
    assert!(!browser.text().await.contains("host=late"));
    browser.click("#pause").await;
    browser.until_text("host=late").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn page_says_when_the_console_is_gone() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let mut site = Site::start().await;
    let client = site.client("host=here").await;
    let _guard = client.mutex("here").lock().await.unwrap();
    browser.open(&site.url("/")).await;
    browser.until_text("host=here").await;
    browser.until("it is live", "return document.getElementById('state').textContent.includes('Live')").await;
    site.end();
    browser.until_text("No connection to this console").await;
    assert!(browser.text().await.contains("host=here"), "the last known picture stays");
}

/// A console that is stopped, or whose machine is gone, closes no connection.
#[tokio::test(flavor = "multi_thread")]
async fn page_says_when_the_console_is_silent() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    let client = site.client("host=here").await;
    let _guard = client.mutex("here").lock().await.unwrap();
    let proxy = Proxy::start(site.origin.trim_start_matches("http://").parse().unwrap()).await.unwrap();
    browser.open(&format!("http://{}/", proxy.addr())).await;
    browser.until_text("host=here").await;
    let is_live = "return document.getElementById('state').textContent.includes('Live')";
    browser.until("it is live", is_live).await;
    proxy.hold(Way::ToClient);
    // A minute passes for the page.
    browser.run("const now = performance.now.bind(performance); performance.now = () => now() + 60000").await;
    browser.until_text("No connection to this console").await;
    assert!(browser.text().await.contains("host=here"), "the last known picture stays");
    proxy.heal().unwrap();
    browser.until("it is live again", is_live).await;
    browser.until("the notice is gone", "return document.getElementById('cut').hidden").await;
}

/// A comment would be a sign of life that no script sees. The attempts to ask the store do not count as events.
#[tokio::test(flavor = "multi_thread")]
async fn stream_without_news_has_events_all_the_same() {
    let Some(redis) = RedisServer::start_or_skip().await else { return };
    let site = Site::of_store(&redis.url()).await;
    redis.kill().unwrap();
    let host = site.origin.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).await.unwrap();
    let request = format!("GET /events?name=quiet HTTP/1.1\r\nhost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut seen, mut part) = (String::new(), [0; 1024]);
    while !seen.contains("event: alive\ndata:") {
        let read = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut part)).await;
        let read = read.unwrap_or_else(|_| panic!("no event for a minute after {seen}")).unwrap();
        assert!(read > 0, "the stream has ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&part[..read]));
    }
}
