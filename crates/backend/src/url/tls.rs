//! The certificates that a TLS connection trusts and shows.
//!
//! The provider is chosen here and not taken from the process, so that no other crate can change it.
//! Certificate and host name are always verified.

use std::sync::Arc;

use leasehold_core::Failure;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::url::refusal::invalid;
use crate::url::tls_files::TlsFiles;

/// Settings for a client that verifies the server, by the files as they are now.
///
/// # Errors
/// `Invalid` where a file cannot be read, or is not what it should be; the text names its option.
pub fn client_settings(files: &TlsFiles) -> Result<ClientConfig, Failure> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(authorities(files)?);
    let Some(identity) = files.read_identity()? else { return Ok(builder.with_no_client_auth()) };
    let secret = PrivateKeyDer::from_pem_slice(&identity.key)
        .map_err(|error| invalid(format!("the file of key holds no private key: {error}")))?;
    builder
        .with_client_auth_cert(certificates(&identity.cert, "cert")?, secret)
        .map_err(|error| invalid(format!("cert and key do not go together: {error}")))
}

/// Returns the certificates that a client trusts, each in DER, for a client that makes its settings itself.
///
/// Such a client takes the provider of the process, so that one is settled here where nobody else has: that
/// of all leasehold.
///
/// # Errors
/// As [`client_settings`].
pub fn trusted_authorities(files: &TlsFiles) -> Result<Vec<Vec<u8>>, Failure> {
    // A problem with the files is reported in our words, before the client sees them.
    client_settings(files)?;
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Somebody may have been quicker, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let certificates = match files.read_authorities()? {
        Some(text) => certificates(&text, "ca")?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    // Single unreadable certificates of the system would make the client refuse all.
    let usable =
        |certificate: &CertificateDer<'static>| RootCertStore::empty().add(certificate.clone()).is_ok();
    Ok(certificates.iter().filter(|one| usable(one)).map(|one| one.to_vec()).collect())
}

fn authorities(files: &TlsFiles) -> Result<RootCertStore, Failure> {
    let mut store = RootCertStore::empty();
    match files.read_authorities()? {
        Some(text) => {
            for certificate in certificates(&text, "ca")? {
                store.add(certificate).map_err(|error| {
                    invalid(format!(
                        "ca cannot be used: a certificate in it is unfit as an authority: {error}"
                    ))
                })?;
            }
        }
        None => {
            // Single unreadable certificates of the system are its own matter; none at all is ours.
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err(invalid("this system has no TLS authorities: name a file with ?ca=path"));
            }
        }
    }
    Ok(store)
}

fn certificates(text: &[u8], option: &str) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(invalid(format!("the file of {option} holds no certificate in PEM form"))),
        Err(error) => Err(invalid(format!("the file of {option} is damaged: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_the_option_of_an_invalid_tls_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nothing.pem");
        std::fs::write(&path, "nothing").unwrap();
        let mut files = TlsFiles { ca: Some(path.clone()), ..TlsFiles::default() };
        let refusal = client_settings(&files).unwrap_err();
        assert!(refusal.detail().contains("file of ca holds no certificate"), "{refusal}");
        files.ca = Some(directory.path().join("missing.pem"));
        assert!(client_settings(&files).unwrap_err().detail().contains("cannot be read"));
    }
}
