//! The transport to a server: over the network, or through a socket of this machine.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::config::Endpoint;

/// An open stream of bytes.
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Transport {
    pub(crate) async fn open(endpoint: &Endpoint) -> io::Result<Transport> {
        match endpoint {
            Endpoint::Tcp(host) => {
                let stream = TcpStream::connect((host.name.as_str(), host.port)).await?;
                stream.set_nodelay(true)?;
                Ok(Transport::Tcp(stream))
            }
            Endpoint::Unix(..) => Ok(Transport::Unix(UnixStream::connect(endpoint.to_string()).await?)),
        }
    }

    /// Returns our own port, as the other side sees it unless something is in between.
    pub(crate) fn local_port(&self) -> Option<u16> {
        match self {
            Transport::Tcp(stream) => stream.local_addr().ok().map(|address| address.port()),
            Transport::Unix(_) => None,
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Transport::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Transport::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// A transport for one request that the server carries out without an answer. To shut it down is to wait
/// until the server has closed it, and so has carried the request out.
pub(crate) struct Unanswered {
    transport: Transport,
    is_shut: bool,
}

impl Unanswered {
    pub(crate) fn over(transport: Transport) -> Unanswered {
        Unanswered { transport, is_shut: false }
    }
}

impl AsyncRead for Unanswered {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_read(context, buffer)
    }
}

impl AsyncWrite for Unanswered {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().transport).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.is_shut {
            ready!(Pin::new(&mut this.transport).poll_shutdown(context))?;
            this.is_shut = true;
        }
        loop {
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            // A transport that was reset is closed as well.
            let read = ready!(Pin::new(&mut this.transport).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
