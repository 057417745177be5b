//! Locks for threads that block: the same locks, inside a runtime and outside.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::blocking::{Client, Interrupt};
use leasehold::{ErrorKind, LoadError, LossCause, Owner};

const SOON: Duration = Duration::from_secs(20);

fn memory() -> Client {
    Client::open("mem:").unwrap()
}

fn eventually_free(locks: &Client, name: &str) {
    let began = Instant::now();
    while !locks.inspect(name).unwrap().holders.is_empty() {
        assert!(began.elapsed() < SOON, "{name} stays held");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn threads_exclude_each_other() {
    let locks = memory();
    let inside = Arc::new(AtomicU32::new(0));
    let mut fences: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    (0..50)
                        .map(|_| {
                            let guard = locks.mutex("job").lock().unwrap();
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            let fence = guard.fence().unwrap();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            guard.release().unwrap();
                            fence
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 400, "no fence comes twice");
}

#[test]
fn a_thread_re_enters_and_another_does_not() {
    let locks = memory();
    let mutex = locks.mutex("job").reentrant();
    let mut guards: Vec<_> = (0..100).map(|_| mutex.lock().unwrap()).collect();
    guards.push(mutex.try_lock().unwrap().unwrap());
    let elsewhere =
        || thread::scope(|scope| scope.spawn(|| mutex.try_lock().unwrap().is_some()).join().unwrap());
    while guards.len() > 1 {
        guards.pop().unwrap().release().unwrap();
    }
    assert!(!elsewhere(), "the last guard gives it back, not the first");
    guards.pop().unwrap().release().unwrap();
    assert!(elsewhere());
    eventually_free(&locks, "job");

    let table = locks.rwlock("table").reentrant();
    let reading = table.read().unwrap();
    assert_eq!(table.write().unwrap_err().kind(), ErrorKind::Deadlock);
    reading.release().unwrap();
    let writing = table.write().unwrap();
    assert_eq!(table.read().unwrap().fence(), writing.fence());
}

#[test]
fn an_explicit_owner_goes_from_thread_to_thread() {
    let locks = memory();
    let owner = Owner::new();
    let mutex = locks.mutex("job").owner(&owner);
    let guard = mutex.lock().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| mutex.try_lock().unwrap().expect("the same owner").release().unwrap());
    });
    thread::spawn(move || guard.release().unwrap()).join().unwrap();
    assert!(locks.mutex("job").try_lock().unwrap().is_some());
}

#[test]
fn waits_end_in_time_or_by_an_interrupt_and_leave_nothing() {
    let name = format!("mem:interrupted-{}", std::process::id());
    let holder = Client::open(&name).unwrap();
    let locks = Client::open(&name).unwrap();
    let guard = holder.semaphore("s", 2).acquire_many(2).unwrap();
    assert!(locks.semaphore("s", 2).try_acquire().unwrap().is_none());
    assert!(locks.semaphore("s", 2).try_acquire_for(Duration::from_millis(20)).unwrap().is_none());

    let interrupt = Interrupt::new();
    let waiting = locks.semaphore("s", 2).interrupted_by(&interrupt);
    let waiter = thread::spawn(move || waiting.acquire().map(drop));
    let began = Instant::now();
    while locks.inspect("s").unwrap().waiting.is_empty() {
        assert!(began.elapsed() < SOON, "it does not wait");
        thread::sleep(Duration::from_millis(2));
    }
    interrupt.interrupt();
    assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Interrupted);
    let began = Instant::now();
    while !locks.inspect("s").unwrap().waiting.is_empty() {
        assert!(began.elapsed() < SOON, "its place stays");
        thread::sleep(Duration::from_millis(2));
    }
    assert!(interrupt.is_interrupted());
    let late = locks.semaphore("s", 2).interrupted_by(&interrupt).acquire().unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Interrupted, "later waits end as well");
    guard.release().unwrap();
}

#[test]
fn loss_is_reported_to_blocking_callers_and_to_listeners() {
    let locks = memory();
    let (sender, receiver) = mpsc::channel();
    let kept = locks.mutex("kept").lock().unwrap();
    assert_eq!(kept.lost_within(Duration::from_millis(5)).unwrap(), None);
    let guard = locks.mutex("job").max_hold(Duration::from_millis(80)).lock().unwrap();
    guard.on_lost(move |cause| sender.send(cause).unwrap()).unwrap();
    assert_eq!(guard.lost_within(SOON).unwrap(), Some(LossCause::MaxHold));
    assert_eq!(receiver.recv_timeout(SOON).unwrap(), LossCause::MaxHold);
    assert!(guard.check().is_err() && guard.remaining().is_zero());

    let (sender, receiver) = mpsc::channel();
    let guard = locks.mutex("other").lock().unwrap();
    guard.on_lost(move |cause| sender.send(cause).unwrap()).unwrap();
    guard.release().unwrap();
    assert_eq!(
        receiver.recv_timeout(SOON).unwrap_err(),
        mpsc::RecvTimeoutError::Disconnected,
        "released, not lost"
    );
}

#[test]
fn revocation_can_be_polled_awaited_and_subscribed() {
    let locks = memory();
    let guard = locks.mutex("job").revocable().unwrap().lock().unwrap();
    assert_eq!(guard.revoked_within(Duration::from_millis(5)).unwrap(), None);
    let (sender, receiver) = mpsc::channel();
    guard.on_revoked(move |revocation| sender.send(revocation.reason).unwrap()).unwrap();
    assert_eq!(locks.revoke("job", "please").unwrap().len(), 1);
    assert_eq!(guard.revoked_within(SOON).unwrap().unwrap().reason, "please");
    assert_eq!(receiver.recv_timeout(SOON).unwrap(), "please");
    guard.release().unwrap();

    let (sender, receiver) = mpsc::channel();
    let guard = locks.mutex("other").lock().unwrap();
    guard.on_revoked(move |revocation| sender.send(revocation.reason).unwrap()).unwrap();
    guard.release().unwrap();
    assert_eq!(receiver.recv_timeout(SOON).unwrap_err(), mpsc::RecvTimeoutError::Disconnected, "released");
}

#[test]
fn thread_accepts_a_lock_that_another_transferred() {
    let locks = memory();
    let guard = locks.mutex("job").transferable().unwrap().lock().unwrap();
    let fence = guard.fence();
    let token = guard.transfer().unwrap();
    assert!(locks.mutex("job").try_lock().unwrap().is_none());
    let guard = thread::scope(|scope| scope.spawn(|| locks.mutex("job").accept_transfer(&token)).join());
    let guard = guard.unwrap().unwrap();
    assert!(guard.fence() > fence);
    assert!(locks.mutex("job").accept_transfer(&token).unwrap_err().is_lost());
    guard.release().unwrap();
}

#[test]
fn blocking_client_works_inside_both_kinds_of_runtime() {
    let use_it = || {
        let locks = memory();
        let guard = locks.mutex("job").lock().unwrap();
        drop(locks.mutex("another").lock().unwrap());
        guard.release().unwrap();
        assert!(locks.close(SOON).unwrap());
        assert_eq!(locks.mutex("job").lock().unwrap_err().kind(), ErrorKind::Closed);
    };
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async { use_it() });
    tokio::runtime::Builder::new_multi_thread().build().unwrap().block_on(async { use_it() });
    use_it();
}

#[test]
fn blocking_guard_dropped_after_its_client_is_released() {
    let name = format!("mem:blocking-{}", std::process::id());
    let onlooker = Client::open(&name).unwrap();
    let locks = Client::open(&name).unwrap();
    let guard = locks.mutex("job").lock().unwrap();
    drop(locks);
    assert!(onlooker.mutex("job").try_lock().unwrap().is_none());
    drop(guard);
    eventually_free(&onlooker, "job");
}

#[test]
fn blocking_latch_barrier_and_rate_limit_work_as_async() {
    let locks = memory();
    let latch = locks.latch("started", 2);
    let waiter = thread::spawn({
        let latch = latch.clone();
        move || latch.wait()
    });
    latch.count_down_as("a").unwrap();
    latch.count_down_as("a").unwrap();
    assert_eq!(latch.remaining().unwrap(), 1);
    assert!(!latch.wait_within(Duration::from_millis(20)).unwrap());
    latch.count_down().unwrap();
    waiter.join().unwrap().unwrap();
    latch.reset().unwrap();
    assert_eq!(latch.remaining().unwrap(), 2);

    let barrier = locks.barrier("round", 3);
    let passed: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| barrier.wait().unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(passed.iter().filter(|passage| passage.is_leader()).count(), 1);
    assert_eq!((barrier.arrived().unwrap(), barrier.is_broken().unwrap()), (0, false));

    let rate = locks.rate_limit("mails", 3, Duration::from_secs(3_600));
    rate.acquire_many(2).unwrap();
    rate.acquire().unwrap();
    assert!(!rate.try_acquire().unwrap());
    assert!(!rate.try_acquire_for(Duration::from_millis(20)).unwrap());
}

#[test]
fn interrupted_wait_ends_and_breaks_the_barrier_for_the_others() {
    let locks = memory();
    let barrier = locks.barrier("round", 2);
    let interrupt = Interrupt::new();
    let waiter = thread::spawn({
        let barrier = barrier.clone().interrupted_by(&interrupt);
        move || barrier.wait()
    });
    let began = Instant::now();
    while barrier.arrived().unwrap() == 0 {
        assert!(began.elapsed() < SOON);
        thread::sleep(Duration::from_millis(2));
    }
    interrupt.interrupt();
    assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Interrupted);
    while !barrier.is_broken().unwrap() {
        assert!(began.elapsed() < SOON, "the other parties are not notified");
        thread::sleep(Duration::from_millis(2));
    }
    barrier.reset().unwrap();
}

#[test]
fn interrupted_wait_is_not_a_failure_of_the_store() {
    let locks = memory();
    let (flight, interrupt) = (locks.single_flight("key"), Interrupt::new());
    let (begun, loading) = mpsc::channel();
    let (end, wait) = mpsc::channel::<()>();
    let waiter = thread::spawn({
        let flight = flight.clone().interrupted_by(&interrupt);
        let load = move || {
            begun.send(()).unwrap();
            let _ = wait.recv();
            Ok::<_, String>(None)
        };
        move || flight.get_or_load(SOON, load)
    });
    loading.recv_timeout(SOON).unwrap();
    interrupt.interrupt();
    let error = waiter.join().unwrap().unwrap_err();
    assert!(
        matches!(&error, LoadError::Interrupted(error) if error.kind() == ErrorKind::Interrupted),
        "{error}"
    );
    drop(end);
}

#[test]
fn updates_of_many_threads_are_all_made() {
    let stock = memory().versioned("stock");
    let add_one = |old: Option<&[u8]>| {
        let number = old.map_or(0, |old| str::from_utf8(old).unwrap().parse::<u32>().unwrap());
        Some((number + 1).to_string().into_bytes())
    };
    let before = stock.read().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| drop(stock.update(add_one).unwrap())));
        }
    });
    let after = stock.changed(&before, SOON).unwrap();
    assert_eq!(after.value(), Some(b"40".as_slice()));
}

#[test]
fn single_flight_loader_thread_may_block_fail_or_panic() {
    let locks = memory();
    let page = locks.single_flight("page").set(|page| page.early(0.0));
    let loads = Arc::new(AtomicU32::new(0));
    let load = || {
        let loads = loads.clone();
        page.get_or_load(Duration::from_secs(60), move || {
            loads.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(20));
            Ok::<_, String>(Some(b"<html>".to_vec()))
        })
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(load().unwrap().value.as_deref(), Some(b"<html>".as_slice())));
        }
    });
    assert_eq!(loads.load(Ordering::SeqCst), 1);
    assert!(page.get().unwrap().is_some());
    page.invalidate().unwrap();
    assert_eq!(page.get().unwrap(), None);
    let failed = page.get_or_load(Duration::from_secs(60), || Err("the source is ill")).unwrap_err();
    assert_eq!(failed.to_string(), "load: the source is ill");
    let panicking = std::panic::AssertUnwindSafe(|| {
        page.get_or_load(Duration::from_secs(60), || -> Result<_, String> { panic!("of the loader") })
    });
    let panic = std::panic::catch_unwind(panicking).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"of the loader"));
    // Neither has kept its turn.
    assert!(load().is_ok());
}

#[test]
fn threads_hold_multi_locks_stripes_and_leadership() {
    let locks = memory();
    let both = locks.lock_all(["a", "b"]);
    let guard = both.lock().unwrap();
    assert!(guard.check().is_ok() && guard.fence("a").is_some());
    assert!(both.try_lock().unwrap().is_none());
    assert!(both.try_lock_for(Duration::from_millis(20)).unwrap().is_none());
    guard.release().unwrap();
    drop(both.try_lock().unwrap().unwrap());
    eventually_free(&locks, "a");

    let stock = locks.striped_mutex("stock", 2);
    let (one, other) = (stock.lock_any().unwrap(), stock.try_lock_any().unwrap().unwrap());
    assert!(stock.try_lock_any().unwrap().is_none() && stock.for_key("key").try_lock().unwrap().is_none());
    one.release().unwrap();
    other.release().unwrap();
    stock.all().lock().unwrap().release().unwrap();

    let election = locks.election("boss");
    let mut observer = election.observe();
    assert_eq!(observer.next_leader().unwrap(), None);
    let leadership = election.campaign("ann").unwrap();
    assert!(election.try_campaign("ben").unwrap().is_none());
    leadership.proclaim("ann, at work").unwrap();
    while observer.next_leader().unwrap().unwrap().value != "ann, at work" {}
    leadership.resign().unwrap();
    assert_eq!(election.leader().unwrap(), None);
}

#[test]
fn a_condition_wakes_threads() {
    let locks = memory();
    let (mutex, filled) = (locks.mutex("queue"), locks.condition("queue filled"));
    let guard = mutex.lock().unwrap();
    let (guard, outcome) = guard.wait_for(&filled, Duration::from_millis(20)).unwrap();
    assert_eq!(outcome, leasehold::WaitOutcome::TimedOut);
    let notifier = thread::spawn({
        let (mutex, filled) = (mutex.clone(), filled.clone());
        move || {
            let guard = mutex.lock().unwrap();
            guard.notify_all(&filled).unwrap();
            guard.notify_one(&filled).unwrap();
            guard.release().unwrap();
        }
    });
    guard.wait(&filled).unwrap().release().unwrap();
    notifier.join().unwrap();
}

/// Opens a client that hands a lock over as long as a task waits, and another one of the same store.
fn handing_over(store: &str) -> (Client, Client) {
    let tuning = leasehold::Tuning::default().local_handoff_limit(1_000).local_handoff_time(SOON * 10);
    let settings = leasehold::Client::builder().tuning(tuning);
    (Client::open_with(settings, store).unwrap(), Client::open(store).unwrap())
}

/// Starts a task of the same client that waits for the job, and returns when it is queued.
fn spawn_waiter(
    locks: &Client,
    max_hold: Option<Duration>,
) -> tokio::task::JoinHandle<leasehold::Result<leasehold::Guard>> {
    let waiter = locks.call(move |client| async move {
        let mutex = max_hold.iter().fold(client.mutex("job"), |mutex, limit| mutex.max_hold(*limit));
        let mut wait = Box::pin(async move { mutex.lock().await });
        assert!(futures_util::poll!(&mut wait).is_pending());
        Ok(tokio::spawn(wait))
    });
    waiter.unwrap()
}

/// Waits for the guard that this task got, by a local hand-off.
fn handed_off(
    locks: &Client,
    next: tokio::task::JoinHandle<leasehold::Result<leasehold::Guard>>,
) -> leasehold::Guard {
    let next = locks.call(|_| async move { next.await.unwrap() }).unwrap();
    assert_eq!(next.fence().unwrap().sub, 1);
    next
}

#[test]
fn loss_after_a_handoff_is_reported_to_the_next_holder() {
    let (locks, _) = handing_over("mem:on_lost_of_one_hold");
    let (sender, receiver) = mpsc::channel();
    let guard = locks.mutex("job").lock().unwrap();
    guard.on_lost(move |cause| sender.send(cause).unwrap()).unwrap();
    let next = spawn_waiter(&locks, Some(Duration::from_millis(50)));
    guard.release().unwrap();
    let next = handed_off(&locks, next);
    let lost = locks.call(|_| async move { Ok((next.lost().await, next)) }).unwrap();
    assert_eq!(lost.0, LossCause::MaxHold);
    assert_eq!(receiver.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected), "never called");
}

#[test]
fn released_guard_of_an_owner_gets_no_more_notifications() {
    let (locks, other) = handing_over("mem:signals_of_one_guard");
    let (sender, receiver) = mpsc::channel();
    let (outer_sender, outer_receiver) = mpsc::channel();
    let outer = locks.mutex("job").reentrant().lock().unwrap();
    let inner = locks.mutex("job").reentrant().lock().unwrap();
    let revocation_sender = sender.clone();
    inner.on_lost(move |cause| sender.send(cause.to_string()).unwrap()).unwrap();
    inner.on_revoked(move |revocation| revocation_sender.send(revocation.reason).unwrap()).unwrap();
    inner.release().unwrap();
    outer.on_lost(move |cause| outer_sender.send(cause).unwrap()).unwrap();
    other.revoke("job", "meant for the other guard").unwrap();
    assert_eq!(outer.revoked_within(SOON).unwrap().unwrap().reason, "meant for the other guard");
    assert!(locks.close(SOON).unwrap());
    assert_eq!(outer_receiver.recv_timeout(SOON), Ok(LossCause::Closed));
    assert_eq!(receiver.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected), "never called");
    drop(outer);
}

#[test]
fn loss_is_reported_even_if_the_guard_is_dropped_at_once() {
    let locks = memory();
    for _ in 0..20 {
        let (sender, receiver) = mpsc::channel();
        let guard = locks.mutex("job").max_hold(Duration::from_millis(5)).lock().unwrap();
        guard.on_lost(move |cause| sender.send(cause).unwrap()).unwrap();
        while guard.check().is_ok() {
            thread::yield_now();
        }
        drop(guard);
        assert_eq!(receiver.recv_timeout(SOON), Ok(LossCause::MaxHold));
    }
}

#[test]
fn revocation_after_a_handoff_is_for_the_next_holder() {
    let (locks, other) = handing_over("mem:on_revoked_of_one_hold");
    let (sender, receiver) = mpsc::channel();
    let guard = locks.mutex("job").lock().unwrap();
    guard.on_revoked(move |revocation| sender.send(revocation.reason).unwrap()).unwrap();
    let next = spawn_waiter(&locks, None);
    guard.release().unwrap();
    let next = handed_off(&locks, next);
    other.revoke("job", "meant for the next").unwrap();
    let revoked = locks.call(|_| async move { Ok((next.revoked().await?, next)) }).unwrap();
    assert_eq!(revoked.0.reason, "meant for the next");
    assert_eq!(receiver.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected), "never called");
}

#[test]
fn thread_does_not_reenter_a_lost_lock() {
    let (locks, other) = handing_over("mem:lost_by_a_thread");
    let outer = locks.mutex("job").reentrant().max_hold(Duration::from_millis(20)).lock().unwrap();
    assert_eq!(outer.lost_within(SOON).unwrap(), Some(LossCause::MaxHold));
    let taken = other.mutex("job").lock().unwrap();
    let mutex = locks.mutex("job").reentrant();
    assert!(mutex.try_lock().unwrap().is_none(), "another client holds it");
    taken.release().unwrap();
    let again = mutex.lock().unwrap();
    assert!(again.check().is_ok() && outer.check().is_err() && again.fence() > outer.fence());

    let reader = locks.rwlock("prices").reentrant().max_hold(Duration::from_millis(20)).read().unwrap();
    assert_eq!(reader.lost_within(SOON).unwrap(), Some(LossCause::MaxHold));
    let writer = locks.rwlock("prices").reentrant().write().unwrap();
    assert!(writer.check().is_ok());
}
