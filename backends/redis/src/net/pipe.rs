//! One connection that many requests share: written in the order in which they come, answered in that order.
//!
//! A request is written into a buffer where it is made, and one task writes the buffer, reads the replies, and
//! hands them out. Before it writes, it lets the tasks run that are ready, which may have requests of their own. So
//! requests that come at the same time are one write, and their replies one read. Many replies are handed out in
//! portions, and what the tasks of one portion request is written before the next: so the server works on it
//! while the other tasks run.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use redis::{Cmd, RedisError, Value};
use tokio::io::ReadBuf;
use tokio::sync::oneshot;

use crate::net::duplex::Duplex;
use crate::net::replies;

/// The handle to a connection.
#[derive(Clone, Debug)]
pub(crate) struct Pipe {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The requests that are not written yet.
    unwritten: Vec<u8>,
    /// The receivers of the replies, in the order of the requests.
    pending: VecDeque<Pending>,
    /// The task of the connection, while it waits.
    driver: Option<Waker>,
    has_ended: bool,
}

/// A request that is not answered yet.
#[derive(Debug)]
struct Pending {
    /// Replies to commands before the one that counts.
    ignored: usize,
    /// The receiver may be gone; the reply is read all the same.
    reply: oneshot::Sender<Value>,
}

impl Pipe {
    /// Creates a connection from a stream that is logged in, and the future that drives it until it ends.
    pub(crate) fn new(stream: Box<dyn Duplex>) -> (Pipe, Driver) {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let driver = Driver {
            shared: shared.clone(),
            stream,
            written: 0,
            writing: Vec::new(),
            must_flush: false,
            replies: 0,
            has_yielded: false,
            received: Vec::new(),
            tried: 0,
            rest: None,
        };
        (Pipe { shared }, driver)
    }

    /// Sends a request, which `write` appends to the bytes that it is given, and returns its reply; an error of
    /// the server is a reply. The request is of `ignored` commands, whose replies are dropped, and the one
    /// that counts.
    ///
    /// # Cancel safety
    /// A request that was begun is sent, even if its future is dropped.
    pub(crate) fn send(&self, ignored: usize, write: impl FnOnce(&mut Vec<u8>)) -> Reply {
        let (reply, receiver) = oneshot::channel();
        let driver = {
            let mut shared = lock(&self.shared);
            if shared.has_ended || shared.unwritten.len() > MAX_UNWRITTEN {
                drop(reply);
                None
            } else {
                write(&mut shared.unwritten);
                shared.pending.push_back(Pending { ignored, reply });
                shared.driver.take()
            }
        };
        if let Some(driver) = driver {
            driver.wake();
        }
        Reply(receiver)
    }

    /// Returns `true` once it is known that no reply comes any more.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.shared).has_ended
    }

    /// Sends one plain command, and returns its reply; an error of the server is a reply.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.send(0, |bytes| bytes.extend_from_slice(&command.get_packed_command())).await
    }
}

/// The reply to a request, once it arrives.
#[derive(Debug)]
pub(crate) struct Reply(oneshot::Receiver<Value>);

impl Future for Reply {
    type Output = Result<Value, RedisError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the connection ended").into();
        Pin::new(&mut self.0).poll(cx).map(|reply| reply.map_err(ended))
    }
}

/// The future that writes and reads. The connection ends when it ends or is dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Mutex<Shared>>,
    stream: Box<dyn Duplex>,
    /// The requests that are being written, and how much of them is.
    writing: Vec<u8>,
    written: usize,
    must_flush: bool,
    /// The number of replies that the last read has brought.
    replies: usize,
    /// `true` if other tasks had a turn since there is something to write.
    has_yielded: bool,
    /// The bytes that were received and are not handed out: the beginning of a reply, or also whole ones if there
    /// is a rest.
    received: Vec<u8>,
    /// The number of those in which the end of a reply was looked for.
    tried: usize,
    /// The place in `received` where the replies begin that the next portions are made of.
    rest: Option<usize>,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let driver = &mut *self;
        loop {
            // First, because a write that is not done yet must not keep replies from being read.
            let reads = driver.read(cx);
            if matches!(reads, Poll::Ready(Err(_))) {
                return driver.end();
            }
            if driver.rest.is_none() && driver.must_yield() {
                // Woken while it runs, a task has its next turn after all that are ready.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let writes = driver.write(cx);
            if matches!(writes, Poll::Ready(Err(_))) {
                return driver.end();
            }
            if driver.rest.is_some() {
                // The tasks of this portion run before the next is handed out.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if reads.is_ready() {
                continue;
            }
            let mut shared = lock(&driver.shared);
            if writes.is_pending() || shared.unwritten.is_empty() {
                shared.driver = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
    }
}

impl Driver {
    /// Ends the connection. Replies that were received are handed out all the same.
    fn end(&mut self) -> Poll<()> {
        while let Some(begin) = self.rest {
            // An error leaves no rest.
            _ = self.hand_out_received(begin);
        }
        Poll::Ready(())
    }

    /// Returns `true` if the tasks that are ready are to run before the next requests are written. They do so once,
    /// and only if there are several: a turn costs a single task more than a write.
    fn must_yield(&mut self) -> bool {
        let is_first = {
            let shared = lock(&self.shared);
            let are_several = shared.pending.len() > 1 || self.replies > 1;
            are_several && self.writing.is_empty() && !shared.unwritten.is_empty()
        };
        self.has_yielded = is_first && !self.has_yielded;
        self.has_yielded
    }

    /// Writes what there is to write.
    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.writing.len() {
                self.writing.clear();
                self.written = 0;
                std::mem::swap(&mut self.writing, &mut lock(&self.shared).unwritten);
                if self.writing.is_empty() {
                    if self.must_flush {
                        ready!(Pin::new(&mut *self.stream).poll_flush(cx))?;
                        self.must_flush = false;
                    }
                    return Poll::Ready(Ok(()));
                }
            }
            let rest = self.writing.get(self.written..).unwrap_or_default();
            let count = ready!(Pin::new(&mut *self.stream).poll_write(cx, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            self.must_flush = true;
        }
    }

    /// Hands out the next portion of replies. Reads once if there is none.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(begin) = self.rest {
            self.hand_out_received(begin)?;
            return Poll::Ready(Ok(()));
        }
        let mut space = [std::mem::MaybeUninit::uninit(); READ_SIZE];
        let mut buffer = ReadBuf::uninit(&mut space);
        let outcome = Pin::new(&mut *self.stream).poll_read(cx, &mut buffer);
        self.accept(buffer.filled())?;
        ready!(outcome)?;
        if buffer.filled().is_empty() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the bytes of one read, none if there was nothing to read, and hands out a portion of complete replies.
    fn accept(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.received.is_empty() {
            // Mostly the bytes are whole replies of one portion, which need not be kept.
            let portion = hand_out(&self.shared, bytes, &mut self.replies)?;
            self.received.extend_from_slice(&bytes[portion.length..]);
            self.tried = self.received.len();
            self.rest = portion.has_rest.then_some(0);
            return Ok(());
        }
        self.received.extend_from_slice(bytes);
        // A reply is read from its beginning each time. So a long one is not tried again while more of it is
        // there, unless it has doubled.
        let more_may_follow = bytes.len() == READ_SIZE && self.received.len() < 2 * self.tried;
        if self.received.len() > self.tried && !more_may_follow {
            self.hand_out_received(0)?;
        }
        Ok(())
    }

    /// Hands out a portion of the complete replies that begin here.
    ///
    /// An error leaves no rest: the first replies of the portion may have been handed out, and a second time they would
    /// go to the requests behind.
    fn hand_out_received(&mut self, begin: usize) -> io::Result<()> {
        self.rest = None;
        let portion = hand_out(&self.shared, &self.received[begin..], &mut self.replies)?;
        let end = begin + portion.length;
        self.rest = portion.has_rest.then_some(end);
        if self.rest.is_none() {
            self.received.drain(..end);
            self.tried = self.received.len();
        }
        Ok(())
    }
}

/// The replies that were handed out.
struct Portion {
    /// The number of their bytes.
    length: usize,
    /// `true` if more were received.
    has_rest: bool,
}

/// Hands out a portion of the complete replies at the beginning of `bytes`. Where bytes came, counts the replies.
fn hand_out(shared: &Mutex<Shared>, bytes: &[u8], count: &mut usize) -> io::Result<Portion> {
    let mut length = 0;
    if bytes.is_empty() {
        return Ok(Portion { length, has_rest: false });
    }
    let most = (lock(shared).pending.len() / PORTIONS).max(PORTION_MIN);
    *count = 0;
    while length < bytes.len() {
        if *count == most {
            return Ok(Portion { length, has_rest: true });
        }
        let read = replies::read(&bytes[length..]);
        let Some((value, size)) = read.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))? else {
            break;
        };
        length += size;
        *count += 1;
        let reply = {
            let mut shared = lock(shared);
            match shared.pending.front_mut() {
                None => return Err(io::ErrorKind::InvalidData.into()),
                Some(pending) if pending.ignored > 0 => {
                    pending.ignored -= 1;
                    None
                }
                Some(_) => shared.pending.pop_front(),
            }
        };
        if let Some(pending) = reply {
            // Its sender may have left.
            _ = pending.reply.send(value);
        }
    }
    Ok(Portion { length, has_rest: false })
}

impl Drop for Driver {
    fn drop(&mut self) {
        let pending = {
            let mut shared = lock(&self.shared);
            shared.has_ended = true;
            std::mem::take(&mut shared.pending)
        };
        // Their receivers wake up outside the lock.
        drop(pending);
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most bytes of requests that wait to be written: far more than all that fit within their time limits.
const MAX_UNWRITTEN: usize = 64 * 1024 * 1024;

/// The portions in which the replies to all pending requests are handed out, and the fewest replies of one. A portion
/// costs a turn of the task and a write.
const PORTIONS: usize = 8;
const PORTION_MIN: usize = 4;

/// The bytes that are read at once: the replies to some hundred requests.
const READ_SIZE: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// Returns a connection and its other end.
    fn opened(size: usize) -> (Pipe, DuplexStream) {
        let (near, far) = tokio::io::duplex(size);
        let (pipe, driver) = Pipe::new(Box::new(near));
        leasehold_machine::spawn(driver);
        (pipe, far)
    }

    fn send(pipe: &Pipe, ignored: usize, text: &str) -> Reply {
        pipe.send(ignored, |bytes| bytes.extend_from_slice(text.as_bytes()))
    }

    async fn received(far: &mut DuplexStream, count: usize) -> String {
        let mut bytes = vec![0; count];
        far.read_exact(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn replies_are_handed_out_in_the_order_of_the_requests() {
        // So small that each request and each reply comes in several parts.
        let (pipe, mut far) = opened(3);
        let replies = [send(&pipe, 0, "one "), send(&pipe, 1, "two twice "), send(&pipe, 0, "three")];
        let serving = async {
            assert_eq!(received(&mut far, 19).await, "one two twice three");
            far.write_all(b":1\r\n+ignored\r\n$5\r\nsecon\r\n*1\r\n:3\r\n").await.unwrap();
        };
        let (values, ()) = tokio::join!(futures_util::future::join_all(replies), serving);
        let values: Vec<Value> = values.into_iter().map(Result::unwrap).collect();
        let second = Value::BulkString(b"secon".to_vec());
        assert_eq!(values, [Value::Int(1), second, Value::Array(vec![Value::Int(3)])]);
    }

    #[tokio::test]
    async fn long_reply_arrives_whole_and_the_next_one_behind_it() {
        for count in [READ_SIZE / 4 - 2, READ_SIZE, 10 * READ_SIZE + 3] {
            let (pipe, mut far) = opened(3 * READ_SIZE);
            let (long, next) = (send(&pipe, 0, "long"), send(&pipe, 0, "next"));
            let text = format!("*{count}\r\n{}:7\r\n", ":1\r\n".repeat(count));
            let serving = async { far.write_all(text.as_bytes()).await.unwrap() };
            let (long, next, ()) = tokio::join!(long, next, serving);
            assert_eq!(long.unwrap(), Value::Array(vec![Value::Int(1); count]));
            assert_eq!(next.unwrap(), Value::Int(7));
        }
    }

    /// A stream that counts its writes.
    #[derive(Debug)]
    struct Counting(DuplexStream, Arc<std::sync::atomic::AtomicUsize>);

    impl tokio::io::AsyncRead for Counting {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buffer)
        }
    }

    impl tokio::io::AsyncWrite for Counting {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    /// With one thread, which runs the task that was woken last before those that wait for their turn.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn requests_of_tasks_that_are_ready_are_one_write() {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let writes = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let (pipe, driver) = Pipe::new(Box::new(Counting(near, writes.clone())));
        leasehold_machine::spawn(driver);
        let tasks = tokio::spawn(async move {
            let tasks: Vec<_> = (0..50)
                .map(|_| {
                    let pipe = pipe.clone();
                    tokio::spawn(async move { send(&pipe, 0, "ask ").await })
                })
                .collect();
            futures_util::future::join_all(tasks).await
        });
        received(&mut far, 200).await;
        far.write_all(":1\r\n".repeat(50).as_bytes()).await.unwrap();
        assert_eq!(tasks.await.unwrap().len(), 50);
        // The first alone, and then all others.
        let writes = writes.load(std::sync::atomic::Ordering::SeqCst);
        assert!(writes <= 5, "{writes} writes");
    }

    /// With one thread, so that the number of writes does not depend on which task another thread takes.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn requests_that_follow_many_replies_are_written_in_portions() {
        const TASKS: usize = 64;
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let writes = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = || writes.load(std::sync::atomic::Ordering::SeqCst);
        let (pipe, driver) = Pipe::new(Box::new(Counting(near, writes.clone())));
        leasehold_machine::spawn(driver);
        let tasks = tokio::spawn(async move {
            let tasks: Vec<_> = (0..TASKS)
                .map(|_| {
                    let pipe = pipe.clone();
                    tokio::spawn(async move {
                        send(&pipe, 0, "ask ").await.unwrap();
                        send(&pipe, 0, "more").await.unwrap();
                    })
                })
                .collect();
            futures_util::future::join_all(tasks).await
        });
        received(&mut far, 4 * TASKS).await;
        let before = count();
        far.write_all(":1\r\n".repeat(TASKS).as_bytes()).await.unwrap();
        received(&mut far, 4 * TASKS).await;
        let portions = count() - before;
        assert!((PORTIONS / 2..=2 * PORTIONS).contains(&portions), "{portions} writes");
        far.write_all(":1\r\n".repeat(TASKS).as_bytes()).await.unwrap();
        assert!(tasks.await.unwrap().iter().all(Result::is_ok));
    }

    /// The first portion has requests, which cannot be written any more.
    #[tokio::test]
    async fn received_replies_are_handed_out_at_the_end() {
        const TASKS: usize = 64;
        let (pipe, mut far) = opened(1 << 16);
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let pipe = pipe.clone();
                tokio::spawn(async move {
                    let first = send(&pipe, 0, "ask ").await;
                    (first, send(&pipe, 0, "more").await)
                })
            })
            .collect();
        received(&mut far, 4 * TASKS).await;
        far.write_all(":1\r\n".repeat(TASKS).as_bytes()).await.unwrap();
        drop(far);
        for task in tasks {
            let (first, second) = task.await.unwrap();
            assert_eq!(first.unwrap(), Value::Int(1));
            second.unwrap_err();
        }
    }

    /// Wherever it stands, also in the middle of a portion.
    #[tokio::test]
    async fn replies_before_an_invalid_one_belong_to_their_requests() {
        const REQUESTS: usize = 64;
        for count in 0..40 {
            let (pipe, mut far) = opened(1 << 16);
            let replies: Vec<Reply> = (0..REQUESTS).map(|_| send(&pipe, 0, "ask ")).collect();
            received(&mut far, 4 * REQUESTS).await;
            let mut text: String = (0..count).map(|number| format!(":{number}\r\n")).collect();
            text.push_str("?what\r\n:7\r\n");
            far.write_all(text.as_bytes()).await.unwrap();
            for (number, reply) in replies.into_iter().enumerate() {
                match reply.await {
                    Ok(value) => assert_eq!(value, Value::Int(i64::try_from(number).unwrap())),
                    Err(_) => assert!(number >= count, "{number} of {count}"),
                }
            }
        }
    }

    #[tokio::test]
    async fn reply_to_a_request_whose_sender_left_belongs_to_nobody_else() {
        let (pipe, mut far) = opened(64);
        drop(send(&pipe, 0, "left"));
        let kept = send(&pipe, 0, "kept");
        assert_eq!(received(&mut far, 8).await, "leftkept");
        far.write_all(b":1\r\n:2\r\n").await.unwrap();
        assert_eq!(kept.await.unwrap(), Value::Int(2));
    }

    #[tokio::test]
    async fn requests_fail_once_the_connection_ends() {
        for last in [&b""[..], b"?what\r\n", b":1\r\n:2\r\n:3\r\n"] {
            let (pipe, mut far) = opened(64);
            let (first, second) = (send(&pipe, 0, "first"), send(&pipe, 0, "second"));
            far.write_all(last).await.unwrap();
            drop(far);
            let is_answered = last.len() > 8;
            assert_eq!((first.await.is_ok(), second.await.is_ok()), (is_answered, is_answered));
            while !pipe.has_ended() {
                tokio::task::yield_now().await;
            }
            assert!(send(&pipe, 0, "third").await.unwrap_err().is_unrecoverable_error());
        }
    }
}
