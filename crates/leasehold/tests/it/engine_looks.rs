//! One task of an owner looks at what the owner holds, while another task ends a guard of it. A look keeps no guard
//! from being the last one.
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use crate::common::ms;
use futures_util::FutureExt;
use leasehold::local::MemoryBackend;
use leasehold::{Client, Clock, ErrorKind, Guard, Moment, Owner, Result, TokioClock, TransferToken};
use tokio::task::{self, JoinHandle};

/// Something that happens in the middle of a look. It does not panic: the engine contains a panic of a clock.
type Interruption = Box<dyn FnOnce() + Send>;

/// The result of an interruption, to be judged by the test.
type Seen<T> = Arc<Mutex<Option<T>>>;

/// A clock that interrupts one task when it reads the time. The engine reads it while it looks at a hold.
struct Interrupting {
    inner: TokioClock,
    /// The task, the number of its readings before the interruption, and the interruption.
    plan: Mutex<Option<(task::Id, usize, Interruption)>>,
}

impl Interrupting {
    fn new() -> Interrupting {
        Interrupting { inner: TokioClock::new(), plan: Mutex::default() }
    }

    fn plan(&self, looker: task::Id, after: usize, interruption: impl FnOnce() + Send + 'static) {
        *self.plan.lock().unwrap() = Some((looker, after, Box::new(interruption)));
    }

    /// Returns the interruption, if this is the reading for it.
    fn due(&self) -> Option<Interruption> {
        let mut plan = self.plan.lock().unwrap();
        let (looker, left, _) = plan.as_mut()?;
        if task::try_id() != Some(*looker) {
            return None;
        }
        match left.checked_sub(1) {
            Some(fewer) => *left = fewer,
            None => return plan.take().map(|(.., interruption)| interruption),
        }
        None
    }
}

impl Clock for Interrupting {
    fn now(&self) -> Moment {
        if let Some(interruption) = self.due() {
            interruption();
        }
        self.inner.now()
    }
}

impl fmt::Debug for Interrupting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interrupting")
    }
}

/// A store in virtual time with two clients; the tasks of one can be interrupted.
struct World {
    clock: Arc<Interrupting>,
    locks: Client,
    other: Client,
}

impl World {
    fn new() -> World {
        // It reads the time under its own lock, so it has a clock of its own.
        let store = Arc::new(MemoryBackend::with_clock(Arc::new(TokioClock::new())));
        let clock = Arc::new(Interrupting::new());
        let locks = Client::builder().clock(clock.clone()).over(store.clone()).unwrap();
        let other = Client::builder().clock(Arc::new(TokioClock::new())).over(store).unwrap();
        World { clock, locks, other }
    }

    /// Holds `from`, and begins to wait for `to` with a search for deadlocks.
    async fn hold_and_wait(&self) -> (Guard, Guard, JoinHandle<Result<Guard>>) {
        let owner = Owner::new();
        let from = self.locks.mutex("from").owner(&owner).lock().await.unwrap();
        let to = self.other.mutex("to").lock().await.unwrap();
        let wanted = self.locks.mutex("to").owner(&owner).detect_deadlocks(ms(10));
        (from, to, tokio::spawn(async move { wanted.lock().await }))
    }
}

/// Polls the release once, and returns whether it succeeded and whether the lock was free when the call returned.
fn release_at_once(guard: Guard, other: &Client) -> (bool, bool) {
    let name = guard.resource().clone();
    let released = guard.release().now_or_never();
    let next = other.rwlock(&name).try_write().now_or_never();
    (matches!(released, Some(Ok(()))), matches!(next, Some(Ok(Some(_)))))
}

#[tokio::test(start_paused = true)]
async fn release_during_a_search_for_deadlocks_ends_the_claim_before_it_returns() {
    for readings in 0.. {
        let world = World::new();
        let (from, to, waits) = world.hold_and_wait().await;
        let (other, seen) = (world.other.clone(), Seen::default());
        let slot = seen.clone();
        world.clock.plan(waits.id(), readings, move || {
            *slot.lock().unwrap() = Some(release_at_once(from, &other));
        });
        tokio::time::sleep(ms(3_000)).await;
        to.release().await.unwrap();
        drop(waits.await.unwrap().unwrap());
        let Some(seen) = seen.lock().unwrap().take() else {
            assert!(readings > 4, "the search reads the clock");
            return;
        };
        assert_eq!(seen, (true, true), "after {readings} readings of the clock");
    }
}

#[tokio::test(start_paused = true)]
async fn transfer_during_a_search_for_deadlocks_succeeds() {
    type Transfer = Pin<Box<dyn Future<Output = Result<TransferToken>> + Send>>;
    for readings in 0.. {
        let world = World::new();
        let (from, to, waits) = world.hold_and_wait().await;
        let begun: Seen<Transfer> = Seen::default();
        let slot = begun.clone();
        world.clock.plan(waits.id(), readings, move || {
            let mut transfer: Transfer = Box::pin(from.transfer());
            *slot.lock().unwrap() = Some(match transfer.as_mut().now_or_never() {
                Some(ended) => Box::pin(async { ended }),
                None => transfer,
            });
        });
        tokio::time::sleep(ms(3_000)).await;
        to.release().await.unwrap();
        drop(waits.await.unwrap().unwrap());
        let Some(transfer) = begun.lock().unwrap().take() else {
            assert!(readings > 4, "the search reads the clock");
            return;
        };
        let token = transfer.await.unwrap();
        world.other.mutex("from").accept_transfer(&token).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn release_during_a_request_for_more_ends_the_claim_before_it_returns() {
    for readings in 0.. {
        let world = World::new();
        let lock = world.locks.rwlock("prices").owner(&Owner::new());
        let (reader, other, seen) = (lock.read().await.unwrap(), world.other.clone(), Seen::default());
        let slot = seen.clone();
        let asks = tokio::spawn(async move { lock.try_write().await });
        world.clock.plan(asks.id(), readings, move || {
            *slot.lock().unwrap() = Some(release_at_once(reader, &other));
        });
        let asked = asks.await.unwrap();
        let Some(seen) = seen.lock().unwrap().take() else {
            assert_eq!(asked.unwrap_err().kind(), ErrorKind::Deadlock);
            assert!(readings > 0, "the request reads the clock");
            return;
        };
        assert_eq!(seen, (true, true), "after {readings} readings of the clock");
        drop(asked);
    }
}
