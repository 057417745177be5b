//! One connection that many requests share: written in the order in which they come, answered in that order.
//!
//! A request on an idle connection is written by its caller, who also reads the reply: a task in between costs as much
//! as the request. As soon as there is another request, or the caller leaves, the task of the connection takes over.
//!
//! From then on a request is written into a buffer where it is made, and the task writes the buffer, reads the replies,
//! and hands them out. Before it writes, it lets the tasks run that are ready, which may have requests of their own. So
//! requests that come at the same time are one write, and their replies one read. Many replies are handed out in
//! portions, and what the tasks of one portion request is written before the next: so the server works on it
//! while the other tasks run.
//!
//! Ground rules: no request depends on the caller of another one, who may never be polled again. One at a time uses the
//! stream, and puts it back, or ends the connection. The lock is held for changes of the queues alone.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use redis::{Cmd, RedisError, Value};
use tokio::sync::oneshot;

use crate::net::duplex::Duplex;
use crate::net::wire::{Driven, Pending, Shared, State, Turn, unwoken, wake};

/// The handle to a connection.
#[derive(Clone, Debug)]
pub(crate) struct Pipe {
    shared: Arc<Shared>,
}

impl Pipe {
    /// Creates a connection from a stream that is logged in, and the future that drives it until it ends.
    pub(crate) fn new(stream: Box<dyn Duplex>) -> (Pipe, Driver) {
        let shared = Arc::new(Shared::new(stream));
        (Pipe { shared: shared.clone() }, Driver { shared })
    }

    /// Sends a request, which `write` appends to the bytes that it is given, and returns its reply; an error of
    /// the server is a reply. The request is of `ignored` commands, whose replies are dropped, and the one
    /// that counts.
    ///
    /// # Cancel safety
    /// A request that was begun is sent, even if its future is dropped.
    pub(crate) fn send(&self, ignored: usize, write: impl FnOnce(&mut Vec<u8>)) -> Reply {
        let (reply, receiver) = oneshot::channel();
        let mut sent = Reply { shared: self.shared.clone(), request: 0, receiver };
        if self.shared.is_forked() {
            return sent;
        }
        let (turn, driver) = {
            let mut state = self.shared.lock();
            if state.has_ended || state.unwritten.len() > MAX_UNWRITTEN {
                return sent;
            }
            let is_idle = state.is_idle();
            write(&mut state.unwritten);
            state.pending.push_back(Pending { ignored, reply });
            state.requests += 1;
            sent.request = state.requests;
            let turn = if is_idle { Turn::take(&self.shared, &mut state) } else { None };
            state.caller = turn.as_ref().map(|_| sent.request);
            let driver = if turn.is_none() { state.driver.take() } else { None };
            (turn, driver)
        };
        wake(driver);
        if let Some(mut turn) = turn {
            match turn.wire.write(&self.shared, &mut unwoken()) {
                Poll::Ready(Ok(())) => _ = turn.put_back(State::needed_driver),
                // The task of the connection writes the rest.
                Poll::Pending => {
                    turn.put_back(|state| {
                        state.caller = None;
                        state.driver.take()
                    });
                }
                Poll::Ready(Err(_)) => turn.end(),
            }
        }
        sent
    }

    /// Returns `true` once it is known that no reply comes any more. The end of an idle connection is noticed here.
    pub(crate) fn has_ended(&self) -> bool {
        if self.shared.is_forked() {
            return true;
        }
        let turn = {
            let mut state = self.shared.lock();
            if state.has_ended {
                return true;
            }
            if state.is_idle() { Turn::take(&self.shared, &mut state) } else { None }
        };
        let Some(mut turn) = turn else { return false };
        // Nothing was asked, so nothing may come.
        if !turn.wire.is_silent() {
            turn.end();
            return true;
        }
        !turn.put_back(State::needed_driver)
    }

    /// Sends one plain command, and returns its reply; an error of the server is a reply.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.send(0, |bytes| bytes.extend_from_slice(&command.get_packed_command())).await
    }
}

/// The reply to a request, once it arrives.
#[derive(Debug)]
pub(crate) struct Reply {
    shared: Arc<Shared>,
    request: u64,
    receiver: oneshot::Receiver<Value>,
}

impl Reply {
    fn receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Value, RedisError>> {
        let ended = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the connection ended").into();
        Pin::new(&mut self.receiver).poll(cx).map(|reply| reply.map_err(ended))
    }

    /// Reads the reply, if that is left to this caller.
    fn read(&self, cx: &mut Context<'_>) {
        let turn = {
            let mut state = self.shared.lock();
            if state.caller == Some(self.request) { Turn::take(&self.shared, &mut state) } else { None }
        };
        let Some(mut turn) = turn else { return };
        loop {
            match turn.wire.read(&self.shared, cx) {
                // A part of it, or the replies to commands before the one that counts.
                Poll::Ready(Ok(())) if !self.shared.lock().pending.is_empty() => {}
                Poll::Ready(Ok(())) | Poll::Pending => break,
                Poll::Ready(Err(_)) => return turn.end(),
            }
        }
        turn.put_back(|state| {
            // What was sent meanwhile is left to the task of the connection already.
            let is_over = state.pending.is_empty();
            state.caller.take_if(|caller| *caller == self.request && is_over);
            state.needed_driver()
        });
    }
}

impl Future for Reply {
    type Output = Result<Value, RedisError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.shared.is_forked() {
            return Poll::Pending;
        }
        // What this caller hands out to itself must not wake it: a task that is woken while it runs wakes another thread.
        if let Poll::Ready(reply) = self.receive(&mut unwoken()) {
            return Poll::Ready(reply);
        }
        self.read(cx);
        // Another task may hand the reply out.
        self.receive(cx)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        wake({
            let mut state = self.shared.lock();
            let is_left = state.caller.take_if(|caller| *caller == self.request).is_some();
            if is_left { state.driver.take() } else { None }
        });
    }
}

/// The future that writes and reads what is not left to a caller. The connection ends when it ends or is dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let turn = {
                let mut state = self.shared.lock();
                if state.has_ended {
                    return Poll::Ready(());
                }
                let turn = if state.caller.is_none() { Turn::take(&self.shared, &mut state) } else { None };
                if turn.is_none() {
                    // Its user wakes this task if there is more to do.
                    state.driver = Some(cx.waker().clone());
                }
                turn
            };
            let Some(mut turn) = turn else { return Poll::Pending };
            let mut has_more = false;
            let is_open = match turn.wire.drive(&self.shared, cx) {
                Ok(Driven::Yields) => {
                    // Woken while it runs, a task has its next turn after all that are ready.
                    cx.waker().wake_by_ref();
                    turn.put_back(|_| None)
                }
                Ok(Driven::Waits { is_full }) => turn.put_back(|state| {
                    has_more = !is_full && !state.unwritten.is_empty();
                    state.driver = (!has_more).then(|| cx.waker().clone());
                    None
                }),
                Err(_) => {
                    turn.wire.hand_out_rest(&self.shared);
                    turn.end();
                    false
                }
            };
            if !is_open {
                return Poll::Ready(());
            }
            if !has_more {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// The most bytes of requests that wait to be written: far more than all that fit within their time limits.
const MAX_UNWRITTEN: usize = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::net::wire::{PORTIONS, READ_SIZE};

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
            buffer: &mut tokio::io::ReadBuf<'_>,
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

    /// Polls once.
    fn poll(reply: &mut Reply) -> Poll<Option<Value>> {
        Pin::new(reply).poll(&mut unwoken()).map(Result::ok)
    }

    /// Waits for a reply that comes without a poll of any other caller.
    async fn value(reply: Reply) -> Option<Value> {
        tokio::time::timeout(std::time::Duration::from_secs(30), reply).await.unwrap().ok()
    }

    /// The task of the connection does not run between two awaits of the only thread.
    #[tokio::test]
    async fn only_request_is_written_and_read_by_its_caller() {
        let (pipe, mut far) = opened(64);
        for round in 1..=3 {
            let mut reply = send(&pipe, 1, "ask ");
            assert_eq!(received(&mut far, 4).now_or_never().unwrap(), "ask ");
            assert_eq!(poll(&mut reply), Poll::Pending);
            for part in ["+ignored\r\n", "$2\r\n1"] {
                far.write_all(part.as_bytes()).now_or_never().unwrap().unwrap();
                assert_eq!(poll(&mut reply), Poll::Pending, "it is not whole");
            }
            far.write_all(format!("{round}\r\n").as_bytes()).now_or_never().unwrap().unwrap();
            let text = format!("1{round}").into_bytes();
            assert_eq!(poll(&mut reply), Poll::Ready(Some(Value::BulkString(text))));
        }
        assert!(!pipe.has_ended());
    }

    #[tokio::test]
    async fn end_of_an_idle_connection_is_noticed_with_the_next_request() {
        for last in [&b""[..], b":2\r\n", b":"] {
            let (pipe, mut far) = opened(64);
            let mut reply = send(&pipe, 0, "ask ");
            far.write_all(b":1\r\n").now_or_never().unwrap().unwrap();
            assert_eq!(poll(&mut reply), Poll::Ready(Some(Value::Int(1))));
            assert!(!pipe.has_ended());
            if last.is_empty() {
                drop(far);
            } else {
                far.write_all(last).now_or_never().unwrap().unwrap();
            }
            assert!(pipe.has_ended(), "{last:?}");
        }
    }

    #[tokio::test]
    async fn request_needs_no_caller_that_is_polled_or_stays() {
        for (is_polled, leaves) in [(false, false), (true, false), (false, true), (true, true)] {
            let (pipe, mut far) = opened(64);
            let mut idle = send(&pipe, 0, "idle");
            far.write_all(b"$2\r\nh").await.unwrap();
            if is_polled {
                assert_eq!(poll(&mut idle), Poll::Pending);
            }
            let idle = (!leaves).then_some(idle);
            let busy = send(&pipe, 0, "busy");
            far.write_all(b"i\r\n:2\r\n").await.unwrap();
            assert_eq!(value(busy).await, Some(Value::Int(2)));
            if let Some(mut idle) = idle {
                assert_eq!(poll(&mut idle), Poll::Ready(Some(Value::BulkString(b"hi".to_vec()))));
            }
            assert!(!pipe.has_ended());
        }
    }

    #[tokio::test]
    async fn server_that_dies_within_a_reply_ends_the_connection() {
        for joined in [false, true] {
            let (pipe, mut far) = opened(64);
            let mut first = send(&pipe, 0, "one ");
            far.write_all(b"$2\r\nh").await.unwrap();
            assert_eq!(poll(&mut first), Poll::Pending);
            let second = joined.then(|| send(&pipe, 0, "two "));
            tokio::task::yield_now().await;
            drop(far);
            assert_eq!(value(first).await, None);
            if let Some(second) = second {
                assert_eq!(value(second).await, None);
            }
            assert!(pipe.has_ended());
        }
    }

    /// The server repeats each request, in pieces. Callers on two threads wait, leave at any point, or are not polled
    /// for a while.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_caller_gets_its_own_reply_whatever_the_others_do() {
        const ROUNDS: u32 = 2_000;
        // So narrow that requests and replies come in parts.
        let (pipe, mut far) = opened(40);
        let serving = tokio::spawn(async move {
            let mut buffer = [0; 7];
            while let Ok(count @ 1..) = far.read(&mut buffer).await {
                far.write_all(&buffer[..count]).await.unwrap();
            }
        });
        let asking: Vec<_> = (0..4_u32)
            .map(|task| {
                let pipe = pipe.clone();
                tokio::spawn(async move {
                    let mut left_alone: VecDeque<(Reply, i64)> = VecDeque::new();
                    for round in 0..ROUNDS {
                        let number = i64::from(task * ROUNDS + round);
                        let mut reply = send(&pipe, 0, &format!(":{number}\r\n"));
                        match round.wrapping_mul(2_654_435_761).wrapping_add(task << 13) >> 13 & 7 {
                            0 => drop(reply),
                            1 => _ = poll(&mut reply),
                            2 => left_alone.push_back((reply, number)),
                            _ => assert_eq!(value(reply).await, Some(Value::Int(number))),
                        }
                        if left_alone.len() > 3
                            && let Some((reply, number)) = left_alone.pop_front()
                        {
                            assert_eq!(value(reply).await, Some(Value::Int(number)));
                        }
                    }
                    for (reply, number) in left_alone {
                        assert_eq!(value(reply).await, Some(Value::Int(number)));
                    }
                })
            })
            .collect();
        for task in asking {
            task.await.unwrap();
        }
        assert!(!pipe.has_ended());
        serving.abort();
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
