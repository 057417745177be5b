//! How the store is asked, and how callers sleep.
//!
//! Ground rules: a future of the backend runs in a task of the client's runtime and is never dropped midway; the caller is a
//! receiver. So the caller may run on any executor, and needs no timer of it. A runtime that ended is a closed client.

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold_core::{Claim, Effect, Failure, FailureKind};

use super::Engine;
use super::queue::Lines;
use crate::error::Error;
use crate::panics::{answered, contained};

impl Engine {
    /// Runs a change of the store to its end, whether or not the caller waits for it. Closing waits for it.
    ///
    /// Cancel safe: a dropped future leaves the change to its end.
    pub(crate) fn call<T, W>(&self, work: W) -> impl Future<Output = Result<T, Failure>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.carry_out(self.contenders.track_future(work))
    }

    /// The same for a question that changes nothing, for whose answer closing does not wait.
    pub(crate) fn peek<T, W>(&self, work: W) -> impl Future<Output = Result<T, Failure>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.carry_out(work)
    }

    fn carry_out<T, W>(&self, work: W) -> impl Future<Output = Result<T, Failure>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let open = !self.is_forked();
        let task = open.then(|| self.runtime.spawn(async move { answered(work).await.flatten() }));
        #[cfg(leasehold_sim)]
        let aborted = task.as_ref().and_then(|task| crate::mutant::aborted("who asks drops the call", task));
        async move {
            #[cfg(leasehold_sim)]
            let _aborted = aborted;
            match task {
                Some(task) => task.await.unwrap_or_else(|_| Err(closed())),
                None => Err(closed()),
            }
        }
    }

    /// Sleeps by the timer of the client's runtime, whatever executor polls it. `false`, and at once, where the client closes.
    pub(crate) async fn sleep(&self, length: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => false,
            () = self.sleep_on(length) => true,
        }
    }

    /// The same, although the client closes.
    pub(super) async fn sleep_on(&self, length: Duration) {
        let entered = self.runtime.enter();
        let sleep = tokio::time::sleep(length);
        drop(entered);
        let mut sleep = std::pin::pin!(sleep);
        // The timer of a runtime that ends in this moment panics.
        std::future::poll_fn(|context| contained(|| sleep.as_mut().poll(context)).unwrap_or(Poll::Ready(())))
            .await;
    }

    /// Whether anything may still be asked for.
    ///
    /// # Errors
    /// `Closed` where the client is closed, its runtime ended, or this process is a fork of its own.
    pub(crate) fn is_open(&self, op: &'static str) -> Result<(), Error> {
        if self.closed.is_cancelled() || self.is_forked() {
            return Err(Error::closed(op));
        }
        Ok(())
    }

    /// Whether this process is a fork of the one that opened the client: then nothing here is its own.
    pub(super) fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// Closes the client, since a task that it cannot do without has ended.
    pub(super) fn end_with_its_runtime(self: &Arc<Self>) {
        self.closed.cancel();
        Lines::end_waits(self);
        self.contenders.close();
        self.keeper.lose_all_soon();
    }
}

/// A claim that is being asked for. Where the asking ends otherwise than it should, the claim is given up.
pub(super) struct Attempt<'a> {
    engine: &'a Arc<Engine>,
    claim: Option<&'a Claim>,
}

impl<'a> Attempt<'a> {
    pub(super) fn of(engine: &'a Arc<Engine>, claim: &'a Claim) -> Self {
        Attempt { engine, claim: Some(claim) }
    }

    /// The asking has come to its own end.
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

/// What is said where nobody is left who could ask the store.
pub(super) fn closed() -> Failure {
    Failure::new(FailureKind::Closed, Effect::None, Error::CLOSED)
}
