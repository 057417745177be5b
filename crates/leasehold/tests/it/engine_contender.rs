//! The requests of a contender and of a try: which, how often, and what they leave behind; in virtual time.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::backend::{Backend, Claim, ClaimId, Failure, Patience, Step};
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, Event, EventSubscriber, Guard, Mutex, Result, TokioClock, Tuning};
use leasehold_conformance::{Around, Wrapped};
use tokio::task::JoinHandle;

use crate::common::{held, ms, settles, waiting};

const TTL: Duration = ms(1_000);
const OUTAGE: Duration = ms(5_000);

/// A store in virtual time, a client over a wire that can fail, and another one.
struct World {
    locks: Client,
    wire: Arc<Fault>,
    other: Client,
}

impl World {
    fn new() -> World {
        World::over(|clock| MemoryBackend::with_clock(clock))
    }

    /// A store that clients have to ask again and again.
    fn polling() -> World {
        World::over(|clock| MemoryBackend::with_clock(clock).polling())
    }

    fn over(store: impl FnOnce(Arc<TokioClock>) -> MemoryBackend) -> World {
        World::tolerating(OUTAGE, store)
    }

    fn tolerating(outage: Duration, store: impl FnOnce(Arc<TokioClock>) -> MemoryBackend) -> World {
        let clock = Arc::new(TokioClock::new());
        let store = Arc::new(store(clock.clone()));
        let wire = Arc::new(Fault::over(store.clone()));
        let builder = Client::builder().clock(clock.clone()).tuning(Tuning::default().outage(outage));
        let locks = builder.over(wire.clone()).unwrap();
        World { locks, wire, other: Client::builder().clock(clock).over(store).unwrap() }
    }

    fn mutex(&self) -> Mutex {
        self.locks.mutex("job").ttl(TTL)
    }

    /// Runs one attempt in the background, and returns when its first request is under way in this mode.
    async fn tries(&self, mutex: Mutex, mode: Mode) -> JoinHandle<Result<Option<Guard>>> {
        self.wire.set(Verb::Contend, mode);
        let before = self.calls();
        let tries = tokio::spawn(async move { mutex.try_lock().await });
        while self.calls() == before {
            tokio::time::sleep(ms(1)).await;
        }
        tries
    }

    fn calls(&self) -> u64 {
        self.wire.calls(Verb::Contend)
    }
}

fn waits(mutex: Mutex) -> JoinHandle<Result<Guard>> {
    tokio::spawn(async move { mutex.lock().await })
}

#[tokio::test(start_paused = true)]
async fn try_whose_grant_came_too_late_is_repeated() {
    let world = World::new();
    let tries = world.tries(world.mutex(), Mode::LateReply(TTL * 2)).await;
    world.wire.set(Verb::Contend, Mode::Pass);
    let guard = tries.await.unwrap().unwrap().expect("it is free");
    guard.check().unwrap();
    assert_eq!(world.calls(), 2);
    guard.release().await.unwrap();
}

/// The store keeps what it has granted for the lock delay.
#[tokio::test(start_paused = true)]
async fn try_whose_grants_all_come_too_late_releases_its_claim() {
    let world = World::new();
    let tries = world.tries(world.mutex().lock_delay(TTL * 60), Mode::LateReply(TTL * 2)).await;
    assert_eq!(tries.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(world.calls(), 3);
    let free = world.other.mutex("job").try_lock_for(TTL).await.unwrap();
    free.expect("nobody has it").release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn refusal_after_a_late_grant_is_an_unknown_outcome() {
    let world = World::new();
    let tries = world.tries(world.mutex().lock_delay(TTL * 60), Mode::LateReply(TTL * 2)).await;
    world.wire.set(Verb::Contend, Mode::Refuse);
    let error = tries.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    settles(&world.other, "job").await;
}

#[tokio::test(start_paused = true)]
async fn try_without_an_answer_is_sent_three_times() {
    let world = World::new();
    let tries = world.tries(world.mutex(), Mode::LoseRequest).await;
    assert_eq!(tries.await.unwrap().unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(world.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn late_grants_are_requested_with_pauses() {
    let world = World::new();
    world.wire.set(Verb::Contend, Mode::LateReply(ms(120)));
    let error = world.mutex().ttl(ms(100)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(world.calls() <= 20, "{} in {OUTAGE:?}", world.calls());
}

#[tokio::test(start_paused = true)]
async fn late_grant_that_nobody_waits_for_is_not_asked_for_anew() {
    let world = World::new();
    world.wire.set(Verb::Contend, Mode::LateReply(TTL * 2));
    let wait = waits(world.mutex());
    held(&world.other, "job").await;
    wait.abort();
    tokio::time::sleep(TTL * 10).await;
    assert_eq!(world.calls(), 1);
    settles(&world.other, "job").await;
}

#[tokio::test(start_paused = true)]
async fn polled_store_is_asked_with_pauses_while_a_task_waits() {
    let world = World::polling();
    let held = world.other.mutex("job").lock().await.unwrap();
    let wait = waits(world.mutex());
    waiting(&world.other, "job", 1).await;
    tokio::time::sleep(ms(10_000)).await;
    let calls = world.calls();
    assert!((10..1_000).contains(&calls), "{calls} in ten seconds");
    while world.calls() == calls {
        tokio::time::sleep(ms(1)).await;
    }
    // In the pause after that request.
    wait.abort();
    waiting(&world.other, "job", 0).await;
    tokio::time::sleep(ms(10_000)).await;
    assert_eq!(world.calls(), calls + 1);
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn answer_ends_an_outage() {
    let world = World::polling();
    let held = world.other.mutex("job").lock().await.unwrap();
    let wait = waits(world.mutex());
    for _ in 0..4 {
        world.wire.set(Verb::Contend, Mode::LoseRequest);
        tokio::time::sleep(OUTAGE * 2 / 3).await;
        world.wire.set(Verb::Contend, Mode::Pass);
        tokio::time::sleep(OUTAGE).await;
    }
    assert!(!wait.is_finished(), "{:?}", wait.await);
    held.release().await.unwrap();
    wait.await.unwrap().unwrap().release().await.unwrap();
}

/// Otherwise it would sleep for about as long again as the outage was.
#[tokio::test(start_paused = true)]
async fn waiter_is_served_within_a_second_after_a_long_outage() {
    let world = World::tolerating(OUTAGE * 1_000, |clock| MemoryBackend::with_clock(clock));
    world.wire.set(Verb::Contend, Mode::LoseRequest);
    let wait = waits(world.mutex());
    tokio::time::sleep(OUTAGE * 100).await;
    world.wire.set(Verb::Contend, Mode::Pass);
    let guard = tokio::time::timeout(ms(1_000), wait).await.expect("it asks again within a second");
    guard.unwrap().unwrap().release().await.unwrap();
}

/// The error of a contender that no task needed is none of a task that came later.
#[tokio::test(start_paused = true)]
async fn failure_of_a_stopped_contender_concerns_no_later_waiter() {
    let world = World::new();
    world.wire.set(Verb::Contend, Mode::Hang);
    let (first, second) = (world.mutex(), world.mutex());
    {
        let mut left = pin!(first.lock());
        assert!((&mut left).now_or_never().is_none());
        while world.calls() == 0 {
            tokio::task::yield_now().await;
        }
    }
    // Its contender has no answer yet: it hears of the end of its patience when it runs next.
    let mut stays = pin!(second.lock());
    assert!((&mut stays).now_or_never().is_none());
    world.wire.set(Verb::Contend, Mode::LoseRequest);
    tokio::time::sleep(OUTAGE / 2).await;
    world.wire.set(Verb::Contend, Mode::Pass);
    stays.await.expect("a short outage").release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn store_that_has_just_refused_is_not_asked_at_the_deadline() {
    let world = World::polling();
    let _held = world.other.mutex("job").lock().await.unwrap();
    let mutex = world.mutex();
    let limit = ms(2_000);
    let wait = tokio::spawn(async move { mutex.try_lock_for(limit).await });
    tokio::time::sleep(limit - ms(1)).await;
    // A request at the deadline would have no answer.
    world.wire.set(Verb::Contend, Mode::Hang);
    assert!(wait.await.unwrap().unwrap().is_none());
}

/// An answer from before the store became silent says nothing.
#[tokio::test(start_paused = true)]
async fn store_that_falls_silent_is_asked_again_at_the_deadline() {
    for (mode, fails_for) in [(Mode::LoseRequest, ms(900)), (Mode::Hang, ms(1_500))] {
        let world = World::polling();
        let _held = world.other.mutex("job").lock().await.unwrap();
        let mutex = world.mutex();
        let limit = ms(4_000);
        let wait = tokio::spawn(async move { mutex.try_lock_for(limit).await });
        tokio::time::sleep(limit - fails_for).await;
        world.wire.set(Verb::Contend, mode);
        let error = wait.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{mode:?}: {error}");
    }
}

/// The reported numbers of claims ahead.
#[derive(Debug, Default)]
struct Ahead(std::sync::Mutex<Vec<Option<u32>>>);

impl EventSubscriber for Ahead {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Queued { ahead, .. } = event {
            self.0.lock().unwrap().push(*ahead);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refused_request_reports_the_claims_ahead() {
    let clock = Arc::new(TokioClock::new());
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()).polling());
    let ahead = Arc::new(Ahead::default());
    let builder = Client::builder().clock(clock.clone()).subscriber(ahead.clone());
    let (locks, other) =
        (builder.over(store.clone()).unwrap(), Client::builder().clock(clock).over(store).unwrap());
    let held = other.mutex("job").lock().await.unwrap();
    let wait = waits(locks.mutex("job"));
    waiting(&other, "job", 1).await;
    held.release().await.unwrap();
    wait.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(ahead.0.lock().unwrap().first(), Some(&Some(1)));
}

/// A store that releases its first grants itself, as if too few replicas had them, without an answer.
#[derive(Debug)]
struct ReleasesFirst {
    inner: Arc<MemoryBackend>,
    first: usize,
    granted: std::sync::Mutex<Vec<ClaimId>>,
}

#[async_trait::async_trait]
impl Around for ReleasesFirst {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> std::result::Result<Step, Failure> {
        let step = self.inner.contend(claim, patience).await?;
        if matches!(step, Step::Granted(_)) {
            let mut granted = self.granted.lock().unwrap();
            granted.push(claim.id);
            if granted.len() <= self.first {
                return Err(Failure::unavailable("too few replicas have it").with_release_unanswered());
            }
        }
        Ok(step)
    }
}

/// Opens a client of a store that releases its first grants itself, and another client.
fn releasing(first: usize) -> (Arc<Wrapped<ReleasesFirst>>, Client, Client) {
    let clock = Arc::new(TokioClock::new());
    let inner = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let store = ReleasesFirst { inner: inner.clone(), first, granted: Default::default() };
    let store = Arc::new(Wrapped(store));
    let builder = Client::builder().clock(clock.clone()).tuning(Tuning::default().outage(OUTAGE));
    let locks = builder.over(store.clone()).unwrap();
    (store, locks, Client::builder().clock(clock).over(inner).unwrap())
}

#[tokio::test(start_paused = true)]
async fn released_claim_is_not_requested_again() {
    let (store, locks, other) = releasing(3);
    let guard = locks.mutex("job").ttl(TTL).lock().await.unwrap();
    guard.check().unwrap();
    let mut granted = store.granted.lock().unwrap().clone();
    granted.sort_by_key(|id| id.to_hex());
    granted.dedup();
    assert_eq!(granted.len(), 4, "each request is for another claim");
    guard.release().await.unwrap();
    settles(&other, "job").await;
}

#[tokio::test(start_paused = true)]
async fn store_that_releases_every_grant_is_away() {
    let (store, locks, other) = releasing(usize::MAX);
    let error = locks.mutex("job").ttl(TTL).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(error.to_string().contains("too few replicas"), "{error}");
    let requests = store.granted.lock().unwrap().len();
    assert!(requests > 1, "it asks until the outage is over");
    settles(&other, "job").await;
}

#[tokio::test(start_paused = true)]
async fn try_of_a_released_claim_is_not_repeated() {
    let (store, locks, other) = releasing(usize::MAX);
    let error = locks.mutex("job").ttl(TTL).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert_eq!(store.granted.lock().unwrap().len(), 1);
    settles(&other, "job").await;
}
