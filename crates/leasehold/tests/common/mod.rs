//! Helpers of the engine's tests: a memory store behind a wire that can fail, and its clients.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "it is part of tests, which the lint does not see here")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Clock;
use leasehold::layer::Fault;
use leasehold::local::MemoryBackend;
use leasehold::{Client, EventSubscriber, Snapshot, TokioClock, Tuning};

/// One store that several clients reach, each over a wire of its own.
pub(crate) struct Store {
    backend: Arc<MemoryBackend>,
    /// The clock of its clients; without one, each chooses its own.
    clock: Option<Arc<dyn Clock>>,
}

impl Store {
    pub(crate) fn new() -> Store {
        Store { backend: Arc::new(MemoryBackend::new()), clock: None }
    }

    /// Creates one whose time, and that of its clients, is the runtime's, so that a busy machine ends no lease.
    pub(crate) fn in_virtual_time() -> Store {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        Store { backend: Arc::new(MemoryBackend::with_clock(clock.clone())), clock: Some(clock) }
    }

    /// Opens a separate client, as another process would.
    pub(crate) fn client(&self) -> (Client, Arc<Fault>) {
        self.tuned(Tuning::default())
    }

    pub(crate) fn tuned(&self, tuning: Tuning) -> (Client, Arc<Fault>) {
        let fault = Arc::new(Fault::over(self.backend.clone()));
        let client = Client::builder().tuning(tuning);
        let client = self.clock.iter().fold(client, |client, clock| client.clock(clock.clone()));
        (client.over(fault.clone()).unwrap(), fault)
    }

    /// Opens a client whose events `subscriber` gets. Its time is that of the runtime alone: what a busy machine takes
    /// for a call shortens no wait that a test measures.
    pub(crate) fn observed(&self, subscriber: Arc<dyn EventSubscriber>) -> (Client, Arc<Fault>) {
        let fault = Arc::new(Fault::over(self.backend.clone()));
        let client = Client::builder().subscriber(subscriber).clock(Arc::new(TokioClock::new()));
        (client.over(fault.clone()).unwrap(), fault)
    }
}

/// Waits until the resource has no holder and no waiter, or fails with what is left.
pub(crate) async fn settles(locks: &Client, name: &str) {
    until(locks, name, "left behind", |seen| seen.holders.is_empty() && seen.waiting.is_empty()).await;
}

/// Waits until `count` claims wait on the server.
pub(crate) async fn waiting(locks: &Client, name: &str, count: usize) {
    until(locks, name, &format!("never {count} waiting"), |seen| seen.waiting.len() == count).await;
}

/// Waits until the server has a holder.
pub(crate) async fn held(locks: &Client, name: &str) {
    until(locks, name, "never held", |seen| !seen.holders.is_empty()).await;
}

/// Waits until the resource is in a state, or fails with the one that it is in. The time is that of the runtime.
async fn until(locks: &Client, name: &str, what: &str, is_so: impl Fn(&Snapshot) -> bool) {
    let began = tokio::time::Instant::now();
    loop {
        let seen = locks.inspect(name).await.unwrap();
        if is_so(&seen) {
            return;
        }
        assert!(began.elapsed() < ms(60_000), "{what}: {name}: {seen:?}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// Runs a future on a minimal executor: no timers, no tasks, nothing of tokio.
pub(crate) fn block_on<F: Future>(work: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut work = std::pin::pin!(work);
    loop {
        match work.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
