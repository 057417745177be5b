//! The task of a connection, which writes and reads what is not left to a caller.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::question::Question;
use super::shared::Shared;
use super::stream_guard::{Driven, StreamGuard};

/// The task of a connection, which ends when the task ends or is dropped.
pub(super) struct Driver<Q: Question> {
    shared: Arc<Shared<Q>>,
    /// `true` if other tasks had a turn since there is something to write.
    has_yielded: bool,
}

impl<Q: Question> Driver<Q> {
    pub(super) fn new(shared: Arc<Shared<Q>>) -> Driver<Q> {
        Driver { shared, has_yielded: false }
    }
}

impl<Q: Question> Future for Driver<Q> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Driver { shared, has_yielded } = self.get_mut();
        loop {
            let stream = {
                let mut state = shared.lock();
                if state.has_ended {
                    return Poll::Ready(());
                }
                let stream =
                    if state.caller.is_none() { StreamGuard::take(shared, &mut state) } else { None };
                if stream.is_none() {
                    // Its user wakes this task if there is more to do.
                    state.driver = Some(context.waker().clone());
                }
                stream
            };
            let Some(mut stream) = stream else { return Poll::Pending };
            let mut has_more = false;
            let is_open = match stream.drive(has_yielded, context) {
                Ok(Driven::Yields) => {
                    // Woken while it runs, a task has its next turn after all that are ready.
                    context.waker().wake_by_ref();
                    stream.put_back(|_| None)
                }
                Ok(Driven::Waits { is_full }) => stream.put_back(|state| {
                    has_more = !is_full && !state.unwritten.is_empty();
                    state.driver = (!has_more).then(|| context.waker().clone());
                    None
                }),
                Err(_) => {
                    stream.end();
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

impl<Q: Question> Drop for Driver<Q> {
    fn drop(&mut self) {
        self.shared.end(None);
    }
}
