//! The identity of the task or thread that requests a lock, as far as the runtime knows it.

use std::thread::{self, ThreadId};

use tokio::runtime::Handle;
use tokio::task;

/// The requesting task, or the thread on which `block_on` drives one future, which has no task id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    Task(task::Id),
    Thread(ThreadId),
}

impl Requester {
    /// Returns the caller's identity; `None` under another executor, which may drive many futures on
    /// one thread.
    pub(crate) fn here() -> Option<Requester> {
        match task::try_id() {
            Some(id) => Some(Requester::Task(id)),
            None => Handle::try_current().ok().map(|_| Requester::Thread(thread::current().id())),
        }
    }
}
