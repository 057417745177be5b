//! The end of a wait with a limit: `None` says that the store answered, an error that it did not.

use crate::common;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Store, ms, settles};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{AcquireFailure, Client, ErrorKind, Event, EventSubscriber, TokioClock};
use tokio::time::Instant;

/// As long as a silent server answers nothing.
const SILENT: Mode = Mode::LateReply(Duration::from_secs(3_600));

/// The acquisitions that failed: the resource, and why.
#[derive(Debug, Default)]
struct Failures(Mutex<Vec<(String, AcquireFailure)>>);

impl Failures {
    fn take(&self) -> Vec<(String, AcquireFailure)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl EventSubscriber for Failures {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::AcquireFailed { resource, failure, .. } = event {
            self.0.lock().unwrap().push((resource.to_string(), *failure));
        }
    }
}

/// A client whose waits are observed.
#[derive(Clone)]
struct Waiter {
    locks: Client,
    failures: Arc<Failures>,
}

impl Waiter {
    fn of(store: &Store) -> (Waiter, Arc<Fault>) {
        let failures = Arc::<Failures>::default();
        let (locks, wire) = store.observed(failures.clone());
        (Waiter { locks, failures }, wire)
    }

    /// How a wait for `job` of so long ends, and after how long. `Timeout` is what events say of a lock
    /// that is held.
    async fn ends(&self, limit: Duration) -> (ErrorKind, Duration) {
        let began = Instant::now();
        let kind = match self.locks.mutex("job").try_lock_for(limit).await {
            Ok(granted) => {
                assert!(granted.is_none(), "granted");
                ErrorKind::Timeout
            }
            Err(error) => {
                assert_eq!(error.resource().map(ToString::to_string).as_deref(), Some("job"), "{error}");
                assert_ne!(error.kind(), ErrorKind::Timeout, "{error}");
                error.kind()
            }
        };
        let took = began.elapsed();
        assert_eq!(self.failures.take(), [("job".to_owned(), AcquireFailure::Error(kind))]);
        (kind, took)
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_says_that_it_is_busy() {
    let store = Store::new();
    let ((waiter, _), (other, _)) = (Waiter::of(&store), store.client());
    let guard = other.mutex("job").lock().await.unwrap();
    for limit in [ms(1), ms(100), ms(3_000), ms(60_000)] {
        assert_eq!(waiter.ends(limit).await, (ErrorKind::Timeout, limit));
    }
    guard.release().await.unwrap();
    settles(&other, "job").await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_not_busy() {
    let (waiter, wire) = Waiter::of(&Store::new());
    wire.set_all(SILENT);
    for limit in [ms(100), ms(3_000)] {
        let (kind, took) = waiter.ends(limit).await;
        assert_eq!((kind, took), (ErrorKind::OutcomeUnknown, limit + ms(2_000)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_error_says_how_long_the_wait_was() {
    let (waiter, wire) = Waiter::of(&Store::new());
    wire.set_all(SILENT);
    let error = waiter.locks.mutex("job").try_lock_for(ms(3_000)).await.unwrap_err().to_string();
    assert!(error.contains("not granted within 3.0s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_falls_silent_during_the_wait_is_not_busy() {
    let store = Store::new();
    let ((waiter, wire), (other, _)) = (Waiter::of(&store), store.client());
    let _guard = other.mutex("job").lock().await.unwrap();
    let waits = tokio::spawn(async move { waiter.ends(ms(3_000)).await });
    common::waiting(&other, "job", 1).await;
    wire.set_all(SILENT);
    let (kind, took) = waits.await.unwrap();
    assert_eq!(kind, ErrorKind::OutcomeUnknown);
    assert!(took <= ms(5_001), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_at_the_end_is_not_busy() {
    let store = Store::new();
    for (mode, expected) in [
        (Mode::Refuse, ErrorKind::Unavailable),
        (Mode::LoseRequest, ErrorKind::OutcomeUnknown),
        (Mode::LoseReply, ErrorKind::OutcomeUnknown),
    ] {
        let ((waiter, wire), (other, _)) = (Waiter::of(&store), store.client());
        let guard = other.mutex("job").lock().await.unwrap();
        wire.set(Verb::Contend, mode);
        let (kind, took) = waiter.ends(ms(3_000)).await;
        assert_eq!((kind, took), (expected, ms(3_000)), "{mode:?}");
        wire.set_all(Mode::Pass);
        guard.release().await.unwrap();
        settles(&other, "job").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_has_two_seconds_after_a_short_wait() {
    let store = Store::new();
    let ((waiter, wire), (other, _)) = (Waiter::of(&store), store.client());
    let guard = other.mutex("job").lock().await.unwrap();
    wire.set(Verb::Contend, Mode::LateReply(ms(1_500)));
    assert_eq!(waiter.ends(ms(100)).await, (ErrorKind::Timeout, ms(1_600)));
    guard.release().await.unwrap();
    settles(&other, "job").await;
    let granted = waiter.locks.mutex("job").try_lock_for(ms(100)).await.unwrap().unwrap();
    granted.release().await.unwrap();
    settles(&other, "job").await;
    wire.set(Verb::Contend, Mode::LateReply(ms(2_500)));
    assert_eq!(waiter.ends(ms(100)).await, (ErrorKind::OutcomeUnknown, ms(2_100)));
    // A grant that came too late for the caller has been released.
    wire.set_all(Mode::Pass);
    settles(&other, "job").await;
}

#[tokio::test(start_paused = true)]
async fn one_of_several_waiters_reports_a_silent_store() {
    let store = Store::new();
    let ((waiter, wire), (other, _)) = (Waiter::of(&store), store.client());
    let guard = other.mutex("job").lock().await.unwrap();
    let patient = waiter.locks.mutex("job");
    let patient_wait = tokio::spawn(async move { patient.lock().await });
    common::waiting(&other, "job", 1).await;
    assert_eq!(waiter.ends(ms(3_000)).await, (ErrorKind::Timeout, ms(3_000)));
    wire.set_all(SILENT);
    assert_eq!(waiter.ends(ms(3_000)).await, (ErrorKind::OutcomeUnknown, ms(5_000)));
    wire.set_all(Mode::Pass);
    guard.release().await.unwrap();
    patient_wait.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lock_held_by_this_client_is_busy_despite_a_silent_store() {
    let (waiter, wire) = Waiter::of(&Store::new());
    let _guard = waiter.locks.mutex("job").lock().await.unwrap();
    wire.set_all(SILENT);
    assert_eq!(waiter.ends(ms(3_000)).await, (ErrorKind::Timeout, ms(3_000)));
}

#[tokio::test(start_paused = true)]
async fn upgrades_and_stripes_report_a_silent_store() {
    let store = Store::new();
    let ((locks, wire), (other, _)) = (store.client(), store.client());
    let reader = other.rwlock("job").read().await.unwrap();
    let mut guard = locks.rwlock("job").upgradable_read().await.unwrap();
    assert!(!guard.try_upgrade_for(ms(3_000)).await.unwrap());
    common::settles(&other, "job!upgrade").await;
    let falls_silent = async {
        tokio::time::sleep(ms(1_000)).await;
        wire.set(Verb::Contend, SILENT);
    };
    let (silent, ()) = tokio::join!(guard.try_upgrade_for(ms(3_000)), falls_silent);
    let silent = silent.unwrap_err();
    assert_eq!((silent.kind(), silent.op()), (ErrorKind::OutcomeUnknown, "upgrade"), "{silent}");
    let silent = locks.striped_mutex("parts", 2).try_lock_any_for(ms(3_000)).await.unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::OutcomeUnknown, "{silent}");
    drop((reader, guard));
}

#[tokio::test(start_paused = true)]
async fn close_does_not_wait_for_the_last_answer() {
    let (waiter, wire) = Waiter::of(&Store::new());
    wire.set_all(SILENT);
    let closing = waiter.clone();
    let waits = tokio::spawn(async move { closing.ends(ms(1_000)).await });
    tokio::time::sleep(ms(2_000)).await;
    waiter.locks.close(ms(0)).await;
    assert_eq!(waits.await.unwrap(), (ErrorKind::Closed, ms(2_000)));
}

/// The first lock is granted by an answer after the limit, and then the store falls silent.
#[tokio::test(start_paused = true)]
async fn each_lock_of_several_has_the_time_of_one_answer_after_the_limit() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.client();
    wire.set(Verb::Contend, Mode::LateReply(ms(1_500)));
    let both = locks.lock_all(["a", "b"]);
    let began = Instant::now();
    let waits = tokio::spawn(async move { both.try_lock_for(ms(1_000)).await });
    tokio::time::sleep(ms(1_200)).await;
    wire.set(Verb::Contend, Mode::LateReply(ms(20_000)));
    let failed = waits.await.unwrap().unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::OutcomeUnknown, "{failed}");
    assert!(began.elapsed() < ms(3_600), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_held_is_none_and_a_silent_store_is_an_error() {
    let store = Store::new();
    let ((locks, wire), (other, _)) = (store.client(), store.client());
    let held = ["mutex", "b", "parts#0", "parts#1", "prices"];
    let held =
        other.lock_all(held).and(other.semaphore("encode", 2).permits_request(2)).lock().await.unwrap();
    let (mutex, both, parts) =
        (locks.mutex("mutex"), locks.lock_all(["a", "b"]), locks.striped_mutex("parts", 2));
    let (prices, encoders) = (locks.rwlock("prices"), locks.semaphore("encode", 2));
    let reader = other.rwlock("stock").read().await.unwrap();
    // Longer than the store is silent.
    let mut upgradable = locks.rwlock("stock").ttl(ms(3_600_000)).upgradable_read().await.unwrap();
    for is_silent in [false, true] {
        if is_silent {
            settles(&locks, "a").await;
            wire.set_all(Mode::Hang);
        }
        for limit in [ms(100), ms(3_000)] {
            let ended = [
                mutex.try_lock_for(limit).await.map(|granted| granted.is_none()),
                both.try_lock_for(limit).await.map(|granted| granted.is_none()),
                parts.stripe(0).try_lock_for(limit).await.map(|granted| granted.is_none()),
                parts.try_lock_any_for(limit).await.map(|granted| granted.is_none()),
                prices.try_read_for(limit).await.map(|granted| granted.is_none()),
                prices.try_write_for(limit).await.map(|granted| granted.is_none()),
                prices.try_upgradable_read_for(limit).await.map(|granted| granted.is_none()),
                encoders.try_acquire_for(limit).await.map(|granted| granted.is_none()),
                encoders.try_acquire_many_for(2, limit).await.map(|granted| granted.is_none()),
                upgradable.try_upgrade_for(limit).await.map(|is_writer| !is_writer),
            ];
            for (number, ended) in ended.into_iter().enumerate() {
                let kind = ended.map_err(|error| error.kind());
                let expected = if is_silent { Err(ErrorKind::OutcomeUnknown) } else { Ok(true) };
                assert_eq!(kind, expected, "{number}, silent: {is_silent}");
            }
        }
    }
    drop((held, reader));
}

/// A task of this process waits for a larger share, and is refused by the store.
#[tokio::test(start_paused = true)]
async fn smaller_share_than_the_one_refused_is_asked_for_at_the_end() {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()).polling().unordered());
    let [locks, other] =
        [(); 2].map(|()| Client::builder().clock(clock.clone()).over(store.clone()).unwrap());
    let (ours, theirs) = (locks.rwlock("prices"), other.rwlock("prices"));
    let _reader = theirs.read().await.unwrap();
    let writer = ours.clone();
    let writer = tokio::spawn(async move { writer.write().await });
    tokio::time::sleep(ms(100)).await;
    assert!(ours.try_read_for(ms(300)).await.unwrap().is_some(), "another reader holds it");
    assert!(ours.try_write_for(ms(300)).await.unwrap().is_none());
    writer.abort();

    let (ours, theirs) = (locks.semaphore("slots", 3), other.semaphore("slots", 3));
    let _two = theirs.acquire_many(2).await.unwrap();
    let all = ours.clone();
    let all = tokio::spawn(async move { all.acquire_many(3).await });
    tokio::time::sleep(ms(100)).await;
    assert!(ours.try_acquire_for(ms(300)).await.unwrap().is_some(), "one of three is free");
    all.abort();
}
