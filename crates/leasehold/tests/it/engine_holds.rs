//! The use of a granted lock: its end as listeners see it, its events, and a lease whose end nothing has noticed;
//! in virtual time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use leasehold::backend::ManualClock;
use leasehold::layer::{Fault, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{
    AcquireSource, Client, ErrorKind, Event, EventSubscriber, LossCause, Owner, State, TokioClock, blocking,
};
use leasehold_testkit::Warnings;
use tokio::time::Instant;

use crate::common::ms;
use crate::engine_supervision::odd::{Call, Odd, Ticks, pass, refuse};

const TTL: Duration = ms(9_000);
const MINIMUM: Duration = Duration::from_secs(60);

/// The events of a lock, in words.
#[derive(Debug, Default)]
struct Log(Mutex<Vec<Entry>>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    Acquired(AcquireSource),
    Released(Duration),
    Recovered(Duration),
    Lost { cause: LossCause, late: Duration, suspect: Option<Duration> },
}

impl EventSubscriber for Log {
    fn on_event(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(match *event {
            Event::Acquired { source, .. } => Entry::Acquired(source),
            Event::Released { held, .. } => Entry::Released(held),
            Event::Recovered { suspect, .. } => Entry::Recovered(suspect),
            Event::Lost { cause, late, suspect, .. } => Entry::Lost { cause, late, suspect },
            _ => return,
        });
    }
}

impl Log {
    /// Returns the events since this was asked before.
    fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A client whose renewals are refused on demand, and whose machine may sleep.
struct World {
    locks: Client,
    clock: Arc<Ticks>,
    refuses: Arc<AtomicBool>,
    log: Arc<Log>,
}

impl World {
    fn new() -> World {
        let (clock, refuses, log) = (Ticks::new(), Arc::<AtomicBool>::default(), Arc::<Log>::default());
        let asks = refuses.clone();
        let store = Odd::new(clock.clone(), move |call, _, _| match call {
            Call::Renew if asks.load(Ordering::SeqCst) => refuse(),
            _ => pass(),
        });
        let locks = Client::builder().clock(clock.clone()).subscriber(log.clone()).over(store).unwrap();
        World { locks, clock, refuses, log }
    }
}

#[tokio::test(start_paused = true)]
async fn events_name_the_source_of_a_lock_and_how_long_it_was_held() {
    use AcquireSource::{LocalQueue, Reentrant, Server};
    let World { locks, log, .. } = World::new();
    let owned = locks.mutex("job").owner(&Owner::new());
    let guard = owned.lock().await.unwrap();
    tokio::time::sleep(ms(50)).await;
    let inner = owned.lock().await.unwrap();
    let waits = locks.mutex("job");
    let waits = tokio::spawn(async move { waits.lock().await.unwrap() });
    tokio::time::sleep(ms(10)).await;
    drop(inner);
    assert_eq!(log.take(), [Entry::Acquired(Server), Entry::Acquired(Reentrant)]);
    drop(guard);
    drop(waits.await.unwrap());
    let held = [Entry::Released(ms(60)), Entry::Acquired(LocalQueue), Entry::Released(Duration::ZERO)];
    assert_eq!(log.take(), held);
    // One that waited for the store.
    let guard = locks.mutex("job").lock().await.unwrap();
    let waits = locks.mutex("job").ttl(TTL);
    let waits = tokio::spawn(async move { waits.lock().await.unwrap() });
    tokio::time::sleep(ms(1_000)).await;
    drop(guard);
    drop(waits.await.unwrap());
    let acquired = log.take().into_iter().filter(|entry| matches!(entry, Entry::Acquired(_)));
    assert_eq!(acquired.collect::<Vec<_>>(), [Entry::Acquired(Server); 2]);
}

#[tokio::test(start_paused = true)]
async fn suspect_lock_that_is_renewed_recovers_once() {
    let World { locks, refuses, log, .. } = World::new();
    let guard = locks.mutex("job").ttl(TTL).lock().await.unwrap();
    refuses.store(true, Ordering::SeqCst);
    assert_eq!(guard.changed(State::Valid).await, State::Suspect);
    tokio::time::sleep(ms(1_000)).await;
    refuses.store(false, Ordering::SeqCst);
    let began = Instant::now();
    assert_eq!(guard.changed(State::Suspect).await, State::Valid);
    assert!(began.elapsed() < TTL / 3, "before the renewal after it: {:?}", began.elapsed());
    tokio::time::sleep(TTL * 3).await;
    let entries = log.take();
    assert!(
        matches!(entries[..], [Entry::Acquired(_), Entry::Recovered(suspect)] if suspect >= ms(1_000)),
        "{entries:?}"
    );
    guard.release().await.unwrap();
}

/// The machine sleeps meanwhile, and the task of the holder looks at the lock first.
#[tokio::test(start_paused = true)]
async fn loss_is_reported_once_with_what_led_to_it() {
    let (warnings, _listening) = Warnings::listen("leasehold");
    let World { locks, clock, refuses, log } = World::new();
    let guard = locks.mutex("job").ttl(TTL).lock().await.unwrap();
    refuses.store(true, Ordering::SeqCst);
    assert_eq!(guard.changed(State::Valid).await, State::Suspect);
    tokio::time::sleep(ms(1_000)).await;
    clock.sleeps(TTL * 2);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost(LossCause::Expired));
    tokio::time::sleep(TTL).await;
    assert_eq!(guard.remaining(), Duration::ZERO);
    let lost = State::Lost(LossCause::Expired);
    tokio::time::timeout(TTL, guard.changed(lost)).await.expect_err("lost stays lost");
    let entries = log.take();
    let [Entry::Acquired(_), Entry::Lost { cause: LossCause::Expired, late, suspect: Some(suspect) }] =
        entries[..]
    else {
        panic!("{entries:?}")
    };
    assert!((TTL..TTL * 2).contains(&late) && suspect >= ms(1_000) + TTL * 2, "{late:?}, {suspect:?}");
    drop(guard);
    refuses.store(false, Ordering::SeqCst);
    let guard = locks.mutex("job").ttl(TTL).max_hold(ms(2_000)).lock().await.unwrap();
    clock.sleeps(ms(5_000));
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost(LossCause::MaxHold));
    let lost = Entry::Lost { cause: LossCause::MaxHold, late: ms(3_000), suspect: None };
    assert_eq!(log.take()[1..], [lost]);
    assert_eq!(warnings.count("lock lost"), 2);
}

/// It is what the caller asked for.
#[tokio::test(start_paused = true)]
async fn loss_by_a_close_is_no_warning() {
    let (warnings, _listening) = Warnings::listen("leasehold");
    let World { locks, .. } = World::new();
    let guard = locks.mutex("job").ttl(TTL).lock().await.unwrap();
    assert!(locks.close(TTL).await);
    assert_eq!((guard.state(), guard.remaining()), (State::Lost(LossCause::Closed), Duration::ZERO));
    assert_eq!(warnings.count("lock lost"), 0);
}

/// Nothing has noticed its end, because the machine slept.
#[tokio::test(start_paused = true)]
async fn lock_whose_lease_ended_at_rest_is_acquired_anew() {
    let World { locks, clock, refuses, .. } = World::new();
    let mutex = locks.mutex("job").ttl(TTL).linger(TTL);
    let guard = mutex.lock().await.unwrap();
    refuses.store(true, Ordering::SeqCst);
    tokio::time::sleep(ms(2_000)).await;
    let before = guard.fence().unwrap();
    guard.release().await.unwrap();
    // Past the end of the lease, and not of the rest.
    clock.sleeps(ms(7_500));
    let guard = mutex.lock().await.unwrap();
    guard.check().unwrap();
    assert!(guard.fence().unwrap().seq > before.seq, "{before:?}, {:?}", guard.fence());
}

#[tokio::test(start_paused = true)]
async fn drop_ends_a_guard_at_once_although_its_lock_is_kept() {
    let World { locks, .. } = World::new();
    for owner in [None, Some(Owner::new())] {
        let mutex = locks.mutex("job").min_hold(MINIMUM);
        let mutex = if let Some(owner) = &owner { mutex.owner(owner) } else { mutex };
        let guard = mutex.lock().await.unwrap();
        let token = guard.cancellation_token();
        tokio::time::sleep(ms(10)).await;
        drop(guard);
        tokio::time::timeout(ms(1_000), token.cancelled()).await.expect("the guard has ended");
        assert_eq!(locks.inspect("job").await.unwrap().holders.len(), 1);
        tokio::time::sleep(MINIMUM).await;
    }
}

#[tokio::test(start_paused = true)]
async fn last_guard_of_an_owner_waits_for_the_minimum_hold() {
    let World { locks, .. } = World::new();
    let mutex = locks.mutex("job").min_hold(MINIMUM).owner(&Owner::new());
    let (began, outer) = (Instant::now(), mutex.lock().await.unwrap());
    let inner = mutex.lock().await.unwrap();
    let (of_outer, of_inner) = (outer.cancellation_token(), inner.cancellation_token());
    inner.release().await.unwrap();
    assert!(began.elapsed() < ms(1_000), "{:?}", began.elapsed());
    tokio::time::timeout(ms(1_000), of_inner.cancelled()).await.expect("the guard has ended");
    let release = tokio::spawn(outer.release());
    tokio::time::sleep(ms(1_000)).await;
    assert!(!of_outer.is_cancelled());
    release.await.unwrap().unwrap();
    assert!(began.elapsed() >= MINIMUM);
    tokio::time::timeout(ms(1_000), of_outer.cancelled()).await.expect("the guard has ended");
}

#[tokio::test(start_paused = true)]
async fn release_of_a_lost_lock_waits_for_no_minimum_hold() {
    let World { locks, .. } = World::new();
    let guard = locks.mutex("job").min_hold(MINIMUM).max_hold(MINIMUM * 2).lock().await.unwrap();
    assert!(locks.close(TTL).await);
    let released = tokio::time::timeout(ms(1_000), guard.release()).await.expect("nothing is kept");
    assert!(released.unwrap_err().is_lost());
}

#[tokio::test(start_paused = true)]
async fn transfer_of_a_lock_with_another_guard_sends_nothing() {
    let wire = Arc::new(Fault::over(Arc::new(MemoryBackend::with_clock(Arc::new(TokioClock::new())))));
    let locks = Client::builder().clock(Arc::new(TokioClock::new())).over(wire.clone()).unwrap();
    let mutex = locks.mutex("job").owner(&Owner::new());
    let (outer, inner) = (mutex.lock().await.unwrap(), mutex.lock().await.unwrap());
    assert_eq!(inner.transfer().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!((wire.calls(Verb::Read), wire.calls(Verb::Swap)), (0, 0));
    outer.release().await.unwrap();
}

/// Each of them has the store.
#[tokio::test(start_paused = true)]
async fn tasks_of_a_client_end_with_its_last_handle() {
    let store = Arc::new(MemoryBackend::with_clock(Arc::new(TokioClock::new())));
    let locks = Client::builder().clock(Arc::new(TokioClock::new())).over(store.clone()).unwrap();
    drop(locks.mutex("job").ttl(MINIMUM).lock().await.unwrap());
    let guard = locks.mutex("other").ttl(MINIMUM).lock().await.unwrap();
    drop(locks);
    tokio::time::sleep(ms(1_000)).await;
    assert!(Arc::strong_count(&store) > 1, "it is renewed");
    let (warnings, _listening) = Warnings::listen("leasehold");
    drop(guard);
    tokio::time::sleep(ms(1_000)).await;
    assert_eq!(Arc::strong_count(&store), 1);
    assert_eq!(warnings.count("panicked"), 0);
}

/// The clock says so, and nothing else has looked.
#[test]
fn loss_found_by_the_end_of_a_guard_reaches_its_listeners() {
    let clock = Arc::new(ManualClock::new());
    let locks = blocking::Client::open_with(Client::builder().clock(clock.clone()), "mem:").unwrap();
    let guard = locks.mutex("job").ttl(MINIMUM).lock().unwrap();
    let (sender, lost) = mpsc::channel();
    guard.on_lost(move |cause| sender.send(cause).unwrap()).unwrap();
    clock.advance(MINIMUM);
    assert!(guard.release().unwrap_err().is_lost());
    assert_eq!(lost.recv_timeout(MINIMUM), Ok(LossCause::Expired));
}
