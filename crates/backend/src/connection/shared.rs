//! The state that callers and the task of a connection share: the requests, and who writes and reads.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use leasehold_machine::Process;
use tokio::sync::oneshot;

use super::duplex::Duplex;
use super::question::{Answer, NoAnswer, Question, garbled};
use super::wire::{Portion, Wire};

/// The state that callers and the task of a connection share. A fork does not touch it: the stream is the parent's,
/// and so may the lock be, for ever.
#[derive(Debug)]
pub(super) struct Shared<Q: Question> {
    process: Process,
    state: Mutex<State<Q>>,
}

/// The requests on a connection, and who writes and reads.
#[derive(Debug)]
pub(super) struct State<Q: Question> {
    /// The bytes of the last requests, which nobody writes yet.
    pub(super) unwritten: Vec<u8>,
    /// The number of these requests.
    waiting: usize,
    /// The requests that are not answered, in their order.
    pub(super) owed: VecDeque<Owed<Q>>,
    /// The number of requests so far.
    requests: u64,
    /// The stream, unless it is in use at this moment, or the connection has ended.
    pub(super) wire: Option<Box<Wire>>,
    /// The only request, while its caller reads the answer. The task of the connection does all else.
    pub(super) caller: Option<u64>,
    /// The task of the connection, while it waits.
    pub(super) driver: Option<Waker>,
    pub(super) has_ended: bool,
}

/// A request that is not answered.
#[derive(Debug)]
pub(super) struct Owed<Q: Question> {
    id: u64,
    /// The number of its bytes.
    length: usize,
    question: Q,
    /// The receiver may be gone; the answer is read all the same.
    answer: oneshot::Sender<Answer<Q>>,
}

impl<Q: Question> State<Q> {
    /// Returns `true` if nothing is to be written or read.
    pub(super) fn is_idle(&self) -> bool {
        self.owed.is_empty()
    }

    /// Returns the waker of the task of the connection, if something is left to it.
    pub(super) fn needed_driver(&mut self) -> Option<Waker> {
        if self.caller.is_none() && !self.is_idle() { self.driver.take() } else { None }
    }

    /// Leaves all to the task of the connection, and returns its waker.
    pub(super) fn leave_to_driver(&mut self) -> Option<Waker> {
        self.caller = None;
        self.driver.take()
    }

    /// Adds a request, which `write` appends to the bytes, and returns its number.
    pub(super) fn push(
        &mut self,
        question: Q,
        answer: oneshot::Sender<Answer<Q>>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> u64 {
        let added = Added { whole: self.unwritten.len(), bytes: &mut self.unwritten };
        write(&mut *added.bytes);
        let length = added.accept();
        self.requests += 1;
        self.waiting += 1;
        let id = self.requests;
        self.owed.push_back(Owed { id, length, question, answer });
        id
    }

    /// Returns the oldest request, if it is being written, or was.
    fn asked(&mut self) -> Option<&mut Owed<Q>> {
        if self.owed.len() > self.waiting { self.owed.front_mut() } else { None }
    }
}

/// The bytes of a request that is being added. If that panics, they are removed.
struct Added<'b> {
    bytes: &'b mut Vec<u8>,
    /// The number of bytes of whole requests.
    whole: usize,
}

impl Added<'_> {
    /// Keeps the bytes that were added, and returns their number.
    fn accept(mut self) -> usize {
        let before = std::mem::replace(&mut self.whole, self.bytes.len());
        self.whole - before
    }
}

impl Drop for Added<'_> {
    fn drop(&mut self) {
        self.bytes.truncate(self.whole);
    }
}

impl<Q: Question> Shared<Q> {
    pub(super) fn new(stream: Box<dyn Duplex>) -> Shared<Q> {
        let state = State {
            unwritten: Vec::new(),
            waiting: 0,
            owed: VecDeque::new(),
            requests: 0,
            wire: Some(Box::new(Wire::new(stream))),
            caller: None,
            driver: None,
            has_ended: false,
        };
        Shared { process: Process::this(), state: Mutex::new(state) }
    }

    pub(super) fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<Q>> {
        // Every change is complete when the lock is released, also by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills an empty buffer with the first requests that nobody writes yet. They count as sent while the stream is in
    /// use. Of very many bytes the rest stays here, so that its requests can be taken back.
    pub(super) fn gather(&self, writing: &mut Vec<u8>) {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.unwritten.len() <= GATHERED_MAX {
            std::mem::swap(writing, &mut state.unwritten);
            state.waiting = 0;
            return;
        }
        let (mut length, first) = (0, state.owed.len() - state.waiting);
        for owed in state.owed.range(first..) {
            if length >= GATHERED_MAX {
                break;
            }
            length += owed.length;
            state.waiting -= 1;
        }
        writing.extend(state.unwritten.drain(..length));
    }

    /// Hands out a portion of the answers at the beginning of `bytes`.
    pub(super) fn hand_out(&self, bytes: &[u8]) -> io::Result<Portion> {
        let most = (self.lock().owed.len() / Q::PORTIONS).max(PORTION_MIN);
        let mut portion = Portion::default();
        while portion.length < bytes.len() {
            if portion.answered == most {
                portion.has_rest = true;
                break;
            }
            let Some((reply, length)) = Q::read(&bytes[portion.length..])? else { break };
            portion.length += length;
            let answered = {
                let mut state = self.lock();
                if state.has_ended {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                let Some(owed) = state.asked() else {
                    return Err(garbled("an answer came to what was not asked"));
                };
                let answer = owed.question.take(reply)?;
                answer.and_then(|answer| Some((state.owed.pop_front()?, answer)))
            };
            if let Some((owed, answer)) = answered {
                portion.answered += 1;
                // A caller that gave up meanwhile does not care.
                _ = owed.answer.send(Ok(answer));
            }
        }
        Ok(portion)
    }

    /// Takes a request back that is given up; `false` if it is being written, or was. From then on it never leaves.
    pub(super) fn take_back(&self, id: u64) -> bool {
        let mut state = self.lock();
        let mut end = state.unwritten.len();
        for place in (0..state.owed.len()).rev().take(state.waiting) {
            let begin = end - state.owed[place].length;
            if state.owed[place].id == id {
                state.unwritten.drain(begin..end);
                state.waiting -= 1;
                let taken = state.owed.remove(place);
                // Its end wakes the receiver.
                drop(state);
                drop(taken);
                return true;
            }
            end = begin;
        }
        false
    }

    /// Ends the connection. `used` is the stream, if the one who ends the connection has it.
    pub(super) fn end(&self, used: Option<Box<Wire>>) {
        if self.is_forked() {
            return;
        }
        let (mut owed, mut unsent, wire, driver) = {
            let mut state = self.lock();
            state.has_ended = true;
            let wire = used.or_else(|| state.wire.take());
            let unsent =
                std::mem::take(&mut state.unwritten).len() + wire.as_ref().map_or(0, |wire| wire.left());
            (std::mem::take(&mut state.owed), unsent, wire, state.driver.take())
        };
        // The receivers wake up outside the lock.
        while let Some(last) = owed.pop_back() {
            let no_answer = if last.length <= unsent { NoAnswer::Unsent } else { NoAnswer::Broken };
            unsent = unsent.saturating_sub(last.length);
            _ = last.answer.send(Err(no_answer));
        }
        drop(wire);
        wake(driver);
    }
}

/// Returns a context that wakes nothing.
pub(super) fn unwoken() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Wakes the task of the connection, if it waits. Never under the lock.
pub(super) fn wake(driver: Option<Waker>) {
    if let Some(driver) = driver {
        driver.wake();
    }
}

/// The bytes after which no further requests are gathered.
const GATHERED_MAX: usize = 64 * 1024;
/// The fewest answers of a portion.
const PORTION_MIN: usize = 4;
