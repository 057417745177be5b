//! Direct requests: an uncontended lock is requested by its caller, and every other rule holds.
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};
use std::time::Duration;

use crate::common::{block_on, held, ms, settles, waiting};
use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold::backend::{
    AtOnce, Backend, Claim, Clock, DirectAnswer, DirectRelease, DirectReply, DirectRequests, Failure, Moment,
    Patience, Release, Step,
};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind, Event, EventSubscriber, State, TokioClock};
use leasehold_conformance::{Around, Wrapped};
use tokio::sync::oneshot;

#[tokio::test]
async fn uncontended_lock_is_one_direct_request() {
    let (locks, store) = opened();
    for _ in 0..3 {
        locks.mutex("job").lock().await.unwrap().release().await.unwrap();
        let guard = locks.mutex("job").try_lock().await.unwrap();
        guard.expect("it is free").release().await.unwrap();
    }
    assert_eq!((store.direct(), store.long()), (6, 0));
    settles(&locks, "job").await;
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_releases_send_them_themselves() {
    let (locks, store) = opened();
    let guards = [locks.mutex("a"), locks.mutex("b"), locks.mutex("c")]
        .map(|lock| async move { lock.lock().await.unwrap() });
    let guards = futures_util::future::join_all(guards).await;
    let answers: Vec<_> = guards.iter().map(|_| store.hold_release_back()).collect();
    let mut releases = futures_util::future::join_all(guards.into_iter().map(leasehold::Guard::release));
    assert!((&mut releases).now_or_never().is_none());
    assert_eq!(store.released(), (3, 3), "none waits for another one");
    for answer in answers {
        answer.send(()).unwrap();
    }
    assert!(releases.await.iter().all(Result::is_ok));
    assert_eq!(store.released(), (3, 3));
    // A guard that is dropped has no caller.
    drop(locks.mutex("a").lock().await.unwrap());
    settles(&locks, "a").await;
    assert_eq!(store.released(), (3, 4));
}

#[tokio::test(start_paused = true)]
async fn direct_release_without_an_answer_is_repeated() {
    let (locks, store) = opened();
    let guard = locks.mutex("job").lock().await.unwrap();
    drop(store.hold_release_back());
    guard.release().await.unwrap();
    assert_eq!(store.released(), (1, 2));
    // Nor does it matter if the backend panics when it has sent the release.
    let guard = locks.mutex("job").lock().await.unwrap();
    store.release_panics.store(1, Ordering::SeqCst);
    guard.release().await.unwrap();
    assert_eq!(store.released(), (2, 4));
    settles(&locks, "job").await;
}

/// Begins a direct release of "job", and returns what lets its answer come.
async fn begun_release(
    locks: &Client,
    store: &Distant,
) -> (BoxFuture<'static, leasehold::Result<()>>, oneshot::Sender<()>) {
    let guard = locks.mutex("job").lock().await.unwrap();
    let answer = store.hold_release_back();
    let mut release = guard.release().boxed();
    assert!((&mut release).now_or_never().is_none());
    (release, answer)
}

/// The release had no effect, so it was not what ended the claim.
#[tokio::test]
async fn claim_that_is_gone_after_a_refused_release_was_lost() {
    let (locks, store) = opened();
    let guard = locks.mutex("job").lock().await.unwrap();
    store.forgets.store(true, Ordering::SeqCst);
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
    assert_eq!(store.released(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn direct_release_whose_caller_leaves_is_awaited_by_the_client() {
    let (locks, store) = opened();
    let (release, answer) = begun_release(&locks, &store).await;
    drop(release);
    let closing = locks.clone();
    let closing = tokio::spawn(async move { closing.close(SOON).await });
    tokio::time::sleep(ms(50)).await;
    assert!(!closing.is_finished(), "closing waits for the answer");
    answer.send(()).unwrap();
    assert!(closing.await.unwrap());
    assert_eq!(store.released(), (1, 1));
}

/// A waiter of the same client continues when the release is answered, and its caller need not be polled for that.
#[tokio::test(start_paused = true)]
async fn waiter_behind_a_direct_release_does_not_depend_on_its_caller() {
    let (locks, store) = opened();
    let (release, answer) = begun_release(&locks, &store).await;
    let waits = locks.mutex("job");
    let waits = tokio::spawn(async move { waits.lock().await });
    tokio::time::sleep(ms(50)).await;
    answer.send(()).unwrap();
    let guard = tokio::time::timeout(SOON, waits).await.expect("nobody polls the release").unwrap().unwrap();
    assert_eq!(store.released(), (1, 1));
    release.await.unwrap();
    guard.release().await.unwrap();
    settles(&locks, "job").await;
}

/// Where the store has no queue, nothing else lets the waiter ask.
#[tokio::test(start_paused = true)]
async fn waiter_without_a_queue_does_not_depend_on_a_direct_release() {
    let (locks, store) = Distant::over(|clock| MemoryBackend::with_clock(clock).unordered());
    let (release, answer) = begun_release(&locks, &store).await;
    let waits = locks.mutex("job");
    let waits = tokio::spawn(async move { waits.lock().await });
    tokio::time::sleep(ms(50)).await;
    answer.send(()).unwrap();
    let guard = tokio::time::timeout(SOON, waits).await.expect("nobody polls the release").unwrap().unwrap();
    release.await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lock_of_a_direct_request_is_renewed() {
    let (locks, store) = opened();
    let guard = locks.mutex("job").ttl(ms(300)).lock().await.unwrap();
    tokio::time::sleep(ms(900)).await;
    guard.check().unwrap();
    assert_eq!(store.direct(), 1);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn busy_resource_is_waited_for_in_the_queue_for_a_while() {
    let (locks, store) = opened();
    let others = another(&store);
    // A refusal at the very start of the clock is not remembered.
    tokio::time::sleep(ms(1)).await;
    let guard = others.mutex("job").lock().await.unwrap();
    assert!(locks.mutex("job").try_lock().await.unwrap().is_none());
    assert_eq!((store.direct(), store.long()), (2, 0), "a try that is refused is one request");
    let waits = locks.mutex("job");
    let waits = tokio::spawn(async move { waits.lock().await });
    waiting(&others, "job", 1).await;
    guard.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(store.direct(), 2, "what was busy a moment ago is asked by the slow path");
    settles(&locks, "job").await;
    tokio::time::sleep(ms(1_100)).await;
    locks.mutex("job").lock().await.unwrap().release().await.unwrap();
    assert_eq!(store.direct(), 3);
}

#[derive(Debug, Default)]
struct Queued(AtomicU32);

impl EventSubscriber for Queued {
    fn on_event(&self, event: &Event<'_>) {
        self.0.fetch_add(u32::from(matches!(event, Event::Queued { .. })), Ordering::SeqCst);
    }
}

#[tokio::test]
async fn try_that_a_direct_request_refuses_is_reported_as_any_other() {
    let (others, store) = opened();
    let queued = Arc::new(Queued::default());
    let locks = Client::builder().subscriber(queued.clone()).over(store.clone()).unwrap();
    let _guard = others.mutex("job").lock().await.unwrap();
    assert!(locks.mutex("job").try_lock().await.unwrap().is_none());
    assert_eq!((store.long(), queued.0.load(Ordering::SeqCst)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn caller_that_leaves_leaves_nothing() {
    let (locks, store) = opened();
    for is_try in [false, true] {
        let _answer = store.hold_back();
        let mutex = locks.mutex("job");
        if is_try {
            assert!(mutex.try_lock().now_or_never().is_none());
        } else {
            assert!(mutex.lock().now_or_never().is_none());
        }
        settles(&locks, "job").await;
    }
    assert_eq!((store.direct(), store.long()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_for_a_caller_that_is_not_polled() {
    let (locks, store) = opened();
    let others = another(&store);
    let answer = store.hold_back();
    let mutex = locks.mutex("job");
    let mut lock = pin!(mutex.lock());
    assert!((&mut lock).now_or_never().is_none());
    held(&others, "job").await;
    assert!(locks.close(SOON).await, "everything was released");
    settles(&others, "job").await;
    // The answer comes after all, and must not be used.
    answer.send(()).unwrap();
    assert_eq!(lock.await.unwrap_err().kind(), ErrorKind::Closed);
    let late = locks.mutex("job").lock().await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Closed);
    settles(&others, "job").await;
}

/// The client closes after the claim was entered as in flight, and before its request takes effect: closing releases a
/// claim that is not there yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_waits_for_a_request_that_is_about_to_be_sent() {
    let (locks, store) = opened();
    let others = another(&store);
    let (asking, asked) = std::sync::mpsc::channel();
    let (go, gone) = std::sync::mpsc::channel();
    *store.before_it_asks.lock().unwrap() = Some(Box::new(move || {
        asking.send(()).unwrap();
        gone.recv().unwrap();
    }));
    let mutex = locks.mutex("job");
    let locking = std::thread::spawn(move || block_on(mutex.lock()));
    asked.recv().unwrap();
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close(SOON).await }
    });
    while store.released.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    assert!(!closing.is_finished(), "a request is about to be sent");
    go.send(()).unwrap();
    assert_eq!(locking.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(closing.await.unwrap(), "everything was released");
    let seen = others.inspect("job").await.unwrap();
    assert!(seen.holders.is_empty(), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn caller_that_waits_learns_of_the_end_of_the_client() {
    let (locks, store) = opened();
    let _answer = store.hold_back();
    let mutex = locks.mutex("job");
    let waits = tokio::spawn(async move { mutex.lock().await });
    held(&another(&store), "job").await;
    assert!(locks.close(SOON).await);
    assert_eq!(waits.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn waiter_does_not_depend_on_a_caller_that_is_not_polled() {
    let (locks, store) = opened();
    let _answer = store.hold_back();
    let mutex = locks.mutex("job").ttl(ms(300));
    let mut idle = pin!(mutex.lock());
    assert!((&mut idle).now_or_never().is_none());
    // Its claim is not renewed, so it ends with its lease.
    let guard = tokio::time::timeout(SOON, locks.mutex("job").lock()).await.expect("soon").unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn grant_that_comes_too_late_is_released_and_asked_for_anew() {
    let (locks, store) = opened();
    let answer = store.hold_back();
    let mutex = locks.mutex("job").ttl(ms(200));
    let mut lock = pin!(mutex.lock());
    assert!((&mut lock).now_or_never().is_none());
    tokio::time::sleep(ms(300)).await;
    answer.send(()).unwrap();
    let guard = tokio::time::timeout(SOON, lock).await.expect("soon").unwrap();
    guard.check().unwrap();
    assert_eq!(store.direct(), 1);
    guard.release().await.unwrap();
    settles(&locks, "job").await;
}

/// The store keeps the claim for the lock delay, so a try for another claim would be refused by it.
#[tokio::test(start_paused = true)]
async fn try_is_not_refused_by_its_own_grant_that_came_too_late() {
    let (locks, store) = opened();
    let answer = store.hold_back();
    let mutex = locks.mutex("job").ttl(ms(200)).lock_delay(SOON);
    let mut lock = pin!(mutex.try_lock());
    assert!((&mut lock).now_or_never().is_none());
    tokio::time::sleep(ms(300)).await;
    answer.send(()).unwrap();
    let guard = lock.await.unwrap().expect("nobody else has it");
    guard.check().unwrap();
    guard.release().await.unwrap();
    settles(&locks, "job").await;
}

#[tokio::test]
async fn try_is_not_refused_by_what_was_granted_before_a_panic() {
    let (locks, store) = opened();
    for _ in 0..20 {
        store.panics.store(1, Ordering::SeqCst);
        let guard = locks.mutex("job").try_lock().await.unwrap().expect("nobody else has it");
        guard.release().await.unwrap();
    }
}

/// The lost answer may have been a grant, so the same claim is asked for again, and not refused by itself.
#[tokio::test(start_paused = true)]
async fn try_without_an_answer_is_not_refused_by_its_own_grant() {
    let (locks, store) = opened();
    for _ in 0..20 {
        drop(store.hold_back());
        let guard = locks.mutex("job").try_lock().await.unwrap().expect("nobody else has it");
        guard.release().await.unwrap();
    }
    assert_eq!((store.direct(), store.long()), (20, 20));
    settles(&locks, "job").await;
}

/// The request may still arrive, and be granted when the lock is free.
#[tokio::test(start_paused = true)]
async fn try_without_an_answer_that_is_refused_releases_its_claim() {
    let (locks, store) = opened();
    let other = another(&store);
    let guard = other.mutex("job").lock().await.unwrap();
    drop(store.hold_back());
    assert!(locks.mutex("job").try_lock().await.unwrap().is_none());
    let released = async {
        while store.released() != (0, 1) {
            tokio::time::sleep(ms(1)).await;
        }
    };
    tokio::time::timeout(SOON, released).await.expect("its claim is released");
    guard.release().await.unwrap();
}

/// The queue of this client refuses the try, and its own request may still arrive.
#[tokio::test(start_paused = true)]
async fn try_that_its_own_client_refuses_releases_its_unanswered_claim() {
    let (locks, store) = opened();
    let other = another(&store);
    let guard = other.mutex("job").lock().await.unwrap();
    let answer = store.hold_back();
    let mutex = locks.mutex("job");
    let mut tries = pin!(mutex.try_lock());
    assert!((&mut tries).now_or_never().is_none());
    let waits = locks.mutex("job");
    let waits = tokio::spawn(async move { waits.lock().await });
    waiting(&other, "job", 1).await;
    guard.release().await.unwrap();
    let ours = waits.await.unwrap().unwrap();
    let (_, before) = store.released();
    drop(answer);
    assert!(tries.await.unwrap().is_none());
    let released = async {
        while store.released().1 == before {
            tokio::time::sleep(ms(1)).await;
        }
    };
    tokio::time::timeout(SOON, released).await.expect("its claim is released");
    ours.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn wait_without_an_answer_goes_the_longer_way() {
    let (locks, store) = opened();
    drop(store.hold_back());
    let guard = tokio::time::timeout(SOON, locks.mutex("job").lock()).await.expect("soon").unwrap();
    guard.release().await.unwrap();
    settles(&locks, "job").await;
}

#[tokio::test(start_paused = true)]
async fn request_under_way_at_the_deadline_is_the_last_attempt() {
    let (locks, store) = opened();
    let answer = store.hold_back();
    let mutex = locks.mutex("job");
    let mut lock = pin!(mutex.try_lock_for(ms(50)));
    assert!((&mut lock).now_or_never().is_none());
    assert!(tokio::time::timeout(ms(200), &mut lock).await.is_err(), "it may still be granted");
    answer.send(()).unwrap();
    lock.await.unwrap().expect("it was granted").release().await.unwrap();

    let guard = another(&store).mutex("job").lock().await.unwrap();
    let answer = store.hold_back();
    let mut lock = pin!(mutex.try_lock_for(ms(50)));
    assert!(tokio::time::timeout(ms(100), &mut lock).await.is_err(), "it may still be granted");
    answer.send(()).unwrap();
    assert!(lock.await.unwrap().is_none());
    assert_eq!(store.long(), 0);
    guard.release().await.unwrap();

    tokio::time::sleep(ms(1_100)).await;
    let _never = store.hold_back();
    let unanswered = locks.mutex("job").try_lock_for(ms(50)).await.unwrap_err();
    assert_eq!(unanswered.kind(), ErrorKind::OutcomeUnknown);
    settles(&locks, "job").await;
}

#[tokio::test]
async fn panic_of_the_backend_leaves_nothing_and_goes_the_longer_way() {
    let (locks, store) = opened();
    for _ in 0..2 {
        store.panics.store(1, Ordering::SeqCst);
        let guard = tokio::time::timeout(SOON, locks.mutex("job").lock()).await.expect("soon").unwrap();
        guard.release().await.unwrap();
        settles(&locks, "job").await;
    }
    store.panics_later.store(1, Ordering::SeqCst);
    let guard = tokio::time::timeout(SOON, locks.mutex("job").lock()).await.expect("soon").unwrap();
    guard.release().await.unwrap();
    settles(&locks, "job").await;
}

#[test]
fn caller_may_be_polled_by_any_executor() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, store) = runtime.block_on(async { opened() });
    let answer = store.hold_back();
    let answering = runtime.spawn(async move {
        tokio::time::sleep(ms(50)).await;
        answer.send(()).unwrap();
    });
    let guard = block_on(locks.mutex("job").lock()).unwrap();
    block_on(guard.release()).unwrap();
    runtime.block_on(answering).unwrap();
    assert_eq!(store.direct(), 1);
}

#[tokio::test]
async fn permits_of_one_client_are_direct_requests() {
    let (locks, store) = opened();
    let permits = locks.semaphore("pool", 3);
    let guards = [permits.acquire().await.unwrap(), permits.acquire_many(2).await.unwrap()];
    assert_eq!((store.direct(), store.long()), (2, 0));
    assert!(permits.try_acquire().await.unwrap().is_none());
    assert_eq!((store.direct(), store.long()), (2, 0), "this client itself is in the way");
    drop(guards);
    settles(&locks, "pool").await;
}

#[tokio::test]
async fn task_that_locks_directly_in_a_loop_lets_others_run() {
    let (locks, store) = opened();
    let other = tokio::spawn(async {});
    let mut guards = Vec::new();
    for number in 0..1_000 {
        // The answer is there when it is asked for.
        guards.push(locks.mutex(number.to_string()).lock().await.unwrap());
    }
    assert!(other.is_finished());
    assert_eq!(store.direct(), 1_000);
}

/// A refusal is remembered for its resource alone, but for a few that share its place.
#[tokio::test]
async fn other_resources_than_the_busy_one_are_asked_for_directly() {
    let (locks, store) = opened();
    let _guard = another(&store).mutex("job").lock().await.unwrap();
    assert!(locks.mutex("job").try_lock().await.unwrap().is_none());
    let before = store.direct();
    for number in 0..20 {
        locks.mutex(format!("other/{number}")).lock().await.unwrap().release().await.unwrap();
    }
    assert!(store.direct() > before + 10, "{} of 20", store.direct() - before);
}

#[tokio::test]
async fn request_that_the_backend_cannot_send_leaves_nothing_to_release() {
    let (locks, store) = opened();
    store.declines.store(true, Ordering::SeqCst);
    locks.mutex("job").lock().await.unwrap().release().await.unwrap();
    assert!(locks.close(SOON).await);
    assert_eq!((store.direct(), store.long(), store.released().1), (1, 1, 1));
}

/// The caller was not polled while the client closed.
#[tokio::test]
async fn closed_client_sends_no_direct_request() {
    let (locks, store) = opened();
    let mutex = locks.mutex("job");
    let mut lock = pin!(mutex.lock());
    while tokio::task::coop::has_budget_remaining() {
        tokio::task::coop::consume_budget().await;
    }
    assert!((&mut lock).now_or_never().is_none(), "others run first");
    assert!(locks.close(SOON).await);
    assert_eq!(lock.await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(store.direct(), 0);
}

/// A waker that panics: the renewer ends when it calls it.
struct Spiteful;

impl Wake for Spiteful {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics");
    }
}

#[tokio::test(start_paused = true)]
async fn request_in_flight_is_released_when_the_renewal_ends() {
    let (locks, store) = opened();
    let other = another(&store);
    let guard = locks.mutex("dead").max_hold(ms(50)).lock().await.unwrap();
    let _unanswered = store.hold_back();
    let mutex = locks.mutex("job");
    let mut unpolled = pin!(mutex.lock());
    assert!((&mut unpolled).now_or_never().is_none());
    held(&other, "job").await;
    let mut changed = pin!(guard.changed(State::Valid));
    let waker = Arc::new(Spiteful).into();
    assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    settles(&other, "job").await;
    assert_eq!(unpolled.await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn waiter_of_the_same_client_is_not_passed() {
    let (locks, store) = opened();
    let seats = locks.semaphore("seats", 3);
    let held = seats.acquire_many(2).await.unwrap();
    let waiter = locks.semaphore("seats", 3);
    let waiter = tokio::spawn(async move { waiter.acquire_many(2).await });
    waiting(&locks, "seats", 1).await;
    assert!(seats.try_acquire_many(1).await.unwrap().is_none());
    assert!(store.direct() <= 2);
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    settles(&locks, "seats").await;
}

/// Opens another client of the same store; its requests count there.
fn another(store: &Arc<Wrapped<Distant>>) -> Client {
    Client::builder().clock(store.clock.clone()).over(store.clone()).unwrap()
}

fn opened() -> (Client, Arc<Wrapped<Distant>>) {
    Distant::over(MemoryBackend::with_clock)
}

/// A store behind a connection: it decides when a direct request is sent, and the answer may come later or never.
struct Distant {
    memory: MemoryBackend,
    clock: Arc<dyn Clock>,
    /// The answers that are held back, in the order of the requests; a sender that is dropped loses its answer.
    held_back: Mutex<VecDeque<oneshot::Receiver<()>>>,
    direct: AtomicU32,
    long: AtomicU32,
    panics: AtomicU32,
    panics_later: AtomicU32,
    /// The backend cannot send direct requests.
    declines: AtomicBool,
    /// Releases of either kind, and the direct ones among them.
    released: AtomicU32,
    released_directly: AtomicU32,
    release_panics: AtomicU32,
    /// The store loses the claim of the next direct release, and refuses the release.
    forgets: AtomicBool,
    release_held_back: Mutex<VecDeque<oneshot::Receiver<()>>>,
    /// Called once, before a direct request takes effect.
    before_it_asks: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Distant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Distant")
    }
}

impl Distant {
    /// Opens a store, and a client of it, in the time of the runtime.
    fn over(memory: impl FnOnce(Arc<dyn Clock>) -> MemoryBackend) -> (Client, Arc<Wrapped<Distant>>) {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let store = Arc::new(Wrapped(Distant {
            memory: memory(clock.clone()),
            clock,
            held_back: Mutex::default(),
            direct: AtomicU32::new(0),
            long: AtomicU32::new(0),
            panics: AtomicU32::new(0),
            panics_later: AtomicU32::new(0),
            declines: AtomicBool::new(false),
            released: AtomicU32::new(0),
            released_directly: AtomicU32::new(0),
            release_panics: AtomicU32::new(0),
            forgets: AtomicBool::new(false),
            release_held_back: Mutex::default(),
            before_it_asks: Mutex::default(),
        }));
        (another(&store), store)
    }

    /// Holds the next answer back until something is sent.
    fn hold_back(&self) -> oneshot::Sender<()> {
        let (sender, receiver) = oneshot::channel();
        self.held_back.lock().unwrap().push_back(receiver);
        sender
    }

    /// Holds the answer to the next direct release back until something is sent, or loses it.
    fn hold_release_back(&self) -> oneshot::Sender<()> {
        let (sender, receiver) = oneshot::channel();
        self.release_held_back.lock().unwrap().push_back(receiver);
        sender
    }

    fn released(&self) -> (u32, u32) {
        (self.released_directly.load(Ordering::SeqCst), self.released.load(Ordering::SeqCst))
    }

    fn direct(&self) -> u32 {
        self.direct.load(Ordering::SeqCst)
    }

    fn long(&self) -> u32 {
        self.long.load(Ordering::SeqCst)
    }
}

fn fails(left: &AtomicU32) {
    let left = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    assert!(left.is_err(), "after the decision (spiteful)");
}

impl DirectRequests for Distant {
    fn ask_directly(&self, claim: &Claim, asked_at: Moment) -> Option<DirectAnswer> {
        self.direct.fetch_add(1, Ordering::SeqCst);
        let before = self.before_it_asks.lock().unwrap().take();
        if let Some(before) = before {
            before();
        }
        if self.declines.load(Ordering::SeqCst) {
            return None;
        }
        let reply = self.memory.grant_now(claim, asked_at);
        fails(&self.panics);
        let held_back = self.held_back.lock().unwrap().pop_front();
        let panics = self.panics_later.swap(0, Ordering::SeqCst);
        Some(Box::pin(async move {
            fails(&AtomicU32::new(panics));
            match held_back {
                None => reply,
                Some(held_back) => held_back.await.map_or(DirectReply::Unknown, |()| reply),
            }
        }))
    }

    fn release_directly(&self, claim: &Claim) -> Option<DirectRelease> {
        let release = self.memory.release_now(claim)?;
        if self.forgets.swap(false, Ordering::SeqCst) {
            let text = "another server decides by now, and does not know the claim";
            return Some(Box::pin(async move { Release::Unknown(Failure::unavailable(text)) }));
        }
        self.released.fetch_add(1, Ordering::SeqCst);
        self.released_directly.fetch_add(1, Ordering::SeqCst);
        fails(&self.release_panics);
        let held_back = self.release_held_back.lock().unwrap().pop_front();
        Some(Box::pin(async move {
            match held_back {
                None => release,
                Some(held_back) => match held_back.await {
                    Ok(()) => release,
                    Err(_) => Release::Unknown(Failure::unanswered("the answer was lost")),
                },
            }
        }))
    }
}

#[async_trait]
impl Around for Distant {
    fn inner(&self) -> &dyn Backend {
        &self.memory
    }

    fn direct_requests(&self) -> Option<&dyn DirectRequests> {
        Some(self)
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        self.long.fetch_add(1, Ordering::SeqCst);
        self.memory.contend(claim, patience).await
    }

    async fn release(&self, batch: &[&Claim]) -> Vec<Release> {
        let released = self.memory.release(batch).await;
        self.released.fetch_add(1, Ordering::SeqCst);
        released
    }
}

const SOON: Duration = Duration::from_secs(10);
