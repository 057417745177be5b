//! No waiter passes a latch before the last count, and each member counts once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::layer::{Mode, Verb};
use leasehold::local::MemoryBackend;
use leasehold::{Client, ErrorKind};

use crate::world::{World, on_half_of_them, soon, ticks};

/// Members count, are cut off in the middle of it or die, and are started anew: each is counted once,
/// and no waiter passes before all have begun to count.
#[test]
fn latch_opens_with_the_last_count_and_not_before() {
    on_half_of_them(|mut world| async move {
        let count = 1 + world.chance.below(6) as u32;
        let begun = Arc::new(AtomicU32::new(0));
        let waiters: Vec<_> = (0..1 + world.chance.below(3))
            .map(|_| {
                let (client, begun, start) = (world.client(), begun.clone(), world.chance.ms(200));
                tokio::spawn(async move {
                    tokio::time::sleep(start).await;
                    let latch = client.locks.latch("started", count);
                    while latch.wait().await.is_err() {}
                    assert_eq!(begun.load(Ordering::SeqCst), count, "it passed early");
                })
            })
            .collect();
        let members: Vec<_> = (0..count)
            .map(|member| {
                let (client, again) = (world.client(), world.client());
                let (begun, mut chance) = (begun.clone(), world.chance.fork());
                tokio::spawn(async move {
                    tokio::time::sleep(chance.ms(300)).await;
                    begun.fetch_add(1, Ordering::SeqCst);
                    let member = format!("member {member}");
                    let latch = client.locks.latch("started", count);
                    // It is cut off after a while, and perhaps its whole process.
                    let cut = tokio::time::timeout(chance.ms(30), latch.count_down_as(&member)).await;
                    if chance.below(3) == 0 {
                        client.falls_silent();
                    }
                    if !matches!(cut, Ok(Ok(()))) || chance.below(3) == 0 {
                        let latch = again.locks.latch("started", count);
                        while latch.count_down_as(&member).await.is_err() {}
                    }
                })
            })
            .collect();
        for task in members.into_iter().chain(waiters) {
            task.await.unwrap();
        }
        let late = world.calm_client();
        assert_eq!(late.locks.latch("started", count).remaining().await.unwrap(), 0);
    });
}

/// A count without a name is also made once, even if requests and answers are lost.
#[test]
fn a_count_is_made_once() {
    on_half_of_them(|mut world| async move {
        let clients: Vec<_> = (0..3).map(|_| world.client()).collect();
        let counts = clients.iter().map(|client| {
            let latch = client.locks.latch("counted", 9);
            async move {
                latch.count_down().await.unwrap();
                latch.count_down().await.unwrap();
            }
        });
        futures_util::future::join_all(counts).await;
        assert_eq!(world.calm_client().locks.latch("counted", 9).remaining().await.unwrap(), 3);
    });
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_limit_or_when_the_latch_is_taken_away() {
    let locks = Client::open("mem:").await.unwrap();
    let latch = locks.latch("l", 2);
    latch.count_down().await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(20), latch.wait()).await.is_err());
    let waiting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    latch.reset().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Broken);
    assert_eq!(latch.remaining().await.unwrap(), 2, "it is a new one");
    assert_eq!(
        locks.latch("l", 3).remaining().await.unwrap(),
        3,
        "no member has counted: it has no number yet"
    );
}

#[tokio::test]
async fn another_number_and_no_number_are_refused() {
    let locks = Client::open("mem:").await.unwrap();
    locks.latch("l", 2).count_down().await.unwrap();
    for wrong in [0, 3, u32::MAX] {
        let error = locks.latch("l", wrong).count_down().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(locks.latch("l", 2).remaining().await.unwrap(), 1);
}

/// The latch is made and the answer lost, it is removed, and it is made again before its waiter looks.
#[tokio::test(start_paused = true)]
async fn a_latch_whose_making_was_not_answered_is_made_anew_under_another_number() {
    let clock = ticks();
    let store = Arc::new(MemoryBackend::with_clock(clock.clone()).polling());
    let world = World { store, clock, ..World::at_once() };
    let [maker, waiter, others] = std::array::from_fn(|_| world.calm_client());
    let latch = others.locks.latch("started", 2);
    maker.fault(Verb::Swap, Mode::LoseReply);
    let counting = tokio::spawn({
        let latch = maker.locks.latch("started", 2);
        async move { latch.count_down_as("one").await }
    });
    while maker.calls(Verb::Swap) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    maker.fault(Verb::Read, Mode::Hang);
    let waiting = tokio::spawn({
        let latch = waiter.locks.latch("started", 2);
        async move { latch.wait().await }
    });
    // By then it looks now and then only.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!waiting.is_finished());
    latch.reset().await.unwrap();
    maker.fault(Verb::Swap, Mode::Pass);
    maker.fault(Verb::Read, Mode::Pass);
    soon("the count", counting).await.unwrap().unwrap();
    assert_eq!(latch.remaining().await.unwrap(), 1);
    let error = soon("the waiter", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
}
