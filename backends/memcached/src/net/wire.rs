//! The stream of a connection, the requests on it, and the turn of its user.
//!
//! Ground rules: one at a time uses the stream, and puts it back, or ends the connection. The lock is held for changes
//! of the queues alone, never while the stream is used.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use leasehold_machine::Process;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::protocol::reply::{self, Reply};

/// A stream to a server.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

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

pub(crate) type Answer = Result<Vec<Reply>, NoAnswer>;

/// The bytes to write, and the answers to expect.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) bytes: Vec<u8>,
    pub(crate) expected: Expected,
}

#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) first: u32,
    pub(crate) count: usize,
    /// The receiver may be gone; the answers are read all the same.
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// The state that callers and the task of a connection share. A fork does not touch it: the stream is the parent's,
/// and so may the lock be, for ever.
#[derive(Debug)]
pub(crate) struct Shared {
    process: Process,
    state: Mutex<State>,
}

/// The requests on a connection, and who writes and reads.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The requests that have not left, and their bytes.
    pub(crate) unwritten: VecDeque<Request>,
    bytes_unwritten: usize,
    /// The answers that are owed, in the order of the requests.
    pub(crate) expected: VecDeque<Expected>,
    /// The stream, unless it is in use at this moment, or the connection has ended.
    wire: Option<Box<Wire>>,
    /// The only request, while its caller reads the answers. The task of the connection does all else.
    pub(crate) caller: Option<u32>,
    /// The task of the connection, while it waits.
    pub(crate) driver: Option<Waker>,
    pub(crate) has_ended: bool,
}

impl State {
    /// Returns `true` if nothing is to be written or read.
    pub(crate) fn is_idle(&self) -> bool {
        self.unwritten.is_empty() && self.expected.is_empty()
    }

    /// Returns the waker of the task of the connection, if something is left to it.
    pub(crate) fn needed_driver(&mut self) -> Option<Waker> {
        if self.caller.is_none() && !self.is_idle() { self.driver.take() } else { None }
    }

    pub(crate) fn takes_more(&self) -> bool {
        !self.has_ended && self.bytes_unwritten <= MAX_UNWRITTEN
    }

    pub(crate) fn push(&mut self, request: Request) {
        self.bytes_unwritten += request.bytes.len();
        self.unwritten.push_back(request);
    }
}

impl Shared {
    pub(crate) fn new(wire: Wire) -> Shared {
        let state = State { wire: Some(Box::new(wire)), ..State::default() };
        Shared { process: Process::this(), state: Mutex::new(state) }
    }

    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is complete when the lock is released, also by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request back that is given up; `false` where it has left. From then on it never leaves.
    pub(crate) fn take_back(&self, first: u32) -> bool {
        if self.is_forked() {
            return false;
        }
        let mut state = self.lock();
        let place = state.unwritten.iter().position(|request| request.expected.first == first);
        let taken = place.and_then(|place| state.unwritten.remove(place));
        state.bytes_unwritten -= taken.as_ref().map_or(0, |request| request.bytes.len());
        taken.is_some()
    }

    /// Ends the connection.
    pub(crate) fn end(&self) {
        if self.is_forked() {
            return;
        }
        let (unsent, broken, wire, driver) = {
            let mut state = self.lock();
            state.has_ended = true;
            state.bytes_unwritten = 0;
            let (unsent, broken) =
                (std::mem::take(&mut state.unwritten), std::mem::take(&mut state.expected));
            (unsent, broken, state.wire.take(), state.driver.take())
        };
        for request in unsent {
            _ = request.expected.answer.send(Err(NoAnswer::Unsent));
        }
        // Their receivers wake up outside the lock, and learn that no answer comes.
        drop((broken, wire));
        wake(driver);
    }
}

/// Returns a context that wakes nothing.
pub(super) fn unwoken() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Wakes the task of the connection, if it waits. Never under the lock.
pub(crate) fn wake(driver: Option<Waker>) {
    if let Some(driver) = driver {
        driver.wake();
    }
}

/// The turn of the user of the stream.
pub(crate) struct Turn<'a> {
    pub(crate) wire: Box<Wire>,
    end: EndOnDrop<'a>,
}

impl<'a> Turn<'a> {
    /// Takes the stream; `None` where another uses it.
    pub(crate) fn take(shared: &'a Shared, state: &mut State) -> Option<Turn<'a>> {
        let wire = state.wire.take()?;
        Some(Turn { wire, end: EndOnDrop { shared, is_over: false } })
    }

    /// Puts the stream back, makes a change with that, and wakes the task that the change returns. Returns `false` where
    /// the connection has ended meanwhile.
    pub(crate) fn put_back(self, change: impl FnOnce(&mut State) -> Option<Waker>) -> bool {
        let Turn { wire, mut end } = self;
        end.is_over = true;
        let mut state = end.shared.lock();
        if state.has_ended {
            drop(state);
            // Closes the stream, and not under the lock.
            drop(wire);
            return false;
        }
        state.wire = Some(wire);
        let driver = change(&mut state);
        drop(state);
        wake(driver);
        true
    }

    /// Ends the connection.
    pub(crate) fn end(self) {
        drop(self);
    }
}

/// Ends the connection, also if the use of the stream panics.
struct EndOnDrop<'a> {
    shared: &'a Shared,
    is_over: bool,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.end();
        }
    }
}

/// The stream of a connection, with what is written and read in part.
pub(crate) struct Wire {
    stream: Box<dyn Duplex>,
    /// The requests that are being written, and how much of them is.
    writing: Vec<u8>,
    written: usize,
    must_flush: bool,
    /// The requests that were answered by what was read last.
    pub(crate) answered: usize,
    /// `true` if other tasks had a turn since there is something to write.
    has_yielded: bool,
    /// The bytes that were received and are not a whole answer yet.
    received: Vec<u8>,
    /// The first answers to the first request.
    replies: Vec<Reply>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

/// The reason why the task of a connection pauses.
pub(crate) enum Driven {
    /// Other tasks may have requests to write.
    Yields,
    /// Nothing arrives. Where it `is_full`, nothing can be written either.
    Waits { is_full: bool },
}

impl Wire {
    pub(crate) fn new(stream: Box<dyn Duplex>) -> Wire {
        Wire {
            stream,
            writing: Vec::new(),
            written: 0,
            must_flush: false,
            answered: 0,
            has_yielded: false,
            received: Vec::new(),
            replies: Vec::new(),
        }
    }

    /// Returns `true` if nothing has arrived. Hands nothing out, and looks also if the budget of the task is used up.
    pub(crate) fn is_silent(&mut self) -> bool {
        let mut space = [std::mem::MaybeUninit::uninit(); 1];
        let mut buffer = ReadBuf::uninit(&mut space);
        let read = poll_fn(|context| {
            Poll::Ready(Pin::new(&mut *self.stream).poll_read(context, &mut buffer).is_pending())
        });
        let is_pending = pin!(tokio::task::unconstrained(read)).poll(&mut unwoken());
        is_pending == Poll::Ready(true) && self.received.is_empty()
    }

    /// Reads and writes what there is.
    pub(crate) fn drive(&mut self, shared: &Shared, context: &mut Context<'_>) -> io::Result<Driven> {
        loop {
            // First, because a write that is not done yet must not keep answers from being read.
            let reads = self.read(shared, context);
            if let Poll::Ready(Err(error)) = reads {
                return Err(error);
            }
            if self.must_yield(shared) {
                return Ok(Driven::Yields);
            }
            let writes = self.write(shared, context);
            if let Poll::Ready(Err(error)) = writes {
                return Err(error);
            }
            if reads.is_pending() {
                return Ok(Driven::Waits { is_full: writes.is_pending() });
            }
        }
    }

    /// Returns `true` if the tasks that are ready are to run before the next requests are written, which they may
    /// join. They do so once, and only if there are several: a turn costs a single task more than a write.
    fn must_yield(&mut self, shared: &Shared) -> bool {
        let is_first = {
            let state = shared.lock();
            let are_several = state.unwritten.len() + state.expected.len() > 1 || self.answered > 1;
            are_several && self.writing.is_empty() && !state.unwritten.is_empty()
        };
        self.has_yielded = is_first && !self.has_yielded;
        self.has_yielded
    }

    /// Takes the next requests, which count as sent from then on.
    fn gather(&mut self, shared: &Shared) {
        self.writing.clear();
        self.writing.shrink_to(GATHERED_MAX);
        self.written = 0;
        let mut state = shared.lock();
        while self.writing.len() < GATHERED_MAX
            && let Some(Request { bytes, expected }) = state.unwritten.pop_front()
        {
            state.bytes_unwritten -= bytes.len();
            state.expected.push_back(expected);
            if self.writing.is_empty() {
                self.writing = bytes
            } else {
                self.writing.extend_from_slice(&bytes)
            }
        }
    }

    /// Writes what there is to write.
    pub(crate) fn write(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.writing.len() {
                self.gather(shared);
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
    pub(crate) fn read(&mut self, shared: &Shared, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut space = [std::mem::MaybeUninit::uninit(); READ_SIZE];
        let mut buffer = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut *self.stream).poll_read(context, &mut buffer))?;
        let accepted = self.accept(shared, buffer.filled());
        if let Err(error) = &accepted
            && error.kind() == io::ErrorKind::InvalidData
        {
            tracing::warn!(garbled = %error, "a connection to memcached is given up");
        }
        Poll::Ready(accepted)
    }

    /// Takes the bytes of one read, none at the end of the stream.
    fn accept(&mut self, shared: &Shared, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.received.is_empty() {
            // Mostly the bytes are whole answers, which need not be kept.
            let used = self.hand_out(shared, bytes)?;
            self.received.extend_from_slice(&bytes[used..]);
        } else {
            let mut received = std::mem::take(&mut self.received);
            received.extend_from_slice(bytes);
            let used = self.hand_out(shared, &received)?;
            received.drain(..used);
            self.received = received;
        }
        if reply::is_overlong(self.received.len()) {
            return Err(garbled("an answer came that is longer than any"));
        }
        if self.received.is_empty() {
            self.received.shrink_to(GATHERED_MAX);
        }
        Ok(())
    }

    /// Hands out the complete answers at the beginning of `bytes`, and returns how long they are.
    fn hand_out(&mut self, shared: &Shared, bytes: &[u8]) -> io::Result<usize> {
        let mut used = 0;
        self.answered = 0;
        loop {
            let read = reply::read(&bytes[used..]).map_err(|error| garbled(&error.to_string()))?;
            let Some((reply, length)) = read else { return Ok(used) };
            used += length;
            let answered = {
                let mut state = shared.lock();
                let Some(expected) = state.expected.front() else {
                    return Err(garbled("an answer came to what was not asked"));
                };
                let mark = expected.first.wrapping_add(self.replies.len() as u32);
                if reply.mark().is_some_and(|given| given != mark) {
                    return Err(garbled("an answer came to another question"));
                }
                self.replies.push(reply);
                if self.replies.len() == expected.count { state.expected.pop_front() } else { None }
            };
            if let Some(expected) = answered {
                self.answered += 1;
                // A caller that gave up meanwhile does not care.
                _ = expected.answer.send(Ok(std::mem::take(&mut self.replies)));
            }
        }
    }
}

fn garbled(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

/// The most bytes of requests that wait to be written: far more than all that fit within their time limits.
const MAX_UNWRITTEN: usize = 64 * 1024 * 1024;
/// Requests are gathered up to so many bytes before they are written.
const GATHERED_MAX: usize = 64 * 1024;
/// The bytes that are read at once: the answers to some hundred requests.
pub(crate) const READ_SIZE: usize = 8 * 1024;
