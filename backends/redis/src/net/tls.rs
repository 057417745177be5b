//! TLS around a stream.
//!
//! The provider is chosen by leasehold and not taken from the process, so that no other crate can change it.

use std::sync::Arc;

use leasehold_backend::connecting::cannot_secure;
use leasehold_backend::url::{TlsFiles, client_settings};
use leasehold_core::Failure;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::{Endpoint, invalid};
use crate::protocol::error::TLS_ADVICE;

/// The settings for one connection.
pub(crate) struct Connector {
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl Connector {
    /// Reads the files of TLS as they are now.
    pub(crate) fn new(host: &str, files: &TlsFiles) -> Result<Connector, Failure> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| invalid(format!("{host} is not a host name for TLS")).because(error))?;
        Ok(Connector { name, connector: TlsConnector::from(Arc::new(client_settings(files)?)) })
    }

    /// Agrees on TLS with the server, whose certificate and host name are verified.
    pub(crate) async fn connect(
        self,
        stream: TcpStream,
        endpoint: &Endpoint,
    ) -> Result<TlsStream<TcpStream>, Failure> {
        let secured = self.connector.connect(self.name, stream).await;
        secured.map_err(|error| cannot_secure(error, &endpoint.to_string(), TLS_ADVICE))
    }
}
