//! The signal of a loss: it comes by the local clock, before the server can grant to another client.

use crate::common;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::{Store, ms};
use leasehold::backend::{Backend, Claim, Clock, Failure, LossCause, LossTrigger, Moment, Patience, Step};
use leasehold::layer::{Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{BreakOutcome, Client, ErrorKind, Event, EventSubscriber, State, SystemClock, TokioClock};
use leasehold_conformance::{Around, Wrapped};

/// Under these faults of renewals and releases, the lease ends by the holder's clock before its successor is
/// granted the lock. Returns how long after that end the task that waits for the loss was woken at worst.
async fn lease_ends_before_the_successor_is_granted(
    open: fn() -> Store,
    clock: Arc<dyn Clock>,
    faults: &[(Verb, Mode)],
) -> Duration {
    let mut latest = Duration::ZERO;
    for round in 0..5 {
        let store = open();
        let (first, wire) = store.client();
        let (second, _) = store.client();
        let guard = first.mutex("job").ttl(ms(240)).lock().await.unwrap();
        let fence = guard.fence();
        for (verb, mode) in faults {
            wire.set(*verb, *mode);
        }
        // Nothing extends the lease any more, so the guard ends here by the clock.
        let end = clock.now().after(guard.remaining());
        let successor = tokio::spawn({
            let clock = clock.clone();
            async move {
                let guard = second.mutex("job").ttl(ms(240)).lock().await.unwrap();
                (clock.now(), guard.fence())
            }
        });
        assert_eq!(guard.lost().await, LossCause::Expired);
        latest = latest.max(clock.now().since(end));
        let (granted, next_fence) = successor.await.unwrap();
        assert!(end < granted, "round {round}: valid until {end:?}, granted {granted:?}");
        assert!(next_fence > fence);
        assert!(matches!(guard.check().unwrap_err().kind(), ErrorKind::Lost(LossCause::Expired)));
        wire.set_all(Mode::Pass);
        let error = guard.release().await.unwrap_err();
        assert!(error.is_lost(), "a release after the loss never says Ok: {error}");
    }
    latest
}

const HANGS: &[(Verb, Mode)] = &[(Verb::Renew, Mode::Hang)];
const NETWORK_STOPS: &[(Verb, Mode)] =
    &[(Verb::Renew, Mode::LoseRequest), (Verb::Release, Mode::LoseRequest)];
const IS_DOWN: &[(Verb, Mode)] = &[(Verb::Renew, Mode::Refuse)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs() {
    lease_ends_before_the_successor_is_granted(Store::new, Arc::new(SystemClock), HANGS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_stops() {
    lease_ends_before_the_successor_is_granted(Store::new, Arc::new(SystemClock), NETWORK_STOPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_down() {
    lease_ends_before_the_successor_is_granted(Store::new, Arc::new(SystemClock), IS_DOWN).await;
}

#[tokio::test(start_paused = true)]
async fn task_that_waits_for_the_loss_is_woken_soon() {
    for faults in [HANGS, NETWORK_STOPS, IS_DOWN] {
        let clock = Arc::new(TokioClock::new());
        let latest = lease_ends_before_the_successor_is_granted(Store::in_virtual_time, clock, faults).await;
        assert!(latest < ms(50), "{faults:?}: {latest:?} after the end");
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_that_an_answer_took_is_taken_off() {
    let (locks, wire) = Store::in_virtual_time().client();
    wire.set(Verb::Contend, Mode::LateReply(ms(200)));
    wire.set(Verb::Renew, Mode::LoseRequest);
    let guard = locks.mutex("job").ttl(ms(500)).lock().await.unwrap();
    assert!(guard.remaining() <= ms(300), "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn the_time_that_an_answer_to_a_renewal_took_is_taken_off() {
    let (locks, wire) = Store::in_virtual_time().client();
    let (ttl, late) = (ms(3_000), ms(900));
    wire.set(Verb::Renew, Mode::LateReply(late));
    let guard = locks.mutex("job").ttl(ttl).lock().await.unwrap();
    let begun = tokio::time::Instant::now();
    let mut before = guard.remaining();
    // Until a confirmation has moved the end.
    let renewed = loop {
        assert!(begun.elapsed() < ms(60_000), "it was never renewed");
        tokio::time::sleep(ms(5)).await;
        let left = guard.remaining();
        if left > before {
            break left;
        }
        before = left;
    };
    assert!(renewed <= ttl - late, "{renewed:?} are left after an answer that took {late:?}");
}

#[tokio::test(start_paused = true)]
async fn grant_that_expired_before_it_arrived_is_never_used() {
    let store = Store::in_virtual_time();
    let losses = Arc::new(Losses::default());
    let (locks, wire) = store.observed(losses.clone());
    wire.set(Verb::Contend, Mode::LateReply(ms(300)));
    let late = locks.mutex("job").ttl(ms(200)).try_lock_for(ms(1000)).await;
    assert!(late.unwrap().is_none());
    assert!(locks.mutex("job").ttl(ms(200)).try_lock().await.unwrap().is_none());
    wire.set(Verb::Contend, Mode::Pass);
    common::settles(&locks, "job").await;
    assert_eq!(losses.take(), [], "nobody had it, so nobody lost it");
}

/// The losses that were reported.
#[derive(Debug, Default)]
struct Losses(Mutex<Vec<LossCause>>);

impl Losses {
    fn take(&self) -> Vec<LossCause> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl EventSubscriber for Losses {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Lost { cause, .. } = event {
            self.0.lock().unwrap().push(*cause);
        }
    }
}

/// The renewer has the lease, and has not been notified of the release.
#[test]
fn lock_released_at_the_end_of_its_runtime_is_not_lost() {
    let losses = Arc::new(Losses::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let locks = runtime.block_on(async {
        let (locks, _) = Store::new().observed(losses.clone());
        let guard = locks.mutex("job").lock().await.unwrap();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        guard.release().await.unwrap();
        locks
    });
    drop(runtime);
    assert_eq!(losses.take(), []);
    drop(locks);
}

#[tokio::test(start_paused = true)]
async fn suspicion_precedes_loss_and_ends_when_the_server_replies() {
    let (locks, wire) = Store::in_virtual_time().client();
    let guard = locks.mutex("job").ttl(ms(900)).lock().await.unwrap();
    wire.set(Verb::Renew, Mode::LoseRequest);
    assert_eq!(guard.changed(State::Valid).await, State::Suspect);
    assert!(guard.check().is_ok(), "suspect is still held");
    wire.set(Verb::Renew, Mode::Pass);
    assert_eq!(guard.changed(State::Suspect).await, State::Valid);
    tokio::time::sleep(ms(1200)).await;
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn overdue_answer_to_a_renewal_is_suspect_before_the_lease_ends() {
    let (locks, wire) = Store::in_virtual_time().client();
    let guard = locks.mutex("job").ttl(ms(3_000)).lock().await.unwrap();
    wire.set(Verb::Renew, Mode::Hang);
    assert_eq!(guard.changed(State::Valid).await, State::Suspect);
    assert!(guard.check().is_ok() && guard.remaining() > Duration::ZERO, "suspect is still held");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_extends_nothing_locally() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.client();
    let guard = locks.mutex("job").ttl(ms(300)).lock().await.unwrap();
    wire.set(Verb::Renew, Mode::LoseReply);
    let lost = tokio::time::timeout(ms(5000), guard.lost()).await;
    assert_eq!(lost.expect("an unanswered renewal extended the lock"), LossCause::Expired);
    // The server has been renewed all the time; the holder did not know, and must not believe it. The
    // claim that the server still has is released at once, while the guard lives on.
    common::settles(&locks, "job").await;
    assert!(guard.release().await.unwrap_err().is_lost());
}

/// Breaks the lock of `name`, as an operator would.
async fn break_lock(operator: &Client, name: &str) {
    for holder in operator.inspect(name).await.unwrap().holders {
        let outcome = operator.break_claim(name, &holder).await.unwrap();
        assert!(matches!(outcome, BreakOutcome::Ended { .. }), "{outcome:?}");
    }
}

/// A request that was not sent cannot have released it.
#[tokio::test(start_paused = true)]
async fn release_after_refused_attempts_reports_a_lock_that_was_lost_before() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.client();
    let (other, _) = store.client();
    let guard = locks.mutex("job").lock().await.unwrap();
    break_lock(&other, "job").await;
    let successor = other.mutex("job").lock().await.unwrap();
    wire.set(Verb::Release, Mode::Refuse);
    let releasing = tokio::spawn(guard.release());
    tokio::time::sleep(ms(200)).await;
    assert!(wire.calls(Verb::Release) > 1, "it was tried more than once");
    wire.set(Verb::Release, Mode::Pass);
    let error = releasing.await.unwrap().unwrap_err();
    assert!(error.is_lost(), "{error}");
    successor.release().await.unwrap();
}

/// It was held when its release began, and its lease ended before the store could be reached.
#[tokio::test(start_paused = true)]
async fn release_that_outlasts_its_lease_is_no_loss() {
    let store = Store::in_virtual_time();
    let (locks, wire) = store.client();
    let guard = locks.mutex("job").ttl(ms(400)).lock().await.unwrap();
    wire.set(Verb::Release, Mode::Refuse);
    let releasing = tokio::spawn(guard.release());
    let (other, _) = store.client();
    other.mutex("job").lock().await.unwrap().release().await.unwrap();
    wire.set(Verb::Release, Mode::Pass);
    match releasing.await.unwrap() {
        Ok(()) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn guard_that_lost_its_claim_as_a_writer_stays_lost() {
    let store = Store::in_virtual_time();
    let (locks, _) = store.client();
    let (other, _) = store.client();
    let mut guard = locks.rwlock("job").ttl(ms(600)).upgradable_read().await.unwrap();
    guard.upgrade().await.unwrap();
    let held = other.inspect("job").await.unwrap().holders;
    let writer = held.iter().max_by_key(|holder| holder.share.weight()).unwrap();
    other.break_claim("job", writer).await.unwrap();
    guard.lost().await;
    for _ in 0..2 {
        let error = guard.downgrade().await.unwrap_err();
        assert!(error.is_lost(), "{error}");
        assert!(guard.check().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_the_server_forgot_is_lost_at_the_next_renewal() {
    let store = Store::in_virtual_time();
    let (locks, _) = store.client();
    let (operator, _) = store.client();
    let guard = locks.mutex("job").ttl(ms(300)).lock().await.unwrap();
    let holder = operator.inspect("job").await.unwrap().holders.remove(0);
    assert_eq!(holder.id.tag(), guard.tag());
    let broken = BreakOutcome::Ended { also_released: Vec::new() };
    assert_eq!(operator.break_claim("job", &holder).await.unwrap(), broken);
    assert_eq!(operator.break_claim("job", &holder).await.unwrap(), BreakOutcome::Gone, "it is broken once");
    assert_eq!(guard.lost().await, LossCause::Gone);
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_the_moment_the_lock_is_lost() {
    let (locks, wire) = Store::in_virtual_time().client();
    let guard = locks.mutex("job").ttl(ms(200)).lock().await.unwrap();
    wire.set(Verb::Renew, Mode::Hang);
    let error = guard.run(std::future::pending::<()>()).await.unwrap_err();
    assert!(error.is_lost());
    // What would be ready at once is not even polled any more.
    let error = guard.run(async { unreachable!("polled after the loss") }).await.unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::Lost(LossCause::Expired), "run"));
}

#[tokio::test]
async fn a_process_that_slept_past_its_lease_sees_the_loss_first() {
    let (locks, _) = Store::new().client();
    let guard = locks.mutex("job").ttl(ms(100)).lock().await.unwrap();
    // One thread runs everything, so nothing of the engine runs meanwhile: as if the process was stopped.
    std::thread::sleep(ms(150));
    assert_eq!(guard.state(), State::Lost(LossCause::Expired));
    assert!(guard.run(async { unreachable!("polled after the loss") }).await.is_err());
}

/// A clock that counts the time for which the machine is suspended, which timers do not.
#[derive(Debug)]
struct SuspendClock {
    timers: TokioClock,
    suspended: Mutex<Duration>,
}

impl Clock for SuspendClock {
    fn now(&self) -> Moment {
        self.timers.now().after(*self.suspended.lock().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn lock_acquired_right_after_a_suspend_is_renewed_in_time() {
    let clock = Arc::new(SuspendClock { timers: TokioClock::new(), suspended: Mutex::default() });
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()));
    let locks = Client::builder().clock(clock.clone()).over(store).unwrap();
    let before = locks.mutex("before").lock().await.unwrap();
    // The renewer looks again in a second, by its timer.
    tokio::time::sleep(ms(10)).await;
    *clock.suspended.lock().unwrap() = Duration::from_secs(3_600);
    let after = locks.mutex("after").ttl(ms(300)).lock().await.unwrap();
    tokio::time::sleep(ms(900)).await;
    after.check().unwrap();
    assert!(before.check().unwrap_err().is_lost());
}

/// Blocks the thread past a lease in its first poll, as a stopped process would, and must not be polled
/// again.
struct Overslept(bool);

impl Future for Overslept {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        assert!(!self.0, "polled after the loss");
        self.0 = true;
        std::thread::sleep(ms(150));
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[tokio::test]
async fn work_that_wakes_up_past_its_lease_does_nothing_more() {
    let (locks, _) = Store::new().client();
    let guard = locks.mutex("job").ttl(ms(100)).lock().await.unwrap();
    assert!(guard.run(Overslept(false)).await.unwrap_err().is_lost());
}

#[tokio::test(start_paused = true)]
async fn suspect_lock_is_not_handed_off() {
    let tuning = leasehold::Tuning::default().local_handoff_time(ms(60_000));
    let (locks, wire) = Store::in_virtual_time().tuned(tuning);
    let guard = locks.mutex("job").ttl(ms(900)).lock().await.unwrap();
    let next = tokio::spawn({
        let mutex = locks.mutex("job").ttl(ms(900));
        async move { mutex.lock().await.unwrap() }
    });
    tokio::task::yield_now().await;
    wire.set(Verb::Renew, Mode::Refuse);
    assert_eq!(guard.changed(State::Valid).await, State::Suspect);
    wire.set(Verb::Renew, Mode::Pass);
    drop(guard);
    let next = next.await.unwrap();
    assert_eq!(next.fence().unwrap().sub, 0, "it was granted by the server, not passed on");
}

#[tokio::test(start_paused = true)]
async fn lost_lock_with_a_live_guard_blocks_no_other_client() {
    let store = Store::in_virtual_time();
    let (locks, _) = store.client();
    let (operator, _) = store.client();
    let mutex = locks.mutex("job").ttl(ms(300));
    let lost = mutex.lock().await.unwrap();
    let wait = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await.unwrap() }
    });
    tokio::task::yield_now().await;
    let holder = operator.inspect("job").await.unwrap().holders.remove(0);
    operator.break_claim("job", &holder).await.unwrap();
    let next = tokio::time::timeout(ms(5000), wait).await.expect("the queue continues").unwrap();
    assert!(lost.check().is_err());
    assert!(lost.release().await.unwrap_err().is_lost());
    next.check().expect("the release of a lost lock does not affect the next holder");
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lock_over_max_hold_is_free_for_others_at_once() {
    let store = Store::in_virtual_time();
    let (locks, _) = store.client();
    let (other, _) = store.client();
    let guard = locks.mutex("job").max_hold(ms(100)).lock().await.unwrap();
    // The ttl is thirty seconds: it is not the end of the lease that frees it.
    other.mutex("job").try_lock_for(ms(5000)).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(guard.lost().await, LossCause::MaxHold);
}

#[tokio::test(start_paused = true)]
async fn handed_off_hold_ends_at_its_own_max_hold() {
    let (locks, _) = Store::in_virtual_time().client();
    let first = locks.mutex("job").lock().await.unwrap();
    let limited = locks.mutex("job").max_hold(ms(100));
    let waiting = tokio::spawn(async move { limited.lock().await });
    tokio::time::sleep(ms(20)).await;
    first.release().await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    // The next renewal would be ten seconds later.
    let cause = tokio::time::timeout(ms(2000), second.lost()).await.expect("notified at its limit");
    assert_eq!(cause, LossCause::MaxHold);
}

#[tokio::test]
async fn a_ttl_and_a_limit_without_end_leave_the_renewer_alive() {
    // A store that watches processes gives a ttl no bound.
    let dir = tempfile::tempdir().unwrap();
    let locks = Client::open(&format!("file://{}", dir.path().display())).await.unwrap();
    let endless = locks.mutex("a").ttl(Duration::MAX).max_hold(Duration::MAX).lock().await.unwrap();
    let limited = locks.mutex("b").max_hold(ms(100)).lock().await.unwrap();
    let cause = tokio::time::timeout(ms(10_000), limited.lost()).await.expect("the limit is watched");
    assert_eq!(cause, LossCause::MaxHold);
    endless.check().unwrap();
    assert!(locks.close(ms(10_000)).await, "and everything is released");
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_at_its_business_limit_although_it_is_renewed() {
    let (locks, _) = Store::in_virtual_time().client();
    let mutex = locks.mutex("job").ttl(ms(200)).max_hold(ms(500));
    let guard = mutex.lock().await.unwrap();
    tokio::time::sleep(ms(300)).await;
    assert!(guard.check().is_ok(), "it was renewed past its ttl");
    assert_eq!(guard.lost().await, LossCause::MaxHold);
    assert!(guard.release().await.unwrap_err().is_lost());
    mutex.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn held_locks_are_renewed_in_batches_and_never_lost_falsely() {
    let (locks, wire) = Store::in_virtual_time().client();
    let mut guards = Vec::new();
    for n in 0..500 {
        guards.push(locks.mutex(format!("job/{n}")).ttl(ms(1500)).lock().await.unwrap());
    }
    tokio::time::sleep(ms(3200)).await;
    assert!(guards.iter().all(|guard| guard.state() == State::Valid));
    let calls = wire.calls(Verb::Renew);
    // About six rounds of five hundred leases: three thousand requests, if each was renewed alone.
    assert!((4..=150).contains(&calls), "{calls} renewal requests");
    for guard in guards {
        guard.release().await.unwrap();
    }
}

/// A test of a user's, in the way that tokio offers: it must not pass for want of time.
#[tokio::test(start_paused = true)]
async fn hung_renewal_is_a_loss_under_paused_time() {
    let (locks, wire) = Store::new().client();
    let guard = locks.mutex("job").ttl(ms(30_000)).lock().await.unwrap();
    wire.set(Verb::Renew, Mode::Hang);
    let mut steps = 0;
    let work = async {
        for _ in 0..20 {
            tokio::time::sleep(ms(10_000)).await;
            steps += 1;
        }
    };
    let ran = guard.run(work).await;
    assert!(ran.is_err_and(|error| error.is_lost()), "{steps} steps were done");
    assert!(steps <= 3, "{steps} steps");
}

#[tokio::test(start_paused = true)]
async fn renewed_lock_stays_held_under_paused_time() {
    let (locks, wire) = Store::new().client();
    let guard = locks.mutex("job").ttl(ms(30_000)).lock().await.unwrap();
    guard.run(tokio::time::sleep(ms(600_000))).await.unwrap();
    let renewals = wire.calls(Verb::Renew);
    assert!((40..=70).contains(&renewals), "{renewals}: three for each ttl");
    guard.release().await.unwrap();
}

/// The memory store, whose grants are tied to something that only the backend sees, as a session is.
#[derive(Debug)]
struct Watching(MemoryBackend, Mutex<Vec<LossTrigger>>);

impl Watching {
    /// Ends what a grant is tied to: the first of them, or the last.
    fn ends(&self, first: bool) {
        let trigger = {
            let mut triggers = self.1.lock().unwrap();
            if first { Some(triggers.remove(0)) } else { triggers.pop() }
        };
        trigger.unwrap().fire(LossCause::SessionEnded);
    }
}

#[async_trait::async_trait]
impl Around for Watching {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn contend(&self, claim: &Claim, patience: &Patience) -> Result<Step, Failure> {
        let step = self.0.contend(claim, patience).await?;
        let Step::Granted(grant) = step else { return Ok(step) };
        let (trigger, signal) = LossTrigger::new();
        self.1.lock().unwrap().push(trigger);
        Ok(Step::Granted(grant.lost(Some(signal))))
    }
}

#[tokio::test(start_paused = true)]
async fn loss_that_the_backend_sees_is_reported_and_released_at_once() {
    let clock = Arc::new(TokioClock::new());
    let store = Watching(MemoryBackend::with_clock(clock.clone()), Mutex::default());
    let store = Arc::new(Wrapped(store));
    let locks = Client::builder().clock(clock).over(store.clone()).unwrap();
    // Before the task that renews has seen the lease, and long after.
    for held_for in [ms(0), ms(3_000)] {
        let guards = [locks.mutex("a").lock().await.unwrap(), locks.mutex("b").lock().await.unwrap()];
        tokio::time::sleep(held_for).await;
        let cause = LossCause::SessionEnded;
        store.ends(true);
        assert_eq!(guards[0].state(), State::Lost(cause), "the call reports it");
        guards[1].check().unwrap();
        tokio::time::sleep(ms(1)).await;
        assert!(locks.inspect("a").await.unwrap().holders.is_empty(), "after {held_for:?}");
        store.ends(false);
        assert_eq!(tokio::time::timeout(ms(1), guards[1].lost()).await, Ok(cause));
        assert!(guards.map(|guard| guard.check().is_err()) == [true, true]);
    }
}
