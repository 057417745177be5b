//! From reader to writer and back: no other holder in between, and no wait for itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::backend::LossCause;
use leasehold::layer::{Mode, Verb};
use leasehold::{Client, ErrorKind, Owner, RwLock};

use crate::world::{Chance, Peer, clients, is_whole_campaign, on_schedules, settles, waiting};

const PATIENCE: Duration = Duration::from_secs(20);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::test(start_paused = true)]
async fn one_of_two_upgraders_is_refused_and_stays_a_reader() {
    let [one, two] = clients().map(|peer| peer.locks);
    let mut first = one.rwlock("prices").upgradable_read().await.unwrap();
    let mut second = two.rwlock("prices").upgradable_read().await.unwrap();
    let upgrade = tokio::spawn(async move {
        first.upgrade().await.unwrap();
        first
    });
    waiting(&one, "prices", 1).await;
    let error = second.upgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
    assert!(second.check().is_ok());
    second.release().await.unwrap();
    assert!(tokio::time::timeout(PATIENCE, upgrade).await.unwrap().unwrap().is_writer());
}

#[tokio::test(start_paused = true)]
async fn upgrade_behind_a_waiting_writer_is_refused_as_deadlock() {
    let [one, two] = clients().map(|peer| peer.locks);
    for own_process in [true, false] {
        let mut guard = one.rwlock("prices").upgradable_read().await.unwrap();
        let other = if own_process { one.rwlock("prices") } else { two.rwlock("prices") };
        let writer = tokio::spawn(async move { other.write().await.unwrap() });
        waiting(&one, "prices", 1).await;
        let outcome = tokio::time::timeout(PATIENCE, guard.upgrade()).await.expect("it waits for itself");
        // A writer of the same process waits as one of another does, so that readers of others do not
        // pass it.
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Deadlock);
        guard.release().await.unwrap();
        drop(tokio::time::timeout(PATIENCE, writer).await.unwrap().unwrap());
        settles(&one, "prices").await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_either_is_the_loss_of_both() {
    for part in [0, 1] {
        let [locks, operator] = clients().map(|peer| peer.locks);
        let mut guard = locks.rwlock("prices").ttl(ms(300)).upgradable_read().await.unwrap();
        guard.upgrade().await.unwrap();
        let holders = operator.inspect("prices").await.unwrap().holders;
        assert_eq!(holders.len(), 2);
        let broken = operator.break_claim("prices", &holders[part]).await.unwrap();
        assert_ne!(broken, leasehold::BreakOutcome::Gone);
        assert_eq!(guard.lost().await, LossCause::Gone);
        assert!(guard.check().unwrap_err().is_lost());
        assert!(guard.run(async {}).await.unwrap_err().is_lost());
        assert!(guard.upgrade().await.unwrap_err().is_lost());
        assert!(guard.release().await.unwrap_err().is_lost());
        settles(&operator, "prices").await;
    }
}

#[tokio::test(start_paused = true)]
async fn reader_lost_during_an_upgrade_is_reported() {
    let [shaky, other] = clients();
    let reader = other.locks.rwlock("prices").read().await.unwrap();
    let mut guard = shaky.locks.rwlock("prices").ttl(ms(200)).upgradable_read().await.unwrap();
    shaky.fault(Verb::Renew, Mode::LoseRequest);
    let error = tokio::time::timeout(PATIENCE, guard.upgrade()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LossCause::Expired), "{error}");
    shaky.fault_all(Mode::Pass);
    drop((guard, reader));
    settles(&other.locks, "prices").await;
}

/// Dropped after each of its polls, an upgrade leaves a reader and nothing else.
#[tokio::test(start_paused = true)]
async fn a_dropped_upgrade_leaves_nothing_behind() {
    let [one, two] = clients().map(|peer| peer.locks);
    for polls in 0..30 {
        let mut guard = one.rwlock("prices").upgradable_read().await.unwrap();
        let reader = two.rwlock("prices").read().await.unwrap();
        {
            let mut upgrade = Box::pin(guard.upgrade());
            for _ in 0..polls {
                assert!(futures_util::poll!(&mut upgrade).is_pending());
                tokio::task::yield_now().await;
            }
        }
        assert!(guard.check().is_ok() && !guard.is_writer());
        reader.release().await.unwrap();
        tokio::time::timeout(PATIENCE, async {
            // The gate is released in the background.
            while let Err(error) = guard.upgrade().await {
                assert_eq!(error.kind(), ErrorKind::Deadlock);
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        guard.release().await.unwrap();
        settles(&one, "prices").await;
    }
}

/// The release of another reader of this process begins after the upgrade, and its caller is not polled
/// again.
#[tokio::test(start_paused = true)]
async fn an_upgrade_waits_for_no_caller_that_is_not_polled() {
    let [client] = clients();
    let lock = client.locks.rwlock("prices");
    let mut guard = lock.upgradable_read().await.unwrap();
    let reader = lock.read().await.unwrap();
    let upgrade = tokio::spawn(async move {
        guard.upgrade().await.unwrap();
        guard
    });
    waiting(&client.locks, "prices", 1).await;
    client.fault(Verb::Release, Mode::Hang);
    let mut release = Box::pin(reader.release());
    assert!(futures_util::poll!(&mut release).is_pending());
    client.fault(Verb::Release, Mode::Pass);
    let guard = tokio::time::timeout(PATIENCE, upgrade).await.expect("the upgrade waits for ever").unwrap();
    assert!(guard.is_writer());
    release.await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn impossible_upgrade_is_refused_before_sending() {
    let [client] = clients();
    let locks = &client.locks;
    let owned = locks.rwlock("prices").owner(&Owner::new());
    assert_eq!(owned.upgradable_read().await.unwrap_err().kind(), ErrorKind::Invalid);
    let long = locks.rwlock("x".repeat(510));
    assert_eq!(long.upgradable_read().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(client.calls(Verb::Contend), 0);
}

/// The holders inside, as they count themselves, and a value that only writers change.
#[derive(Default)]
struct Occupancy {
    readers: AtomicI64,
    writers: AtomicI64,
    value: AtomicU64,
    upgrades: AtomicU64,
    deadlocks: AtomicU64,
}

impl Occupancy {
    async fn write(&self, others_reading: i64, chance: &mut Chance) {
        assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
        assert_eq!(self.readers.load(Ordering::SeqCst), others_reading, "a writer with another reader");
        let before = self.value.load(Ordering::SeqCst);
        chance.pause().await;
        assert_eq!(self.readers.load(Ordering::SeqCst), others_reading, "a writer with another reader");
        assert_eq!(self.value.swap(before + 1, Ordering::SeqCst), before);
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }

    fn enter(&self) {
        self.readers.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
    }

    fn leave(&self) {
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a writer beside a reader");
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn run_client(lock: RwLock, occupancy: Arc<Occupancy>, mut chance: Chance) {
    for _ in 0..3 {
        chance.pause().await;
        match chance.below(4) {
            0 => {
                let guard = lock.read().await.unwrap();
                occupancy.enter();
                chance.pause().await;
                occupancy.leave();
                guard.release().await.unwrap();
            }
            1 => {
                let guard = lock.write().await.unwrap();
                occupancy.write(0, &mut chance).await;
                guard.release().await.unwrap();
            }
            _ => upgrade_and_back(&lock, &occupancy, &mut chance).await,
        }
    }
}

async fn upgrade_and_back(lock: &RwLock, occupancy: &Occupancy, chance: &mut Chance) {
    let mut guard = lock.upgradable_read().await.unwrap();
    occupancy.enter();
    let seen = occupancy.value.load(Ordering::SeqCst);
    chance.pause().await;
    match guard.upgrade().await {
        Ok(()) => {
            assert_eq!(
                occupancy.value.load(Ordering::SeqCst),
                seen,
                "another client wrote between reading and writing"
            );
            occupancy.write(1, chance).await;
            occupancy.upgrades.fetch_add(1, Ordering::SeqCst);
            if chance.below(2) == 0 {
                let written = occupancy.value.load(Ordering::SeqCst);
                guard.downgrade().await.unwrap();
                chance.pause().await;
                assert_eq!(occupancy.value.load(Ordering::SeqCst), written, "a client wrote beside a reader");
            }
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
            occupancy.deadlocks.fetch_add(1, Ordering::SeqCst);
        }
    }
    occupancy.leave();
    guard.release().await.unwrap();
}

/// No two writers, no writer with another reader, nothing written between reading and writing, and all
/// get through.
#[test]
fn the_law_of_readers_and_writers_holds_through_upgrades() {
    let totals = Arc::new(Occupancy::default());
    on_schedules(|mut world| {
        let totals = totals.clone();
        async move {
            let clients: Vec<Peer> = (0..3).map(|_| world.calm_client()).collect();
            let occupancy = Arc::new(Occupancy::default());
            let crowd = (0..4).map(|number| {
                let lock = clients[number % 3].locks.rwlock("prices");
                tokio::spawn(run_client(lock, occupancy.clone(), world.chance.fork()))
            });
            for one in crowd.collect::<Vec<_>>() {
                one.await.unwrap();
            }
            totals.upgrades.fetch_add(occupancy.upgrades.load(Ordering::SeqCst), Ordering::SeqCst);
            totals.deadlocks.fetch_add(occupancy.deadlocks.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    });
    let (upgrades, deadlocks) =
        (totals.upgrades.load(Ordering::SeqCst), totals.deadlocks.load(Ordering::SeqCst));
    println!("{upgrades} upgrades, {deadlocks} got a deadlock error");
    assert!(
        upgrades > 1_000 && deadlocks > 100 || !is_whole_campaign(),
        "{upgrades} upgrades, {deadlocks} errors: the schedules are too tame"
    );
}

/// The queue of a waiting upgrade is read every few seconds.
#[tokio::test(start_paused = true)]
async fn upgrade_that_loses_its_place_is_refused_as_deadlock() {
    let [one, two] = clients().map(|peer| peer.locks);
    let mut guard = one.rwlock("prices").upgradable_read().await.unwrap();
    let reader = two.rwlock("prices").read().await.unwrap();
    let upgrade = tokio::spawn(async move {
        let outcome = guard.upgrade().await;
        (guard, outcome)
    });
    waiting(&two, "prices", 1).await;
    let writer = two.rwlock("prices");
    let writer = tokio::spawn(async move { writer.write().await });
    waiting(&two, "prices", 2).await;
    // The upgrade has read the queue, and has found no waiter ahead of it that waits for this reader.
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!upgrade.is_finished());
    let first = two.inspect("prices").await.unwrap().waiting.remove(0);
    two.break_claim("prices", &first).await.unwrap();
    waiting(&two, "prices", 2).await;
    let (guard, outcome) = tokio::time::timeout(Duration::from_secs(600), upgrade).await.unwrap().unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Deadlock);
    drop((guard, reader));
    drop(tokio::time::timeout(Duration::from_secs(600), writer).await.unwrap().unwrap());
}

/// Counts the events of each resource: asked, acquired, released.
#[derive(Debug, Default)]
struct Tally(std::sync::Mutex<std::collections::BTreeMap<String, [u32; 3]>>);

impl leasehold::EventSubscriber for Tally {
    fn on_event(&self, event: &leasehold::Event<'_>) {
        use leasehold::Event::{AcquireStarted, Acquired, Released};
        let (resource, which) = match event {
            AcquireStarted { resource, .. } => (resource, 0),
            Acquired { resource, .. } => (resource, 1),
            Released { resource, .. } => (resource, 2),
            _ => return,
        };
        self.0.lock().unwrap().entry(resource.to_string()).or_default()[which] += 1;
    }
}

#[tokio::test]
async fn upgrade_and_transfer_emit_the_events_of_a_grant() {
    let tally = Arc::new(Tally::default());
    let locks = Client::builder().subscriber(tally.clone()).open("mem:").await.unwrap();
    let mut guard = locks.rwlock("prices").upgradable_read().await.unwrap();
    guard.upgrade().await.unwrap();
    guard.downgrade().await.unwrap();
    guard.release().await.unwrap();
    let mutex = locks.mutex("job");
    let token = mutex.lock().await.unwrap().transfer().await.unwrap();
    mutex.accept_transfer(&token).await.unwrap().release().await.unwrap();
    let counts = tally.0.lock().unwrap();
    assert_eq!((counts["prices"], counts["job"]), ([2, 2, 2], [2, 2, 2]), "{counts:?}");
}

/// The gate may be granted after its caller has left: the next upgrade must not take it for another reader's.
#[tokio::test(start_paused = true)]
async fn upgrade_after_a_dropped_one_is_not_a_deadlock() {
    let [one, two] = clients().map(|peer| peer.locks);
    let mut guard = one.rwlock("prices").upgradable_read().await.unwrap();
    let reader = two.rwlock("prices").read().await.unwrap();
    for polls in 0..40 {
        {
            let mut upgrade = std::pin::pin!(guard.upgrade());
            for _ in 0..polls % 10 {
                assert!(futures_util::poll!(&mut upgrade).is_pending());
                tokio::task::yield_now().await;
            }
        }
        let next = tokio::time::timeout(ms(5), guard.upgrade()).await;
        assert!(next.is_err(), "{next:?} after {} polls", polls % 10);
    }
    reader.release().await.unwrap();
    assert!(guard.try_upgrade_for(PATIENCE).await.unwrap());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn upgrade_right_after_another_is_not_a_deadlock() {
    let [one, two] = clients().map(|peer| peer.locks);
    let mut guard = one.rwlock("prices").upgradable_read().await.unwrap();
    for _ in 0..10 {
        guard.upgrade().await.unwrap();
        guard.downgrade().await.unwrap();
    }
    let reader = two.rwlock("prices").read().await.unwrap();
    for _ in 0..10 {
        assert!(!guard.try_upgrade().await.unwrap());
        assert!(tokio::time::timeout(ms(5), guard.upgrade()).await.is_err());
    }
    reader.release().await.unwrap();
    assert!(guard.try_upgrade_for(PATIENCE).await.unwrap());
    guard.release().await.unwrap();
    for name in ["prices", "prices!upgrade"] {
        settles(&one, name).await;
    }
}

/// The gate stays for up to a ttl, and no reader is left that wants to write.
#[tokio::test(start_paused = true)]
async fn upgrade_after_a_lost_release_of_the_gate_is_not_a_deadlock() {
    let [one, two] = clients();
    let prices = one.locks.rwlock("prices").ttl(Duration::from_secs(60));
    let mut first = prices.upgradable_read().await.unwrap();
    let reader = two.locks.rwlock("prices").read().await.unwrap();
    let upgrading = tokio::spawn(async move {
        first.upgrade().await.unwrap();
        first
    });
    waiting(&two.locks, "prices", 1).await;
    // As after a crash: the gate and both claims are left to their ttl, and an operator frees the lock itself.
    one.fault(Verb::Release, Mode::LoseRequest);
    reader.release().await.unwrap();
    drop(tokio::time::timeout(PATIENCE, upgrading).await.unwrap().unwrap());
    for holder in two.locks.inspect("prices").await.unwrap().holders {
        two.locks.break_claim("prices", &holder).await.unwrap();
    }
    let mut second = two.locks.rwlock("prices").upgradable_read().await.unwrap();
    for limit in [Duration::ZERO, ms(500)] {
        let error = second.try_upgrade_for(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    // Beside another reader, which may be the one that wants to write, it is a deadlock.
    let third = two.locks.rwlock("prices").read().await.unwrap();
    assert_eq!(second.upgrade().await.unwrap_err().kind(), ErrorKind::Deadlock);
    third.release().await.unwrap();
    // Without a limit it waits for the gate.
    let upgrading = tokio::spawn(async move {
        second.upgrade().await.unwrap();
        second
    });
    tokio::time::sleep(ms(2_000)).await;
    assert!(!upgrading.is_finished());
    one.fault(Verb::Release, Mode::Pass);
    let second = tokio::time::timeout(PATIENCE, upgrading).await.unwrap().unwrap();
    second.release().await.unwrap();
}
