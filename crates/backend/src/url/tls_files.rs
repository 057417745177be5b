//! The PEM files of a TLS connection.

use std::path::PathBuf;

use leasehold_core::Failure;

use crate::url::credentials::read_file;
use crate::url::invalid;

/// PEM files that the options `ca`, `cert` and `key` name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// The client's certificate.
    pub cert: Option<PathBuf>,
    /// The key of the client's certificate.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Takes an option, where it is one of these files; `false` where it is not.
    pub fn take(&mut self, option: &str, value: &str) -> bool {
        let file = match option {
            "ca" => &mut self.ca,
            "cert" => &mut self.cert,
            "key" => &mut self.key,
            _ => return false,
        };
        *file = Some(PathBuf::from(value));
        true
    }

    /// Checks that certificate and key are named together.
    ///
    /// # Errors
    /// `Invalid` if a certificate is named without its key, or the other way round.
    pub fn check(&self) -> Result<(), Failure> {
        match self.cert.is_some() == self.key.is_some() {
            true => Ok(()),
            false => Err(invalid("cert and key belong together: name both files, or neither")),
        }
    }

    /// Returns the text of the authorities' file, if one is named.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read.
    pub fn read_authorities(&self) -> Result<Option<Vec<u8>>, Failure> {
        self.ca.as_deref().map(|path| read_file(path, "ca")).transpose()
    }

    /// Returns the texts of the client's certificate and key, where they are named.
    ///
    /// # Errors
    /// `Invalid` where one cannot be read.
    pub fn read_identity(&self) -> Result<Option<Identity>, Failure> {
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else { return Ok(None) };
        Ok(Some(Identity { cert: read_file(cert, "cert")?, key: read_file(key, "key")? }))
    }
}

/// The texts of a client's PEM files. Without `Debug`: a key is a secret.
pub struct Identity {
    /// The certificate, with those that lead from it to an authority.
    pub cert: Vec<u8>,
    /// Its key.
    pub key: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_needs_its_key() {
        let mut files = TlsFiles::default();
        assert!(files.take("cert", "/c") && !files.take("password-file", "/p"));
        assert!(files.check().unwrap_err().detail().contains("belong together"));
        assert!(files.take("key", "/k") && files.take("ca", "/a"));
        assert!(files.check().is_ok());
        assert!(files.read_identity().err().unwrap().detail().contains("cert=/c"));
        assert!(TlsFiles::default().read_identity().unwrap().is_none());
    }
}
