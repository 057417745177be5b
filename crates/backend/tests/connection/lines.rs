//! A protocol of lines, and streams for it.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold_backend::connection::{Answer, Connection, Question, Sent, garbled};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};

/// A question that so many lines answer. A line that begins with `?` makes no sense. Behind one of `+` and a number, so
/// many bytes follow that do not matter.
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
        TRIED.set(TRIED.get() + 1);
        assert!(!bytes.is_empty(), "no reply begins there");
        if bytes.first() == Some(&b'?') {
            return Err(garbled("a question is not an answer"));
        }
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let behind = line.strip_prefix('+').map_or(0, |count| count.parse().unwrap());
        Ok(Some((line, end + 1 + behind)))
    }

    fn take(&mut self, reply: String) -> io::Result<Option<Vec<String>>> {
        self.lines.push(reply);
        Ok((self.lines.len() == self.expected).then(|| std::mem::take(&mut self.lines)))
    }
}

thread_local! {
    static TRIED: Cell<usize> = const { Cell::new(0) };
}

/// Returns how often this thread has looked for the end of a reply.
pub(crate) fn tried() -> usize {
    TRIED.get()
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

/// A stream that counts how it is used, and takes no more after so many bytes.
#[derive(Debug)]
pub(crate) struct Counting {
    pub(crate) stream: DuplexStream,
    pub(crate) reads: Arc<AtomicUsize>,
    pub(crate) writes: Arc<AtomicUsize>,
    pub(crate) flushes: Arc<AtomicUsize>,
    pub(crate) left: usize,
}

impl Counting {
    /// Returns a stream without an end, its other end, and its number of writes.
    pub(crate) fn endless() -> (Counting, DuplexStream, Arc<AtomicUsize>) {
        let (stream, far) = tokio::io::duplex(1 << 16);
        let [reads, writes, flushes] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        (Counting { stream, reads, writes: writes.clone(), flushes, left: usize::MAX }, far, writes)
    }
}

impl AsyncRead for Counting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
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
        self.flushes.fetch_add(1, Ordering::SeqCst);
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

/// An event at the next use of a stream.
#[derive(Clone, Default)]
pub(crate) struct Hook(Arc<Mutex<Option<Event>>>);

type Event = Box<dyn FnOnce() + Send>;

impl Hook {
    pub(crate) fn set(&self, happens: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(happens));
    }

    fn run(&self) {
        let happens = self.0.lock().unwrap().take();
        if let Some(happens) = happens {
            happens();
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

/// A stream with which something happens while it is read or flushed.
#[derive(Debug)]
pub(crate) struct Hooked {
    stream: DuplexStream,
    reads: Hook,
    flushes: Hook,
}

impl Hooked {
    /// Returns a connection over such a stream, its other end, and the hooks of reads and of flushes.
    pub(crate) fn opened() -> (Arc<Connection<Lines>>, DuplexStream, Hook, Hook) {
        let (stream, far) = tokio::io::duplex(64);
        let (reads, flushes) = (Hook::default(), Hook::default());
        let near = Hooked { stream, reads: reads.clone(), flushes: flushes.clone() };
        (Arc::new(Connection::new(Box::new(near))), far, reads, flushes)
    }
}

impl AsyncRead for Hooked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.reads.run();
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Hooked {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushes.run();
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
