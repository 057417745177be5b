//! TLS for a connection to PostgreSQL: the server's certificate and name are always verified.

use std::future::{Future, Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use leasehold_backend::url::invalid;
use leasehold_core::Failure;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// Makes one connection secure.
pub(crate) struct Securing {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Securing {
    pub(crate) fn new(settings: Arc<ClientConfig>, host: &str) -> Result<Securing, Failure> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| invalid("the host has no name that a certificate could be for"))?;
        Ok(Securing { connector: TlsConnector::from(settings), name })
    }
}

impl<S> TlsConnect<S> for Securing
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Secured<tokio_rustls::client::TlsStream<S>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Stream>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { self.connector.connect(self.name, stream).await.map(Secured) })
    }
}

/// A mechanism that secures nothing, for a request that is written to nowhere.
pub(crate) struct Unsecured;

impl<S: AsyncRead + AsyncWrite + Unpin> TlsConnect<S> for Unsecured {
    type Stream = Secured<S>;
    type Error = io::Error;
    type Future = Ready<io::Result<Secured<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        ready(Ok(Secured(stream)))
    }
}

/// A stream that is as secure as it has to be.
pub(crate) struct Secured<S>(S);

impl<S> TlsStream for Secured<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn channel_binding(&self) -> ChannelBinding {
        // The certificate is verified, so that nobody in between could pass a password on.
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
