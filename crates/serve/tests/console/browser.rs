//! Chromium without a window, driven over WebDriver, as a few HTTP calls.
//!
//! Ground rules: the browser ends with its last test, no matter how. It talks to its driver over a pipe, so it ends
//! when the driver does, and the kit ends the driver. Pages come from loopback only.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use leasehold_testkit::{Directory, Port, Process, require};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedMutexGuard;

/// A fresh tab of the browser, which is this test's alone until it is dropped.
pub(crate) struct Browser {
    chromium: OwnedMutexGuard<Option<Chromium>>,
}

/// A running browser. To start one takes seconds of processor time, so the tests use one, in turns.
struct Chromium {
    port: Port,
    session: String,
    /// The sites that were opened.
    origins: Mutex<BTreeSet<String>>,
    _driver: Process,
    _profile: Directory,
}

/// The browser as long as a test uses it or waits for it: the last one ends it.
static SHARED: Mutex<Weak<tokio::sync::Mutex<Option<Chromium>>>> = Mutex::new(Weak::new());

/// A window, in CSS pixels.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) width: u32,
    pub(crate) height: u32,
}

pub(crate) const DESKTOP: Size = Size { width: 1280, height: 900 };
pub(crate) const PHONE: Size = Size { width: 390, height: 844 };

impl Browser {
    /// Waits for its turn, and opens a tab that knows nothing of others; `None` where Chromium or its driver is
    /// not installed, and the test ends as skipped.
    pub(crate) async fn start_or_skip() -> Option<Browser> {
        let programs = require::program("chromium", "chromium")
            .and_then(|chromium| Ok((chromium, require::program("chromedriver", "chromium-driver")?)));
        let (chromium, driver) = require::or_skip("chromium", programs)?;
        let mut browser = Browser { chromium: shared().lock_owned().await };
        match browser.chromium.is_some() {
            true => browser.forget().await,
            false => *browser.chromium = Some(Chromium::start(&chromium, &driver).await),
        }
        browser.size(DESKTOP).await;
        Some(browser)
    }

    /// Opens a new tab in the place of the one before, and removes what sites have left in the browser.
    async fn forget(&self) {
        let old = self.command("GET", "/window", json!({})).await;
        let new = self.command("POST", "/window/new", json!({ "type": "tab" })).await;
        self.command("POST", "/window", json!({ "handle": old })).await;
        self.command("DELETE", "/window", json!({})).await;
        self.command("POST", "/window", json!({ "handle": new["handle"] })).await;
        for command in ["Network.clearBrowserCookies", "Network.clearBrowserCache"] {
            self.devtools(command, json!({})).await;
        }
        let origins =
            self.chromium.as_ref().map(|chromium| std::mem::take(&mut *chromium.origins.lock().unwrap()));
        for origin in origins.unwrap_or_default() {
            let all = json!({ "origin": origin, "storageTypes": "all" });
            self.devtools("Storage.clearDataForOrigin", all).await;
        }
        self.log().await;
    }

    /// Opens a page, and waits until it is loaded.
    pub(crate) async fn open(&self, url: &str) {
        let origin = url.match_indices('/').nth(2).map_or(url, |(at, _)| &url[..at]).to_owned();
        if let Some(chromium) = &*self.chromium {
            chromium.origins.lock().unwrap().insert(origin);
        }
        self.command("POST", "/url", json!({ "url": url })).await;
    }

    /// Runs a script in the page, and returns what it returns.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.command("POST", "/execute/sync", json!({ "script": script, "args": [] })).await
    }

    /// Returns the text that a reader sees.
    pub(crate) async fn text(&self) -> String {
        self.run("return document.body.innerText").await.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a script returns `true`.
    pub(crate) async fn until(&self, what: &str, script: &str) {
        let deadline = Instant::now() + LIMIT;
        while self.run(script).await != Value::Bool(true) {
            if Instant::now() >= deadline {
                panic!(
                    "{what}: not seen within {LIMIT:?}; the page is\n{}\nlog: {:?}",
                    self.text().await,
                    self.log().await
                );
            }
            tokio::time::sleep(STEP).await;
        }
    }

    /// Waits until a reader sees this text.
    pub(crate) async fn until_text(&self, text: &str) {
        let script = format!("return document.body.innerText.includes({})", json!(text));
        self.until(text, &script).await;
    }

    /// Clicks the element that a selector finds.
    pub(crate) async fn click(&self, selector: &str) {
        let element = self.find(selector).await;
        self.command("POST", &format!("/element/{element}/click"), json!({})).await;
    }

    /// Types into the element that a selector finds.
    pub(crate) async fn type_into(&self, selector: &str, text: &str) {
        let element = self.find(selector).await;
        self.command("POST", &format!("/element/{element}/value"), json!({ "text": text })).await;
    }

    /// Presses keys wherever the focus is. `\u{e004}` is the tabulator, `\u{e007}` is enter.
    pub(crate) async fn press(&self, keys: &str) {
        let steps: Vec<Value> = keys
            .chars()
            .flat_map(|key| {
                [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
            })
            .collect();
        let actions = json!({ "actions": [{ "type": "key", "id": "keys", "actions": steps }] });
        self.command("POST", "/actions", actions).await;
    }

    async fn find(&self, selector: &str) -> String {
        let found =
            self.command("POST", "/element", json!({ "using": "css selector", "value": selector })).await;
        let id = found.as_object().and_then(|found| found.values().next()).and_then(Value::as_str);
        id.expect("an element").to_owned()
    }

    /// Sets the size of the window, as a phone or a desktop has it.
    pub(crate) async fn size(&self, size: Size) {
        let Size { width, height } = size;
        let params =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.devtools("Emulation.setDeviceMetricsOverride", params).await;
    }

    /// Sets the colours that the system prefers: `dark` or `light`.
    pub(crate) async fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Lets pages run script, or not.
    pub(crate) async fn script(&self, is_disabled: bool) {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({ "value": is_disabled })).await;
    }

    /// Returns the cookies of the page, also those that no script can read.
    pub(crate) async fn cookies(&self) -> Vec<Value> {
        let found = self.devtools("Network.getCookies", json!({})).await;
        found["cookies"].as_array().cloned().unwrap_or_default()
    }

    /// Returns what the browser complained about.
    pub(crate) async fn log(&self) -> Vec<String> {
        let log = self.command("POST", "/se/log", json!({ "type": "browser" })).await;
        let text = |entry: &Value| entry["message"].as_str().unwrap_or_default().to_owned();
        log.as_array().map(|entries| entries.iter().map(text).collect()).unwrap_or_default()
    }

    /// Returns the picture of the page, as PNG. With `whole` it is as high as the page.
    pub(crate) async fn picture(&self, whole: bool) -> Vec<u8> {
        let params = json!({ "format": "png", "captureBeyondViewport": whole });
        let shot = self.devtools("Page.captureScreenshot", params).await;
        let data = shot["data"].as_str().expect("a picture");
        BASE64.decode(data).expect("base64")
    }

    async fn devtools(&self, command: &str, params: Value) -> Value {
        self.command("POST", "/goog/cdp/execute", json!({ "cmd": command, "params": params })).await
    }

    async fn command(&self, method: &str, path: &str, body: Value) -> Value {
        let chromium = self.chromium.as_ref().expect("it runs");
        chromium.call(method, &format!("/session/{}{path}", chromium.session), body).await
    }
}

impl Chromium {
    async fn start(chromium: &Path, driver: &Path) -> Chromium {
        let (port, profile) =
            (Port::take().expect("a port"), Directory::create("chromium").expect("a directory"));
        let directory = Directory::create("chromedriver").expect("a directory");
        let args = [format!("--port={}", port.number()), "--allowed-ips=127.0.0.1".to_owned()];
        let driver = Process::spawn(driver, args, directory).expect("the driver starts");
        let mut started = Chromium {
            port,
            session: String::new(),
            origins: Mutex::default(),
            _driver: driver,
            _profile: profile,
        };
        started.wait_for_driver().await;
        let options = json!({
            "binary": chromium,
            "args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
                format!("--user-data-dir={}", started._profile.path().display()),
                format!("--window-size={},{}", DESKTOP.width, DESKTOP.height),
            ],
        });
        let wanted = json!({ "browserName": "chrome", "acceptInsecureCerts": true, "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" } });
        let begun =
            started.call("POST", "/session", json!({ "capabilities": { "alwaysMatch": wanted } })).await;
        started.session = begun["sessionId"].as_str().expect("a session").to_owned();
        started
    }

    async fn wait_for_driver(&self) {
        let deadline = Instant::now() + LIMIT;
        while TcpStream::connect(self.port.addr()).await.is_err() {
            assert!(Instant::now() < deadline, "the driver does not listen");
            tokio::time::sleep(STEP).await;
        }
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> Value {
        let body = body.to_string();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            self.port.addr(),
            body.len()
        );
        let mut stream = TcpStream::connect(self.port.addr()).await.expect("the driver listens");
        stream.write_all(format!("{head}{body}").as_bytes()).await.expect("the driver reads");
        let answer = tokio::time::timeout(LIMIT * 2, read_answer(&mut stream)).await;
        let answer = answer.unwrap_or_else(|_| panic!("no answer to {method} {path}"));
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let value: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
        let value = value["value"].clone();
        assert!(value["error"].is_null(), "{method} {path}: {value}");
        value
    }
}

/// Returns the place of the browser.
fn shared() -> Arc<tokio::sync::Mutex<Option<Chromium>>> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let new = Arc::default();
        *shared = Arc::downgrade(&new);
        new
    })
}

/// Reads one answer. The driver keeps the connection open, whatever it is asked for.
async fn read_answer(stream: &mut TcpStream) -> String {
    let (mut answer, mut part) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let read = stream.read(&mut part).await.expect("the driver answers");
        answer.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: Option<usize> = length.and_then(|length| length.trim().parse().ok());
            if read == 0 || length.is_some_and(|length| body.len() >= length) {
                return text.into_owned();
            }
        }
        assert!(read > 0, "the driver ended its answer early");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // A test that fails may leave it in any state.
        if std::thread::panicking() {
            self.chromium.take();
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // Lets the browser end in order; without an answer the end of the driver ends it.
        use std::io::{Read, Write};
        let Ok(mut stream) = std::net::TcpStream::connect(self.port.addr()) else { return };
        let head = format!(
            "DELETE /session/{} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            self.session,
            self.port.addr()
        );
        let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.read(&mut [0; 64]));
    }
}

/// The time for anything to happen on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(100);
