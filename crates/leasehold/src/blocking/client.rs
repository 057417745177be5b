//! The client, for threads that block.

use std::future::Future;

use leasehold_core::{Profile, Resource, ResourceSummary};

use super::runtime::{may_block, wait};
use crate::client::ClientBuilder;
use crate::error::Result;

/// A client of one lock store, as [`leasehold::Client`](crate::Client), for threads that block.
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
}

impl Client {
    /// Opens the store that `url` names.
    ///
    /// # Errors
    /// As [`Client::open`](crate::Client::open).
    pub fn open(url: &str) -> Result<Client> {
        Client::open_with(crate::Client::builder(), url)
    }

    /// Opens the store that `url` names, with settings.
    ///
    /// # Errors
    /// As [`ClientBuilder::open`].
    pub fn open_with(settings: ClientBuilder, url: &str) -> Result<Client> {
        let url = url.to_owned();
        let client = wait("open", async move { settings.open(&url).await })??;
        Ok(Client { client })
    }

    /// Returns the promises of this connection.
    pub fn profile(&self) -> &Profile {
        self.client.profile()
    }

    /// Lists up to `limit` resources that are held or waited for.
    ///
    /// # Errors
    /// As [`Client::list`](crate::Client::list).
    pub fn list(
        &self,
        prefix: impl AsRef<str>,
        after: Option<&Resource>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>> {
        let (prefix, after) = (prefix.as_ref().to_owned(), after.cloned());
        self.block_on("list", move |client| async move { client.list(&prefix, after.as_ref(), limit).await })
    }

    /// Runs any other call of the asynchronous client, and blocks until it is done.
    ///
    /// For calls that have no blocking twin, such as a reader that becomes a writer.
    ///
    /// ```
    /// let locks = leasehold::blocking::Client::open("mem:")?;
    /// let mut guard = locks.call(|locks| async move { locks.rwlock("prices").upgradable_read().await })?;
    /// let guard = locks.call(|_| async move { guard.upgrade().await.map(|()| guard) })?;
    /// assert!(guard.is_writer());
    /// locks.call(|_| guard.release())?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// `work` runs on a thread of leasehold. It may block, and may use this library: leases are
    /// renewed meanwhile.
    ///
    /// # Panics
    /// Panics if `work` panics, with the same payload.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn call<T, F>(&self, work: impl FnOnce(crate::Client) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut work = Box::pin(work(self.client.clone()));
        wait("call", std::future::poll_fn(move |context| may_block(|| work.as_mut().poll(context))))?
    }

    /// Runs a call, and blocks until it returns.
    pub(super) fn block_on<T, F>(&self, op: &'static str, call: impl FnOnce(crate::Client) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        wait(op, call(self.client.clone()))?
    }

    /// Returns the asynchronous client behind it, which shares its leases and its queues.
    pub fn asynchronous(&self) -> &crate::Client {
        &self.client
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::blocking::{Interrupt, MultiLock, Mutex, Stripe};
    use crate::error::ErrorKind;
    use crate::layer::{Fault, Mode, Verb};
    use crate::local::MemoryBackend;

    /// Opens a client on a wire of its own to `store`.
    fn client(store: &Arc<MemoryBackend>) -> (Client, Arc<Fault>) {
        let fault = Arc::new(Fault::over(store.clone()));
        let backend = fault.clone();
        let client = wait("open", async move { crate::Client::builder().over(backend) }).unwrap().unwrap();
        (Client { client }, fault)
    }

    /// The engine carries a change out, whether or not its caller waits for it.
    #[test]
    fn interrupted_change_may_have_happened_and_a_wait_has_not() {
        let store = Arc::new(MemoryBackend::new());
        let (locks, wire) = client(&store);
        let (latch, interrupt) = (locks.latch("started", 2), Interrupt::new());
        // The first one writes twice, the next one once.
        latch.count_down().unwrap();
        wire.set(Verb::Swap, Mode::LateReply(Duration::from_secs(3_600)));
        let counting = latch.clone().interrupted_by(&interrupt);
        let counting = thread::spawn(move || counting.count_down());
        while latch.remaining().unwrap() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        interrupt.interrupt();
        let error = counting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        assert!(error.may_have_happened(), "{error}");
        // Nothing is sent under an interrupt that was triggered before.
        let early = latch.interrupted_by(&interrupt).reset().unwrap_err();
        assert!(early.kind() == ErrorKind::Interrupted && !early.may_have_happened(), "{early}");

        let (held, interrupt) = (locks.mutex("job").lock().unwrap(), Interrupt::new());
        let waiting = locks.mutex("job").interrupted_by(&interrupt);
        let waiting = thread::spawn(move || waiting.lock().map(drop));
        while locks.inspect("job").unwrap().waiting.is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        interrupt.interrupt();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.kind() == ErrorKind::Interrupted && !error.may_have_happened(), "{error}");
        drop(held);
    }

    type Ended = Result<bool, ErrorKind>;

    /// Waits for all three at the same time; `Ok(true)` for what is held.
    fn ended(mutex: &Mutex, several: &MultiLock, stripe: &Stripe) -> [Ended; 3] {
        let limit = Duration::from_millis(50);
        thread::scope(|scope| {
            let threads = [
                scope.spawn(|| mutex.try_lock_for(limit).map(|granted| granted.is_none())),
                scope.spawn(|| several.try_lock_for(limit).map(|granted| granted.is_none())),
                scope.spawn(|| stripe.try_lock_for(limit).map(|granted| granted.is_none())),
            ];
            threads.map(|thread| thread.join().unwrap().map_err(|error| error.kind()))
        })
    }

    #[test]
    fn a_lock_that_is_held_is_none_and_a_silent_store_is_an_error() {
        let store = Arc::new(MemoryBackend::new());
        let (other, _) = client(&store);
        let held = other.lock_all(["mutex", "several", "parts#0"]).lock().unwrap();
        // A client of its own for each: an answer that is up to a second old would count as well.
        for (mode, expected) in
            [(Mode::Pass, [Ok(true); 3]), (Mode::Hang, [Err(ErrorKind::OutcomeUnknown); 3])]
        {
            let (locks, wire) = client(&store);
            wire.set_all(mode);
            let (mutex, several) = (locks.mutex("mutex"), locks.lock_all(["several", "then"]));
            let stripe = locks.striped_mutex("parts", 1).for_key("key");
            assert_eq!(ended(&mutex, &several, &stripe), expected);
        }
        drop(held);
    }
}
