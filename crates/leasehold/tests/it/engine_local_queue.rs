//! The local queue: one claim on the server, local hand-off, and no starvation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use std::time::Duration;

use crate::common::{Store, ms, settles, waiting};
use leasehold::layer::Verb;
use leasehold::{Client, ErrorKind, Fence, Guard, Note, Result, Tuning};
use tokio::sync::Barrier;

/// No machine is so busy.
const SOON: Duration = Duration::from_secs(60);

fn patient() -> Tuning {
    Tuning::default().local_handoff_limit(1000).local_handoff_time(ms(60_000))
}

#[tokio::test(start_paused = true)]
async fn many_tasks_make_one_claim_wait() {
    let store = Store::in_virtual_time();
    let (locks, _) = store.client();
    let (other, _) = store.client();
    let held = other.mutex("job").lock().await.unwrap();
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let mutex = locks.mutex("job");
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    waiting(&other, "job", 1).await;
    tokio::time::sleep(ms(50)).await;
    assert_eq!(other.inspect("job").await.unwrap().waiting.len(), 1);
    held.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    settles(&locks, "job").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_goes_from_task_to_task_in_order_with_rising_fences() {
    let (locks, wire) = Store::new().tuned(patient());
    let first = locks.mutex("job").lock().await.unwrap();
    let log = Arc::new(std::sync::Mutex::new(vec![(0, first.fence().unwrap())]));
    let inside = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for n in 1..=200 {
        let (mutex, log, inside) = (locks.mutex("job"), log.clone(), inside.clone());
        let (entered, ready) = tokio::sync::oneshot::channel();
        tasks.push(tokio::spawn(async move {
            let mut lock = std::pin::pin!(mutex.lock());
            // Two polls queue it, as one of many acquisitions pauses once. So the order of tasks is that of arrival.
            for _ in 0..2 {
                let polled =
                    std::future::poll_fn(|cx| std::task::Poll::Ready(lock.as_mut().poll(cx).is_ready()))
                        .await;
                assert!(!polled);
            }
            entered.send(()).unwrap();
            let guard = lock.await.unwrap();
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
            log.lock().unwrap().push((n, guard.fence().unwrap()));
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            guard.release().await.unwrap();
        }));
        ready.await.unwrap();
    }
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let log = log.lock().unwrap();
    assert!(log.windows(2).all(|pair| pair[0] < pair[1]), "order and fences rise together: {log:?}");
    assert_eq!(log.last().unwrap().1, Fence { sub: 200, ..log[0].1 });
    assert_eq!(wire.calls(Verb::Contend), 1, "one grant served them all");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_budget_lets_other_processes_in() {
    let store = Store::new();
    let (greedy, _) = store.tuned(patient().local_handoff_limit(10));
    let (other, _) = store.client();
    let stop = Arc::new(AtomicU64::new(0));
    // Without it, the other process could be done before each task has begun.
    let begin = Arc::new(Barrier::new(9));
    let rounds: Arc<[AtomicU64; 8]> = Arc::default();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (mutex, stop, begin) = (greedy.mutex("job"), stop.clone(), begin.clone());
            let rounds = rounds.clone();
            tokio::spawn(async move {
                begin.wait().await;
                while stop.load(Ordering::SeqCst) == 0 {
                    let guard = mutex.lock().await.unwrap();
                    tokio::task::yield_now().await;
                    drop(guard);
                    rounds[task].fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    begin.wait().await;
    let begun = std::time::Instant::now();
    // A machine that is busy may run some of the tasks late.
    let is_starving = || rounds.iter().any(|rounds| rounds.load(Ordering::SeqCst) == 0);
    for round in 0.. {
        if round >= 20 && !is_starving() {
            break;
        }
        assert!(begun.elapsed() < ms(60_000), "a task of the greedy process starved");
        other.mutex("job").try_lock_for(ms(60_000)).await.unwrap().unwrap().release().await.unwrap();
    }
    stop.store(1, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn readers_of_one_process_share_the_lock_and_a_writer_waits() {
    let (locks, _) = Store::in_virtual_time().client();
    let lock = locks.rwlock("prices");
    let readers = [lock.read().await.unwrap(), lock.read().await.unwrap(), lock.read().await.unwrap()];
    assert!(lock.try_write().await.unwrap().is_none());
    let writer = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await.unwrap() }
    });
    tokio::task::yield_now().await;
    let late = tokio::spawn({
        let lock = lock.clone();
        async move { lock.read().await.unwrap() }
    });
    tokio::time::sleep(ms(50)).await;
    assert!(
        !writer.is_finished() && !late.is_finished(),
        "a reader that comes after a writer waits behind it"
    );
    drop(readers);
    let writer = writer.await.unwrap();
    assert!(!late.is_finished());
    writer.release().await.unwrap();
    late.await.unwrap().release().await.unwrap();
    settles(&locks, "prices").await;
}

#[tokio::test(start_paused = true)]
async fn permits_are_counted_over_clients_and_tasks() {
    let store = Store::in_virtual_time();
    let (one, _) = store.client();
    let (two, _) = store.client();
    let (a, b) = (one.semaphore("encode", 3), two.semaphore("encode", 3));
    let held = [a.acquire().await.unwrap(), a.acquire().await.unwrap()];
    let third = b.acquire().await.unwrap();
    assert!(a.try_acquire().await.unwrap().is_none());
    assert!(b.try_acquire_for(ms(50)).await.unwrap().is_none());
    drop(held);
    let both = b.acquire_many(2).await.unwrap();
    assert!(a.try_acquire().await.unwrap().is_none());
    drop((third, both));
    settles(&one, "encode").await;
    assert_eq!(a.acquire_many(4).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(a.acquire_many(0).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn timed_out_wait_leaves_the_queue_and_keeps_the_others() {
    let store = Store::in_virtual_time();
    let (locks, _) = store.client();
    let (other, _) = store.client();
    let held = other.mutex("job").lock().await.unwrap();
    let patient = tokio::spawn({
        let mutex = locks.mutex("job");
        async move { mutex.lock().await.unwrap() }
    });
    waiting(&other, "job", 1).await;
    assert!(locks.mutex("job").try_lock_for(ms(60)).await.unwrap().is_none());
    assert!(locks.mutex("job").try_lock_for(ms(0)).await.unwrap().is_none());
    assert_eq!(
        other.inspect("job").await.unwrap().waiting.len(),
        1,
        "the place is kept for the waiter that stays"
    );
    held.release().await.unwrap();
    patient.await.unwrap().release().await.unwrap();
    settles(&locks, "job").await;
}

#[tokio::test]
async fn the_futures_of_a_lock_are_small_enough_to_be_moved_about() {
    let (locks, _) = Store::new().client();
    let lock = locks.mutex("job");
    assert!(size_of_val(&lock.lock()) <= 2_048);
    assert!(size_of_val(&lock.try_lock()) <= 2_048);
    let guard = lock.lock().await.unwrap();
    assert!(size_of_val(&guard.release()) <= 1_024);
}

/// An `async fn` that wraps a future has room for it twice, so the size doubles with each layer.
#[tokio::test(start_paused = true)]
async fn futures_of_all_acquisitions_fit_a_small_stack() {
    let (locks, _) = Store::in_virtual_time().client();
    let limit = ms(60);
    let (mutex, rwlock, striped) =
        (locks.mutex("job"), locks.rwlock("data"), locks.striped_mutex("stock", 4));
    let both = locks.lock_all(["a", "b"]);
    let mut reader = rwlock.upgradable_read().await.unwrap();
    let guard = mutex.lock().await.unwrap();
    let condition = locks.condition("job");
    let upgrade = size_of_val(&reader.upgrade());
    let run = size_of_val(&guard.run(async {}));
    let token = locks.mutex("passed on").lock().await.unwrap().transfer().await.unwrap();
    let sizes = [
        ("try_lock_for", size_of_val(&mutex.try_lock_for(limit))),
        ("upgradable_read", size_of_val(&rwlock.upgradable_read())),
        ("upgrade", upgrade),
        ("try_upgrade_for", size_of_val(&reader.try_upgrade_for(limit))),
        ("lock_any", size_of_val(&striped.lock_any())),
        ("try_lock_any_for", size_of_val(&striped.try_lock_any_for(limit))),
        ("lock of a stripe", size_of_val(&striped.stripe(1).lock())),
        ("try_lock_for of a stripe", size_of_val(&striped.stripe(1).try_lock_for(limit))),
        ("lock of several", size_of_val(&both.lock())),
        ("try_lock_for of several", size_of_val(&both.try_lock_for(limit))),
        ("run", run),
        ("wait of a barrier", size_of_val(&locks.barrier("end", 2).wait())),
        ("campaign", size_of_val(&locks.election("leader").campaign("me"))),
        ("wait of a condition", size_of_val(&guard.wait(&condition))),
        ("accept_transfer", size_of_val(&mutex.accept_transfer(&token))),
    ];
    let large: Vec<_> = sizes.into_iter().filter(|(_, size)| *size > 4_096).collect();
    assert!(large.is_empty(), "{large:?}");
}

/// Starts a wait: polled once, it is queued.
async fn spawn_queued<T: Send + 'static>(
    wait: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let mut wait = Box::pin(wait);
    assert!(futures_util::poll!(&mut wait).is_pending());
    tokio::spawn(wait)
}

async fn granted(wait: tokio::task::JoinHandle<Result<Guard>>) -> Guard {
    tokio::time::timeout(SOON, wait).await.expect("it sleeps although it would be granted").unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn waiter_that_gives_up_wakes_the_waiters_behind_it() {
    let (locks, _) = Store::in_virtual_time().client();
    let prices = locks.rwlock("prices");
    let held = prices.read().await.unwrap();
    for is_dropped in [false, true] {
        let (writer, reader) = (prices.clone(), prices.clone());
        let writes = spawn_queued(async move { writer.try_write_for(ms(50)).await }).await;
        let reads = spawn_queued(async move { reader.read().await }).await;
        if is_dropped {
            writes.abort();
        } else {
            assert!(writes.await.unwrap().unwrap().is_none());
        }
        granted(reads).await.release().await.unwrap();
    }
    held.release().await.unwrap();

    let encoders = locks.semaphore("encode", 3);
    let held = encoders.acquire_many(2).await.unwrap();
    let (many, one) = (encoders.clone(), encoders.clone());
    let asks_for_two = spawn_queued(async move { many.try_acquire_many_for(2, ms(50)).await }).await;
    let asks_for_one = spawn_queued(async move { one.acquire().await }).await;
    assert!(asks_for_two.await.unwrap().unwrap().is_none());
    drop((granted(asks_for_one).await, held));
    settles(&locks, "prices").await;
    settles(&locks, "encode").await;
}

#[tokio::test(start_paused = true)]
async fn contender_for_another_waiter_delays_no_waiter() {
    let (locks, _) = Store::in_virtual_time().client();
    let prices = locks.rwlock("prices");
    let held = prices.read().await.unwrap();
    let [gives_up, reader, writer, urgent] = [(); 4].map(|()| prices.clone());
    let gives_up = spawn_queued(async move { gives_up.try_write_for(ms(50)).await }).await;
    let reads = spawn_queued(async move { reader.read().await }).await;
    let writes = spawn_queued(async move { writer.write().await }).await;
    assert!(gives_up.await.unwrap().unwrap().is_none());
    drop(granted(reads).await);
    waiting(&locks, "prices", 1).await;
    let reads = spawn_queued(async move { urgent.priority(1).read().await }).await;
    drop((granted(reads).await, held));
    granted(writes).await.release().await.unwrap();

    let encoders = locks.semaphore("encode", 3);
    let held = [encoders.acquire().await.unwrap(), encoders.acquire().await.unwrap()];
    let [gives_up, one, two] = [(); 3].map(|()| encoders.clone());
    let gives_up = spawn_queued(async move { gives_up.try_acquire_many_for(2, ms(50)).await }).await;
    let asks_for_one = spawn_queued(async move { one.acquire().await }).await;
    let asks_for_two = spawn_queued(async move { two.acquire_many(2).await }).await;
    assert!(gives_up.await.unwrap().unwrap().is_none());
    drop((granted(asks_for_one).await, held));
    drop(granted(asks_for_two).await);
    settles(&locks, "prices").await;
    settles(&locks, "encode").await;
}

#[tokio::test(start_paused = true)]
async fn waiter_that_no_handoff_serves_has_a_place_on_the_server() {
    let store = Store::in_virtual_time();
    let (locks, _) = store.client();
    let (other, _) = store.client();
    let mutex = locks.mutex("job");
    // Another note, another lease, and what is held for longer than it may be handed on.
    for other_want in
        [mutex.clone().note(Note::new("mine").unwrap()), mutex.clone().ttl(ms(20_000)), mutex.clone()]
    {
        let held = mutex.lock().await.unwrap();
        let waits = spawn_queued(async move { other_want.lock().await }).await;
        waiting(&other, "job", 1).await;
        let later = other.mutex("job");
        let later = spawn_queued(async move { later.lock().await }).await;
        waiting(&other, "job", 2).await;
        held.release().await.unwrap();
        let first = granted(waits).await;
        assert!(!later.is_finished(), "it came later");
        first.release().await.unwrap();
        granted(later).await.release().await.unwrap();
    }
    settles(&other, "job").await;
}

#[tokio::test]
async fn waiter_behind_the_last_handoff_has_a_place_on_the_server() {
    let store = Store::new();
    let (locks, _) = store.tuned(patient().local_handoff_limit(1));
    let (other, _) = store.client();
    let held = locks.mutex("job").lock().await.unwrap();
    let (second, third) = (locks.mutex("job"), locks.mutex("job"));
    let second = spawn_queued(async move { second.lock().await }).await;
    let third = spawn_queued(async move { third.lock().await }).await;
    held.release().await.unwrap();
    let second = granted(second).await;
    assert_eq!(second.fence().unwrap().sub, 1, "it was handed over");
    waiting(&other, "job", 1).await;
    second.release().await.unwrap();
    granted(third).await.release().await.unwrap();
}

#[tokio::test]
async fn revoked_lock_is_not_handed_to_a_waiter_of_its_own_process() {
    let store = Store::new();
    let (locks, _) = store.tuned(patient());
    let (other, _) = store.client();
    let held = locks.mutex("job").lock().await.unwrap();
    let (ours, theirs) = (locks.mutex("job"), other.mutex("job"));
    let ours = spawn_queued(async move { ours.lock().await }).await;
    let theirs = spawn_queued(async move { theirs.lock().await }).await;
    waiting(&other, "job", 1).await;
    other.revoke("job", "please").await.unwrap();
    assert_eq!(held.revoked().await.unwrap().reason, "please");
    // What waits here has a place of its own from now on.
    waiting(&other, "job", 2).await;
    held.release().await.unwrap();
    let first = granted(theirs).await;
    assert!(!ours.is_finished(), "it came later to the store");
    first.release().await.unwrap();
    granted(ours).await.release().await.unwrap();
}

#[tokio::test]
async fn handoff_of_several_permits_wakes_the_waiters_behind() {
    let (locks, _) = Store::new().tuned(patient());
    let encoders = locks.semaphore("encode", 3);
    let held = encoders.acquire_many(2).await.unwrap();
    let (many, one) = (encoders.clone(), encoders.clone());
    let asks_for_two = spawn_queued(async move { many.acquire_many(2).await }).await;
    let asks_for_one = spawn_queued(async move { one.acquire().await }).await;
    drop(held);
    let two = granted(asks_for_two).await;
    assert_eq!(two.fence().unwrap().sub, 1, "it was handed over");
    drop((granted(asks_for_one).await, two));
    settles(&locks, "encode").await;
}

#[tokio::test]
async fn a_writer_behind_its_own_reader_keeps_readers_of_others_out() {
    let directory = tempfile::tempdir().unwrap();
    let file = format!("file:{}", directory.path().display());
    for url in ["mem:writer_behind_its_own_reader", &file] {
        let (one, two) = (Client::open(url).await.unwrap(), Client::open(url).await.unwrap());
        let (here, there) = (one.rwlock("prices"), two.rwlock("prices"));
        let reader = here.read().await.unwrap();
        let writer = here.clone();
        let writes = spawn_queued(async move { writer.write().await }).await;
        waiting(&two, "prices", 1).await;
        assert!(there.try_read().await.unwrap().is_none(), "it waits behind the writer that came before");
        assert!(here.try_read().await.unwrap().is_none(), "so it does in the process of the writer");
        reader.release().await.unwrap();
        granted(writes).await.release().await.unwrap();
        drop(there.try_read_for(SOON).await.unwrap().unwrap());
        settles(&one, "prices").await;
    }
}

#[tokio::test]
async fn try_does_not_overtake_a_waiter_of_its_own_process() {
    let (locks, wire) = Store::new().client();
    let encoders = locks.semaphore("encode", 3);
    let held = encoders.acquire_many(2).await.unwrap();
    let many = encoders.clone();
    let asks_for_two = spawn_queued(async move { many.acquire_many(2).await }).await;
    let calls = wire.calls(Verb::Contend);
    assert!(encoders.try_acquire().await.unwrap().is_none());
    assert_eq!(wire.calls(Verb::Contend), calls, "that is known without the server");
    drop(held);
    granted(asks_for_two).await.release().await.unwrap();
    settles(&locks, "encode").await;
}

#[tokio::test]
async fn a_token_with_another_fence_is_refused() {
    let (locks, _) = Store::new().client();
    let mutex = locks.mutex("job");
    let first = mutex.lock().await.unwrap().transfer().await.unwrap();
    let second = mutex.accept_transfer(&first).await.unwrap().transfer().await.unwrap();
    let (fence, text) = (second.fence(), second.to_string());
    assert_eq!(fence.sub, 1);
    for sub in [0, 2, u32::MAX - 1, u32::MAX] {
        let forged = text.replacen(&fence.to_string(), &Fence { sub, ..fence }.to_string(), 1);
        assert!(mutex.accept_transfer(&forged.parse().unwrap()).await.is_err(), "{forged}");
    }
    let third = mutex.accept_transfer(&second).await.unwrap();
    assert_eq!(third.fence(), Some(Fence { sub: 2, ..fence }));
    third.release().await.unwrap();
}
