//! TLS: the server's certificate, and what is refused before it listens.

use std::sync::Arc;

use leasehold_serve::{Config, Server, TlsFiles};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::{LIMIT, Served, id, until};

struct Files {
    folder: tempfile::TempDir,
    roots: RootCertStore,
}

fn files() -> Files {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    Files { folder, roots }
}

impl Files {
    fn named(&self) -> TlsFiles {
        TlsFiles { cert: self.folder.path().join("cert.pem"), key: self.folder.path().join("key.pem") }
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// Writes a file by a rename, as programs that renew certificates do.
    fn replace(&self, name: &str, text: &str) {
        let draft = self.folder.path().join("draft");
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, self.folder.path().join(name)).unwrap();
    }
}

/// Returns a connector that trusts these certificates only.
fn connector(roots: &RootCertStore) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsConnector::from(Arc::new(config.with_root_certificates(roots.clone()).with_no_client_auth()))
}

/// Opens a connection, unless the server's certificate is not among these.
async fn connect(served: &Served, roots: &RootCertStore) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").unwrap();
    connector(roots).connect(name, TcpStream::connect(served.address).await.unwrap()).await
}

/// Sends a request, and leaves the connection open.
async fn is_served(connection: &mut TlsStream<TcpStream>) {
    connection.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut read = String::new();
    while !read.ends_with("ok\n") {
        let mut part = [0; 4096];
        let count = connection.read(&mut part).await.unwrap();
        assert!(count > 0, "{read}");
        read.push_str(std::str::from_utf8(&part[..count]).unwrap());
    }
    assert!(read.starts_with("HTTP/1.1 200"), "{read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn renewed_certificate_is_shown_to_new_connections() {
    let (old, new) = (files(), files());
    let served = Served::with(|config| config.tls = Some(old.named())).await;
    let mut open = connect(&served, &old.roots).await.unwrap();
    is_served(&mut open).await;
    for name in ["cert.pem", "key.pem"] {
        old.replace(name, &new.text(name));
    }
    until("the new certificate", async || connect(&served, &new.roots).await.is_ok()).await;
    assert!(connect(&served, &old.roots).await.is_err());
    is_served(&mut open).await;
    is_served(&mut connect(&served, &new.roots).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_over_tls_is_answered_and_a_plain_one_is_not() {
    let files = files();
    let served = Served::with(|config| config.tls = Some(files.named())).await;
    let connector = connector(&files.roots);
    let request = served.request("GET", "/v1/locks").host("localhost");
    let name = ServerName::try_from("localhost").unwrap();
    let connection = connector.connect(name, request.connect().await).await.unwrap();
    request.send_over(connection).await.ok();
    let own = request.clone().header("origin", "https://localhost");
    let name = ServerName::try_from("localhost").unwrap();
    own.send_over(connector.connect(name, request.connect().await).await.unwrap()).await.ok();
    let plain = tokio::spawn(async move { request.send().await.status });
    assert!(plain.await.is_err(), "there is no answer that could be read");
}

/// A client that closes its connection ends TLS first, and then the network. Either of them alone is enough.
#[tokio::test(flavor = "multi_thread")]
async fn closed_stream_over_tls_releases_at_once_if_that_was_asked() {
    let files = files();
    let served = Served::with(|config| config.tls = Some(files.named())).await;
    for (name, ends_tls) in [("a", true), ("b", false)] {
        let body = json!({ "name": name, "ttl": "3600s", "on_disconnect": "release" });
        let request = served.request("PUT", &format!("/v1/holds/{}", id())).host("localhost").body(&body);
        let request = request.header("accept", "application/x-ndjson");
        let mut connection = connect(&served, &files.roots).await.unwrap();
        connection.write_all(&request.bytes()).await.unwrap();
        let mut read = String::new();
        while !read.contains("\"granted\"") {
            let mut part = [0; 4096];
            let count = tokio::time::timeout(LIMIT, connection.read(&mut part)).await.unwrap().unwrap();
            assert!(count > 0, "{read}");
            read.push_str(std::str::from_utf8(&part[..count]).unwrap());
        }
        if ends_tls {
            connection.shutdown().await.unwrap();
        }
        drop(connection);
        served.until_holders(name, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_that_cannot_be_used_stops_the_start() {
    let Files { folder, .. } = files();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("text"), "no certificate\n").unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(path("other.pem"), other.signing_key.serialize_pem()).unwrap();
    for (cert, key, hint) in [
        ("missing", "key.pem", "cannot be read"),
        ("text", "key.pem", "certificate"),
        ("cert.pem", "text", "cannot be read"),
        ("cert.pem", "other.pem", "do not fit"),
    ] {
        let mut config = Config::default();
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.token_file = Some(path("token"));
        config.tls = Some(TlsFiles { cert: path(cert), key: path(key) });
        let refused = Server::bind(leasehold::Client::open("mem:").await.unwrap(), config).await.unwrap_err();
        assert!(refused.to_string().contains(hint), "{cert} {key}: {refused}");
    }
}
