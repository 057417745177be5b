//! Names and notes are foreign text: no script in them runs, and none could.

use crate::browser::Browser;
use crate::site::Site;

const SCRIPT: &str =
    "<script>document.title='owned';window.owned=1</script><img src=x onerror=\"window.owned=1\">\"'>";

#[tokio::test(flavor = "multi_thread")]
async fn script_in_a_name_or_a_note_does_not_run() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start_with_actions().await;
    let holder = site.client(SCRIPT).await;
    let _guard = holder.mutex(SCRIPT).lock().await.unwrap();
    let waiter = site.client(SCRIPT).await;
    let waiting = waiter.mutex(SCRIPT);
    let waits = tokio::spawn(async move { waiting.lock().await });
    let name: String = SCRIPT.bytes().map(|byte| format!("%{byte:02X}")).collect();
    for path in ["/", "/locks", "/waits", &format!("/locks?q={name}"), &format!("/lock?name={name}")] {
        browser.open(&site.url(path)).await;
        browser.until_text("<script>document.title").await;
        assert_eq!(
            browser
                .run("return window.owned === undefined && !document.querySelector('main img, main script')")
                .await,
            true,
            "{path}"
        );
    }
    // The same after an update, which moves nodes of another document into the page.
    drop(holder);
    browser.open(&site.url(&format!("/lock?name={name}"))).await;
    let other = site.client("host=other").await;
    let _third = tokio::spawn(async move { other.mutex(SCRIPT).lock().await });
    browser.until_text("2 waiters").await;
    assert_eq!(browser.run("return window.owned === undefined").await, true);
    assert_eq!(browser.log().await, Vec::<String>::new(), "nothing had to be blocked");
    waits.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_stops_what_escaping_would_miss() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    browser.open(&site.url("/")).await;
    // As if markup had got through.
    let caught = |script: &str| format!("try {{ {script}; return 'done' }} catch (e) {{ return e.name }}");
    let handler = caught("document.body.setAttribute('onclick', 'window.owned = 1'); document.body.click()");
    assert_eq!(browser.run(&handler).await, "TypeError", "text becomes no handler");
    let markup = caught("document.body.innerHTML = '<b>x</b>'");
    assert_eq!(browser.run(&markup).await, "TypeError", "text becomes no markup");
    let code = caught("document.createElement('script').textContent = 'window.owned = 1'");
    assert_eq!(browser.run(&code).await, "TypeError", "text becomes no code");
    let style = "let s = document.createElement('div'); s.setAttribute('style', 'position: fixed'); \
        document.body.append(s); return getComputedStyle(s).position";
    assert_eq!(browser.run(style).await, "static", "text becomes no style");
    let elsewhere =
        caught("let r = new XMLHttpRequest(); r.open('GET', 'http://127.0.0.1:1/', false); r.send()");
    assert_eq!(browser.run(&elsewhere).await, "NetworkError");
    assert_eq!(browser.run("return window.owned === undefined").await, true);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_name_has_a_page_of_its_own() {
    let site = Site::start().await;
    let client = site.client("host=odd").await;
    for name in
        ["..", ".", "a/../b", "a//b", "%2e%2e", "käse 漢", "a&b=c#d?e+f", "\u{202e}txt", "\\\\host\\share"]
    {
        let _guard = client.mutex(name).lock().await.unwrap();
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = site.ask("GET", &format!("/lock?name={encoded}"), "", "").await;
        assert!(answer.status == 200 && answer.body.contains("host=odd"), "{name}: {}", answer.body);
        assert!(!answer.body.contains('\u{202e}'), "{name}");
    }
    let answer = site.ask("GET", "/lock?name=%00", "accept: text/html\r\n", "").await;
    assert_eq!(answer.status, 400, "{answer:?}");
}
