//! A party that dies, at any request, neither stops the others nor spoils the barrier.

use std::time::Duration;

use futures_util::FutureExt;
use leasehold::ErrorKind;

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
