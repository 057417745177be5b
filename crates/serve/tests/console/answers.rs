//! Answers to requests without a browser: headers, assets, errors, streams.

use leasehold_testkit::surroundings::{MANY_FILES, inside};
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn pages_have_a_strict_policy_and_are_not_kept() {
    let site = Site::start().await;
    for path in ["/", "/locks", "/lock?name=a", "/waits", "/login"] {
        let answer = site.ask("GET", path, "accept: text/html\r\n", "").await;
        assert_eq!(answer.status, 200, "{path}");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "cache-control: no-store",
            "nosniff",
        ] {
            assert!(answer.head.contains(part), "{path}: {part} is missing in {}", answer.head);
        }
        assert!(
            !answer.head.contains("unsafe")
                && !answer.body.contains("style=")
                && !answer.body.contains("<script>")
        );
        assert!(!answer.body.contains("http://") && !answer.body.contains("https://"), "{path} names a host");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn assets_are_kept_for_ever_and_only_by_their_hash() {
    let site = Site::start().await;
    let page = site.ask("GET", "/", "", "").await.body;
    let assets: Vec<&str> = page.split('"').filter(|part| part.starts_with("/assets/")).collect();
    assert_eq!(assets.len(), 3, "{assets:?}");
    for path in assets {
        let answer = site.ask("GET", path, "", "").await;
        assert!(answer.status == 200 && answer.head.contains("immutable"), "{path}: {}", answer.head);
    }
    let answer = site.ask("GET", "/assets/console.0000000000000000.css", "", "").await;
    assert!(answer.status == 404 && answer.head.contains("no-store"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_reads_a_refusal_as_a_page_and_a_program_as_an_object() {
    let site = Site::start().await;
    let page = site.ask("GET", "/nothing", "accept: text/html\r\n", "").await;
    assert!(page.status == 404 && page.body.contains("<h1>"), "{page:?}");
    assert!(page.head.contains("content-security-policy"), "{}", page.head);
    let object = site.ask("GET", "/nothing", "", "").await;
    assert!(object.status == 404 && object.body.starts_with('{'), "{object:?}");
}

/// A page changes nothing, however often it is read.
#[tokio::test(flavor = "multi_thread")]
async fn reading_takes_no_lock() {
    let site = Site::start().await;
    let client = site.client("host=looks").await;
    for path in
        ["/", "/locks", "/lock?name=seen", "/waits", "/lock/break?name=seen", "/lock/revoke?name=seen"]
    {
        site.ask("GET", path, "accept: text/html\r\n", "").await;
    }
    assert!(client.list("", None, 10).await.unwrap().is_empty());
}

/// An examination takes a lock, so it is a change: it needs the token, and no look at the page begins one.
#[tokio::test(flavor = "multi_thread")]
async fn store_is_examined_for_readers_with_the_token_only() {
    let site = Site::start().await;
    let client = site.client("host=looks").await;
    let probe = client.mutex("leasehold-doctor").lock().await.unwrap();
    let waiting = async || client.inspect("leasehold-doctor").await.unwrap().waiting.len();
    let cookie = format!("cookie: {}\r\norigin: {}\r\n", site.cookie().await, site.origin);
    for headers in ["", &cookie] {
        let page = site.ask("GET", "/doctor", &format!("accept: text/html\r\n{headers}"), "").await;
        assert!(page.status == 200 && page.body.contains("Not examined yet"), "{page:?}");
    }
    assert_eq!(site.ask("POST", "/doctor", &format!("origin: {}\r\n", site.origin), "").await.status, 401);
    // An examination would wait now.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(waiting().await, 0);
    assert_eq!(site.ask("POST", "/doctor", &cookie, "").await.status, 303);
    while waiting().await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    probe.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_idle_streams_cost_little_and_all_are_notified() {
    // Other tests in this process would need memory, too.
    let test = "answers::thousand_idle_streams_cost_little_and_all_are_notified";
    if inside(test, &["env".to_owned()], MANY_FILES).is_none() {
        return;
    }
    let site = Site::start().await;
    let host = site.origin.trim_start_matches("http://").to_owned();
    // Both ends of a stream are files of this process.
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = if files >= 8_000 { 1_000 } else { 100 };
    let before = resident();
    let mut streams = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(&host).await.unwrap();
        stream.write_all(format!("GET /events HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes()).await.unwrap();
        streams.push(stream);
    }
    for stream in &mut streams {
        read_until(stream, "event: picture").await;
    }
    let each = resident().saturating_sub(before) / count;
    assert!(each < 64, "{each} KiB for each idle stream, both of its ends");
    let client = site.client("host=news").await;
    let _guard = client.mutex("news").lock().await.unwrap();
    for stream in &mut streams {
        read_until(stream, "event: picture").await;
    }
}

async fn read_until(stream: &mut TcpStream, text: &str) {
    let mut seen = String::new();
    let mut part = [0; 512];
    while !seen.contains(text) {
        let read = tokio::time::timeout(std::time::Duration::from_secs(60), stream.read(&mut part)).await;
        let read = read.unwrap_or_else(|_| panic!("no {text} after {seen}")).unwrap();
        assert!(read > 0, "the stream ended after {seen}");
        seen.push_str(&String::from_utf8_lossy(&part[..read]));
    }
}

/// Returns the memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}
