//! Timers for callers on any executor.
//!
//! Ground rules: a caller needs no timer of its executor, since it sleeps by that of the client's runtime. A runtime
//! that has ended means a closed client.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use leasehold_core::Moment;

use super::Engine;
use crate::clock::CLOCK_READ_INTERVAL;
use crate::panics::contained;

impl Engine {
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
}
