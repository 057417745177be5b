//! A value whose changes wake its listeners: the one of tokio, except in a simulation.

#[cfg(leasehold_sim)]
pub(crate) use ordered::{Receiver, Sender};
#[cfg(not(leasehold_sim))]
pub(crate) use tokio::sync::watch::{Receiver, Sender};

/// The same without chance: tokio draws the order in which it wakes waiters from a source that
/// no seed decides.
#[cfg(leasehold_sim)]
mod ordered {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    use tokio::sync::Notify;

    #[derive(Debug)]
    pub(crate) struct Sender<T>(Arc<Shared<T>>);

    #[derive(Clone, Debug)]
    pub(crate) struct Receiver<T> {
        shared: Arc<Shared<T>>,
        seen: u64,
    }

    #[derive(Debug)]
    struct Shared<T> {
        value: Mutex<Value<T>>,
        changed: Notify,
        is_over: AtomicBool,
    }

    #[derive(Debug)]
    struct Value<T> {
        value: T,
        version: u64,
    }

    /// A borrowed view of the value.
    pub(crate) struct Ref<'a, T>(MutexGuard<'a, Value<T>>);

    impl<T> std::ops::Deref for Ref<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0.value
        }
    }

    impl<T> Shared<T> {
        fn value(&self) -> MutexGuard<'_, Value<T>> {
            self.value.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> Sender<T> {
        pub(crate) fn new(value: T) -> Sender<T> {
            let value = Mutex::new(Value { value, version: 0 });
            Sender(Arc::new(Shared { value, changed: Notify::new(), is_over: AtomicBool::new(false) }))
        }

        pub(crate) fn subscribe(&self) -> Receiver<T> {
            Receiver { shared: self.0.clone(), seen: self.0.value().version }
        }

        pub(crate) fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
            let mut value = self.0.value();
            let modified = change(&mut value.value);
            value.version += u64::from(modified);
            drop(value);
            if modified {
                self.0.changed.notify_waiters();
            }
            modified
        }
    }

    impl<T> Drop for Sender<T> {
        fn drop(&mut self) {
            self.0.is_over.store(true, Ordering::SeqCst);
            self.0.changed.notify_waiters();
        }
    }

    #[allow(dead_code, reason = "it mirrors the part of tokio's receiver that the engine may use")]
    impl<T> Receiver<T> {
        pub(crate) fn borrow(&self) -> Ref<'_, T> {
            Ref(self.shared.value())
        }

        pub(crate) fn borrow_and_update(&mut self) -> Ref<'_, T> {
            let value = self.shared.value();
            self.seen = value.version;
            Ref(value)
        }

        pub(crate) async fn changed(&mut self) -> Result<(), ()> {
            let seen = self.seen;
            self.wait_until(|value| value.version != seen).await
        }

        pub(crate) async fn wait_for(
            &mut self,
            mut wanted: impl FnMut(&T) -> bool,
        ) -> Result<Ref<'_, T>, ()> {
            self.wait_until(|value| wanted(&value.value)).await?;
            Ok(Ref(self.shared.value()))
        }

        async fn wait_until(&mut self, mut wanted: impl FnMut(&Value<T>) -> bool) -> Result<(), ()> {
            loop {
                let mut changed = std::pin::pin!(self.shared.changed.notified());
                changed.as_mut().enable();
                {
                    let value = self.shared.value();
                    self.seen = value.version;
                    if wanted(&value) {
                        return Ok(());
                    }
                }
                if self.shared.is_over.load(Ordering::SeqCst) {
                    return Err(());
                }
                changed.await;
            }
        }
    }
}
