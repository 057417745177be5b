//! A striped lock: the stripe of a key, any free stripe, or all of them; and what dead processes leave
//! behind.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::{Client, StripedMutex};

use crate::fixture::{Fixture, LIMIT, LIVING, Part, Primitive, TTL, assert_not_granted, within_limit};
use crate::player::Stage;

pub(crate) const PRIMITIVE: Primitive = Primitive {
    name: "striped",
    rules: |fixture| rules(fixture).boxed(),
    parts: &[
        Part {
            name: "holder",
            steps: 4,
            play: |stage, locks, name| hold(stage, locks, name).boxed(),
            around: |fixture, victim| {
                async move {
                    let stock = stock(&fixture.one, &victim.name(), LIVING);
                    victim.dies().await;
                    stock.for_key("key").try_lock_for(LIMIT).await.unwrap().unwrap().release().await.unwrap();
                }
                .boxed()
            },
        },
        // It is queued at two stripes.
        Part {
            name: "waiter",
            steps: 1,
            play: |stage, locks, name| {
                async move {
                    let guard = stage.during("waits for any", stock(locks, name, TTL).lock_any()).await?;
                    guard.release().await
                }
                .boxed()
            },
            around: |fixture, victim| {
                async move {
                    let name = victim.name();
                    let mut busy = Some(
                        stock(&fixture.one, &name, LIVING).all().try_lock_for(LIMIT).await.unwrap().unwrap(),
                    );
                    if victim.survives() {
                        drop(busy.take());
                    }
                    victim.dies().await;
                    drop(busy);
                    let whole =
                        stock(&fixture.two, &name, LIVING).all().try_lock_for(LIMIT).await.unwrap().unwrap();
                    whole.release().await.unwrap();
                }
                .boxed()
            },
        },
        Part {
            name: "whole",
            steps: 3,
            play: |stage, locks, name| {
                async move {
                    let guard = stage.during("takes all", stock(locks, name, TTL).all().lock()).await?;
                    stage.at("holds all").await;
                    stage.during("releases all", guard.release()).await
                }
                .boxed()
            },
            around: |fixture, victim| {
                async move {
                    let stock = stock(&fixture.one, &victim.name(), LIVING);
                    victim.dies().await;
                    let mut guards = Vec::new();
                    for _ in 0..stock.count() {
                        guards.push(stock.try_lock_any_for(LIMIT).await.unwrap().unwrap());
                    }
                    for guard in guards {
                        guard.release().await.unwrap();
                    }
                }
                .boxed()
            },
        },
    ],
};

fn stock(locks: &Client, name: &str, ttl: Duration) -> StripedMutex {
    locks.striped_mutex(name, 3).with(|stripe| stripe.ttl(ttl))
}

async fn hold(stage: &Stage, locks: &Client, name: &str) -> leasehold::Result<()> {
    stage.at("holds nothing").await;
    let guard = stage.during("takes its own", stock(locks, name, TTL).for_key("key").lock()).await?;
    stage.at("holds its own").await;
    stage.during("releases it", guard.release()).await
}

async fn rules(fixture: &Fixture) {
    a_key_has_one_segment_which_is_an_ordinary_mutex(fixture).await;
    any_takes_a_free_stripe_or_waits(fixture).await;
    nothing_is_sold_twice(fixture).await;
}

async fn a_key_has_one_segment_which_is_an_ordinary_mutex(fixture: &Fixture) {
    let mine = fixture.one.striped_mutex("striped/1", 12).for_key("customer/7");
    let guard = within_limit("its own", mine.lock()).await.unwrap();
    let name = format!("striped/1#{}", mine.number());
    assert_eq!(guard.resource().as_str(), name);
    let theirs = fixture.two.striped_mutex("striped/1", 12).for_key("customer/7");
    assert!(theirs.try_lock().await.unwrap().is_none());
    assert!(fixture.two.mutex(&name).try_lock().await.unwrap().is_none());
    assert_not_granted(SHORTLY, theirs.try_lock_for(SHORTLY)).await;
    guard.release().await.unwrap();
}

async fn any_takes_a_free_stripe_or_waits(fixture: &Fixture) {
    let (ours, theirs) =
        (fixture.one.striped_mutex("striped/2", 4), fixture.two.striped_mutex("striped/2", 4));
    let mut guards = Vec::new();
    for number in 0..4 {
        let stock = if number % 2 == 0 { &ours } else { &theirs };
        guards.push(within_limit("any", stock.lock_any()).await.unwrap());
    }
    let names: BTreeSet<_> = guards.iter().map(|guard| guard.resource().as_str().to_owned()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(theirs.try_lock_any().await.unwrap().is_none());
    assert_not_granted(SHORTLY, theirs.try_lock_any_for(SHORTLY)).await;
    let waiter = tokio::spawn(async move { within_limit("any", theirs.lock_any()).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    for guard in guards {
        guard.release().await.unwrap();
    }
    waiter.await.unwrap().unwrap().release().await.unwrap();
    // The waiter that was queued at two stripes left nothing at the other one.
    let whole = within_limit("all", ours.all().lock()).await.unwrap();
    assert_eq!(whole.guards().len(), 4);
    whole.release().await.unwrap();
}

async fn nothing_is_sold_twice(fixture: &Fixture) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    let left: Arc<Vec<AtomicU32>> = Arc::new((0..2).map(|_| AtomicU32::new(4)).collect());
    let mut buyers = Vec::new();
    for buyer in 0..12 {
        let locks = if buyer % 2 == 0 { &fixture.one } else { &fixture.two };
        let (stock, left) = (locks.striped_mutex("striped/3", 2), left.clone());
        buyers.push(tokio::spawn(async move {
            let stripe = stock.for_key(format!("buyer/{buyer}"));
            let guard = within_limit("a piece", stripe.lock()).await.unwrap();
            let pieces = &left[stripe.number() as usize];
            // Read, wait, write: sold twice unless the lock holds.
            let seen = pieces.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
            pieces.store(seen.saturating_sub(1), Ordering::SeqCst);
            guard.release().await.unwrap();
            u32::from(seen > 0)
        }));
    }
    let mut sold = 0;
    for buyer in buyers {
        sold += buyer.await.unwrap();
    }
    assert_eq!(sold + left.iter().map(|pieces| pieces.load(Ordering::SeqCst)).sum::<u32>(), 8);
}

const SHORTLY: Duration = Duration::from_millis(100);
