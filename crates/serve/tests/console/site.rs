//! A console that serves a store of its own, in the process of the test.

use std::path::PathBuf;

use leasehold::Client;
use leasehold_serve::{Config, Listen, Server};
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
        let Some(Listen::Tcp(address)) = server.addresses().into_iter().next() else { panic!("no address") };
        runtime.spawn(async move {
            server.run(|| Box::pin(std::future::pending())).await;
        });
        Site { origin: format!("http://{address}"), store, token, runtime: Some(runtime), _folder: folder }
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

impl Drop for Site {
    fn drop(&mut self) {
        self.end();
    }
}
