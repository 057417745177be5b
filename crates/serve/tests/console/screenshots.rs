//! The pictures of the book, which this writes when it is asked to:
//!
//! ```console
//! $ cargo test -p leasehold-serve --test console screenshots -- --ignored
//! ```

use std::path::Path;
use std::time::Duration;

use crate::browser::{Browser, DESKTOP, PHONE, Size};
use crate::sample;
use crate::site::Site;

#[ignore = "writes the pictures of the book"]
#[tokio::test(flavor = "multi_thread")]
async fn screenshots() {
    let Some(browser) = Browser::start_or_skip().await else { return };
    let site = Site::start_with_actions().await;
    let _sample = sample::fill(&site.store, Duration::from_secs(120)).await;
    site.examine().await;
    browser.open(&site.url("/lock?name=deploy%2Fproduction")).await;
    // So long that waits count as long, and leases as not renewed.
    browser.until_text("ci-4").await;
    tokio::time::sleep(Duration::from_secs(82)).await;
    for (file, path, size, scheme) in [
        ("console-overview", "/", Size { height: 800, ..DESKTOP }, "light"),
        ("console-overview-dark", "/", Size { height: 800, ..DESKTOP }, "dark"),
        ("console-locks", "/locks?q=orders", Size { height: 620, ..DESKTOP }, "light"),
        ("console-lock", "/lock?name=deploy%2Fproduction", Size { height: 860, ..DESKTOP }, "light"),
        ("console-waits", "/waits", Size { height: 640, ..DESKTOP }, "light"),
        ("console-doctor", "/doctor", Size { height: 700, ..DESKTOP }, "light"),
        ("console-phone", "/", PHONE, "light"),
        ("console-phone-dark", "/lock?name=search%2Freindex", PHONE, "dark"),
    ] {
        browser.prefer(scheme).await;
        browser.size(size).await;
        browser.open(&site.url(path)).await;
        browser.until("it is live", "return !document.getElementById('pause') || document.getElementById('state').textContent.includes('Live')").await;
        write(file, &browser.picture(false).await);
    }
    browser.size(Size { height: 620, ..DESKTOP }).await;
    browser.prefer("light").await;
    browser.open(&site.url("/lock/break?name=search%2Freindex")).await;
    browser.type_into("#token", &format!("{}\u{e007}", site.token())).await;
    browser.until_text("What will happen").await;
    write("console-break", &browser.picture(false).await);
}

fn write(file: &str, picture: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src/images");
    std::fs::create_dir_all(&folder).expect("the folder of the book");
    assert!(picture.len() < 150_000, "{file} has {} bytes", picture.len());
    std::fs::write(folder.join(format!("{file}.png")), picture).expect("the picture is written");
}
