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
use redis::Value;
use tokio::io::ReadBuf;
use tokio::sync::oneshot;

use crate::net::duplex::Duplex;
use crate::net::replies;

/// The state that callers and the task of a connection share. A fork does not touch it: the stream is the parent's,
/// and so may the lock be, for ever.
#[derive(Debug)]
pub(crate) struct Shared {
    process: Process,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// The requests that are not written yet.
    pub(crate) unwritten: Vec<u8>,
    /// The receivers of the replies, in the order of the requests.
    pub(crate) pending: VecDeque<Pending>,
    /// The stream, unless it is in use at this moment, or the connection has ended.
    wire: Option<Box<Wire>>,
    /// The only request, while its caller reads the reply. The task of the connection does all else.
    pub(crate) caller: Option<u64>,
    /// The number of requests so far.
    pub(crate) requests: u64,
    /// The task of the connection, while it waits.
    pub(crate) driver: Option<Waker>,
    pub(crate) has_ended: bool,
}

impl State {
    /// Returns `true` if nothing is to be written or read.
    pub(crate) fn is_idle(&self) -> bool {
        self.unwritten.is_empty() && self.pending.is_empty()
    }

    /// Returns the waker of the task of the connection, if something is left to it.
    pub(crate) fn needed_driver(&mut self) -> Option<Waker> {
        if self.caller.is_none() && !self.is_idle() { self.driver.take() } else { None }
    }
}

impl Shared {
    pub(crate) fn new(stream: Box<dyn Duplex>) -> Shared {
        let wire = Wire {
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
        let state = State { wire: Some(Box::new(wire)), ..State::default() };
        Shared { process: Process::this(), state: Mutex::new(state) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is complete when the lock is released, also by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// Ends the connection.
    pub(crate) fn end(&self) {
        if self.is_forked() {
            return;
        }
        let (pending, wire, driver) = {
            let mut state = self.lock();
            state.has_ended = true;
            (std::mem::take(&mut state.pending), state.wire.take(), state.driver.take())
        };
        // Their receivers wake up outside the lock.
        drop((pending, wire));
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

/// A request that is not answered yet.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Replies to commands before the one that counts.
    pub(crate) ignored: usize,
    /// The receiver may be gone; the reply is read all the same.
    pub(crate) reply: oneshot::Sender<Value>,
}

/// The stream of a connection, with what is written and read in part.
#[derive(Debug)]
pub(crate) struct Wire {
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

/// The reason why the task of a connection pauses.
pub(crate) enum Driven {
    /// Other tasks may have requests to write.
    Yields,
    /// Nothing arrives. Where it `is_full`, nothing can be written either.
    Waits { is_full: bool },
}

impl Wire {
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
    pub(crate) fn drive(&mut self, shared: &Shared, cx: &mut Context<'_>) -> io::Result<Driven> {
        loop {
            // First, because a write that is not done yet must not keep replies from being read.
            let reads = self.read(shared, cx);
            if let Poll::Ready(Err(error)) = reads {
                return Err(error);
            }
            if self.rest.is_none() && self.must_yield(shared) {
                return Ok(Driven::Yields);
            }
            let writes = self.write(shared, cx);
            if let Poll::Ready(Err(error)) = writes {
                return Err(error);
            }
            if self.rest.is_some() {
                // The tasks of this portion run before the next is handed out.
                return Ok(Driven::Yields);
            }
            if reads.is_pending() {
                return Ok(Driven::Waits { is_full: writes.is_pending() });
            }
        }
    }

    /// Hands out the replies that were received before the connection ended.
    pub(crate) fn hand_out_rest(&mut self, shared: &Shared) {
        while let Some(begin) = self.rest {
            // An error leaves no rest.
            _ = self.hand_out_received(shared, begin);
        }
    }

    /// Returns `true` if the tasks that are ready are to run before the next requests are written. They do so once,
    /// and only if there are several: a turn costs a single task more than a write.
    fn must_yield(&mut self, shared: &Shared) -> bool {
        let is_first = {
            let state = shared.lock();
            let are_several = state.pending.len() > 1 || self.replies > 1;
            are_several && self.writing.is_empty() && !state.unwritten.is_empty()
        };
        self.has_yielded = is_first && !self.has_yielded;
        self.has_yielded
    }

    /// Writes what there is to write.
    pub(crate) fn write(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.writing.len() {
                self.writing.clear();
                self.written = 0;
                std::mem::swap(&mut self.writing, &mut shared.lock().unwritten);
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
    pub(crate) fn read(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(begin) = self.rest {
            self.hand_out_received(shared, begin)?;
            return Poll::Ready(Ok(()));
        }
        let mut space = [std::mem::MaybeUninit::uninit(); READ_SIZE];
        let mut buffer = ReadBuf::uninit(&mut space);
        let outcome = Pin::new(&mut *self.stream).poll_read(cx, &mut buffer);
        self.accept(shared, buffer.filled())?;
        ready!(outcome)?;
        if buffer.filled().is_empty() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the bytes of one read, none if there was nothing to read, and hands out a portion of complete replies.
    fn accept(&mut self, shared: &Shared, bytes: &[u8]) -> io::Result<()> {
        if self.received.is_empty() {
            // Mostly the bytes are whole replies of one portion, which need not be kept.
            let portion = hand_out(shared, bytes, &mut self.replies)?;
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
            self.hand_out_received(shared, 0)?;
        }
        Ok(())
    }

    /// Hands out a portion of the complete replies that begin here.
    ///
    /// An error leaves no rest: the first replies of the portion may have been handed out, and a second time they would
    /// go to the requests behind.
    fn hand_out_received(&mut self, shared: &Shared, begin: usize) -> io::Result<()> {
        self.rest = None;
        let portion = hand_out(shared, &self.received[begin..], &mut self.replies)?;
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
fn hand_out(shared: &Shared, bytes: &[u8], count: &mut usize) -> io::Result<Portion> {
    let mut length = 0;
    if bytes.is_empty() {
        return Ok(Portion { length, has_rest: false });
    }
    let most = (shared.lock().pending.len() / PORTIONS).max(PORTION_MIN);
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
            let mut state = shared.lock();
            match state.pending.front_mut() {
                None => return Err(io::ErrorKind::InvalidData.into()),
                Some(pending) if pending.ignored > 0 => {
                    pending.ignored -= 1;
                    None
                }
                Some(_) => state.pending.pop_front(),
            }
        };
        if let Some(pending) = reply {
            // Its sender may have left.
            _ = pending.reply.send(value);
        }
    }
    Ok(Portion { length, has_rest: false })
}

/// The portions in which the replies to all pending requests are handed out, and the fewest replies of one. A portion
/// costs a turn of the task and a write.
pub(crate) const PORTIONS: usize = 8;
const PORTION_MIN: usize = 4;

/// The bytes that are read at once: the replies to some hundred requests.
pub(crate) const READ_SIZE: usize = 8 * 1024;
