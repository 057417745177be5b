//! Futures that are polled late or dropped early, at random.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::dice::Dice;

/// A future that is polled late now and then, and is dropped after a number of polls.
pub(crate) struct Polled<F> {
    future: Pin<Box<F>>,
    dice: Dice,
    left: Option<u64>,
}

impl<F: Future> Polled<F> {
    /// Polls a future late now and then, so that other tasks overtake it.
    pub(crate) fn late(future: F, dice: &Dice) -> Polled<F> {
        Polled { future: Box::pin(future), dice: dice.clone(), left: None }
    }

    /// Drops it after `polls` polls (`None`).
    pub(crate) fn dropped_after(mut self, polls: u64) -> Polled<F> {
        self.left = Some(polls);
        self
    }
}

impl<F: Future> Future for Polled<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.dice.percent(20) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(left) = &mut self.left {
            if *left == 0 {
                return Poll::Ready(None);
            }
            *left -= 1;
        }
        let polled = self.future.as_mut().poll(context).map(Some);
        if polled.is_pending() && self.left == Some(0) {
            return Poll::Ready(None);
        }
        polled
    }
}

/// Lets up to three rounds of the other tasks pass.
pub(crate) async fn step_aside(dice: &Dice) {
    for _ in 0..dice.below(4) {
        tokio::task::yield_now().await;
    }
}
