//! A member that dies in its count, at any request, is counted once.

use futures_util::FutureExt;

use crate::mortal::{Role, at_each_request, soon};

pub(crate) const COUNTER: Role = Role {
    name: "latch-counter",
    play: |locks, name| async move { locks.latch(name, 3).count_down_as("player").await.unwrap() }.boxed(),
};

/// A counter dies, and counts again: it is counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latch_survives_a_counter_that_dies_at_any_step() {
    at_each_request(&COUNTER, 12, 6, |locks, name, mut player| async move {
        let killed = player.is_killed().await;
        let latch = locks.latch(&name, 3);
        latch.count_down_as("player").await.unwrap();
        latch.count_down_as("another").await.unwrap();
        assert_eq!(latch.remaining().await.unwrap(), 1);
        latch.count_down_as("a third").await.unwrap();
        soon("the latch", latch.wait()).await.unwrap();
        killed
    })
    .await;
}
