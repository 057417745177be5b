//! Work that runs only as long as something is held.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

/// Runs `work` until it is done or `lost` resolves. `check` reads the clock before each poll of `work`,
/// so a process that wakes up after its lease does no more work.
pub(crate) fn while_held<C, F, L, W>(check: F, lost: L, work: W) -> Run<F, L, W>
where
    F: Fn() -> Option<C>,
    L: Future<Output = C>,
    W: Future,
{
    Run { check, lost, work }
}

pin_project! {
    /// A future that polls the loss first, and then the work.
    pub(crate) struct Run<F, L, W> {
        check: F,
        #[pin]
        lost: L,
        #[pin]
        work: W,
    }
}

impl<C, F, L, T, W> Future for Run<F, L, W>
where
    F: Fn() -> Option<C>,
    L: Future<Output = C>,
    W: Future<Output = T>,
{
    type Output = Result<T, C>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let run = self.project();
        if let Some(cause) = (run.check)() {
            return Poll::Ready(Err(cause));
        }
        if let Poll::Ready(cause) = run.lost.poll(cx) {
            return Poll::Ready(Err(cause));
        }
        let Poll::Ready(output) = run.work.poll(cx) else { return Poll::Pending };
        // The last step may have taken longer than the lease.
        match (run.check)() {
            Some(cause) => Poll::Ready(Err(cause)),
            None => Poll::Ready(Ok(output)),
        }
    }
}
