//! TLS: the certificate and the key.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsFiles;

/// Reads both files.
///
/// # Errors
/// A text for people.
pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, String> {
    let shown = files.cert.display();
    let certificates: Vec<_> = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect)
        .map_err(|error| format!("the certificate {shown} cannot be read: {error}; it is to be in PEM"))?;
    if certificates.is_empty() {
        return Err(format!("the file {shown} holds no certificate: name one in PEM with --tls-cert"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| {
        format!("the key {} cannot be read: {error}; it is to be in PEM", files.key.display())
    })?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| format!("the certificate {shown} and its key do not fit: {error}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
