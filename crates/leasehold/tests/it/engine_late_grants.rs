//! Grants that come too late to be useful, and leases that leave no time to work.

use crate::common;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Store, ms, settles};
use futures_util::FutureExt;
use leasehold::backend::{Backend, Liveness, Profile};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, LossCause, Owner, TokioClock, Tuning};
use leasehold_conformance::{Around, Wrapped};
use leasehold_testkit::Warnings;

/// No machine is so busy.
const SOON: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn late_grants_are_not_requested_for_ever() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.tuned(Tuning::default().outage(ms(300)));
    let (other, _) = store.client();
    wire.set(Verb::Contend, Mode::LateReply(ms(150)));
    let mutex = locks.mutex("job").ttl(ms(100));
    let mut calls = wire.calls(Verb::Contend);
    let mut is_bounded = || {
        let now = wire.calls(Verb::Contend);
        assert!(now - std::mem::replace(&mut calls, now) <= 5, "with pauses");
    };
    let refused = tokio::time::timeout(SOON, mutex.lock()).await.expect("it is bounded").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("answers too slowly"), "{refused}");
    is_bounded();
    let refused = tokio::time::timeout(SOON, mutex.try_lock()).await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "no other client holds it: {refused}");
    assert!(refused.to_string().contains("answers too slowly"), "{refused}");
    is_bounded();
    wire.set_all(Mode::Pass);
    settles(&other, "job").await;
    other.mutex("job").lock().await.unwrap().release().await.unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn late_grants_far_apart_do_not_report_a_slow_store() {
    let store = Store::new();
    let ((locks, wire), (other, _)) = (store.client(), store.client());
    // As where this process is stopped for a moment, each time in which a grant is on its way.
    wire.set(Verb::Contend, Mode::LateReply(ms(2_000)));
    let mutex = locks.mutex("job").ttl(ms(1_000));
    let waits = tokio::spawn(async move { mutex.lock().await });
    common::held(&other, "job").await;
    let held = other.mutex("job").lock().await.unwrap();
    common::waiting(&other, "job", 1).await;
    tokio::time::sleep(SOON).await;
    assert_eq!(wire.calls(Verb::Release), 1, "the first grant was too late");
    held.release().await.unwrap();
    while wire.calls(Verb::Release) == 1 {
        assert!(!waits.is_finished(), "{:?}", waits.await);
        tokio::time::sleep(ms(5)).await;
    }
    wire.set_all(Mode::Pass);
    let guard = waits.await.unwrap().expect("the store answered at once in between");
    guard.release().await.unwrap();
    settles(&other, "job").await;
}

/// Opens two clients of one store in virtual time, the first over a wire that can fail.
fn in_virtual_time() -> (Client, Arc<Fault>, Client) {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let wire = Arc::new(Fault::over(store.clone()));
    let open = |backend| Client::builder().clock(clock.clone()).over(backend).unwrap();
    (open(wire.clone()), wire, open(store))
}

#[tokio::test(start_paused = true)]
async fn grant_whose_lease_ends_before_its_caller_is_polled_is_lost_at_once() {
    let (locks, wire, other) = in_virtual_time();
    let held = other.mutex("job").lock().await.unwrap();
    let mutex = locks.mutex("job").ttl(ms(1_000));
    let mut unpolled = pin!(mutex.lock());
    assert!((&mut unpolled).now_or_never().is_none());
    common::waiting(&other, "job", 1).await;
    wire.set(Verb::Renew, Mode::Hang);
    held.release().await.unwrap();
    common::held(&other, "job").await;
    let next = other.mutex("job").lock().await.unwrap();
    let late = unpolled.await.unwrap();
    assert!(late.check().unwrap_err().is_lost());
    assert_eq!(late.lost().now_or_never(), Some(LossCause::Expired));
    assert_eq!(late.remaining(), Duration::ZERO);
    assert!(late.run(async { panic!("no work is done") }).await.unwrap_err().is_lost());
    assert!(late.release().await.unwrap_err().is_lost());
    next.check().unwrap();
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn grant_that_arrives_shortly_before_its_lease_ends_is_renewed_in_time() {
    let (locks, wire, other) = in_virtual_time();
    for late in [900, 950, 980, 986, 987, 988, 989, 1_000] {
        wire.set(Verb::Contend, Mode::LateReply(ms(late)));
        let mutex = locks.mutex("job").ttl(ms(1_000));
        let waits = tokio::spawn(async move { mutex.lock().await });
        common::held(&other, "job").await;
        wire.set(Verb::Contend, Mode::Pass);
        let guard = waits.await.unwrap().unwrap();
        assert!(!guard.remaining().is_zero(), "it came {late} ms late");
        for _ in 0..300 {
            tokio::time::sleep(ms(10)).await;
            guard.check().unwrap_or_else(|lost| panic!("it came {late} ms late: {lost}"));
        }
        guard.release().await.unwrap();
    }
}

/// The memory store, with another profile.
#[derive(Debug)]
pub(crate) struct Profiled(pub(crate) MemoryBackend, pub(crate) Profile);

impl Around for Profiled {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    fn profile(&self) -> &Profile {
        &self.1
    }
}

#[tokio::test]
async fn a_ttl_of_which_nothing_is_left_is_refused_at_once() {
    let memory = MemoryBackend::new();
    let profile = memory.profile().clone().granularity(Duration::from_secs(1));
    let wire = Arc::new(Fault::over(Arc::new(Wrapped(Profiled(memory, profile)))));
    let tuning = Tuning::default().drift(0.5);
    let locks = Client::builder().tuning(tuning).over(wire.clone()).unwrap();
    // Half of it goes for the drift, and a second for the coarseness.
    for ttl in [ms(2_000), ms(2_400)] {
        let refused = locks.mutex("job").ttl(ttl).lock().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    }
    assert_eq!(wire.calls(Verb::Contend), 0);
    let guard = locks.mutex("job").ttl(ms(60_000)).lock().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_renewed_whatever_is_left_of_its_ttl() {
    // As on memcached, which counts in seconds.
    for (granularity, ttl, drift, renew_at) in [
        (1_000, 2_000, 0.01, 0.6),
        (1_000, 2_000, 0.01, 0.5),
        (1_000, 2_600, 0.5, 0.34),
        (1_000, 3_000, 0.5, 0.6),
        (0, 1_000, 0.5, 0.6),
        (0, 30_000, 0.5, 0.6),
        (0, 1_000, 0.4, 0.6),
    ] {
        let clock = Arc::new(TokioClock::new());
        let memory = MemoryBackend::with_clock(clock.clone());
        let profile = memory.profile().clone().granularity(ms(granularity));
        let wire = Arc::new(Fault::over(Arc::new(Wrapped(Profiled(memory, profile)))));
        let tuning = Tuning::default().drift(drift).renew_at(renew_at);
        let locks = Client::builder().clock(clock).tuning(tuning);
        let locks = locks.over(wire.clone()).unwrap();
        let guard = locks.mutex("job").ttl(ms(ttl)).lock().await.unwrap();
        // The first request of each renewal is lost, so there has to be time for a second one.
        for _ in 0..10 {
            wire.set(Verb::Renew, Mode::LoseRequest);
            let seen = wire.calls(Verb::Renew);
            while wire.calls(Verb::Renew) == seen {
                tokio::time::sleep(ms(1)).await;
                let kept = guard.check();
                kept.unwrap_or_else(|lost| panic!("{granularity}, {ttl}, {drift}, {renew_at}: {lost}"));
            }
            wire.set(Verb::Renew, Mode::Pass);
            tokio::time::sleep(ms(ttl / 4)).await;
            guard.check().unwrap_or_else(|lost| panic!("{granularity}, {ttl}, {drift}, {renew_at}: {lost}"));
        }
        guard.release().await.unwrap();
    }
}

/// A store whose sessions keep locks alive.
#[tokio::test]
async fn ttl_that_means_nothing_to_the_store_is_reported_once() {
    let (warnings, _listening) = Warnings::listen("leasehold");
    let (valid, memory) = (ms(20_000), MemoryBackend::new());
    let mut profile = memory.profile().clone();
    profile.liveness = Liveness::Heartbeat { valid };
    let locks = Client::builder().over(Arc::new(Wrapped(Profiled(memory, profile)))).unwrap();
    locks.mutex("job").lock().await.unwrap().release().await.unwrap();
    locks.mutex("job").ttl(valid).lock().await.unwrap().release().await.unwrap();
    assert_eq!(warnings.count("has no effect"), 0);
    for _ in 0..2 {
        locks.mutex("job").ttl(valid * 2).lock().await.unwrap().release().await.unwrap();
        assert_eq!(warnings.count("has no effect"), 1);
    }
}

/// The announcement is withdrawn before the wait returns, which may take longer than the granted lease
/// lasts.
#[tokio::test(start_paused = true)]
async fn lock_lost_before_the_wait_returns_is_not_granted() {
    let store = Store::in_virtual_time();
    let ((locks, wire), (other, _)) = (store.client(), store.client());
    let owner = Owner::new();
    let lock = |name: &str| locks.mutex(name).owner(&owner).detect_deadlocks(ms(10));
    let from = lock("from").lock().await.unwrap();
    let to = other.mutex("to").lock().await.unwrap();
    let wanted = lock("to").max_hold(ms(50));
    let waits = tokio::spawn(async move { wanted.lock().await });
    common::held(&other, "leasehold!waits").await;
    wire.set(Verb::Release, Mode::Hang);
    to.release().await.unwrap();
    common::held(&other, "to").await;
    // The claim is held for longer than it may be, and the wait has not come back.
    tokio::time::sleep(ms(300)).await;
    assert!(!waits.is_finished());
    wire.set_all(Mode::Pass);
    let refused = tokio::time::timeout(SOON, waits).await.unwrap().unwrap().unwrap_err();
    assert!(refused.is_lost(), "{refused}");
    from.release().await.unwrap();
    settles(&other, "to").await;
}
