//! Themes, phones, keyboards and screen readers.

use std::time::Duration;

use crate::browser::{Browser, PHONE};
use crate::sample;
use crate::site::Site;

const BACKGROUND: &str = "return getComputedStyle(document.body).backgroundColor";

#[tokio::test(flavor = "multi_thread")]
async fn colours_follow_the_system_and_the_switch() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    browser.prefer("light").await;
    browser.open(&site.url("/locks?show=held")).await;
    let light = browser.run(BACKGROUND).await;
    browser.prefer("dark").await;
    let dark = browser.run(BACKGROUND).await;
    assert_ne!(light, dark);
    browser.click(".theme li:nth-child(2) a, .theme a:nth-of-type(2)").await;
    // Until the page is replaced, the address is the same, and the colour is the other one.
    let is_light = format!("{BACKGROUND} == {light}");
    browser.until("the switch counts more than the system", &is_light).await;
    assert_eq!(browser.run("return location.search").await, "?show=held", "the same page");
    browser.open(&site.url("/waits")).await;
    assert_eq!(browser.run(BACKGROUND).await, light, "it is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_scrolls_sideways_on_a_phone() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start_with_actions().await;
    let mut sample = sample::fill(&site.store, Duration::from_secs(300)).await;
    let long = format!("{}/{}", "long-name-without-a-break".repeat(8), "x".repeat(120));
    let client = sample.client(&site.store, &"note-without-a-break".repeat(40)).await;
    sample.hold(&client, &long).await;
    site.examine().await;
    browser.size(PHONE).await;
    for path in [
        "/",
        "/locks",
        "/waits",
        "/doctor",
        "/login",
        "/lock?name=accounts%2F1007",
        &format!("/lock?name={long}"),
    ] {
        browser.open(&site.url(path)).await;
        browser.until("it is there", "return document.querySelector('main') !== null").await;
        let wide = browser.run("return document.documentElement.scrollWidth").await;
        assert!(wide.as_u64().unwrap() <= 390, "{path} is {wide} wide");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keyboard_alone_reaches_a_lock() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start().await;
    let client = site.client("host=keys").await;
    let _guard = client.mutex("keys").lock().await.unwrap();
    browser.open(&site.url("/locks")).await;
    browser.until_text("host=keys").await;
    browser.press("\u{e004}").await;
    assert_eq!(
        browser.run("return document.activeElement.className").await,
        "skip",
        "the first stop skips the bar"
    );
    browser.press("\u{e007}").await;
    browser.until("the focus is in the content", "return document.activeElement.id == 'main'").await;
    // Each stop on the way is seen.
    let mut reached = false;
    for _ in 0..20 {
        browser.press("\u{e004}").await;
        let stop = browser
            .run(
                "let e = document.activeElement, s = getComputedStyle(e); \
            return [e.textContent, s.outlineStyle, parseFloat(s.outlineWidth)]",
            )
            .await;
        assert!(stop[1] != "none" && stop[2].as_f64().unwrap() >= 1.0, "a stop that is not seen: {stop}");
        if stop[0] == "keys" {
            reached = true;
            break;
        }
    }
    assert!(reached);
    browser.press("\u{e007}").await;
    browser.until("the lock", "return location.pathname == '/lock'").await;
}

/// A script that finds what a screen reader misses, and text with too little contrast.
const AUDIT: &str = r"
    const bad = [];
    for (const one of ['header', 'nav[aria-label]', 'main', 'footer', 'h1'])
      if (!document.querySelector(one)) bad.push('no ' + one);
    if (document.querySelectorAll('h1').length != 1) bad.push('not one h1');
    for (const table of document.querySelectorAll('table')) {
      if (!table.caption || !table.caption.textContent) bad.push('table without caption');
      for (const th of table.querySelectorAll('th')) if (!th.scope) bad.push('th without scope: ' + th.textContent);
    }
    for (const field of document.querySelectorAll('input:not([type=hidden]), select'))
      if (!field.labels || !field.labels.length) bad.push('field without label: ' + field.name);
    for (const svg of document.querySelectorAll('svg'))
      if (!svg.closest('[aria-hidden]') && svg.parentElement.closest('svg') === null
        && !(svg.getAttribute('role') == 'img' && svg.getAttribute('aria-label'))) bad.push('svg without label');
    for (const section of document.querySelectorAll('section'))
      if (!section.getAttribute('aria-label') && !document.getElementById(section.getAttribute('aria-labelledby')))
        bad.push('section without label');
    const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
    for (const id of ids) if (ids.indexOf(id) != ids.lastIndexOf(id)) bad.push('id twice: ' + id);
    for (const one of document.querySelectorAll('a, button'))
      if (!one.textContent.trim() && !one.getAttribute('aria-label')) bad.push('without a name: ' + one.outerHTML);
    if (document.querySelector('[style]')) bad.push('inline style');
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgba = (text) => {
      canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
    };
    const light = ([r, g, b]) => { const f = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
      return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
    const behind = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor);
      if (c[3] > 0.9) return c; } return [255, 255, 255, 1]; };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const e = walker.currentNode.parentElement;
      if (!walker.currentNode.nodeValue.trim() || !e.getClientRects().length) continue;
      if (e.closest('.unseen, .skip, svg, noscript, script')) continue;
      const a = light(rgba(getComputedStyle(e).color)), b = light(behind(e));
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) bad.push('contrast ' + ratio.toFixed(2) + ': ' + walker.currentNode.nodeValue.trim());
    }
    return [...new Set(bad)];
";

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_labelled_and_have_contrast() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start_with_actions().await;
    let _sample = sample::fill(&site.store, Duration::from_secs(300)).await;
    site.examine().await;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        for path in [
            "/",
            "/locks",
            "/waits",
            "/doctor",
            "/login",
            "/lock?name=billing%2Finvoices",
            "/lock?name=free",
            "/nothing",
        ] {
            browser.open(&site.url(path)).await;
            browser.until("it is there", "return document.querySelector('main') !== null").await;
            let bad = browser.run(AUDIT).await;
            assert_eq!(bad.as_array().unwrap().len(), 0, "{scheme} {path}: {bad}");
        }
    }
}
