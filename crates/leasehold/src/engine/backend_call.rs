//! Calls of the backend, and timers for callers on any executor.
//!
//! Ground rules: a future of the backend runs in a task of the client's runtime and is never dropped
//! midway; the caller only receives the result. So the caller may run on any executor, and needs no timer
//! of it. A runtime that has ended means a closed client.

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::{Claim, Effect, Failure, FailureKind, Moment, Patience};

use super::Engine;
use crate::clock::CLOCK_READ_INTERVAL;
use crate::error::Error;
use crate::panics::{contained, contained_request};

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
    pub(crate) fn run_read<T, W>(&self, work: W) -> impl Future<Output = Result<T, Failure>> + Send + use<T, W>
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

    /// Sleeps by the timer of the client's runtime, on any executor that polls the future. Returns
    /// `false` at once if the client closes.
    pub(crate) async fn sleep(&self, length: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => false,
            () = self.sleep_on(length) => true,
        }
    }

    /// Sleeps until this time by the client's clock, which continues while the machine is suspended. By the timer of the
    /// runtime it sleeps no longer than it would have to. Returns `false` at once if the client closes.
    pub(crate) async fn sleep_until(&self, end: Moment) -> bool {
        let mut left = self.clock.now().until(end);
        while !left.is_zero() {
            let part = left.min(CLOCK_READ_INTERVAL);
            if !self.sleep(part).await {
                return false;
            }
            left = (left - part).min(self.clock.now().until(end));
        }
        true
    }

    /// Sleeps as [`Engine::sleep`] does, even if the client closes.
    pub(super) async fn sleep_on(&self, length: Duration) {
        let entered = self.runtime.enter();
        let sleep = tokio::time::sleep(length);
        drop(entered);
        let mut sleep = std::pin::pin!(sleep);
        // A timer panics if its runtime ends at this moment.
        std::future::poll_fn(|context| contained(|| sleep.as_mut().poll(context)).unwrap_or(Poll::Ready(())))
            .await;
    }

    /// Checks that the client may still send requests.
    ///
    /// # Errors
    /// `Closed` where the client is closed, its runtime has ended, or this process is a fork of the one
    /// that opened it.
    pub(crate) fn check_open(&self, op: &'static str) -> Result<(), Error> {
        // The fork comes first: the token has a mutex, which may be locked there for ever.
        if self.is_forked() || self.closed.is_cancelled() {
            return Err(Error::closed(op));
        }
        Ok(())
    }

    /// Returns `true` if this process is a fork of the one that opened the client. Nothing of the client
    /// then belongs to this process.
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// Closes the client without a wait for releases, because a task that it depends on has ended: with its runtime, or
    /// by a panic. The renewer ends, too, and marks everything that is held as lost.
    pub(super) fn close_abruptly(self: &Arc<Self>) {
        self.closed.cancel();
        self.end_waits();
        self.end_direct_requests();
    }
}

/// A guard of a claim that is being requested. If the request ends abnormally, the claim is abandoned.
pub(super) struct Attempt<'a> {
    engine: &'a Arc<Engine>,
    claim: Option<&'a Claim>,
}

impl<'a> Attempt<'a> {
    pub(super) fn of(engine: &'a Arc<Engine>, claim: &'a Claim) -> Self {
        Attempt { engine, claim: Some(claim) }
    }

    /// Disarms the guard, because the request has ended normally.
    pub(super) fn over<T>(mut self, outcome: T) -> T {
        self.claim = None;
        outcome
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            self.engine.reaper.abandon(claim.clone());
        }
    }
}

/// Returns the failure of a request that cannot be sent any more.
pub(super) fn closed() -> Failure {
    Failure::new(FailureKind::Closed, Effect::None, Error::CLOSED)
}
