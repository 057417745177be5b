//! A part of the store that hangs delays nothing in other parts; in virtual time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::backend::LossCause;
use leasehold::{Client, ErrorKind, Guard, State};

use super::odd::{Call, World, fail, hang, late, pass, refuse};
use crate::common::ms;

const TTL: Duration = Duration::from_secs(5);

async fn held(world: &World, prefix: &str, count: u32) -> Vec<Guard> {
    let mut guards = Vec::new();
    for number in 0..count {
        guards.push(world.locks.mutex(format!("{prefix}/{number}")).ttl(TTL).lock().await.unwrap());
    }
    guards
}

#[tokio::test(start_paused = true)]
async fn a_part_that_hangs_makes_no_other_lease_suspect() {
    let world = World::new(|call, _, about| match call {
        Call::Renew if about.starts_with("dead") => hang(),
        _ => pass(),
    });
    let live = held(&world, "live", 1_000).await;
    let dead = held(&world, "dead", 10).await;
    tokio::time::sleep(TTL * 10).await;
    assert_eq!((world.event_log.count("suspected", "live"), world.event_log.count("lost", "live")), (0, 0));
    assert!(world.event_log.count("renewed", "live") >= 1_000 * 10);
    assert!(live.iter().all(|guard| guard.state() == State::Valid));
    assert!(dead.iter().all(|guard| guard.state() == State::Lost(LossCause::Expired)));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_never_answered_is_overtaken_by_the_next() {
    let world = World::new(|call, number, _| match (call, number) {
        (Call::Renew, 1) => hang(),
        _ => pass(),
    });
    let guard = world.locks.mutex("job").ttl(TTL).lock().await.unwrap();
    tokio::time::sleep(TTL * 10).await;
    assert_eq!(guard.state(), State::Valid);
    assert_eq!(world.event_log.count("suspected", "job"), 1, "when it was overdue, and not again");
}

#[tokio::test(start_paused = true)]
async fn failure_after_a_later_confirmation_is_ignored() {
    let world = World::new(|call, number, _| match (call, number) {
        (Call::Renew, 1) => fail(ms(1_000)),
        _ => pass(),
    });
    let guard = world.locks.mutex("job").ttl(TTL).lock().await.unwrap();
    tokio::time::sleep(TTL * 10).await;
    assert_eq!(guard.state(), State::Valid);
    assert_eq!(world.event_log.count("suspected", "job"), 1);
}

#[tokio::test(start_paused = true)]
async fn overtaken_confirmation_does_not_end_suspicion() {
    let world = World::new(|call, number, _| match (call, number) {
        (Call::Renew, 1) => late(ms(2_500)),
        (Call::Renew, 2) => pass(),
        (Call::Renew, _) => hang(),
        _ => pass(),
    });
    let guard = world.locks.mutex("job").ttl(TTL).lock().await.unwrap();
    tokio::time::sleep(TTL * 3).await;
    assert_eq!(guard.state(), State::Lost(LossCause::Expired));
    // When the first was overdue, and when the third was: the answer to the first came after that.
    assert_eq!(world.event_log.count("suspected", "job"), 2);
}

#[tokio::test(start_paused = true)]
async fn renewals_continue_although_several_hang() {
    let world = World::new(|call, number, _| match (call, number) {
        (Call::Renew, 1..=5) => hang(),
        _ => pass(),
    });
    let guard = world.locks.mutex("job").ttl(TTL).lock().await.unwrap();
    tokio::time::sleep(TTL * 3).await;
    assert_eq!(guard.state(), State::Valid);
    assert_eq!(world.event_log.count("lost", ""), 0);
}

/// Releases that cannot be delivered, at once or after the patience of the backend, delay none elsewhere.
async fn releases_elsewhere_are_prompt(after: Duration) {
    let world = World::new(move |call, _, about| match call {
        Call::Release if about.starts_with("dead") => fail(after),
        _ => pass(),
    });
    for guard in held(&world, "dead", 200).await {
        drop(guard);
        // Each a call of its own.
        tokio::task::yield_now().await;
    }
    for round in 0..20 {
        let guard = world.locks.mutex("live").ttl(TTL).lock().await.unwrap();
        let began = tokio::time::Instant::now();
        guard.release().await.unwrap();
        assert!(began.elapsed() < ms(100), "round {round}: {:?}", began.elapsed());
        tokio::time::sleep(ms(100)).await;
    }
    // The releases are retried for as long as the leases could last, and then the queues continue.
    let next = world.locks.mutex("dead/7").ttl(TTL).try_lock_for(TTL * 4).await.unwrap().unwrap();
    assert_eq!(next.state(), State::Valid);
}

#[tokio::test(start_paused = true)]
async fn releases_that_are_refused_delay_none_elsewhere() {
    releases_elsewhere_are_prompt(ms(0)).await;
}

#[tokio::test(start_paused = true)]
async fn releases_that_hang_for_long_delay_none_elsewhere() {
    releases_elsewhere_are_prompt(ms(5_000)).await;
}

#[tokio::test(start_paused = true)]
async fn close_succeeds_despite_an_earlier_unanswered_release() {
    let world = World::new(|call, number, _| match (call, number) {
        (Call::Release, 1) => Box::pin(std::future::ready(Err(leasehold::backend::Failure::new(
            leasehold::backend::FailureKind::Denied,
            leasehold::backend::Effect::Unknown,
            "no (odd)",
        )))),
        _ => pass(),
    });
    drop(world.locks.mutex("job").ttl(TTL).lock().await.unwrap());
    tokio::time::sleep(ms(100)).await;
    assert_eq!(world.store.calls(Call::Release), 1);
    let _held = world.locks.mutex("other").ttl(TTL).lock().await.unwrap();
    assert!(world.locks.close(TTL).await);
}

/// If the store answers all requests from the close on, the close succeeds, even if requests hung
/// before.
#[tokio::test(start_paused = true)]
async fn close_is_answered_by_a_store_that_came_back() {
    for back_after in (4_000..16_000).step_by(500).map(ms) {
        let began = tokio::time::Instant::now();
        let world = World::new(move |call, _, _| match call {
            // Like many clients of a server that hangs: the call gives up after a while.
            Call::Renew | Call::Release if began.elapsed() < back_after => fail(ms(3_000)),
            _ => pass(),
        });
        let guards = held(&world, "job", 3).await;
        tokio::time::sleep_until(began + back_after).await;
        assert!(world.locks.close(ms(10_000)).await, "it came back after {back_after:?}");
        drop(guards);
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspend_is_noticed_soon_after_the_first_lock_was_taken() {
    let world = World::new(|_, _, _| pass());
    let guard = world.locks.mutex("job").ttl(ms(30_000)).lock().await.unwrap();
    tokio::time::sleep(ms(300)).await;
    world.clock.sleeps(ms(60_000));
    // The next renewal would be ten seconds later, by a timer that slept along.
    tokio::time::sleep(ms(1_100)).await;
    assert_eq!(world.event_log.count("lost", "job"), 1, "no call had to ask for it");
    assert_eq!(guard.state(), State::Lost(LossCause::Expired));
}

/// As long as it is held: the first look of the task that renews is long over.
#[tokio::test(start_paused = true)]
async fn a_suspend_is_noticed_soon_at_any_time() {
    let world = World::new(|_, _, _| pass());
    let guard = world.locks.mutex("job").ttl(ms(30_000)).lock().await.unwrap();
    for _ in 0..5 {
        tokio::time::sleep(ms(1_700)).await;
        guard.check().unwrap();
    }
    world.clock.sleeps(ms(60_000));
    tokio::time::sleep(ms(1_100)).await;
    assert_eq!(world.event_log.count("lost", "job"), 1, "no call had to ask for it");
    assert_eq!(guard.state(), State::Lost(LossCause::Expired));
}

#[tokio::test(start_paused = true)]
async fn a_suspend_counts_for_the_limit_of_a_wait() {
    let world = World::new(|_, _, _| pass());
    let other = Client::builder().clock(world.clock.clone()).over(world.store.clone()).unwrap();
    let guard = world.locks.mutex("job").ttl(ms(600_000)).lock().await.unwrap();
    let mutex = other.mutex("job");
    let waits = tokio::spawn(async move { mutex.try_lock_for(ms(60_000)).await });
    tokio::time::sleep(ms(5_000)).await;
    world.clock.sleeps(ms(120_000));
    tokio::time::sleep(ms(2_500)).await;
    assert!(waits.is_finished(), "it waits beyond its limit");
    assert!(waits.await.unwrap().unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_suspend_counts_for_a_wait_for_another_value() {
    let world = World::new(|_, _, _| pass());
    let value = world.locks.versioned("value");
    let seen = value.read().await.unwrap();
    let waits = tokio::spawn({
        let (value, seen) = (value.clone(), seen.clone());
        async move { value.changed(&seen, ms(60_000)).await }
    });
    tokio::time::sleep(ms(5_000)).await;
    world.clock.sleeps(ms(120_000));
    tokio::time::sleep(ms(2_500)).await;
    assert!(waits.is_finished(), "it waits beyond its limit");
    assert_eq!(waits.await.unwrap().unwrap(), seen);
}

/// The pauses grow, so that a store that is slow is not asked ever more.
#[tokio::test(start_paused = true)]
async fn renewals_without_an_answer_are_sent_a_few_times() {
    let world = World::new(|call, _, _| match call {
        Call::Renew => hang(),
        _ => pass(),
    });
    let guard = world.locks.mutex("job").ttl(ms(10_000)).lock().await.unwrap();
    guard.lost().await;
    let calls = world.store.calls(Call::Renew);
    // Seven seconds, in steps of half a second to one.
    assert!((5..=13).contains(&calls), "{calls}");
}

/// A request whose answer was lost may still be on its way, and be granted after the holder has left.
#[tokio::test(start_paused = true)]
async fn try_withdraws_a_request_that_was_not_answered() {
    let world = World::new(|call, number, _| match (call, number) {
        (Call::Contend, 2) => fail(ms(0)),
        _ => pass(),
    });
    let guard = world.locks.mutex("job").ttl(TTL).lock().await.unwrap();
    let other = Client::builder().clock(world.clock.clone()).over(world.store.clone()).unwrap();
    assert!(other.mutex("job").try_lock().await.unwrap().is_none());
    assert_eq!(
        world.store.calls(Call::Contend),
        3,
        "it was sent once more, and the answer was that it is held"
    );
    tokio::time::sleep(ms(100)).await;
    assert_eq!(world.store.calls(Call::Release), 1, "the claim is withdrawn");
    assert_eq!(guard.state(), State::Valid);
    // One that was answered leaves nothing to withdraw.
    assert!(other.mutex("job").try_lock().await.unwrap().is_none());
    tokio::time::sleep(ms(100)).await;
    assert_eq!(world.store.calls(Call::Release), 1);
}

/// The same for a wait: its first request is lost, and the next one finds the lock held until patience ends.
#[tokio::test(start_paused = true)]
async fn bounded_wait_withdraws_a_request_that_was_not_answered() {
    for is_lost in [true, false] {
        let world = World::new(move |call, number, _| match (call, number) {
            (Call::Contend, 2) if is_lost => fail(ms(0)),
            _ => pass(),
        });
        let guard = world.locks.mutex("job").ttl(TTL).lock().await.unwrap();
        let other = Client::builder().clock(world.clock.clone()).over(world.store.clone()).unwrap();
        assert!(other.mutex("job").try_lock_for(ms(2_000)).await.unwrap().is_none());
        tokio::time::sleep(ms(100)).await;
        // The memory store gives up the place itself, so without a loss nothing is left to withdraw.
        assert_eq!(world.store.calls(Call::Release), u64::from(is_lost), "lost: {is_lost}");
        assert_eq!(guard.state(), State::Valid);
    }
}

/// A request is lost, the next one finds the lock held, and all later ones are refused before they are sent.
#[tokio::test(start_paused = true)]
async fn refusal_after_a_lost_request_and_an_answer_is_unknown() {
    for is_lost in [true, false] {
        let busy_attempt = if is_lost { 2 } else { 1 };
        let world = World::new(move |call, number, _| match call {
            Call::Contend if number < busy_attempt => fail(ms(0)),
            Call::Contend if number > busy_attempt => refuse(),
            _ => pass(),
        });
        world.store.busy_attempt.store(busy_attempt, Ordering::SeqCst);
        let error = world.locks.mutex("job").ttl(TTL).lock().await.unwrap_err();
        let expected = if is_lost { ErrorKind::OutcomeUnknown } else { ErrorKind::Unavailable };
        assert_eq!(error.kind(), expected, "lost: {is_lost}: {error}");
        tokio::time::sleep(ms(100)).await;
        // Without a loss, too: the answer was that the claim has a place in the queue.
        assert!(world.store.calls(Call::Release) > 0, "the claim is withdrawn");
    }
}
