//! A client that closes, or whose runtime ends, and callers that leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::backend::LossCause;
use leasehold::layer::{Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, Note, State, Tuning};
use tokio::runtime::{Builder, Runtime};

use super::odd::{Call, EventLog, Odd, Ticks, World, pass};
use crate::common::{Store, block_on, ms};

const SOON: Duration = Duration::from_secs(60);

fn runtimes() -> [Runtime; 2] {
    let several = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    [several, Builder::new_current_thread().enable_all().build().unwrap()]
}

/// No call to a client without a runtime hangs, panics or works.
async fn is_closed(locks: Client) {
    let kind = |error: leasehold::Error| error.kind();
    let closed = ErrorKind::Closed;
    let (mutex, value) = (locks.mutex("next"), locks.versioned("value"));
    assert_eq!(mutex.lock().await.map_err(kind).unwrap_err(), closed);
    assert_eq!(mutex.try_lock().await.map_err(kind).unwrap_err(), closed);
    assert_eq!(mutex.try_lock_for(ms(20)).await.map_err(kind).unwrap_err(), closed);
    assert_eq!(locks.rwlock("next").upgradable_read().await.map_err(kind).unwrap_err(), closed);
    assert_eq!(
        locks.striped_mutex("next", 3).try_lock_any_for(ms(20)).await.map_err(kind).unwrap_err(),
        closed
    );
    assert_eq!(locks.lock_all(["a", "b"]).lock().await.map_err(kind).unwrap_err(), closed);
    assert_eq!(locks.inspect("next").await.map_err(kind).unwrap_err(), closed);
    assert_eq!(locks.list("", None, 5).await.map_err(kind).unwrap_err(), closed);
    assert_eq!(locks.deadlocks().await.map_err(kind).unwrap_err(), closed);
    assert_eq!(locks.revoke("next", "please").await.map_err(kind).unwrap_err(), closed);
    assert_eq!(value.read().await.map_err(kind).unwrap_err(), closed);
    assert_eq!(value.update(|_| Some(vec![1])).await.map_err(kind).unwrap_err(), closed);
    assert_eq!(locks.latch("latch", 1).count_down().await.map_err(kind).unwrap_err(), closed);
    assert_eq!(locks.latch("latch", 1).wait().await.map_err(kind).unwrap_err(), closed);
    assert_eq!(locks.barrier("barrier", 2).arrived().await.map_err(kind).unwrap_err(), closed);
    assert_eq!(locks.rate_limit("rate", 1, SOON).acquire().await.map_err(kind).unwrap_err(), closed);
    assert_eq!(locks.election("boss").campaign("me").await.map_err(kind).unwrap_err(), closed);
    assert!(!locks.diagnose(ms(1_000)).await.is_empty());
    assert!(locks.close(ms(1_000)).await, "there is nothing left to wait for");
}

#[test]
fn a_client_whose_runtime_ended_is_closed() {
    for runtime in runtimes() {
        let (locks, guard, shared) = runtime.block_on(async {
            let (locks, _) = Store::new().client();
            let guard = locks.mutex("held").lock().await.unwrap();
            let shared = locks.rwlock("shared").upgradable_read().await.unwrap();
            (locks, guard, shared)
        });
        // A task on another runtime waits for the held lock.
        let other = Builder::new_current_thread().enable_all().build().unwrap();
        let mutex = locks.mutex("held");
        let waiting = std::thread::spawn(move || {
            let here = Builder::new_current_thread().enable_all().build().unwrap();
            here.block_on(async { tokio::time::timeout(SOON, mutex.lock()).await })
        });
        std::thread::sleep(ms(50));
        drop(runtime);
        let waited = waiting.join().unwrap().expect("notified");
        assert_eq!(waited.unwrap_err().kind(), ErrorKind::Closed);
        other.block_on(async {
            tokio::time::timeout(SOON, async {
                assert_eq!(guard.lost().await, LossCause::RenewalEnded);
                assert!(guard.run(std::future::pending::<()>()).await.unwrap_err().is_lost());
                assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost(LossCause::RenewalEnded));
                assert!(guard.release().await.unwrap_err().is_lost());
                let mut shared = shared;
                assert!(shared.upgrade().await.is_err());
                drop(shared);
                is_closed(locks).await;
            })
            .await
            .expect("nothing of a client without a runtime hangs");
        });
    }
}

/// A store that decides at once would be asked on the thread that ends the runtime.
#[test]
fn end_of_a_runtime_keeps_a_lock_delay() {
    let store = Arc::new(MemoryBackend::new());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (kept, freed) = runtime.block_on(async {
        let locks = Client::builder().over(store.clone()).unwrap();
        let kept = locks.mutex("kept").lock_delay(ms(600_000)).lock().await.unwrap();
        (kept, locks.mutex("freed").lock().await.unwrap())
    });
    drop(runtime);
    assert_eq!(kept.state(), State::Lost(LossCause::RenewalEnded));
    let here = Builder::new_current_thread().enable_all().build().unwrap();
    here.block_on(async {
        let other = Client::builder().over(store).unwrap();
        assert!(other.mutex("freed").try_lock().await.unwrap().is_some());
        assert!(other.mutex("kept").try_lock().await.unwrap().is_none());
        drop((kept, freed));
        assert!(other.mutex("kept").try_lock().await.unwrap().is_none(), "after the end of the guard, too");
    });
}

/// Runs work on a runtime of its own, in another thread.
fn elsewhere<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(|| {
        let here = Builder::new_current_thread().enable_all().build().unwrap();
        here.block_on(async { tokio::time::timeout(SOON, work).await.expect("notified") })
    })
}

#[test]
fn change_under_way_when_the_runtime_ends_may_have_happened() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, wire) = runtime.block_on(async { Store::new().client() });
    wire.set_all(Mode::Hang);
    wire.set(Verb::Read, Mode::Pass);
    let value = locks.versioned("value");
    let writes = elsewhere(async move { value.update(|_| Some(vec![1])).await });
    let latch = locks.latch("latch", 1);
    while wire.calls(Verb::Swap) == 0 {
        std::thread::sleep(ms(1));
    }
    wire.set(Verb::Read, Mode::Hang);
    let before = wire.calls(Verb::Read);
    let reads = elsewhere(async move { latch.wait().await });
    while wire.calls(Verb::Read) == before {
        std::thread::sleep(ms(1));
    }
    drop(runtime);
    let error = writes.join().unwrap().unwrap_err();
    assert!(error.may_have_happened(), "{error}");
    let error = reads.join().unwrap().unwrap_err();
    assert!(error.kind() == ErrorKind::Closed && !error.may_have_happened(), "{error}");
}

#[test]
fn release_under_way_ends_with_its_runtime() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, wire) = runtime.block_on(async { Store::new().client() });
    let guard = runtime.block_on(locks.mutex("job").lock()).unwrap();
    wire.set(Verb::Release, Mode::Hang);
    drop(guard);
    while wire.calls(Verb::Release) == 0 {
        std::thread::sleep(ms(1));
    }
    drop(runtime);
    assert!(block_on(locks.close(SOON)), "nothing is under way any more");
}

#[test]
fn lock_fails_as_closed_after_the_runtime_ended() {
    // Nothing was held, no task waited: the call itself finds out.
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let locks = runtime.block_on(async { Store::new().client().0 });
    drop(runtime);
    let error = block_on(locks.mutex("job").lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[test]
fn a_runtime_without_timers_is_refused() {
    let runtime = Builder::new_current_thread().build().unwrap();
    for url in UNASKED {
        let error = runtime.block_on(Client::open(url)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(
            error.to_string().contains("no timers") && error.to_string().contains("`enable_all`"),
            "{error}"
        );
    }
}

#[test]
fn open_outside_a_runtime_is_refused() {
    for url in UNASKED {
        let error = block_on(Client::open(url)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(error.to_string().contains("no tokio runtime"), "{error}");
    }
}

#[tokio::test]
async fn tuning_out_of_range_is_refused_before_the_store_is_asked() {
    for (url, tuning) in UNASKED.into_iter().flat_map(|url| {
        [Tuning::default().renew_at(0.9), Tuning::default().drift(0.9)].map(|tuning| (url, tuning))
    }) {
        let error = Client::builder().tuning(tuning).open(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
    }
}

/// URLs of stores of both kinds. Nothing listens at the port, so a server that is asked does not answer.
const UNASKED: [&str; 2] = ["mem:", "redis://127.0.0.1:1"];

#[test]
fn loss_is_reported_while_the_client_runtime_is_not_driven() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (locks, guard, other) = runtime.block_on(async {
        let (locks, _) = Store::new().client();
        let guard = locks.mutex("job").ttl(ms(300)).lock().await.unwrap();
        let other = locks.mutex("other").max_hold(ms(300)).lock().await.unwrap();
        (locks, guard, other)
    });
    // From here on nothing renews it, and no task of the client runs.
    assert!(block_on(guard.run(std::future::pending::<()>())).unwrap_err().is_lost());
    assert_eq!(block_on(guard.lost()), LossCause::Expired);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost(LossCause::Expired));
    assert_eq!(block_on(other.lost()), LossCause::MaxHold);
    assert_eq!(block_on(other.changed(State::Valid)), State::Lost(LossCause::MaxHold));
    drop((guard, other, locks));
}

/// A grant that arrives while the client closes belongs to no caller.
#[tokio::test(start_paused = true)]
async fn nothing_is_granted_by_a_client_that_closed() {
    for round in 0..3 {
        let store = Store::in_virtual_time();
        let (locks, wire) = store.client();
        let (onlooker, _) = store.client();
        wire.set(Verb::Contend, Mode::LateReply(ms(100)));
        let mutex = locks.mutex("job");
        let asking = tokio::spawn(async move {
            match round {
                0 => mutex.try_lock().await,
                1 => mutex.try_lock_for(SOON).await,
                _ => mutex.lock().await.map(Some),
            }
        });
        while onlooker.inspect("job").await.unwrap().holders.is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(locks.close(SOON).await);
        assert!(onlooker.inspect("job").await.unwrap().holders.is_empty(), "closed, and still held");
        let error = asking.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "round {round}");
    }
}

/// Closing does not depend on whether the caller is polled.
#[tokio::test(start_paused = true)]
async fn grant_to_a_caller_that_is_not_polled_is_released_by_the_close() {
    let (store, events) = (Store::in_virtual_time(), Arc::<EventLog>::default());
    let ((locks, wire), (onlooker, _)) = (store.observed(events.clone()), store.client());
    wire.set(Verb::Contend, Mode::LateReply(ms(100)));
    let mutex = locks.mutex("job");
    let mut waits = Box::pin(mutex.lock());
    assert!((&mut waits).now_or_never().is_none());
    while onlooker.inspect("job").await.unwrap().holders.is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(locks.close(SOON).await);
    assert!(onlooker.inspect("job").await.unwrap().holders.is_empty(), "closed, and still held");
    assert_eq!(waits.await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(events.count("lost", "job"), 0, "nobody had it");
}

/// The calls of which the backend's future was begun, and those of which it came to its end.
#[derive(Default)]
struct Ends(AtomicU64);

#[tokio::test]
async fn backend_future_is_never_dropped_midway() {
    let (go, gone) = tokio::sync::watch::channel(false);
    let ends = Arc::<Ends>::default();
    let store = Odd::new(Ticks::new(), {
        let ends = ends.clone();
        move |call, _, _| {
            let (mut gone, ends) = (gone.clone(), ends.clone());
            Box::pin(async move {
                if !matches!(call, Call::Contend | Call::Release | Call::Renew) {
                    gone.wait_for(|gone| *gone).await.unwrap();
                    ends.0.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            })
        }
    });
    let locks = Client::builder().over(store.clone()).unwrap();
    let guard = locks.mutex("job").lock().await.unwrap();
    let mut holder = holder_of(&locks, &store, &go).await;
    holder.id = leasehold::backend::ClaimId::from_bytes([7; 16]);
    ends.0.store(0, Ordering::SeqCst);
    let leaves = ms(20);
    assert!(tokio::time::timeout(leaves, locks.inspect("job")).await.is_err());
    assert!(tokio::time::timeout(leaves, locks.list("", None, 5)).await.is_err());
    assert!(tokio::time::timeout(leaves, locks.break_claim("job", &holder)).await.is_err());
    for call in [Call::Inspect, Call::List, Call::Break] {
        assert!(store.calls(call) > 0, "{call:?} was not begun");
    }
    go.send_replace(true);
    tokio::time::timeout(SOON, async {
        while ends.0.load(Ordering::SeqCst) < 3 {
            tokio::time::sleep(ms(1)).await;
        }
    })
    .await
    .expect("all three came to their ends, although no task waited");
    guard.release().await.unwrap();
}

async fn holder_of(
    locks: &Client,
    store: &Odd,
    go: &tokio::sync::watch::Sender<bool>,
) -> leasehold::ClaimInfo {
    go.send_replace(true);
    let holder = locks.inspect("job").await.unwrap().holders.remove(0);
    assert_eq!(store.calls(Call::Inspect), 1);
    go.send_replace(false);
    holder
}

#[tokio::test(start_paused = true)]
async fn close_ends_waits_for_an_unreachable_store() {
    let (locks, wire) = Store::new().client();
    let value = locks.versioned("value");
    wire.set(Verb::Read, Mode::Refuse);
    let reading = tokio::spawn(async move { value.read().await });
    while wire.calls(Verb::Read) == 0 {
        tokio::task::yield_now().await;
    }
    let began = tokio::time::Instant::now();
    assert!(locks.close(SOON).await);
    assert_eq!(reading.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(began.elapsed() < ms(5_000), "an outage is tolerated for 15 s: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guard_of_a_closed_client_is_lost_at_once() {
    let world = World::new(|_, _, _| pass());
    let guard = world.locks.mutex("job").lock().await.unwrap();
    assert!(world.locks.close(SOON).await);
    assert_eq!(guard.state(), State::Lost(LossCause::Closed));
}

/// The contender for the first of many different requests is dropped by its runtime at any place in the
/// order of tasks.
#[test]
fn queue_of_many_requests_ends_with_its_runtime() {
    for place in 0..8 {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let locks = runtime.block_on(async { Store::new().client().0 });
        for _ in 0..place {
            runtime.spawn(std::future::pending::<()>());
        }
        let held = runtime.block_on(async { locks.mutex("job").lock().await.unwrap() });
        // Outside of the runtime, so that they do not leave the queue with it.
        let mut waiting: Vec<_> = (0..2_000)
            .map(|number| {
                let mutex = locks.mutex("job").note(Note::new(&number.to_string()).unwrap());
                Box::pin(async move { mutex.lock().await })
            })
            .collect();
        for waiting in &mut waiting {
            assert!(waiting.now_or_never().is_none());
        }
        drop(runtime);
        for waiting in waiting {
            assert_eq!(block_on(waiting).unwrap_err().kind(), ErrorKind::Closed);
        }
        drop(held);
    }
}
