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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;

/// A release under way; whether it was answered.
pub(super) type Ending = BoxFuture<'static, bool>;

/// The work, and who does it.
pub(super) struct Errand {
    /// There for as long as its carrier does it.
    ending: Mutex<Option<Ending>>,
    /// Somebody depends on it.
    is_wanted: AtomicBool,
    carrier: AtomicWaker,
    /// Where the connections of the backend live: its carrier may run anywhere.
    runtime: Handle,
    go_on: Box<dyn Fn(Ending) + Send + Sync>,
}

impl Errand {
    /// An errand; `go_on` takes over what its carrier does not bring to its end.
    pub(super) fn new(
        ending: Ending,
        runtime: Handle,
        go_on: impl Fn(Ending) + Send + Sync + 'static,
    ) -> Arc<Errand> {
        Arc::new(Errand {
            ending: Mutex::new(Some(ending)),
            is_wanted: AtomicBool::new(false),
            carrier: AtomicWaker::new(),
            runtime,
            go_on: Box::new(go_on),
        })
    }

    /// Somebody depends on it: from here on it does not need its carrier.
    pub(super) fn send_off(&self) {
        self.is_wanted.store(true, Ordering::SeqCst);
        // Who carries it on in this very moment looks at the mark afterwards.
        let ending = match self.ending.try_lock() {
            Ok(mut ending) => ending.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(ending) = ending {
            (self.go_on)(ending);
            self.carrier.wake();
        }
    }

    /// Comes back when it is done, or not in the carrier's hands any more.
    fn carry_on(&self, context: &mut Context<'_>) -> Poll<()> {
        self.carrier.register(context.waker());
        let done = {
            let _entered = self.runtime.enter();
            let mut ending = self.ending();
            match ending.as_mut().map(|ending| ending.as_mut().poll(context)) {
                Some(Poll::Pending) => None,
                Some(Poll::Ready(_)) => ending.take(),
                None => return Poll::Ready(()),
            }
        };
        match done {
            Some(done) => drop(done),
            None if self.is_wanted.load(Ordering::SeqCst) => self.send_off(),
            None => return Poll::Pending,
        }
        Poll::Ready(())
    }

    fn ending(&self) -> MutexGuard<'_, Option<Ending>> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
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
}
