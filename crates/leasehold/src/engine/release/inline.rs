//! A release that the waiting caller carries out inline, for as long as nothing else depends on it.
//!
//! A release through the reaper costs two task switches, often between threads: more than everything else
//! that the engine does for an uncontended lock. So the caller that waits for the release sends it, as long
//! as the client has no other release under way and nothing else in this process waits for the resource.
//!
//! Ground rules: the release is never dropped midway. The reaper takes it over when its carrier is
//! dropped, or when another task of the process comes to depend on it. So a carrier that is not polled
//! delays nothing but itself.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;

/// A release under way. Its output says whether the server answered.
pub(crate) type Ending = BoxFuture<'static, bool>;

/// A release together with the task that carries it out.
pub(crate) struct InlineRelease {
    place: Mutex<Place>,
    carrier: AtomicWaker,
    /// The runtime on which the connections of the backend live; the carrier may be polled on any thread.
    runtime: Handle,
    go_on: Box<dyn Fn(Ending) + Send + Sync>,
}

/// The state of the release. It changes under the lock alone, so `send_off` and `carry_on` cannot miss
/// each other.
enum Place {
    /// The release, between two polls of its carrier; `send_off` can take it.
    Lies(Ending),
    /// A poll by the carrier is under way; `is_wanted` is `true` if something has come to depend on the
    /// release meanwhile.
    IsCarriedOn { is_wanted: bool },
    /// Nothing: the release is finished, or was taken over by the reaper.
    Left,
}

impl InlineRelease {
    /// Creates an inline release; `go_on` takes over the release where the carrier does not finish it.
    pub(crate) fn new(
        ending: Ending,
        runtime: Handle,
        go_on: impl Fn(Ending) + Send + Sync + 'static,
    ) -> Arc<InlineRelease> {
        Arc::new(InlineRelease {
            place: Mutex::new(Place::Lies(ending)),
            carrier: AtomicWaker::new(),
            runtime,
            go_on: Box::new(go_on),
        })
    }

    /// Detaches the release from its carrier, because something else depends on it.
    pub(crate) fn send_off(&self) {
        let mut place = self.place();
        match std::mem::replace(&mut *place, Place::Left) {
            Place::Lies(ending) => {
                drop(place);
                (self.go_on)(ending);
                self.carrier.wake();
            }
            // The carrier passes it on at the end of its poll.
            Place::IsCarriedOn { .. } => *place = Place::IsCarriedOn { is_wanted: true },
            Place::Left => {}
        }
    }

    /// Polls the release. Ready when it is finished or has been taken from the carrier.
    fn carry_on(&self, context: &mut Context<'_>) -> Poll<()> {
        // Registered before the look at the place, so that a `send_off` after the look wakes this carrier.
        self.carrier.register(context.waker());
        // The release is taken out for the poll, so that `send_off` never waits for the end of a poll.
        let taken = std::mem::replace(&mut *self.place(), Place::IsCarriedOn { is_wanted: false });
        // Already finished or sent off: there is nothing left to poll.
        let Place::Lies(mut ending) = taken else {
            *self.place() = Place::Left;
            return Poll::Ready(());
        };
        let polled = {
            let _entered = self.runtime.enter();
            ending.as_mut().poll(context)
        };
        let mut place = self.place();
        // If `send_off` was called during the poll, the release is passed on here.
        let is_wanted = matches!(*place, Place::IsCarriedOn { is_wanted: true });
        if polled.is_pending() && !is_wanted {
            *place = Place::Lies(ending);
            return Poll::Pending;
        }
        *place = Place::Left;
        drop(place);
        if polled.is_pending() {
            (self.go_on)(ending);
        }
        Poll::Ready(())
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        // No foreign code is called under the lock.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The carrier's handle to an inline release. Dropping it leaves the release to the reaper.
#[must_use = "the carrier does the work"]
pub(crate) struct Carried(pub(crate) Arc<InlineRelease>);

impl Future for Carried {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.carry_on(context)
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.0.send_off();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::sync::{mpsc, oneshot};

    /// Returns an inline release, the sender that ends it, and the receiver on which it arrives when
    /// taken over.
    fn inline() -> (Arc<InlineRelease>, oneshot::Sender<()>, mpsc::UnboundedReceiver<Ending>) {
        let (end, ended) = oneshot::channel::<()>();
        let (others, adopted) = mpsc::unbounded_channel();
        let ending = ended.map(|ended| ended.is_ok()).boxed();
        (InlineRelease::new(ending, Handle::current(), move |ending| drop(others.send(ending))), end, adopted)
    }

    #[tokio::test]
    async fn its_carrier_brings_it_to_its_end() {
        let (inline, end, mut adopted) = inline();
        let mut carried = Carried(inline);
        assert!((&mut carried).now_or_never().is_none());
        end.send(()).unwrap();
        carried.await;
        assert!(adopted.recv().await.is_none(), "nobody else had to do anything");
    }

    #[tokio::test]
    async fn what_its_carrier_leaves_goes_on_elsewhere() {
        let (inline, end, mut adopted) = inline();
        let mut carried = Carried(inline);
        assert!((&mut carried).now_or_never().is_none());
        drop(carried);
        end.send(()).unwrap();
        assert!(adopted.recv().await.unwrap().await);
    }

    #[tokio::test]
    async fn what_others_want_goes_on_without_its_carrier_who_is_told() {
        let (inline, end, mut adopted) = inline();
        let mut carried = Carried(inline.clone());
        assert!((&mut carried).now_or_never().is_none());
        let carrier = tokio::spawn(carried);
        tokio::task::yield_now().await;
        inline.send_off();
        let ending = adopted.recv().await.unwrap();
        carrier.await.unwrap();
        end.send(()).unwrap();
        assert!(ending.await);
    }

    #[tokio::test]
    async fn wanted_while_it_is_carried_on_it_is_sent_off_right_after() {
        let (others, mut adopted) = mpsc::unbounded_channel();
        let (wanted, wants) = std::sync::mpsc::channel::<Arc<InlineRelease>>();
        let ending = std::future::poll_fn(move |_| {
            // Something comes to depend on it in the middle of a poll.
            if let Ok(inline) = wants.try_recv() {
                inline.send_off();
            }
            Poll::Pending
        });
        let go_on = move |ending| drop(others.send(ending));
        let inline = InlineRelease::new(ending.boxed(), Handle::current(), go_on);
        wanted.send(inline.clone()).unwrap();
        Carried(inline).await;
        assert!(adopted.try_recv().is_ok());
    }

    /// Threads that poll it and that send it off meet at any point: it is taken over in each case.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sent_off_at_any_point_it_goes_on_in_each_case() {
        for _ in 0..2_000 {
            let (others, mut adopted) = mpsc::unbounded_channel();
            let go_on = move |ending| drop(others.send(ending));
            // It never finishes with its carrier, which polls it again and again.
            let ending = std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                Poll::Pending
            });
            let inline = InlineRelease::new(ending.boxed(), Handle::current(), go_on);
            let carrier = tokio::spawn(Carried(inline.clone()));
            let wants = tokio::task::spawn_blocking(move || inline.send_off());
            assert!(adopted.recv().await.is_some());
            wants.await.unwrap();
            carrier.await.unwrap();
            assert!(adopted.try_recv().is_err(), "it is adopted once");
        }
    }
}
