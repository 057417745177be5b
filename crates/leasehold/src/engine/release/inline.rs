//! A release that the waiting caller carries out inline, for as long as nothing else depends on it.
//!
//! A release through the reaper costs two task switches, often between threads: more than everything else
//! that the engine does for an uncontended lock. So the caller that waits for the release sends it, if the backend
//! sends such releases directly or the client has no other one under way, and as long as nothing else in this process
//! waits for the resource.
//!
//! Ground rules: the release is never dropped midway. The reaper takes it over when its caller is
//! dropped, or when another task of the process comes to depend on it. So a caller that is not polled
//! delays nothing but itself.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;

use crate::panics::can_enter_a_runtime;

/// A release under way. Its output says whether the server answered.
pub(crate) type ReleaseFuture = BoxFuture<'static, bool>;

/// A release together with the task that carries it out.
pub(crate) struct InlineRelease {
    stage: Mutex<Stage>,
    caller: AtomicWaker,
    /// The runtime on which the connections of the backend live; the caller may poll on any thread.
    runtime: Handle,
    take_over: Box<dyn Fn(ReleaseFuture) + Send + Sync>,
}

/// The state of the release. It changes under the lock alone, so `detach` and `poll_release` cannot miss
/// each other.
enum Stage {
    /// The release, between two polls of its caller; `detach` can take it.
    Parked(ReleaseFuture),
    /// A poll by the caller is under way; `detach_wanted` is `true` if something has come to depend on the
    /// release meanwhile.
    Polling { detach_wanted: bool },
    /// Nothing: the release is finished, or was taken over by the reaper.
    Left,
}

impl InlineRelease {
    /// Creates an inline release; `take_over` gets the release where the caller does not finish it.
    pub(crate) fn new(
        release: ReleaseFuture,
        runtime: Handle,
        take_over: impl Fn(ReleaseFuture) + Send + Sync + 'static,
    ) -> Arc<InlineRelease> {
        Arc::new(InlineRelease {
            stage: Mutex::new(Stage::Parked(release)),
            caller: AtomicWaker::new(),
            runtime,
            take_over: Box::new(take_over),
        })
    }

    /// Detaches the release from its caller, because something else depends on it.
    pub(crate) fn detach(&self) {
        let mut stage = self.stage();
        match std::mem::replace(&mut *stage, Stage::Left) {
            Stage::Parked(release) => {
                drop(stage);
                (self.take_over)(release);
                self.caller.wake();
            }
            // The caller passes it on at the end of its poll.
            Stage::Polling { .. } => *stage = Stage::Polling { detach_wanted: true },
            Stage::Left => {}
        }
    }

    /// Polls the release. Ready when it is finished or has been taken from the caller.
    fn poll_release(&self, context: &mut Context<'_>) -> Poll<()> {
        // Registered before the stage is read, so that a `detach` after that wakes this caller.
        self.caller.register(context.waker());
        // The release is taken out for the poll, so that `detach` never waits for the end of a poll.
        let taken = std::mem::replace(&mut *self.stage(), Stage::Polling { detach_wanted: false });
        // Already finished or detached: there is nothing left to poll.
        let Stage::Parked(mut release) = taken else {
            *self.stage() = Stage::Left;
            return Poll::Ready(());
        };
        // A thread that is ending cannot enter it, and leaves the release to the reaper.
        let entered = can_enter_a_runtime().then(|| self.runtime.enter());
        let polled = match &entered {
            Some(_) => release.as_mut().poll(context),
            None => Poll::Pending,
        };
        let mut stage = self.stage();
        // If `detach` was called during the poll, the release is passed on here.
        let detach_wanted = entered.is_none() || matches!(*stage, Stage::Polling { detach_wanted: true });
        if polled.is_pending() && !detach_wanted {
            *stage = Stage::Parked(release);
            return Poll::Pending;
        }
        *stage = Stage::Left;
        drop(stage);
        if polled.is_pending() {
            (self.take_over)(release);
        }
        Poll::Ready(())
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        // No foreign code is called under the lock.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The caller's handle to an inline release. Dropping it leaves the release to the reaper.
#[must_use = "the caller does the work"]
pub(crate) struct InlineReleaseFuture(pub(crate) Arc<InlineRelease>);

impl Future for InlineReleaseFuture {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_release(context)
    }
}

impl Drop for InlineReleaseFuture {
    fn drop(&mut self) {
        self.0.detach();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use futures_util::FutureExt;
    use tokio::sync::{mpsc, oneshot};

    /// Returns an inline release, the sender that ends it, and the receiver on which it arrives when
    /// taken over.
    fn inline() -> (Arc<InlineRelease>, oneshot::Sender<()>, mpsc::UnboundedReceiver<ReleaseFuture>) {
        let (end, ended) = oneshot::channel::<()>();
        let (others, taken_over) = mpsc::unbounded_channel();
        let release = ended.map(|ended| ended.is_ok()).boxed();
        (
            InlineRelease::new(release, Handle::current(), move |release| drop(others.send(release))),
            end,
            taken_over,
        )
    }

    #[tokio::test]
    async fn inline_release_is_finished_by_its_caller() {
        let (inline, end, mut taken_over) = inline();
        let mut inline_release = InlineReleaseFuture(inline);
        assert!((&mut inline_release).now_or_never().is_none());
        end.send(()).unwrap();
        inline_release.await;
        assert!(taken_over.recv().await.is_none(), "nobody else had to do anything");
    }

    #[tokio::test]
    async fn dropped_inline_release_is_taken_over_by_the_reaper() {
        let (inline, end, mut taken_over) = inline();
        let mut inline_release = InlineReleaseFuture(inline);
        assert!((&mut inline_release).now_or_never().is_none());
        drop(inline_release);
        end.send(()).unwrap();
        assert!(taken_over.recv().await.unwrap().await);
    }

    #[tokio::test]
    async fn detached_inline_release_is_taken_over_and_wakes_its_caller() {
        let (inline, end, mut taken_over) = inline();
        let mut inline_release = InlineReleaseFuture(inline.clone());
        assert!((&mut inline_release).now_or_never().is_none());
        let caller = tokio::spawn(inline_release);
        tokio::task::yield_now().await;
        inline.detach();
        let release = taken_over.recv().await.unwrap();
        caller.await.unwrap();
        end.send(()).unwrap();
        assert!(release.await);
    }

    #[tokio::test]
    async fn inline_release_detached_during_a_poll_is_taken_over_after_it() {
        let (others, mut taken_over) = mpsc::unbounded_channel();
        let (wanted, wants) = std::sync::mpsc::channel::<Arc<InlineRelease>>();
        let release = std::future::poll_fn(move |_| {
            // Something comes to depend on it in the middle of a poll.
            if let Ok(inline) = wants.try_recv() {
                inline.detach();
            }
            Poll::Pending
        });
        let take_over = move |release| drop(others.send(release));
        let inline = InlineRelease::new(release.boxed(), Handle::current(), take_over);
        wanted.send(inline.clone()).unwrap();
        InlineReleaseFuture(inline).await;
        assert!(taken_over.try_recv().is_ok());
    }

    thread_local! {
        static LAST: RefCell<Option<LastAct>> = const { RefCell::new(None) };
    }

    /// Polls a release when its thread ends.
    struct LastAct(InlineReleaseFuture, std::sync::mpsc::Sender<bool>);

    impl Drop for LastAct {
        fn drop(&mut self) {
            self.1.send((&mut self.0).now_or_never().is_some()).unwrap();
        }
    }

    /// A panic there ends the process.
    #[tokio::test]
    async fn inline_release_polled_in_a_thread_that_is_ending_is_taken_over() {
        let (inline, end, mut taken_over) = inline();
        let ((polled, is_over), handle) = (std::sync::mpsc::channel(), Handle::current());
        let ends = std::thread::spawn(move || {
            LAST.set(Some(LastAct(InlineReleaseFuture(inline), polled)));
            // What a thread uses later is destroyed first.
            drop(handle.enter());
        });
        ends.join().unwrap();
        assert!(is_over.recv().unwrap());
        end.send(()).unwrap();
        assert!(taken_over.recv().await.unwrap().await);
    }

    /// Threads that poll it and that detach it meet at any point: it is taken over in each case.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn inline_release_detached_at_any_point_is_taken_over_once() {
        for _ in 0..2_000 {
            let (others, mut taken_over) = mpsc::unbounded_channel();
            let take_over = move |release| drop(others.send(release));
            // It never finishes with its caller, which polls it again and again.
            let release = std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                Poll::Pending
            });
            let inline = InlineRelease::new(release.boxed(), Handle::current(), take_over);
            let caller = tokio::spawn(InlineReleaseFuture(inline.clone()));
            let wants = tokio::task::spawn_blocking(move || inline.detach());
            assert!(taken_over.recv().await.is_some());
            wants.await.unwrap();
            caller.await.unwrap();
            assert!(taken_over.try_recv().is_err(), "it is taken over once");
        }
    }
}
