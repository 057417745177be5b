//! The stream, with what is written and read in part. What the bytes mean is known above.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::ReadBuf;

use super::duplex::Duplex;

/// The stream of a connection, with what is written and read in part.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Box<dyn Duplex>,
    /// The requests that are being written, and how much of them is.
    writing: Vec<u8>,
    written: usize,
    must_flush: bool,
    /// The bytes that were received and are not handed out: the beginning of a reply, or also whole ones if there
    /// is a rest.
    received: Vec<u8>,
    /// The number of those in which the end of a reply was looked for.
    tried: usize,
    /// The number of bytes to come that belong to a reply that was handed out.
    skipping: usize,
    /// The place in `received` where the replies begin that the next portions are made of.
    rest: Option<usize>,
    /// The number of requests that were answered by what was read last.
    answered: usize,
}

/// The answers that were handed out in one go.
#[derive(Debug, Default)]
pub(super) struct Portion {
    /// The number of their bytes, also of those to come.
    pub(super) length: usize,
    pub(super) answered: usize,
    /// `true` if more were received.
    pub(super) has_rest: bool,
}

impl Wire {
    pub(super) fn new(stream: Box<dyn Duplex>) -> Wire {
        Wire {
            stream,
            writing: Vec::new(),
            written: 0,
            must_flush: false,
            received: Vec::new(),
            tried: 0,
            skipping: 0,
            rest: None,
            answered: 0,
        }
    }

    /// Returns `true` if nothing has arrived but what is to be skipped. Hands nothing out, and looks also if the budget
    /// of the task is used up.
    pub(super) fn is_silent(&mut self) -> bool {
        loop {
            let mut space = [std::mem::MaybeUninit::uninit(); READ_SIZE];
            let mut buffer = ReadBuf::uninit(&mut space[..self.skipping.clamp(1, READ_SIZE)]);
            let read = poll_fn(|context| {
                Poll::Ready(Pin::new(&mut *self.stream).poll_read(context, &mut buffer).is_pending())
            });
            let mut unwoken = Context::from_waker(Waker::noop());
            let is_pending = pin!(tokio::task::unconstrained(read)).poll(&mut unwoken);
            if is_pending == Poll::Ready(true) {
                return self.received.is_empty();
            }
            let count = buffer.filled().len();
            if count == 0 || self.skipping == 0 {
                return false;
            }
            self.skipping -= count;
        }
    }

    /// Returns `true` if all that was gathered is written.
    pub(super) fn is_written(&self) -> bool {
        self.written == self.writing.len()
    }

    /// Returns the number of gathered bytes that the stream has not taken.
    pub(super) fn left(&self) -> usize {
        self.writing.len() - self.written
    }

    /// Returns the number of requests that were answered by what was read last.
    pub(super) fn answered(&self) -> usize {
        self.answered
    }

    /// Returns `true` if answers were received that the next portions are made of.
    pub(super) fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// Writes what there is to write. `gather` fills an empty buffer with the next requests, if there are any.
    pub(super) fn write(
        &mut self,
        context: &mut Context<'_>,
        gather: impl Fn(&mut Vec<u8>),
    ) -> Poll<io::Result<()>> {
        loop {
            if self.is_written() {
                self.writing.clear();
                self.writing.shrink_to(KEPT_MAX);
                self.written = 0;
                gather(&mut self.writing);
                if self.writing.is_empty() {
                    if self.must_flush {
                        ready!(Pin::new(&mut *self.stream).poll_flush(context))?;
                        self.must_flush = false;
                    }
                    return Poll::Ready(Ok(()));
                }
            }
            let left = &self.writing[self.written..];
            match ready!(Pin::new(&mut *self.stream).poll_write(context, left)) {
                Ok(count @ 1..) => {
                    self.written += count;
                    self.must_flush = true;
                }
                failed => {
                    // A socket that fails has taken nothing of this. TLS may have sent whole records, but not of bytes
                    // that fit into one: of a part of a record, the server reads nothing.
                    if self.must_flush || left.len() > RECORD {
                        self.written = self.writing.len();
                    }
                    return Poll::Ready(Err(failed.err().unwrap_or_else(|| io::ErrorKind::WriteZero.into())));
                }
            }
        }
    }

    /// Hands out the next portion of answers. Reads once if there is none. `hand_out` is given bytes that begin with a
    /// reply.
    pub(super) fn read(
        &mut self,
        context: &mut Context<'_>,
        hand_out: impl Fn(&[u8]) -> io::Result<Portion>,
    ) -> Poll<io::Result<()>> {
        if let Some(begin) = self.rest {
            return Poll::Ready(self.hand_out_received(begin, hand_out));
        }
        let mut space = [std::mem::MaybeUninit::uninit(); READ_SIZE];
        let mut buffer = ReadBuf::uninit(&mut space);
        let outcome = Pin::new(&mut *self.stream).poll_read(context, &mut buffer);
        // Also if nothing more comes, now or ever, a reply may be whole in which no end was looked for.
        self.accept(buffer.filled(), hand_out)?;
        ready!(outcome)?;
        if buffer.filled().is_empty() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the bytes of one read, none if there was nothing to read, and hands out a portion.
    fn accept(&mut self, bytes: &[u8], hand_out: impl Fn(&[u8]) -> io::Result<Portion>) -> io::Result<()> {
        if !bytes.is_empty() {
            self.answered = 0;
        }
        let skipped = bytes.len().min(self.skipping);
        self.skipping -= skipped;
        let bytes = &bytes[skipped..];
        if !self.received.is_empty() {
            self.received.extend_from_slice(bytes);
            // A reply is read from its beginning each time. So a long one is not tried again while more of it is
            // there, unless it has doubled.
            let more_may_follow = bytes.len() == READ_SIZE && self.received.len() < 2 * self.tried;
            if self.received.len() > self.tried && !more_may_follow {
                self.hand_out_received(0, hand_out)?;
            }
        } else if !bytes.is_empty() {
            // Mostly the bytes are whole replies of one portion, which need not be kept.
            let portion = hand_out(bytes)?;
            self.skipping = portion.length.saturating_sub(bytes.len());
            self.received.extend_from_slice(bytes.get(portion.length..).unwrap_or_default());
            self.tried = self.received.len();
            self.answered = portion.answered;
            self.rest = portion.has_rest.then_some(0);
        }
        Ok(())
    }

    /// Hands out a portion of the answers that begin here.
    ///
    /// An error leaves no rest: the first answers of the portion may have been handed out, and a second time they would
    /// go to the requests behind.
    fn hand_out_received(
        &mut self,
        begin: usize,
        hand_out: impl Fn(&[u8]) -> io::Result<Portion>,
    ) -> io::Result<()> {
        self.rest = None;
        let portion = hand_out(&self.received[begin..])?;
        let end = begin + portion.length;
        self.skipping = end.saturating_sub(self.received.len());
        let end = end.min(self.received.len());
        self.answered = portion.answered;
        self.rest = portion.has_rest.then_some(end);
        if self.rest.is_none() {
            self.received.drain(..end);
            self.received.shrink_to(KEPT_MAX);
            self.tried = self.received.len();
        }
        Ok(())
    }
}

/// The bytes that are read at once: the answers to some hundred requests.
const READ_SIZE: usize = 8 * 1024;
/// An empty buffer keeps the memory for so many bytes.
const KEPT_MAX: usize = 64 * 1024;
/// The most bytes that TLS sends in one record.
const RECORD: usize = 16 * 1024;
