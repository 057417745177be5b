//! A connection that remembers whether its other end has closed it.
//!
//! A client that has died closes its connections, through its kernel. A network that is cut does not. Only in the
//! first case nobody relies on a lock any more.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::holds::PeerEnd;

/// A connection that remembers its end.
#[derive(Debug)]
pub(super) struct Noticing<S> {
    stream: S,
    end: PeerEnd,
}

impl<S> Noticing<S> {
    pub(super) fn new(stream: S, end: PeerEnd) -> Noticing<S> {
        Noticing { stream, end }
    }

    fn notice<T>(&self, outcome: &Poll<io::Result<T>>) {
        if let Poll::Ready(Err(error)) = outcome
            && matches!(
                error.kind(),
                ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe
            )
        {
            self.end.set();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noticing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if matches!(outcome, Poll::Ready(Ok(()))) && buf.filled().len() == before && buf.remaining() > 0 {
            self.end.set();
        }
        self.notice(&outcome);
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noticing<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.notice(&outcome);
        outcome
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.notice(&outcome);
        outcome
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.notice(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
