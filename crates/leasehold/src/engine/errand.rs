//! A release that its asker carries to the server himself, for as long as nobody else depends on it.
//!
//! Through the reaper a release changes tasks twice, and with them often threads: more than all else that is done here for a
//! lock that nobody else wants. So whoever waits for the release sends it, while the client has no other under way and nobody
//! of this process waits for the resource.
//!
//! Ground rules: it is never dropped midway. Left by its carrier, or wanted by somebody who comes later, it goes on with the
//! reaper; so one who stops polling keeps nobody waiting but himself.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;

/// A release under way; whether it was answered.
pub(super) type Ending = BoxFuture<'static, bool>;

/// The work, and who does it.
pub(super) struct Errand {
    place: Mutex<Place>,
    carrier: AtomicWaker,
    /// Where the connections of the backend live: its carrier may run anywhere.
    runtime: Handle,
    go_on: Box<dyn Fn(Ending) + Send + Sync>,
}

/// Place of the work. It changes under the lock alone, so `send_off` and `carry_on` cannot miss each other.
enum Place {
    /// With its carrier, who is to be asked for it.
    Lies(Ending),
    /// In the hands of its carrier, in this very moment; whether somebody depends on it by now.
    IsCarriedOn { is_wanted: bool },
    /// Done, or with the reaper.
    Left,
}

impl Errand {
    /// An errand; `go_on` takes over what its carrier does not bring to its end.
    pub(super) fn new(
        ending: Ending,
        runtime: Handle,
        go_on: impl Fn(Ending) + Send + Sync + 'static,
    ) -> Arc<Errand> {
        Arc::new(Errand {
            place: Mutex::new(Place::Lies(ending)),
            carrier: AtomicWaker::new(),
            runtime,
            go_on: Box::new(go_on),
        })
    }

    /// Somebody depends on it: from here on it does not need its carrier.
    pub(super) fn send_off(&self) {
        let mut place = self.place();
        match std::mem::replace(&mut *place, Place::Left) {
            Place::Lies(ending) => {
                drop(place);
                (self.go_on)(ending);
                self.carrier.wake();
            }
            // Its carrier hands it over as soon as it can.
            Place::IsCarriedOn { .. } => *place = Place::IsCarriedOn { is_wanted: true },
            Place::Left => {}
        }
    }

    /// Comes back when it is done, or not in the carrier's hands any more.
    fn carry_on(&self, context: &mut Context<'_>) -> Poll<()> {
        self.carrier.register(context.waker());
        let taken = std::mem::replace(&mut *self.place(), Place::IsCarriedOn { is_wanted: false });
        let Place::Lies(mut ending) = taken else {
            *self.place() = Place::Left;
            return Poll::Ready(());
        };
        let polled = {
            let _entered = self.runtime.enter();
            ending.as_mut().poll(context)
        };
        let mut place = self.place();
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
        // Nothing foreign is called while it is locked.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The carrier's end of an errand. Dropping it leaves the errand to others.
#[must_use = "it is the carrier who does the work"]
pub(super) struct Carried(pub(super) Arc<Errand>);

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

    /// An errand that ends when it is told to, and where it goes on.
    fn errand() -> (Arc<Errand>, oneshot::Sender<()>, mpsc::UnboundedReceiver<Ending>) {
        let (end, ended) = oneshot::channel::<()>();
        let (others, adopted) = mpsc::unbounded_channel();
        let ending = ended.map(|ended| ended.is_ok()).boxed();
        (Errand::new(ending, Handle::current(), move |ending| drop(others.send(ending))), end, adopted)
    }

    #[tokio::test]
    async fn its_carrier_brings_it_to_its_end() {
        let (errand, end, mut adopted) = errand();
        let mut carried = Carried(errand);
        assert!((&mut carried).now_or_never().is_none());
        end.send(()).unwrap();
        carried.await;
        assert!(adopted.recv().await.is_none(), "nobody else had to do anything");
    }

    #[tokio::test]
    async fn what_its_carrier_leaves_goes_on_elsewhere() {
        let (errand, end, mut adopted) = errand();
        let mut carried = Carried(errand);
        assert!((&mut carried).now_or_never().is_none());
        drop(carried);
        end.send(()).unwrap();
        assert!(adopted.recv().await.unwrap().await);
    }

    #[tokio::test]
    async fn what_others_want_goes_on_without_its_carrier_who_is_told() {
        let (errand, end, mut adopted) = errand();
        let mut carried = Carried(errand.clone());
        assert!((&mut carried).now_or_never().is_none());
        let carrier = tokio::spawn(carried);
        tokio::task::yield_now().await;
        errand.send_off();
        let ending = adopted.recv().await.unwrap();
        carrier.await.unwrap();
        end.send(()).unwrap();
        assert!(ending.await);
    }

    #[tokio::test]
    async fn wanted_while_it_is_carried_on_it_is_sent_off_right_after() {
        let (others, mut adopted) = mpsc::unbounded_channel();
        let (wanted, wants) = std::sync::mpsc::channel::<Arc<Errand>>();
        let ending = std::future::poll_fn(move |_| {
            // Somebody comes in the middle of it.
            if let Ok(errand) = wants.try_recv() {
                errand.send_off();
            }
            Poll::Pending
        });
        let go_on = move |ending| drop(others.send(ending));
        let errand = Errand::new(ending.boxed(), Handle::current(), go_on);
        wanted.send(errand.clone()).unwrap();
        Carried(errand).await;
        assert!(adopted.try_recv().is_ok());
    }

    /// Threads that carry it on and that send it off meet at any point: it is left to nobody in no case.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sent_off_at_any_point_it_goes_on_in_each_case() {
        for _ in 0..2_000 {
            let (others, mut adopted) = mpsc::unbounded_channel();
            let go_on = move |ending| drop(others.send(ending));
            // It is never done in the hands of its carrier, who polls it again and again.
            let ending = std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                Poll::Pending
            });
            let errand = Errand::new(ending.boxed(), Handle::current(), go_on);
            let carrier = tokio::spawn(Carried(errand.clone()));
            let wants = tokio::task::spawn_blocking(move || errand.send_off());
            assert!(adopted.recv().await.is_some());
            wants.await.unwrap();
            carrier.await.unwrap();
            assert!(adopted.try_recv().is_err(), "it is adopted once");
        }
    }
}
