//! Programs in which a claim lingers, and another task asks.

use std::sync::Arc;
use std::time::Duration;

use simulated::layer::{Fault, Mode, Verb};
use simulated::local::MemoryBackend;
use simulated::{Client, Event, EventSubscriber, Note, Owner, TokioClock, Tuning};
use tokio::time::{sleep, timeout};

use super::{aimed, client, store};
use crate::judge::Verdict;

/// Lets two tasks try while a claim lingers, or while it is being released afterwards.
pub(crate) fn tries_while_nobody_uses_it(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let wire = Arc::new(Fault::over(store()));
        wire.set(Verb::Release, Mode::LateReply(dice.ms(50, 500)));
        let locks = client(wire);
        let linger = dice.ms(100, 1_000);
        let lock = locks.rwlock("book").linger(linger);
        drop(lock.write().await.unwrap());
        sleep(if dice.percent(50) { linger + dice.ms(1, 49) } else { dice.ms(1, 99) }).await;
        let tries = tokio::join!(lock.try_read(), lock.try_read());
        let refused = [&tries.0, &tries.1].iter().filter(|tried| !matches!(tried, Ok(Some(_)))).count();
        (refused > 0).then(|| format!("{refused} of 2 tries are refused because of what nobody uses"))
    })
}

/// Lets a task try for a permit that fits beside one that lingers here, but not beside those of another client too.
pub(crate) fn tries_beside_an_unused_permit(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let store = store();
        let (ours, theirs) = (client(store.clone()), client(store));
        let all = dice.between(2, 6) as u32;
        drop(ours.semaphore("seats", all).linger(dice.ms(100, 1_000)).acquire().await.unwrap());
        let _others = theirs.semaphore("seats", all).try_acquire_many(all - 1).await.unwrap().unwrap();
        sleep(dice.ms(0, 50)).await;
        // A lock without a linger time is another one.
        let tried = ours.semaphore("seats", all).try_acquire().await;
        (!matches!(tried, Ok(Some(_))))
            .then(|| format!("an unused permit of this client is in the way: {tried:?}"))
    })
}

/// Lets an owner use a lock again that is kept for a minimum time, and release it.
pub(crate) fn an_owner_returns_to_what_is_kept(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let store = store();
        let (ours, theirs) = (client(store.clone()), client(store));
        let owner = Owner::new();
        let lock = ours.mutex("job").owner(&owner);
        let minimum = dice.ms(50, 500);
        drop(lock.clone().min_hold(minimum).lock().await.unwrap());
        sleep(dice.ms(0, 49)).await;
        let again = if dice.percent(50) { lock } else { lock.min_hold(dice.ms(1, 500)) };
        again.lock().await.unwrap().release().await.unwrap();
        let tried = theirs.mutex("job").try_lock().await;
        (!matches!(tried, Ok(Some(_)))).then(|| "a release returned while the lock was held".to_owned())
    })
}

/// A subscriber that notes a doubt.
#[derive(Debug, Default)]
struct Doubts(std::sync::atomic::AtomicBool);

impl EventSubscriber for Doubts {
    fn on_event(&self, event: &Event<'_>) {
        if matches!(event, Event::BecameSuspect { .. } | Event::Recovered { .. } | Event::Lost { .. }) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
}

/// Lets the store not answer the renewals of a lingering claim.
pub(crate) fn doubt_about_a_lingering_claim(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let (wire, doubts) = (Arc::new(Fault::over(store())), Arc::new(Doubts::default()));
        let builder = Client::builder().clock(Arc::new(TokioClock::new())).note(Note::default());
        let locks = builder.subscriber(doubts.clone()).over(wire.clone()).unwrap();
        let ttl = dice.ms(500, 2_000);
        drop(locks.mutex("job").ttl(ttl).linger(ttl).lock().await.unwrap());
        wire.set(Verb::Renew, Mode::LoseRequest);
        sleep(ttl / 2 + dice.ms(0, 2_000)).await;
        wire.set(Verb::Renew, Mode::Pass);
        sleep(dice.ms(0, 2_000)).await;
        let is_reported = doubts.0.load(std::sync::atomic::Ordering::SeqCst);
        is_reported.then(|| "a doubt about a lock that nobody uses is reported".to_owned())
    })
}

/// Lets a task use a lock that lingers again and again, each time with a limit that ends long before a renewal is due.
pub(crate) fn limited_uses_of_what_lingers(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let wire = Arc::new(Fault::over(store()));
        let locks = client(wire.clone());
        let lock = locks.mutex("job").ttl(TTL).linger(TTL).max_hold(dice.ms(20, 100));
        for _ in 0..dice.between(20, 100) {
            let guard = lock.lock().await.unwrap();
            sleep(dice.ms(1, 10)).await;
            drop(guard);
            sleep(dice.ms(1, 40)).await;
        }
        let renewals = wire.calls(Verb::Renew);
        (renewals > 0).then(|| format!("{renewals} renewals of a lease, none of which was due"))
    })
}

/// Lets another client wait for a lock that this one uses without a pause, on a store without a queue.
pub(crate) fn a_waiter_on_a_store_without_a_queue(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let store = MemoryBackend::with_clock(Arc::new(TokioClock::new())).unordered();
        let store = Arc::new(if dice.percent(50) { store.polling() } else { store });
        let (busy, other) = (client(store.clone()), client(store));
        let (linger, pause) = (dice.ms(100, 2_000), dice.ms(1, 3));
        let lock = busy.mutex("job").linger(linger);
        let user = tokio::spawn(async move {
            while let Ok(guard) = lock.lock().await {
                drop(guard);
                sleep(pause).await;
            }
        });
        sleep(dice.ms(1, 3_000)).await;
        let waited = timeout(linger + POLL, other.mutex("job").lock()).await;
        user.abort();
        waited.is_err().then(|| format!("a waiter starves behind a linger time of {linger:?}"))
    })
}

/// Lets another client wait for a lock that is used once more since it lingered, and then a task of its own client.
pub(crate) fn a_waiter_behind_the_use_of_what_lingered(seed: u64, mutant: &'static str) -> Verdict {
    aimed(seed, mutant, |dice| async move {
        let store = MemoryBackend::with_clock(Arc::new(TokioClock::new()));
        // Where the store does not notify of the waiter, the end of the linger time is what counts.
        let store = Arc::new(if dice.percent(50) { store.polling() } else { store });
        let (tuning, linger) = (Tuning::default().local_handoff_time(TTL), dice.ms(50, 1_000));
        let builder = Client::builder().clock(Arc::new(TokioClock::new())).tuning(tuning);
        let (ours, theirs) = (builder.over(store.clone()).unwrap(), client(store));
        let lock = ours.mutex("job").linger(linger);
        drop(lock.lock().await.unwrap());
        let held = lock.lock().await.unwrap();
        let theirs = theirs.mutex("job");
        let first = tokio::spawn(async move { theirs.lock().await });
        sleep(dice.ms(30, 100)).await;
        let second = tokio::spawn(async move { lock.lock().await });
        sleep(linger).await;
        drop(held);
        sleep(POLL).await;
        let passed = second.is_finished() || !first.is_finished();
        passed.then(|| "a task passed a waiter of another client after the linger time".to_owned())
    })
}

const TTL: Duration = Duration::from_secs(30);
/// The longest pause of a waiter that polls.
const POLL: Duration = Duration::from_millis(500);
