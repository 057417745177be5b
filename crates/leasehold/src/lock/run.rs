//! Work that runs only as long as something is held.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// Runs `work` until it is done or `lost` resolves. `check` reads the clock before each poll of `work`,
/// so a process that wakes up after its lease does no more work.
pub(crate) async fn while_held<T, C>(
    check: impl Fn() -> Option<C> + Unpin,
    lost: impl Future<Output = C>,
    work: impl Future<Output = T>,
) -> Result<T, C> {
    let lost = pin!(lost);
    let work = pin!(work);
    Run { check, lost, work }.await
}

/// A future that polls the loss first, and then the work.
struct Run<'a, F, L, W> {
    check: F,
    lost: Pin<&'a mut L>,
    work: Pin<&'a mut W>,
}

impl<C, F, L, T, W> Future for Run<'_, F, L, W>
where
    F: Fn() -> Option<C> + Unpin,
    L: Future<Output = C>,
    W: Future<Output = T>,
{
    type Output = Result<T, C>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(cause) = (self.check)() {
            return Poll::Ready(Err(cause));
        }
        if let Poll::Ready(cause) = self.lost.as_mut().poll(cx) {
            return Poll::Ready(Err(cause));
        }
        let Poll::Ready(output) = self.work.as_mut().poll(cx) else { return Poll::Pending };
        // The last step may have taken longer than the lease.
        match (self.check)() {
            Some(cause) => Poll::Ready(Err(cause)),
            None => Poll::Ready(Ok(output)),
        }
    }
}
