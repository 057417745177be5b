//! A panic of foreign code ends that one call.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use leasehold::backend::{Clock, LossCause, Moment};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, Event, EventSubscriber, Note, State, SystemClock, Tuning};
use leasehold_testkit::Warnings;
use tracing::span::{Attributes, Id, Record};

use super::odd::{Call, World, pass};
use crate::common::{Store, ms};

const SOON: Duration = Duration::from_secs(60);

/// An event subscriber that cannot bear anything.
#[derive(Debug)]
struct Nervous;

impl EventSubscriber for Nervous {
    fn on_event(&self, event: &Event<'_>) {
        panic!("an event subscriber panics on {event:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn panicking_event_subscriber_costs_no_lease() {
    let (locks, wire) = Store::in_virtual_time().observed(Arc::new(Nervous));
    let guard = locks.mutex("job").ttl(ms(1_500)).lock().await.unwrap();
    // Past the end of the lease that was granted, it is held by renewals alone.
    tokio::time::sleep(guard.remaining() + ms(500)).await;
    guard.check().unwrap();
    assert!(wire.calls(Verb::Renew) > 0);
    wire.set(Verb::Renew, Mode::Hang);
    assert_eq!(tokio::time::timeout(SOON, guard.lost()).await.unwrap(), LossCause::Expired);
    wire.set_all(Mode::Pass);
    let next = tokio::time::timeout(SOON, locks.mutex("job").lock()).await.unwrap().unwrap();
    next.release().await.unwrap();
    assert!(locks.close(SOON).await);
}

/// A subscriber that panics at every event, and at every span while `spans_too` is set.
#[derive(Debug, Default)]
struct Touchy {
    spans_too: Arc<AtomicBool>,
    next_id: AtomicU64,
}

impl tracing::Subscriber for Touchy {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.next_id.fetch_add(1, Ordering::SeqCst) + 1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        panic!("a subscriber panics on {}", event.metadata().name());
    }
    fn enter(&self, _: &Id) {
        assert!(!self.spans_too.load(Ordering::SeqCst), "a subscriber panics on a span");
    }
    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_costs_no_lease_and_hides_no_loss() {
    let spans_too = Arc::<AtomicBool>::default();
    let touchy = Touchy { spans_too: spans_too.clone(), ..Touchy::default() };
    // This thread runs all of it.
    let _default = leasehold_testkit::subscribe(touchy);
    let hangs = Arc::<AtomicBool>::default();
    let world = World::new({
        let hangs = hangs.clone();
        move |call, _, _| match call {
            Call::Renew if hangs.load(Ordering::SeqCst) => super::odd::hang(),
            _ => pass(),
        }
    });
    let guard = world.locks.mutex("job").ttl(ms(3_000)).lock().await.unwrap();
    spans_too.store(true, Ordering::SeqCst);
    tokio::time::sleep(ms(10_000)).await;
    assert_eq!(guard.state(), State::Valid);
    // The subscriber does not keep any task from a lock either: of two, one waits until the other
    // releases it.
    let mutex = world.locks.mutex("other");
    let first = mutex.lock().await.unwrap();
    let second = tokio::spawn(async move { mutex.lock().await.unwrap() });
    while world.locks.inspect("other").await.unwrap().holders.is_empty() {
        tokio::time::sleep(ms(10)).await;
    }
    first.release().await.unwrap();
    second.await.unwrap().release().await.unwrap();
    hangs.store(true, Ordering::SeqCst);
    assert_eq!(tokio::time::timeout(SOON, guard.lost()).await.unwrap(), LossCause::Expired);
    drop(guard);
    world.locks.mutex("job").lock().await.unwrap().release().await.unwrap();
}

/// A subscriber that panics when it is asked for its current span.
struct Lost;

impl tracing::Subscriber for Lost {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
    fn current_span(&self) -> tracing_core::span::Current {
        panic!("a subscriber panics on the question for its span");
    }
}

/// A release that starts the request of the next waiter does so in a span, for which the subscriber is
/// asked.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_does_not_know_its_span_stops_nothing() {
    let _default = leasehold_testkit::subscribe(Lost);
    let world = World::new(|_, _, _| pass());
    let mutexes: Vec<_> = (0..3).map(|number| world.locks.mutex(format!("job/{number}"))).collect();
    let mut waiting = Vec::new();
    let mut guards = Vec::new();
    for mutex in &mutexes {
        guards.push(mutex.lock().await.unwrap());
        // With another note it is not handed over, so the release of the first starts a request for it.
        let next = mutex.clone().note(Note::new("next").unwrap());
        waiting.push(tokio::spawn(async move { next.try_lock_for(SOON).await }));
    }
    tokio::time::sleep(ms(100)).await;
    // All at once, so that they are released as one batch.
    drop(guards);
    for waiting in waiting {
        waiting.await.unwrap().unwrap().unwrap().release().await.unwrap();
    }
    assert!(
        tokio::time::timeout(SOON, world.locks.close(SOON * 2)).await.expect("nothing is left to wait for")
    );
}

/// A backend that panics at the first call of each kind.
#[tokio::test(start_paused = true)]
async fn a_backend_that_panics_costs_one_call() {
    let world = World::new(|call, number, _| {
        assert!(number > 1, "a backend panics at {call:?}");
        pass()
    });
    let mutex = world.locks.mutex("job").ttl(ms(3_000));
    let guard = mutex.try_lock_for(SOON).await.unwrap().unwrap();
    assert_eq!(world.store.calls(Call::Contend), 2);
    tokio::time::sleep(ms(10_000)).await;
    assert_eq!(guard.state(), State::Valid);
    assert_eq!(world.event_log.count("lost", ""), 0);
    guard.release().await.unwrap();
    assert_eq!(world.store.calls(Call::Release), 2);
    // The queue of this process continues.
    mutex.try_lock_for(SOON).await.unwrap().unwrap().release().await.unwrap();
    let error = world.locks.list("", None, 10).await.unwrap_err();
    assert!(error.to_string().contains("a backend panics at List"), "{error}");
    assert!(world.locks.list("", None, 10).await.unwrap().is_empty());
    assert!(!world.locks.diagnose(ms(3_000)).await.is_empty());
    assert!(world.locks.close(SOON).await);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_not_answered_in_full_is_asked_again() {
    let world = World::new(|_, _, _| pass());
    let mutex = world.locks.mutex("job").ttl(ms(3_000));
    let guard = mutex.lock().await.unwrap();
    world.store.is_silent.store(true, Ordering::SeqCst);
    tokio::time::sleep(ms(1_500)).await;
    assert_eq!(guard.state(), State::Suspect);
    let unanswered = world.store.calls(Call::Renew);
    assert_eq!(world.event_log.count("renewal failed", "job") as u64, unanswered);
    world.store.is_silent.store(false, Ordering::SeqCst);
    tokio::time::sleep(ms(5_000)).await;
    assert_eq!(guard.state(), State::Valid);
    world.store.is_silent.store(true, Ordering::SeqCst);
    let releasing = tokio::spawn(guard.release());
    while world.store.calls(Call::Release) < 2 {
        tokio::time::sleep(ms(1)).await;
    }
    world.store.is_silent.store(false, Ordering::SeqCst);
    releasing.await.unwrap().unwrap();
    mutex.try_lock_for(SOON).await.unwrap().unwrap().release().await.unwrap();
}

/// The contender dies at a place where no panic is contained.
#[tokio::test(start_paused = true)]
async fn contender_that_panics_settles_its_queue() {
    let (go, gone) = tokio::sync::watch::channel(false);
    let world = World::new(move |call, number, _| {
        let mut gone = gone.clone();
        match (call, number) {
            (Call::Contend, 1) => Box::pin(async move {
                gone.wait_for(|gone| *gone).await.unwrap();
                Ok(())
            }),
            _ => pass(),
        }
    });
    let mutex = world.locks.mutex("job");
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let mutex = mutex.clone();
            tokio::spawn(async move { mutex.lock().await })
        })
        .collect();
    while world.store.calls(Call::Contend) == 0 {
        tokio::task::yield_now().await;
    }
    world.store.has_no_profile.store(true, Ordering::SeqCst);
    go.send_replace(true);
    for wait in waits {
        let error = tokio::time::timeout(SOON, wait).await.expect("notified").unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    }
    world.store.has_no_profile.store(false, Ordering::SeqCst);
    // The claim that it had been granted on the server is given up, long before its lease ends.
    mutex.try_lock_for(ms(5_000)).await.unwrap().unwrap().release().await.unwrap();
}

/// A waker that panics, as a broken executor's might: it is called in the middle of the renewer.
struct Spiteful;

impl Wake for Spiteful {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_renewer_is_the_end_of_the_client() {
    let (warnings, _listening) = Warnings::listen("leasehold");
    let world = World::new(|call, _, about| match (call, about) {
        (Call::Renew, "dead") => super::odd::hang(),
        _ => pass(),
    });
    let other = world.locks.mutex("live").ttl(ms(60_000)).lock().await.unwrap();
    let delayed = world.locks.mutex("delayed").ttl(ms(60_000)).lock_delay(ms(60_000));
    let delayed = delayed.lock().await.unwrap();
    let guard = world.locks.mutex("dead").ttl(ms(3_000)).lock().await.unwrap();
    let others = Client::builder().clock(world.clock.clone()).over(world.store.clone()).unwrap();
    let _theirs = others.mutex("theirs").lock().await.unwrap();
    let mutex = world.locks.mutex("theirs");
    let waits = tokio::spawn(async move { mutex.lock().await });
    let waker = Arc::new(Spiteful).into();
    let mut changed = Box::pin(guard.changed(State::Valid));
    assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let lost = tokio::time::timeout(SOON, other.lost()).await.expect("notified");
    assert_eq!(lost, LossCause::RenewalEnded);
    assert_eq!(warnings.count("the task that renews leases panicked"), 1);
    assert_eq!(guard.state(), State::Lost(LossCause::RenewalEnded));
    let waited = tokio::time::timeout(SOON, waits).await.expect("notified").unwrap();
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(world.locks.mutex("next").lock().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(world.locks.mutex("next").try_lock().await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(matches!(
        changed.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())),
        Poll::Ready(_)
    ));
    // The held locks are released all the same, except for those that a lost one keeps from its successor.
    assert!(delayed.release().await.unwrap_err().is_lost());
    assert!(world.locks.close(SOON).await);
    assert!(world.locks.inspect("live").await.unwrap().holders.is_empty());
    assert_eq!(world.locks.inspect("delayed").await.unwrap().holders.len(), 1);
}

/// A clock that panics while its flag is set.
#[derive(Debug, Default)]
struct Moody(AtomicBool);

impl Clock for Moody {
    fn now(&self) -> Moment {
        assert!(!self.0.load(Ordering::SeqCst), "a clock panics");
        SystemClock.now()
    }
}

#[tokio::test]
async fn a_clock_that_panics_costs_no_lease_and_hides_no_loss() {
    let moody = Arc::<Moody>::default();
    let wire = Arc::new(Fault::over(Arc::new(MemoryBackend::new())));
    // It is renewed long before it ends, which a busy machine is not late for.
    let locks = Client::builder().tuning(Tuning::default().renew_at(0.05)).clock(moody.clone());
    let locks = locks.over(wire.clone()).unwrap();
    let guard = locks.mutex("job").ttl(ms(20_000)).lock().await.unwrap();
    let short = locks.mutex("short").ttl(ms(4_000)).lock().await.unwrap();
    moody.0.store(true, Ordering::SeqCst);
    let valid_until = || SystemClock.now().after(guard.remaining());
    let granted_until = valid_until();
    tokio::time::timeout(SOON, async {
        while valid_until() < granted_until.after(ms(1_000)) {
            guard.check().unwrap();
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await
    .unwrap();
    wire.set(Verb::Renew, Mode::Hang);
    // A machine that stood still may have lost it before, which its renewal can be the first to see.
    let was_lost = matches!(short.state(), State::Lost(_));
    let cause = tokio::time::timeout(SOON, short.lost()).await.unwrap();
    assert!(cause == LossCause::Expired || (was_lost && cause == LossCause::Gone), "{cause:?}");
}
