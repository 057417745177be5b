//! Claims that a quorum does not grant at once: when they try again, and what they subscribe to. The members are kept
//! in memory, and the time is virtual.

use std::sync::Arc;
use std::time::Duration;

use leasehold::TokioClock;
use leasehold::layer::Quorum;
use leasehold_core::{Backend, Fence, Patience, Step};

use crate::common::ms;
use crate::quorum_answers::{
    AnswersAfter, Ask, FailsAfter, NeverAnswers, Node, TTL, claim, contend, granted, holders, id, quorum,
    took,
};

/// Makes another client hold the lock for so long.
fn hold(nodes: &[Arc<Node>; 3], ends_in: Duration) {
    nodes.iter().for_each(|node| node.lock_for(id(2), Some(Fence::new(1, 1, 0)), ends_in));
}

/// Lets a claim wait.
fn waits(quorum: &Arc<Quorum>) -> tokio::task::JoinHandle<()> {
    let quorum = quorum.clone();
    tokio::spawn(async move { drop(granted(&quorum, &claim(1)).await) })
}

/// Three clients have a lock each, and none of them is granted.
async fn split() -> (Arc<Quorum>, [Arc<Node>; 3]) {
    let (quorum, nodes) = quorum().await;
    nodes[1].lock_for(id(2), None, TTL);
    nodes[2].lock_for(id(3), None, TTL);
    (quorum, nodes)
}

#[tokio::test(start_paused = true)]
async fn claim_among_several_tries_again_and_leaves_no_lock() {
    let (quorum, nodes) = split().await;
    let (step, time) = contend(&quorum, &claim(1), false).await;
    assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
    assert_eq!(nodes.each_ref().map(|node| node.is_asked(Ask::Prepare)), [4; 3]);
    assert!((ms(1)..ms(100)).contains(&time), "{time:?}");
    assert_eq!(holders(&nodes), [None, Some(id(2)), Some(id(3))]);
    // Each names the requests of its own try, as the ones before were withdrawn.
    assert!(nodes.iter().all(|node| *node.withdrawn.lock().unwrap() == [3; 4]), "{nodes:?}");
}

#[tokio::test(start_paused = true)]
async fn pauses_among_several_grow_with_the_time_that_a_try_takes() {
    let (quorum, nodes) = split().await;
    nodes.iter().for_each(|node| node.does(AnswersAfter(ms(400)), &[Ask::Prepare]));
    let mut pauses = Duration::ZERO;
    for _ in 0..5 {
        pauses += contend(&quorum, &claim(1), false).await.1 - ms(400) * 4;
    }
    // If a try takes no time, three pauses are 28 ms at most.
    assert!(pauses > ms(28) * 5, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn claim_that_waits_tries_until_it_is_granted() {
    let (quorum, nodes) = split().await;
    let waits = waits(&quorum);
    tokio::time::sleep(ms(20_000)).await;
    let tries = nodes[0].is_asked(Ask::Prepare);
    assert!((80..400).contains(&tries), "pauses of up to 250 ms: {tries} tries");
    *nodes[1].lock.lock().unwrap() = None;
    waits.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn claim_that_does_not_wait_subscribes_to_nothing() {
    let (quorum, nodes) = quorum().await;
    hold(&nodes, TTL);
    let (step, time) = contend(&quorum, &claim(1), false).await;
    assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
    took(time, Duration::ZERO);
    assert!(nodes.iter().all(|node| node.is_asked(Ask::Subscribe) == 0));
}

#[tokio::test(start_paused = true)]
async fn waiter_subscribes_once_however_often_it_tries() {
    let (quorum, nodes) = quorum().await;
    hold(&nodes, ms(100));
    let waits = waits(&quorum);
    tokio::time::sleep(ms(1_000)).await;
    let tries = nodes[0].is_asked(Ask::Prepare);
    assert!((9..=11).contains(&tries), "each time that the lease would have ended: {tries}");
    assert_eq!(nodes.each_ref().map(|node| node.is_asked(Ask::Subscribe)), [1; 3]);
    waits.abort();
}

/// The others report each release.
#[tokio::test(start_paused = true)]
async fn waiter_does_not_wait_for_the_subscription_of_a_minority() {
    let (quorum, nodes) = quorum().await;
    hold(&nodes, TTL);
    nodes[2].does(NeverAnswers, &[Ask::Subscribe]);
    let _waits = waits(&quorum);
    tokio::time::sleep(ms(10)).await;
    assert_eq!(nodes[0].is_asked(Ask::Prepare), 2, "once more after it has subscribed");
    tokio::time::sleep(ms(10_000)).await;
    assert_eq!(nodes[0].is_asked(Ask::Prepare), 2, "a release would be reported");
}

#[tokio::test(start_paused = true)]
async fn waiter_without_a_majority_of_subscriptions_asks_now_and_then() {
    let (quorum, nodes) = quorum().await;
    hold(&nodes, TTL);
    nodes[1..].iter().for_each(|node| *node.is_cut_off.lock().unwrap() = true);
    let _waits = waits(&quorum);
    tokio::time::sleep(ms(20_000)).await;
    let tries = nodes[0].is_asked(Ask::Prepare);
    assert!((26..=80).contains(&tries), "every 250 ms to 750 ms: {tries}");
}

#[tokio::test(start_paused = true)]
async fn member_that_refuses_a_subscription_is_asked_again_seldom() {
    let (quorum, nodes) = quorum().await;
    hold(&nodes, TTL);
    nodes[2].does(FailsAfter(Duration::ZERO), &[Ask::Subscribe]);
    let _waits = waits(&quorum);
    tokio::time::sleep(ms(70_000)).await;
    assert_eq!(nodes.each_ref().map(|node| node.is_asked(Ask::Subscribe)), [1, 1, 4], "every 20 s");
}

#[tokio::test(start_paused = true)]
async fn wait_that_ends_while_it_subscribes_asks_for_nothing_more() {
    let (quorum, nodes) = quorum().await;
    hold(&nodes, TTL);
    nodes.iter().for_each(|node| node.does(NeverAnswers, &[Ask::Subscribe]));
    let patience = Patience::unlimited(Arc::new(TokioClock::new()));
    let ours = claim(1);
    let ends = async {
        tokio::time::sleep(ms(100)).await;
        patience.end();
    };
    let (step, ()) = tokio::join!(quorum.contend(&ours, &patience), ends);
    assert!(matches!(step, Ok(Step::Busy(_))), "{step:?}");
    assert_eq!(nodes.each_ref().map(|node| node.is_asked(Ask::Prepare)), [1; 3]);
}

/// The pauses begin anew, because its rivals are others.
#[tokio::test(start_paused = true)]
async fn claim_that_has_waited_tries_soon_among_several_again() {
    let (quorum, nodes) = split().await;
    let _waits = waits(&quorum);
    tokio::time::sleep(ms(3_000)).await;
    hold(&nodes, ms(500));
    tokio::time::sleep(ms(260)).await;
    // When that lease ends, there are several again.
    let before = nodes[0].is_asked(Ask::Prepare);
    *nodes[0].lock.lock().unwrap() = None;
    nodes[1].lock_for(id(2), None, TTL);
    nodes[2].lock_for(id(3), None, TTL);
    while nodes[0].is_asked(Ask::Prepare) == before {
        tokio::time::sleep(ms(1)).await;
    }
    // Pauses of 4 ms, 8 ms and 16 ms at most.
    tokio::time::sleep(ms(32)).await;
    let tries = nodes[0].is_asked(Ask::Prepare) - before;
    assert!(tries >= 4, "{tries}");
}
