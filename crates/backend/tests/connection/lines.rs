//! A protocol of lines, and streams for it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold_backend::connection::{Answer, Connection, Question, Sent, garbled};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};

/// A question that so many lines answer. A line that begins with `?` makes no sense.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    expected: usize,
    lines: Vec<String>,
}

impl Question for Lines {
    type Reply = String;
    type Answer = Vec<String>;

    const PORTIONS: usize = 8;

    fn read(bytes: &[u8]) -> io::Result<Option<(String, usize)>> {
        if bytes.first() == Some(&b'?') {
            return Err(garbled("a question is not an answer"));
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        Ok(end.map(|end| (String::from_utf8_lossy(&bytes[..end]).into_owned(), end + 1)))
    }

    fn take(&mut self, reply: String) -> io::Result<Option<Vec<String>>> {
        self.lines.push(reply);
        Ok((self.lines.len() == self.expected).then(|| std::mem::take(&mut self.lines)))
    }
}

/// Returns a connection over a way of so many bytes, and its other end.
pub(crate) fn opened(size: usize) -> (Arc<Connection<Lines>>, DuplexStream) {
    let (near, far) = tokio::io::duplex(size);
    (Arc::new(Connection::new(Box::new(near))), far)
}

/// Sends a request that so many lines answer.
pub(crate) fn ask_for(expected: usize, connection: &Connection<Lines>, text: &str) -> Sent<Lines> {
    let question = Lines { expected, lines: Vec::new() };
    connection.send(question, |bytes| bytes.extend_from_slice(text.as_bytes())).unwrap()
}

/// Sends a request that one line answers.
pub(crate) fn ask(connection: &Connection<Lines>, text: &str) -> Sent<Lines> {
    ask_for(1, connection, text)
}

/// Returns the answer of one line.
pub(crate) fn line(text: impl ToString) -> Answer<Lines> {
    Ok(vec![text.to_string()])
}

/// Polls once.
pub(crate) fn poll(sent: &mut Sent<Lines>) -> Poll<Answer<Lines>> {
    Pin::new(sent).poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits for an answer that comes without a poll of any other caller.
pub(crate) async fn answer(sent: Sent<Lines>) -> Answer<Lines> {
    tokio::time::timeout(Duration::from_secs(30), sent).await.unwrap()
}

/// Receives so many bytes of requests.
pub(crate) async fn received(far: &mut DuplexStream, count: usize) -> String {
    let mut bytes = vec![0; count];
    far.read_exact(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

/// A stream that counts its writes, and takes no more after so many bytes.
#[derive(Debug)]
pub(crate) struct Counting {
    pub(crate) stream: DuplexStream,
    pub(crate) writes: Arc<AtomicUsize>,
    pub(crate) left: usize,
}

impl Counting {
    /// Returns a stream without an end, its other end, and its number of writes.
    pub(crate) fn endless() -> (Counting, DuplexStream, Arc<AtomicUsize>) {
        let (stream, far) = tokio::io::duplex(1 << 16);
        let writes = Arc::new(AtomicUsize::new(0));
        (Counting { stream, writes: writes.clone(), left: usize::MAX }, far, writes)
    }
}

impl AsyncRead for Counting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        let bytes = &bytes[..bytes.len().min(self.left)];
        if bytes.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.left -= bytes.len();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The place where reads wait, with their threads.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_closed: AtomicBool,
    is_reached: AtomicBool,
}

impl Gate {
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
    }

    /// Waits until a read waits.
    pub(crate) async fn reached(&self) {
        while !self.is_reached.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn pass(&self) {
        while self.is_closed.load(Ordering::SeqCst) {
            self.is_reached.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A stream that is read behind a gate.
#[derive(Debug)]
pub(crate) struct Gated {
    pub(crate) stream: Counting,
    pub(crate) gate: Arc<Gate>,
}

impl AsyncRead for Gated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.gate.pass();
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Gated {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
