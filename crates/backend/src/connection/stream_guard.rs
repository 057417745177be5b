//! The exclusive use of the stream of a connection.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::question::Question;
use super::shared::{Shared, State, unwoken, wake};
use super::wire::Wire;

/// The exclusive use of the stream, until it is put back. The connection ends if it is dropped, also by a panic.
pub(super) struct StreamGuard<'a, Q: Question> {
    wire: Box<Wire>,
    end: EndOnDrop<'a, Q>,
}

impl<'a, Q: Question> StreamGuard<'a, Q> {
    /// Takes the stream; `None` where another uses it.
    pub(super) fn take(shared: &'a Shared<Q>, state: &mut State<Q>) -> Option<StreamGuard<'a, Q>> {
        let wire = state.wire.take()?;
        Some(StreamGuard { wire, end: EndOnDrop { shared, is_over: false } })
    }

    /// Puts the stream back, makes a change with that, and wakes the task that the change returns. Returns `false`
    /// where the connection has ended meanwhile.
    pub(super) fn put_back(self, change: impl FnOnce(&mut State<Q>) -> Option<Waker>) -> bool {
        let StreamGuard { wire, mut end } = self;
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

    /// Ends the connection. What was received before is handed out.
    pub(super) fn end(mut self) {
        while self.wire.has_rest() {
            // An error leaves no rest.
            _ = self.read(&mut unwoken());
        }
        let StreamGuard { wire, mut end } = self;
        end.is_over = true;
        end.shared.end(Some(wire));
    }

    /// Returns `true` if nothing has arrived.
    pub(super) fn is_silent(&mut self) -> bool {
        self.wire.is_silent()
    }

    /// Returns `true` if the last read has brought an answer.
    pub(super) fn has_answered(&self) -> bool {
        self.wire.answered() > 0
    }

    /// Writes what there is to write.
    pub(super) fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shared = self.end.shared;
        self.wire.write(context, |writing| shared.gather(writing))
    }

    /// Hands out the next portion of answers. Reads once if there is none.
    pub(super) fn read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shared = self.end.shared;
        let read = self.wire.read(context, |bytes| shared.hand_out(bytes));
        if let Poll::Ready(Err(error)) = &read
            && error.kind() == io::ErrorKind::InvalidData
        {
            tracing::warn!(garbled = %error, "a connection is given up");
        }
        read
    }

    /// Reads and writes what there is.
    pub(super) fn drive(&mut self, has_yielded: &mut bool, context: &mut Context<'_>) -> io::Result<Driven> {
        loop {
            // First, because a write that is not done yet must not keep answers from being read.
            let reads = self.read(context);
            if let Poll::Ready(Err(error)) = reads {
                return Err(error);
            }
            if !self.wire.has_rest() {
                *has_yielded = !*has_yielded && self.may_be_joined();
                if *has_yielded {
                    return Ok(Driven::Yields);
                }
            }
            let writes = self.write(context);
            if let Poll::Ready(Err(error)) = writes {
                return Err(error);
            }
            if self.wire.has_rest() {
                // The tasks of this portion run before the next is handed out.
                return Ok(Driven::Yields);
            }
            if reads.is_pending() {
                return Ok(Driven::Waits { is_full: writes.is_pending() });
            }
        }
    }

    /// Returns `true` if the tasks that are ready are to run before the next requests are written, which they may
    /// join. They do so once, and only if there are several: a turn costs a single task more than a write.
    fn may_be_joined(&self) -> bool {
        let state = self.end.shared.lock();
        let are_several = state.owed.len() > 1 || self.wire.answered() > 1;
        are_several && self.wire.is_written() && !state.unwritten.is_empty()
    }
}

/// The reason why the task of a connection pauses.
pub(super) enum Driven {
    /// Other tasks may have requests to write.
    Yields,
    /// Nothing arrives. Where it `is_full`, nothing can be written either.
    Waits { is_full: bool },
}

/// Hands out the answers that have arrived, also those that another task is to read. Waits for a task that uses the
/// stream at this moment, which is never for longer than one poll of it.
pub(super) async fn read_arrived<Q: Question>(shared: &Shared<Q>) {
    while !has_read_arrived(shared) {
        tokio::task::yield_now().await;
    }
}

/// Hands out the answers that have arrived; `false` where another uses the stream.
fn has_read_arrived<Q: Question>(shared: &Shared<Q>) -> bool {
    if shared.is_forked() {
        return true;
    }
    let stream = {
        let mut state = shared.lock();
        if state.has_ended {
            return true;
        }
        StreamGuard::take(shared, &mut state)
    };
    let Some(mut stream) = stream else { return false };
    let read = poll_fn(|context| {
        loop {
            match stream.read(context) {
                Poll::Ready(Ok(())) if !shared.lock().is_idle() => {}
                read => return Poll::Ready(read),
            }
        }
    });
    // Also if the budget of the task is used up.
    match pin!(tokio::task::unconstrained(read)).poll(&mut unwoken()) {
        Poll::Ready(Poll::Ready(Err(_))) => stream.end(),
        // This read woke nobody, so the task of the connection reads from now on.
        _ => _ = stream.put_back(State::leave_to_driver),
    }
    true
}

/// Ends the connection, if the use of the stream panics. What is being written counts as sent then.
struct EndOnDrop<'a, Q: Question> {
    shared: &'a Shared<Q>,
    is_over: bool,
}

impl<Q: Question> Drop for EndOnDrop<'_, Q> {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.end(None);
        }
    }
}
