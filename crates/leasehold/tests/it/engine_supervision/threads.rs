//! Foreign code on any thread may block, and may panic, while leases are renewed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::blocking::{Client, Guard};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{ClientBuilder, Event, EventSubscriber, Tuning};

use crate::common::ms;

const TTL: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(60);

/// Opens a client that renews its leases twenty times before they end: a machine that is busy for seconds ends none.
fn opened() -> (Client, Arc<Renewals>) {
    let renewals = Arc::<Renewals>::default();
    let settings =
        ClientBuilder::default().tuning(Tuning::default().renew_at(0.05)).subscriber(renewals.clone());
    (Client::open_with(settings, "mem:").unwrap(), renewals)
}

fn renewed_meanwhile(locks: &Client, work: impl FnOnce(&Client)) {
    let guard = locks.mutex("held").ttl(TTL).lock().unwrap();
    work(locks);
    guard.release().expect("it is still held");
}

/// Blocks until the lease that is held meanwhile was renewed several times, and uses the library on the way.
fn block_for_long(locks: &Client, renewals: &Renewals) {
    let guard: Guard = locks.mutex("inner").lock().unwrap();
    renewals.until_more(3);
    guard.release().unwrap();
}

/// Counts the renewals of "held".
#[derive(Debug, Default)]
struct Renewals(AtomicU64);

impl Renewals {
    /// Waits for so many more.
    fn until_more(&self, count: u64) {
        let (began, before) = (Instant::now(), self.0.load(Ordering::SeqCst));
        while self.0.load(Ordering::SeqCst) < before + count {
            assert!(began.elapsed() < SOON, "nothing is renewed any more");
            thread::sleep(ms(10));
        }
    }
}

impl EventSubscriber for Renewals {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Renewed { resource, .. } = event
            && resource.as_str() == "held"
        {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn an_update_may_block_and_lock() {
    let (locks, renewals) = opened();
    renewed_meanwhile(&locks, |locks| {
        let (value, inner) = (locks.versioned("value"), locks.clone());
        let done = value.update(move |old| {
            block_for_long(&inner, &renewals);
            Some([old.unwrap_or_default(), b"+1"].concat())
        });
        assert_eq!(done.unwrap().value.as_deref(), Some(&b"+1"[..]));
    });
}

#[test]
fn several_updates_at_a_time_may_block_and_lock() {
    let (locks, renewals) = opened();
    renewed_meanwhile(&locks, |locks| {
        thread::scope(|scope| {
            for number in 0..4 {
                let (value, inner) = (locks.versioned(format!("value/{number}")), locks.clone());
                let renewals = renewals.clone();
                scope.spawn(move || {
                    value.update(move |_| {
                        block_for_long(&inner, &renewals);
                        Some(vec![1])
                    })
                });
            }
        });
    });
}

/// More of them block together than a runtime has threads for, unless their number is limited.
#[test]
fn blocking_loss_actions_of_many_locks_stop_no_renewal() {
    const MANY: usize = 600;
    let locks = Client::open("mem:").unwrap();
    let (healthy, renewals) = opened();
    let held = healthy.mutex("held").ttl(TTL).lock().unwrap();
    let (called, calls) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let ended = Arc::new(Mutex::new(ended));
    let guards: Vec<Guard> =
        (0..MANY).map(|number| locks.mutex(format!("job/{number}")).lock().unwrap()).collect();
    for guard in &guards {
        let (called, ended) = (called.clone(), ended.clone());
        let action = move |_| {
            called.send(()).unwrap();
            // Until the end of the test.
            let _ended = ended.lock().unwrap().recv();
        };
        guard.on_lost(action).unwrap();
    }
    // All are lost together.
    thread::spawn(move || locks.close(SOON));
    calls.recv_timeout(SOON).expect("the first of them is called");
    while guards.iter().any(|guard| guard.check().is_ok()) {
        thread::sleep(ms(10));
    }
    renewals.until_more(3);
    drop(end);
    // All of them are called in the end.
    for _ in 1..MANY {
        calls.recv_timeout(SOON).unwrap();
    }
    held.release().unwrap();
}

#[test]
fn closure_in_call_may_block_and_lock() {
    let (locks, renewals) = opened();
    renewed_meanwhile(&locks, |locks| {
        let inner = locks.clone();
        locks
            .call(move |_| async move {
                block_for_long(&inner, &renewals);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn loss_action_may_block_and_lock() {
    let (locks, renewals) = opened();
    let limited = locks.mutex("limited").max_hold(ms(50)).lock().unwrap();
    let (done, is_done) = mpsc::channel();
    let inner = locks.clone();
    limited
        .on_lost(move |_| {
            block_for_long(&inner, &renewals);
            done.send(()).unwrap();
        })
        .unwrap();
    renewed_meanwhile(&locks, |_| is_done.recv_timeout(SOON).unwrap());
}

#[test]
fn panic_in_an_update_is_raised_in_the_calling_thread() {
    let locks = Client::open("mem:").unwrap();
    let value = locks.versioned("value");
    let panicking = std::panic::AssertUnwindSafe(|| value.update(|_| panic!("of the update")));
    let panic = std::panic::catch_unwind(panicking).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"of the update"));
    assert_eq!(value.read().unwrap().value(), None);
    assert!(value.update(|_| Some(vec![1])).is_ok());
}

/// A lease that ends before its holder continues.
const SHORT: Duration = ms(600);

/// An event subscriber that takes its time the first time that a lock is kept.
#[derive(Debug, Default)]
struct Slow(AtomicBool);

impl EventSubscriber for Slow {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::LeaseStarted { .. } = event
            && !self.0.swap(true, Ordering::SeqCst)
        {
            // The tasks of this thread continue in another.
            tokio::task::block_in_place(|| thread::sleep(SHORT * 3));
        }
    }
}

/// The lease is over, and was released, before the requesting task continues.
async fn is_lost_while_it_is_granted(lock: impl AsyncFnOnce(&leasehold::Mutex) -> bool) {
    let wire = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
    wire.set(Verb::Renew, Mode::Refuse);
    let locks = leasehold::Client::builder().subscriber(Arc::<Slow>::default()).over(wire.clone()).unwrap();
    assert!(lock(&locks.mutex("job").ttl(SHORT)).await, "it is granted, and lost");
    wire.set_all(Mode::Pass);
    let mutex = locks.mutex("job");
    mutex.try_lock_for(SOON).await.unwrap().unwrap().release().await.unwrap();
    mutex.try_lock().await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_lost_while_it_is_granted_blocks_no_other_waiter() {
    is_lost_while_it_is_granted(async |mutex| mutex.lock().await.is_ok()).await;
    is_lost_while_it_is_granted(async |mutex| mutex.try_lock().await.is_ok()).await;
}
