//! The console for other machines, in a browser: over TLS, and without it.

use leasehold_serve::TlsFiles;
use leasehold_testkit::{Certificates, Directory};

use crate::browser::Browser;
use crate::site::Site;

/// Opens the console as a reader of another machine does: nothing is shown before the login, and everything after it.
async fn used(browser: &Browser, site: &Site, is_tls: bool) {
    let client = site.client("host=holder").await;
    let guard = client.mutex("public/lock").lock().await.unwrap();
    for path in ["/", "/locks", "/lock?name=public%2Flock", "/waits", "/doctor"] {
        browser.open(&site.url(path)).await;
        browser.until("the login", "return location.pathname == '/login'").await;
        assert!(!browser.text().await.contains("host=holder"), "{path}");
    }
    browser.open(&site.url("/lock?name=public%2Flock")).await;
    browser.type_into("#token", &format!("{}\u{e007}", site.token())).await;
    browser.until_text("host=holder").await;
    browser.until("it is live", "return document.getElementById('state').textContent.includes('Live')").await;
    let cookies = browser.cookies().await;
    let cookie = cookies.iter().find(|cookie| cookie["name"] == "leasehold-token").unwrap();
    assert_eq!((&cookie["secure"], &cookie["httpOnly"]), (&is_tls.into(), &true.into()), "{cookie}");
    assert_eq!(cookie["sameSite"], "Strict");
    assert_eq!(browser.run("return document.cookie.includes('leasehold-token')").await, false);
    // It follows the store, and it acts.
    let other = site.client("host=waiter").await;
    let waiting = tokio::spawn(async move { other.mutex("public/lock").lock().await });
    browser.until_text("host=waiter").await;
    browser.click("a.hurts").await;
    browser.until_text("What will happen").await;
    browser.click("button.hurts").await;
    browser.until_text("1 claim of public/lock ended").await;
    assert!(waiting.await.unwrap().is_ok());
    drop(guard);
    // A program of the page gets no further than its own paths.
    let script = "let r = new XMLHttpRequest(); r.open('GET', '/v1/locks', false); r.send(); return r.status";
    assert_eq!(browser.run(script).await, 401, "the cookie opens the console alone");
    browser.open(&site.url("/locks")).await;
    browser.click("footer button.link").await;
    browser.until("the login", "return location.pathname == '/login'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_over_tls_is_read_after_a_login() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let directory = Directory::create("console-tls").unwrap();
    let made = Certificates::create(&directory).unwrap();
    let files = TlsFiles { cert: made.server().certificate.clone(), key: made.server().key.clone() };
    let site = Site::start_off_loopback(Some(files)).await;
    assert!(site.origin.starts_with("https://127.0.0.1:"), "{}", site.origin);
    used(&browser, &site, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn console_off_loopback_without_tls_needs_the_login_too() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start_off_loopback(None).await;
    assert!(site.origin.starts_with("http://127.0.0.1:"), "{}", site.origin);
    used(&browser, &site, false).await;
}
