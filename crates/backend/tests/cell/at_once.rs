//! Decisions on the thread of the caller: what they change, and what they leave to the slow path.

use std::sync::Arc;

use leasehold_backend::cell::{CellBackend, MAX_TTL, MIN_TTL};
use leasehold_core::{Backend, Claim, DirectReply, FailureKind, Fence, Patience, Release, Step};

use crate::store::{FateAtOnce, Faults, LONG, MemoryCells, Store, TABLE, claim, clock, try_take};

type Client = CellBackend<MemoryCells>;

/// Returns a client that has left the cell empty.
async fn client(store: &Arc<Store>) -> Client {
    let client = store.open_local();
    let first = claim("r", LONG);
    assert!(try_take(&client, &first).await.is_some());
    assert!(matches!(client.release(&[&first]).await[..], [Release::Freed]));
    client
}

fn ask(client: &Client, claim: &Claim) -> DirectReply {
    client.at_once().unwrap().grant_now(claim, clock().now())
}

fn granted(client: &Client, claim: &Claim) -> Fence {
    match ask(client, claim) {
        DirectReply::Granted(grant) => grant.fence.unwrap(),
        other => panic!("{other:?}"),
    }
}

fn release_now(client: &Client, claim: &Claim) -> Option<Release> {
    client.at_once().unwrap().release_now(claim)
}

async fn is_free(client: &dyn Backend) -> bool {
    let probe = claim("r", LONG);
    let is_free = try_take(client, &probe).await.is_some();
    client.release(&[&probe]).await;
    is_free
}

#[tokio::test]
async fn cell_that_was_left_empty_is_taken_and_emptied_at_once() {
    let store = Store::new();
    let (client, other) = (client(&store).await, store.open(TABLE, Faults::default()));
    let before = store.requests();
    let mut last = Fence::default();
    for _ in 0..3 {
        let held = claim("r", LONG);
        let fence = granted(&client, &held);
        assert!(fence > last);
        last = fence;
        assert!(matches!(release_now(&client, &held), Some(Release::Freed)));
        assert!(release_now(&client, &held).is_none(), "it is released already");
    }
    assert_eq!(store.requests(), before, "the slow path was taken");
    let held = claim("r", LONG);
    granted(&client, &held);
    assert!(!is_free(&other).await);
    assert!(matches!(client.release(&[&held]).await[..], [Release::Freed]), "by the slow path");
    assert!(is_free(&other).await);
}

#[tokio::test]
async fn cell_that_another_client_used_is_left_to_the_longer_way() {
    let store = Store::new();
    let (client, other) = (client(&store).await, store.open(TABLE, Faults::default()));
    let held = claim("r", LONG);
    try_take(&other, &held).await.unwrap();
    let refused = claim("r", LONG);
    assert!(matches!(ask(&client, &refused), DirectReply::Declined));
    assert!(matches!(other.release(&[&held]).await[..], [Release::Freed]));
    assert!(is_free(&other).await, "the refused claim is in the cell");
    assert!(matches!(ask(&client, &refused), DirectReply::Declined), "the other client left it");
}

#[tokio::test]
async fn claim_with_a_waiter_behind_it_is_released_the_longer_way() {
    let store = Store::new();
    let (client, other) = (client(&store).await, Arc::new(store.open(TABLE, Faults::default())));
    let (held, next) = (claim("r", LONG), claim("r", LONG));
    granted(&client, &held);
    let waiting = tokio::spawn({
        let (other, next) = (other.clone(), next.clone());
        async move { other.contend(&next, &Patience::unlimited(clock())).await.unwrap() }
    });
    while client.inspect(&held.resource, None, &Patience::none(clock())).await.unwrap().waiting.is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(release_now(&client, &held).is_none());
    assert!(!waiting.is_finished());
    let before = store.requests();
    assert!(matches!(client.release(&[&held]).await[..], [Release::Freed]));
    assert_eq!(store.requests() - before, 2, "a look, and the release");
    assert!(matches!(waiting.await.unwrap(), Step::Granted(_)));
}

#[tokio::test]
async fn write_that_would_wait_or_fails_without_effect_changes_nothing() {
    let store = Store::new();
    let client = client(&store).await;
    store.next_at_once(FateAtOnce::Waits);
    assert!(matches!(ask(&client, &claim("r", LONG)), DirectReply::Declined));
    let held = claim("r", LONG);
    granted(&client, &held);
    for fate in [FateAtOnce::Waits, FateAtOnce::Fails] {
        store.next_at_once(fate);
        assert!(release_now(&client, &held).is_none());
    }
    assert!(matches!(release_now(&client, &held), Some(Release::Freed)));
    store.next_at_once(FateAtOnce::Fails);
    assert!(matches!(ask(&client, &claim("r", LONG)), DirectReply::Declined));
    assert!(is_free(&client).await);
}

#[tokio::test]
async fn write_of_unknown_effect_is_settled_by_repeating_it() {
    let store = Store::new();
    let client = client(&store).await;
    let held = claim("r", LONG);
    store.next_at_once(FateAtOnce::FailsAfterwards);
    assert!(matches!(ask(&client, &held), DirectReply::Unknown));
    assert!(!is_free(&client).await);
    assert!(try_take(&client, &held).await.is_some(), "its own grant refuses it");
    assert!(matches!(client.release(&[&held]).await[..], [Release::Freed]));

    let held = claim("r", LONG);
    granted(&client, &held);
    store.next_at_once(FateAtOnce::FailsAfterwards);
    assert!(matches!(release_now(&client, &held), Some(Release::Unknown(_))));
    assert!(matches!(client.release(&[&held]).await[..], [Release::Gone]));
    assert!(is_free(&client).await);
}

#[tokio::test]
async fn changes_of_several_tasks_go_together() {
    let store = Store::new();
    let client = Arc::new(client(&store).await);
    let (held, wanted, other) = (claim("r", LONG), claim("r", LONG), claim("other", LONG));
    granted(&client, &held);
    assert!(try_take(&*client, &other).await.is_some());
    assert!(matches!(client.release(&[&other]).await[..], [Release::Freed]));
    let gate = store.stall_a_commit();
    let releasing = tokio::spawn({
        let (client, held) = (client.clone(), held.clone());
        async move { client.release(&[&held]).await.pop() }
    });
    while store.commits_to_come() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(release_now(&client, &held).is_none(), "a commit is under way");
    assert!(matches!(ask(&client, &other), DirectReply::Declined), "a commit is under way");
    gate.add_permits(1);
    assert!(matches!(releasing.await.unwrap(), Some(Release::Freed)));
    granted(&client, &wanted);
    granted(&client, &other);
}

#[tokio::test]
async fn claim_that_the_store_cannot_keep_is_refused_by_the_longer_way() {
    let client = client(&Store::new()).await;
    let endless = claim("r", MAX_TTL * 2);
    assert!(matches!(ask(&client, &endless), DirectReply::Declined));
    let failure = client.contend(&endless, &Patience::none(clock())).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Invalid, "{failure}");
    granted(&client, &claim("r", LONG));
}

#[tokio::test]
async fn releases_of_many_claims_are_left_to_go_together() {
    let store = Store::new();
    let client = client(&store).await;
    let held: Vec<Claim> = (0..65).map(|n| claim(&format!("many/{n}"), LONG)).collect();
    for claim in &held {
        assert!(try_take(&client, claim).await.is_some());
    }
    assert!(release_now(&client, &held[0]).is_none());
    assert!(matches!(client.release(&[&held[0]]).await[..], [Release::Freed]));
    assert!(matches!(release_now(&client, &held[1]), Some(Release::Freed)));
}

#[tokio::test]
async fn claims_that_were_released_at_once_do_not_count_among_many() {
    let client = client(&Store::new()).await;
    for _ in 0..200 {
        let held = claim("r", LONG);
        granted(&client, &held);
        assert!(matches!(release_now(&client, &held), Some(Release::Freed)));
    }
}

/// As those of a rate limit, which are left to their leases.
#[tokio::test]
async fn claims_that_end_by_themselves_do_not_count_among_many() {
    let store = Store::new();
    let client = client(&store).await;
    for n in 0..200 {
        assert!(try_take(&client, &claim(&format!("many/{n}"), MIN_TTL)).await.is_some());
    }
    tokio::time::sleep(MIN_TTL * 2).await;
    let mut at_once = 0;
    for _ in 0..400 {
        let held = claim("r", LONG);
        assert!(try_take(&client, &held).await.is_some());
        match release_now(&client, &held) {
            Some(release) => {
                assert!(matches!(release, Release::Freed));
                at_once += 1;
            }
            None => assert!(matches!(client.release(&[&held]).await[..], [Release::Freed])),
        }
    }
    assert!(at_once > 0, "no release was decided at once any more");
}

#[tokio::test]
async fn store_of_several_machines_decides_nothing_at_once() {
    assert!(Store::new().open(TABLE, Faults::default()).at_once().is_none());
}
