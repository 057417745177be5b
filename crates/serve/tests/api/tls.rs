//! TLS: the server's certificate, and what is refused before it listens.

use std::sync::Arc;

use leasehold_serve::{Config, Server, TlsFiles};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::support::Served;

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

#[tokio::test(flavor = "multi_thread")]
async fn request_over_tls_is_answered_and_a_plain_one_is_not() {
    let Files { folder, roots } = files();
    let tls = TlsFiles { cert: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
    let served = Served::with(|config| config.tls = Some(tls)).await;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let connector = TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth()));
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
