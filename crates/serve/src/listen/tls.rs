//! TLS: the certificate and the key, which may be renewed while the server runs.
//!
//! Ground rules: files are read off the threads of the runtime. A pair that cannot be used, such as one of which only
//! half is written, never takes the place of one that can.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::config::TlsFiles;

/// TLS with a certificate that may be renewed.
pub(super) struct Tls {
    acceptor: TlsAcceptor,
    certificate: Arc<Certificate>,
}

impl Tls {
    /// Reads both files.
    ///
    /// # Errors
    /// A text for people.
    pub(super) fn open(files: &TlsFiles) -> Result<Tls, String> {
        let certificate = Arc::new(Certificate::open(files)?);
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS cannot be set up: {error}"))?
            .with_no_client_auth()
            .with_cert_resolver(certificate.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), certificate })
    }

    /// Returns the acceptor of connections. Each gets the certificate that is the latest by then.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }

    /// Looks for ever whether the files have changed.
    pub(super) async fn renew(self) {
        loop {
            tokio::time::sleep(PAUSE).await;
            let certificate = self.certificate.clone();
            drop(tokio::task::spawn_blocking(move || certificate.look()).await);
        }
    }
}

/// The certificate of a server, as its files have it.
#[derive(Debug)]
struct Certificate {
    files: TlsFiles,
    latest: Mutex<Latest>,
}

#[derive(Debug)]
struct Latest {
    pair: Arc<CertifiedKey>,
    /// The marks of the files before they were read.
    marks: Marks,
    /// The reason why the files that are there now are not used, which was logged.
    refused: Option<String>,
}

impl Certificate {
    fn open(files: &TlsFiles) -> Result<Certificate, String> {
        let marks = Marks::of(files);
        let latest = Latest { pair: read(files)?, marks, refused: None };
        Ok(Certificate { files: files.clone(), latest: Mutex::new(latest) })
    }

    /// Reads the files again if they have changed.
    fn look(&self) {
        let marks = Marks::of(&self.files);
        if self.latest().marks == marks {
            return;
        }
        let shown = self.files.cert.display();
        match read(&self.files) {
            Ok(pair) => {
                tracing::info!("the certificate {shown} was read again");
                *self.latest() = Latest { pair, marks, refused: None };
            }
            Err(refused) => {
                let mut latest = self.latest();
                if latest.refused.as_ref() != Some(&refused) {
                    tracing::warn!("{refused}; the certificate that was read before stays in use");
                    latest.refused = Some(refused);
                }
            }
        }
    }

    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.latest().pair.clone())
    }
}

/// Reads both files.
///
/// # Errors
/// A text for people.
fn read(files: &TlsFiles) -> Result<Arc<CertifiedKey>, String> {
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
    CertifiedKey::from_der(certificates, key, &ring::default_provider())
        .map(Arc::new)
        .map_err(|error| format!("the certificate {shown} and its key do not fit: {error}"))
}

/// What changes with the content of a certificate's files.
#[derive(Debug, PartialEq, Eq)]
struct Marks {
    cert: Option<FileMarks>,
    key: Option<FileMarks>,
}

/// The file system, the number, the size, and the times of the last changes of content and of attributes.
type FileMarks = [i128; 7];

impl Marks {
    /// Returns the marks of files that are there. A pipe can be read only once, and has none.
    fn of(files: &TlsFiles) -> Marks {
        let marks = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            Some(if found.is_file() { file_marks(&found) } else { [0; 7] })
        };
        Marks { cert: marks(&files.cert), key: marks(&files.key) }
    }
}

fn file_marks(found: &Metadata) -> FileMarks {
    [
        found.dev().into(),
        found.ino().into(),
        found.size().into(),
        found.mtime().into(),
        found.mtime_nsec().into(),
        found.ctime().into(),
        found.ctime_nsec().into(),
    ]
}

/// The pause between two looks at the files.
const PAUSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_new_pair_leaves_the_old_one_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let files = TlsFiles { cert: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
        let pair = || {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
            (made.cert.der().clone(), made.cert.pem(), made.signing_key.serialize_pem())
        };
        let (old, cert, key) = pair();
        std::fs::write(&files.cert, cert).unwrap();
        std::fs::write(&files.key, &key).unwrap();
        let certificate = Certificate::open(&files).unwrap();
        let look = || {
            certificate.look();
            certificate.latest().pair.cert[0].clone()
        };
        assert_eq!(look(), old);
        let (new, cert, key) = pair();
        std::fs::write(&files.cert, cert).unwrap();
        assert_eq!(look(), old, "the key is that of the old certificate");
        for half in ["", &key[..key.len() / 2]] {
            std::fs::write(&files.key, half).unwrap();
            assert_eq!(look(), old, "the key is not whole");
            assert!(certificate.latest().refused.is_some());
        }
        std::fs::remove_file(&files.key).unwrap();
        assert_eq!(look(), old, "there is no key");
        std::fs::write(&files.key, key).unwrap();
        assert_eq!(look(), new);
        assert_eq!(certificate.latest().refused, None);
    }
}
