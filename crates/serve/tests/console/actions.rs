//! Operators revoke and break locks, after a page has said what will happen, and only with the token.

use leasehold::Guard;

use crate::browser::Browser;
use crate::site::Site;

const NO_REASON: &str = "no reason given";

async fn held(site: &Site) -> Guard {
    let client = site.client("host=stuck pid=7").await;
    client.mutex("stuck/lock").lock().await.unwrap()
}

async fn sign_in(browser: &Browser, site: &Site) {
    browser.until("the login", "return location.pathname == '/login'").await;
    browser.type_into("#token", &format!("{}\u{e007}", site.token())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_is_broken_after_a_confirmation() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start_with_actions().await;
    let guard = held(&site).await;
    browser.open(&site.url("/lock?name=stuck%2Flock")).await;
    browser.until_text("Take it away…").await;
    browser.click("a.hurts").await;
    sign_in(&browser, &site).await;
    // The page says who holds it, since when, and what the holder will see; nothing has happened yet.
    browser.until_text("What will happen").await;
    let text = browser.text().await;
    for part in ["host=stuck pid=7", "UTC", "at its next renewal", "nobody waits", "hands over"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(guard.check().is_ok());
    browser.click("button.hurts").await;
    browser.until_text("1 claim of stuck/lock ended").await;
    let cause = tokio::time::timeout(std::time::Duration::from_secs(60), guard.lost()).await;
    assert!(cause.is_ok(), "the holder sees it");
}

#[tokio::test(flavor = "multi_thread")]
async fn holder_that_came_later_keeps_the_lock() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start_with_actions().await;
    let guard = held(&site).await;
    browser.open(&site.url("/lock/break?name=stuck%2Flock")).await;
    sign_in(&browser, &site).await;
    browser.until_text("What will happen").await;
    guard.release().await.unwrap();
    let later = held(&site).await;
    browser.click("button.hurts").await;
    browser.until_text("Nothing was taken away").await;
    let client = site.client("host=looks").await;
    assert_eq!(client.inspect("stuck/lock").await.unwrap().holders[0].fence, later.fence());
}

#[tokio::test(flavor = "multi_thread")]
async fn holder_that_listens_sees_the_reason_of_a_revocation() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start_with_actions().await;
    let guard = held(&site).await;
    let seen = tokio::spawn(async move { guard.revoked().await.map(|request| request.reason) });
    browser.open(&site.url("/lock/revoke?name=stuck%2Flock")).await;
    sign_in(&browser, &site).await;
    browser.until_text("The reason, which the holder sees").await;
    browser.run("document.getElementById('reason').value = ''").await;
    browser.type_into("#reason", "<b>maintenance</b>\u{e007}").await;
    browser.until_text("1 holder of stuck/lock asked").await;
    assert_eq!(seen.await.unwrap().unwrap(), "<b>maintenance</b>");
}

#[tokio::test(flavor = "multi_thread")]
async fn reason_that_fills_the_form_fits_and_an_empty_one_is_replaced() {
    let site = Site::start_with_actions().await;
    let headers =
        format!("origin: {}\r\ncookie: {}\r\naccept: text/html\r\n", site.origin, site.cookie().await);
    let path = "/lock/revoke?name=stuck%2Flock";
    let form = format!("{headers}content-type: application/x-www-form-urlencoded\r\n");
    for (reason, seen) in
        [("%F0%9F%94%92".repeat(64), "\u{1f512}".repeat(64)), ("+".to_owned(), NO_REASON.to_owned())]
    {
        let guard = held(&site).await;
        let page = site.ask("GET", path, &headers, "").await.body;
        assert!(page.contains("64 characters of any kind"), "{page}");
        let body = format!("reason={reason}&claim={}", guard_tag(&page));
        let answer = site.ask("POST", path, &form, &body).await;
        assert!(answer.body.contains("1 holder"), "{answer:?}");
        assert_eq!(guard.revoked().await.unwrap().reason, seen);
        guard.release().await.unwrap();
    }
}

/// The form of the page names the claims that it shows, and a request is for these alone.
#[tokio::test(flavor = "multi_thread")]
async fn holder_that_came_later_is_not_asked_to_release() {
    let site = Site::start_with_actions().await;
    let guard = held(&site).await;
    let headers =
        format!("origin: {}\r\ncookie: {}\r\naccept: text/html\r\n", site.origin, site.cookie().await);
    let path = "/lock/revoke?name=stuck%2Flock";
    let page = site.ask("GET", path, &headers, "").await.body;
    let fields = page.split("name=\"claim\" value=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let fields: String = fields.map(|tag| format!("&claim={tag}")).collect();
    let form = format!("{headers}content-type: application/x-www-form-urlencoded\r\n");
    let ask = async || site.ask("POST", path, &form, &format!("reason=maintenance{fields}")).await.body;
    guard.release().await.unwrap();
    let later = held(&site).await;
    let answer = ask().await;
    assert!(answer.contains("Nobody was asked"), "{answer}");
    let seen = tokio::time::timeout(std::time::Duration::from_millis(500), later.revoked()).await;
    assert!(seen.is_err(), "{seen:?}");
    assert_eq!(fields, format!("&claim={}", guard_tag(&page)));
}

/// The form of a page has all claims that the page shows, however many they are.
#[tokio::test(flavor = "multi_thread")]
async fn holders_of_a_lock_that_many_hold_are_asked_and_ended() {
    let site = Site::start_with_actions().await;
    let client = site.client("host=many").await;
    let mut guards = Vec::new();
    for _ in 0..600 {
        guards.push(client.semaphore("many", 600).acquire().await.unwrap());
    }
    let headers =
        format!("origin: {}\r\ncookie: {}\r\naccept: text/html\r\n", site.origin, site.cookie().await);
    let form = format!("{headers}content-type: application/x-www-form-urlencoded\r\n");
    for (action, done) in [("revoke", "600 holders of many asked"), ("break", "600 claims of many ended")] {
        let path = format!("/lock/{action}?name=many");
        let page = site.ask("GET", &path, &headers, "").await.body;
        let tags = page.split("name=\"claim\" value=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let fields: String = tags.map(|tag| format!("&claim={tag}")).collect();
        let answer = site.ask("POST", &path, &form, &format!("reason=maintenance{fields}")).await;
        let text = answer.body.replace("<strong>", "");
        assert!(answer.status == 200 && text.contains(done), "{action}: {} {}", answer.status, answer.head);
    }
    // Other bodies are as short as before.
    let body = format!("token={}", "x".repeat(16 * 1024));
    assert_eq!(site.ask("POST", "/login", &form, &body).await.status, 413);
}

/// Returns the tag that a page shows to people.
fn guard_tag(page: &str) -> &str {
    page.split("tag <code>").nth(1).and_then(|rest| rest.split('<').next()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn console_without_actions_offers_none() {
    let site = Site::start().await;
    let guard = held(&site).await;
    let page = site.ask("GET", "/lock?name=stuck%2Flock", "", "").await.body;
    assert!(!page.contains("/lock/break") && page.contains("leasehold break stuck/lock"), "{page}");
    let cookie = site.cookie().await;
    let origin = format!("origin: {}\r\ncookie: {cookie}\r\naccept: text/html\r\n", site.origin);
    let headers = format!("{origin}content-type: application/x-www-form-urlencoded\r\n");
    let tag = guard.tag();
    for (method, path, body) in [
        ("GET", "/lock/break?name=stuck%2Flock", String::new()),
        ("POST", "/lock/break?name=stuck%2Flock", format!("claim={tag}")),
        ("POST", "/lock/revoke?name=stuck%2Flock", "reason=x".to_owned()),
    ] {
        let answer = site.ask(method, path, &headers, &body).await;
        assert_eq!(answer.status, 403, "{method} {path}: {answer:?}");
        assert!(answer.body.contains("--allow-actions"), "{answer:?}");
    }
    assert!(guard.check().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn change_without_token_or_from_another_site_is_refused() {
    let site = Site::start_with_actions().await;
    let guard = held(&site).await;
    let cookie = site.cookie().await;
    let form = "content-type: application/x-www-form-urlencoded\r\naccept: text/html\r\n";
    let (own, tag) = (&site.origin, guard.tag());
    for (headers, status) in [
        (format!("{form}origin: {own}\r\n"), 401),
        (format!("{form}origin: {own}\r\ncookie: leasehold-token=9999999999.0000\r\n"), 401),
        (format!("{form}origin: {own}\r\ncookie: leasehold-token={}\r\n", site.token()), 401),
        (format!("{form}origin: http://evil.example\r\ncookie: {cookie}\r\n"), 403),
        (format!("{form}origin: null\r\ncookie: {cookie}\r\n"), 403),
        (format!("{form}cookie: {cookie}\r\n"), 403),
        (format!("{form}origin: {own}\r\nsec-fetch-site: cross-site\r\ncookie: {cookie}\r\n"), 403),
    ] {
        for path in ["/lock/break?name=stuck%2Flock", "/lock/revoke?name=stuck%2Flock", "/doctor"] {
            let answer = site.ask("POST", path, &headers, &format!("claim={tag}&reason=x")).await;
            assert_eq!(answer.status, status, "{path} with {headers}: {answer:?}");
        }
    }
    assert!(guard.check().is_ok());
    let headers = format!("{form}origin: {own}\r\ncookie: {cookie}\r\n");
    let answer = site.ask("POST", "/lock/break?name=stuck%2Flock", &headers, &format!("claim={tag}")).await;
    assert!(answer.status == 200 && answer.body.contains("1 claim"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_token_is_said_and_link_back_stays_here() {
    let site = Site::start_with_actions().await;
    let headers = format!("origin: {}\r\ncontent-type: application/x-www-form-urlencoded\r\n", site.origin);
    let answer = site.ask("POST", "/login", &headers, "token=wrong&back=%2F").await;
    assert!(
        answer.status == 401
            && answer.body.contains("This is not the token")
            && !answer.head.contains("set-cookie")
    );
    let body = format!("token={}&back=%2F%2Fevil.example", site.token());
    let answer = site.ask("POST", "/login", &headers, &body).await;
    assert!(answer.head.contains("location: /\r\n"), "{}", answer.head);
}
