//! One connection, shared by simultaneous requests: they are sent together, and answers come back in the
//! order of the requests.
//!
//! A request is queued where it is made, and one task writes what is queued, reads the answers, and hands them out.
//!
//! Ground rules: every request learns whether it left this process. One whose time is over before it left
//! never leaves; one whose time is over afterwards ends the connection, since a server that owes an answer is
//! not to be trusted with the next. One whose caller is dropped is sent all the same, and its answer is read.
//! Answers that carry a mark must carry the right one.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::protocol::command::{Command, MAX_VALUE};
use crate::protocol::facts::Facts;
use crate::protocol::reply::{self, Reply};

/// A stream to a server.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// One connection to one process of a server.
#[derive(Debug)]
pub(crate) struct Link {
    /// The facts that the server reported when the connection was made.
    pub(crate) facts: Facts,
    shared: Arc<Mutex<Shared>>,
    marks: AtomicU32,
    driver: AbortHandle,
}

/// The reason for a missing answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The request never left this process.
    Unsent,
    /// The request was sent, and the connection broke.
    Broken,
    /// The request was sent, and no answer came in time.
    Late,
}

type Answer = Result<Vec<Reply>, NoAnswer>;

impl Link {
    /// Takes over a stream that is logged in, and on which nothing is owed.
    pub(crate) fn new(stream: Box<dyn Duplex>, facts: Facts) -> Link {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let driver = Driver {
            shared: shared.clone(),
            stream,
            writing: Vec::new(),
            written: 0,
            must_flush: false,
            answered: 0,
            has_yielded: false,
            received: Vec::new(),
            open: None,
        };
        let driver = leasehold_machine::spawn(driver).abort_handle();
        Link { facts, shared, marks: AtomicU32::new(1), driver }
    }

    /// Returns `true` if it can take more requests.
    pub(crate) fn is_usable(&self) -> bool {
        !lock(&self.shared).has_ended
    }

    /// Sends these commands in one go, and waits for all their answers.
    pub(crate) async fn ask(
        &self,
        commands: &[Command<'_>],
        limit: Duration,
    ) -> Result<Vec<Reply>, NoAnswer> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let first = self.marks.fetch_add(commands.len() as u32, Ordering::Relaxed);
        let mut bytes = Vec::with_capacity(128 * commands.len());
        for (mark, command) in commands.iter().enumerate() {
            command.write(first.wrapping_add(mark as u32), &mut bytes);
        }
        let (answer, answered) = oneshot::channel();
        let expected = Expected { first, count: commands.len(), answer };
        if !self.queue(Request { bytes, expected }) {
            return Err(NoAnswer::Unsent);
        }
        match tokio::time::timeout(limit, answered).await {
            Ok(answer) => answer.unwrap_or(Err(NoAnswer::Broken)),
            Err(_) if self.take_back(first) => Err(NoAnswer::Unsent),
            Err(_) => {
                self.close();
                Err(NoAnswer::Late)
            }
        }
    }

    /// Queues a request; `false` where the connection takes none.
    fn queue(&self, request: Request) -> bool {
        let driver = {
            let mut shared = lock(&self.shared);
            if shared.has_ended || shared.bytes_unwritten > MAX_UNWRITTEN {
                return false;
            }
            shared.bytes_unwritten += request.bytes.len();
            shared.unwritten.push_back(request);
            shared.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
        true
    }

    /// Takes a request back that is given up; `false` where it has left. From then on it never leaves.
    fn take_back(&self, first: u32) -> bool {
        let mut shared = lock(&self.shared);
        let place = shared.unwritten.iter().position(|request| request.expected.first == first);
        let taken = place.and_then(|place| shared.unwritten.remove(place));
        shared.bytes_unwritten -= taken.as_ref().map_or(0, |request| request.bytes.len());
        taken.is_some()
    }

    fn close(&self) {
        lock(&self.shared).has_ended = true;
        self.driver.abort();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// The state that callers and the task of the connection share.
#[derive(Debug, Default)]
struct Shared {
    /// The requests that have not left, and their bytes.
    unwritten: VecDeque<Request>,
    bytes_unwritten: usize,
    /// The answers that are owed, in the order of the requests.
    expected: VecDeque<Expected>,
    /// The task of the connection, while it waits.
    driver: Option<Waker>,
    has_ended: bool,
}

/// The bytes to write, and the answers to expect.
#[derive(Debug)]
struct Request {
    bytes: Vec<u8>,
    expected: Expected,
}

#[derive(Debug)]
struct Expected {
    first: u32,
    count: usize,
    /// The receiver may be gone; the answers are read all the same.
    answer: oneshot::Sender<Answer>,
}

/// The future that writes and reads. The connection ends when it ends or is dropped.
struct Driver {
    shared: Arc<Mutex<Shared>>,
    stream: Box<dyn Duplex>,
    /// The requests that are being written, and how much of them is.
    writing: Vec<u8>,
    written: usize,
    must_flush: bool,
    /// The requests that were answered by what was read last.
    answered: usize,
    /// `true` if other tasks had a turn since there is something to write.
    has_yielded: bool,
    /// The bytes that were received and are not a whole answer yet.
    received: Vec<u8>,
    /// The request whose answers have begun to come.
    open: Option<(Expected, Vec<Reply>)>,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let driver = &mut *self;
        loop {
            // First, because a write that is not done yet must not keep answers from being read.
            let reads = driver.read(context);
            if let Poll::Ready(Err(error)) = reads {
                if error.kind() == io::ErrorKind::InvalidData {
                    tracing::warn!(garbled = %error, "a connection to memcached is given up");
                }
                return Poll::Ready(());
            }
            if driver.must_yield() {
                // Woken while it runs, a task has its next turn after all that are ready.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let writes = driver.write(context);
            if matches!(writes, Poll::Ready(Err(_))) {
                return Poll::Ready(());
            }
            if reads.is_ready() {
                continue;
            }
            let mut shared = lock(&driver.shared);
            if writes.is_pending() || shared.unwritten.is_empty() {
                shared.driver = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
    }
}

impl Driver {
    /// Returns `true` if the tasks that are ready are to run before the next requests are written, which they may
    /// join. They do so once, and only if there are several: a turn costs a single task more than a write.
    fn must_yield(&mut self) -> bool {
        let is_first = {
            let shared = lock(&self.shared);
            let are_several = shared.unwritten.len() + shared.expected.len() > 1 || self.answered > 1;
            are_several && self.writing.is_empty() && !shared.unwritten.is_empty()
        };
        self.has_yielded = is_first && !self.has_yielded;
        self.has_yielded
    }

    /// Takes the next requests, which count as sent from then on.
    fn gather(&mut self) {
        self.writing.clear();
        self.writing.shrink_to(GATHERED_MAX);
        self.written = 0;
        let mut shared = lock(&self.shared);
        while self.writing.len() < GATHERED_MAX
            && let Some(Request { bytes, expected }) = shared.unwritten.pop_front()
        {
            shared.bytes_unwritten -= bytes.len();
            shared.expected.push_back(expected);
            if self.writing.is_empty() {
                self.writing = bytes
            } else {
                self.writing.extend_from_slice(&bytes)
            }
        }
    }

    /// Writes what there is to write.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.writing.len() {
                self.gather();
                if self.writing.is_empty() {
                    if self.must_flush {
                        ready!(Pin::new(&mut *self.stream).poll_flush(context))?;
                        self.must_flush = false;
                    }
                    return Poll::Ready(Ok(()));
                }
            }
            let rest = self.writing.get(self.written..).unwrap_or_default();
            let count = ready!(Pin::new(&mut *self.stream).poll_write(context, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            self.must_flush = true;
        }
    }

    /// Reads once, and hands out the answers that are complete.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut space = [std::mem::MaybeUninit::uninit(); READ_SIZE];
        let mut buffer = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut *self.stream).poll_read(context, &mut buffer))?;
        let bytes = buffer.filled();
        if bytes.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        if self.received.is_empty() {
            // Mostly the bytes are whole answers, which need not be kept.
            let used = self.hand_out(bytes)?;
            self.received.extend_from_slice(&bytes[used..]);
        } else {
            let mut received = std::mem::take(&mut self.received);
            received.extend_from_slice(bytes);
            let used = self.hand_out(&received)?;
            received.drain(..used);
            self.received = received;
        }
        if reply::is_overlong(self.received.len()) {
            return Poll::Ready(Err(garbled("an answer came that is longer than any")));
        }
        if self.received.is_empty() {
            self.received.shrink_to(GATHERED_MAX);
        }
        Poll::Ready(Ok(()))
    }

    /// Hands out the complete answers at the beginning of `bytes`, and returns how long they are.
    fn hand_out(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut used = 0;
        self.answered = 0;
        loop {
            let read = reply::read(&bytes[used..]).map_err(|error| garbled(&error.to_string()))?;
            let Some((reply, length)) = read else { return Ok(used) };
            used += length;
            if self.open.is_none() {
                let next = lock(&self.shared).expected.pop_front();
                self.open = next.map(|expected| (expected, Vec::new()));
            }
            let Some((expected, replies)) = &mut self.open else {
                return Err(garbled("an answer came to what was not asked"));
            };
            let mark = expected.first.wrapping_add(replies.len() as u32);
            if reply.mark().is_some_and(|given| given != mark) {
                return Err(garbled("an answer came to another question"));
            }
            replies.push(reply);
            if replies.len() == expected.count
                && let Some((expected, replies)) = self.open.take()
            {
                self.answered += 1;
                // A caller that gave up meanwhile does not care.
                _ = expected.answer.send(Ok(replies));
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let (unsent, broken) = {
            let mut shared = lock(&self.shared);
            shared.has_ended = true;
            shared.bytes_unwritten = 0;
            (std::mem::take(&mut shared.unwritten), std::mem::take(&mut shared.expected))
        };
        for request in unsent {
            _ = request.expected.answer.send(Err(NoAnswer::Unsent));
        }
        // Their receivers wake up outside the lock, and learn that no answer comes.
        drop(broken);
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // Every change is complete when the lock is released, also by a panic.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn garbled(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

/// The most bytes of requests that wait to be written: far more than all that fit within their time limits.
const MAX_UNWRITTEN: usize = 64 * 1024 * 1024;
/// Requests are gathered up to so many bytes before they are written.
const GATHERED_MAX: usize = 64 * 1024;
/// The bytes that are read at once: the answers to some hundred requests.
const READ_SIZE: usize = 8 * 1024;
/// The most bytes of one request, which carries so many values of the largest size; see
/// [`crate::net::servers`].
pub(crate) const MAX_REQUEST: usize = 4 * MAX_VALUE;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::protocol::command::Key;

    const LIMIT: Duration = Duration::from_millis(200);

    fn facts() -> Facts {
        let stats = [("version", "1"), ("time", "9"), ("uptime", "9")];
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Facts::read(stats.map(owned).to_vec(), Vec::new()).unwrap()
    }

    fn link() -> (Link, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        (Link::new(Box::new(ours), facts()), theirs)
    }

    async fn received(server: &mut tokio::io::DuplexStream) -> String {
        let mut bytes = vec![0; 4096];
        let length = server.read(&mut bytes).await.unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[tokio::test]
    async fn fragmented_answers_are_matched_to_their_requests() {
        let (link, mut server) = link();
        let key = Key::new("a".to_owned()).unwrap();
        let looks = [Command::Look { key: &key }, Command::Look { key: &key }];
        let serving = async {
            assert_eq!(received(&mut server).await, "mg a v c t O1\r\nmg a v c t O2\r\n");
            for piece in ["VA 2 c1 t5", " O1\r\nh", "i\r\nEN O", "2\r\n"] {
                server.write_all(piece.as_bytes()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let (replies, ()) = tokio::join!(link.ask(&looks, LIMIT), serving);
        let item = Reply::Item { value: b"hi".to_vec(), number: 1, left: Some(5), mark: Some(1) };
        assert_eq!(replies, Ok(vec![item, Reply::Missing { mark: Some(2) }]));
        assert!(link.is_usable());
    }

    #[tokio::test]
    async fn a_wrong_mark_or_a_garbled_answer_ends_the_connection() {
        for answer in ["EN O7\r\n", "HTTP/1.1 200 OK\r\n", "EN O1\r\nEN O2\r\n"] {
            let (link, mut server) = link();
            let key = Key::new("a".to_owned()).unwrap();
            server.write_all(answer.as_bytes()).await.unwrap();
            let outcome = link.ask(&[Command::Look { key: &key }], LIMIT).await;
            for _ in 0..100 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(outcome.is_err() || answer.len() > 10, "{answer:?}: {outcome:?}");
            assert!(!link.is_usable(), "{answer:?}");
        }
    }

    #[tokio::test]
    async fn missing_answer_says_whether_the_request_was_sent() {
        let (link, server) = link();
        let key = Key::new("a".to_owned()).unwrap();
        let remove = [Command::Remove { key: &key, number: 1 }];
        assert_eq!(link.ask(&remove, LIMIT).await, Err(NoAnswer::Late));
        assert!(!link.is_usable(), "a server that owes an answer gets no further request");
        drop(server);

        let (link, server) = self::link();
        drop(server);
        let outcome = link.ask(&remove, LIMIT).await;
        assert!(matches!(outcome, Err(NoAnswer::Broken | NoAnswer::Unsent)), "{outcome:?}");
        assert_eq!(link.ask(&remove, LIMIT).await, Err(NoAnswer::Unsent), "it is known to be broken");
    }

    #[tokio::test]
    async fn request_abandoned_in_the_queue_is_never_sent() {
        let (ours, mut server) = tokio::io::duplex(64);
        let link = Link::new(Box::new(ours), facts());
        let key = Key::new("k".repeat(250)).unwrap();
        // The first fills the way to the server, so that the second stays with the writer.
        let (first, second) = ([Command::Look { key: &key }], [Command::Remove { key: &key, number: 1 }]);
        let early = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            link.ask(&second, Duration::from_millis(20)).await
        };
        let (_, outcome) = tokio::join!(link.ask(&first, LIMIT), early);
        assert_eq!(outcome, Err(NoAnswer::Unsent));
        drop(link);
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert!(!String::from_utf8_lossy(&all).contains("md "));
    }

    #[tokio::test]
    async fn queued_requests_of_a_connection_that_breaks_were_never_sent() {
        let (ours, server) = tokio::io::duplex(64);
        let link = Link::new(Box::new(ours), facts());
        let key = Key::new("k".repeat(250)).unwrap();
        // The first fills the way to the server, so that the others stay here.
        let commands = [Command::Remove { key: &key, number: 1 }];
        let breaking = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(server);
        };
        let limit = Duration::from_secs(30);
        let late = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            link.ask(&commands, limit).await
        };
        let (first, second, ()) = tokio::join!(link.ask(&commands, limit), late, breaking);
        assert_eq!((first, second), (Err(NoAnswer::Broken), Err(NoAnswer::Unsent)));
        assert!(!link.is_usable());
    }

    #[tokio::test]
    async fn a_caller_that_leaves_takes_no_answer_from_another() {
        let (link, mut server) = link();
        let key = Key::new("a".to_owned()).unwrap();
        let look = [Command::Look { key: &key }];
        {
            // Polled once, so that it is queued, and then dropped.
            let left = std::pin::pin!(link.ask(&look, LIMIT));
            let mut context = Context::from_waker(Waker::noop());
            assert!(left.poll(&mut context).is_pending());
        }
        let serving = async {
            assert_eq!(received(&mut server).await, "mg a v c t O1\r\nmg a v c t O2\r\n");
            server.write_all(b"EN O1\r\nHD O2\r\n").await.unwrap();
        };
        let (replies, ()) = tokio::join!(link.ask(&look, LIMIT), serving);
        assert_eq!(replies, Ok(vec![Reply::Done { mark: Some(2) }]));
        assert!(link.is_usable());
    }

    #[tokio::test]
    async fn long_answer_arrives_whole_and_the_next_one_behind_it() {
        for length in [READ_SIZE - 20, READ_SIZE, 10 * READ_SIZE + 3] {
            let (ours, mut server) = tokio::io::duplex(3 * READ_SIZE);
            let link = Link::new(Box::new(ours), facts());
            let key = Key::new("a".to_owned()).unwrap();
            let (first, second) = ([Command::Look { key: &key }], [Command::Look { key: &key }]);
            let serving = async {
                received(&mut server).await;
                let value = "x".repeat(length);
                let text = format!("VA {length} c1 t5 O1\r\n{value}\r\nEN O2\r\n");
                server.write_all(text.as_bytes()).await.unwrap();
            };
            let limit = Duration::from_secs(30);
            let (long, next, ()) = tokio::join!(link.ask(&first, limit), link.ask(&second, limit), serving);
            let item = Reply::Item { value: vec![b'x'; length], number: 1, left: Some(5), mark: Some(1) };
            assert_eq!((long, next), (Ok(vec![item]), Ok(vec![Reply::Missing { mark: Some(2) }])));
        }
    }
}
