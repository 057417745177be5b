//! A wait for several futures at once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Waits for the first of several futures, which is removed; for ever without one.
pub(crate) async fn first_of<F: Future + ?Sized>(futures: &mut Vec<Pin<Box<F>>>) -> F::Output {
    poll_fn(|cx| {
        for at in 0..futures.len() {
            if let Poll::Ready(value) = futures[at].as_mut().poll(cx) {
                drop(futures.swap_remove(at));
                return Poll::Ready(value);
            }
        }
        Poll::Pending
    })
    .await
}
