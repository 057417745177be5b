//! Upgrades that would wait for themselves, and what their looks at the queue cost; in virtual time.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::LossCause;
use leasehold::fenced::FenceGate;
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, Event, EventSubscriber, RwLock, TokioClock};
use tokio::time::Instant;

use crate::common::{ms, settles, waiting};

const SOON: Duration = ms(2_000);
/// As long as a silent server answers nothing.
const SILENT: Mode = Mode::LateReply(Duration::from_secs(3_600));

/// Returns a client over a wire that can fail, and another one.
fn clients() -> (Client, Arc<Fault>, Client) {
    clients_of(|store| store)
}

fn clients_of(kind: impl FnOnce(MemoryBackend) -> MemoryBackend) -> (Client, Arc<Fault>, Client) {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(kind(MemoryBackend::with_clock(clock.clone())));
    let wire = Arc::new(Fault::over(store.clone()));
    let open = |backend| Client::builder().clock(clock.clone()).over(backend).unwrap();
    (open(wire.clone()), wire, open(store))
}

fn lock(locks: &Client) -> RwLock {
    locks.rwlock("prices")
}

#[tokio::test(start_paused = true)]
async fn try_gets_a_reader_beside_readers_and_none_beside_a_writer() {
    let (locks, wire, other) = clients();
    let reader = lock(&other).read().await.unwrap();
    let mut guard = lock(&locks).try_upgradable_read().await.unwrap().expect("readers go together");
    assert!(!guard.try_upgrade().await.unwrap());
    reader.release().await.unwrap();
    guard.upgrade().await.unwrap();
    assert!(lock(&other).try_upgradable_read().await.unwrap().is_none());
    guard.release().await.unwrap();
    settles(&other, "prices").await;
    // Without a place in the queue: a writer is served at once.
    drop(lock(&other).try_write().await.unwrap().expect("free"));
    wire.set_all(Mode::Hang);
    let silent = lock(&locks).try_upgradable_read().await;
    assert_eq!(silent.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
}

/// A guard may open again, as a reader, a resource that it has opened as a writer.
#[tokio::test(start_paused = true)]
async fn fence_does_not_fall_with_a_downgrade() {
    let (locks, _, other) = clients();
    let mut guard = lock(&locks).upgradable_read().await.unwrap();
    let (prices, mut last) = (FenceGate::new(7), guard.fence());
    for _ in 0..2 {
        guard.upgrade().await.unwrap();
        assert!(guard.fence() > last);
        prices.open(guard.fence()).unwrap().access(|price| *price += 1).unwrap();
        last = guard.fence();
        guard.downgrade().await.unwrap();
        assert_eq!(guard.fence(), last);
        prices.open(guard.fence()).unwrap();
    }
    guard.release().await.unwrap();
    let writer = lock(&other).write().await.unwrap();
    assert!(writer.fence() > last);
}

/// The claim of the reader is older than that of the writer, so it is not handed to another task afterwards.
#[tokio::test(start_paused = true)]
async fn fence_of_the_next_reader_is_above_that_of_the_writer() {
    for is_downgraded in [false, true] {
        let (locks, ..) = clients();
        let mut guard = lock(&locks).upgradable_read().await.unwrap();
        let prices = FenceGate::new(7);
        guard.upgrade().await.unwrap();
        let wrote = guard.fence();
        prices.open(wrote).unwrap().access(|price| *price += 1).unwrap();
        let next = lock(&locks);
        let reader = tokio::spawn(async move { next.read().await.unwrap() });
        tokio::time::sleep(Duration::from_millis(1)).await;
        if is_downgraded {
            guard.downgrade().await.unwrap();
        }
        drop(guard);
        let reader = reader.await.unwrap();
        assert!(reader.fence() > wrote, "{:?} after {wrote:?}", reader.fence());
        assert_eq!(prices.open(reader.fence()).unwrap().access(|price| *price).unwrap(), 8);
    }
}

#[tokio::test(start_paused = true)]
async fn upgrade_behind_a_writer_is_refused_soon() {
    let (locks, _, other) = clients();
    let mut guard = lock(&locks).upgradable_read().await.unwrap();
    let writer = lock(&other);
    let writer = tokio::spawn(async move { writer.write().await.unwrap() });
    waiting(&other, "prices", 1).await;
    let upgrade = tokio::time::timeout(SOON, guard.upgrade()).await.expect("soon");
    assert_eq!(upgrade.unwrap_err().kind(), ErrorKind::Deadlock);
    guard.release().await.unwrap();
    writer.await.unwrap().release().await.unwrap();
    settles(&other, "prices").await;
}

/// Its place is then behind a writer that waits for the reader.
#[tokio::test(start_paused = true)]
async fn upgrade_that_loses_its_place_to_a_writer_is_refused() {
    let (locks, _, other) = clients();
    let mut guard = lock(&locks).upgradable_read().await.unwrap();
    let reader = lock(&other).read().await.unwrap();
    let upgrade = tokio::spawn(async move { (guard.upgrade().await, guard) });
    waiting(&other, "prices", 1).await;
    let writer = lock(&other);
    let writer = tokio::spawn(async move { writer.write().await.unwrap() });
    waiting(&other, "prices", 2).await;
    tokio::time::sleep(SOON).await;
    assert!(!upgrade.is_finished(), "it waits for the reader alone");
    let place = other.inspect("prices").await.unwrap().waiting.remove(0);
    other.break_claim("prices", &place).await.unwrap();
    let (outcome, guard) = tokio::time::timeout(SOON * 5, upgrade).await.expect("soon").unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Deadlock);
    drop((guard, reader));
    writer.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn upgrade_passes_a_writer_where_the_store_keeps_no_queue() {
    let (locks, wire, other) = clients_of(MemoryBackend::unordered);
    let mut guard = lock(&locks).upgradable_read().await.unwrap();
    let reader = lock(&other).read().await.unwrap();
    let writer = lock(&other);
    let writer = tokio::spawn(async move { writer.write().await.unwrap() });
    tokio::time::sleep(SOON).await;
    let upgrade = tokio::spawn(async move { (guard.upgrade().await, guard) });
    tokio::time::sleep(SOON).await;
    assert_eq!(wire.calls(Verb::Inspect), 0, "no place is a reason to end it");
    drop(reader);
    let (outcome, guard) = tokio::time::timeout(SOON, upgrade).await.expect("soon").unwrap();
    outcome.unwrap();
    guard.release().await.unwrap();
    writer.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn upgrade_that_waits_looks_at_the_queue_now_and_then() {
    for (is_queued, most) in [(true, 10), (false, 60)] {
        let (locks, wire, other) = clients_of(MemoryBackend::polling);
        let mut guard = lock(&locks).upgradable_read().await.unwrap();
        let reader = lock(&other).read().await.unwrap();
        let upgrade = tokio::spawn(async move { guard.upgrade().await });
        waiting(&other, "prices", 1).await;
        if !is_queued {
            // Its next request gets no answer, and its place is gone.
            wire.set(Verb::Contend, Mode::Hang);
            let place = other.inspect("prices").await.unwrap().waiting.remove(0);
            other.break_claim("prices", &place).await.unwrap();
        }
        tokio::time::sleep(SOON * 10).await;
        let queued = other.inspect("prices").await.unwrap().waiting.len();
        assert_eq!(queued, usize::from(is_queued));
        let looks = wire.calls(Verb::Inspect);
        assert!((2..=most).contains(&looks), "queued: {is_queued}: {looks}");
        upgrade.abort();
        drop(reader);
    }
}

/// A reader that is gone has left the lock of its upgrade behind.
#[tokio::test(start_paused = true)]
async fn limit_of_an_upgrade_includes_the_end_of_an_earlier_one() {
    let (locks, _, other) = clients();
    let mut guard = lock(&locks).upgradable_read().await.unwrap();
    let left = other.mutex("prices!upgrade").lock().await.unwrap();
    for limit in [Duration::ZERO, SOON] {
        let began = Instant::now();
        let error = guard.try_upgrade_for(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!((limit..limit + ms(100)).contains(&began.elapsed()), "{limit:?}: {:?}", began.elapsed());
    }
    let began = Instant::now();
    let upgrade = tokio::spawn(async move { guard.try_upgrade_for(SOON).await });
    tokio::time::sleep(SOON / 2).await;
    // From here on it waits for another reader.
    let reader = lock(&other).read().await.unwrap();
    left.release().await.unwrap();
    assert!(!upgrade.await.unwrap().unwrap());
    assert!(began.elapsed() < SOON + ms(100), "{:?}", began.elapsed());
    drop(reader);
}

#[tokio::test(start_paused = true)]
async fn upgrade_of_a_closed_client_sends_nothing() {
    let (locks, wire, _) = clients();
    let mut guard = lock(&locks).upgradable_read().await.unwrap();
    assert!(locks.close(SOON).await);
    let calls = wire.calls(Verb::Contend);
    assert!(guard.upgrade().await.unwrap_err().is_lost());
    assert_eq!(wire.calls(Verb::Contend), calls);
}

/// The reader is lost first, and the claim as a writer is still valid when the guard ends.
#[tokio::test(start_paused = true)]
async fn lock_delay_of_a_lost_writer_excludes_readers() {
    let delay = ms(2_000);
    for (cause, is_released) in [
        (LossCause::MaxHold, false),
        (LossCause::MaxHold, true),
        (LossCause::Expired, false),
        (LossCause::Expired, true),
    ] {
        let (locks, wire, other) = clients();
        let mut prices = lock(&locks).ttl(ms(200)).lock_delay(delay);
        match cause {
            LossCause::MaxHold => prices = prices.max_hold(ms(300)),
            _ => wire.set(Verb::Renew, Mode::LoseRequest),
        }
        let mut guard = prices.upgradable_read().await.unwrap();
        tokio::time::sleep(ms(100)).await;
        guard.upgrade().await.unwrap();
        assert_eq!(guard.lost().await, cause);
        let lost = Instant::now();
        if is_released {
            assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost(cause));
        } else {
            drop(guard);
        }
        let reader = lock(&other).read().await.unwrap();
        assert!(lost.elapsed() >= delay, "{cause}, released: {is_released}: {:?}", lost.elapsed());
        drop(reader);
    }
}

/// Its guard is kept, as by a task that hangs.
#[tokio::test(start_paused = true)]
async fn lost_writer_keeps_neither_claim() {
    for (part, cause) in [(None, LossCause::MaxHold), (Some(0), LossCause::Gone), (Some(1), LossCause::Gone)]
    {
        let (locks, _, other) = clients();
        let mut guard = lock(&locks).ttl(SOON).max_hold(ms(60_000)).upgradable_read().await.unwrap();
        tokio::time::sleep(ms(50_000)).await;
        guard.upgrade().await.unwrap();
        if let Some(part) = part {
            let holders = other.inspect("prices").await.unwrap().holders;
            other.break_claim("prices", &holders[part]).await.unwrap();
        }
        assert_eq!(guard.lost().await, cause);
        let lost = Instant::now();
        settles(&other, "prices").await;
        assert!(lost.elapsed() < ms(100), "{part:?}: {:?}", lost.elapsed());
        drop(guard);
    }
}

/// The limit is that of the whole hold, and not that of each claim.
#[tokio::test(start_paused = true)]
async fn upgrade_does_not_change_the_longest_time_to_hold() {
    let (locks, _, other) = clients();
    let mut guard = lock(&locks).max_hold(SOON).upgradable_read().await.unwrap();
    let began = Instant::now();
    for _ in 0..2 {
        tokio::time::sleep(SOON / 4).await;
        guard.upgrade().await.unwrap();
        guard.downgrade().await.unwrap();
    }
    assert_eq!(guard.lost().await, LossCause::MaxHold);
    assert!((SOON..SOON + ms(100)).contains(&began.elapsed()), "{:?}", began.elapsed());
    settles(&other, "prices").await;
}

/// Holds up the task whose claim is granted, before it delivers the grant.
#[derive(Debug)]
struct SlowGrants;

impl EventSubscriber for SlowGrants {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::LeaseStarted { .. } = event {
            std::thread::sleep(ms(100));
        }
    }
}

/// Its wait ends after the grant and before the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_reader_is_granted_an_upgrade_in_any_time() {
    let store = Arc::new(MemoryBackend::new());
    let locks = Client::builder().subscriber(Arc::new(SlowGrants)).over(store).unwrap();
    // The lock that keeps others from upgrading takes 100 ms of it. The last one ends within the second grant.
    for limit in [Duration::ZERO, ms(1), ms(150)] {
        let mut guard = lock(&locks).upgradable_read().await.unwrap();
        assert!(guard.try_upgrade_for(limit).await.unwrap(), "{limit:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn upgrade_keeps_its_limit_although_the_store_is_silent_or_slow() {
    for mode in [SILENT, Mode::LateReply(ms(1_500))] {
        let (locks, wire, _) = clients();
        let mut guard = lock(&locks).upgradable_read().await.unwrap();
        wire.set_all(mode);
        for limit in [ms(0), ms(100)] {
            let began = Instant::now();
            let error = guard.try_upgrade_for(limit).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.op()),
                (ErrorKind::OutcomeUnknown, "upgrade"),
                "{mode:?}: {error}"
            );
            assert_eq!(error.resource().map(ToString::to_string).as_deref(), Some("prices"), "{error}");
            assert!(began.elapsed() <= limit + ms(2_010), "{mode:?}, {limit:?}: {:?}", began.elapsed());
        }
        // Nothing that was requested meanwhile stays behind.
        wire.set_all(Mode::Pass);
        guard.upgrade().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn upgrade_ends_with_its_reader_although_the_store_is_silent() {
    let (locks, wire, _) = clients();
    let mut guard = lock(&locks).ttl(ms(3_000)).upgradable_read().await.unwrap();
    wire.set_all(SILENT);
    let began = Instant::now();
    let error = guard.upgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LossCause::Expired), "{error}");
    assert!(began.elapsed() <= ms(3_000), "{:?}", began.elapsed());
}
