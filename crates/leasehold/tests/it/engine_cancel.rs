//! Cancelling: at any poll, at any time and in any state of the network, nothing is left behind.

use crate::common;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::{Store, ms, settles};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, Note, TokioClock};

/// Polls `future` up to `polls` times, letting everything else run in between, and drops it.
async fn poll_and_drop<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_dropped_after_any_poll_leaves_nothing() {
    for busy in [false, true] {
        for mode in [Mode::Pass, Mode::LoseReply, Mode::LoseRequest, Mode::Refuse, Mode::Hang] {
            for polls in 0..12 {
                let store = Store::in_virtual_time();
                let (locks, wire) = store.client();
                let (other, _) = store.client();
                let held = if busy { Some(other.mutex("job").lock().await.unwrap()) } else { None };
                wire.set_all(mode);
                let mutex = locks.mutex("job").ttl(ms(400));
                drop(poll_and_drop(mutex.lock(), polls).await);
                drop(poll_and_drop(mutex.try_lock(), polls).await);
                drop(poll_and_drop(mutex.try_lock_for(ms(1000)), polls).await);
                wire.set_all(Mode::Pass);
                drop(held);
                settles(&other, "job").await;
                // And the queue still works.
                mutex.try_lock_for(Duration::from_secs(5)).await.unwrap().unwrap().release().await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn dropped_wait_leaves_the_queue_of_the_server() {
    let store = Store::new();
    let (locks, _) = store.client();
    let (other, _) = store.client();
    let held = other.mutex("job").lock().await.unwrap();
    let wait = tokio::spawn({
        let mutex = locks.mutex("job");
        async move { mutex.lock().await.map(drop) }
    });
    common::waiting(&other, "job", 1).await;
    wait.abort();
    // The lock is still held: only the end of patience takes the claim out of the queue.
    common::waiting(&other, "job", 0).await;
    held.release().await.unwrap();
}

/// The store keeps the place between two requests, which the client sends now and then.
#[tokio::test(start_paused = true)]
async fn dropped_wait_leaves_the_queue_of_a_store_that_is_polled() {
    let store = Arc::new(MemoryBackend::with_clock(Arc::new(TokioClock::new())).polling());
    let open = || {
        let wire = Arc::new(Fault::over(store.clone()));
        (Client::builder().clock(Arc::new(TokioClock::new())).over(wire.clone()).unwrap(), wire)
    };
    let ((locks, wire), (other, _)) = (open(), open());
    let held = other.mutex("job").lock().await.unwrap();
    // It leaves during the pause between two requests, or while an answer is on its way.
    for late in [Duration::ZERO, ms(100)] {
        wire.set(Verb::Contend, Mode::LateReply(late));
        let mutex = locks.mutex("job");
        let wait = tokio::spawn(async move { mutex.lock().await.map(drop) });
        common::waiting(&other, "job", 1).await;
        wait.abort();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(other.inspect("job").await.unwrap().waiting, [], "answers take {late:?}");
    }
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_dropped_after_any_poll_is_done_all_the_same() {
    for mode in [Mode::Pass, Mode::LoseReply, Mode::LoseRequest, Mode::Hang] {
        for polls in 0..6 {
            let (locks, wire) = Store::in_virtual_time().client();
            let guard = locks.mutex("job").lock().await.unwrap();
            wire.set(Verb::Release, mode);
            poll_and_drop(guard.release(), polls).await;
            wire.set(Verb::Release, Mode::Pass);
            settles(&locks, "job").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_acquisitions_dropped_at_random_leave_nothing() {
    let store = Store::new();
    let (locks, _) = store.client();
    let (other, _) = store.client();
    let tasks: Vec<_> = (0..4000u64)
        .map(|n| {
            let lock = if n % 2 == 0 { locks.rwlock("job") } else { other.rwlock("job") };
            tokio::spawn(async move {
                let patience = Duration::from_micros(getrandom::u64().unwrap() % 20_000);
                let acquire = async { if n % 3 == 0 { lock.write().await } else { lock.read().await } };
                if let Ok(guard) = tokio::time::timeout(patience, acquire).await {
                    let guard = guard.unwrap();
                    tokio::task::yield_now().await;
                    if n % 5 == 0 { guard.release().await.unwrap() } else { drop(guard) }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    settles(&locks, "job").await;
    // Releases of this process may still be under way.
    let writer = locks.rwlock("job").try_write_for(ms(60_000)).await.unwrap();
    drop(writer.expect("nothing is left"));
}

#[tokio::test(start_paused = true)]
async fn release_with_lost_reply_is_repeated_and_reported() {
    let (locks, wire) = Store::in_virtual_time().client();
    let guard = locks.mutex("job").lock().await.unwrap();
    wire.set(Verb::Release, Mode::LoseReply);
    let release = tokio::spawn(guard.release());
    while wire.calls(Verb::Release) < 2 {
        tokio::time::sleep(ms(5)).await;
    }
    wire.set(Verb::Release, Mode::Pass);
    release.await.unwrap().expect("it was held until it was released");
}

#[tokio::test(start_paused = true)]
async fn release_without_reply_is_unknown_once_the_lease_expired() {
    let (locks, wire) = Store::in_virtual_time().client();
    let guard = locks.mutex("job").ttl(ms(200)).lock().await.unwrap();
    wire.set(Verb::Release, Mode::LoseRequest);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    assert!(error.may_have_happened());
}

#[tokio::test(start_paused = true)]
async fn acquisition_with_lost_reply_is_repeated_under_the_same_id() {
    let (locks, wire) = Store::in_virtual_time().client();
    wire.set(Verb::Contend, Mode::LoseReply);
    let lock = tokio::spawn({
        let mutex = locks.mutex("job");
        async move { mutex.lock().await.unwrap() }
    });
    while wire.calls(Verb::Contend) < 2 {
        tokio::time::sleep(ms(5)).await;
    }
    wire.set(Verb::Contend, Mode::Pass);
    let guard = lock.await.unwrap();
    assert_eq!(guard.fence().unwrap().seq, 1, "the first attempt was the grant");
    assert_eq!(locks.inspect("job").await.unwrap().holders.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn try_lock_without_reply_is_unknown_and_cleaned_up() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.client();
    let (other, _) = store.client();
    wire.set(Verb::Contend, Mode::LoseReply);
    let error = locks.mutex("job").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    settles(&other, "job").await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_an_unanswered_attempt_is_still_unknown() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.tuned(leasehold::Tuning::default().outage(ms(300)));
    let (other, _) = store.client();
    wire.set(Verb::Contend, Mode::LoseReply);
    let wait = tokio::spawn({
        let mutex = locks.mutex("job");
        async move { mutex.lock().await.map(drop) }
    });
    while wire.calls(Verb::Contend) == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    tokio::time::sleep(ms(5)).await;
    wire.set(Verb::Contend, Mode::Refuse);
    let error = wait.await.unwrap().unwrap_err();
    assert!(error.may_have_happened(), "the first attempt was the grant: {error}");
    settles(&other, "job").await;
}

#[tokio::test(start_paused = true)]
async fn long_outage_is_reported_to_all_waiters() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.tuned(leasehold::Tuning::default().outage(ms(300)));
    wire.set(Verb::Contend, Mode::Refuse);
    let waits = (0..10).map(|_| {
        let mutex = locks.mutex("job");
        tokio::spawn(async move { mutex.lock().await.map(drop) })
    });
    for wait in waits.collect::<Vec<_>>() {
        assert_eq!(wait.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    let wait = tokio::spawn({
        let mutex = locks.mutex("job");
        async move { mutex.lock().await.map(drop) }
    });
    tokio::time::sleep(ms(100)).await;
    wire.set(Verb::Contend, Mode::Pass);
    wait.await.unwrap().expect("a short outage does not end the wait");
}

#[tokio::test(start_paused = true)]
async fn long_outage_ends_different_requests_together() {
    let clock = Arc::new(TokioClock::new());
    let wire = Arc::new(Fault::over(Arc::new(MemoryBackend::with_clock(clock.clone()))));
    let tuning = leasehold::Tuning::default().outage(ms(600));
    let locks = Client::builder().clock(clock).tuning(tuning).over(wire.clone()).unwrap();
    wire.set(Verb::Contend, Mode::Refuse);
    let began = tokio::time::Instant::now();
    let wait = |number: usize| {
        let mutex = locks.mutex("job").note(Note::new(&format!("waiter {number}")).unwrap());
        tokio::spawn(async move { (mutex.lock().await.map(drop), began.elapsed()) })
    };
    let waits: Vec<_> = (0..8).map(wait).collect();
    tokio::time::sleep(ms(400)).await;
    let late = wait(8);
    for wait in waits {
        let (outcome, took) = wait.await.unwrap();
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(took < ms(600) * 4, "each request waited for an outage of its own: {took:?}");
    }
    let (outcome, took) = late.await.unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(took >= ms(1000), "who came later waits for as long: {took:?}");
}

#[tokio::test]
async fn close_ends_waits_and_holds_and_releases_all() {
    let store = Store::new();
    let (locks, _) = store.client();
    let (other, _) = store.client();
    let guard = locks.mutex("mine").lock().await.unwrap();
    let _theirs = other.mutex("job").lock().await.unwrap();
    let wait = tokio::spawn({
        let mutex = locks.mutex("job");
        async move { mutex.lock().await.map(drop) }
    });
    common::waiting(&other, "job", 1).await;
    assert!(locks.close(Duration::from_secs(60)).await);
    assert_eq!(wait.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(
        other.inspect("mine").await.unwrap().holders.is_empty(),
        "a claim released before closing came back"
    );
    assert_eq!(guard.lost().await, leasehold::LossCause::Closed);
    assert_eq!(locks.mutex("job").lock().await.unwrap_err().kind(), ErrorKind::Closed);
    common::waiting(&other, "job", 0).await;
}

#[tokio::test(start_paused = true)]
async fn close_waits_until_grants_in_flight_are_released() {
    for dropped_first in [true, false] {
        let store = Store::in_virtual_time();
        let (locks, wire) = store.client();
        let (other, _) = store.client();
        wire.set(Verb::Contend, Mode::LateReply(ms(100)));
        let mutex = locks.mutex("job");
        let wait = tokio::spawn(async move { mutex.lock().await.map(drop) });
        common::held(&other, "job").await;
        if dropped_first {
            wait.abort();
        }
        assert!(locks.close(Duration::from_secs(60)).await);
        let left = other.inspect("job").await.unwrap();
        assert_eq!((left.holders.len(), left.waiting.len()), (0, 0), "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_client_still_releases_its_locks() {
    let store = Store::in_virtual_time();
    let (other, _) = store.client();
    {
        let (locks, _) = store.client();
        let guard = locks.mutex("job").lock().await.unwrap();
        drop(locks);
        drop(guard);
    }
    settles(&other, "job").await;
}

/// The next use of a resource whose release has begun, and whose caller does not poll the release to its
/// end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Comer {
    Waits,
    Tries,
    Closes,
}

#[tokio::test(start_paused = true)]
async fn unpolled_release_does_not_delay_other_waiters() {
    for comer in [Comer::Waits, Comer::Tries, Comer::Closes] {
        let store = Store::in_virtual_time();
        let (locks, wire) = store.client();
        let lock = locks.mutex("job");
        let guard = lock.lock().await.unwrap();
        wire.set(Verb::Release, Mode::Hang);
        let mut releasing = pin!(guard.release());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(releasing.as_mut().poll(&mut cx).is_pending());
        wire.set(Verb::Release, Mode::Pass);
        match comer {
            Comer::Waits => drop(lock.try_lock_for(PATIENT).await.unwrap().expect("nobody else has it")),
            Comer::Tries => assert!(lock.try_lock().await.unwrap().is_none(), "it is not released yet"),
            Comer::Closes => assert!(locks.close(PATIENT).await, "the release is brought to its end"),
        }
        settles(&store.client().0, "job").await;
        releasing.await.unwrap();
    }
}

/// The release may hold what other locks of the client need, and no other caller comes for this resource.
#[tokio::test(start_paused = true)]
async fn unpolled_release_is_taken_over_soon() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.client();
    let guard = locks.mutex("job").lock().await.unwrap();
    wire.set(Verb::Release, Mode::Hang);
    let mut releasing = pin!(guard.release());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(releasing.as_mut().poll(&mut cx).is_pending());
    wire.set(Verb::Release, Mode::Pass);
    // Its lease lasts longer than this looks.
    settles(&store.client().0, "job").await;
    releasing.await.unwrap();
    // And again, after the looks have ended meanwhile.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let guard = locks.mutex("job").lock().await.unwrap();
    wire.set(Verb::Release, Mode::Hang);
    let mut releasing = pin!(guard.release());
    assert!(releasing.as_mut().poll(&mut cx).is_pending());
    wire.set(Verb::Release, Mode::Pass);
    settles(&store.client().0, "job").await;
    releasing.await.unwrap();
}

/// Longer than anything takes here, and shorter than a lease.
const PATIENT: Duration = Duration::from_secs(10);
