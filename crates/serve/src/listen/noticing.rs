//! A connection that remembers whether its other end has closed it.
//!
//! A client that has died closes its connections, through its kernel. A network that is cut does not. Only in the
//! first case nobody relies on a lock any more.
//!
//! The end comes behind all that was sent. HTTP reads no further while it has bytes of the next request, so this reads
//! ahead: at each flush, which is tried whenever the connection wakes. More than [`AHEAD_MAX`] sent ahead hide the end.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::holds::PeerEnd;

/// A connection that remembers its end.
#[derive(Debug)]
pub(super) struct Noticing<S> {
    stream: S,
    end: PeerEnd,
    /// The bytes that were read ahead.
    ahead: Vec<u8>,
}

impl<S> Noticing<S> {
    pub(super) fn new(stream: S, end: PeerEnd) -> Noticing<S> {
        Noticing { stream, end, ahead: Vec::new() }
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

impl<S: AsyncRead + Unpin> Noticing<S> {
    /// Reads what has arrived, up to a limit. It fails at the end of the connection, which also ends what is served.
    fn look_ahead(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut bytes = [0; 512];
        while self.ahead.len() < AHEAD_MAX {
            let mut buf = ReadBuf::new(&mut bytes);
            match self.poll_stream(cx, &mut buf) {
                Poll::Ready(Ok(())) if buf.filled().is_empty() => {
                    return Err(ErrorKind::ConnectionAborted.into());
                }
                Poll::Ready(Ok(())) => self.ahead.extend_from_slice(buf.filled()),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
            // The reader may wait for these.
            cx.waker().wake_by_ref();
        }
        Ok(())
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if matches!(outcome, Poll::Ready(Ok(()))) && buf.filled().len() == before && buf.remaining() > 0 {
            self.end.set();
        }
        self.notice(&outcome);
        outcome
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noticing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return self.poll_stream(cx, buf);
        }
        let count = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..count]);
        self.ahead.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Noticing<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.notice(&outcome);
        outcome
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(cx);
        self.notice(&outcome);
        ready!(outcome)?;
        Poll::Ready(self.look_ahead(cx))
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

/// The most bytes that are read ahead, without those of the last read.
const AHEAD_MAX: usize = 16 * 1024;
