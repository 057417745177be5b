//! A console that serves a store of its own, in the process of the test.

use std::path::PathBuf;

use leasehold::Client;
use leasehold_serve::{Config, Listen, Server, TlsFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// A server that ends with its test.
pub(crate) struct Site {
    /// Its address, as in a URL.
    pub(crate) origin: String,
    /// The store, as another program opens it.
    pub(crate) store: String,
    token: PathBuf,
    /// The runtime that serves it. Its end closes all connections, as the end of a process does.
    runtime: Option<Runtime>,
    _folder: tempfile::TempDir,
}

/// An answer without a browser.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Site {
    /// Serves the memory of this process under a name of its own.
    pub(crate) async fn start() -> Site {
        Site::with(|_| {}).await
    }

    /// Serves with actions.
    pub(crate) async fn start_with_actions() -> Site {
        Site::with(|config| config.allow_actions = true).await
    }

    /// Serves with actions at an address that other machines can reach, over TLS if there is a certificate.
    pub(crate) async fn start_off_loopback(tls: Option<TlsFiles>) -> Site {
        Site::with(|config| {
            config.listen = vec!["0.0.0.0:0".parse().expect("an address")];
            config.allow_actions = true;
            config.tls = tls;
        })
        .await
    }

    async fn with(change: impl FnOnce(&mut Config)) -> Site {
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().file_name().expect("a name").to_string_lossy().replace('.', "");
        Site::over(&format!("mem:{name}"), folder, change).await
    }

    /// Serves the store that a URL names.
    pub(crate) async fn of_store(url: &str) -> Site {
        Site::over(url, tempfile::tempdir().expect("a folder"), |_| {}).await
    }

    async fn over(url: &str, folder: tempfile::TempDir, change: impl FnOnce(&mut Config)) -> Site {
        let token = folder.path().join("token");
        let mut config = Config::default();
        config.store = url.to_owned();
        config.listen = vec!["127.0.0.1:0".parse().expect("an address")];
        config.token_file = Some(token.clone());
        change(&mut config);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let url = url.to_owned();
        let store = url.clone();
        let begun = runtime.spawn(async move {
            let client = Client::open(&url).await.expect("the store opens");
            Server::bind(client, config).await.expect("it listens")
        });
        let server = begun.await.expect("it has not panicked");
        let Some(Listen::Tcp(mut address)) = server.addresses().into_iter().next() else {
            panic!("no address")
        };
        let scheme = server.urls()[0].split(':').next().expect("a scheme").to_owned();
        // Each address of this machine leads to it; the tests use loopback alone.
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        runtime.spawn(async move {
            server.run(|| Box::pin(std::future::pending())).await;
        });
        Site {
            origin: format!("{scheme}://{address}"),
            store,
            token,
            runtime: Some(runtime),
            _folder: folder,
        }
    }

    /// Opens the store as another program.
    pub(crate) async fn client(&self, note: &str) -> Client {
        let note = leasehold::Note::new(note).expect("a short note");
        Client::builder().note(note).open(&self.store).await.expect("the store opens")
    }

    /// Returns the token.
    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(&self.token).expect("the token file").trim().to_owned()
    }

    /// Returns a URL of this site.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin)
    }

    /// Ends the server, as if it were killed.
    pub(crate) fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Signs in without a browser, and returns the cookie.
    pub(crate) async fn cookie(&self) -> String {
        let headers = format!("origin: {}\r\ncontent-type: {FORM}\r\n", self.origin);
        let answer = self.ask("POST", "/login", &headers, &format!("token={}&back=%2F", self.token())).await;
        assert_eq!(answer.status, 303, "{answer:?}");
        let line = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
        for part in ["httponly", "samesite=strict", "path=/"] {
            assert!(line.contains(part), "{line}");
        }
        assert!(!line.contains(&self.token()), "the token itself stays here");
        line.split(';').next().expect("a pair").to_owned()
    }

    /// Lets the store be examined, and waits for the findings.
    pub(crate) async fn examine(&self) {
        let headers =
            format!("origin: {}\r\ncontent-type: {FORM}\r\ncookie: {}\r\n", self.origin, self.cookie().await);
        let asked = self.ask("POST", "/doctor", &headers, "").await;
        assert_eq!(asked.status, 303, "{asked:?}");
        while !self.ask("GET", "/doctor", "", "").await.body.contains("round-trip") {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Sends a request without a browser, with these headers.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let host = self.origin.trim_start_matches("http://");
        let length =
            if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{length}{headers}\r\n{body}"
        );
        let mut stream = TcpStream::connect(host).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("it answers");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }
}

const FORM: &str = "application/x-www-form-urlencoded";

impl Drop for Site {
    fn drop(&mut self) {
        self.end();
    }
}
