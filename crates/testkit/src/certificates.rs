//! TLS certificates made for one test: an authority, a server and a client.
//!
//! Made anew each time, so that nothing in a repository expires and no test trusts another's authority.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use crate::directory::Directory;
use crate::error::{Error, cannot};

/// Files, in PEM, with which a server and its clients prove who they are.
///
/// The server's certificate is for `localhost` and `127.0.0.1`, so it also fits a [`Proxy`](crate::Proxy).
#[derive(Debug, Clone)]
pub struct Certificates {
    ca: PathBuf,
    server: Identity,
    expired: PathBuf,
    client: Identity,
}

/// A certificate and its private key, in PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate, signed by the authority of the same [`Certificates`].
    pub certificate: PathBuf,
    /// The private key, in PKCS #8.
    pub key: PathBuf,
}

impl Certificates {
    /// Makes the keys and certificates and writes them into `directory`.
    pub fn create(directory: &Directory) -> Result<Self, Error> {
        let making = || cannot::<rcgen::Error>("make", "a certificate");
        let key = KeyPair::generate().map_err(making())?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "leasehold test authority");
        let ca = directory.write("ca.crt", &params.self_signed(&key).map_err(making())?.pem())?;
        let issuer = Issuer::new(params, key);
        let certified = |name: &str, purpose| {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let mut params = CertificateParams::new(names).map_err(making())?;
            params.distinguished_name.push(DnType::CommonName, format!("leasehold test {name}"));
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![purpose];
            params.use_authority_key_identifier_extension = true;
            Ok::<_, Error>(params)
        };
        let identity = |name: &str, purpose| -> Result<(Identity, KeyPair), Error> {
            let key = KeyPair::generate().map_err(making())?;
            let certificate = certified(name, purpose)?.signed_by(&key, &issuer).map_err(making())?;
            let identity = Identity {
                certificate: directory.write(&format!("{name}.crt"), &certificate.pem())?,
                key: directory.write(&format!("{name}.key"), &key.serialize_pem())?,
            };
            Ok((identity, key))
        };
        let (server, key) = identity("server", ExtendedKeyUsagePurpose::ServerAuth)?;
        let (client, _) = identity("client", ExtendedKeyUsagePurpose::ClientAuth)?;
        let mut params = certified("server", ExtendedKeyUsagePurpose::ServerAuth)?;
        params.not_after = date_time_ymd(2001, 1, 1);
        let expired = params.signed_by(&key, &issuer).map_err(making())?;
        Ok(Self { server, expired: directory.write("expired.crt", &expired.pem())?, client, ca })
    }

    /// Returns the authority's certificate, which a client must trust.
    pub fn ca_path(&self) -> &Path {
        &self.ca
    }

    /// Returns the certificate and key that the server presents.
    pub fn server(&self) -> &Identity {
        &self.server
    }

    /// Returns a certificate for the server's key that has expired.
    pub fn expired(&self) -> &Path {
        &self.expired
    }

    /// Returns the certificate and key that a client presents, where the server asks for it.
    pub fn client(&self) -> &Identity {
        &self.client
    }
}
