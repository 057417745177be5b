//! Calls of the backend that their caller may leave.
//!
//! Ground rules: a future of the backend runs in a task of the client's runtime and is never dropped
//! midway; the caller only receives the result. So the caller may run on any executor. A runtime that has
//! ended means a closed client.

use std::future::Future;

use futures_util::FutureExt;
use leasehold_core::{Effect, Failure, FailureKind, Patience};

use super::Engine;
use crate::error::Error;
use crate::panics::contained_request;

impl Engine {
    /// Runs a change of the store to its end, whether or not the caller waits for it. Closing waits for
    /// the change.
    ///
    /// Cancel safe: if the future is dropped, the change still runs to its end.
    pub(crate) fn run_write<T, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Failure>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.carry_out(self.tracked.track_future(work), Effect::Unknown)
    }

    /// Runs a request that changes nothing, as [`Engine::run_write`] does. Closing does not wait for it.
    pub(crate) fn run_read<T, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Failure>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.carry_out(work, Effect::None)
    }

    /// Runs a wait of the backend whose caller may not be polled: its patience ends when the client closes.
    pub(super) async fn wait_until_closing<T>(
        &self,
        patience: &Patience,
        wait: impl Future<Output = T>,
    ) -> T {
        let mut wait = std::pin::pin!(wait);
        tokio::select! {
            biased;
            outcome = &mut wait => outcome,
            () = self.closing() => {
                patience.end();
                wait.await
            }
        }
    }

    /// Runs a request in a task. If the task ends with the runtime, `effect` is known of the request.
    fn carry_out<T, W>(
        &self,
        work: W,
        effect: Effect,
    ) -> impl Future<Output = Result<T, Failure>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let open = !self.is_forked();
        // Without the type of the request, as in `Engine::spawn`.
        let request = async move { contained_request(work).await.flatten() };
        let task = open.then(|| self.runtime.spawn(request.boxed()));
        #[cfg(leasehold_sim)]
        let aborted = task.as_ref().and_then(|task| crate::mutant::aborted("who asks drops the call", task));
        async move {
            #[cfg(leasehold_sim)]
            let _aborted = aborted;
            match task {
                Some(task) => task.await.unwrap_or_else(|_| Err(closed().with_effect(effect))),
                None => Err(closed()),
            }
        }
    }
}

/// Returns the failure of a request that cannot be sent any more.
pub(super) fn closed() -> Failure {
    Failure::new(FailureKind::Closed, Effect::None, Error::CLOSED)
}
