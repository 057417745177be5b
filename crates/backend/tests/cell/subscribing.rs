//! A waiter of a client that does not listen to the store yet.

use std::time::Duration;

use crate::store::{Faults, LONG, Store, TABLE, claim, clock, try_take};
use leasehold_backend::cell::PLACE_TTL;
use leasehold_core::{Backend, Patience, Step};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_free_lock_needs_no_subscription() {
    let (client, notifier) = Store::new().open_unconnected();
    let subscribed = tokio::spawn({
        let notifier = notifier.clone();
        async move { notifier.until_subscribed().await }
    });
    let patience = Patience::unlimited(clock());
    let step = client.contend(&claim("job", LONG), &patience).await.unwrap();
    assert!(matches!(step, Step::Granted(_)));
    tokio::task::yield_now().await;
    assert!(!subscribed.is_finished());
}

/// The release comes while the answer to the first try is on its way: nobody is notified of it.
#[tokio::test(start_paused = true)]
async fn a_release_before_the_subscription_is_seen_at_once() {
    let store = Store::new();
    let holder = store.open(TABLE, Faults::default());
    let held = claim("job", LONG);
    try_take(&holder, &held).await.unwrap();
    let (waiter, notifier) = store.open_unconnected();
    let answer = store.stall_an_answer();
    let wanted = claim("job", LONG);
    let patience = Patience::unlimited(clock());
    let waiting = tokio::spawn(async move { waiter.contend(&wanted, &patience).await });
    store.until_answer_stalls().await;
    holder.release(&[&held]).await;
    // Another waiter of the same client has made it listen.
    notifier.mark_connected();
    let began = Instant::now();
    answer.add_permits(1);
    assert!(matches!(waiting.await.unwrap(), Ok(Step::Granted(_))));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_nobody_notifies_looks_by_itself() {
    let store = Store::new();
    let holder = store.open(TABLE, Faults::default());
    let held = claim("job", LONG);
    try_take(&holder, &held).await.unwrap();
    let (waiter, _notifier) = store.open_unconnected();
    store.notify_nobody();
    let waiting =
        tokio::spawn(async move { waiter.contend(&claim("job", LONG), &Patience::unlimited(clock())).await });
    let (before, seizures) = (store.requests(), store.seizures());
    tokio::time::sleep(Duration::from_secs(15)).await;
    // Every 300 to 400 ms, a read and perhaps a write.
    let requests = store.requests() - before;
    assert!((30..=110).contains(&requests), "{requests}");
    assert_eq!(store.seizures() - seizures, 1, "claims live in the cell");
    holder.release(&[&held]).await;
    let began = Instant::now();
    assert!(matches!(waiting.await.unwrap(), Ok(Step::Granted(_))));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_listens_sends_nothing_until_it_is_called() {
    let store = Store::new();
    let holder = store.open(TABLE, Faults::default());
    let held = claim("job", LONG);
    try_take(&holder, &held).await.unwrap();
    let waiter = store.open(TABLE, Faults::default());
    let waiting =
        tokio::spawn(async move { waiter.contend(&claim("job", LONG), &Patience::unlimited(clock())).await });
    let turns = async || {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        store.requests()
    };
    let asked = turns().await;
    assert_eq!(turns().await, asked);
    // It asks again when a third of the time of its place is over.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(turns().await, asked);
    tokio::time::sleep(PLACE_TTL / 3).await;
    assert!(turns().await > asked, "a claim that is silent loses its place");
    holder.release(&[&held]).await;
    assert!(matches!(waiting.await.unwrap(), Ok(Step::Granted(_))));
}

#[tokio::test(start_paused = true)]
async fn claim_that_ends_with_its_first_request_is_not_subscribed() {
    let store = Store::new();
    let holder = store.open(TABLE, Faults::default());
    try_take(&holder, &claim("job", LONG)).await.unwrap();
    let (waiter, notifier) = store.open_unconnected();
    let subscribed = tokio::spawn(async move { notifier.until_subscribed().await });
    let (answer, patience) = (store.stall_an_answer(), Patience::unlimited(clock()));
    let end = async {
        store.until_answer_stalls().await;
        patience.end();
        answer.add_permits(1);
    };
    let wanted = claim("job", LONG);
    let (step, ()) = tokio::join!(waiter.contend(&wanted, &patience), end);
    assert!(matches!(step, Ok(Step::Busy(hint)) if hint.ahead == Some(1)));
    tokio::task::yield_now().await;
    assert!(!subscribed.is_finished());
}

/// The next in the queue has died. The one behind it asks once, and then waits as before.
#[tokio::test(start_paused = true)]
async fn waiter_checks_once_whether_another_answers_its_call() {
    let store = Store::new();
    let holder = store.open(TABLE, Faults::default());
    let held = claim("job", LONG);
    try_take(&holder, &held).await.unwrap();
    let waiting = async || {
        let seen = holder.inspect(&held.resource, None, &Patience::none(clock())).await.unwrap();
        seen.waiting.len()
    };
    let start = || {
        let waiter = store.open(TABLE, Faults::default());
        tokio::spawn(async move { waiter.contend(&claim("job", LONG), &Patience::unlimited(clock())).await })
    };
    let dead = start();
    while waiting().await < 1 {}
    dead.abort();
    assert!(dead.await.unwrap_err().is_cancelled());
    let lives = start();
    while waiting().await < 2 {}
    holder.release(&[&held]).await;
    let before = store.requests();
    // The call is unanswered for 250 ms, and the waiter is the second.
    tokio::time::sleep(Duration::from_millis(255)).await;
    assert_eq!(store.requests(), before);
    tokio::time::sleep(Duration::from_millis(4)).await;
    assert!(store.requests() > before);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let requests = store.requests() - before;
    assert!(requests < 10, "{requests}");
    lives.abort();
}
