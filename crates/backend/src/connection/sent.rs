//! The caller of a request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use super::question::{Answer, NoAnswer, Question};
use super::shared::{Shared, unwoken, wake};
use super::stream_guard::{StreamGuard, read_arrived};

/// The answer to a request, once it arrives. It never does in a fork.
#[derive(Debug)]
pub struct Sent<Q: Question> {
    pub(super) shared: Arc<Shared<Q>>,
    pub(super) id: u64,
    pub(super) answer: oneshot::Receiver<Answer<Q>>,
}

impl<Q: Question> Sent<Q> {
    /// Waits for the answer for so long. Then the request is taken back, or else the connection ends: a server that
    /// owes an answer is not to be trusted with the next request.
    ///
    /// # Errors
    /// The answer is missing.
    pub async fn within(mut self, limit: Duration) -> Answer<Q> {
        if let Ok(answer) = tokio::time::timeout(limit, &mut self).await {
            return answer;
        }
        if self.shared.is_forked() {
            return Err(NoAnswer::Late);
        }
        if self.shared.take_back(self.id) {
            return Err(NoAnswer::Unsent);
        }
        // This caller may not have been polled for longer than its limit.
        read_arrived(&self.shared).await;
        if let Ok(answer) = self.answer.try_recv() {
            return answer;
        }
        self.shared.end(None);
        match self.answer.try_recv() {
            Ok(Err(NoAnswer::Broken)) | Err(_) => Err(NoAnswer::Late),
            // It came at the last moment, or the stream took nothing of the request.
            Ok(last) => last,
        }
    }

    fn receive(&mut self, context: &mut Context<'_>) -> Poll<Answer<Q>> {
        Pin::new(&mut self.answer).poll(context).map(|answer| answer.unwrap_or(Err(NoAnswer::Broken)))
    }

    /// Reads the answer, if that is left to this caller.
    fn read(&self, context: &mut Context<'_>) {
        let stream = {
            let mut state = self.shared.lock();
            if state.caller == Some(self.id) { StreamGuard::take(&self.shared, &mut state) } else { None }
        };
        let Some(mut stream) = stream else { return };
        loop {
            match stream.read(context) {
                // A part of the answer.
                Poll::Ready(Ok(())) if !stream.has_answered() => {}
                Poll::Ready(Ok(())) | Poll::Pending => break,
                Poll::Ready(Err(_)) => return stream.end(),
            }
        }
        stream.put_back(|state| {
            // What was sent meanwhile is left to the task of the connection already.
            if state.is_idle() {
                state.caller = None;
            }
            state.needed_driver()
        });
    }
}

impl<Q: Question> Future for Sent<Q> {
    type Output = Answer<Q>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer<Q>> {
        if self.shared.is_forked() {
            return Poll::Pending;
        }
        // What this caller hands out to itself must not wake it: a task that is woken while it runs wakes another
        // thread.
        if let Poll::Ready(answer) = self.receive(&mut unwoken()) {
            return Poll::Ready(answer);
        }
        self.read(context);
        // Another task may hand the answer out.
        self.receive(context)
    }
}

impl<Q: Question> Drop for Sent<Q> {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        wake({
            let mut state = self.shared.lock();
            if state.caller == Some(self.id) { state.leave_to_driver() } else { None }
        });
    }
}
