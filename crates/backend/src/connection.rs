//! One connection that many requests share: written in the order in which they come, answered in that order.
//!
//! A store says in a [`Question`] what it asks, and how it is answered.
//!
//! A request on an idle connection is written by its caller, who also reads the answer: a task in between costs as much
//! as the request. As soon as there is another request, or the caller leaves, the task of the connection takes over.
//!
//! From then on a request is written into a buffer where it is made, and the task writes the buffer, reads the answers,
//! and hands them out. Before it writes, it lets the tasks run that are ready, which may have requests of their own. So
//! requests that come at the same time are one write, and their answers one read. Many answers may be handed out in
//! portions, and what the tasks of one portion request is written before the next: so the server works on it while
//! the other tasks run.
//!
//! Ground rules:
//!
//! - No request depends on the caller of another one, who may never be polled again. One whose caller is dropped is
//!   sent all the same, and its answer is read.
//! - Every request learns whether it left this process.
//! - One at a time uses the stream, and puts it back, or ends the connection. The lock is held for changes of the
//!   queues alone.
//! - A fork touches neither the lock nor the stream.

mod driver;
mod duplex;
mod question;
mod sent;
mod shared;
mod stream_guard;
mod wire;

use std::sync::Arc;
use std::task::Poll;

use tokio::sync::oneshot;

pub use duplex::Duplex;
pub use question::{Answer, NoAnswer, Question, garbled};
pub use sent::Sent;

use driver::Driver;
use shared::{Shared, State, unwoken, wake};
use stream_guard::StreamGuard;

/// One connection to a server, which ends when it is dropped.
#[derive(Debug)]
pub struct Connection<Q: Question> {
    shared: Arc<Shared<Q>>,
}

impl<Q: Question> Connection<Q> {
    /// Takes over a stream that is logged in, and on which nothing is owed. Needs a tokio runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(stream: Box<dyn Duplex>) -> Connection<Q> {
        let shared = Arc::new(Shared::new(stream));
        drop(leasehold_machine::spawn(Driver::new(shared.clone())));
        Connection { shared }
    }

    /// Returns `true` if it can take more requests. The end of an idle connection is noticed here.
    pub fn is_usable(&self) -> bool {
        if self.shared.is_forked() {
            return false;
        }
        let stream = {
            let mut state = self.shared.lock();
            if state.has_ended {
                return false;
            }
            if state.is_idle() { StreamGuard::take(&self.shared, &mut state) } else { None }
        };
        let Some(mut stream) = stream else { return true };
        // Nothing was asked, so nothing may come.
        if !stream.is_silent() {
            stream.end();
            return false;
        }
        stream.put_back(State::needed_driver)
    }

    /// Sends a request, which `write` appends to the bytes that it is given, and returns its answer; `None` if the
    /// connection takes none. `write` runs under the lock of the connection.
    ///
    /// # Cancel safety
    /// The request is sent, even if its answer is dropped.
    pub fn send(&self, question: Q, write: impl FnOnce(&mut Vec<u8>)) -> Option<Sent<Q>> {
        if self.shared.is_forked() {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let (id, stream, driver) = {
            let mut state = self.shared.lock();
            if state.has_ended || state.unwritten.len() > MAX_UNWRITTEN {
                return None;
            }
            let is_idle = state.is_idle();
            let id = state.push(question, sender, write);
            let stream = if is_idle { StreamGuard::take(&self.shared, &mut state) } else { None };
            state.caller = stream.as_ref().map(|_| id);
            let driver = if stream.is_none() { state.driver.take() } else { None };
            (id, stream, driver)
        };
        wake(driver);
        if let Some(mut stream) = stream {
            match stream.write(&mut unwoken()) {
                Poll::Ready(Ok(())) => _ = stream.put_back(State::needed_driver),
                // The task of the connection writes the rest.
                Poll::Pending => _ = stream.put_back(State::leave_to_driver),
                Poll::Ready(Err(_)) => stream.end(),
            }
        }
        Some(Sent { shared: self.shared.clone(), id, answer })
    }

    /// Hands out the answers that have arrived, also those that another task is to read. A caller that was not polled
    /// for longer than its limit looks once more for its own.
    pub async fn read_arrived(&self) {
        stream_guard::read_arrived(&self.shared).await;
    }
}

impl<Q: Question> Drop for Connection<Q> {
    fn drop(&mut self) {
        self.shared.end(None);
    }
}

/// The most bytes of requests that wait to be written: far more than all that fit within their time limits.
const MAX_UNWRITTEN: usize = 64 * 1024 * 1024;
