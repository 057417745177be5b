//! Locks that linger: a released lock stays with the process for a while, and its next use is free.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use crate::common::{ms, settles, waiting};
use leasehold::backend::ManualClock;
use leasehold::layer::{Fault, Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{
    Client, ErrorKind, Event, EventSubscriber, Fence, Mutex, Note, Owner, State, TokioClock, Tuning,
};
use tokio::time::Instant;

const LINGER: Duration = ms(1_000);
const TTL: Duration = ms(9_000);

/// A store in virtual time, whose clock stands still when nothing happens.
struct World(Arc<MemoryBackend>);

impl World {
    fn new() -> World {
        World(Arc::new(MemoryBackend::with_clock(Arc::new(TokioClock::new()))))
    }

    /// A store that notifies nobody of waiters.
    fn polling() -> World {
        World(Arc::new(MemoryBackend::with_clock(Arc::new(TokioClock::new())).polling()))
    }

    fn client(&self) -> (Client, Arc<Fault>) {
        let wire = Arc::new(Fault::over(self.0.clone()));
        let builder = Client::builder().clock(Arc::new(TokioClock::new()));
        (builder.over(wire.clone()).unwrap(), wire)
    }

    fn tuned(&self, tuning: Tuning) -> (Client, Arc<Fault>) {
        let wire = Arc::new(Fault::over(self.0.clone()));
        let builder = Client::builder().clock(Arc::new(TokioClock::new())).tuning(tuning);
        (builder.over(wire.clone()).unwrap(), wire)
    }
}

fn job(locks: &Client) -> Mutex {
    locks.mutex("job").ttl(TTL).linger(LINGER)
}

/// Lets it be used once, so that it lingers from here on.
async fn used(lock: &Mutex) -> Fence {
    let guard = lock.lock().await.unwrap();
    let fence = guard.fence().unwrap();
    guard.release().await.unwrap();
    fence
}

async fn is_held(locks: &Client) -> bool {
    !locks.inspect("job").await.unwrap().holders.is_empty()
}

/// Lets everything that is due now happen.
async fn settle() {
    tokio::time::sleep(ms(20)).await;
}

#[tokio::test(start_paused = true)]
async fn next_use_sends_nothing_and_its_fence_rises() {
    let (locks, wire) = World::new().client();
    let lock = job(&locks);
    let first = used(&lock).await;
    let mut last = first;
    for round in 1..=1_000 {
        let guard = match round % 3 {
            0 => lock.lock().await.unwrap(),
            1 => lock.try_lock().await.unwrap().expect("it lingers"),
            _ => lock.try_lock_for(ms(50)).await.unwrap().expect("it lingers"),
        };
        let fence = guard.fence().unwrap();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        if round % 2 == 0 { guard.release().await.unwrap() } else { drop(guard) }
    }
    assert_eq!(last, Fence { sub: 1_000, ..first });
    assert_eq!((wire.calls(Verb::Contend), wire.calls(Verb::Release)), (1, 0));
    assert!(is_held(&locks).await, "an observer sees a holder");
}

#[tokio::test(start_paused = true)]
async fn next_use_needs_one_poll() {
    let (locks, _) = World::new().client();
    let lock = job(&locks);
    used(&lock).await;
    for _ in 0..3 {
        let mut locking = std::pin::pin!(lock.lock());
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(locking.as_mut().poll(cx))).await;
        let std::task::Poll::Ready(guard) = polled else { panic!("it waits") };
        drop(guard.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn linger_is_off_unless_set() {
    let (locks, wire) = World::new().client();
    let lock = locks.mutex("job");
    used(&lock).await;
    used(&lock.clone().linger(Duration::ZERO)).await;
    assert_eq!((wire.calls(Verb::Contend), wire.calls(Verb::Release)), (2, 2));
    assert!(!is_held(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn linger_longer_than_the_ttl_is_refused() {
    let (locks, wire) = World::new().client();
    let refused = locks.mutex("job").ttl(TTL).linger(TTL + ms(1)).lock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("linger"), "{refused}");
    assert_eq!(wire.calls(Verb::Contend), 0);
    used(&locks.mutex("job").ttl(TTL).linger(TTL)).await;
}

#[tokio::test(start_paused = true)]
async fn unused_lock_is_released_when_the_time_is_over() {
    let (locks, wire) = World::new().client();
    used(&job(&locks)).await;
    tokio::time::sleep(LINGER - ms(10)).await;
    assert!(is_held(&locks).await);
    settle().await;
    assert!(!is_held(&locks).await);
    assert_eq!(wire.calls(Verb::Release), 1);
    settles(&locks, "job").await;
}

/// On a store that notifies nobody, another client waits for at most the linger time since the first release.
#[tokio::test(start_paused = true)]
async fn another_process_waits_for_at_most_the_linger_time() {
    let world = World::polling();
    let ((busy, _), (other, _)) = (world.client(), world.client());
    let lock = job(&busy);
    used(&lock).await;
    let released = Instant::now();
    let user = tokio::spawn(async move {
        loop {
            let guard = lock.lock().await.unwrap();
            tokio::time::sleep(ms(1)).await;
            drop(guard);
            tokio::time::sleep(ms(1)).await;
        }
    });
    let guard = other.mutex("job").lock().await.unwrap();
    let waited = released.elapsed();
    // A use of one millisecond, and the pause of a waiter that polls.
    assert!(waited <= LINGER + ms(1) + ms(300), "it waited {waited:?}");
    drop(guard);
    user.abort();
}

/// A store without a queue gives a lock to the first that asks after a release, which is this process itself.
#[tokio::test(start_paused = true)]
async fn nothing_lingers_where_the_store_keeps_no_queue() {
    let unordered = || MemoryBackend::with_clock(Arc::new(TokioClock::new())).unordered();
    for store in [unordered(), unordered().polling()] {
        let world = World(Arc::new(store));
        let ((busy, wire), (other, _)) = (world.client(), world.client());
        let user = tokio::spawn({
            let lock = job(&busy);
            async move {
                loop {
                    used(&lock).await;
                    tokio::time::sleep(ms(1)).await;
                }
            }
        });
        tokio::time::sleep(ms(100)).await;
        let began = Instant::now();
        let waiting = other.mutex("job");
        let theirs = tokio::time::timeout(LINGER + ms(300), waiting.lock()).await;
        assert!(theirs.is_ok(), "it waits for {:?}", began.elapsed());
        assert!(wire.calls(Verb::Release) > 1);
        user.abort();
    }
}

/// On a store that notifies, a waiter ends it at once.
#[tokio::test(start_paused = true)]
async fn waiter_of_another_process_ends_it() {
    let world = World::new();
    let ((locks, _), (other, _)) = (world.client(), world.client());
    used(&job(&locks)).await;
    tokio::time::sleep(ms(200)).await;
    let began = Instant::now();
    let guard = other.mutex("job").lock().await.unwrap();
    assert!(began.elapsed() <= ms(20), "{:?}", began.elapsed());
    drop(guard);
    // The same while a task uses it: its release goes to the server.
    let lock = job(&locks);
    used(&lock).await;
    let guard = lock.lock().await.unwrap();
    let waiter = tokio::spawn(async move { other.mutex("job").lock().await.unwrap() });
    waiting(&locks, "job", 1).await;
    settle().await;
    guard.release().await.unwrap();
    let released = Instant::now();
    drop(waiter.await.unwrap());
    assert!(released.elapsed() <= ms(1), "{:?}", released.elapsed());
}

/// A waiter that came before the first release is found by the first look.
#[tokio::test(start_paused = true)]
async fn waiter_that_waits_already_is_served_soon() {
    let world = World::new();
    let ((locks, _), (other, _)) = (world.client(), world.client());
    let guard = job(&locks).lock().await.unwrap();
    let waiter = tokio::spawn(async move { other.mutex("job").lock().await.unwrap() });
    waiting(&locks, "job", 1).await;
    guard.release().await.unwrap();
    let released = Instant::now();
    drop(waiter.await.unwrap());
    assert!(released.elapsed() <= ms(20), "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn other_request_of_this_process_ends_it() {
    let (locks, wire) = World::new().client();
    let noted = |lock: Mutex| lock.note(Note::new("another").unwrap());
    used(&job(&locks)).await;
    let began = Instant::now();
    noted(job(&locks)).lock().await.unwrap().release().await.unwrap();
    // A request without a wait gets it as well.
    assert!(job(&locks).try_lock().await.unwrap().is_some());
    settle().await;
    assert!(noted(job(&locks)).try_lock().await.unwrap().is_some());
    settle().await;
    assert!(
        locks.mutex("job").try_lock().await.unwrap().is_some(),
        "a lock that does not linger is another one"
    );
    assert!(began.elapsed() < ms(100), "nothing waits for the end of the time");
    assert_eq!(wire.calls(Verb::Contend), 5);
}

/// A lock that nobody uses has no holder, also while the store is asked to release it.
#[tokio::test(start_paused = true)]
async fn try_during_the_release_of_an_unused_lock_gets_it() {
    let (locks, wire) = World::new().client();
    wire.set(Verb::Release, Mode::LateReply(ms(100)));
    used(&job(&locks)).await;
    tokio::time::sleep(LINGER + ms(50)).await;
    assert_eq!(wire.calls(Verb::Release), 1, "its time is over, and the store has not answered");
    assert!(job(&locks).try_lock().await.unwrap().is_some());
    settle().await;
    // Two that ask at once, where the first one has it released.
    let lock = locks.rwlock("data").ttl(TTL).linger(LINGER);
    drop(lock.write().await.unwrap());
    let (one, two) = tokio::join!(lock.try_read(), lock.try_read());
    assert!(one.unwrap().is_some() && two.unwrap().is_some());
    // The same for a reader that becomes a writer beside a reader that lingers.
    let mut upgradable = lock.upgradable_read().await.unwrap();
    drop(lock.read().await.unwrap());
    assert!(upgradable.try_upgrade().await.unwrap(), "no other task reads");
    upgradable.release().await.unwrap();
    // What a task uses is in the way at once.
    let (guard, began) = (lock.write().await.unwrap(), Instant::now());
    assert!(lock.try_read().await.unwrap().is_none() && began.elapsed().is_zero());
    drop(guard);
}

/// An unused permit does not keep this process itself from another one.
#[tokio::test(start_paused = true)]
async fn try_that_fits_beside_an_unused_permit_has_it_released_first() {
    let world = World::new();
    let ((locks, _), (other, _)) = (world.client(), world.client());
    let permits = |locks: &Client| locks.semaphore("job", 3).ttl(TTL).linger(LINGER);
    drop(permits(&locks).acquire().await.unwrap());
    let _theirs = permits(&other).try_acquire_many(2).await.unwrap().unwrap();
    let noted = permits(&locks).note(Note::new("another").unwrap());
    assert!(noted.try_acquire().await.unwrap().is_some(), "only an unused permit is in the way");
}

#[tokio::test(start_paused = true)]
async fn writer_ends_the_rest_of_readers_and_so_does_an_upgrade() {
    let (locks, _) = World::new().client();
    let lock = locks.rwlock("job").ttl(TTL).linger(LINGER);
    let began = Instant::now();
    let readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
    drop(readers);
    assert_eq!(locks.inspect("job").await.unwrap().holders.len(), 2);
    assert!(lock.try_write().await.unwrap().is_some());
    settle().await;
    drop(lock.read().await.unwrap());
    drop(lock.write().await.unwrap());
    drop(lock.read().await.unwrap());
    let mut upgradable = lock.upgradable_read().await.unwrap();
    drop(lock.read().await.unwrap());
    upgradable.upgrade().await.unwrap();
    upgradable.release().await.unwrap();
    assert!(began.elapsed() < ms(100), "{:?}", began.elapsed());
    assert!(!is_held(&locks).await, "an upgradable guard does not linger");
}

#[tokio::test(start_paused = true)]
async fn permits_linger_by_their_number() {
    let (locks, wire) = World::new().client();
    let lock = locks.semaphore("job", 3).ttl(TTL).linger(LINGER);
    let began = Instant::now();
    drop((lock.acquire().await.unwrap(), lock.acquire_many(2).await.unwrap()));
    let again = (lock.acquire().await.unwrap(), lock.acquire_many(2).await.unwrap());
    assert_eq!(wire.calls(Verb::Contend), 2);
    drop(again);
    // All of them are in the way.
    drop(lock.acquire_many(3).await.unwrap());
    assert!(began.elapsed() < ms(100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn closing_releases_it() {
    let world = World::new();
    let ((locks, _), (other, _)) = (world.client(), world.client());
    used(&job(&locks)).await;
    assert!(locks.close(ms(500)).await);
    assert!(!is_held(&other).await);
    assert_eq!(job(&locks).lock().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn drop_of_the_last_handle_releases_it() {
    let (world, leases) = (World::new(), Arc::<Leases>::default());
    let (other, _) = world.client();
    let locks = Client::builder().clock(Arc::new(TokioClock::new())).subscriber(leases.clone());
    let locks = locks.over(world.0.clone()).unwrap();
    used(&job(&locks)).await;
    assert_eq!(*leases.0.lock().unwrap(), (1, 0));
    drop(locks);
    settle().await;
    assert!(!is_held(&other).await);
    assert_eq!(*leases.0.lock().unwrap(), (1, 1));
}

/// The leases that began, and those that ended.
#[derive(Debug, Default)]
struct Leases(StdMutex<(u32, u32)>);

impl EventSubscriber for Leases {
    fn on_event(&self, event: &Event<'_>) {
        let mut leases = self.0.lock().unwrap();
        match event {
            Event::LeaseStarted { .. } => leases.0 += 1,
            Event::LeaseEnded { .. } => leases.1 += 1,
            _ => {}
        }
    }
}

/// The process crashes: nothing of it is polled or dropped any more. Others wait for the ttl, as for a holder.
#[tokio::test(start_paused = true)]
async fn crash_costs_others_what_the_crash_of_a_holder_does() {
    let world = World::polling();
    let ((locks, wire), (other, _)) = (world.client(), world.client());
    used(&job(&locks)).await;
    wire.set_all(Mode::LoseRequest);
    let began = Instant::now();
    drop(other.mutex("job").lock().await.unwrap());
    assert!(began.elapsed() <= TTL + ms(500), "{:?}", began.elapsed());
}

/// A subscriber that counts losses and pairs of events.
#[derive(Debug, Default)]
struct Counter(StdMutex<Vec<String>>);

impl EventSubscriber for Counter {
    fn on_event(&self, event: &Event<'_>) {
        let text = format!("{event:?}");
        self.0.lock().unwrap().push(text.split([' ', '{']).next().unwrap().to_owned());
    }
}

impl Counter {
    fn count(&self, name: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|event| *event == name).count()
    }
}

/// The limit of a user that has gone neither makes a renewal due nor an answer overdue.
#[tokio::test(start_paused = true)]
async fn short_uses_with_a_limit_renew_the_lease_no_more_often() {
    for mode in [Mode::Pass, Mode::LateReply(ms(150))] {
        let wire = Arc::new(Fault::over(World::new().0));
        wire.set(Verb::Renew, mode);
        let events = Arc::<Counter>::default();
        let builder = Client::builder().clock(Arc::new(TokioClock::new())).subscriber(events.clone());
        let locks = builder.over(wire.clone()).unwrap();
        let lock = locks.mutex("job").ttl(ms(12_000)).linger(ms(12_000)).max_hold(ms(100));
        for _ in 0..500 {
            let guard = lock.lock().await.unwrap();
            tokio::time::sleep(ms(9)).await;
            guard.release().await.unwrap();
            tokio::time::sleep(ms(1)).await;
        }
        assert_eq!(wire.calls(Verb::Renew), 1, "{mode:?}: five seconds are less than two thirds of the ttl");
        assert_eq!((events.count("BecameSuspect"), events.count("Renewed")), (0, 1), "{mode:?}");
        assert_eq!(wire.calls(Verb::Contend), 1, "{mode:?}");
        // The limit of the last user still holds.
        let guard = lock.lock().await.unwrap();
        let began = Instant::now();
        guard.lost().await;
        assert_eq!(began.elapsed(), ms(100), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn loss_of_an_unused_lock_is_reported_to_nobody() {
    let world = World::new();
    let counter = Arc::new(Counter::default());
    let builder = Client::builder().clock(Arc::new(TokioClock::new())).subscriber(counter.clone());
    let locks = builder.over(Arc::new(Fault::over(world.0.clone()))).unwrap();
    let (other, _) = world.client();
    let lock = job(&locks).ttl(ms(1_000));
    let first = used(&lock).await;
    let holder = other.inspect("job").await.unwrap().holders.remove(0);
    other.break_claim("job", &holder).await.unwrap();
    let theirs = other.mutex("job").lock().await.unwrap();
    // The renewal finds out.
    tokio::time::sleep(ms(600)).await;
    assert!(lock.try_lock().await.unwrap().is_none(), "what was lost is not used again");
    theirs.release().await.unwrap();
    let second = used(&lock).await;
    assert!(second.seq > first.seq, "{second} after {first}");
    assert_eq!((counter.count("Lost"), counter.count("Acquired"), counter.count("Released")), (0, 2, 2));
    tokio::time::sleep(ms(2_000)).await;
    assert_eq!(counter.count("LeaseStarted"), counter.count("LeaseEnded"));
}

#[tokio::test(start_paused = true)]
async fn suspect_lock_is_not_used_again() {
    let world = World::new();
    let (locks, wire) = world.client();
    let lock = locks.mutex("job").ttl(ms(900)).linger(ms(900));
    used(&lock).await;
    wire.set_all(Mode::LoseRequest);
    tokio::time::sleep(ms(500)).await;
    wire.set_all(Mode::Pass);
    used(&lock).await;
    assert!(wire.calls(Verb::Contend) > 1, "the store was asked");
    tokio::time::sleep(ms(1_000)).await;
    settles(&locks, "job").await;
}

#[tokio::test(start_paused = true)]
async fn doubt_about_an_unused_lock_is_reported_to_nobody() {
    let (world, counter) = (World::new(), Arc::new(Counter::default()));
    let wire = Arc::new(Fault::over(world.0.clone()));
    let builder = Client::builder().clock(Arc::new(TokioClock::new())).subscriber(counter.clone());
    let locks = builder.over(wire.clone()).unwrap();
    used(&job(&locks).ttl(ms(1_000))).await;
    wire.set(Verb::Renew, Mode::LoseRequest);
    tokio::time::sleep(ms(900)).await;
    assert!(wire.calls(Verb::Renew) > 0 && wire.calls(Verb::Release) == 1, "the doubt has released it");
    assert_eq!(
        (counter.count("BecameSuspect"), counter.count("Recovered"), counter.count("Lost")),
        (0, 0, 0)
    );
}

/// The machine was suspended: its timers have not seen the time that passed, and no task has run yet.
#[tokio::test(start_paused = true)]
async fn stopped_process_does_not_use_what_is_over() {
    for stopped in [LINGER, TTL * 2] {
        let clock = Arc::new(ManualClock::new());
        let wire = Arc::new(Fault::over(Arc::new(MemoryBackend::with_clock(clock.clone()))));
        let locks = Client::builder().clock(clock.clone()).over(wire.clone()).unwrap();
        let lock = job(&locks);
        used(&lock).await;
        clock.advance(stopped);
        let guard = lock.lock().await.unwrap();
        assert_eq!(wire.calls(Verb::Contend), 2, "after {stopped:?}");
        guard.check().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn long_used_lingering_lock_is_renewed_then_released() {
    let (locks, wire) = World::new().client();
    let lock = job(&locks).ttl(ms(1_500));
    used(&lock).await;
    let guard = lock.lock().await.unwrap();
    tokio::time::sleep(ms(5_000)).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert!(!is_held(&locks).await, "the time began with the first release");
    assert_eq!((wire.calls(Verb::Contend), wire.calls(Verb::Release)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn revocation_that_was_seen_ends_it() {
    let world = World::new();
    let ((locks, _), (other, _)) = (world.client(), world.client());
    let lock = job(&locks);
    used(&lock).await;
    let guard = lock.lock().await.unwrap();
    other.revoke("job", "please").await.unwrap();
    assert_eq!(guard.revoked().await.unwrap().reason, "please");
    guard.release().await.unwrap();
    assert!(!is_held(&other).await);
}

#[tokio::test(start_paused = true)]
async fn acquisition_that_is_dropped_lets_it_linger() {
    let (locks, wire) = World::new().client();
    let lock = job(&locks);
    let first = used(&lock).await;
    for _ in 0..100 {
        let mut locking = Box::pin(lock.lock());
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(locking.as_mut().poll(cx))).await;
        drop(polled);
        drop(locking);
        drop(lock.lock());
        // Without it the budget of the task ends, and the next acquisition lets other tasks run first.
        tokio::task::yield_now().await;
    }
    assert_eq!(used(&lock).await, Fence { sub: 101, ..first });
    assert_eq!((wire.calls(Verb::Contend), wire.calls(Verb::Release)), (1, 0));
    // A task that is aborted while it holds the lock.
    let held = lock.lock().await.unwrap();
    let task = tokio::spawn(async move {
        let _held = held;
        std::future::pending::<()>().await
    });
    settle().await;
    task.abort();
    settle().await;
    used(&lock).await;
    assert_eq!(wire.calls(Verb::Contend), 1);
}

#[tokio::test(start_paused = true)]
async fn uses_start_no_tasks() {
    let (locks, wire) = World::polling().client();
    let lock = job(&locks);
    used(&lock).await;
    settle().await;
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    for _ in 0..10_000 {
        used(&lock).await;
    }
    assert_eq!(metrics.num_alive_tasks(), before);
    assert_eq!(wire.calls(Verb::Contend), 1);
    tokio::time::sleep(LINGER * 2).await;
    assert!(metrics.num_alive_tasks() < before, "the keeper has ended");
}

#[tokio::test(start_paused = true)]
async fn listeners_and_limits_of_one_use_end_with_it() {
    let (locks, wire) = World::new().client();
    let lock = job(&locks).max_hold(ms(300));
    let guard = lock.lock().await.unwrap();
    let token = guard.cancellation_token();
    drop(guard);
    settle().await;
    assert!(token.is_cancelled());
    tokio::time::sleep(ms(500)).await;
    let guard = lock.lock().await.unwrap();
    assert_eq!(wire.calls(Verb::Contend), 1, "the limit of one use does not release it");
    let token = guard.cancellation_token();
    tokio::time::sleep(ms(200)).await;
    assert!(!token.is_cancelled() && guard.check().is_ok());
    tokio::time::sleep(ms(200)).await;
    assert!(token.is_cancelled() && guard.check().is_err());
}

#[tokio::test(start_paused = true)]
async fn owners_transfers_and_minimum_times_keep_working() {
    let world = World::new();
    let ((locks, wire), (other, _)) = (world.client(), world.client());
    let (ann, ben) = (Owner::new(), Owner::new());
    let lock = |owner| job(&locks).owner(owner);
    let (outer, inner) = (lock(&ann).lock().await.unwrap(), lock(&ann).lock().await.unwrap());
    assert_eq!(outer.fence(), inner.fence());
    drop(outer);
    assert!(lock(&ben).try_lock().await.unwrap().is_none(), "a guard is left");
    drop(inner);
    let theirs = lock(&ben).try_lock().await.unwrap().expect("it lingers");
    assert!(lock(&ann).try_lock().await.unwrap().is_none());
    assert_eq!(wire.calls(Verb::Contend), 1);
    let fence = theirs.fence().unwrap();
    let token = theirs.transfer().await.unwrap();
    let taken = job(&other).accept_transfer(&token).await.unwrap();
    assert!(taken.fence().unwrap() > fence);
    taken.release().await.unwrap();
    assert!(job(&other).try_lock().await.unwrap().is_some(), "it lingers there");
    drop(other);
    settle().await;
    let began = Instant::now();
    let kept = job(&locks).min_hold(ms(400));
    kept.lock().await.unwrap().release().await.unwrap();
    assert!(began.elapsed() >= ms(400));
    drop(kept.try_lock().await.unwrap().expect("it lingers"));
    assert!(kept.try_lock().await.unwrap().is_none(), "the minimum time comes first");
}

#[tokio::test(start_paused = true)]
async fn local_waiters_get_it_by_handoff_within_their_budget() {
    let world = World::new();
    let (locks, wire) = world.tuned(Tuning::default().local_handoff_limit(10));
    let lock = job(&locks);
    let first = used(&lock).await;
    let tasks: Vec<_> = (0..5)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                tokio::task::yield_now().await;
                drop(guard);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(used(&lock).await, Fence { sub: 6, ..first });
    assert_eq!(wire.calls(Verb::Contend), 1);
    // Without local hand-offs nothing lingers.
    let (strict, wire) = world.tuned(Tuning::default().local_handoff_limit(0));
    let lock = strict.mutex("other").ttl(TTL).linger(LINGER);
    used(&lock).await;
    used(&lock).await;
    assert_eq!((wire.calls(Verb::Contend), wire.calls(Verb::Release)), (2, 2));
}

/// Two processes that both lock without a pause: each gets its turn within the linger time.
#[tokio::test(start_paused = true)]
async fn processes_that_all_linger_take_turns() {
    for world in [World::new(), World::polling()] {
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let (locks, _) = world.client();
            tasks.push(tokio::spawn(async move {
                let lock = locks.mutex("job").ttl(TTL).linger(ms(100));
                let mut longest = Duration::ZERO;
                for _ in 0..200 {
                    let began = Instant::now();
                    let guard = lock.lock().await.unwrap();
                    longest = longest.max(began.elapsed());
                    tokio::time::sleep(ms(2)).await;
                    drop(guard);
                    tokio::time::sleep(ms(1)).await;
                }
                longest
            }));
        }
        for task in tasks {
            let longest = task.await.unwrap();
            // Two others, each for the linger time and a use, and the pauses of waiters that poll.
            assert!(longest <= ms(2 * (100 + 2) + 600), "{longest:?}");
        }
    }
}

/// A user has it again, so a doubt and a loss concern a task.
#[tokio::test(start_paused = true)]
async fn loss_of_a_lingering_lock_is_reported_to_its_next_user() {
    for waits in [false, true] {
        let (world, counter) = (World::new(), Arc::new(Counter::default()));
        let wire = Arc::new(Fault::over(world.0.clone()));
        let builder = Client::builder().clock(Arc::new(TokioClock::new())).subscriber(counter.clone());
        let locks = builder.over(wire.clone()).unwrap();
        let lock = job(&locks).ttl(ms(1_000));
        let first = lock.lock().await.unwrap();
        let next = lock.clone();
        let next = tokio::spawn(async move {
            if !waits {
                tokio::time::sleep(ms(100)).await;
            }
            next.lock().await.unwrap()
        });
        settle().await;
        first.release().await.unwrap();
        let guard = next.await.unwrap();
        assert_eq!(wire.calls(Verb::Contend), 1, "it lingered, or was handed off");
        wire.set(Verb::Renew, Mode::LoseRequest);
        guard.lost().await;
        assert_eq!((counter.count("BecameSuspect"), counter.count("Lost")), (1, 1), "waits: {waits}");
    }
}

/// It is not kept, so the answer to its release decides what is reported.
#[tokio::test(start_paused = true)]
async fn release_of_a_suspect_lock_is_reported_as_the_store_answers() {
    let (locks, wire) = World::new().client();
    let guard = locks.mutex("job").ttl(ms(900)).linger(ms(900)).lock().await.unwrap();
    wire.set_all(Mode::LoseRequest);
    assert_eq!(guard.changed(State::Valid).await, State::Suspect);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
}

/// Another client has waited long enough, whether the lock is in use at that moment or not.
#[tokio::test(start_paused = true)]
async fn lock_that_another_client_waits_for_is_not_handed_off() {
    let world = World::new();
    let (locks, _) = world.tuned(Tuning::default().local_handoff_time(TTL * 10));
    let (other, _) = world.client();
    let lock = job(&locks).linger(ms(5_000));
    used(&lock).await;
    let guard = lock.lock().await.unwrap();
    let theirs = other.mutex("job");
    let theirs = tokio::spawn(async move { theirs.lock().await.unwrap() });
    waiting(&locks, "job", 1).await;
    settle().await;
    let ours = tokio::spawn(async move { lock.lock().await.unwrap() });
    settle().await;
    guard.release().await.unwrap();
    settle().await;
    assert_eq!((theirs.is_finished(), ours.is_finished()), (true, false), "it waited longer");
    theirs.await.unwrap().release().await.unwrap();
    ours.await.unwrap().release().await.unwrap();
}

/// A use began before the end of the linger time, and no later one gets the lock before another client.
#[tokio::test(start_paused = true)]
async fn end_of_the_linger_time_ends_handoffs_to_tasks_of_its_own() {
    let world = World::polling();
    let (locks, _) = world.tuned(Tuning::default().local_handoff_time(TTL * 10));
    let (other, _) = world.client();
    let lock = job(&locks);
    used(&lock).await;
    let guard = lock.lock().await.unwrap();
    let theirs = other.mutex("job");
    let theirs = tokio::spawn(async move { theirs.lock().await.unwrap() });
    waiting(&locks, "job", 1).await;
    let ours = tokio::spawn(async move { lock.lock().await.unwrap() });
    tokio::time::sleep(LINGER + ms(100)).await;
    guard.release().await.unwrap();
    tokio::time::sleep(ms(100)).await;
    assert_eq!((theirs.is_finished(), ours.is_finished()), (true, false), "it waited longer");
    theirs.await.unwrap().release().await.unwrap();
    ours.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn try_that_a_used_permit_refuses_does_not_wait_for_an_unused_one() {
    let (locks, wire) = World::new().client();
    let permits = locks.semaphore("job", 3).ttl(TTL).linger(LINGER);
    let _guard = permits.acquire_many(2).await.unwrap();
    drop(permits.acquire().await.unwrap());
    wire.set(Verb::Release, Mode::Hang);
    let began = Instant::now();
    assert!(permits.try_acquire_many(2).await.unwrap().is_none());
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// A lock that lingers costs the store nearly nothing.
#[tokio::test(start_paused = true)]
async fn unused_lock_is_looked_at_seldom_or_never() {
    for (world, looks) in [(World::new(), 2), (World::polling(), 0)] {
        let (locks, wire) = world.client();
        used(&job(&locks)).await;
        tokio::time::sleep(LINGER - ms(1)).await;
        assert_eq!((wire.calls(Verb::Inspect), wire.calls(Verb::Release)), (looks, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn lock_lingers_again_after_an_upgrade() {
    let (locks, wire) = World::new().client();
    let lock = locks.rwlock("job").ttl(TTL).linger(LINGER);
    let beside = lock.read().await.unwrap();
    let mut upgradable = lock.upgradable_read().await.unwrap();
    assert!(!upgradable.try_upgrade().await.unwrap());
    let upgrade = tokio::time::timeout(ms(50), upgradable.upgrade());
    assert!(upgrade.await.is_err(), "another task reads");
    upgradable.release().await.unwrap();
    settle().await;
    drop(beside);
    let contends = wire.calls(Verb::Contend);
    drop(lock.read().await.unwrap());
    assert_eq!(wire.calls(Verb::Contend), contends);
}

#[test]
fn threads_that_block_have_it_as_well() {
    let locks = leasehold::blocking::Client::open("mem:").unwrap();
    let lock = locks.mutex("job").linger(ms(10_000));
    let first = lock.lock().unwrap();
    let fence = first.fence().unwrap();
    first.release().unwrap();
    for sub in 1..=10 {
        let guard = lock.lock().unwrap();
        assert_eq!(guard.fence(), Some(Fence { sub, ..fence }));
        guard.release().unwrap();
    }
}

/// Two clients of one directory, as two processes are: the kernel notifies nobody of a waiter.
#[tokio::test]
async fn files_linger_for_at_most_the_time() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file:{}", directory.path().display());
    let (locks, other) = (Client::open(&url).await.unwrap(), Client::open(&url).await.unwrap());
    let lock = locks.mutex("job").linger(ms(300));
    let first = used(&lock).await;
    let released = std::time::Instant::now();
    let again = used(&lock).await;
    // Else the machine is so busy that the time was over.
    assert!(again == Fence { sub: 1, ..first } || released.elapsed() >= ms(250), "{again:?} after {first:?}");
    if let Some(guard) = other.mutex("job").try_lock().await.unwrap() {
        assert!(released.elapsed() >= ms(250), "another process got it while it lingers");
        drop(guard);
    }
    let theirs = other.mutex("job").try_lock_for(ms(60_000)).await.unwrap().expect("it is released");
    assert!(theirs.fence().unwrap() > first);
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn redis_is_asked_once_and_others_recall_it() {
    let Some(server) = leasehold_testkit::RedisServer::start_or_skip().await else { return };
    let (locks, other) =
        (Client::open(&server.url()).await.unwrap(), Client::open(&server.url()).await.unwrap());
    let lock = locks.mutex("job").linger(ms(20_000));
    let first = used(&lock).await;
    let before = commands(&server).await;
    for _ in 0..5_000 {
        used(&lock).await;
    }
    let after = commands(&server).await;
    assert!(after - before < 500, "{before} commands, then {after}");
    let fence = used(&lock).await;
    assert_eq!((fence.epoch, fence.seq), (first.epoch, first.seq));
    assert!(fence.sub > 5_000);
    let began = std::time::Instant::now();
    let theirs = other.mutex("job").lock().await.unwrap();
    assert!(began.elapsed() < ms(15_000), "the process looks twice a second: {:?}", began.elapsed());
    assert!(theirs.fence().unwrap() > fence);
    drop(theirs);
    // What the process keeps is released when its client closes.
    used(&lock).await;
    assert!(locks.close(ms(10_000)).await);
    assert!(other.mutex("job").try_lock().await.unwrap().is_some());
}

/// The number of commands that the server has processed.
#[cfg(feature = "redis")]
async fn commands(server: &leasehold_testkit::RedisServer) -> u64 {
    server.info_field("total_commands_processed").await.unwrap().unwrap().trim().parse().unwrap()
}
