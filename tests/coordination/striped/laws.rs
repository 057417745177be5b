//! A lock in stripes: one holder of each, a single stripe, the report, and waiters for any stripe.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::layer::{Mode, Verb};
use leasehold::{Client, ErrorKind, StripeReport, StripeUse};

use crate::history::{Event, crowds};
use crate::world::{clients, is_whole_campaign};

const ROUNDS: usize = 2;

async fn memory() -> Client {
    Client::open("mem:").await.unwrap()
}

#[tokio::test]
async fn single_stripe_works_as_a_mutex() {
    let locks = memory().await;
    let stock = locks.striped_mutex("stock", 1);
    let guard = stock.lock_any().await.unwrap();
    assert!(stock.try_lock_any().await.unwrap().is_none());
    let waiter = stock.lock_any();
    let freed = async { guard.release().await };
    let (next, freed) = tokio::join!(waiter, freed);
    assert!(next.is_ok() && freed.is_ok());
}

#[tokio::test]
async fn impossible_stripe_count_is_refused_by_each_call() {
    let locks = memory().await;
    for count in [0, 65_537] {
        let stock = locks.striped_mutex("stock", count);
        let refused = [
            stock.lock_any().await.err(),
            stock.try_lock_any().await.err(),
            stock.try_lock_any_for(Duration::from_secs(60)).await.err(),
            stock.for_key("key").lock().await.err(),
            stock.stripe(7).try_lock().await.err(),
            stock.all().lock().await.err(),
        ];
        for error in refused {
            let error = error.unwrap();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("between 1 and 65536"), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn striped_lock_waits_out_an_outage_at_the_first_try() {
    let [client] = clients();
    let stock = client.locks.striped_mutex("stock", 3);
    for wait in ["any", "stripe"] {
        client.fault(Verb::Contend, Mode::Refuse);
        let before = client.calls(Verb::Contend);
        let (stock, asked) = (stock.clone(), client.clone());
        let waiting = tokio::spawn(async move {
            match wait {
                "any" => stock.lock_any().await,
                _ => stock.for_key("key").lock().await,
            }
        });
        // The first try has failed by now, and the waiter tries again.
        while asked.calls(Verb::Contend) < before + 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client.fault(Verb::Contend, Mode::Pass);
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
}

/// The check for other waiters belongs to the wait, and to its limit.
#[tokio::test(start_paused = true)]
async fn timed_lock_any_ends_in_time_although_a_try_hangs() {
    let [client] = clients();
    let stripe = client.locks.striped_mutex("stock", 3).for_key("key");
    client.fault(Verb::Contend, Mode::Hang);
    let began = tokio::time::Instant::now();
    let waiting =
        tokio::time::timeout(Duration::from_secs(60), stripe.try_lock_for(Duration::from_millis(100)));
    // Nothing is known of the lock, and the last try has a limit of its own.
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    client.fault(Verb::Contend, Mode::Pass);
    let guard = stripe.try_lock_for(Duration::from_secs(60)).await.unwrap().unwrap();
    assert!(stripe.try_lock_for(Duration::ZERO).await.unwrap().is_none());
    guard.release().await.unwrap();
    stripe.try_lock_for(Duration::ZERO).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stripes_exclude_and_their_report_counts_waits() {
    let locks = memory().await;
    let stock = locks.striped_mutex("stock", 3);
    let left: Arc<Vec<AtomicU32>> = Arc::new((0..3).map(|_| AtomicU32::new(40)).collect());
    // Else each buyer may be done before the next one begins.
    let whole = stock.all().lock().await.unwrap();
    let mut buyers = Vec::new();
    for buyer in 0..200 {
        let (stock, left) = (stock.clone(), left.clone());
        buyers.push(tokio::spawn(async move {
            let stripe = stock.for_key(format!("buyer/{buyer}"));
            let guard = stripe.lock().await.unwrap();
            let pieces = &left[stripe.number() as usize];
            // Read, wait, write: sold twice unless the lock holds.
            let seen = pieces.load(Ordering::SeqCst);
            tokio::task::yield_now().await;
            let sold = seen > 0;
            if sold {
                pieces.store(seen - 1, Ordering::SeqCst);
            }
            guard.release().await.unwrap();
            u32::from(sold)
        }));
    }
    let begun = Instant::now();
    while stock.report().stripes.iter().all(|stripe| stripe.waited == 0) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no buyer waits");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    whole.release().await.unwrap();
    let mut sold = 0;
    for buyer in buyers {
        sold += buyer.await.unwrap();
    }
    let rest: u32 = left.iter().map(|pieces| pieces.load(Ordering::SeqCst)).sum();
    assert_eq!(sold + rest, 120);
    let report = stock.report();
    assert_eq!(report.stripes.iter().map(|stripe| stripe.taken).sum::<u64>(), 200);
    assert!(report.contention() > 0.0 && report.recommended().unwrap() > 3, "{report}");
}

/// An attempt that ends without the stripe is an attempt all the same.
#[tokio::test]
async fn report_counts_attempts_that_ended_without_a_grant() {
    let locks = memory().await;
    let stock = locks.striped_mutex("stock", 2);
    let held = stock.stripe(0).lock().await.unwrap();
    for _ in 0..50 {
        assert!(stock.stripe(0).try_lock().await.unwrap().is_none());
        assert!(stock.stripe(0).try_lock_for(Duration::from_millis(1)).await.unwrap().is_none());
        stock.stripe(1).lock().await.unwrap().release().await.unwrap();
    }
    let report = stock.report();
    let counted = |number: usize| (report.stripes[number].attempts, report.stripes[number].waited);
    assert_eq!((counted(0), counted(1)), ((101, 100), (50, 0)), "{report}");
    assert!((report.contention() - 100.0 / 151.0).abs() < 1e-9, "{report}");
    assert_eq!(report.recommended(), Some(27), "{report}");

    // Those for any stripe: one that is granted, one that is refused, and one that waits in vain.
    let other = stock.try_lock_any().await.unwrap().unwrap();
    assert!(stock.try_lock_any().await.unwrap().is_none());
    assert!(stock.try_lock_any_for(Duration::from_millis(1)).await.unwrap().is_none());
    let after = stock.report();
    let sum =
        |report: &StripeReport, part: fn(&StripeUse) -> u64| report.stripes.iter().map(part).sum::<u64>();
    assert_eq!(sum(&after, |one| one.attempts) - sum(&report, |one| one.attempts), 3, "{after}");
    assert_eq!(sum(&after, |one| one.waited) - sum(&report, |one| one.waited), 2, "{after}");
    assert_eq!(sum(&after, |one| one.taken) - sum(&report, |one| one.taken), 1, "{after}");
    held.release().await.unwrap();
    other.release().await.unwrap();
}

#[tokio::test]
async fn lock_any_takes_a_stripe_that_becomes_free_later() {
    let locks = memory().await;
    let stock = locks.striped_mutex("stock", 6);
    let mut guards = Vec::new();
    for number in 0..6 {
        guards.push(stock.stripe(number).lock().await.unwrap());
    }
    // Wherever the waiter is queued, there are four stripes where it is not, and each of them will do.
    for number in 0..6 {
        let waiting = tokio::spawn({
            let stock = stock.clone();
            async move { stock.lock_any().await.unwrap() }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        guards.remove(0).release().await.unwrap();
        let guard = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
        assert_eq!(guard.resource().as_str(), format!("stock#{number}"));
        guards.push(guard);
    }
}

#[test]
fn segments_have_one_holder_each() {
    let events = crowds(|locks, history, mut chance| async move {
        let stock = locks.striped_mutex("stock", 3);
        for _ in 0..ROUNDS {
            chance.pause().await;
            let guards = match chance.below(5) {
                0 => stock.try_lock_any().await.unwrap().into_iter().collect(),
                1 => vec![stock.for_key(chance.below(9).to_string()).lock().await.unwrap()],
                2 => {
                    let whole = stock.all().lock().await.unwrap();
                    for (number, guard) in whole.guards().iter().enumerate() {
                        history.note(Event::Took(number, guard.fence().unwrap()));
                    }
                    chance.pause().await;
                    (0..3).for_each(|number| history.note(Event::Gives(number)));
                    drop(whole);
                    Vec::new()
                }
                _ => vec![stock.lock_any().await.unwrap()],
            };
            for guard in guards {
                let number = guard.resource().as_str().rsplit_once('#').unwrap().1.parse().unwrap();
                history.note(Event::Took(number, guard.fence().unwrap()));
                chance.pause().await;
                history.note(Event::Gives(number));
                guard.release().await.unwrap();
            }
        }
    });
    assert!(events > 10_000 || !is_whole_campaign(), "{events} events are too few for a campaign");
}
