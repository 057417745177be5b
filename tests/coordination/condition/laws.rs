//! No wake-up is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::layer::{Mode, Verb};
use leasehold::{Client, Condition, ErrorKind, Mutex, Owner, WaitOutcome};

use crate::world::{Peer, clients, on_half_of_them};

/// The tokens that are waited for. They are only touched under the lock.
type Tokens = Arc<AtomicU64>;

fn queue(locks: &Client) -> (Mutex, Condition) {
    (locks.mutex("queue").ttl(TTL), locks.condition("not empty").ttl(TTL))
}

/// Takes one token, waiting for it under the lock.
async fn take(locks: Client, tokens: Tokens) {
    let (mutex, not_empty) = queue(&locks);
    let mut guard = mutex.lock().await.unwrap();
    while tokens.load(Ordering::SeqCst) == 0 {
        guard = guard.wait(&not_empty).await.unwrap();
    }
    tokens.fetch_sub(1, Ordering::SeqCst);
    guard.release().await.unwrap();
}

/// Puts one token and notifies one waiter.
async fn put(locks: &Client, tokens: &Tokens) {
    let (mutex, not_empty) = queue(locks);
    let guard = mutex.lock().await.unwrap();
    tokens.fetch_add(1, Ordering::SeqCst);
    guard.notify_one(&not_empty).await.unwrap();
    guard.release().await.unwrap();
}

/// A waiter that leaves or falls silent at a moment of its own. Returns `true` if it had taken a token
/// by then.
async fn quit(client: Peer, tokens: Tokens, after: Duration, dies: bool) -> bool {
    let taking = tokio::spawn({
        let tokens = tokens.clone();
        let locks = client.locks.clone();
        async move {
            let (mutex, not_empty) = queue(&locks);
            let guard = mutex.lock().await.unwrap();
            // This client only waits: if it is woken, it acts and is counted.
            let guard = guard.wait(&not_empty).await.unwrap();
            let had_one = tokens.load(Ordering::SeqCst) > 0;
            if had_one {
                tokens.fetch_sub(1, Ordering::SeqCst);
                // It dies while it holds the lock.
                std::mem::forget(guard);
            }
            had_one
        }
    });
    tokio::time::sleep(after).await;
    if dies {
        client.falls_silent();
    }
    taking.abort();
    let took = taking.await.unwrap_or(false);
    if took {
        // Its claims are gone with its process.
        client.falls_silent();
    }
    took
}

/// Puts as many tokens as there are takers, each with one notification, while other waiters leave or
/// die: if any notification stayed with one of those, a taker would wait for ever.
#[test]
fn no_wake_up_is_lost() {
    on_half_of_them(|mut world| async move {
        let tokens = Tokens::default();
        let takers = 1 + world.chance.below(4);
        let takers: Vec<_> = (0..takers)
            .map(|_| (world.client(), world.chance.ms(100)))
            .map(|(client, start)| {
                let tokens = tokens.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(start).await;
                    take(client.locks, tokens).await;
                })
            })
            .collect();
        let quitters: Vec<_> = (0..world.chance.below(4))
            .map(|_| {
                let (start, after) = (world.chance.ms(100), world.chance.ms(400));
                let (client, dies) = (world.client(), world.chance.below(2) == 0);
                let tokens = tokens.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(start).await;
                    quit(client, tokens, after, dies).await
                })
            })
            .collect();
        let putter = world.client();
        for _ in 0..takers.len() {
            tokio::time::sleep(world.chance.ms(150)).await;
            put(&putter.locks, &tokens).await;
        }
        for quitter in quitters {
            if quitter.await.unwrap() {
                put(&putter.locks, &tokens).await;
            }
        }
        for taker in takers {
            taker.await.unwrap();
        }
        assert_eq!(tokens.load(Ordering::SeqCst), 0);
    });
}

/// One notification for all wakes all, even if others leave or die, and a notifier that dies notifies
/// all or none.
#[test]
fn all_are_woken() {
    on_half_of_them(|mut world| async move {
        let open = Tokens::default();
        let waiters: Vec<_> = (0..1 + world.chance.below(5))
            .map(|_| (world.client(), world.chance.ms(100)))
            .map(|(client, start)| {
                let open = open.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(start).await;
                    let (mutex, condition) = queue(&client.locks);
                    let mut guard = mutex.lock().await.unwrap();
                    while open.load(Ordering::SeqCst) == 0 {
                        guard = guard.wait(&condition).await.unwrap();
                    }
                    guard.release().await.unwrap();
                })
            })
            .collect();
        tokio::time::sleep(world.chance.ms(200)).await;
        let dying = world.client();
        let (notify_for, mut chance) = (world.chance.ms(40), world.chance.fork());
        let notifying = tokio::spawn({
            let (locks, open) = (dying.locks.clone(), open.clone());
            async move {
                let (mutex, condition) = queue(&locks);
                let guard = mutex.lock().await.unwrap();
                open.store(1, Ordering::SeqCst);
                tokio::time::sleep(chance.ms(20)).await;
                guard.notify_all(&condition).await.unwrap();
            }
        });
        tokio::time::sleep(notify_for).await;
        dying.falls_silent();
        notifying.abort();
        let _ = notifying.await;
        // Whether or not the notifier notified them, another client notifies them again.
        let other = world.client();
        let (mutex, condition) = queue(&other.locks);
        let guard = mutex.lock().await.unwrap();
        open.store(1, Ordering::SeqCst);
        guard.notify_all(&condition).await.unwrap();
        guard.release().await.unwrap();
        for waiter in waiters {
            waiter.await.unwrap();
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_timed_wait_ends_with_the_lock_and_says_why() {
    let locks = Client::open("mem:").await.unwrap();
    let (mutex, condition) = queue(&locks);
    let guard = mutex.lock().await.unwrap();
    let first = guard.fence();
    let (guard, outcome) = guard.wait_for(&condition, Duration::from_millis(50)).await.unwrap();
    assert_eq!(outcome, WaitOutcome::TimedOut);
    assert!(guard.fence() > first);
    assert!(mutex.try_lock().await.unwrap().is_none());
    // A waiter that has left is not notified: no waiter is.
    guard.notify_one(&condition).await.unwrap();
    let (guard, outcome) = guard.wait_for(&condition, Duration::from_millis(50)).await.unwrap();
    assert_eq!(outcome, WaitOutcome::TimedOut);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn condition_refuses_locks_it_cannot_wait_under() {
    let locks = Client::open("mem:").await.unwrap();
    let condition = locks.condition("c");
    let refused = |error: leasehold::Error| assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    refused(locks.rwlock("r").read().await.unwrap().wait(&condition).await.unwrap_err());
    refused(locks.semaphore("s", 2).acquire().await.unwrap().notify_one(&condition).await.unwrap_err());
    let owner = leasehold::Owner::new();
    let mutex = locks.mutex("m").owner(&owner);
    let (one, two) = (mutex.lock().await.unwrap(), mutex.lock().await.unwrap());
    refused(one.wait(&condition).await.unwrap_err());
    two.release().await.unwrap();
    // All waiters on one condition use one lock.
    let waiting = tokio::spawn({
        let (mutex, condition) = (locks.mutex("m"), condition.clone());
        async move { mutex.lock().await.unwrap().wait(&condition).await }
    });
    let other = locks.mutex("another").lock().await.unwrap();
    let error = loop {
        match other.notify_one(&condition).await {
            Ok(()) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => break error,
        }
    };
    refused(error);
    refused(other.wait(&condition).await.unwrap_err());
    locks.close(Duration::from_secs(5)).await;
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_neither_waits_nor_notifies() {
    let [client] = clients();
    let (mutex, condition) = queue(&client.locks);
    let guard = mutex.max_hold(Duration::from_millis(20)).lock().await.unwrap();
    guard.lost().await;
    let before = client.calls(Verb::Swap);
    assert!(guard.notify_all(&condition).await.unwrap_err().is_lost());
    assert!(guard.wait(&condition).await.unwrap_err().is_lost());
    assert_eq!(client.calls(Verb::Swap), before, "nothing was written");
}

/// The next holder may have notified before this task entered the queue of waiters.
#[tokio::test(start_paused = true)]
async fn wait_under_a_lock_that_the_store_has_lost_reports_that() {
    for lingers in [true, false] {
        let [ours, theirs] = clients();
        let (mutex, condition) = queue(&ours.locks);
        let mutex = if lingers { mutex.linger(TTL) } else { mutex };
        let guard = mutex.lock().await.unwrap();
        let holder = theirs.locks.inspect("queue").await.unwrap().holders[0].clone();
        theirs.locks.break_claim("queue", &holder).await.unwrap();
        put(&theirs.locks, &Tokens::default()).await;
        guard.check().expect("its process does not know yet");
        // A task of this process that waits gets the lock by a hand-off.
        let mut next = std::pin::pin!(async { if lingers { None } else { Some(mutex.lock().await) } });
        assert_eq!(futures_util::poll!(&mut next).is_pending(), !lingers);
        let waited = tokio::time::timeout(20 * TTL, guard.wait(&condition)).await;
        let error = waited.expect("it sleeps, and was notified before").unwrap_err();
        assert!(error.is_lost(), "{error}");
    }
}

#[tokio::test]
async fn condition_leaves_nothing_after_its_waiters() {
    let locks = Client::open("mem:").await.unwrap();
    let tokens = Tokens::default();
    let takers: Vec<_> = (0..10).map(|_| tokio::spawn(take(locks.clone(), tokens.clone()))).collect();
    for _ in 0..10 {
        put(&locks, &tokens).await;
    }
    for taker in takers {
        taker.await.unwrap();
    }
    let (registers, at) =
        (locks.backend().registers().unwrap(), leasehold::Resource::new("not empty!condition").unwrap());
    for _ in 0..1000 {
        if registers.read(&at).await.unwrap().value.is_none()
            && locks.list("", None, 9).await.unwrap().is_empty()
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("left behind: {:?}, {:?}", registers.read(&at).await, locks.list("", None, 9).await);
}

/// The guard is the only one when the wait begins, and no longer when it is released.
#[tokio::test(start_paused = true)]
async fn wait_is_refused_if_its_owner_acquires_the_lock_once_more() {
    let [client] = clients();
    let (mutex, condition) = queue(&client.locks);
    let mutex = mutex.owner(&Owner::new());
    let guard = mutex.lock().await.unwrap();
    client.fault(Verb::Swap, Mode::LateReply(Duration::from_millis(50)));
    let waiting = tokio::spawn({
        let condition = condition.clone();
        async move { guard.wait(&condition).await }
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    let again = mutex.lock().await.unwrap();
    client.fault(Verb::Swap, Mode::Pass);
    let waited = tokio::time::timeout(20 * TTL, waiting).await.expect("it waits, and the lock is held");
    let error = waited.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    // It leaves the queue of waiters in the background.
    tokio::time::sleep(Duration::from_millis(10)).await;
    again.notify_one(&condition).await.unwrap();
    let (guard, outcome) = again.wait_for(&condition, Duration::from_millis(50)).await.unwrap();
    assert_eq!(outcome, WaitOutcome::TimedOut);
    guard.release().await.unwrap();
}

/// The settings of the first guard of an owner apply to all of them.
#[tokio::test(start_paused = true)]
async fn wait_under_a_re_entered_lock_keeps_its_ttl() {
    let [client] = clients();
    let (mutex, condition) = queue(&client.locks);
    let without = mutex.owner(&Owner::new());
    let with = without.clone().lock_delay(3 * TTL);
    for (first, second) in [(&without, &with), (&with, &without)] {
        let (outer, inner) = (first.lock().await.unwrap(), second.lock().await.unwrap());
        outer.release().await.unwrap();
        let (guard, _) = inner.wait_for(&condition, Duration::from_millis(50)).await.unwrap();
        assert!((TTL / 2..TTL).contains(&guard.remaining()), "{:?}", guard.remaining());
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn condition_whose_waiters_are_dead_takes_another_lock() {
    for waits in [false, true] {
        let [dying, other] = clients();
        let waiting = tokio::spawn({
            let (mutex, condition) = queue(&dying.locks);
            async move { mutex.lock().await.unwrap().wait(&condition).await }
        });
        tokio::time::sleep(TTL / 2).await;
        let (_, condition) = queue(&other.locks);
        let guard = other.locks.mutex("another").ttl(TTL).lock().await.unwrap();
        let error = guard.notify_all(&condition).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "its waiter lives: {error}");
        dying.falls_silent();
        waiting.abort();
        tokio::time::sleep(2 * TTL).await;
        if waits {
            let (guard, outcome) = guard.wait_for(&condition, TTL).await.unwrap();
            assert_eq!(outcome, WaitOutcome::TimedOut);
            guard.release().await.unwrap();
        } else {
            guard.notify_all(&condition).await.unwrap();
        }
    }
}

const TTL: Duration = Duration::from_secs(3);
