//! Threads that are ending, and whose values of tokio are gone, use locks.
//!
//! It is a program of its own: once a test has stopped the clock, tokio asks a value of the thread for the time.

#![allow(clippy::unwrap_used, reason = "it is a test, which the lint does not see in helpers")]

mod common;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::block_on;
use leasehold::Client;

const MINIMUM: Duration = Duration::from_millis(150);

thread_local! {
    static LAST: RefCell<Option<LastAct>> = const { RefCell::new(None) };
}

/// An act of a thread that is ending.
struct LastAct(Option<Box<dyn FnOnce()>>);

impl Drop for LastAct {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

/// Runs `act` in a thread whose values of tokio are gone, and which has the name of this one. A panic there ends the
/// process.
fn as_a_thread_ends(handle: tokio::runtime::Handle, act: impl FnOnce() + Send + 'static) {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let ends = std::thread::Builder::new().name(name).spawn(move || {
        LAST.set(Some(LastAct(Some(Box::new(act)))));
        // What a thread uses later is destroyed first.
        drop(handle.enter());
    });
    ends.unwrap().join().unwrap();
}

/// Not even a panic that is caught.
#[test]
fn guard_that_a_thread_drops_as_it_ends_is_released_without_a_panic() {
    static PANICS: AtomicU32 = AtomicU32::new(0);
    let test = std::thread::current().name().map(str::to_owned);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() == test.as_deref() {
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
        before(info);
    }));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let locks = runtime.block_on(Client::open("mem:")).unwrap();
    let guard = runtime.block_on(locks.mutex("job").lock()).unwrap();
    as_a_thread_ends(runtime.handle().clone(), move || drop(guard));
    // Such a thread leaves the release to the client's task.
    let next = runtime.block_on(locks.mutex("job").lock()).unwrap();
    runtime.block_on(next.release()).unwrap();
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

#[test]
fn minimum_hold_is_kept_by_a_thread_that_is_ending() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let locks = runtime.block_on(Client::open("mem:")).unwrap();
    let mutex = locks.mutex("job").min_hold(MINIMUM);
    for is_dropped in [true, false] {
        let began = Instant::now();
        let guard = runtime.block_on(mutex.lock()).unwrap();
        as_a_thread_ends(runtime.handle().clone(), move || match is_dropped {
            true => drop(guard),
            false => block_on(guard.release()).unwrap(),
        });
        let next = runtime.block_on(locks.mutex("job").lock()).unwrap();
        assert!(began.elapsed() >= MINIMUM);
        runtime.block_on(next.release()).unwrap();
    }
    // Nothing can wait any more, and nothing is kept.
    let (first, second) =
        (runtime.block_on(mutex.lock()), runtime.block_on(locks.mutex("other").min_hold(MINIMUM).lock()));
    let (first, second, handle) = (first.unwrap(), second.unwrap(), runtime.handle().clone());
    drop(runtime);
    as_a_thread_ends(handle, move || {
        drop(first);
        assert!(block_on(second.release()).is_err());
    });
}

/// The owner that the library keeps for the thread is gone by then.
#[test]
fn reentrant_lock_is_taken_by_a_thread_that_is_ending() {
    let locks = leasehold::blocking::Client::open("mem:").unwrap();
    let mutex = locks.mutex("job").reentrant();
    let last = mutex.clone();
    let ends = std::thread::spawn(move || {
        let act = move || {
            let guard = last.lock().unwrap();
            // Without the thread's owner each acquisition has an owner of its own.
            assert!(last.try_lock().unwrap().is_none());
            guard.release().unwrap();
        };
        LAST.set(Some(LastAct(Some(Box::new(act)))));
        // What a thread uses later is destroyed first.
        let (outer, inner) = (mutex.lock().unwrap(), mutex.lock().unwrap());
        inner.release().unwrap();
        outer.release().unwrap();
    });
    ends.join().unwrap();
    locks.mutex("job").try_lock().unwrap().expect("it is released").release().unwrap();
}
