//! Connections with TLS.
//!
//! Ground rules: the client crate opens connections anew by itself, on a channel that lives as long as the client.
//! Its own TLS reads certificates once, for the channel. So it gets a connector that reads the files for each
//! connection, and they may be renewed while a program runs.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use leasehold_backend::url::{Host, TlsFiles, client_settings};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tower_service::Service;

/// The way to one server, for as many connections as there will be.
#[derive(Clone, Debug)]
pub(crate) struct Secured {
    host: Host,
    files: TlsFiles,
    timeout: Duration,
    tcp: HttpConnector,
}

impl Secured {
    /// Describes connections that are given up if they are not there within `timeout`.
    pub(crate) fn new(host: Host, files: TlsFiles, timeout: Duration, keepalive: Duration) -> Secured {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(keepalive));
        tcp.set_connect_timeout(Some(timeout));
        Secured { host, files, timeout, tcp }
    }
}

impl Service<Uri> for Secured {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(BoxError::from)
    }

    fn call(&mut self, place: Uri) -> Self::Future {
        let (connecting, limit) = (self.tcp.call(place), self.timeout);
        let (host, files) = (self.host.clone(), self.files.clone());
        let secure = async move {
            let settings = tokio::task::spawn_blocking(move || client_settings(&files)).await?;
            let mut settings = settings.map_err(|failure| io::Error::other(failure.detail().to_owned()))?;
            settings.alpn_protocols = vec![HTTP_2.to_vec()];
            let name = ServerName::try_from(host.name)?;
            let stream = connecting.await?.into_inner();
            let stream = TlsConnector::from(Arc::new(settings)).connect(name, stream).await?;
            match stream.get_ref().1.alpn_protocol() {
                Some(HTTP_2) => Ok(TokioIo::new(stream)),
                _ => Err(BoxError::from("the server does not speak HTTP/2")),
            }
        };
        Box::pin(async move {
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no TLS within {limit:?}"));
            tokio::time::timeout(limit, secure).await.map_err(late)?
        })
    }
}

type BoxError = Box<dyn Error + Send + Sync>;

/// The name of the protocol in a TLS handshake.
const HTTP_2: &[u8] = b"h2";
