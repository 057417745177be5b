//! Waiting in the kernel for the end of other claims, and for the end of one's own.
//!
//! No thread is blocked and nothing is polled: the reading ends of FIFOs are registered with the
//! reactor of the runtime. Every wake-up means only that the queue has to be read again.

use std::future::poll_fn;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_core::{Failure, Patience};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Inner;
use super::liveness_fifo::LivenessFifo;

/// A watched FIFO, with the number of bytes in it when the queue was read.
#[derive(Debug)]
pub(super) struct Watch {
    end: End,
    seen: u64,
}

/// The reading end of another claim, or of one's own.
#[derive(Debug)]
enum End {
    Other(OwnedFd),
    Own(Arc<LivenessFifo>),
}

impl Watch {
    /// Creates a watch. Called under the short lock, under which bytes are written as well.
    pub(super) fn new(file: OwnedFd) -> Watch {
        Watch { seen: bytes_in(file.as_fd()), end: End::Other(file) }
    }

    /// Watches one's own FIFO, into which others write when they end the claim.
    pub(super) fn own(fifo: Arc<LivenessFifo>) -> Watch {
        Watch { seen: bytes_in(fifo.as_fd()), end: End::Own(fifo) }
    }

    /// Returns `true` if something happened since the queue was read.
    fn has_changed(&self) -> bool {
        let mut ends = [PollFd::new(&self.end, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If the poll fails, the queue is read again.
        poll(&mut ends, Some(&now)).is_err()
            || ends[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
            || bytes_in(self.end.as_fd()) != self.seen
    }

    /// Returns `true` if the claim behind it has ended.
    fn has_ended(&self) -> bool {
        super::liveness_fifo::has_ended(self.end.as_fd())
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            End::Other(file) => file.as_fd(),
            End::Own(fifo) => fifo.as_fd(),
        }
    }
}

impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.end.as_fd().as_raw_fd()
    }
}

/// Returns when one of them changed, patience ended, or `again` has passed.
///
/// # Errors
/// `Unavailable` if the reactor takes no more descriptors.
pub(super) async fn any(
    watches: Vec<Watch>,
    patience: &Patience,
    again: Option<Duration>,
) -> Result<(), Failure> {
    let mut watched = Vec::with_capacity(watches.len());
    for watch in watches {
        watched.push(register(watch)?);
    }
    let changed = poll_fn(|cx| {
        let is_changed = watched.iter().any(|watch| poll_changed(watch, cx).is_ready());
        if is_changed { Poll::Ready(()) } else { Poll::Pending }
    });
    tokio::select! {
        () = changed => {}
        () = patience.ended() => {}
        () = tokio::time::sleep(again.unwrap_or_default()), if again.is_some() => {}
    }
    Ok(())
}

/// Returns when the claim behind it has ended, or `limit` has passed.
///
/// # Errors
/// As [`any`].
pub(super) async fn end_of(watch: Watch, limit: Duration) -> Result<(), Failure> {
    let watch = register(watch)?;
    let ended = async {
        while !watch.get_ref().has_ended() {
            match watch.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => return,
            }
        }
    };
    // After the limit it has not ended, which is as good an answer.
    let _ = tokio::time::timeout(limit, ended).await;
    Ok(())
}

/// Watches over the granted claims of this process that have this sign of life, one after the other, and ends
/// the one that another process breaks.
pub(super) async fn over(fifo: Arc<LivenessFifo>, inner: Weak<Inner>) {
    let Ok(watch) = register(Watch::own(fifo.clone())) else {
        tracing::warn!(
            "a granted claim cannot be watched: if it is broken, only its next renewal will notice"
        );
        return;
    };
    loop {
        match watch.readable().await {
            Ok(mut ready) => ready.clear_ready(),
            Err(_) => return,
        }
        let Some(inner) = inner.upgrade() else { return };
        if let Ok(false) = fifo.is_in_place() {
            return inner.claims.lose_by(&fifo);
        }
    }
}

// The replacement is an unsafe function; its requirement, a descriptor that stays open and the same
// while it is registered, is ensured here by the types: a `Watch` owns its descriptor, or a share in
// it, and never changes it.
#[allow(deprecated)]
fn register(watch: Watch) -> Result<AsyncFd<Watch>, Failure> {
    AsyncFd::with_interest(watch, Interest::READABLE).map_err(|cause| {
        let detail =
            format!("cannot wait for the end of another claim: {cause}; raise fs.epoll.max_user_watches");
        Failure::unavailable(detail).because(cause)
    })
}

fn poll_changed(watch: &AsyncFd<Watch>, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        match watch.poll_read_ready(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            Poll::Ready(Ok(_)) if watch.get_ref().has_changed() => return Poll::Ready(()),
            // Bytes that were there before; later ones make it ready again.
            Poll::Ready(Ok(mut ready)) => ready.clear_ready(),
        }
    }
}

fn bytes_in(file: BorrowedFd<'_>) -> u64 {
    rustix::io::ioctl_fionread(file).unwrap_or(u64::MAX)
}
