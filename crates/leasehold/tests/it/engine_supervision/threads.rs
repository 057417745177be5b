//! Foreign code on any thread may block, and may panic, while leases are renewed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::blocking::{Client, Guard};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{ClientBuilder, Event, EventSubscriber, State};

use crate::common::ms;

const TTL: Duration = Duration::from_millis(600);
const SOON: Duration = Duration::from_secs(60);

fn renewed_meanwhile(locks: &Client, work: impl FnOnce(&Client)) {
    let guard = locks.mutex("held").ttl(TTL).lock().unwrap();
    work(locks);
    assert_ne!(guard.state(), State::Lost(leasehold::backend::LossCause::Expired));
    guard.release().unwrap();
}

/// Blocks until the lease that is held meanwhile is over several times, and uses the library on the way.
fn block_for_long(locks: &Client) {
    let guard: Guard = locks.mutex("inner").lock().unwrap();
    thread::sleep(TTL * 3);
    guard.release().unwrap();
}

#[test]
fn an_update_may_block_and_lock() {
    let locks = Client::open("mem:").unwrap();
    renewed_meanwhile(&locks, |locks| {
        let (value, inner) = (locks.versioned("value"), locks.clone());
        let done = value.update(move |old| {
            block_for_long(&inner);
            Some([old.unwrap_or_default(), b"+1"].concat())
        });
        assert_eq!(done.unwrap().value.as_deref(), Some(&b"+1"[..]));
    });
}

#[test]
fn several_updates_at_a_time_may_block_and_lock() {
    let locks = Client::open("mem:").unwrap();
    renewed_meanwhile(&locks, |locks| {
        thread::scope(|scope| {
            for number in 0..4 {
                let (value, inner) = (locks.versioned(format!("value/{number}")), locks.clone());
                scope.spawn(move || {
                    value.update(move |_| {
                        block_for_long(&inner);
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
    let subscriber = Arc::<Renewals>::default();
    let locks = Client::open("mem:").unwrap();
    let healthy = Client::open_with(ClientBuilder::default().subscriber(subscriber.clone()), "mem:").unwrap();
    let held = healthy.mutex("held").ttl(ms(3_000)).lock().unwrap();
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
    let mut seen = subscriber.0.load(Ordering::SeqCst);
    for _ in 0..3 {
        let (began, before) = (Instant::now(), seen);
        while seen == before && began.elapsed() < SOON {
            thread::sleep(ms(10));
            seen = subscriber.0.load(Ordering::SeqCst);
        }
        assert!(seen > before, "the actions of others stopped the renewal of a lease");
    }
    drop(end);
    // All of them are called in the end.
    for _ in 1..MANY {
        calls.recv_timeout(SOON).unwrap();
    }
    held.release().unwrap();
}

/// Counts renewals.
#[derive(Debug, Default)]
struct Renewals(AtomicU64);

impl EventSubscriber for Renewals {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Renewed { .. } = event {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn closure_in_call_may_block_and_lock() {
    let locks = Client::open("mem:").unwrap();
    renewed_meanwhile(&locks, |locks| {
        let inner = locks.clone();
        locks
            .call(move |_| async move {
                block_for_long(&inner);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn loss_action_may_block_and_lock() {
    let locks = Client::open("mem:").unwrap();
    let limited = locks.mutex("limited").max_hold(ms(50)).lock().unwrap();
    let (done, is_done) = mpsc::channel();
    let inner = locks.clone();
    limited
        .on_lost(move |_| {
            block_for_long(&inner);
            done.send(()).unwrap();
        })
        .unwrap();
    renewed_meanwhile(&locks, |_| is_done.recv_timeout(Duration::from_secs(60)).unwrap());
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

/// An event subscriber that takes its time the first time that a lock is kept.
#[derive(Debug, Default)]
struct Slow(AtomicBool);

impl EventSubscriber for Slow {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::LeaseStarted { .. } = event
            && !self.0.swap(true, Ordering::SeqCst)
        {
            // The tasks of this thread continue in another.
            tokio::task::block_in_place(|| thread::sleep(TTL * 3));
        }
    }
}

/// The lease is over, and was released, before the requesting task continues.
async fn is_lost_while_it_is_granted(lock: impl AsyncFnOnce(&leasehold::Mutex) -> bool) {
    let wire = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
    wire.set(Verb::Renew, Mode::Refuse);
    let locks = leasehold::Client::builder().subscriber(Arc::<Slow>::default()).over(wire.clone()).unwrap();
    let mutex = locks.mutex("job").ttl(TTL);
    assert!(lock(&mutex).await, "it is granted, and lost");
    wire.set_all(Mode::Pass);
    mutex.try_lock_for(SOON).await.unwrap().unwrap().release().await.unwrap();
    mutex.try_lock().await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_lost_while_it_is_granted_blocks_no_other_waiter() {
    is_lost_while_it_is_granted(async |mutex| mutex.lock().await.is_ok()).await;
    is_lost_while_it_is_granted(async |mutex| mutex.try_lock().await.is_ok()).await;
}
