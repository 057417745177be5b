//! One connection, shared by simultaneous requests: they are sent together, and answers come back in the
//! order of the requests.
//!
//! Ground rules: every request learns whether it left this process. One that is given up before it left
//! never leaves; one that is given up afterwards ends the connection, since a server that owes an answer is
//! not to be trusted with the next. Answers that carry a mark must carry the right one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
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
    requests: mpsc::Sender<Request>,
    closed: Arc<AtomicBool>,
    marks: AtomicU32,
    tasks: [AbortHandle; 2],
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

impl Link {
    /// Takes over a stream that is logged in, and on which nothing is owed.
    pub(crate) fn new(stream: Box<dyn Duplex>, facts: Facts) -> Link {
        let (requests, queued) = mpsc::channel(QUEUE);
        let (expected_sender, expected) = mpsc::channel(IN_FLIGHT);
        let (incoming, outgoing) = tokio::io::split(stream);
        let closed = Arc::new(AtomicBool::new(false));
        let (writer_ended, reader_ended) = (closed.clone(), closed.clone());
        let writer = leasehold_machine::spawn(async move {
            write(outgoing, queued, expected_sender).await;
            writer_ended.store(true, Ordering::Release);
        });
        let writer_handle = writer.abort_handle();
        let reader = leasehold_machine::spawn(async move {
            if let Err(error) = read(incoming, expected).await {
                tracing::warn!(garbled = %error, "a connection to memcached is given up");
            }
            reader_ended.store(true, Ordering::Release);
            // What is still to be written would have no answer.
            writer.abort();
        });
        Link {
            facts,
            requests,
            closed,
            marks: AtomicU32::new(1),
            tasks: [writer_handle, reader.abort_handle()],
        }
    }

    /// Returns `true` if it can take more requests.
    pub(crate) fn is_usable(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
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
        let fate = Arc::new(AtomicU8::new(QUEUED));
        let expected = Expected { first, count: commands.len(), answer };
        let request = Request { bytes, fate: fate.clone(), expected };
        let answering = async {
            self.requests.send(request).await.map_err(|_| ())?;
            answered.await.map_err(|_| ())
        };
        let outcome = tokio::time::timeout(limit, answering).await;
        if let Ok(Ok(replies)) = outcome {
            return Ok(replies);
        }
        // From here on the writer cannot send it any more.
        let left = fate.compare_exchange(QUEUED, ABANDONED, Ordering::AcqRel, Ordering::Acquire).is_err();
        if left {
            self.close();
        }
        Err(match (left, outcome) {
            (false, _) => NoAnswer::Unsent,
            (true, Err(_)) => NoAnswer::Late,
            (true, Ok(_)) => NoAnswer::Broken,
        })
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// The bytes to write, and the answers to expect.
#[derive(Debug)]
struct Request {
    bytes: Vec<u8>,
    fate: Arc<AtomicU8>,
    expected: Expected,
}

#[derive(Debug)]
struct Expected {
    first: u32,
    count: usize,
    answer: oneshot::Sender<Vec<Reply>>,
}

async fn write(
    mut outgoing: WriteHalf<Box<dyn Duplex>>,
    mut queued: mpsc::Receiver<Request>,
    expected_sender: mpsc::Sender<Expected>,
) {
    let mut bytes = Vec::new();
    while let Some(request) = queued.recv().await {
        let mut next = Some(request);
        while let Some(Request { bytes: more, fate, expected }) = next {
            if fate.compare_exchange(QUEUED, SENT, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                bytes.extend_from_slice(&more);
                if expected_sender.send(expected).await.is_err() {
                    return;
                }
            }
            next = if bytes.len() < GATHERED_MAX { queued.try_recv().ok() } else { None };
        }
        if outgoing.write_all(&bytes).await.is_err() || outgoing.flush().await.is_err() {
            return;
        }
        bytes.clear();
        bytes.shrink_to(GATHERED_MAX);
    }
}

async fn read(
    mut incoming: ReadHalf<Box<dyn Duplex>>,
    mut expected: mpsc::Receiver<Expected>,
) -> Result<(), String> {
    let mut buffer = Vec::new();
    let mut open: VecDeque<(Expected, Vec<Reply>)> = VecDeque::new();
    loop {
        // Closed by the server, or broken: the waiting callers learn it from their own ends.
        if !matches!(incoming.read_buf(&mut buffer).await, Ok(1..)) {
            return Ok(());
        }
        let mut used = 0;
        while let Some((reply, length)) = reply::read(&buffer[used..]).map_err(|error| error.to_string())? {
            used += length;
            while let Ok(more) = expected.try_recv() {
                open.push_back((more, Vec::new()));
            }
            let Some((expects, replies)) = open.front_mut() else {
                return Err("an answer came to what was not asked".to_owned());
            };
            let mark = expects.first.wrapping_add(replies.len() as u32);
            if reply.mark().is_some_and(|given| given != mark) {
                return Err("an answer came to another question".to_owned());
            }
            replies.push(reply);
            if replies.len() == expects.count
                && let Some((expects, replies)) = open.pop_front()
            {
                // A caller that gave up meanwhile does not care.
                _ = expects.answer.send(replies);
            }
        }
        buffer.drain(..used);
        if reply::is_overlong(buffer.len()) {
            return Err("an answer came that is longer than any".to_owned());
        }
        if buffer.is_empty() {
            buffer.shrink_to(GATHERED_MAX);
        }
    }
}

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const ABANDONED: u8 = 2;

/// The requests that may wait to be written; more wait with their callers.
const QUEUE: usize = 1024;
/// Requests that may wait for their answers.
const IN_FLIGHT: usize = 4096;
/// Requests are gathered up to so many bytes before they are written.
const GATHERED_MAX: usize = 64 * 1024;
/// The most bytes of one request, which carries so many values of the largest size; see
/// [`crate::net::servers`].
pub(crate) const MAX_REQUEST: usize = 4 * MAX_VALUE;

#[cfg(test)]
mod tests {
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
}
