//! A party that dies, at any request, neither stops the others nor spoils the barrier.

use std::time::Duration;

use futures_util::FutureExt;
use leasehold::ErrorKind;

use crate::fixture::until;
use crate::mortal::{Role, TTL, at_each_request, soon};

pub(crate) const PARTY: Role = Role {
    name: "barrier-party",
    play: |locks, name| {
        async move {
            // With or without another party, and also if the wait ends: this process only has to be
            // killed.
            let _ = locks.barrier(name, 2).ttl(TTL).wait_for(Duration::from_secs(20)).await;
        }
        .boxed()
    },
};

pub(crate) const ALONE: Role = Role {
    name: "barrier-alone",
    play: |locks, name| {
        async move {
            let _ = locks.barrier(name, 2).ttl(TTL).wait_for(Duration::from_millis(500)).await;
        }
        .boxed()
    },
};

/// A party dies while no other waits: none passes with it later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_party_dies_alone_at_each_step() {
    at_each_request(&ALONE, 40, 8, |locks, name, mut player| async move {
        let killed = player.is_killed().await;
        until(&locks, &format!("{name}!arrived"), 3_000, |seen| seen.holders.is_empty()).await;
        let barrier = locks.barrier(&name, 2).ttl(TTL);
        let passage = soon("the barrier", barrier.wait_for(Duration::from_millis(100))).await;
        let error = passage.expect_err("the other party is gone");
        assert!(matches!(error.kind(), ErrorKind::Broken | ErrorKind::Timeout), "{error}");
        barrier.reset().await.unwrap();
        let (one, two) = soon("the barrier", async { tokio::join!(barrier.wait(), barrier.wait()) }).await;
        assert!(one.unwrap().is_leader() != two.unwrap().is_leader());
        killed
    })
    .await;
}

/// A party dies: the other passes, or gets an error, and the barrier can be used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_party_dies_at_each_step() {
    at_each_request(&PARTY, 20, 8, |locks, name, mut player| async move {
        let barrier = locks.barrier(&name, 2).ttl(TTL);
        match soon("the barrier", barrier.wait_for(Duration::from_secs(8))).await {
            Ok(_) => {}
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Broken | ErrorKind::Timeout), "{error}");
                assert!(barrier.is_broken().await.unwrap());
            }
        }
        let killed = player.is_killed().await;
        // A player that died while it arrived for a second time would still be recorded there.
        barrier.reset().await.unwrap();
        let (one, two) = soon("the barrier", async { tokio::join!(barrier.wait(), barrier.wait()) }).await;
        assert!(one.unwrap().is_leader() != two.unwrap().is_leader());
        killed
    })
    .await;
}
