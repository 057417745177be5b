//! Direct requests: what one write decides, and what is left to the slow path.

use std::sync::Arc;
use std::time::Duration;

use leasehold_backend::cell::CellBackend;
use leasehold_core::{Backend, Claim, DirectAnswer, DirectReply, Patience, Release, Share};

use crate::store::{CACHE, FateAtOnce, Faults, LONG, MemoryCells, Store, TABLE, claim, clock, try_take};

type Client = CellBackend<MemoryCells>;

fn opened() -> (Arc<Store>, Client, Client) {
    let store = Store::new();
    let (client, other) = (store.open(CACHE, Faults::default()), store.open(CACHE, Faults::default()));
    (store, client, other)
}

fn sent(client: &Client, claim: &Claim) -> Option<DirectAnswer> {
    client.direct_requests().unwrap().ask_directly(claim, clock().now())
}

async fn ask(client: &Client, claim: &Claim) -> DirectReply {
    sent(client, claim).unwrap().await
}

async fn is_freed(client: &Client, claim: &Claim) -> bool {
    matches!(client.release(&[claim]).await[..], [Release::Freed])
}

async fn claims(client: &Client, claim: &Claim) -> usize {
    let seen = client.inspect(&claim.resource, None, &Patience::none(clock())).await.unwrap();
    seen.holders.len() + seen.waiting.len()
}

#[tokio::test]
async fn free_cell_is_taken_by_one_write_and_emptied_by_another() {
    let (store, client, other) = opened();
    let mut last = None;
    for round in 1..=3 {
        let (held, before) = (claim("r", LONG), store.requests());
        let DirectReply::Granted(grant) = ask(&client, &held).await else { panic!("it is free") };
        assert!(grant.fence > last);
        last = grant.fence;
        assert!(try_take(&other, &claim("r", LONG)).await.is_none());
        assert!(is_freed(&client, &held).await);
        // The try is one, and the release another.
        assert_eq!((store.sent(), store.requests() - before), (round, 2));
    }
}

#[tokio::test]
async fn held_cell_is_busy_and_keeps_no_place() {
    let (_, client, other) = opened();
    let held = claim("r", LONG);
    try_take(&other, &held).await.unwrap();
    let reply = ask(&client, &claim("r", LONG)).await;
    assert!(matches!(reply, DirectReply::Busy { ahead: Some(1) }), "{reply:?}");
    assert_eq!(claims(&client, &held).await, 1);
    assert!(is_freed(&other, &held).await);
    assert!(matches!(ask(&client, &claim("r", LONG)).await, DirectReply::Granted(_)));
}

#[tokio::test]
async fn answer_that_is_dropped_leaves_a_claim_that_can_be_released() {
    let (_, client, other) = opened();
    let held = claim("r", LONG);
    drop(sent(&client, &held));
    assert!(try_take(&other, &claim("r", LONG)).await.is_none());
    assert!(is_freed(&client, &held).await);
    assert!(try_take(&other, &claim("r", LONG)).await.is_some());
}

#[tokio::test]
async fn failure_says_whether_the_claim_may_hold() {
    let (store, client, _) = opened();
    let held = claim("r", LONG);
    store.next_at_once(FateAtOnce::Waits);
    assert!(sent(&client, &held).is_none());
    store.next_at_once(FateAtOnce::Fails);
    assert!(matches!(ask(&client, &held).await, DirectReply::Declined));
    assert_eq!(claims(&client, &held).await, 0);
    store.next_at_once(FateAtOnce::FailsAfterwards);
    assert!(matches!(ask(&client, &held).await, DirectReply::Unknown));
    // The slow path finds it.
    let first = try_take(&client, &held).await.unwrap().fence;
    assert_eq!(first, try_take(&client, &held).await.unwrap().fence);
    assert!(is_freed(&client, &held).await);
}

#[tokio::test]
async fn claim_that_others_joined_before_the_answer_may_hold() {
    let (store, client, _) = opened();
    let held = claim("r", LONG);
    store.next_at_once(FateAtOnce::IsChanged);
    assert!(matches!(ask(&client, &held).await, DirectReply::Unknown));
    assert_eq!(claims(&client, &held).await, 1);
    assert!(try_take(&client, &held).await.is_some());
    assert!(is_freed(&client, &held).await);
}

#[tokio::test]
async fn what_is_not_a_matter_of_one_write_goes_the_longer_way() {
    let (store, client, _) = opened();
    for share in [Share::READER, Share::permits(1, 2).unwrap()] {
        assert!(sent(&client, &claim("r", LONG).share(share)).is_none());
    }
    assert!(sent(&client, &claim("r", Duration::ZERO)).is_none());
    assert_eq!(store.sent(), 0);
    let table = store.open(TABLE, Faults::default());
    assert!(table.direct_requests().is_none());
}
