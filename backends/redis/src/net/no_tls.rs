//! The connector of a build without TLS: it refuses every connection.

use leasehold_backend::url::TlsFiles;
use leasehold_core::Failure;
use tokio::net::TcpStream;

use crate::config::{Endpoint, invalid};

/// A connector that does not exist, for [`Connector::new`] always fails.
pub(crate) enum Connector {}

impl Connector {
    /// Refuses the connection.
    pub(crate) fn new(host: &str, _files: &TlsFiles) -> Result<Connector, Failure> {
        Err(invalid(format!(
            "cannot connect to {host} by TLS: this program was built without it; enable the feature `redis-tls` of \
             `leasehold`, or `tls` of `leasehold-redis`"
        )))
    }

    pub(crate) async fn connect(self, _: TcpStream, _: &Endpoint) -> Result<TcpStream, Failure> {
        match self {}
    }
}
