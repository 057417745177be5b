//! The PEM files of a TLS connection.

use std::path::PathBuf;

use leasehold_core::Failure;

use crate::url::common::{CA, CERT, KEY};
use crate::url::credentials::read_file;
use crate::url::options::Options;

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
    /// Reads the options of the files.
    ///
    /// # Errors
    /// `Invalid` if one has a value that is not allowed.
    pub fn of(options: &Options) -> Result<TlsFiles, Failure> {
        Ok(TlsFiles { ca: options.find(&CA)?, cert: options.find(&CERT)?, key: options.find(&KEY)? })
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
    fn files_are_those_of_the_options() {
        let given = [("cert", "/c"), ("key", "/k"), ("ca", "/a")].map(|(name, path)| (name, path.to_owned()));
        let files = TlsFiles::of(&Options { given: given.to_vec() }).unwrap();
        assert_eq!(files.ca.as_deref(), Some("/a".as_ref()));
        assert!(files.read_identity().err().unwrap().detail().contains("cert=/c"));
        let relative = [("ca", "certs/ca.pem")].map(|(name, path)| (name, path.to_owned()));
        let files = TlsFiles::of(&Options { given: relative.to_vec() }).unwrap();
        assert_eq!(files.ca, Some(std::env::current_dir().unwrap().join("certs/ca.pem")));
        assert!(TlsFiles::default().read_identity().unwrap().is_none());
    }
}
