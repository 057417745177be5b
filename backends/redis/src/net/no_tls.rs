//! What takes the place of TLS in a build without it: a refusal.

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
            "{host} is to be reached by TLS, without which this program was built: enable the feature redis-tls \
             of leasehold, which is the feature tls of leasehold-redis"
        )))
    }

    pub(crate) async fn connect(self, _: TcpStream, _: &Endpoint) -> Result<TcpStream, Failure> {
        match self {}
    }
}
